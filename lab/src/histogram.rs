//! Log-linear buckets for latencies that are counted in memory shared between two processes.
//!
//! The worker counts into the board (`board.rs`), so that what it had measured survives its being killed; the
//! lab reads the counts. 32 steps per power of two: a reported value is at most 1/32 above the recorded one.

use serde::Serialize;

const STEPS_LOG2: u32 = 5;
const STEPS: usize = 1 << STEPS_LOG2;
/// Durations of 2^40 ns (18 minutes) and more share the last bucket.
const POWERS: u32 = 40;
/// How many buckets a histogram has.
pub const BUCKETS: usize = (POWERS - STEPS_LOG2 + 1) as usize * STEPS;

/// The bucket in which a duration in nanoseconds is counted.
pub fn bucket_of(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return ns as usize;
    }
    let power = 63 - ns.leading_zeros();
    if power >= POWERS {
        return BUCKETS - 1;
    }
    let shift = power - STEPS_LOG2;
    (shift as usize + 1) * STEPS + ((ns >> shift) as usize - STEPS)
}

/// The largest duration, in nanoseconds, that is counted in a bucket.
fn highest_in(bucket: usize) -> u64 {
    let (row, step) = (bucket / STEPS, (bucket % STEPS) as u64);
    match row {
        0 => step,
        _ => ((STEPS as u64 + step + 1) << (row - 1)) - 1,
    }
}

/// What is reported of a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// How many were recorded.
    pub count: u64,
    /// Half of them were at most this long.
    pub p50_ns: u64,
    /// 90 % of them were at most this long.
    pub p90_ns: u64,
    /// 99 % of them were at most this long.
    pub p99_ns: u64,
    /// 99.9 % of them were at most this long.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Latency {
    /// Reads the counts of a histogram, whose longest duration was `max_ns`. `None` if nothing was recorded.
    pub fn from_counts(counts: &[u64], max_ns: u64) -> Option<Self> {
        let count: u64 = counts.iter().sum();
        if count == 0 {
            return None;
        }
        let at = |per_mille: u64| {
            let rank = (count * per_mille).div_ceil(1000).max(1);
            let mut below = 0;
            let bucket = counts.iter().position(|n| {
                below += n;
                below >= rank
            });
            bucket.map_or(max_ns, highest_in).min(max_ns)
        };
        Some(Self { count, p50_ns: at(500), p90_ns: at(900), p99_ns: at(990), p999_ns: at(999), max_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_hold_what_they_say() {
        let mut last = 0;
        for ns in (0..100_000).chain((17..40).flat_map(|p| [(1 << p) - 1, 1 << p, (1 << p) + 1])) {
            let bucket = bucket_of(ns);
            assert!(bucket >= last && bucket < BUCKETS, "{ns}");
            assert!(highest_in(bucket) >= ns && highest_in(bucket) - ns <= ns / 32, "{ns}");
            last = bucket;
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_of((1 << 40) - 1), BUCKETS - 1);
    }

    #[test]
    fn percentiles_of_a_known_set() {
        let mut counts = vec![0; BUCKETS];
        for ns in 1..=1000 {
            counts[bucket_of(ns)] += 1;
        }
        let latency = Latency::from_counts(&counts, 1000).unwrap();
        for (got, exact) in
            [(latency.p50_ns, 500), (latency.p90_ns, 900), (latency.p99_ns, 990), (latency.p999_ns, 999)]
        {
            assert!(got >= exact && got <= exact + exact / 32 + 1, "{got} for {exact}");
        }
        assert_eq!((latency.count, latency.max_ns), (1000, 1000));
        assert_eq!(Latency::from_counts(&vec![0; BUCKETS], 0), None);
    }
}
