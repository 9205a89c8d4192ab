//! Models of records and grace periods, in every order of their threads' steps. Loom panics when a change of
//! a value is not ordered with an access to it. `.ci/mutants` plants bugs and expects these models to find
//! them.

use super::*;
use crate::Arc;
use crate::atomic::AtomicUsize;
use loom::thread;

/// Two versions of a value, and which of them is current.
struct Versions {
    current: AtomicUsize,
    values: [UnsafeCell<usize>; 2],
    readers: Readers<Vec<usize>>,
}

impl Versions {
    fn new() -> Arc<Self> {
        let values = [UnsafeCell::new(10), UnsafeCell::new(11)];
        Arc::new(Self { current: AtomicUsize::new(0), values, readers: Readers::new() })
    }

    /// Reads the current version in a section of `reader`, and returns its index.
    fn read(&self, reader: &Reader<Vec<usize>>) -> usize {
        reader.enter();
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: loom proves it, or panics.
        let value = self.values[current].with(|value| unsafe { *value });
        assert_eq!(value, 10 + current, "the version is used again");
        assert!(!reader.leave());
        current
    }

    /// Makes the other version current, and spoils the old one if the grace period is over at once.
    fn replace(&self) {
        let old = self.current.load(Ordering::Relaxed);
        self.current.swap(1 - old, Ordering::AcqRel);
        let mut grace = Grace::over();
        self.readers.begin(&mut grace);
        if grace.is_over() {
            // SAFETY: as in `read`.
            self.values[old].with_mut(|value| unsafe { *value = 99 });
        }
    }
}

/// A thread that runs `f` on a record that it takes and gives back.
fn with_record(
    versions: &Arc<Versions>,
    f: impl FnOnce(&Versions, &Reader<Vec<usize>>) + 'static,
) -> thread::JoinHandle<()> {
    let versions = versions.clone();
    thread::spawn(move || {
        let reader = versions.readers.take();
        f(&versions, reader);
        reader.give_back(false);
    })
}

#[test]
fn what_a_section_reads_stays_until_it_ends() {
    loom::model(|| {
        let versions = Versions::new();
        let reader = with_record(&versions, |versions, reader| {
            let first = versions.read(reader);
            assert!(first <= versions.read(reader));
        });
        versions.replace();
        reader.join().unwrap();
    });
}

#[test]
fn nested_sections_are_one() {
    loom::model(|| {
        let versions = Versions::new();
        let reader = with_record(&versions, |versions, reader| {
            reader.enter();
            let current = versions.current.load(Ordering::Acquire);
            reader.enter();
            assert!(!reader.leave());
            // SAFETY: as in `Versions::read`.
            assert_eq!(versions.values[current].with(|value| unsafe { *value }), 10 + current);
            reader.leave();
        });
        versions.replace();
        reader.join().unwrap();
    });
}

#[test]
fn two_readers_are_both_waited_for() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let versions = Versions::new();
        let readers = [0, 1].map(|_| {
            with_record(&versions, |versions, reader| {
                versions.read(reader);
            })
        });
        versions.replace();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn a_grace_period_ends_with_the_sections_that_it_waits_for() {
    loom::model(|| {
        let versions = Versions::new();
        let reader = with_record(&versions, |versions, reader| {
            versions.read(reader);
        });
        versions.current.store(1, Ordering::Release);
        let mut grace = Grace::over();
        versions.readers.begin(&mut grace);
        let over = grace.is_over();
        reader.join().unwrap();
        assert!(!over || grace.is_over(), "over once, over always");
        // A later section does not matter.
        let late = versions.readers.take();
        late.enter();
        assert!(grace.is_over());
        late.leave();
    });
}

/// Pushes to the list of a record and gives it back.
fn leave_one(versions: &Versions) {
    let reader = versions.readers.take();
    // SAFETY: the record is this thread's.
    let len = unsafe {
        reader.with_list(|list| {
            list.push(1);
            list.len()
        })
    };
    assert_eq!(len, 1, "a record that is taken has an empty list");
    reader.give_back(true);
}

#[test]
fn what_is_left_is_found_once() {
    loom::model(|| {
        let versions = Versions::new();
        let leaver = {
            let versions = versions.clone();
            thread::spawn(move || leave_one(&versions))
        };
        let mut found = Vec::new();
        // This thread may get the record that the other has left, and become its owner.
        let reader = versions.readers.take();
        versions.readers.take_left(|left| found.extend(left));
        reader.give_back(false);
        assert!(found.is_empty() || found == [1]);
        leaver.join().unwrap();
        versions.readers.take_left(|left| found.extend(left));
        assert_eq!(found, [1]);
    });
}

#[test]
fn two_that_look_do_not_both_find_it() {
    loom::model(|| {
        let versions = Versions::new();
        leave_one(&versions);
        let look = |versions: &Versions| {
            let mut found = 0;
            versions.readers.take_left(|left| found += left.len());
            found
        };
        let other = {
            let versions = versions.clone();
            thread::spawn(move || look(&versions))
        };
        let found = look(&versions);
        assert_eq!(found + other.join().unwrap(), 1);
    });
}
