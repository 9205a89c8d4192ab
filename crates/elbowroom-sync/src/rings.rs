//! Rings of the last records of each thread.
//!
//! A thread writes records of a few words into a ring of its own, over the oldest, without a lock or any
//! other synchronization with threads; a reader copies the rings at any time, and leaves out the records
//! that were overwritten meanwhile. The user defines what the words mean. Threads that have got no slot of
//! their own share some rings: a record that comes while another is being written to the same ring is lost,
//! and counted.
//!
//! Synchronization: a ring has one writer. The writer announces a record before it writes it (`begun`, then
//! a release fence), and again when it is complete (`written`). A reader copies the complete records, and
//! then, after an acquire fence, reads which records had been announced: it leaves out the copies of
//! records that these have overwritten. The atomics are std's, as in all statistics, since nothing else
//! relies on them.

use crate::thread::{OWN_SLOTS, SHARED_ROWS, slot};
use crate::{Lines, OnceLock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Words of a record.
pub const RECORD_WORDS: usize = 6;

/// The most records for which memory is allocated at a time.
const PART: usize = 1024;

/// One record.
pub type Record = [u64; RECORD_WORDS];

/// The ring of one thread, or of several that share it.
struct Ring {
    /// How many records were begun, and (`written`) how many are complete. Each is also the number of the
    /// next such record.
    begun: AtomicU64,
    written: AtomicU64,
    /// Whether a thread is writing into this shared ring.
    busy: AtomicBool,
    /// How many records were lost because the shared ring was busy.
    missed: AtomicU64,
    /// Parts of `part_len` records each, allocated when they are first written to.
    parts: Box<[OnceLock<Box<[StoredRecord]>>]>,
    part_len: u64,
}

type StoredRecord = [AtomicU64; RECORD_WORDS];

impl Ring {
    fn new(records: usize) -> Self {
        let part_len = records.min(PART);
        Self {
            begun: AtomicU64::new(0),
            written: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            missed: AtomicU64::new(0),
            parts: (0..records / part_len).map(|_| OnceLock::new()).collect(),
            part_len: part_len as u64,
        }
    }

    /// How many records the ring has room for.
    fn size(&self) -> u64 {
        self.parts.len() as u64 * self.part_len
    }

    fn place(&self, number: u64) -> &StoredRecord {
        let at = number % self.size();
        let part = &self.parts[(at / self.part_len) as usize];
        let part = part.get_or_init(|| (0..self.part_len).map(|_| StoredRecord::default()).collect());
        &part[(at % self.part_len) as usize]
    }

    /// Writes a record. Only one thread at a time may call this.
    fn push(&self, record: &Record) {
        // The thread that wrote to the ring before has given it back by a release.
        let number = self.written.load(Ordering::Relaxed);
        self.begun.store(number + 1, Ordering::Relaxed);
        // A reader that sees a word of this record also sees that it was begun.
        fence(Ordering::Release);
        self.place(number).iter().zip(record).for_each(|(place, word)| place.store(*word, Ordering::Relaxed));
        self.written.store(number + 1, Ordering::Release);
    }

    fn push_shared(&self, record: &Record) {
        if self.busy.swap(true, Ordering::Acquire) {
            self.missed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.push(record);
        self.busy.store(false, Ordering::Release);
    }

    fn copy(&self) -> RingCopy {
        let written = self.written.load(Ordering::Acquire);
        let size = self.size();
        let first = written.saturating_sub(size);
        let at = |number: u64| {
            let place = self.place(number);
            std::array::from_fn(|word| place[word].load(Ordering::Relaxed))
        };
        let mut records: Vec<Record> = (first..written).map(at).collect();
        fence(Ordering::Acquire);
        let begun = self.begun.load(Ordering::Relaxed);
        // Record n is where record n - size was.
        let overwritten = begun.saturating_sub(size).clamp(first, written) - first;
        records.drain(..overwritten as usize);
        RingCopy { lost: first + overwritten + self.missed.load(Ordering::Relaxed), records }
    }
}

/// A copy of a ring.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RingCopy {
    /// The records, oldest first.
    pub records: Vec<Record>,
    /// How many records were written, or tried to be, that are not in `records`.
    pub lost: u64,
}

/// Rings of records, one for each thread that writes.
pub struct Rings {
    /// Each is allocated when its thread first writes.
    rings: Box<[OnceLock<Box<Lines<Ring>>>]>,
    records: usize,
}

impl Rings {
    /// Rings of at most `bytes` each, and of one record at least. There are at most 72 rings.
    pub fn new(bytes: usize) -> Self {
        let rings = (0..OWN_SLOTS + SHARED_ROWS).map(|_| OnceLock::new()).collect();
        Self { rings, records: (bytes / size_of::<Record>()).max(1) }
    }

    /// Adds a record to the calling thread's ring.
    pub fn push(&self, record: &Record) {
        let slot = slot();
        let alone = slot < OWN_SLOTS;
        let ring = &self.rings[if alone { slot } else { OWN_SLOTS + slot % SHARED_ROWS }];
        let ring = match ring.get() {
            Some(ring) => ring,
            None => self.made(ring),
        };
        if alone { ring.push(record) } else { ring.push_shared(record) }
    }

    #[cold]
    fn made<'r>(&self, ring: &'r OnceLock<Box<Lines<Ring>>>) -> &'r Lines<Ring> {
        ring.get_or_init(|| Box::new(Lines(Ring::new(self.records))))
    }

    /// Copies of the rings that were written to, one after the other, each made when the iterator reaches
    /// it.
    pub fn copies(&self) -> impl Iterator<Item = RingCopy> {
        self.rings.iter().filter_map(OnceLock::get).map(|ring| ring.copy())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn record(number: u64) -> Record {
        std::array::from_fn(|word| number * 1000 + word as u64)
    }

    fn is_whole(found: &Record) -> bool {
        *found == record(found[0] / 1000)
    }

    #[test]
    fn the_oldest_are_overwritten_and_counted() {
        let ring = Ring::new(4);
        assert_eq!(ring.copy(), RingCopy::default());
        (0..3).for_each(|n| ring.push(&record(n)));
        assert_eq!(ring.copy(), RingCopy { records: (0..3).map(record).collect(), lost: 0 });
        (3..10).for_each(|n| ring.push(&record(n)));
        assert_eq!(ring.copy(), RingCopy { records: (6..10).map(record).collect(), lost: 6 });
    }

    #[test]
    fn a_busy_ring_loses_records_and_says_so() {
        let ring = Ring::new(4);
        ring.push_shared(&record(0));
        ring.busy.store(true, Ordering::Relaxed);
        ring.push_shared(&record(1));
        assert_eq!(ring.copy(), RingCopy { records: vec![record(0)], lost: 1 });
    }

    #[test]
    fn a_reader_sees_whole_records_in_order() {
        const RECORDS: u64 = 200_000;
        const LOOKS: u64 = 20;
        let ring = Ring::new(4096);
        let looks = AtomicU64::new(0);
        // However late the reader begins, it looks while something is written.
        let goes_on = |n: &u64| *n <= RECORDS || looks.load(Ordering::Relaxed) < LOOKS;
        let written = std::thread::scope(|scope| {
            let writer =
                scope.spawn(|| (1..).take_while(goes_on).inspect(|n| ring.push(&record(*n))).count() as u64);
            while !writer.is_finished() {
                let copy = ring.copy();
                assert!(copy.records.iter().all(is_whole), "{copy:?}");
                let numbers: Vec<_> = copy.records.iter().map(|record| record[0] / 1000).collect();
                assert!(numbers.windows(2).all(|two| two[0] + 1 == two[1]), "{numbers:?}");
                assert!(numbers.first().is_none_or(|first| *first == copy.lost + 1), "{numbers:?}");
                looks.fetch_add(1, Ordering::Relaxed);
            }
            writer.join().unwrap()
        });
        let copy = ring.copy();
        assert_eq!((copy.records.len() as u64, copy.lost), (4096, written - 4096));
    }

    #[test]
    fn threads_have_rings_of_their_own_and_what_is_lost_is_counted() {
        let rings = Rings::new(48 * 100);
        let threads = OWN_SLOTS + 2 * SHARED_ROWS;
        let barrier = std::sync::Barrier::new(threads);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    (0..150).for_each(|n| rings.push(&record(n)));
                    barrier.wait();
                });
            }
        });
        let (mut kept, mut lost) = (0, 0);
        for copy in rings.copies() {
            assert!(copy.records.len() <= 100 && copy.records.iter().all(is_whole));
            kept += copy.records.len() as u64;
            lost += copy.lost;
        }
        assert_eq!(kept + lost, threads as u64 * 150);
        assert!(lost >= threads as u64 * 50 / 2, "{lost}");
    }
}
