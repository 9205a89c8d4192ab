//! Pages of zeros: they become nothing when they go out.

use super::swap::{noise, soon_nothing_is_left, with_disk};
use crate::support::*;
use elbowroom::{Advice, Config, Remap, Sharing};
use elbowroom_sync::time::{Duration, Instant};

on_every_machine! {
    zeros_that_are_only_read_take_nothing
    zeros_that_were_stored_take_nothing
    pages_between_zeros_keep_their_bytes
    a_copy_of_a_files_page_stays_zero
    what_swap_had_of_a_page_that_is_zero_now_is_given_back
    zeros_move_with_their_mapping
}

/// A budget, and as much swap.
fn with_little_swap() -> Config {
    Config { swap: BUDGET, ..Config::with_memory(BUDGET) }
}

const PAGES: usize = BUDGET as usize / PAGE;

/// Puts all pages of the range out, or makes nothing of them.
fn page_out<M: Machine>(m: &M, addr: usize, pages: usize) {
    m.space().advise(addr, pages * PAGE, Advice::PageOut).unwrap();
}

/// Sixteen budgets are read, in order and then here and there. Swap has room for one.
fn zeros_that_are_only_read_take_nothing<M: Machine>() {
    let Some(m) = M::start(with_little_swap()) else { return };
    let (pages, port) = (16 * PAGES, m.port());
    let addr = m.map_anon(pages, Sharing::Private);
    for turn in 0..2 * pages {
        let page = if turn < pages { turn } else { turn * 4099 % pages };
        assert_eq!(port.word(addr + page * PAGE), 0, "page {page}");
    }
    let stats = m.manager().stats();
    assert_eq!((stats.pswpout, stats.pswpin, stats.swap_used_bytes), (0, 0, 0), "{stats:?}");
    assert!(stats.zeros_dropped > pages as u64 / 2, "{stats:?}");
    assert!(stats.peak_bytes <= BUDGET, "{} bytes", stats.peak_bytes);
    m.space().unmap(addr, pages * PAGE).unwrap();
}

/// Pages that had other bytes, in memory and out, and are zeros now.
fn zeros_that_were_stored_take_nothing<M: Machine>() {
    let Some(m) = M::start(Config { swap: 4 * BUDGET, ..Config::with_memory(BUDGET) }) else { return };
    let (pages, port) = (2 * PAGES, m.port());
    let addr = m.map_anon(pages, Sharing::Private);
    m.mark(addr, 0..pages, 1);
    (0..pages).for_each(|page| port.store(addr + page * PAGE, &[0; PAGE]));
    page_out(&m, addr, pages);
    let stats = m.manager().stats();
    // A page that another thread has in its hands just then is passed by.
    assert!(stats.swap_used_bytes <= 64 * PAGE as u64, "{} bytes are out", stats.swap_used_bytes);
    m.check_zero(addr, pages);
    m.mark(addr, 0..pages, 2);
    m.check_marks(addr, 0..pages, 2);
    m.space().unmap(addr, pages * PAGE).unwrap();
    soon_nothing_is_left(&m);
}

/// Runs of pages of which some are zeros, in all orders that there are of four neighbours.
fn pages_between_zeros_keep_their_bytes<M: Machine>() {
    let Some(m) = M::start(with_little_swap()) else { return };
    let (pages, port) = (512, m.port());
    let addr = m.map_anon(pages, Sharing::Private);
    let stored = |page: usize| (page / 4) >> (page % 4) & 1 == 1;
    for round in 1..4 {
        // In order: they are made in runs.
        m.check_zero(addr, pages);
        for page in (0..pages).filter(|page| stored(*page)) {
            port.set_word(addr + page * PAGE + 8 * (page % 512), page as u64 + round);
        }
        let before = m.manager().stats();
        let until = Instant::now() + Duration::from_secs(20);
        let [out, dropped] = loop {
            page_out(&m, addr, pages);
            let after = m.manager().stats();
            let done = [after.pswpout - before.pswpout, after.zeros_dropped - before.zeros_dropped];
            // A page that another thread has in its hands just then is passed by.
            if done.iter().sum::<u64>() >= pages as u64 || Instant::now() > until {
                break done.map(|n| n as usize);
            }
        };
        assert_eq!((out, dropped), (pages / 2, pages / 2));
        for page in 0..pages {
            let mut found = [1; PAGE];
            port.load(addr + page * PAGE, &mut found);
            let mut expected = [0; PAGE];
            if stored(page) {
                expected[8 * (page % 512)..][..8].copy_from_slice(&(page as u64 + round).to_le_bytes());
            }
            assert!(found == expected, "page {page} in round {round}");
        }
        m.space().advise(addr, pages * PAGE, Advice::DontNeed).unwrap();
    }
    m.space().unmap(addr, pages * PAGE).unwrap();
    soon_nothing_is_left(&m);
}

/// Without the copy the file's page would be seen again.
fn a_copy_of_a_files_page_stays_zero<M: Machine>() {
    let Some(m) = M::start(with_little_swap()) else { return };
    let (pages, dir) = (64, scratch());
    let path = stamped(dir.path(), "zeroed", pages);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, pages, Sharing::Private);
    for page in (0..pages).step_by(2) {
        m.port().store(addr + page * PAGE, &[0; PAGE]);
    }
    for _ in 0..3 {
        page_out(&m, addr, pages);
        for page in 0..pages {
            let expected = if page % 2 == 0 { 0 } else { stamp(page) };
            assert_eq!(m.word(addr + page * PAGE), expected, "page {page}");
        }
    }
    let stats = m.manager().stats();
    assert_eq!(stats.zeros_dropped, 0, "{stats:?}");
    assert!(stats.pswpout >= pages as u64 / 2, "{stats:?}");
    m.space().unmap(addr, pages * PAGE).unwrap();
    soon_nothing_is_left(&m);
}

/// The file and the pool have bytes of pages that came in, for when they go out unchanged.
fn what_swap_had_of_a_page_that_is_zero_now_is_given_back<M: Machine>() {
    let dir = scratch();
    let Some(m) = M::start(with_disk(dir.path())) else { return };
    let (pages, port) = (PAGES / 4, m.port());
    let addr = m.map_anon(pages, Sharing::Private);
    for round in 0..3 {
        // Some compress.
        for page in 0..pages {
            if page % 3 == 0 {
                port.set_word(addr + page * PAGE, stamp(page) ^ round);
            } else {
                port.store(addr + page * PAGE, &noise(page));
            }
        }
        page_out(&m, addr, pages);
        for page in 0..pages {
            let expected = if page % 3 == 0 { stamp(page) ^ round } else { word_of(&noise(page)) };
            assert_eq!(port.word(addr + page * PAGE), expected, "page {page}");
        }
        (0..pages).for_each(|page| port.store(addr + page * PAGE, &[0; PAGE]));
        page_out(&m, addr, pages);
        soon_nothing_is_left(&m);
        m.check_zero(addr, pages);
    }
    assert!(m.manager().stats().zeros_dropped > pages as u64, "{:?}", m.manager().stats());
    m.space().unmap(addr, pages * PAGE).unwrap();
}

fn word_of(page: &[u8; PAGE]) -> u64 {
    u64::from_le_bytes(page[..8].try_into().unwrap())
}

fn zeros_move_with_their_mapping<M: Machine>() {
    let Some(m) = M::start(with_little_swap()) else { return };
    let (pages, port) = (100, m.port());
    let mut addr = m.map_anon(pages, Sharing::Private);
    for round in 0..4 {
        (0..pages).step_by(2).for_each(|page| port.set_word(addr + page * PAGE, stamp(page)));
        m.check_marks_or_zero(addr, pages);
        page_out(&m, addr, pages);
        let len = pages * PAGE;
        addr = m.space().remap(addr, len, len + round * PAGE, Remap::MayMove).unwrap();
        m.space().unmap(addr + len, round * PAGE).ok();
        m.check_marks_or_zero(addr, pages);
        page_out(&m, addr, pages);
    }
    m.space().unmap(addr, pages * PAGE).unwrap();
    soon_nothing_is_left(&m);
}

trait Marked: Machine {
    /// Checks that each second page has its stamp, and each other one is zero.
    fn check_marks_or_zero(&self, addr: usize, pages: usize) {
        for page in 0..pages {
            let expected = if page % 2 == 0 { stamp(page) } else { 0 };
            assert_eq!(self.word(addr + page * PAGE), expected, "page {page}");
        }
    }
}

impl<M: Machine> Marked for M {}
