//! A swap file that keeps pages compressed.

use super::swap::{noise, soon_nothing_is_left, with_disk};
use crate::support::*;
use elbowroom::{Advice, Config, Sharing};

on_every_machine! {
    what_leaves_the_pool_shares_pages_of_the_file
}

/// What lz4 makes a third of.
fn third_noise(page: usize) -> [u8; PAGE] {
    let mut bytes = noise(page);
    bytes[PAGE / 3..].fill(0);
    bytes
}

fn is_right<M: Machine>(m: &M, addr: usize, page: usize) -> bool {
    let mut found = [0; PAGE];
    m.port().load(addr + page * PAGE, &mut found);
    found == third_noise(page)
}

/// Two pages of the pool share one of the file, and all come back, in order and at random, while others of
/// their page of the file are gone.
fn what_leaves_the_pool_shares_pages_of_the_file<M: Machine>() {
    let dir = scratch();
    // A slow disk is what limits: most of what goes out is compressed.
    let inject = Some("write:slow=3ms".to_owned());
    let Some(m) = M::start(Config { inject, ..with_disk(dir.path()) }) else { return };
    let pages = 4 * BUDGET as usize / PAGE;
    let addr = m.map_anon(pages, Sharing::Private);
    (0..pages).for_each(|page| m.port().store(addr + page * PAGE, &third_noise(page)));
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
