//! Tests of the layout lock with real threads; the loom models are in tests/loom_vma_lock.rs.

use super::*;
use crate::atomic::AtomicU32;
use crate::time::{Duration, Instant};
use std::thread;

fn lock<T>(value: T) -> (LockStats, LayoutLock<T>) {
    let stats = LockStats::new();
    let lock = stats.layout_lock(value);
    (stats, lock)
}

fn until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "it never happened");
        thread::yield_now();
    }
}

#[test]
fn a_write_moves_the_sequence_when_it_ends_and_a_read_does_not() {
    let (_, lock) = lock(1);
    let first = lock.sequence();
    {
        let mut held = lock.write();
        *held += 1;
        assert_eq!((lock.sequence(), held.sequence()), (first, first));
    }
    assert_eq!((*lock.read(), lock.sequence()), (2, first + 1));
}

#[test]
fn a_panic_under_the_lock_releases_it() {
    let (_, lock) = lock(0);
    let failed = thread::scope(|scope| {
        scope
            .spawn(|| {
                let _held = lock.write();
                panic!("on purpose");
            })
            .join()
    });
    assert!(failed.is_err());
    assert_eq!((*lock.write(), lock.sequence()), (0, FIRST_SEQUENCE + 1));
}

#[test]
fn readers_share_it_and_writers_do_not() {
    let (stats, lock) = lock(0_u64);
    let (readers, together) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    *lock.write() += 1;
                }
            });
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let held = lock.read();
                    together.fetch_max(readers.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    let before = *held;
                    std::hint::spin_loop();
                    assert_eq!(before, *held);
                    readers.fetch_sub(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!((*lock.read(), lock.sequence()), (40_000, FIRST_SEQUENCE + 40_000));
    let seen = stats.class(LockClass::Layout);
    assert_eq!(seen.acquisitions, 80_001);
    assert_eq!(seen.contended, seen.waits.count());
    assert_eq!(lock.word.0.load(Ordering::Relaxed), 0);
}

/// What the threads of `arrivals` (true: a writer) did to a list, if they came in that order while a writer
/// was inside.
fn order_of(arrivals: &[bool]) -> Vec<usize> {
    let (stats, lock) = lock(());
    let log = std::sync::Mutex::new(Vec::new());
    thread::scope(|scope| {
        let held = lock.write();
        for (number, &writer) in arrivals.iter().enumerate() {
            let (lock, log) = (&lock, &log);
            scope.spawn(move || {
                if writer {
                    let _held = lock.write();
                    log.lock().unwrap().push(number);
                } else {
                    let _held = lock.read();
                    log.lock().unwrap().push(number);
                }
            });
            until(|| lock.waiters() == number + 1);
        }
        thread::sleep(Duration::from_millis(5));
        drop(held);
    });
    let seen = stats.class(LockClass::Layout);
    assert_eq!(seen.contended, arrivals.len() as u64);
    assert!(seen.waits.max_ns() >= 5_000_000, "{seen:?}");
    log.into_inner().unwrap()
}

#[test]
fn those_who_wait_are_let_in_as_they_came() {
    assert_eq!(order_of(&[true; 10]), (0..10).collect::<Vec<_>>());
    // The readers between two writers run together, so in any order.
    let mut order = order_of(&[true, false, false, true, false, true]);
    order[1..3].sort_unstable();
    assert_eq!(order, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_writer_that_waits_is_overtaken_a_bounded_number_of_times() {
    let (_, lock) = lock(0_u64);
    for _ in 0..50 {
        *lock.write() = 0;
        thread::scope(|scope| {
            let held = lock.write();
            let waiting = scope.spawn(|| *lock.write());
            until(|| lock.waiters() == 1);
            drop(held);
            for _ in 0..10 * MAX_STEALS {
                *lock.write() += 1;
            }
            let overtaken = waiting.join().unwrap();
            assert!(overtaken <= MAX_STEALS, "{overtaken}");
        });
        assert_eq!((lock.word.0.load(Ordering::Relaxed), *lock.read()), (0, 10 * MAX_STEALS));
    }
}

#[test]
fn a_lock_that_is_left_free_is_stolen_so_often_and_then_kept_for_the_head() {
    let (_, lock) = lock(0);
    thread::scope(|scope| {
        let held = lock.write();
        let waiting = scope.spawn(|| *lock.write());
        until(|| lock.waiters() == 1);
        // The release, without its wake-up: as if the head slept on for a while.
        std::mem::forget(held);
        order::unlocked(LockClass::Layout);
        lock.word.0.fetch_sub(WRITER, Ordering::Release);
        for thefts in 1..=MAX_STEALS {
            let word = lock.word.0.load(Ordering::Relaxed);
            assert_eq!((word & (QUEUED | WRITER), word & THEFTS), (QUEUED, (thefts - 1) * THEFT));
            assert!(lock.steal(), "theft {thefts}");
            lock.word.0.fetch_sub(WRITER, Ordering::Release);
        }
        assert!(!lock.steal(), "the lock is the head's");
        lock.wake_head();
        assert_eq!(waiting.join().unwrap(), 0);
    });
    assert_eq!(lock.word.0.load(Ordering::Relaxed), 0);
}

#[test]
fn many_threads_that_write_and_read_all_get_in() {
    const THREADS: u64 = 200;
    let (stats, lock) = lock([0_u64; 2]);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let lock = &lock;
            scope.spawn(move || {
                for turn in 0..200 {
                    if (number + turn) % 4 == 0 {
                        let held = lock.read();
                        assert_eq!(held[0], held[1]);
                    } else {
                        lock.write().iter_mut().for_each(|number| *number += 1);
                    }
                }
            });
        }
    });
    assert_eq!(*lock.read(), [THREADS * 150; 2]);
    assert_eq!((lock.waiters(), lock.word.0.load(Ordering::Relaxed)), (0, 0));
    let seen = stats.class(LockClass::Layout);
    assert_eq!(seen.contended, seen.waits.count());
}

#[test]
fn a_reader_does_not_overtake_a_writer_that_waits_for_readers() {
    let (_, lock) = lock(0);
    thread::scope(|scope| {
        let first = lock.read();
        scope.spawn(|| *lock.write() = 1);
        until(|| lock.waiters() == 1);
        let late = scope.spawn(|| *lock.read());
        until(|| lock.waiters() == 2);
        assert_eq!(*first, 0);
        drop(first);
        assert_eq!(late.join().unwrap(), 1);
    });
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "lock order: layout is taken while layout is held")]
fn reading_twice_panics() {
    let (_, lock) = lock(());
    let _first = lock.read();
    let _second = lock.read();
}
