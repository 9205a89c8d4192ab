//! What others have published of these workloads, on other machines: printed beside what was measured here.
//! The direction and the size of a change are what can be compared.

use std::fmt::{Display, Write};

use serde_json::{Value, json};

use crate::locks::DECADES;
use crate::record::Unit;
use crate::report::align;
use crate::verdict::{Spread, ratio, ratio_cell};

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
    window: Window,
    /// Why there may be no figure of ours, if so.
    missing: Option<&'static str>,
}

/// Over how many seconds something was counted, or added up, that grows with the time.
#[derive(Debug, Clone, Copy)]
enum Window {
    /// It is no such figure, or that was not published.
    None,
    /// Ours is of a whole run.
    OfRun(f64),
    /// Ours is per second.
    PerSecond(f64),
}

impl Window {
    fn seconds(self) -> Option<f64> {
        match self {
            Self::None => None,
            Self::OfRun(seconds) | Self::PerSecond(seconds) => Some(seconds),
        }
    }

    /// What a figure of ours is multiplied with, whose runs are so long, so that it is of this window.
    fn scale(self, run_seconds: f64) -> f64 {
        match self {
            Self::OfRun(seconds) if run_seconds > 0.0 => seconds / run_seconds,
            Self::PerSecond(seconds) => seconds,
            Self::None | Self::OfRun(_) => 1.0,
        }
    }
}

impl Published {
    /// The figure is of so many seconds.
    const fn within(self, window: Window) -> Self {
        Self { window, ..self }
    }

    /// There may be no figure of ours.
    const fn missing(self, reason: &'static str) -> Self {
        Self { missing: Some(reason), ..self }
    }
}

const fn row(
    workload: &'static str,
    key: &'static str,
    metric: &'static str,
    unit: Unit,
    before: f64,
    after: f64,
) -> Published {
    Published {
        workload,
        metric,
        unit,
        key,
        change: Change::Figures { before, after },
        window: Window::None,
        missing: None,
    }
}

const fn percent(
    workload: &'static str,
    key: &'static str,
    metric: &'static str,
    unit: Unit,
    percent: f64,
) -> Published {
    Published {
        workload,
        metric,
        unit,
        key,
        change: Change::Percent(percent),
        window: Window::None,
        missing: None,
    }
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

/// How long a published run of io-retry was.
const IO_RETRY_RUN: Window = Window::OfRun(600.0);
/// The same of usemem.
const USEMEM_RUN: Window = Window::OfRun(30.0);

/// Waits for the LRU lock at one kind of call site.
const fn lru_wait(key: &'static str, metric: &'static str, before: f64, after: f64) -> Published {
    row("usemem", key, metric, Unit::Nanoseconds, before, after)
        .within(USEMEM_RUN)
        .missing("told of managers only")
}

/// Figures from the Linux mailing lists, before and after an improvement. The keys that begin with `layout_`
/// are for the statistics of the layout lock, by reading and writing.
const PUBLISHED: &[Published] = &[
    row("io-retry", "rounds_per_second", "rounds/s, first case", Unit::PerSecond, 37.85, 90.71),
    row("io-retry", "rounds_per_second", "rounds/s, second case", Unit::PerSecond, 39.22, 59.91),
    row("io-retry", "rounds", "rounds, first case", Unit::Count, 22_711.0, 54_428.0).within(IO_RETRY_RUN),
    row("io-retry", "rounds", "rounds, second case", Unit::Count, 23_530.0, 35_949.0).within(IO_RETRY_RUN),
    row("io-retry", "retry_mmap_drop", "retries after I/O, first case", Unit::Count, 970_078.0, 1_204_124.0)
        .within(IO_RETRY_RUN),
    row("io-retry", "retry_mmap_drop", "retries after I/O, second case", Unit::Count, 972_043.0, 327_023.0)
        .within(IO_RETRY_RUN),
    row("io-retry", "retry_io_miss", "of them missed, first case", Unit::Count, 436_956.0, 20_398.0)
        .within(IO_RETRY_RUN),
    row("io-retry", "retry_io_miss", "of them missed, second case", Unit::Count, 437_077.0, 99.0)
        .within(IO_RETRY_RUN),
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
    row("usemem", "lru_wait_ns", "waits for the LRU lock", Unit::Nanoseconds, 4.23e9, 1.66e9)
        .within(USEMEM_RUN),
    lru_wait("lru_wait_shrink_cost_ns", "  cost recorded when a list is shrunk", 722.84e6, 0.0),
    lru_wait("lru_wait_refault_cost_ns", "  cost recorded at a refault", 385.26e6, 0.0),
    lru_wait("lru_wait_scan_start_ns", "  snapshot at the start of a scan", 689.43e6, 26.95e6),
    lru_wait("lru_wait_active_list_ns", "  active list", 208.34e6, 15.97e6),
    lru_wait("lru_wait_drain_ns", "  draining of batches", 1.96e9, 0.917_71e9),
    row(
        "swap-in",
        "pageout_rounds_per_second",
        "rounds of MADV_PAGEOUT",
        Unit::Count,
        1_324_847.0,
        1_330_550.0,
    )
    .within(Window::PerSecond(30.0)),
    row("swap-in", "reader_passes_per_second", "reader passes", Unit::Count, 874.0, 1_017.0)
        .within(Window::PerSecond(30.0)),
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
/// engines, before and after, with runs of so many seconds. Empty if nothing was published.
pub fn table<E: Display>(
    workload: &str,
    run_seconds: f64,
    pairs: &[(E, E)],
    figure: impl Fn(&E, &str) -> Option<Spread>,
) -> String {
    let header = ["Metric", "", "Before", "After", "Change", "After/before"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let mut push = |metric: &str, whose: String, [before, after]: [Option<String>; 2], change, ratio| {
        let cell = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let change = change_cell(change);
        rows.push(vec![metric.to_owned(), whose, cell(before), cell(after), change, ratio]);
    };
    let mut is_scaled = false;
    for published in of(workload) {
        let Published { key, unit, window, .. } = published;
        let (before, after, change) = published.figures();
        let whose = match window.seconds() {
            Some(seconds) => format!("published, {seconds} s"),
            None => "published".into(),
        };
        let dash = || "-".to_owned();
        let ratio = before.zip(after).and_then(|(before, after)| ratio(after, before));
        let ratio = ratio.map_or_else(dash, |ratio| format!("{ratio:.2}"));
        push(published.metric, whose, [before, after].map(|value| Some(unit.show(value?))), change, ratio);
        let scale = window.scale(run_seconds);
        let mut is_there = false;
        for (first, second) in pairs {
            let figures = [first, second].map(|engine| Some(figure(engine, key)?.times(scale)));
            if figures.iter().all(Option::is_none) {
                continue;
            }
            is_there = true;
            is_scaled |= scale != 1.0;
            let changed = figures[0].zip(figures[1]);
            let changed = changed.and_then(|(before, after)| self::change(before.median, after.median));
            let ratio = ratio_cell(key, figures[1], figures[0]);
            let shown = figures.map(|spread| Some(spread?.show(|value| unit.show(value))));
            push("", format!("{first} -> {second}"), shown, changed, ratio);
        }
        if let Some(reason) = published.missing.filter(|_| !is_there) {
            push("", reason.into(), [None, None], None, dash());
        }
    }
    if rows.len() == 1 {
        return String::new();
    }
    let mut text = String::from("\nBeside what was published, on other machines:\n");
    align(&rows, &mut text);
    if is_scaled {
        let _ = writeln!(
            text,
            "Ours is scaled to the published seconds where those are given: runs here are of {run_seconds} s."
        );
    }
    text
}

fn change_cell(percent: Option<f64>) -> String {
    percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:+.1} %"))
}

impl Published {
    /// Before, after, and the change in percent.
    fn figures(&self) -> (Option<f64>, Option<f64>, Option<f64>) {
        match self.change {
            Change::Figures { before, after } => (Some(before), Some(after), change(before, after)),
            Change::Percent(percent) => (None, None, Some(percent)),
        }
    }
}

/// The same as a list of objects.
pub fn json(workload: &str, run_seconds: f64) -> Value {
    let one = |published: &Published| {
        let (before, after, percent) = published.figures();
        json!({
            "metric": published.metric.trim(),
            "key": published.key,
            "before": before,
            "after": after,
            "change_percent": percent,
            "window_seconds": published.window.seconds(),
            "ours_times": published.window.scale(run_seconds),
            "missing": published.missing,
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

    /// The cells of each line that have something in them.
    fn cells(table: &str) -> Vec<Vec<String>> {
        let of = |line: &str| {
            line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
        };
        table.lines().map(of).collect()
    }

    fn one(value: f64) -> Option<Spread> {
        Spread::of(vec![value])
    }

    #[test]
    fn what_was_published_stands_above_what_was_measured() {
        let figure = |engine: &&str, key: &str| match (*engine, key) {
            ("kernel", "pass_ns") => one(200e6),
            ("elbowroom", "pass_ns") => Spread::of(vec![40e6, 50e6, 60e6]),
            _ => None,
        };
        let cells = cells(&table("shared-dirty", 10.0, &[("kernel", "elbowroom")], figure));
        assert_eq!(cells[2], ["Metric", "Before", "After", "Change", "After/before"]);
        assert_eq!(cells[3], ["whole pass", "published", "651.0 ms", "569.4 ms", "-12.5 %", "0.87"]);
        let ours = "50.0 (40.0 - 60.0) ms";
        assert_eq!(cells[4], ["kernel -> elbowroom", "200.0 ms", ours, "-75.0 %", "0.25"]);
        assert_eq!(cells[5], ["faults per page", "published", "2.00", "1.00", "-50.0 %", "0.50"]);
        // Nobody has measured it here, and nothing is scaled.
        assert_eq!(cells.len(), 6);
        assert_eq!(json("shared-dirty", 10.0)[0]["after"], json!(569_396_400.0));
    }

    #[test]
    fn ours_is_scaled_to_the_seconds_that_were_published() {
        let figure = |engine: &&str, key: &str| match (*engine, key) {
            ("kernel", "rounds") => one(100.0),
            ("elbowroom", "rounds") => one(150.0),
            ("elbowroom", "rounds_per_second") => one(15.0),
            _ => None,
        };
        let text = table("io-retry", 10.0, &[("kernel", "elbowroom")], figure);
        let scaled: Vec<_> =
            cells(&text).into_iter().filter(|row| row.contains(&"6000".to_owned())).collect();
        // In both cases, 600 s; rates stay.
        assert_eq!(scaled, vec![vec!["kernel -> elbowroom", "6000", "9000", "+50.0 %", "1.50"]; 2]);
        assert!(text.contains("15.00") && text.contains("published, 600 s"), "{text}");
        assert!(text.contains("runs here are of 10 s"), "{text}");
        let json = json("io-retry", 10.0);
        let rounds = json.as_array().unwrap().iter().find(|row| row["key"] == "rounds").unwrap();
        assert_eq!((&rounds["ours_times"], &rounds["window_seconds"]), (&json!(60.0), &json!(600.0)));

        let figure = |_: &&str, key: &str| (key == "reader_passes_per_second").then(|| one(10.0)).flatten();
        let text = table("swap-in", 5.0, &[("kernel", "soft")], figure);
        let passes = cells(&text)
            .into_iter()
            .find(|row| row.first().is_some_and(|cell| cell == "kernel -> soft"))
            .unwrap();
        assert_eq!(passes[1..3], ["300", "300"], "{text}");
        assert!(text.contains("1324847") && text.contains("1330550"), "{text}");
        assert!(text.contains("874") && text.contains("1017"), "{text}");
    }

    #[test]
    fn rows_of_what_is_not_measured_say_so() {
        let nothing = |_: &&str, _: &str| None;
        let text = table("usemem", 10.0, &[("kernel", "soft")], nothing);
        assert_eq!(text.matches("told of managers only").count(), 5, "{text}");
        assert!(text.contains("722.8 ms") && text.contains("1960.0 ms"), "{text}");
        // As soon as there are figures, they are shown instead.
        let text = table("usemem", 10.0, &[("kernel", "soft")], |_, _| one(1e6));
        assert!(!text.contains("told of managers") && text.contains("3000.0 us"), "{text}");
        assert!(json("usemem", 10.0)[4]["missing"].as_str().unwrap().contains("managers"));
    }

    #[test]
    fn where_nothing_was_published_nothing_is_printed() {
        assert_eq!(table::<&str>("scan", 1.0, &[], |_, _| None), "");
        assert_eq!(json("scan", 1.0), json!([]));
        assert!(table::<&str>("file-map-churn", 1.0, &[], |_, _| None).contains("+12.0 %"));
    }
}
