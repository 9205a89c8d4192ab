//! Tests of the cell and its grace period, on real threads.

use super::*;
use crate::Arc;
use crate::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::time::{Duration, Instant};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts its drops and spoils itself when it goes.
struct Canary {
    number: u64,
    check: AtomicUsize,
    drops: Arc<AtomicUsize>,
}

const ALIVE: usize = 0x5afe;

/// All tests share the readers' records, so a guard of one holds back what another waits for: each runs
/// alone.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Canary {
    fn new(number: u64, drops: &Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Self { number, check: AtomicUsize::new(ALIVE), drops: drops.clone() })
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.check.store(0, Ordering::Relaxed);
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

/// Pins and flushes until `drops` reaches `wanted`. That takes a few rounds, but the last may have to wait
/// for a thread that has lost its processor while it was pinned: one of an earlier test is, for a moment,
/// when it ends.
fn wait_for_drops(drops: &AtomicUsize, wanted: usize) {
    wait_for_drops_beside(drops, wanted, || {});
}

/// The same, calling `each` in each round.
fn wait_for_drops_beside(drops: &AtomicUsize, wanted: usize, mut each: impl FnMut()) {
    let until = Instant::now() + Duration::from_secs(20);
    while drops.load(Ordering::Relaxed) < wanted && Instant::now() < until {
        pin().flush();
        each();
        crate::thread::yield_now();
    }
    assert_eq!(drops.load(Ordering::Relaxed), wanted);
}

#[test]
fn a_value_stays_until_its_readers_are_gone() {
    let _alone = alone();
    let drops = Arc::new(AtomicUsize::new(0));
    let cell = ArcCell::new(Canary::new(1, &drops));
    {
        let reader = pin();
        let seen = cell.load(&reader).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                cell.store(Some(Canary::new(2, &drops)), &pin());
                for _ in 0..1000 {
                    pin().flush();
                }
            });
        });
        assert_eq!((seen.number, seen.check.load(Ordering::Relaxed)), (1, ALIVE));
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        assert_eq!(cell.load(&reader).unwrap().number, 2);
    }
    wait_for_drops(&drops, 1);
    drop(cell);
    assert_eq!(drops.load(Ordering::Relaxed), 2);
}

#[test]
fn handles_outlive_the_guard() {
    let _alone = alone();
    let drops = Arc::new(AtomicUsize::new(0));
    let mut cell = ArcCell::empty();
    assert!(cell.load(&pin()).is_none() && cell.load_arc(&pin()).is_none());
    cell.store(Some(Canary::new(1, &drops)), &pin());
    let loaded = cell.load_arc(&pin()).unwrap();
    let swapped = cell.swap(Some(Canary::new(2, &drops)), &pin()).unwrap();
    assert!(Arc::ptr_eq(&loaded, &swapped) && cell.swap(None, &pin()).unwrap().number == 2);
    wait_for_drops(&drops, 1);
    drop((loaded, swapped));
    wait_for_drops(&drops, 2);
    cell.store(Some(Canary::new(3, &drops)), &pin());
    let taken = cell.take().unwrap();
    assert!(taken.number == 3 && Arc::strong_count(&taken) == 1 && cell.load(&pin()).is_none());
}

#[test]
fn readers_never_see_a_dropped_value_and_never_go_back() {
    let _alone = alone();
    const STORES: u64 = 50_000;
    let drops = Arc::new(AtomicUsize::new(0));
    let cell = ArcCell::new(Canary::new(0, &drops));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let guard = pin();
                    let seen = cell.load(&guard).unwrap();
                    assert!(seen.number >= last);
                    last = seen.number;
                    assert_eq!(seen.check.load(Ordering::Relaxed), ALIVE);
                }
            });
        }
        for number in 1..=STORES {
            cell.store(Some(Canary::new(number, &drops)), &pin());
        }
        done.store(true, Ordering::Relaxed);
    });
    wait_for_drops(&drops, STORES as usize);
}

/// Gives a limbo single values until `until`, and collects what comes back. The bound is far above what the
/// epochs need.
fn cycle(
    cell: &ArcCell<Canary>,
    limbo: &mut Limbo<Canary>,
    drops: &Arc<AtomicUsize>,
    until: usize,
) -> Vec<u64> {
    let mut back = Vec::new();
    for number in 0..10_000 {
        cell.store_reusing(Canary::new(number, drops), limbo, &pin());
        back.extend(std::iter::from_fn(|| limbo.reuse()).map(|value| value.number));
        if back.len() >= until {
            break;
        }
    }
    back
}

#[test]
fn a_limbo_gives_values_back_in_order_and_whole() {
    let _alone = alone();
    let drops = Arc::new(AtomicUsize::new(0));
    let cell = ArcCell::empty();
    let mut limbo = Limbo::new(1000);
    let mut back = cycle(&cell, &mut limbo, &drops, 100);
    assert!(back.len() >= 100, "{} came back", back.len());
    back.sort_unstable();
    assert!(back.iter().enumerate().all(|(at, &number)| at as u64 == number));
    assert_eq!(drops.load(Ordering::Relaxed), back.len());
}

#[test]
fn a_limbo_gives_nothing_back_while_a_reader_is_pinned() {
    let _alone = alone();
    let drops = Arc::new(AtomicUsize::new(0));
    let cell = ArcCell::new(Canary::new(0, &drops));
    let mut limbo = Limbo::new(1000);
    let reader = pin();
    let seen = cell.load(&reader).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(cycle(&cell, &mut limbo, &drops, 1), []));
    });
    assert_eq!((seen.check.load(Ordering::Relaxed), drops.load(Ordering::Relaxed)), (ALIVE, 0));
    drop(reader);
    drop(limbo);
    wait_for_drops(&drops, 10_000);
}

#[test]
fn a_limbo_that_keeps_nothing_drops_each_value_as_soon_as_it_may() {
    let _alone = alone();
    let drops = Arc::new(AtomicUsize::new(0));
    let cell = ArcCell::new(Canary::new(0, &drops));
    let mut limbo = Limbo::new(0);
    let reader = pin();
    cell.store_reusing(Canary::new(1, &drops), &mut limbo, &reader);
    limbo.collect();
    assert!(drops.load(Ordering::Relaxed) == 0 && limbo.reuse().is_none());
    drop(reader);
    wait_for_drops_beside(&drops, 1, || limbo.collect());
    assert!(limbo.reuse().is_none());
}

#[test]
fn what_a_thread_leaves_is_dropped_by_another() {
    let _alone = alone();
    let drops = Arc::new(AtomicUsize::new(0));
    let cell = ArcCell::new(Canary::new(0, &drops));
    let reader = pin();
    let seen = cell.load(&reader).unwrap();
    std::thread::scope(|scope| {
        let leaver = scope.spawn(|| {
            for number in 1..=100 {
                cell.store(Some(Canary::new(number, &drops)), &pin());
            }
        });
        // With the thread's destructors: a scope alone ends before them.
        leaver.join().unwrap();
    });
    assert_eq!((seen.check.load(Ordering::Relaxed), drops.load(Ordering::Relaxed)), (ALIVE, 0));
    drop(reader);
    wait_for_drops(&drops, 100);
}

/// Uses a cell as the thread's variables are destroyed.
struct Late(ArcCell<Canary>);

impl Drop for Late {
    fn drop(&mut self) {
        let guard = pin();
        assert_eq!(self.0.load(&guard).unwrap().check.load(Ordering::Relaxed), ALIVE);
        self.0.store(None, &guard);
    }
}

std::thread_local! {
    static LATE: std::cell::RefCell<Option<Late>> = const { std::cell::RefCell::new(None) };
}

#[test]
fn a_threads_last_destructors_may_read_and_write() {
    let _alone = alone();
    let drops = Arc::new(AtomicUsize::new(0));
    // Destroyed before the epoch's own variable, and after it.
    for first_pin in [true, false] {
        let late = Late(ArcCell::new(Canary::new(1, &drops)));
        std::thread::spawn(move || {
            if first_pin {
                drop(pin());
            }
            LATE.set(Some(late));
            drop(pin());
        })
        .join()
        .unwrap();
    }
    wait_for_drops(&drops, 2);
}

/// Retires another of its kind as it is dropped.
struct Chain {
    rest: ArcCell<Chain>,
    drops: Arc<AtomicUsize>,
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
        self.rest.store(None, &pin());
    }
}

#[test]
fn a_drop_may_retire_more() {
    let _alone = alone();
    let drops = Arc::new(AtomicUsize::new(0));
    let chain = (0..1000)
        .fold(ArcCell::empty(), |rest, _| ArcCell::new(Arc::new(Chain { rest, drops: drops.clone() })));
    chain.store(None, &pin());
    wait_for_drops(&drops, 1000);
}

/// Panics as it is dropped.
struct Mine;

impl Drop for Mine {
    fn drop(&mut self) {
        panic!("a drop that panics");
    }
}

#[test]
fn a_drop_that_panics_stops_no_later_one() {
    let _alone = alone();
    let drops = Arc::new(AtomicUsize::new(0));
    ArcCell::new(Arc::new(Mine)).store(None, &pin());
    let dropped = std::panic::catch_unwind(|| {
        // Other threads of this process may be in a section for a moment.
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            pin().flush();
        }
    });
    assert!(dropped.is_err(), "it was never dropped");
    ArcCell::new(Canary::new(1, &drops)).store(None, &pin());
    wait_for_drops(&drops, 1);
}

/// Has a guard until the thread's variables are destroyed.
struct Kept {
    guard: Option<Guard>,
    drops: Arc<AtomicUsize>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A panic here would end the process: the test fails all the same.
        assert_eq!(self.drops.load(Ordering::Relaxed), 0, "retired under the guard, and gone before it");
        self.guard = None;
    }
}

#[test]
fn a_guard_that_outlives_its_threads_destructors_still_keeps_what_was_retired() {
    std::thread_local! {
        static KEPT: std::cell::RefCell<Option<Kept>> = const { std::cell::RefCell::new(None) };
    }
    let _alone = alone();
    let drops = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // Destroyed after the epoch's own variable, which the first pin registers.
            KEPT.set(None);
            KEPT.set(Some(Kept { guard: Some(pin()), drops: drops.clone() }));
            ArcCell::new(Canary::new(1, &drops)).store(None, &pin());
            pin().flush();
        });
        thread.join().unwrap();
    });
    wait_for_drops(&drops, 1);
}

#[test]
fn the_child_of_a_fork_drops_what_it_retires() {
    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(status: i32) -> !;
    }
    let _alone = alone();
    let (inside, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _section = pin();
            inside.store(true, Ordering::Release);
            while !over.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        });
        while !inside.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: the child uses nothing but this thread's own and the heap, which libc keeps usable.
        let child = unsafe { fork() };
        assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
        if child == 0 {
            // SAFETY: the child has this thread only.
            unsafe { after_fork() };
            let drops = Arc::new(AtomicUsize::new(0));
            ArcCell::new(Canary::new(1, &drops)).store(None, &pin());
            pin().flush();
            // SAFETY: ends the child at once.
            unsafe { _exit(if drops.load(Ordering::Relaxed) == 1 { 7 } else { 1 }) };
        }
        over.store(true, Ordering::Release);
        let mut status = 0;
        // SAFETY: `status` is where the kernel may write.
        assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 7 << 8, "the child has dropped nothing");
    });
}

#[test]
fn a_slot_has_a_value_or_a_word_and_drops_only_values() {
    let _alone = alone();
    let drops = Arc::new(AtomicUsize::new(0));
    let slot = SlotCell::empty();
    assert!(matches!(slot.load(&pin()), Slot::Empty) && slot.load_arc(&pin()).is_none());
    assert!(matches!(slot.swap(Slot::Word(7), &pin()), Slot::Empty));
    assert!(matches!(slot.load(&pin()), Slot::Word(7)) && slot.load_arc(&pin()).is_none());
    {
        let reader = pin();
        assert!(matches!(slot.swap(Slot::Full(Canary::new(1, &drops)), &pin()), Slot::Word(7)));
        let Slot::Full(seen) = slot.load(&reader) else { panic!() };
        let most = u64::MAX >> 1;
        assert!(matches!(slot.swap(Slot::Word(most), &pin()), Slot::Full(value) if value.number == 1));
        assert!(matches!(slot.load(&reader), Slot::Word(word) if word == most));
        assert_eq!((seen.number, seen.check.load(Ordering::Relaxed)), (1, ALIVE));
    }
    wait_for_drops(&drops, 1);
    slot.swap(Slot::Full(Canary::new(2, &drops)), &pin());
    let handle = slot.load_arc(&pin()).unwrap();
    drop(slot);
    assert_eq!((drops.load(Ordering::Relaxed), handle.number), (1, 2));
    drop(handle);
    assert_eq!(drops.load(Ordering::Relaxed), 2);
    drop(SlotCell::<Canary>::default().swap(Slot::Word(3), &pin()));
}
