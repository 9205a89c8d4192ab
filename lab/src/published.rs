//! What others have published of these workloads, on other machines: printed beside what was measured here.
//! The direction and the size of a change are what can be compared.

use std::fmt::Display;

use serde_json::{Value, json};

use crate::locks::DECADES;
use crate::record::Unit;
use crate::report::align;

/// What is known of a figure.
#[derive(Debug, Clone, Copy)]
enum Change {
    Figures {
        before: f64,
        after: f64,
    },
    /// In percent, where only that was published.
    Percent(f64),
}

/// A figure that was published.
#[derive(Debug)]
struct Published {
    workload: &'static str,
    metric: &'static str,
    unit: Unit,
    /// The key of our own figure. Where our figures have no such key, only the published one is shown.
    key: &'static str,
    change: Change,
}

const fn row(
    workload: &'static str,
    key: &'static str,
    metric: &'static str,
    unit: Unit,
    before: f64,
    after: f64,
) -> Published {
    Published { workload, metric, unit, key, change: Change::Figures { before, after } }
}

const fn percent(
    workload: &'static str,
    key: &'static str,
    metric: &'static str,
    unit: Unit,
    percent: f64,
) -> Published {
    Published { workload, metric, unit, key, change: Change::Percent(percent) }
}

/// What is to be shown: how much less there is to be of something after than before, in percent.
const GOALS: [(&str, &str, &str, f64); 5] = [
    ("io-retry", "retry_io_miss", "retries that miss", -100.0),
    ("lock-wait", "layout_read_acquisitions", "read acquisitions", -99.0),
    ("lock-wait", "layout_read_wait_ns", "read wait", -99.0),
    ("lock-wait", "layout_write_wait_ns", "write wait", -90.0),
    ("file-map-churn", "file_lock_hold_ns_per_map", "file-mapping lock held per map", -50.0),
];

/// The goals of a workload as a list of objects.
pub fn goals_json(workload: &str) -> Value {
    let of_workload = GOALS.iter().filter(|(of, ..)| *of == workload);
    of_workload
        .map(|(_, key, metric, percent)| json!({ "metric": metric, "key": key, "change_percent": percent }))
        .collect()
}

/// Waits that were published, by how long they were.
#[derive(Debug)]
pub struct PublishedWaits {
    workload: &'static str,
    /// The key of our own.
    key: &'static str,
    metric: &'static str,
    /// As [`crate::locks::DECADE_NAMES`].
    pub before: [f64; DECADES],
    /// The same.
    pub after: [f64; DECADES],
}

/// From the same series as the other figures of lock-wait.
const PUBLISHED_WAITS: [PublishedWaits; 2] = [
    PublishedWaits {
        workload: "lock-wait",
        key: "layout_read_waits",
        metric: "waits for reading",
        before: [9_927.0, 9_179.0, 191.0, 57.0, 328.0, 328.0, 0.0, 0.0],
        after: [4_286.0, 1_327.0, 88.0, 6.0, 9.0, 6.0, 0.0, 0.0],
    },
    PublishedWaits {
        workload: "lock-wait",
        key: "layout_write_waits",
        metric: "waits for writing",
        before: [250.0, 501.0, 52.0, 12.0, 22.0, 16.0, 0.0, 0.0],
        after: [300.0, 552.0, 41.0, 5.0, 4.0, 1.0, 0.0, 0.0],
    },
];

/// What was published of the waits with a key.
pub fn histograms(workload: &str, key: &str) -> impl Iterator<Item = &'static PublishedWaits> {
    PUBLISHED_WAITS.iter().filter(move |waits| waits.workload == workload && waits.key == key)
}

/// All of a workload as a list of objects.
pub fn waits_json(workload: &str) -> Value {
    let of_workload = PUBLISHED_WAITS.iter().filter(|waits| waits.workload == workload);
    let one = |waits: &PublishedWaits| {
        let PublishedWaits { key, metric, before, after, .. } = waits;
        json!({ "metric": metric, "key": key, "before": before, "after": after })
    };
    of_workload.map(one).collect()
}

/// Figures from the Linux mailing lists, before and after an improvement. The keys that begin with `layout_`
/// are for the statistics of the layout lock, by reading and writing.
const PUBLISHED: &[Published] = &[
    row("io-retry", "rounds_per_second", "rounds/s, first case", Unit::PerSecond, 37.85, 90.71),
    row("io-retry", "rounds_per_second", "rounds/s, second case", Unit::PerSecond, 39.22, 59.91),
    row("io-retry", "rounds", "rounds, first case", Unit::Count, 22_711.0, 54_428.0),
    row("io-retry", "rounds", "rounds, second case", Unit::Count, 23_530.0, 35_949.0),
    row("io-retry", "retry_mmap_drop", "retries after I/O, first case", Unit::Count, 970_078.0, 1_204_124.0),
    row("io-retry", "retry_mmap_drop", "retries after I/O, second case", Unit::Count, 972_043.0, 327_023.0),
    row("io-retry", "retry_io_miss", "of them missed, first case", Unit::Count, 436_956.0, 20_398.0),
    row("io-retry", "retry_io_miss", "of them missed, second case", Unit::Count, 437_077.0, 99.0),
    row("io-retry", "retry_io_miss_percent", "retries that miss, first case", Unit::Percent, 45.04, 1.69),
    row("io-retry", "retry_io_miss_percent", "retries that miss, second case", Unit::Percent, 44.96, 0.03),
    row("lock-wait", "layout_read_acquisitions", "read acquisitions", Unit::Count, 20_010.0, 5_719.0),
    row("lock-wait", "layout_read_wait_ns", "read wait", Unit::Nanoseconds, 10_695_877e3, 408_436e3),
    row("lock-wait", "layout_read_wait_average_ns", "read wait, average", Unit::Nanoseconds, 534e3, 71e3),
    row("lock-wait", "layout_write_acquisitions", "write acquisitions", Unit::Count, 838.0, 909.0),
    row("lock-wait", "layout_write_wait_ns", "write wait", Unit::Nanoseconds, 501_293e3, 97_633e3),
    row("lock-wait", "layout_write_wait_average_ns", "write wait, average", Unit::Nanoseconds, 598e3, 107e3),
    percent("thread-storm", "all_ready_ns", "all threads ready", Unit::Nanoseconds, -20.0),
    row("zero-copy-receive", "find_share_percent", "share of find + lock", Unit::Percent, 0.7, 0.4),
    row("zero-copy-receive", "layout_share_percent", "share of the layout lock", Unit::Percent, 0.5, 0.1),
    row("shared-dirty", "pass_ns", "whole pass", Unit::Nanoseconds, 650_980_200.0, 569_396_400.0),
    row("shared-dirty", "faults_per_page", "faults per page", Unit::Ratio, 2.0, 1.0),
    row("usemem", "scanned_per_second", "pages scanned/s", Unit::PerSecond, 172_662.0, 171_817.0),
    row("usemem", "stolen_per_second", "pages stolen/s", Unit::PerSecond, 67_162.0, 66_306.0),
    row("usemem", "refaults_per_second", "refaults/s", Unit::PerSecond, 40_696.0, 39_830.0),
    row("usemem", "lru_wait_ns", "waits for the LRU lock, in 30 s", Unit::Nanoseconds, 4.23e9, 1.66e9),
    percent(
        "file-map-churn",
        "maps_per_second",
        "maps/s (published: UnixBench Execl)",
        Unit::PerSecond,
        12.0,
    ),
];

fn of(workload: &str) -> impl Iterator<Item = &'static Published> {
    PUBLISHED.iter().filter(move |published| published.workload == workload)
}

/// The table of what was published, with what was measured below each row, if it was: for each pair of
/// engines, before and after. Empty if nothing was published.
pub fn table<E: Display>(
    workload: &str,
    pairs: &[(E, E)],
    figure: impl Fn(&E, &str) -> Option<f64>,
) -> String {
    let mut rows = vec![["Metric", "", "Before", "After", "Change"].map(str::to_owned).to_vec()];
    let mut push =
        |metric: &str, whose: String, unit: Unit, before: Option<f64>, after: Option<f64>, change| {
            let show = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| unit.show(value));
            let change: Option<f64> = change;
            let change = change.map_or_else(|| "-".to_owned(), |percent| format!("{percent:+.1} %"));
            rows.push(vec![metric.to_owned(), whose, show(before), show(after), change]);
        };
    for published in of(workload) {
        let (before, after, change) = match published.change {
            Change::Figures { before, after } => (Some(before), Some(after), change(before, after)),
            Change::Percent(percent) => (None, None, Some(percent)),
        };
        push(published.metric, "published".into(), published.unit, before, after, change);
        for (first, second) in pairs {
            let (before, after) = (figure(first, published.key), figure(second, published.key));
            if before.is_none() && after.is_none() {
                continue;
            }
            let changed = before.zip(after).and_then(|(before, after)| self::change(before, after));
            push("", format!("{first} -> {second}"), published.unit, before, after, changed);
        }
    }
    if rows.len() == 1 {
        return String::new();
    }
    let mut text = String::from("\nBeside what was published, on other machines:\n");
    align(&rows, &mut text);
    text
}

/// The same as a list of objects.
pub fn json(workload: &str) -> Value {
    let one = |published: &Published| {
        let (before, after, percent) = match published.change {
            Change::Figures { before, after } => (Some(before), Some(after), change(before, after)),
            Change::Percent(percent) => (None, None, Some(percent)),
        };
        json!({
            "metric": published.metric,
            "key": published.key,
            "before": before,
            "after": after,
            "change_percent": percent,
        })
    };
    of(workload).map(one).collect()
}

fn change(before: f64, after: f64) -> Option<f64> {
    (before != 0.0).then(|| (after / before - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_published_stands_above_what_was_measured() {
        let figure = |engine: &&str, key: &str| match (*engine, key) {
            ("kernel", "pass_ns") => Some(200e6),
            ("elbowroom", "pass_ns") => Some(50e6),
            _ => None,
        };
        let table = table("shared-dirty", &[("kernel", "elbowroom")], figure);
        let cells: Vec<Vec<&str>> = table.lines().map(|line| line.split("  ").collect()).collect();
        let line = |number: usize| {
            cells[number].iter().map(|cell| cell.trim()).filter(|cell| !cell.is_empty()).collect::<Vec<_>>()
        };
        assert_eq!(line(2), ["Metric", "Before", "After", "Change"]);
        assert_eq!(line(3), ["whole pass", "published", "651.0 ms", "569.4 ms", "-12.5 %"]);
        assert_eq!(line(4), ["kernel -> elbowroom", "200.0 ms", "50.0 ms", "-75.0 %"]);
        assert_eq!(line(5), ["faults per page", "published", "2.00", "1.00", "-50.0 %"]);
        // Nobody has measured it here.
        assert_eq!(cells.len(), 6);
        assert_eq!(json("shared-dirty")[0]["after"], json!(569_396_400.0));
    }

    #[test]
    fn where_nothing_was_published_nothing_is_printed() {
        assert_eq!(table::<&str>("scan", &[], |_, _| None), "");
        assert_eq!(json("scan"), json!([]));
        assert!(table::<&str>("file-map-churn", &[], |_, _| None).contains("+12.0 %"));
    }
}
