//! Counters that many threads add to and few read.
//!
//! A thread adds in a row of its own, by a load and a store: an exchange would cost more than most of what is
//! counted. Linux: per-CPU counters. Threads beyond the rows, or at their very end, share some, where they do
//! exchange.

use crate::thread::{OWN_SLOTS, slot};
// Not the facade's: statistics order nothing, so a model need not branch on them.
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows for threads that have none of their own.
const SHARED: usize = 8;

/// One thread's counts, on cache lines of their own.
#[repr(align(64))]
struct Row<const N: usize>([AtomicU64; N]);

/// `N` statistics that are written without sharing a cache line between threads and summed by their reader.
///
/// A sum wraps at 2^64; a reader who wants a rate takes differences, which wrap too and stay right. What a
/// signal handler adds while its thread is adding to the same counter may be lost.
pub struct Counters<const N: usize> {
    rows: Box<[Row<N>]>,
}

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        let row = |_| Row(std::array::from_fn(|_| AtomicU64::new(0)));
        Self { rows: (0..OWN_SLOTS + SHARED).map(row).collect() }
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
            // Nobody else writes here. Who had the slot before has left it by a release, after its last
            // store.
            let cell = &self.rows[slot].0[which];
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
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
        self.rows.iter().fold(0, |sum, row| sum.wrapping_add(row.0[which].load(Ordering::Relaxed)))
    }
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
}
