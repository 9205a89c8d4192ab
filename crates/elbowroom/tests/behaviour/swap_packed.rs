//! A swap file that keeps pages compressed.

use super::swap::{noise, soon_nothing_is_left, with_disk};
use crate::support::*;
use elbowroom::{Ablation, Advice, Config, Sharing};

on_every_machine! {
    what_leaves_the_pool_shares_pages_of_the_file
    what_only_passes_through_the_pool_is_compressed_too
}

/// What lz4 makes a third of.
fn third_noise(page: usize) -> [u8; PAGE] {
    let mut bytes = noise(page);
    bytes[PAGE / 3..].fill(0);
    bytes
}

/// A machine with a slow disk, so that the file is what limits, and four budgets of memory in which all pages
/// have been stored in order; and where that is.
fn stored<M: Machine>(dir: &std::path::Path, off: &str) -> Option<(M, usize, usize)> {
    let inject = Some("write:slow=3ms".to_owned());
    let m = M::start(Config { inject, ablation: Ablation::without(off).unwrap(), ..with_disk(dir) })?;
    let pages = 4 * BUDGET as usize / PAGE;
    let addr = m.map_anon(pages, Sharing::Private);
    (0..pages).for_each(|page| m.port().store(addr + page * PAGE, &third_noise(page)));
    Some((m, addr, pages))
}

fn is_right<M: Machine>(m: &M, addr: usize, page: usize) -> bool {
    let mut found = [0; PAGE];
    m.port().load(addr + page * PAGE, &mut found);
    found == third_noise(page)
}

/// Where the file is what limits, what compresses goes through a pool that is to keep nothing.
fn what_only_passes_through_the_pool_is_compressed_too<M: Machine>() {
    let through = |off| {
        let dir = scratch();
        let (m, addr, pages) = stored::<M>(dir.path(), off)?;
        // Nothing comes back before four budgets have gone out: the pool is given up.
        assert!((0..2 * pages).all(|turn| is_right(&m, addr, turn % pages)));
        let before = m.manager().stats();
        (0..pages).for_each(|page| m.port().store(addr + page * PAGE, &third_noise(page + 1)));
        let after = m.manager().stats();
        Some((after.zswpwb - before.zswpwb, after.pswpout - before.pswpout))
    };
    let (Some(with), Some(without)) = (through(""), through("packed_swap_file")) else { return };
    // Some does without that, too, before the pool is given up.
    assert!(with.0 * without.1 * 10 > without.0 * with.1 * 13, "{with:?}, {without:?}");
}

/// Two pages of the pool share one of the file, and all come back, in order and at random, while others of
/// their page of the file are gone.
fn what_leaves_the_pool_shares_pages_of_the_file<M: Machine>() {
    let dir = scratch();
    let Some((m, addr, pages)) = stored::<M>(dir.path(), "") else { return };
    let stats = m.manager().stats();
    let (taken, left) = (stats.swap_file_bytes / PAGE as u64, stats.zswpwb);
    let as_they_are = stats.pswpout - left;
    assert!(left > BUDGET / PAGE as u64, "{stats:?}");
    assert!(taken * 10 < as_they_are * 10 + left * 6, "{stats:?}");
    for page in (0..pages).step_by(3) {
        m.space().advise(addr + page * PAGE, PAGE, Advice::DontNeed).unwrap();
    }
    for turn in 0..2 * pages {
        let page = if turn < pages { turn } else { turn * 4099 % pages };
        assert!(page % 3 == 0 || is_right(&m, addr, page), "page {page} in turn {turn}");
    }
    m.space().unmap(addr, pages * PAGE).unwrap();
    soon_nothing_is_left(&m);
}
