//! Lock statistics as text for Prometheus (its exposition format, version 0.0.4).

use super::{DECADES_NS, LockRow, LockSnapshot};
use crate::histogram::seconds;
use std::fmt::{self, Display, Write};

/// A metric of Prometheus, with one value for each row.
struct Family {
    name: &'static str,
    help: &'static str,
    kind: &'static str,
    value: fn(&LockRow) -> String,
}

/// The metrics with one value for each row.
const FAMILIES: [Family; 5] = [
    Family {
        name: "elbowroom_lock_acquisitions_total",
        help: "How often a lock was taken.",
        kind: "counter",
        value: |row| row.acquisitions.to_string(),
    },
    Family {
        name: "elbowroom_lock_wait_max_seconds",
        help: "The longest wait for a lock.",
        kind: "gauge",
        value: |row| seconds(row.max_wait_ns),
    },
    Family {
        name: "elbowroom_lock_holds_measured_total",
        help: "Of how many acquisitions it was measured how long they had the lock.",
        kind: "counter",
        value: |row| row.holds.to_string(),
    },
    Family {
        name: "elbowroom_lock_hold_seconds_total",
        help: "Sum of the hold times that were measured.",
        kind: "counter",
        value: |row| seconds(row.hold_ns),
    },
    Family {
        name: "elbowroom_lock_hold_max_seconds",
        help: "The longest hold time that was measured.",
        kind: "gauge",
        value: |row| seconds(row.max_hold_ns),
    },
];

const WAITS: &str = "elbowroom_lock_wait_seconds";

impl LockSnapshot {
    /// All rows in Prometheus's text format: counters, and the waits as a histogram, in seconds, by the
    /// labels `lock`, `mode` and `caller` (file and line; empty: call sites without room in the table).
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_prometheus(&mut text);
        text
    }

    fn write_prometheus(&self, out: &mut String) -> fmt::Result {
        for Family { name, help, kind, value } in &FAMILIES {
            writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")?;
            for row in self.rows() {
                writeln!(out, "{name}{{{}}} {}", Labels(row), value(row))?;
            }
        }
        writeln!(out, "# HELP {WAITS} Waits for locks.\n# TYPE {WAITS} histogram")?;
        for row in self.rows().iter().filter(|row| row.contended() > 0) {
            let labels = Labels(row);
            let mut sum = 0;
            for (waits, bound) in row.decades.iter().zip(DECADES_NS) {
                sum += waits;
                writeln!(out, "{WAITS}_bucket{{{labels},le=\"{}\"}} {sum}", seconds(bound))?;
            }
            let all = row.contended();
            writeln!(out, "{WAITS}_bucket{{{labels},le=\"+Inf\"}} {all}")?;
            writeln!(out, "{WAITS}_sum{{{labels}}} {}", seconds(row.wait_ns))?;
            writeln!(out, "{WAITS}_count{{{labels}}} {all}")?;
        }
        Ok(())
    }
}

struct Labels<'a>(&'a LockRow);

impl Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LockRow { lock, mode, lru_use, caller, .. } = self.0;
        write!(f, "lock=\"{}\",mode=\"{}\",", lock.name(), mode.name())?;
        if let Some(lru_use) = lru_use {
            write!(f, "use=\"{}\",", lru_use.name())?;
        }
        f.write_str("caller=\"")?;
        if let Some(caller) = caller {
            write_escaped(f, caller.file())?;
            // The column, since two locks may be taken in one line, and each series must have its own name.
            write!(f, ":{}:{}", caller.line(), caller.column())?;
        }
        f.write_str("\"")
    }
}

/// Writes the value of a label, escaped.
fn write_escaped(out: &mut impl Write, value: &str) -> fmt::Result {
    for c in value.chars() {
        match c {
            '\\' | '"' => write!(out, "\\{c}")?,
            '\n' => out.write_str("\\n")?,
            c => out.write_char(c)?,
        }
    }
    Ok(())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Awaited, LockClass, LockStats, Mode};
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn labels_are_written_as_the_format_wants() {
        let mut text = String::new();
        write_escaped(&mut text, "a\\b\"c\nd").unwrap();
        assert_eq!(text, r#"a\\b\"c\nd"#);
    }

    /// Checks what a scraper would: each family is declared once and before its values, each series is there
    /// once, and buckets add up.
    #[test]
    fn all_of_the_text_is_what_a_scraper_reads() {
        let stats = LockStats::new();
        let lock = stats.mutex(LockClass::Cache, ());
        stats.count_in_detail();
        (0..3).for_each(|_| drop(lock.lock()));
        for ns in [500, 1_500, 2_000_000] {
            let wait = stats.begin_wait(Awaited::Folio, Mode::Write);
            std::thread::sleep(std::time::Duration::from_nanos(ns));
            stats.end_wait(wait);
        }
        let all = stats.snapshot();
        let text = all.prometheus();
        let (mut kinds, mut values) = (BTreeMap::new(), BTreeMap::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{line}");
                continue;
            }
            if line.starts_with("# HELP ") {
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap();
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            assert!(
                kinds.contains_key(name)
                    || kinds.get(family.unwrap()).is_some_and(|kind| kind == "histogram")
            );
            assert!(labels.ends_with("\"}") && labels.starts_with("lock=\""), "{line}");
            let value: f64 = value.parse().unwrap();
            assert!(values.insert(series.to_owned(), value).is_none(), "{line} is there twice");
        }
        let folio = |part: &str, more: &str| {
            let with = |(series, _): &(&String, &f64)| {
                series.starts_with(&format!("elbowroom_lock_{part}{{lock=\"folio\",mode=\"write\""))
                    && series.contains(more)
            };
            *values.iter().find(with).unwrap_or_else(|| panic!("no {part} {more} in {text}")).1
        };
        let row = all.rows().iter().find(|row| row.lock == Awaited::Folio).unwrap();
        assert_eq!(folio("wait_seconds_count", "caller="), 3.0);
        assert_eq!(folio("wait_seconds_bucket", "le=\"+Inf\""), 3.0);
        assert_eq!(folio("wait_seconds_sum", ""), row.wait_ns as f64 / 1e9);
        assert_eq!(folio("wait_max_seconds", ""), row.max_wait_ns as f64 / 1e9);
        let mut before = 0.0;
        for (bound, le) in ["0.000001", "0.00001", "0.0001", "0.001", "0.01", "0.1", "1"].iter().enumerate() {
            let sum = folio("wait_seconds_bucket", &format!("le=\"{le}\""));
            assert_eq!(sum - before, row.decades[bound] as f64, "{le}");
            before = sum;
        }
        let cache: BTreeSet<_> = values.keys().filter(|series| series.contains("\"cache\"")).collect();
        assert_eq!(cache.len(), FAMILIES.len(), "{cache:?}");
        let taken = values.iter().find(|(series, _)| {
            series.starts_with("elbowroom_lock_acquisitions_total{lock=\"cache\"") && series.contains(file!())
        });
        assert_eq!(taken.map(|(_, value)| *value), Some(3.0));
    }
}
