//! Stores in a row: pages are made writable ahead of them, and only those that were stored to are written.

use crate::support::*;
use elbowroom::{Config, Sharing};
use elbowroom_sync::time::Duration;
use std::os::unix::fs::FileExt;
use std::path::Path;

on_every_machine! {
    stores_in_a_row_take_few_faults
    what_nobody_stored_to_is_not_written
    what_others_wrote_is_seen_where_nobody_stored
    each_round_of_stores_reaches_the_file
    a_guess_that_is_cut_off_is_not_lost
}

/// Where those who are not managed write.
const THEIRS: usize = 2048;

/// Nothing is written before it is asked for.
fn lazy() -> Config {
    Config { writeback_interval: Duration::from_secs(3600), ..Config::with_memory(BUDGET) }
}

/// Whether that is on.
fn guesses() -> bool {
    let on = ablated(lazy()).ablation;
    on.completed && on.tuning.stores_ahead_pages > 0
}

fn write_behind_our_back(path: &Path, page: usize, word: u64) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&word.to_le_bytes(), (page * PAGE + THEIRS) as u64).unwrap();
}

fn stores_in_a_row_take_few_faults<M: Machine>() {
    let Some(m) = M::start(lazy()) else { return };
    let dir = scratch();
    let pages = 1024;
    let path = stamped(dir.path(), "row", pages);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, pages, Sharing::Shared);
    // In memory, but not mapped; in a row, and every third page.
    m.check_marks(addr, 0..pages, 0);
    m.space().unmap(addr, pages * PAGE).unwrap();
    for (step, seed) in [(1, 1), (3, 2)] {
        let addr = m.map_file(&object, pages, Sharing::Shared);
        let before = m.manager().stats();
        let port = m.port();
        (0..pages).step_by(step).for_each(|page| port.set_word(addr + page * PAGE, stamp(page) ^ seed));
        drop(port);
        let after = m.manager().stats();
        let (faults, ahead) = (after.pgfault - before.pgfault, after.stores_ahead - before.stores_ahead);
        if step == 1 && guesses() {
            assert!(faults <= pages as u64 / 8, "{faults} faults");
            assert!(ahead >= pages as u64 / 2, "{ahead} ahead");
        } else if step == 3 {
            assert!(faults >= pages as u64 / 3, "{faults} faults");
            assert_eq!(ahead, 0);
        }
        m.space().sync(addr, pages * PAGE, true, false).unwrap();
        m.space().unmap(addr, pages * PAGE).unwrap();
    }
    for page in 0..pages {
        let seed = if page % 3 == 0 { 2 } else { 1 };
        assert_eq!(file_word(&path, page * PAGE), stamp(page) ^ seed, "page {page}");
    }
    assert_eq!(m.manager().dirty_pages(), 0);
}

fn what_nobody_stored_to_is_not_written<M: Machine>() {
    for loaded in [false, true] {
        let Some(m) = M::start(lazy()) else { return };
        let dir = scratch();
        let path = stamped(dir.path(), "guessed", 64);
        let object = m.manager().open(&path, true).unwrap();
        let addr = m.map_file(&object, 64, Sharing::Shared);
        if loaded {
            m.check_marks(addr, 0..64, 0);
        }
        m.mark(addr, 0..40, 1);
        // In what was guessed, and behind it.
        (40..64).for_each(|page| write_behind_our_back(&path, page, 7));
        m.space().sync(addr, 64 * PAGE, true, false).unwrap();
        for page in 0..64 {
            let ours = stamp(page) ^ u64::from(page < 40);
            assert_eq!(file_word(&path, page * PAGE), ours, "page {page}, loaded: {loaded}");
            let theirs = file_word(&path, page * PAGE + THEIRS);
            assert_eq!(theirs == 7, page >= 40, "page {page}, loaded: {loaded}");
        }
        assert_eq!(m.manager().dirty_pages(), 0);
        let stats = m.manager().stats();
        assert!(stats.stores_ahead_unused <= stats.stores_ahead && stats.lost_dirty_pages == 0, "{stats:?}");
        assert_eq!(guesses(), stats.stores_ahead > 0, "{stats:?}");
        assert!(stats.written_bytes == 40 * PAGE as u64, "{stats:?}");
    }
}

fn what_others_wrote_is_seen_where_nobody_stored<M: Machine>() {
    let Some(m) = M::start(lazy()) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "theirs", 64);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, 64, Sharing::Shared);
    m.check_marks(addr, 0..64, 0);
    m.mark(addr, 0..40, 1);
    (40..64).for_each(|page| write_behind_our_back(&path, page, 7));
    // Looks whether somebody else has changed the file; a folio of which nothing is dirty is dropped then.
    m.manager().flush_all().unwrap();
    drop(m.manager().open(&path, true).unwrap());
    (40..64).for_each(|page| assert_eq!(m.word(addr + page * PAGE + THEIRS), 7, "page {page}"));
    m.check_marks(addr, 0..40, 1);
    assert_eq!(m.manager().stats().lost_dirty_pages, 0);
}

fn each_round_of_stores_reaches_the_file<M: Machine>() {
    let Some(m) = M::start(lazy()) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "rounds", 64);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, 64, Sharing::Shared);
    // The bytes that a page had when it was guessed are stored again later.
    for round in 0..6 {
        m.mark(addr, 0..64, round % 2 + 1);
        m.space().sync(addr, 64 * PAGE, true, false).unwrap();
        for page in 0..64 {
            assert_eq!(file_word(&path, page * PAGE), stamp(page) ^ (round % 2 + 1), "page {page}");
        }
    }
}

fn a_guess_that_is_cut_off_is_not_lost<M: Machine>() {
    let Some(m) = M::start(lazy()) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "cut", 64);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, 64, Sharing::Shared);
    m.check_marks(addr, 0..64, 0);
    m.mark(addr, 0..30, 1);
    m.resize(&object, &path, (25 * PAGE) as u64);
    m.resize(&object, &path, (64 * PAGE) as u64);
    m.check_marks(addr, 0..25, 1);
    m.check_zero(addr + 25 * PAGE, 39);
    m.space().sync(addr, 64 * PAGE, true, false).unwrap();
    (25..64).for_each(|page| assert_eq!(file_word(&path, page * PAGE), 0, "page {page}"));
    assert_eq!((m.manager().dirty_pages(), m.manager().stats().lost_dirty_pages), (0, 0));
}
