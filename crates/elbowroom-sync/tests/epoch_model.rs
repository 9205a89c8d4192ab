//! The epoch under loom and under shuttle: `.ci/models loom -p elbowroom-sync --test epoch_model`, or
//! shuttle. With the bug `no_grace` planted (`.ci/mutants`), the same runs must fail.
#![cfg(any(loom, shuttle))]

use elbowroom_sync::Arc;
use elbowroom_sync::epoch::{ArcCell, pin};

#[cfg(loom)]
use loom::{model as check, thread};
#[cfg(shuttle)]
use shuttle::thread;

#[cfg(shuttle)]
fn check(f: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(f, 2000);
}

#[test]
fn a_reader_keeps_what_it_loaded() {
    check(|| {
        let cell = Arc::new(ArcCell::new(Arc::new(1)));
        let reader = thread::spawn({
            let cell = cell.clone();
            move || {
                let guard = pin();
                let first = *cell.load(&guard).unwrap();
                let second = *cell.load(&guard).unwrap();
                assert!(first <= second && second <= 2);
            }
        });
        cell.store(Some(Arc::new(2)), &pin());
        reader.join().unwrap();
        assert_eq!(cell.load(&pin()), Some(&2));
    });
}

/// A node of a structure: what hangs below a retired node goes with it and must stay as long.
struct Node(ArcCell<u64>);

#[test]
fn a_reader_keeps_what_hangs_below_it() {
    check(|| {
        let root = Arc::new(ArcCell::new(Arc::new(Node(ArcCell::new(Arc::new(1))))));
        let reader = thread::spawn({
            let root = root.clone();
            move || {
                let guard = pin();
                let node = root.load(&guard).unwrap();
                assert!([1, 2].contains(node.0.load(&guard).unwrap()));
            }
        });
        let guard = pin();
        root.store(Some(Arc::new(Node(ArcCell::new(Arc::new(2))))), &guard);
        drop(guard);
        reader.join().unwrap();
    });
}

#[test]
fn a_retired_value_goes_when_the_last_guard_before_it_does() {
    check(|| {
        let value = Arc::new(7);
        let cell = ArcCell::new(value.clone());
        let (early, writer) = (pin(), pin());
        drop(cell.swap(None, &writer));
        let late = pin();
        let left = || Arc::strong_count(&value);
        assert_eq!(left(), 2);
        drop(writer);
        assert_eq!(left(), 2);
        drop(early);
        assert_eq!(left(), 1);
        assert!(cell.load(&late).is_none());
    });
}
