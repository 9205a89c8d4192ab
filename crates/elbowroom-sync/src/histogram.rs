//! Histograms of durations that any number of threads write without a lock.
//!
//! Log-linear buckets as HdrHistogram's with one significant digit: 16 steps per power of two, so a
//! reported value is at most 1/16 above the recorded one. Threads write into an array of atomics of our
//! own, because several of them write in the fault path. A reader gets an `hdrhistogram::Histogram` made
//! from it, which computes the quantiles (docs/decisions/0007).

use crate::OnceLock;
use crate::thread::{OWN_SLOTS, SHARED_ROWS, slot};
use std::fmt;
// std's atomics, not the facade's: statistics order nothing, so a model need not branch on them.
use std::sync::atomic::{AtomicU64, Ordering};

const STEPS_LOG2: u32 = 4;
const STEPS: usize = 1 << STEPS_LOG2;
/// Values at or above 2^43 ns (two hours) share the last bucket.
const POWERS: usize = 40;
const BUCKETS: usize = POWERS * STEPS;
/// The largest value that has a bucket of its own.
const LARGEST_NS: u64 = (1 << 43) - 1;

/// The powers of two, in nanoseconds, that are bucket bounds in the text for Prometheus: 1 us to 17 s, each
/// four times the one before.
const SHOWN_POWERS: [u32; 13] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34];

/// Counts of durations in nanoseconds.
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        let zero = |_| AtomicU64::new(0);
        Self { buckets: (0..BUCKETS).map(zero).collect(), sum_ns: zero(0), max_ns: zero(0) }
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
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        // Checked first, because `fetch_max` is a loop, and seldom needed.
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.fetch_max(ns, Ordering::Relaxed);
        }
    }

    /// Records one duration, in a histogram that only the calling thread writes to.
    #[inline]
    fn record_alone(&self, ns: u64) {
        let add =
            |to: &AtomicU64, n: u64| to.store(to.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        add(&self.buckets[bucket_of(ns)], 1);
        add(&self.sum_ns, ns);
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.store(ns, Ordering::Relaxed);
        }
    }

    /// The counts as they are now.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let mut all = HistogramSnapshot::default();
        all.add(self);
        all
    }
}

/// A [`Histogram`] for many threads in a hot path: each thread writes into a part of its own, by loads and
/// stores, and the reader adds the parts up. A part, of 5 KiB, is allocated when its thread first records.
/// Threads that have got no part of their own share some.
///
/// What a signal handler records while its thread is recording may be lost.
pub struct ThreadHistogram {
    parts: [OnceLock<Box<Histogram>>; OWN_SLOTS + SHARED_ROWS],
}

impl Default for ThreadHistogram {
    fn default() -> Self {
        Self { parts: std::array::from_fn(|_| OnceLock::new()) }
    }
}

impl ThreadHistogram {
    /// Records one duration.
    #[inline]
    pub fn record(&self, ns: u64) {
        let slot = slot();
        let alone = slot < OWN_SLOTS;
        let part = &self.parts[if alone { slot } else { OWN_SLOTS + slot % SHARED_ROWS }];
        let part = match part.get() {
            Some(part) => part,
            None => made(part),
        };
        if alone { part.record_alone(ns) } else { part.record(ns) }
    }

    /// The counts of all threads. Not an exact moment: durations that are recorded meanwhile may be
    /// missing.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let mut all = HistogramSnapshot::default();
        self.parts.iter().filter_map(OnceLock::get).for_each(|part| all.add(part));
        all
    }
}

#[cold]
fn made(part: &OnceLock<Box<Histogram>>) -> &Histogram {
    part.get_or_init(Box::default)
}

/// Counts read out of a [`Histogram`] or a [`ThreadHistogram`].
#[derive(Debug, Clone)]
pub struct HistogramSnapshot {
    counts: hdrhistogram::Histogram<u64>,
    sum_ns: u64,
    max_ns: u64,
}

impl Default for HistogramSnapshot {
    fn default() -> Self {
        let counts = hdrhistogram::Histogram::new_with_bounds(1, LARGEST_NS, 1);
        Self { counts: counts.expect("the bounds are in order"), sum_ns: 0, max_ns: 0 }
    }
}

impl HistogramSnapshot {
    fn add(&mut self, part: &Histogram) {
        for (bucket, count) in part.buckets.iter().enumerate() {
            match count.load(Ordering::Relaxed) {
                0 => {}
                n => self.counts.saturating_record_n(upper_bound(bucket), n),
            }
        }
        self.sum_ns = self.sum_ns.wrapping_add(part.sum_ns.load(Ordering::Relaxed));
        self.max_ns = self.max_ns.max(part.max_ns.load(Ordering::Relaxed));
    }

    /// Adds the counts of another snapshot.
    pub fn merge(&mut self, other: &Self) {
        self.counts.add(&other.counts).expect("all have the same bounds");
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// How many durations were recorded.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Their sum, exactly.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Their mean, exactly; 0 if empty.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count()).unwrap_or(0)
    }

    /// The largest recorded duration, exactly.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The duration that a share `q` (0 to 1) of the records does not exceed, rounded up to its bucket; 0 if
    /// empty.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        self.counts.value_at_quantile(q).min(self.max_ns)
    }

    /// Writes the snapshot as a histogram in Prometheus's text format, in seconds, with the name `name`;
    /// `labels` is the text between the braces. The caller has declared the metric.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_prometheus(&self, out: &mut impl fmt::Write, name: &str, labels: &str) -> fmt::Result {
        for power in SHOWN_POWERS {
            // The end of one of our buckets, so that the count is exact.
            let bound = (1 << power) - 1;
            let count = self.counts.count_between(0, bound);
            writeln!(out, "{name}_bucket{{{labels},le=\"{}\"}} {count}", seconds(bound))?;
        }
        let all = self.count();
        writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {all}")?;
        writeln!(out, "{name}_sum{{{labels}}} {}", seconds(self.sum_ns))?;
        writeln!(out, "{name}_count{{{labels}}} {all}")
    }
}

/// Nanoseconds as a decimal number of seconds, exactly.
pub(crate) fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
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

    /// Each of ours is one of the crate's, so nothing is rounded a second time.
    #[test]
    fn the_buckets_are_those_of_what_is_read() {
        let counts = HistogramSnapshot::default().counts;
        for bucket in 0..BUCKETS {
            let upper = upper_bound(bucket);
            assert_eq!(counts.highest_equivalent(upper), upper, "{bucket}");
            assert_eq!(bucket_of(upper), bucket);
        }
        assert_eq!(upper_bound(BUCKETS - 1), LARGEST_NS);
        let histogram = Histogram::new();
        histogram.record(u64::MAX / 2);
        assert_eq!(histogram.snapshot().quantile_ns(0.5), LARGEST_NS);
    }

    #[test]
    fn quantiles() {
        let h = Histogram::new();
        let empty = h.snapshot();
        assert_eq!((empty.quantile_ns(0.5), empty.mean_ns()), (0, 0));
        (1..=1000).for_each(|i| h.record(i * 1000));
        let s = h.snapshot();
        assert_eq!((s.count(), s.max_ns(), s.quantile_ns(1.0)), (1000, 1_000_000, 1_000_000));
        assert_eq!((s.mean_ns(), s.sum_ns()), (500_500, 500_500_000));
        let p50 = s.quantile_ns(0.5);
        assert!((500_000..=532_000).contains(&p50), "{p50}");
        let mut two = s.clone();
        two.merge(&s);
        assert_eq!((two.count(), two.mean_ns(), two.quantile_ns(0.5)), (2000, 500_500, p50));
    }

    #[test]
    fn nothing_that_threads_record_is_lost() {
        let histogram = ThreadHistogram::default();
        // More at a time than there are parts, and parts that go from thread to thread.
        for _ in 0..3 {
            std::thread::scope(|scope| {
                for _ in 0..OWN_SLOTS + 3 * SHARED_ROWS {
                    scope.spawn(|| (0..1000).for_each(|i| histogram.record(i)));
                }
            });
        }
        let (all, threads) = (histogram.snapshot(), 3 * (OWN_SLOTS + 3 * SHARED_ROWS) as u64);
        assert_eq!((all.count(), all.sum_ns(), all.max_ns()), (threads * 1000, threads * 499_500, 999));
    }

    #[test]
    fn prometheus_has_exact_cumulative_buckets() {
        let h = Histogram::new();
        [1000, 1023, 1024, 5000, 1 << 40].into_iter().for_each(|ns| h.record(ns));
        let mut text = String::new();
        h.snapshot().write_prometheus(&mut text, "x", "kind=\"a\"").unwrap();
        for line in [
            "x_bucket{kind=\"a\",le=\"0.000001023\"} 2",
            "x_bucket{kind=\"a\",le=\"0.000004095\"} 3",
            "x_bucket{kind=\"a\",le=\"17.179869183\"} 4",
            "x_bucket{kind=\"a\",le=\"+Inf\"} 5",
            "x_sum{kind=\"a\"} 1099.511635823",
            "x_count{kind=\"a\"} 5",
        ] {
            assert!(text.lines().any(|there| there == line), "no {line} in {text}");
        }
    }

    #[test]
    fn numbers_are_written_as_the_format_wants() {
        let times = [0, 1, 1_000, 1_000_000_000, 12_000_000_010].map(seconds);
        assert_eq!(times, ["0", "0.000000001", "0.000001", "1", "12.00000001"]);
    }
}
