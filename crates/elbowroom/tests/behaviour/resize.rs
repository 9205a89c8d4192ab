//! Files that become shorter and longer under their mappings.

use crate::support::*;
use elbowroom::{Config, Sharing};
use elbowroom_sync::time::Duration;

on_every_machine! {
    what_is_cut_off_is_gone
    what_is_added_is_zero
    what_is_moved_ends_copies
    many_cuts_and_growths
    what_others_cut_off_is_forgotten
    what_others_add_is_kept
    a_change_of_our_own_is_nobody_elses
}

fn what_is_cut_off_is_gone<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "cut", 40);
    let object = m.manager().open(&path, true).unwrap();
    let (shared, private) =
        (m.map_file(&object, 40, Sharing::Shared), m.map_file(&object, 40, Sharing::Private));
    m.mark(shared, 0..40, 1);
    m.mark(private, 5..30, 2);
    m.resize(&object, &path, (10 * PAGE + 100) as u64);
    let port = m.port();
    for addr in [shared, private] {
        for page in [11, 12, 20, 39] {
            port.load_fails(addr + page * PAGE, Failure::Bus);
            port.store_fails(addr + page * PAGE + 8, Failure::Bus);
        }
    }
    m.check_marks(shared, 0..10, 1);
    m.check_marks(private, 0..5, 1);
    m.check_marks(private + 5 * PAGE, 5..11, 2);
    // The rest of the last page of the file is zero; that of a copy is its own.
    assert_eq!(m.word(shared + 10 * PAGE), stamp(10) ^ 1);
    assert_eq!(m.word(shared + 10 * PAGE + 88), stamp(10));
    assert_eq!(m.word(shared + 10 * PAGE + 104), 0);
    assert_eq!(m.word(shared + 11 * PAGE - 8), 0);
    m.manager().flush_all().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), (10 * PAGE + 100) as u64);
    assert_eq!(m.manager().dirty_pages(), 0);
    assert_eq!(file_word(&path, 10 * PAGE), stamp(10) ^ 1);
}

fn what_is_added_is_zero<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "added", 20);
    let object = m.manager().open(&path, true).unwrap();
    let (shared, private) =
        (m.map_file(&object, 40, Sharing::Shared), m.map_file(&object, 40, Sharing::Private));
    m.mark(shared, 0..20, 1);
    m.mark(private, 5..20, 2);
    for addr in [shared, private] {
        m.port().load_fails(addr + 20 * PAGE, Failure::Bus);
        m.port().store_fails(addr + 39 * PAGE, Failure::Bus);
    }
    // Cut, and then added, it is zero; the copies of what was cut off are gone.
    m.resize(&object, &path, 10 * PAGE as u64);
    m.port().load_fails(private + 15 * PAGE, Failure::Bus);
    m.resize(&object, &path, 30 * PAGE as u64);
    m.check_marks(shared, 0..10, 1);
    m.check_zero(shared + 10 * PAGE, 20);
    m.check_marks(private + 5 * PAGE, 5..10, 2);
    m.check_zero(private + 10 * PAGE, 20);
    m.port().load_fails(shared + 30 * PAGE, Failure::Bus);
    m.mark(shared, 25..30, 3);
    m.check_marks(private + 25 * PAGE, 25..30, 3);
    m.mark(private, 26..27, 4);
    m.check_marks(shared + 25 * PAGE, 25..30, 3);
    m.space().sync(shared, 40 * PAGE, true, false).unwrap();
    assert_eq!(file_word(&path, 29 * PAGE), stamp(29) ^ 3);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 30 * PAGE as u64);
}

/// As FALLOC_FL_COLLAPSE_RANGE of page 2 does it on ext4.
fn what_is_moved_ends_copies<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "moved", 8);
    let object = m.manager().open(&path, true).unwrap();
    let (shared, private) =
        (m.map_file(&object, 8, Sharing::Shared), m.map_file(&object, 8, Sharing::Private));
    for page in [1, 2, 5] {
        m.set_word(private + page * PAGE, 99);
    }
    let from = (2 * PAGE) as u64;
    let ticket = m.manager().write_begin(&object, from..u64::MAX);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.drain(2 * PAGE..3 * PAGE);
    std::fs::write(&path, &bytes).unwrap();
    m.manager().moved(&object, from);
    m.manager().write_end(ticket, 0..0);
    for page in 0..7 {
        let now = stamp(if page < 2 { page } else { page + 1 });
        assert_eq!(m.word(shared + page * PAGE), now, "page {page}");
        let own = if page == 1 { 99 } else { now };
        assert_eq!(m.word(private + page * PAGE), own, "copy {page}");
    }
    m.port().load_fails(private + 7 * PAGE, Failure::Bus);
}

fn many_cuts_and_growths<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "often", 64);
    let object = m.manager().open(&path, true).unwrap();
    let (shared, private) =
        (m.map_file(&object, 64, Sharing::Shared), m.map_file(&object, 64, Sharing::Private));
    let mut expected: Vec<u64> = (0..64).map(stamp).collect();
    // What the private mapping shows: its copy, or the file's.
    let mut copies: Vec<Option<u64>> = vec![None; 64];
    let mut size = 64;
    let mut random = 1_u64;
    let mut draw = |below: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % below
    };
    for round in 0..200_u64 {
        let page = draw(64);
        match draw(4) {
            0 => {
                size = page + 1;
                m.resize(&object, &path, (size * PAGE) as u64);
                expected[size..].fill(0);
                copies[size..].fill(None);
            }
            1 if page < size => {
                m.set_word(shared + page * PAGE, round);
                expected[page] = round;
            }
            2 if page < size => {
                m.set_word(private + page * PAGE, round << 32);
                copies[page] = Some(round << 32);
            }
            3 if page < size => {
                m.write_file(&object, &path, (page * PAGE) as u64, &(round << 16).to_le_bytes());
                expected[page] = round << 16;
            }
            _ => {}
        }
        let look = draw(size);
        assert_eq!(m.word(shared + look * PAGE), expected[look], "round {round}, page {look} of {size}");
        let own = copies[look].unwrap_or(expected[look]);
        assert_eq!(m.word(private + look * PAGE), own, "round {round}, copy {look} of {size}");
    }
    m.manager().flush_all().unwrap();
    (0..size).for_each(|page| assert_eq!(file_word(&path, page * PAGE), expected[page], "page {page}"));
}

/// Nobody tells the manager of this change.
fn resized_by_others(path: &std::path::Path, size: u64) {
    std::fs::File::options().write(true).open(path).unwrap().set_len(size).unwrap();
}

fn what_others_cut_off_is_forgotten<M: Machine>() {
    let interval = Duration::from_secs(3600);
    let config = Config { writeback_interval: interval, ..Config::with_memory(BUDGET) };
    let Some(m) = M::start(config) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "cut", 40);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, 40, Sharing::Shared);
    m.mark(addr, 0..40, 1);
    resized_by_others(&path, (10 * PAGE + 100) as u64);
    m.manager().flush_all().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), (10 * PAGE + 100) as u64);
    assert_eq!((m.manager().dirty_pages(), m.manager().stats().lost_dirty_pages), (0, 0));
    // Stored, cut, looked at, and longer again: what was stored before the cut is not in the file.
    resized_by_others(&path, (40 * PAGE) as u64);
    m.manager().flush_all().unwrap();
    m.check_marks(addr, 0..10, 1);
    m.check_zero(addr + 11 * PAGE, 29);
    m.mark(addr, 0..40, 2);
    resized_by_others(&path, 0);
    drop(m.manager().open(&path, true).unwrap());
    resized_by_others(&path, (40 * PAGE) as u64);
    m.manager().flush_all().unwrap();
    m.check_zero(addr, 40);
    (0..40).for_each(|page| assert_eq!(file_word(&path, page * PAGE), 0, "page {page}"));
}

/// Also while it is under way, in the eyes of another thread that looks for changes by others.
fn a_change_of_our_own_is_nobody_elses<M: Machine>() {
    let interval = Duration::from_secs(3600);
    let config = Config { writeback_interval: interval, ..Config::with_memory(BUDGET) };
    let Some(m) = M::start(config) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "own", 4);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, 8, Sharing::Shared);
    let size = (4 * PAGE) as u64;
    let look = || {
        drop(m.manager().open(&path, true).unwrap());
        m.manager().stats().foreign_changes
    };
    let first = m.manager().write_begin(&object, size..u64::MAX);
    resized_by_others(&path, size + 64);
    assert_eq!(look(), 0);
    // Two at once, and the other ends first.
    let second = m.manager().write_begin(&object, 0..8);
    resized_by_others(&path, size + 128);
    m.manager().write_end(second, 0..0);
    resized_by_others(&path, size + 192);
    assert_eq!(look(), 0);
    m.manager().write_end(first, size..size);
    m.mark(addr, 0..4, 1);
    m.manager().flush_all().unwrap();
    assert_eq!(look(), 0);
    resized_by_others(&path, size);
    assert_eq!(look(), 1);
}

fn what_others_add_is_kept<M: Machine>() {
    let interval = Duration::from_secs(3600);
    let config = Config { writeback_interval: interval, ..Config::with_memory(BUDGET) };
    let Some(m) = M::start(config) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "added", 3);
    resized_by_others(&path, (2 * PAGE + 64) as u64);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, 8, Sharing::Shared);
    let last = addr + 2 * PAGE;
    m.set_word(last + 56, 7);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &8_u64.to_le_bytes(), (2 * PAGE + 64) as u64).unwrap();
    m.manager().flush_all().unwrap();
    assert_eq!(file_word(&path, 2 * PAGE + 56), 7);
    assert_eq!(file_word(&path, 2 * PAGE + 64), 8);
    assert_eq!((m.word(last + 56), m.word(last + 64)), (7, 8));
    // A store that is inside by now stays.
    resized_by_others(&path, (4 * PAGE) as u64);
    m.set_word(last + 128, 9);
    m.manager().flush_all().unwrap();
    assert_eq!((file_word(&path, 2 * PAGE + 128), m.word(last + 128)), (9, 9));
}
