//! The xarray's readers beside its writer, under a model checker: `.ci/models loom -p elbowroom-index
//! --test xarray_model`, or shuttle. A node has 4 slots here, so order 2 is a slot of the second level.
#![cfg(any(loom, shuttle))]

use elbowroom_index::xarray::{Mark, Slot, Writer, XArray};
use elbowroom_sync::Arc;
use elbowroom_sync::epoch::{Guard, pin};

#[cfg(loom)]
use loom::thread;
#[cfg(shuttle)]
use shuttle::thread;

/// At most so many switches away from a thread that could go on are tried in one run; all of them (which
/// takes minutes) with `LOOM_MAX_PREEMPTIONS=100`.
#[cfg(loom)]
const PREEMPTIONS: usize = 3;

#[cfg(loom)]
fn explore(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(PREEMPTIONS);
    builder.max_branches = 20_000;
    builder.check(f);
}

#[cfg(shuttle)]
fn explore(f: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(f, 20_000);
}

/// The first index and the order of a value, and a number.
type Value = (u64, u8, u32);

fn array(values: &[Value]) -> Arc<XArray<Value>> {
    let array = XArray::new();
    for &value in values {
        array.writer().store(value.0, value.1, Arc::new(value)).unwrap();
    }
    Arc::new(array)
}

/// Lets `write` and `read` run at once.
///
/// The reader is the thread that is started: loom tries it before each store that its loads meet. The other
/// way round it would miss most orders: the writer loads what it is about to store to, and that hides the
/// other thread's earlier loads from loom.
fn race(
    array: Arc<XArray<Value>>,
    write: fn(&Writer<'_, Value>),
    read: impl FnOnce(&XArray<Value>, &Guard) + Send + 'static,
) {
    let reader = thread::spawn({
        let array = array.clone();
        move || read(&array, &pin())
    });
    write(&array.writer());
    reader.join().unwrap();
}

#[test]
fn a_lookup_beside_a_store_that_grows_the_tree() {
    explore(|| {
        let store = |writer: &Writer<'_, Value>| {
            assert!(writer.store(16, 0, Arc::new((16, 0, 8))).is_ok());
        };
        race(array(&[(1, 0, 7)]), store, |array, guard| {
            let far = array.load(16, guard).copied();
            assert_eq!(array.load(1, guard), Some(&(1, 0, 7)));
            assert!(far.is_none() || far == Some((16, 0, 8)) && array.load(16, guard).is_some());
        });
    });
}

#[test]
fn a_walk_beside_a_store_that_grows_the_tree() {
    explore(|| {
        let array = array(&[(1, 0, 7)]);
        array.writer().set_mark(1, Mark::Dirty);
        let store = |writer: &Writer<'_, Value>| {
            assert!(writer.store(4, 0, Arc::new((4, 0, 8))).is_ok());
        };
        race(array, store, |array, guard| {
            assert_eq!(array.marked(.., Mark::Dirty, guard).map(|entry| entry.index).last(), Some(1));
        });
    });
}

#[test]
fn a_lookup_beside_an_erase_that_shrinks_the_tree() {
    explore(|| {
        let erase = |writer: &Writer<'_, Value>| {
            assert_eq!(writer.erase(16).as_deref(), Some(&(16, 0, 8)));
        };
        race(array(&[(1, 0, 7), (16, 0, 8)]), erase, |array, guard| {
            let far = array.load(16, guard).copied();
            assert_eq!(array.load(1, guard), Some(&(1, 0, 7)));
            assert!(far == Some((16, 0, 8)) || far.is_none() && array.load(16, guard).is_none());
        });
    });
}

#[test]
fn a_lookup_beside_a_tree_that_shrinks_and_grows_again() {
    explore(|| {
        let change = |writer: &Writer<'_, Value>| {
            assert!(writer.erase(4).is_some());
            assert!(writer.store(8, 0, Arc::new((8, 0, 9))).is_ok());
        };
        race(array(&[(1, 0, 7), (4, 0, 8)]), change, |array, guard| {
            assert_eq!(array.load(1, guard), Some(&(1, 0, 7)));
            let (new, old) = (array.load(8, guard).is_some(), array.load(4, guard).is_some());
            assert!(!(new && old), "erased before, stored after");
        });
    });
}

#[test]
fn a_lookup_beside_the_first_and_the_last_value_of_a_node() {
    explore(|| {
        let change = |writer: &Writer<'_, Value>| {
            assert!(writer.erase(0).is_some());
            assert!(writer.store(2, 1, Arc::new((2, 1, 2))).is_ok());
            assert!(writer.replace(3, Arc::new((2, 1, 3))).is_ok());
        };
        race(array(&[(0, 1, 1), (4, 0, 1)]), change, |array, guard| {
            let found = array.load(3, guard).map(|value| value.2);
            let after = array.load(2, guard).map(|value| value.2);
            assert!(found <= after, "{found:?}, {after:?}");
            assert!(found.is_none() || array.load(1, guard).is_none());
        });
    });
}

#[test]
fn a_value_of_several_indices_is_changed_at_all_of_them_at_once() {
    explore(|| {
        let change = |writer: &Writer<'_, Value>| {
            assert!(writer.replace(5, Arc::new((0, 3, 2))).is_ok());
            assert!(writer.erase(5).is_some());
        };
        race(array(&[(0, 3, 1)]), change, |array, guard| {
            // 3 stands for erased.
            let seen = [7, 0, 4].map(|index| array.load(index, guard).map_or(3, |value| value.2));
            assert!(seen.is_sorted(), "{seen:?}");
        });
    });
}

#[test]
fn a_smaller_value_is_not_taken_for_the_larger_one_before_it() {
    explore(|| {
        let change = |writer: &Writer<'_, Value>| {
            assert!(writer.erase(0).is_some());
            assert!(writer.store(0, 0, Arc::new((0, 0, 2))).is_ok());
        };
        race(array(&[(0, 1, 1)]), change, |array, guard| {
            assert!(array.load(1, guard).is_none_or(|value| value.1 == 1));
            assert!(array.entry(1, guard).is_none_or(|entry| entry.order == 1 && entry.value.1 == 1));
        });
    });
}

/// A marked value that is split while it is read.
fn split<const ORDER: u8>(read: impl Fn(&XArray<Value>, &Guard) + Send + Sync + Copy + 'static) {
    explore(move || {
        let array = array(&[(0, ORDER, 1)]);
        array.writer().set_mark(0, Mark::Dirty);
        // A part that loses its mark does not hide those that keep it.
        let change = |writer: &Writer<'_, Value>| {
            assert!(writer.split(0, 0, |index| Arc::new((index, 0, 2))).is_some());
            assert!(writer.clear_mark(0, Mark::Dirty));
        };
        race(array, change, read);
    });
}

fn each_index_is_found<const LAST: u64>(array: &XArray<Value>, guard: &Guard) {
    assert!(array.load(LAST, guard).is_some());
    assert!(array.load_arc(0, guard).is_some());
}

fn a_walk_finds_each_index_once<const LAST: u64>(array: &XArray<Value>, guard: &Guard) {
    let mut next = 0;
    for entry in array.range(0..=LAST, guard).arcs() {
        assert_eq!(entry.index, next);
        next = entry.last() + 1;
    }
    assert_eq!(next, LAST + 1);
}

fn a_walk_by_mark_finds_the_last<const LAST: u64>(array: &XArray<Value>, guard: &Guard) {
    let found = array.marked(.., Mark::Dirty, guard).last();
    assert_eq!(found.map(|entry| entry.last()), Some(LAST));
}

#[test]
fn readers_beside_a_split_within_a_node() {
    split::<1>(each_index_is_found::<1>);
    split::<1>(a_walk_finds_each_index_once::<1>);
    split::<1>(a_walk_by_mark_finds_the_last::<1>);
}

#[test]
fn readers_beside_a_split_into_a_new_node() {
    split::<2>(each_index_is_found::<3>);
    split::<2>(a_walk_finds_each_index_once::<3>);
    split::<2>(a_walk_by_mark_finds_the_last::<3>);
}

#[test]
fn a_marked_value_is_found_while_its_neighbours_lose_theirs() {
    explore(|| {
        let array = array(&[(0, 0, 1), (8, 0, 2), (9, 0, 3)]);
        [0, 8, 9].iter().for_each(|&index| assert!(array.writer().set_mark(index, Mark::Dirty)));
        let change = |writer: &Writer<'_, Value>| {
            assert!(writer.clear_mark(8, Mark::Dirty));
            assert!(writer.erase(0).is_some());
        };
        race(array, change, |array, guard| {
            assert_eq!(array.marked(.., Mark::Dirty, guard).last().map(|entry| entry.index), Some(9));
            assert!(array.any(Mark::Dirty));
        });
    });
}

/// A page goes out, and comes in again: whoever looks finds it, or where its bytes are.
#[test]
fn a_lookup_beside_exchanges_finds_the_value_or_the_word() {
    explore(|| {
        let exchange = |writer: &Writer<'_, Value>| {
            assert!(matches!(writer.exchange(5, Slot::Word(9)), Ok(Slot::Full(_))));
            let old = writer.exchange(5, Slot::Full(Arc::new((5, 0, 8))));
            assert!(matches!(old, Ok(Slot::Word(9))));
        };
        race(array(&[(5, 0, 7)]), exchange, |array, guard| {
            let mut last = 0;
            for _ in 0..2 {
                let seen = match array.slot(5, guard) {
                    Slot::Full(&(5, 0, 7)) => 0,
                    Slot::Word(9) => 1,
                    Slot::Full(&(5, 0, 8)) => 2,
                    other => panic!("{other:?}"),
                };
                assert!(seen >= last);
                last = seen;
            }
        });
    });
}

/// The last value of a node becomes a word: the node stays, and so does its neighbour's way to it.
#[test]
fn a_lookup_beside_an_exchange_that_keeps_a_node() {
    explore(|| {
        let exchange = |writer: &Writer<'_, Value>| {
            assert!(writer.exchange(5, Slot::Word(9)).is_ok());
            assert!(writer.erase(1).is_some());
        };
        race(array(&[(1, 0, 7), (5, 0, 7)]), exchange, |array, guard| {
            assert!(!matches!(array.slot(5, guard), Slot::Empty));
            assert!(array.load(1, guard).is_none_or(|value| *value == (1, 0, 7)));
        });
    });
}
