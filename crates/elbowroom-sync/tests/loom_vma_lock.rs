//! Models of the layout lock and of the VMA locks, run under loom in every order of their threads' steps:
//! `.ci/models loom -p elbowroom-sync --test loom_vma_lock`
//!
//! Loom panics when an access to a value is not ordered with a change of it, and when all threads wait.
//! `.ci/mutants` plants bugs and expects these models to find them.
#![cfg(loom)]

use elbowroom_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use elbowroom_sync::{Arc, Key, LayoutLock, LockStats, MAX_STEALS, Slots, TryReadError};
use loom::thread;

/// A value in two halves, which differ while it is changed.
struct Value([AtomicU64; 2]);

impl Value {
    fn new(number: u64) -> Self {
        Self([AtomicU64::new(number), AtomicU64::new(number)])
    }

    /// Relaxed, so that only the lock under test makes the change visible.
    fn set(&mut self, number: u64) {
        self.0.iter().for_each(|half| half.store(number, Ordering::Relaxed));
    }

    fn get(&self) -> u64 {
        let [first, second] = [0, 1].map(|half| self.0[half].load(Ordering::Relaxed));
        assert_eq!(first, second, "a value was seen while it changed");
        first
    }
}

/// The layout says which key is the newest.
struct Space {
    layout: LayoutLock<Key>,
    slots: Slots<Value>,
}

/// A space with one value, and its key.
fn space(value: u64) -> (Arc<Space>, Key) {
    let layout = LockStats::new().layout_lock(Key::from_u64(0));
    let slots = Slots::new(&layout, 2);
    let mut held = layout.write();
    let key = slots.insert(&mut held, Value::new(value)).expect("there is room");
    *held = key;
    drop(held);
    (Arc::new(Space { layout, slots }), key)
}

impl Space {
    fn try_get(&self, key: Key) -> Result<u64, TryReadError> {
        self.slots.try_read(key, &self.layout).map(|value| value.get())
    }

    /// Takes the newest value out, changes it, and puts it in again; its new key.
    fn set(&self, number: u64) -> Key {
        let mut held = self.layout.write();
        let mut value = self.slots.remove(*held, &mut held).expect("it is there");
        value.set(number);
        let key = self.slots.insert(&mut held, value).expect("there is room");
        *held = key;
        key
    }
}

/// Runs a model with at most `preemptions` involuntary switches of thread in one run; `None`: all there can
/// be.
fn model(preemptions: Option<usize>, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    builder.check(run);
}

#[test]
fn a_reader_and_a_writer_are_never_both_inside() {
    model(None, || {
        let (space, old) = space(1);
        let writer = thread::spawn({
            let space = space.clone();
            move || space.set(2)
        });
        let seen = space.try_get(old);
        assert!(matches!(seen, Ok(1) | Err(TryReadError::Locked | TryReadError::Reused)), "{seen:?}");
        let new = writer.join().unwrap();
        assert_eq!(new.slot, old.slot);
        assert_eq!((space.try_get(old), space.try_get(new)), (Err(TryReadError::Reused), Ok(2)));
    });
}

#[test]
fn two_readers_and_a_writer() {
    model(Some(3), || {
        let (space, key) = space(1);
        let read = move |space: &Space| {
            let seen = space.try_get(key);
            assert!(matches!(seen, Ok(1) | Err(TryReadError::Locked | TryReadError::Reused)), "{seen:?}");
        };
        let reader = thread::spawn({
            let space = space.clone();
            move || read(&space)
        });
        let writer = thread::spawn({
            let space = space.clone();
            move || space.set(2)
        });
        read(&space);
        reader.join().unwrap();
        assert_eq!(space.try_get(writer.join().unwrap()), Ok(2));
    });
}

#[test]
fn one_thread_writes_after_another() {
    model(Some(3), || {
        let (space, key) = space(1);
        let writers = [2, 3].map(|number| {
            let space = space.clone();
            thread::spawn(move || space.set(number))
        });
        let seen = space.try_get(key);
        assert!(matches!(seen, Ok(1) | Err(TryReadError::Locked | TryReadError::Reused)), "{seen:?}");
        let keys = writers.map(|writer| writer.join().unwrap());
        let newest = *space.layout.read();
        assert!(keys.contains(&newest) && matches!(space.try_get(newest), Ok(2 | 3)));
    });
}

#[test]
fn the_end_of_a_write_unlocks_all_at_once() {
    model(None, || {
        let (space, first) = space(1);
        let published = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let writer = thread::spawn({
            let (space, published) = (space.clone(), published.clone());
            move || {
                let mut held = space.layout.write();
                space.slots.remove(first, &mut held).expect("it is there");
                for place in published.iter() {
                    let key = space.slots.insert(&mut held, Value::new(2)).expect("there is room");
                    place.store(key.to_u64(), Ordering::Release);
                }
            }
        });
        let look = |number: usize| {
            let key = Key::from_u64(published[number].load(Ordering::Acquire));
            space.try_get(key)
        };
        // Whoever has seen that one is unlocked finds the other there and unlocked, too.
        if look(0) == Ok(2) {
            assert_eq!(look(1), Ok(2));
        }
        writer.join().unwrap();
        assert_eq!([look(0), look(1)], [Ok(2), Ok(2)]);
    });
}

#[test]
fn nobody_is_or_gets_inside_once_detach_has_returned() {
    model(None, || {
        let (space, key) = space(1);
        let (gone, inside) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let writer = thread::spawn({
            let (space, gone, inside) = (space.clone(), gone.clone(), inside.clone());
            move || {
                assert!(space.slots.detach(key, &mut space.layout.write()));
                assert_eq!(inside.load(Ordering::Relaxed), 0);
                gone.store(true, Ordering::Release);
            }
        });
        let was_gone = gone.load(Ordering::Acquire);
        match space.slots.try_read(key, &space.layout) {
            Ok(value) => {
                assert!(!was_gone, "a reader got in after detach had returned");
                inside.fetch_add(1, Ordering::Relaxed);
                assert_eq!(value.get(), 1);
                inside.fetch_sub(1, Ordering::Relaxed);
            }
            Err(why) => assert_eq!(why, TryReadError::Detached),
        }
        writer.join().unwrap();
        assert_eq!(space.try_get(key), Err(TryReadError::Detached));
        assert_eq!(space.slots.read_locked(key, &space.layout.read()).map(Value::get), Some(1));
    });
}

#[test]
fn a_key_that_is_published_finds_a_whole_value() {
    model(None, || {
        let (space, first) = space(1);
        let published = Arc::new(AtomicU64::new(first.to_u64()));
        let writer = thread::spawn({
            let (space, published) = (space.clone(), published.clone());
            move || {
                let mut held = space.layout.write();
                let second = space.slots.insert(&mut held, Value::new(2)).expect("there is room");
                published.store(second.to_u64(), Ordering::Release);
                space.slots.remove(first, &mut held).expect("it is there");
            }
        });
        let key = Key::from_u64(published.load(Ordering::Acquire));
        match space.try_get(key) {
            Ok(number) => assert_eq!(number, if key == first { 1 } else { 2 }),
            Err(TryReadError::Locked) => assert_ne!(key, first),
            Err(_) => assert_eq!(key, first),
        }
        writer.join().unwrap();
    });
}

#[test]
fn who_holds_the_layout_lock_reads_without_a_vma_lock() {
    model(None, || {
        let (space, _) = space(1);
        let writer = thread::spawn({
            let space = space.clone();
            move || {
                let key = space.set(2);
                space.slots.remove(key, &mut space.layout.write()).expect("it is there").get()
            }
        });
        let held = space.layout.read();
        let seen = space.slots.read_locked(*held, &held).map(Value::get);
        assert!(matches!(seen, None | Some(1 | 2)), "{seen:?}");
        drop(held);
        assert_eq!(writer.join().unwrap(), 2);
    });
}

/// Three threads, of which `writers` change a pair of numbers and the others look at it.
fn layout_threads(writers: u64) {
    let layout = Arc::new(LockStats::new().layout_lock([0_u64; 2]));
    let visit = |layout: &LayoutLock<[u64; 2]>, writes: bool| {
        if writes {
            layout.write().iter_mut().for_each(|number| *number += 1);
        } else {
            let held = layout.read();
            assert_eq!(held[0], held[1]);
        }
    };
    let threads: Vec<_> = (1..3)
        .map(|number| {
            let layout = layout.clone();
            thread::spawn(move || visit(&layout, number < writers))
        })
        .collect();
    visit(&layout, true);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(layout.read()[0], writers);
    assert_eq!((layout.waiters(), layout.sequence()), (0, 1 + writers));
}

#[test]
fn the_layout_lock_loses_no_wake_up_of_a_writer_and_two_readers() {
    model(Some(3), || layout_threads(1));
}

#[test]
fn the_layout_lock_loses_no_wake_up_of_two_writers_and_a_reader() {
    model(Some(3), || layout_threads(2));
}

#[test]
fn the_layout_lock_loses_no_wake_up_of_three_writers() {
    model(Some(3), || layout_threads(3));
}

#[test]
fn the_layout_lock_is_exclusive_between_two_threads() {
    model(None, || {
        let layout = Arc::new(LockStats::new().layout_lock(0_u64));
        let writer = thread::spawn({
            let layout = layout.clone();
            move || *layout.write() += 1
        });
        let seen = *layout.read();
        let mut held = layout.write();
        assert!(*held >= seen);
        *held += 1;
        drop(held);
        writer.join().unwrap();
        assert_eq!(*layout.read(), 2);
    });
}

/// Whether any run of a model has come that far; outside of the models, where nothing is forgotten between
/// the runs.
struct Seen(std::sync::atomic::AtomicBool);

impl Seen {
    const fn new() -> Self {
        Self(std::sync::atomic::AtomicBool::new(false))
    }

    fn note(&self, seen: bool) {
        self.0.fetch_or(seen, std::sync::atomic::Ordering::Relaxed);
    }

    fn check(&self, what: &str) {
        assert!(self.0.load(std::sync::atomic::Ordering::Relaxed), "never seen: {what}");
    }
}

/// One thread waits, and another writes twice more than it may be overtaken. Then one of those is after the
/// one that waits, which is woken although it may have found a thief inside.
#[test]
fn a_writer_that_waits_is_overtaken_no_more_often_than_is_said() {
    static OVERTAKEN: Seen = Seen::new();
    model(Some(5), || {
        let layout = Arc::new(LockStats::new().layout_lock(0_u64));
        let held = layout.write();
        let writer = thread::spawn({
            let layout = layout.clone();
            move || *layout.write()
        });
        // A run in which it is not queued by now says nothing.
        let waits = layout.waiters() == 1;
        drop(held);
        for _ in 0..=MAX_STEALS {
            *layout.write() += 1;
        }
        let overtaken = writer.join().unwrap();
        assert!(!waits || overtaken <= MAX_STEALS, "overtaken {overtaken} times");
        OVERTAKEN.note(waits && overtaken == MAX_STEALS);
        assert_eq!((layout.waiters(), *layout.read()), (0, MAX_STEALS + 1));
    });
    OVERTAKEN.check("a writer that overtakes one that waits");
}

/// The same with two that wait: each has at most so many thieves before it since the one before it was let
/// in.
#[test]
fn the_second_in_the_queue_is_overtaken_no_more_often_than_is_said() {
    static OVERTAKEN: Seen = Seen::new();
    model(Some(2), || {
        let layout = Arc::new(LockStats::new().layout_lock(0_u64));
        let held = layout.write();
        let waiting: Vec<_> = (1..3)
            .map(|number| {
                let writer = thread::spawn({
                    let layout = layout.clone();
                    move || *layout.write()
                });
                (layout.waiters() == number, writer)
            })
            .collect();
        drop(held);
        for _ in 0..=2 * MAX_STEALS {
            *layout.write() += 1;
        }
        for (number, (waits, writer)) in (1..).zip(waiting) {
            let overtaken = writer.join().unwrap();
            assert!(!waits || overtaken <= number * MAX_STEALS, "{number}: overtaken {overtaken} times");
            OVERTAKEN.note(waits && overtaken == 2 * MAX_STEALS);
        }
        assert_eq!(layout.waiters(), 0);
    });
    OVERTAKEN.check("both that wait are overtaken");
}

/// A thief among readers that wait together: all of them are let in, by one of them.
#[test]
fn readers_that_wait_are_let_in_together_past_a_thief() {
    model(Some(2), || {
        let layout = Arc::new(LockStats::new().layout_lock(0_u64));
        let held = layout.write();
        let readers = [(); 2].map(|()| {
            let layout = layout.clone();
            thread::spawn(move || *layout.read())
        });
        let wait = layout.waiters() == 2;
        drop(held);
        for _ in 0..=MAX_STEALS {
            *layout.write() += 1;
        }
        let seen = readers.map(|reader| reader.join().unwrap());
        if wait {
            assert!(seen[0] == seen[1] && seen[0] <= MAX_STEALS, "{seen:?}");
        }
        assert_eq!(layout.waiters(), 0);
    });
}

#[test]
fn a_reader_does_not_overtake_a_writer_that_waits() {
    model(Some(3), || {
        let layout = Arc::new(LockStats::new().layout_lock(0));
        let first = layout.read();
        let writer = thread::spawn({
            let layout = layout.clone();
            move || *layout.write() = 1
        });
        let late = thread::spawn({
            let layout = layout.clone();
            move || {
                // A run in which the writer is not queued by now says nothing.
                let writer_waits = layout.waiters() == 1;
                let seen = *layout.read();
                assert!(!writer_waits || seen == 1, "a reader overtook a writer");
            }
        });
        drop(first);
        writer.join().unwrap();
        late.join().unwrap();
    });
}
