//! How long faults and pins took, by what became of them.
//!
//! Recording is by thread ([`ThreadHistogram`]): the thread that serves a fault writes to memory that no
//! other thread writes.

use elbowroom_sync::{HistogramSnapshot, ThreadHistogram};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Faults served without I/O.
    Minor,
    /// Faults that waited for I/O.
    Major,
    /// Faults that were not served.
    Unserved,
    /// Pins that found their page missing.
    Pin,
}

/// The latencies of one manager.
#[derive(Default)]
pub struct Latencies([ThreadHistogram; 4]);

impl Latencies {
    /// Records how long a fault or a pin took, in nanoseconds.
    #[inline]
    pub fn record(&self, kind: Kind, ns: u64) {
        self.0[kind as usize].record(ns);
    }

    /// What was recorded so far.
    pub fn snapshot(&self) -> LatencySnapshot {
        let of = |kind: Kind| self.0[kind as usize].snapshot();
        let (minor, major, unserved) = (of(Kind::Minor), of(Kind::Major), of(Kind::Unserved));
        let mut faults = minor.clone();
        faults.merge(&major);
        faults.merge(&unserved);
        LatencySnapshot { minor, major, pin: of(Kind::Pin), faults }
    }
}

/// How long faults and pins took, as histograms: see [`Manager::latencies`](crate::Manager::latencies).
///
/// A fault takes from the moment at which a handler has read it, or at which the thread that has it begins to
/// serve it, until it is served. A pin takes from the moment at which it met a missing page until it has it;
/// one that finds its page is not measured, since reading a clock would take longer than that.
#[derive(Debug, Clone)]
pub struct LatencySnapshot {
    /// Faults served without waiting for I/O.
    pub minor: HistogramSnapshot,
    /// Faults that waited for I/O.
    pub major: HistogramSnapshot,
    /// Pins that found their page missing. Their faults are among the others, too.
    pub pin: HistogramSnapshot,
    /// All faults, those that were not served, too.
    pub faults: HistogramSnapshot,
}

impl LatencySnapshot {
    /// In Prometheus's text format: the histogram `elbowroom_latency_seconds` by the label `kind` (`minor`,
    /// `major`, `pin`).
    pub fn prometheus(&self) -> String {
        const NAME: &str = "elbowroom_latency_seconds";
        let mut text = format!(
            "# HELP {NAME} How long faults took, and pins that found their page missing.\n\
             # TYPE {NAME} histogram\n"
        );
        for (kind, seen) in [("minor", &self.minor), ("major", &self.major), ("pin", &self.pin)] {
            // Writing to a string does not fail.
            let _ = seen.write_prometheus(&mut text, NAME, &format!("kind=\"{kind}\""));
        }
        text
    }
}

/// A histogram in figures, in nanoseconds. Quantiles are at most 1/16 too high; the rest is exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct LatencyFigures {
    /// How many there were.
    pub count: u64,
    /// The mean; 0 without any.
    pub mean_ns: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 90th percentile.
    pub p90_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl From<&HistogramSnapshot> for LatencyFigures {
    fn from(seen: &HistogramSnapshot) -> Self {
        Self {
            count: seen.count(),
            mean_ns: seen.mean_ns(),
            p50_ns: seen.quantile_ns(0.5),
            p90_ns: seen.quantile_ns(0.9),
            p99_ns: seen.quantile_ns(0.99),
            p999_ns: seen.quantile_ns(0.999),
            max_ns: seen.max_ns(),
        }
    }
}

/// The figures of all that is measured, as `--stats` has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct LatencyUse {
    /// Faults served without waiting for I/O.
    pub minor: LatencyFigures,
    /// Faults that waited for I/O.
    pub major: LatencyFigures,
    /// Pins that found their page missing.
    pub pin: LatencyFigures,
}

impl From<&LatencySnapshot> for LatencyUse {
    fn from(all: &LatencySnapshot) -> Self {
        Self { minor: (&all.minor).into(), major: (&all.major).into(), pin: (&all.pin).into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_apart_and_all_faults_are_together() {
        let latencies = Latencies::default();
        (1..=10).for_each(|_| latencies.record(Kind::Minor, 1_000));
        latencies.record(Kind::Major, 1_000_000);
        latencies.record(Kind::Unserved, 5_000_000);
        latencies.record(Kind::Pin, 7_000);
        let all = latencies.snapshot();
        assert_eq!((all.faults.count(), all.faults.max_ns()), (12, 5_000_000));
        let LatencyUse { minor, major, pin } = LatencyUse::from(&all);
        assert_eq!((minor.count, minor.mean_ns, minor.max_ns), (10, 1_000, 1_000));
        assert_eq!((major.count, major.p50_ns, major.p999_ns), (1, 1_000_000, 1_000_000));
        assert_eq!((pin.count, pin.p99_ns), (1, 7_000));
        let text = all.prometheus();
        assert_eq!(text.lines().filter(|line| line.starts_with("# ")).count(), 2);
        for line in ["_count{kind=\"minor\"} 10", "_sum{kind=\"major\"} 0.001", "_count{kind=\"pin\"} 1"] {
            assert!(text.contains(&format!("elbowroom_latency_seconds{line}")), "no {line} in {text}");
        }
    }
}
