//! What happens when the disk fails.

use crate::support::*;
use elbowroom::{Config, Errno, Sharing};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};

on_every_machine! {
    a_page_that_cannot_be_read_fails_alone
    a_page_that_could_not_be_read_may_come_later
    an_error_of_writing_is_told_once
    what_one_page_meets_keeps_no_other
}

fn injecting(faults: &str) -> Config {
    Config { inject: Some(faults.to_owned()), ..Config::with_memory(BUDGET) }
}

fn a_page_that_cannot_be_read_fails_alone<M: Machine>() {
    let bad = 37..39;
    let faults = format!("read:eio:file=unreadable:from={}:to={}", bad.start * PAGE, bad.end * PAGE);
    let Some(m) = M::start(injecting(&faults)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "unreadable", 128);
    let object = m.manager().open(&path, true).unwrap();
    let (shared, private) =
        (m.map_file(&object, 128, Sharing::Shared), m.map_file(&object, 128, Sharing::Private));
    for addr in [shared, private] {
        let port = m.port();
        for page in 0..128 {
            if bad.contains(&page) {
                port.load_fails(addr + page * PAGE, Failure::Bus);
                port.store_fails(addr + page * PAGE + 8, Failure::Bus);
            } else {
                assert_eq!(port.word(addr + page * PAGE + 16), stamp(page), "page {page}");
                port.set_word(addr + page * PAGE, page as u64);
            }
        }
    }
    m.space().sync(shared, 128 * PAGE, true, false).unwrap();
    for page in 0..128 {
        let expected = if bad.contains(&page) { stamp(page) } else { page as u64 };
        assert_eq!(file_word(&path, page * PAGE), expected, "page {page}");
    }
    assert!(m.manager().stats().read_errors > 0);
}

fn a_page_that_could_not_be_read_may_come_later<M: Machine>() {
    // The first read, of several pages perhaps, and the second, of one.
    let interval = Duration::from_millis(100);
    let config = Config { writeback_interval: interval, ..injecting("read:eio:file=later:times=2") };
    let Some(m) = M::start(config) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "later", 8);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, 8, Sharing::Shared);
    m.port().load_fails(addr, Failure::Bus);
    // With real pointers, a denial lasts until the flusher undoes it.
    let until = Instant::now() + Duration::from_secs(20);
    while !m.port().can_load(addr) {
        assert!(Instant::now() < until, "it never comes");
        thread::sleep(interval);
    }
    m.check_marks(addr, 0..8, 0);
}

fn an_error_of_writing_is_told_once<M: Machine>() {
    let interval = Duration::from_secs(3600);
    let config = Config { writeback_interval: interval, ..injecting("write:eio:file=unwritable:times=1") };
    let Some(m) = M::start(config) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "unwritable", 8);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, 8, Sharing::Shared);
    m.mark(addr, 3..4, 5);
    assert_eq!(m.space().sync(addr, 8 * PAGE, true, false), Err(Errno::IO));
    assert_eq!(m.manager().dirty_pages(), 1);
    m.check_marks(addr + 3 * PAGE, 3..4, 5);
    assert_eq!(file_word(&path, 3 * PAGE), stamp(3));
    m.space().sync(addr, 8 * PAGE, true, false).unwrap();
    assert_eq!(file_word(&path, 3 * PAGE), stamp(3) ^ 5);
    m.space().sync(addr, 8 * PAGE, true, false).unwrap();
    assert_eq!((m.manager().dirty_pages(), m.manager().stats().write_errors), (0, 1));
}

/// A full disk has no room for one page: those around it are written all the same.
fn what_one_page_meets_keeps_no_other<M: Machine>() {
    let faults = format!("write:enospc:file=holes:from={}:to={}:times=2", 3 * PAGE, 4 * PAGE);
    let interval = Duration::from_secs(3600);
    let Some(m) = M::start(Config { writeback_interval: interval, ..injecting(&faults) }) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "holes", 8);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, 8, Sharing::Shared);
    m.mark(addr, 0..8, 5);
    assert_eq!(m.space().sync(addr, 8 * PAGE, true, false), Err(Errno::NOSPC));
    assert_eq!(m.manager().dirty_pages(), 1);
    for page in [0, 1, 2, 4, 5, 6, 7] {
        assert_eq!(file_word(&path, page * PAGE), stamp(page) ^ 5, "page {page}");
    }
    m.check_marks(addr, 0..8, 5);
    assert_eq!(file_word(&path, 3 * PAGE), stamp(3));
    m.space().sync(addr, 8 * PAGE, true, false).unwrap();
    assert_eq!(file_word(&path, 3 * PAGE), stamp(3) ^ 5);
    assert_eq!(m.manager().dirty_pages(), 0);
}
