//! A histogram of durations that any number of threads write without a lock.
//!
//! Log-linear buckets as HdrHistogram's, with 16 steps per power of two: a reported value is at most 1/16
//! above the recorded one. Our own, because it is written in the fault path by several threads at once and
//! must be a plain array of atomics (docs/decisions/0001).

// Not the facade's: statistics order nothing, so a model need not branch on them.
use std::sync::atomic::{AtomicU64, Ordering};

const STEPS_LOG2: u32 = 4;
const STEPS: usize = 1 << STEPS_LOG2;
/// Values at or above 2^40 ns (18 minutes) share the last bucket.
const POWERS: usize = 40;
const BUCKETS: usize = POWERS * STEPS;

/// Counts of durations in nanoseconds.
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    max_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(), max_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records one duration.
    pub fn record(&self, ns: u64) {
        self.buckets[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        // The maximum is a loop of its own, and seldom needed.
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.fetch_max(ns, Ordering::Relaxed);
        }
    }

    /// The counts as they are now.
    pub fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            counts: self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).collect(),
            max_ns: self.max_ns.load(Ordering::Relaxed),
        }
    }
}

/// Counts read out of a [`Histogram`].
#[derive(Debug, Clone)]
pub struct HistogramSnapshot {
    counts: Vec<u64>,
    max_ns: u64,
}

impl HistogramSnapshot {
    /// How many durations were recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The largest recorded duration, exactly.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The duration that a share `q` (0 to 1) of the records does not exceed, rounded up to its bucket; 0 if
    /// empty.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let rank = ((self.count() as f64) * q.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (i, n) in self.counts.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return upper_bound(i).min(self.max_ns);
            }
        }
        0
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return ns as usize;
    }
    let power = 63 - ns.leading_zeros();
    let step = (ns >> (power - STEPS_LOG2)) as usize & (STEPS - 1);
    ((power - STEPS_LOG2 + 1) as usize * STEPS + step).min(BUCKETS - 1)
}

fn upper_bound(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    let power = (bucket / STEPS) as u32 + STEPS_LOG2 - 1;
    let step = (bucket % STEPS) as u64;
    ((STEPS as u64 + step + 1) << (power - STEPS_LOG2)) - 1
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn buckets_bound_their_values_within_a_sixteenth() {
        for ns in (0..5000).chain((0..30).map(|p| (1 << p) + 12_345)) {
            let upper = upper_bound(bucket_of(ns));
            assert!(upper >= ns && upper - ns <= ns / 16 + 1, "{ns} -> {upper}");
        }
    }

    #[test]
    fn quantiles() {
        let h = Histogram::new();
        assert_eq!(h.snapshot().quantile_ns(0.5), 0);
        (1..=1000).for_each(|i| h.record(i * 1000));
        let s = h.snapshot();
        assert_eq!((s.count(), s.max_ns(), s.quantile_ns(1.0)), (1000, 1_000_000, 1_000_000));
        let p50 = s.quantile_ns(0.5);
        assert!((500_000..=532_000).contains(&p50), "{p50}");
    }
}
