//! Real readers beside a real writer: what is stored and not erased is always found, and nothing is found
//! where it is not.
#![cfg(not(any(loom, shuttle)))]

use elbowroom_index::xarray::{Entry, Mark, XArray};
use elbowroom_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use elbowroom_sync::epoch::{Guard, Slot, pin};
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Arc, Weak, thread};

const READERS: u64 = 3;
const RUN: Duration = Duration::from_millis(1500);

struct Folio {
    index: u64,
    order: u8,
    /// Grows with every value that is stored at an index.
    version: u64,
    /// The complement of the index, and garbage once it is dropped.
    check: AtomicU64,
}

impl Folio {
    fn new(index: u64, order: u8, version: u64) -> Arc<Self> {
        Arc::new(Self { index, order, version, check: AtomicU64::new(!index) })
    }

    /// Whether it is alive, and has `index`.
    fn covers(&self, index: u64) -> bool {
        self.check.load(Ordering::Relaxed) == !self.index && index >> self.order << self.order == self.index
    }
}

impl Drop for Folio {
    fn drop(&mut self) {
        self.check.store(0, Ordering::Relaxed);
    }
}

fn is_right(entry: &Entry<&Folio>) -> bool {
    entry.value.covers(entry.index) && (entry.index, entry.order) == (entry.value.index, entry.value.order)
}

/// A number that looks random, from a state.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
    *state >> 33
}

/// Runs `write` again and again beside threads that run `read`, for [`RUN`]; both get a seed. Each must have
/// had some turns.
fn race(
    array: &Arc<XArray<Folio>>,
    mut write: impl FnMut(&XArray<Folio>, u64),
    read: impl Fn(&XArray<Folio>, &Guard, u64) + Send + Sync + 'static,
) {
    let read = Arc::new(read);
    let over = Arc::new(AtomicBool::new(false));
    let turns = Arc::new(AtomicU64::new(0));
    let reader = |reader: u64| {
        let (array, over, turns, read) = (array.clone(), over.clone(), turns.clone(), read.clone());
        let body = move || {
            let mut seed = reader;
            while !over.load(Ordering::Acquire) {
                read(&array, &pin(), random(&mut seed));
                turns.fetch_add(1, Ordering::Relaxed);
            }
        };
        thread::spawn("reader", body).unwrap()
    };
    let readers: Vec<_> = (1..=READERS).map(reader).collect();
    let (start, mut seed, mut writes) = (Instant::now(), 99, 0_u64);
    let enough = |writes: u64| turns.load(Ordering::Relaxed) >= 1000 && writes > 100;
    while start.elapsed() < RUN || !enough(writes) {
        write(array, random(&mut seed));
        writes += 1;
        assert!(start.elapsed() < 20 * RUN, "no progress: {turns:?} reads, {writes} writes");
    }
    over.store(true, Ordering::Release);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

/// Values that stay: one of order `i % 10` at `i * 1024`.
const STAYING: u64 = 40;

fn staying(i: u64) -> (u64, u8) {
    (i * 1024, (i % 10) as u8)
}

#[test]
fn what_stays_is_found_whatever_comes_and_goes_around_it() {
    let array = Arc::new(XArray::new());
    for (index, order) in (0..STAYING).map(staying) {
        array.writer().store(index, order, Folio::new(index, order, 0)).unwrap();
        assert!(array.writer().set_mark(index, Mark::Writeback));
    }
    let write = |array: &XArray<Folio>, seed: u64| {
        let writer = array.writer();
        // Beside what stays, and far away, so that the tree grows and shrinks.
        let order = (seed % 10) as u8;
        let near = (seed / 10 % STAYING) * 1024 + 512;
        let index = if seed.is_multiple_of(7) { 1 << (20 + seed % 40) } else { near };
        if writer.erase(index).is_none() {
            writer.store(index, order, Folio::new(index, order, seed)).unwrap();
            writer.set_mark(index, Mark::Dirty);
        }
    };
    race(&array, write, |array, guard, seed| {
        let (index, order) = staying(seed % STAYING);
        let within = index + (seed >> 8) % (1 << order);
        assert!(array.load(within, guard).is_some_and(|folio| folio.covers(within)));
        assert!(array.load_arc(within, guard).is_some_and(|folio| folio.covers(within)));
        assert!(
            array.marked(within..=within, Mark::Writeback, guard).next().is_some()
                && array.any(Mark::Writeback)
        );
        assert!(array.marked(within..=within, Mark::Dirty, guard).next().is_none());
        let other = index + 512 + (seed >> 8) % 512;
        assert!(array.load(other, guard).is_none_or(|folio| folio.covers(other)));
        if seed.is_multiple_of(16) {
            let stay = |entry: &Entry<&Folio>| is_right(entry) && entry.index.is_multiple_of(1024);
            let walk = array.range(..STAYING * 1024, guard).filter(stay);
            assert!(walk.map(|entry| entry.index).eq((0..STAYING).map(|i| staying(i).0)));
            let walk = array.marked(.., Mark::Writeback, guard).filter(stay);
            assert!(walk.map(|entry| entry.index).eq((0..STAYING).map(|i| staying(i).0)));
        }
    });
}

#[test]
fn a_value_of_several_indices_comes_and_goes_at_all_of_them_at_once() {
    let array = Arc::new(XArray::new());
    let mut version = 0;
    let write = |array: &XArray<Folio>, seed: u64| {
        let writer = array.writer();
        version += 1;
        // Always the order 9 - k at 512 k, with a hole at times.
        for k in 0..10 {
            let (index, order) = (k * 512, 9 - k as u8);
            if seed.is_multiple_of(3) {
                drop(writer.erase(index));
            }
            let fresh = Folio::new(index, order, version);
            if let Err(fresh) = writer.replace(index, fresh) {
                writer.store(index, order, fresh).unwrap();
            }
        }
    };
    race(&array, write, |array, guard, seed| {
        let (k, mut newest) = (seed % 10, 0);
        for step in 0..20 {
            let index = k * 512 + (seed >> 8).wrapping_add(step * 7) % (512 >> k);
            let found = array.load(index, guard);
            assert!(found.is_none_or(|folio| folio.covers(index) && folio.version >= newest));
            newest = found.map_or(newest, |folio| folio.version);
        }
    });
}

/// The writer stores a folio at the next place, announces it, and splits it into folios of one index and
/// words.
#[test]
fn a_split_into_words_loses_no_index_for_any_reader() {
    const PLACES: u64 = 32;
    let array = Arc::new(XArray::new());
    let round = Arc::new(AtomicU64::new(0));
    let announce = round.clone();
    let write = move |array: &XArray<Folio>, seed: u64| {
        let writer = array.writer();
        let now = announce.load(Ordering::Relaxed) + 1;
        let first = now % PLACES * 512;
        for index in first..first + 512 {
            let _ = writer.exchange(index, Slot::Empty);
        }
        let order = 1 + (seed >> 4) % 9;
        writer.store(first, order as u8, Folio::new(first, order as u8, now)).unwrap();
        announce.store(now, Ordering::Release);
        let part = |index: u64| match seed >> (index % 32) & 1 {
            0 => Slot::Word(now),
            _ => Slot::Full(Folio::new(index, 0, now)),
        };
        assert!(writer.split_to_slots(first, part).is_some());
    };
    race(&array, write, move |array, guard, seed| {
        let before = round.load(Ordering::Acquire);
        // The lower half of the smallest.
        let index = before % PLACES * 512 + seed % 2;
        let found = match array.slot(index, guard) {
            Slot::Empty => false,
            Slot::Word(version) => version >= before,
            Slot::Full(folio) => folio.covers(index) && folio.version >= before,
        };
        // By the time that the writer is back at this place, there is nothing to find.
        let overtaken = round.load(Ordering::Acquire) - before >= PLACES - 1;
        assert!(overtaken || before == 0 || found, "{index}");
    });
}

/// The writer stores a marked folio at the next place, announces it, and splits it into smaller and smaller
/// ones.
#[test]
fn a_split_loses_no_index_for_any_reader() {
    const PLACES: u64 = 32;
    let array = Arc::new(XArray::new());
    let round = Arc::new(AtomicU64::new(0));
    let announce = round.clone();
    let write = move |array: &XArray<Folio>, seed: u64| {
        let writer = array.writer();
        let now = announce.load(Ordering::Relaxed) + 1;
        let first = now % PLACES * 512;
        while let Some(old) = array.range(first..first + 512, writer.guard()).next() {
            assert!(writer.erase(old.index).is_some());
        }
        writer.store(first, 9, Folio::new(first, 9, now)).unwrap();
        writer.set_mark(first, Mark::Dirty);
        announce.store(now, Ordering::Release);
        let mut order = 9;
        while order > 0 {
            order -= (1 + seed % 4).min(order);
            let part = |index| Folio::new(index, order as u8, now);
            assert!(writer.split(first + seed % 512, order as u8, part).is_some());
        }
    };
    race(&array, write, move |array, guard, seed| {
        let before = round.load(Ordering::Acquire);
        let first = before % PLACES * 512;
        let last = first + 511;
        let index = first + seed % 512;
        let found = before == 0 || array.load(index, guard).is_some_and(|folio| folio.covers(index));
        let mut next = first;
        for entry in array.marked(first..=last, Mark::Dirty, guard) {
            next = if entry.index == next && is_right(&entry) { entry.last() + 1 } else { u64::MAX };
        }
        // By the time that the writer is back at this place, there is nothing to find.
        let overtaken = round.load(Ordering::Acquire) - before >= PLACES - 1;
        assert!(overtaken || before == 0 || found && next == last + 1, "{found}, {first}, {next}");
    });
}

#[test]
fn what_left_is_dropped_after_a_grace_period() {
    let array = XArray::new();
    let guard = pin();
    let left: Vec<Weak<Folio>> = (0..1000)
        .map(|index| {
            let folio = Folio::new(index * 70, 0, 0);
            array.writer().store(index * 70, 0, folio.clone()).unwrap();
            Arc::downgrade(&folio)
        })
        .collect();
    (0..1000).for_each(|index| drop(array.writer().erase(index * 70)));
    assert!(left.iter().all(|folio| folio.upgrade().is_some()), "a guard is there");
    drop(guard);
    let start = Instant::now();
    while left.iter().any(|folio| folio.upgrade().is_some()) {
        pin().flush();
        assert!(start.elapsed() < Duration::from_secs(20), "something is never dropped");
    }
    assert_eq!(array.memory_bytes(), 0);
}
