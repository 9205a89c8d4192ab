//! The range map's reader against its writer, under loom and under shuttle, with nodes of four:
//! `.ci/models loom -p elbowroom-index --test loom`, or shuttle. With the bug `no_grace` planted
//! (`.ci/mutants`), the same runs must fail.
#![cfg(any(loom, shuttle))]

use elbowroom_index::RangeMap;
use elbowroom_index::range_map::Writer;
use elbowroom_sync::Arc;
use elbowroom_sync::epoch::pin;
use std::ops::{Deref, DerefMut};

#[cfg(loom)]
use loom::{model as check, thread};
#[cfg(shuttle)]
use shuttle::thread;

#[cfg(shuttle)]
fn check(f: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(f, 2000);
}

/// A thread's handle on the map, or its writer. When the run has failed the checker is gone, and a drop that
/// asks it would end the process instead of the test.
struct Handle<T>(Option<T>);

impl<T> Deref for Handle<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().expect("a handle is full until it is dropped")
    }
}

impl<T> DerefMut for Handle<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("a handle is full until it is dropped")
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(self.0.take());
        }
    }
}

/// A map of `ranges` and its writer.
fn shared_map(ranges: &[(u64, u64, u32)]) -> (Handle<RangeMap<u32>>, Handle<Writer<u32>>) {
    let ranges = ranges.iter().map(|&(start, end, value)| (start..end, value));
    let (map, writer) = RangeMap::from_sorted(ranges).unwrap();
    (Handle(Some(map)), Handle(Some(writer)))
}

/// Runs `read` beside `write` on a map of `ranges` under the checker, then checks the structure.
fn reader_beside_writer(
    ranges: &'static [(u64, u64, u32)],
    read: fn(&RangeMap<u32>),
    write: fn(&mut Writer<u32>),
) {
    check(move || {
        let (map, mut writer) = shared_map(ranges);
        let shared = Handle(Some(map.clone()));
        let reader = thread::spawn(move || read(&shared));
        write(&mut writer);
        reader.join().unwrap();
        map.verify();
    });
}

/// Two ranges and two gaps: a full leaf of four.
const FULL_LEAF: &[(u64, u64, u32)] = &[(10, 20, 1), (30, 40, 2)];

#[test]
fn a_leaf_is_replaced() {
    let read = |map: &RangeMap<u32>| {
        let guard = pin();
        let (range, value) = map.get(15, &guard).expect("a gap that was never there");
        assert!(matches!((range.start, range.end, value), (10, 20, 1 | 3)), "{range:?} {value}");
        assert_eq!(map.get(35, &guard), Some((30..40, 2)));
    };
    reader_beside_writer(FULL_LEAF, read, |writer| writer.store(10..20, Some(3), &pin()));
}

/// The leaf that one store replaces is written again by the third: what the limbo gives back must be out of
/// reach.
#[test]
fn a_leaf_is_reused() {
    let read = |map: &RangeMap<u32>| {
        let (range, value) = map.get(15, &pin()).expect("a gap that was never there");
        assert!(matches!((range.start, range.end, value), (10, 20, 1 | 3 | 4 | 5)), "{range:?} {value}");
    };
    reader_beside_writer(FULL_LEAF, read, |writer| {
        for value in 3..=5 {
            writer.store(10..20, Some(value), &pin());
        }
    });
}

#[test]
fn a_leaf_is_split() {
    let read = |map: &RangeMap<u32>| {
        let guard = pin();
        assert_eq!(map.get(12, &guard).expect("a gap that was never there").1, 1);
        assert!(matches!(map.get(16, &guard).expect("a gap that was never there").1, 1 | 3));
        assert_eq!(map.get(35, &guard), Some((30..40, 2)));
    };
    reader_beside_writer(FULL_LEAF, read, |writer| writer.store(15..17, Some(3), &pin()));
}

/// Six entries, in two leaves at least.
const TWO_LEAVES: &[(u64, u64, u32)] = &[(0, 10, 1), (10, 20, 1), (20, 30, 1), (30, 40, 1), (40, 50, 1)];

#[test]
fn a_store_covers_several_leaves() {
    let read = |map: &RangeMap<u32>| {
        let guard = pin();
        let (low, high) = (map.get(12, &guard), map.get(42, &guard));
        let (low, high) =
            (low.expect("a gap that was never there"), high.expect("a gap that was never there"));
        // The second look is the later one: it may be newer, never older.
        assert!(low.1 <= high.1, "{low:?} {high:?}");
        let mut at = 5;
        for (range, _) in map.overlapping(5..45, &guard) {
            assert!(range.start <= at && at < range.end, "nothing at {at}, then {range:?}");
            at = range.end;
        }
        assert!(at >= 45);
    };
    reader_beside_writer(TWO_LEAVES, read, |writer| writer.store(5..48, Some(2), &pin()));
}

#[test]
fn a_store_that_has_returned_is_seen() {
    use elbowroom_sync::atomic::{AtomicU32, Ordering};
    check(|| {
        let (map, mut writer) = shared_map(&[(10, 20, 1)]);
        let stored = Arc::new(AtomicU32::new(0));
        let reader = thread::spawn({
            let stored = stored.clone();
            move || {
                let before = stored.load(Ordering::Acquire);
                let seen = map.get(12, &pin()).map_or(0, |(_, value)| value);
                assert!(before == 0 || seen == 2, "{seen} after the store of 2");
            }
        });
        writer.store(5..15, Some(2), &pin());
        stored.store(1, Ordering::Release);
        reader.join().unwrap();
    });
}
