//! The figures of memory groups.

use super::text::{Bytes, line};
use elbowroom::{GroupStats, KindStats};
use serde::{Serialize, Serializer};
use std::fmt;

/// What a group, with all groups below it, uses and has counted.
#[derive(Serialize)]
pub struct GroupFigures<'a> {
    #[serde(skip)]
    name: &'a str,
    usage_bytes: u64,
    peak_bytes: u64,
    swap_bytes: u64,
    swap_peak_bytes: u64,
    #[serde(flatten)]
    limits: LimitFigures,
    #[serde(flatten)]
    events: EventFigures,
    pgfault: u64,
    pgmajfault: u64,
    anonymous: KindStats,
    file: KindStats,
}

/// Limits; none: there is no limit.
#[derive(Serialize)]
struct LimitFigures {
    max_bytes: Option<u64>,
    high_bytes: Option<u64>,
    low_bytes: u64,
    min_bytes: u64,
    swap_max_bytes: Option<u64>,
    memory_swap_max_bytes: Option<u64>,
    dirty_max_bytes: Option<u64>,
}

/// How often a limit was met.
#[derive(Serialize)]
struct EventFigures {
    low_events: u64,
    high_events: u64,
    high_waits: u64,
    high_stuck: u64,
    max_events: u64,
    swap_max_events: u64,
    memory_swap_max_events: u64,
    failed_events: u64,
}

impl<'a> GroupFigures<'a> {
    /// Those of the group that is called `name`.
    pub fn of(name: &'a str, stats: &GroupStats) -> Self {
        let limit = |bytes: u64| (bytes != u64::MAX).then_some(bytes);
        Self {
            name,
            usage_bytes: stats.usage_bytes,
            peak_bytes: stats.peak_bytes,
            swap_bytes: stats.swap.bytes,
            swap_peak_bytes: stats.swap.peak_bytes,
            limits: LimitFigures {
                max_bytes: limit(stats.limits.max),
                high_bytes: limit(stats.limits.high),
                low_bytes: stats.limits.low,
                min_bytes: stats.limits.min,
                swap_max_bytes: limit(stats.limits.swap_max),
                memory_swap_max_bytes: limit(stats.limits.memory_swap_max),
                dirty_max_bytes: limit(stats.limits.dirty),
            },
            events: EventFigures {
                low_events: stats.low,
                high_events: stats.high,
                high_waits: stats.high_waits,
                high_stuck: stats.high_stuck,
                max_events: stats.max,
                swap_max_events: stats.swap.max,
                memory_swap_max_events: stats.swap.memory_max,
                failed_events: stats.failed,
            },
            pgfault: stats.pgfault,
            pgmajfault: stats.pgmajfault,
            anonymous: stats.anonymous,
            file: stats.file,
        }
    }
}

/// Serializes as a map with the names of the groups as keys.
pub(super) fn as_map<S: Serializer>(groups: &[GroupFigures<'_>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(groups.iter().map(|group| (group.name, group)))
}

/// A line for each group.
pub(super) fn lines(f: &mut fmt::Formatter<'_>, groups: &[GroupFigures<'_>]) -> fmt::Result {
    for (nth, group) in groups.iter().enumerate() {
        let title = if nth == 0 { "groups" } else { "" };
        let (name, usage, faults, major) =
            (group.name, Bytes(group.usage_bytes), group.pgfault, group.pgmajfault);
        let peak = Bytes(group.peak_bytes);
        let freed = Bytes((group.anonymous.stolen + group.file.stolen) * crate::base::sys::PAGE as u64);
        let of = |bytes: Option<u64>| bytes.map_or(String::new(), |bytes| format!(" of {}", Bytes(bytes)));
        let (max, swap_max) = (of(group.limits.max_bytes), of(group.limits.swap_max_bytes));
        let swap = match Bytes(group.swap_peak_bytes) {
            _ if group.swap_peak_bytes == 0 && swap_max.is_empty() => String::new(),
            peak => format!(", swap {peak}{swap_max}"),
        };
        line(
            f,
            title,
            format_args!(
                "{name}: peak {peak}{max}{swap}, {usage} at the end; {freed} reclaimed, {faults} faults, \
                 {major} major"
            ),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom::{Limits, SwapStats};
    use std::fmt::Display;

    struct Shown<'a>(&'a [GroupFigures<'a>]);

    impl Serialize for Shown<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            as_map(self.0, serializer)
        }
    }

    impl Display for Shown<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            lines(f, self.0)
        }
    }

    #[test]
    fn groups_have_their_figures_by_name() {
        let kind = KindStats { refaults: 1, scanned: 2, stolen: 256 };
        let mut stats = GroupStats {
            usage_bytes: 3 << 20,
            peak_bytes: 4 << 20,
            limits: Limits { max: 4 << 20, ..Limits::default() },
            low: 1,
            high: 2,
            high_waits: 3,
            high_stuck: 4,
            max: 5,
            failed: 6,
            pgfault: 7,
            pgmajfault: 8,
            anonymous: kind,
            file: KindStats::default(),
            swap: SwapStats::default(),
        };
        let cache = GroupFigures::of("cache", &stats);
        stats.limits.max = u64::MAX;
        let index = GroupFigures::of("cache.index", &stats);
        stats.limits.swap_max = 2 << 20;
        let out = GroupFigures::of("out", &stats);
        stats.swap = SwapStats { bytes: 1 << 20, peak_bytes: 2 << 20, max: 9, memory_max: 10 };
        let full = GroupFigures::of("full", &stats);
        (stats.limits.swap_max, stats.limits.memory_swap_max) = (u64::MAX, 6 << 20);
        let groups = [cache, index, out, full, GroupFigures::of("both", &stats)];
        let json = serde_json::to_value(Shown(&groups)).unwrap();
        assert_eq!(
            (&json["cache"]["usage_bytes"], &json["cache"]["max_bytes"]),
            (&(3 << 20).into(), &(4 << 20).into())
        );
        assert!(json["cache.index"]["max_bytes"].is_null() && json["cache"]["high_bytes"].is_null());
        assert_eq!(
            (&json["cache"]["max_events"], &json["cache"]["anonymous"]["stolen"]),
            (&5.into(), &256.into())
        );
        assert_eq!(
            Shown(&groups).to_string(),
            "  groups          cache: peak 4.0 MiB of 4.0 MiB, 3.0 MiB at the end; \
             1.0 MiB reclaimed, 7 faults, \
             8 major\n\
             \x20                 cache.index: peak 4.0 MiB, 3.0 MiB at the end; \
             1.0 MiB reclaimed, 7 faults, 8 major\n\
             \x20                 out: peak 4.0 MiB, swap 0 B of 2.0 MiB, 3.0 MiB at the end; \
             1.0 MiB reclaimed, 7 faults, 8 major\n\
             \x20                 full: peak 4.0 MiB, swap 2.0 MiB of 2.0 MiB, 3.0 MiB at the end; \
             1.0 MiB reclaimed, 7 faults, 8 major\n\
             \x20                 both: peak 4.0 MiB, swap 2.0 MiB, 3.0 MiB at the end; \
             1.0 MiB reclaimed, 7 faults, 8 major\n"
        );
        let (full, both) = (&json["full"], &json["both"]);
        assert_eq!((&full["swap_bytes"], &full["swap_peak_bytes"]), (&(1 << 20).into(), &(2 << 20).into()));
        assert_eq!((&full["swap_max_events"], &full["memory_swap_max_events"]), (&9.into(), &10.into()));
        assert_eq!(
            (&full["swap_max_bytes"], &both["memory_swap_max_bytes"]),
            (&(2 << 20).into(), &(6 << 20).into())
        );
        assert!(both["swap_max_bytes"].is_null() && full["memory_swap_max_bytes"].is_null());
        assert_eq!(serde_json::to_string(&Shown(&[])).unwrap(), "{}");
    }
}
