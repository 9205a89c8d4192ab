//! A value for each thread, on cache lines of its own, which other threads may look at. Linux: per-CPU data.

use crate::lines::Lines;
use crate::thread::{OWN_SLOTS, SHARED_ROWS, slot};

/// A value for each thread. Threads that have got none of their own, or are past their destructors, share
/// some: so a thread changes its value by atomic read-modify-writes only.
pub struct PerThread<T> {
    rows: Box<[Lines<T>]>,
}

impl<T: Default> Default for PerThread<T> {
    fn default() -> Self {
        Self { rows: (0..OWN_SLOTS + SHARED_ROWS).map(|_| Lines::default()).collect() }
    }
}

impl<T> PerThread<T> {
    /// The calling thread's value.
    #[inline]
    pub fn mine(&self) -> &T {
        let slot = slot();
        &self.rows[if slot < OWN_SLOTS { slot } else { OWN_SLOTS + slot % SHARED_ROWS }]
    }

    /// The values of all threads.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.rows.iter().map(|row| &row.0)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn each_thread_finds_its_value_again_and_all_see_it() {
        let values = PerThread::<AtomicUsize>::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * OWN_SLOTS {
                scope.spawn(|| (0..100).for_each(|_| _ = values.mine().fetch_add(1, Ordering::Relaxed)));
            }
        });
        let all: usize = values.all().map(|value| value.load(Ordering::Relaxed)).sum();
        assert_eq!(all, 2 * OWN_SLOTS * 100);
    }
}
