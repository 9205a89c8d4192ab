//! Counters that many threads add to and few read.

// Not the facade's: statistics order nothing, so a model need not branch on them.
use std::sync::atomic::{AtomicU64, Ordering};

/// How many cells a counter is spread over. More than the threads that write often, so that two of them seldom share one.
const STRIPES: usize = 8;

/// One counter cell on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(AtomicU64);

/// A statistic that is written without sharing a cache line between threads and summed by its reader.
///
/// The sum wraps at 2^64; a reader who wants a rate takes differences, which wrap too and stay right.
#[derive(Debug, Default)]
pub struct Counter {
    stripes: [Stripe; STRIPES],
}

impl Counter {
    /// A counter at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `n`. Relaxed: counters order nothing.
    pub fn add(&self, n: u64) {
        self.stripes[crate::thread::slot() % STRIPES].0.fetch_add(n, Ordering::Relaxed);
    }

    /// The sum over all cells. Not a snapshot: adds that run meanwhile may or may not be in it.
    pub fn get(&self) -> u64 {
        self.stripes.iter().fold(0, |sum, s| sum.wrapping_add(s.0.load(Ordering::Relaxed)))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn sums_over_threads() {
        let counter = Counter::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| counter.add(2)));
            }
        });
        assert_eq!(counter.get(), 8000);
    }
}
