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
}

/// How often a limit was met.
#[derive(Serialize)]
struct EventFigures {
    low_events: u64,
    high_events: u64,
    high_waits: u64,
    high_stuck: u64,
    max_events: u64,
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
            limits: LimitFigures {
                max_bytes: limit(stats.limits.max),
                high_bytes: limit(stats.limits.high),
                low_bytes: stats.limits.low,
                min_bytes: stats.limits.min,
            },
            events: EventFigures {
                low_events: stats.low,
                high_events: stats.high,
                high_waits: stats.high_waits,
                high_stuck: stats.high_stuck,
                max_events: stats.max,
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
        match group.limits.max_bytes.map(Bytes) {
            Some(max) => line(
                f,
                title,
                format_args!(
                    "{name}: peak {peak} of {max}, {usage} at the end; {freed} reclaimed, {faults} faults, \
                     {major} major"
                ),
            )?,
            None => line(
                f,
                title,
                format_args!(
                    "{name}: peak {peak}, {usage} at the end; {freed} reclaimed, {faults} faults, \
                     {major} major"
                ),
            )?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom::Limits;
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
        };
        let cache = GroupFigures::of("cache", &stats);
        stats.limits.max = u64::MAX;
        let groups = [cache, GroupFigures::of("cache.index", &stats)];
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
             1.0 MiB reclaimed, 7 faults, 8 major\n"
        );
        assert_eq!(serde_json::to_string(&Shown(&[])).unwrap(), "{}");
    }
}
