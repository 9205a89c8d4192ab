//! Counters that many threads add to and few read.
//!
//! A thread adds in a row of its own, by a load and a store: an atomic read-modify-write would cost more
//! than most events that are counted. Linux: per-CPU counters. Threads that have got no row, or are past
//! their destructors, share some rows, in which they add atomically.

use crate::OnceLock;
use crate::thread::{OWN_SLOTS, SHARED_ROWS as SHARED, rows_reached, slot};
// std's atomics, not the facade's: statistics order nothing, so a model need not branch on them.
use std::sync::atomic::{AtomicU64, Ordering};

/// One thread's counts, on cache lines of their own.
#[repr(align(64))]
struct Row<const N: usize>([AtomicU64; N]);

impl<const N: usize> Row<N> {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Adds in a row that only the calling thread writes to.
    #[inline]
    fn add_alone(&self, which: usize, n: u64) {
        // The thread that had the row before gave its slot back by a release, after its last store.
        let before = self.0[which].load(Ordering::Relaxed);
        self.0[which].store(before.wrapping_add(n), Ordering::Relaxed);
    }
}

/// `N` statistics that are written without sharing a cache line between threads and summed by their reader.
///
/// A sum wraps at 2^64; a reader who wants a rate takes differences, which wrap too and stay right. What a
/// signal handler adds while its thread is adding to the same counter may be lost.
pub struct Counters<const N: usize> {
    rows: Box<[Row<N>]>,
}

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        Self { rows: (0..OWN_SLOTS + SHARED).map(|_| Row::new()).collect() }
    }
}

impl<const N: usize> Counters<N> {
    /// Counters at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `n` to the counter number `which`. Relaxed: counters order nothing.
    ///
    /// # Panics
    /// If `which` is not below `N`.
    #[inline]
    pub fn add(&self, which: usize, n: u64) {
        let slot = slot();
        if slot < OWN_SLOTS {
            self.rows[slot].add_alone(which, n);
        } else {
            self.rows[OWN_SLOTS + slot % SHARED].0[which].fetch_add(n, Ordering::Relaxed);
        }
    }

    /// The sum of the counter number `which` over all rows. Not a snapshot: adds that run meanwhile may or
    /// may not be in it.
    ///
    /// # Panics
    /// If `which` is not below `N`.
    pub fn get(&self, which: usize) -> u64 {
        let rows = rows_reached().map(|row| &self.rows[row]);
        rows.fold(0, |sum, row| sum.wrapping_add(row.0[which].load(Ordering::Relaxed)))
    }
}

/// [`Counters`] for many counters of which a thread uses few: a row is allocated when its thread first
/// adds.
pub struct SparseCounters<const N: usize> {
    rows: [OnceLock<Box<Row<N>>>; OWN_SLOTS + SHARED],
}

impl<const N: usize> Default for SparseCounters<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> SparseCounters<N> {
    /// Counters at zero.
    pub fn new() -> Self {
        Self { rows: std::array::from_fn(|_| OnceLock::new()) }
    }

    /// Adds `n` to the counter number `which`.
    ///
    /// # Panics
    /// If `which` is not below `N`.
    #[inline]
    pub fn add(&self, which: usize, n: u64) {
        let slot = slot();
        let alone = slot < OWN_SLOTS;
        let row = &self.rows[if alone { slot } else { OWN_SLOTS + slot % SHARED }];
        let row = match row.get() {
            Some(row) => row,
            None => made(row),
        };
        if alone {
            row.add_alone(which, n);
        } else {
            row.0[which].fetch_add(n, Ordering::Relaxed);
        }
    }

    /// The sum of the counter number `which` over all rows. Not a snapshot.
    ///
    /// # Panics
    /// If `which` is not below `N`.
    pub fn get(&self, which: usize) -> u64 {
        let rows = rows_reached().filter_map(|row| self.rows[row].get());
        rows.fold(0, |sum, row| sum.wrapping_add(row.0[which].load(Ordering::Relaxed)))
    }

    /// Adds the sums of all counters to `sums`: each row is looked at once. Not a snapshot.
    pub fn add_to(&self, sums: &mut [u64; N]) {
        for row in rows_reached().filter_map(|row| self.rows[row].get()) {
            for (sum, counter) in sums.iter_mut().zip(&row.0) {
                *sum = sum.wrapping_add(counter.load(Ordering::Relaxed));
            }
        }
    }
}

#[cold]
fn made<const N: usize>(row: &OnceLock<Box<Row<N>>>) -> &Row<N> {
    row.get_or_init(|| Box::new(Row::new()))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_however_many_threads_add_and_end() {
        let counters = Counters::<3>::new();
        // More at a time than there are rows, and rows that go from thread to thread.
        for _ in 0..4 {
            std::thread::scope(|scope| {
                for _ in 0..OWN_SLOTS + 3 * SHARED {
                    scope.spawn(|| (0..1000).for_each(|_| counters.add(1, 2)));
                }
            });
        }
        let added = 4 * (OWN_SLOTS + 3 * SHARED) as u64 * 2000;
        assert_eq!([0, 1, 2].map(|which| counters.get(which)), [0, added, 0]);
    }

    #[test]
    fn rows_that_are_made_late_lose_nothing_either() {
        let counters = SparseCounters::<3>::new();
        for _ in 0..4 {
            std::thread::scope(|scope| {
                for _ in 0..OWN_SLOTS + 3 * SHARED {
                    scope.spawn(|| (0..1000).for_each(|_| counters.add(1, 1)));
                }
            });
        }
        let added = 4 * (OWN_SLOTS + 3 * SHARED) as u64 * 1000;
        assert_eq!([0, 1, 2].map(|which| counters.get(which)), [0, added, 0]);
        let mut sums = [7, 0, 0];
        counters.add_to(&mut sums);
        assert_eq!(sums, [7, added, 0]);
    }
}
