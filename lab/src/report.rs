//! Medians and ratios of records; the table and the JSON object.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

use crate::chunked::Chunked;
use crate::cli::{Workload, option_name};
use crate::compared::{Compared, Line};
use crate::device::Device;
use crate::engine::{self, Engine, Kind};
use crate::load::{self, Load};
use crate::locks::{DECADE_NAMES, DECADES};
use crate::origin;
use crate::procfs::{self, Machine};
use crate::published;
use crate::record::{Metric, Record, Waits, histograms, metrics};
use crate::routing::Model;
use crate::size::Size;
use crate::verdict::Spread;

/// An engine that this machine cannot run.
#[derive(Debug, Clone, Serialize)]
pub struct Skipped {
    pub engine: Engine,
    pub reason: String,
}

/// All that is known at the end of a session.
pub struct Report {
    workload: &'static str,
    parameters: Value,
    description: String,
    machine: Machine,
    device: Option<(String, Option<Size>)>,
    kernel_readahead: Option<Size>,
    engines: Vec<Engine>,
    skipped: Vec<Skipped>,
    runs: Vec<Record>,
}

impl Report {
    /// A report without records.
    pub fn new(
        workload: &Workload,
        engines: &[Engine],
        skipped: Vec<Skipped>,
        device: Option<&Device>,
    ) -> Result<Self> {
        let mut parameters = serde_json::to_value(workload)?;
        // These may be defaults that the other options give.
        parameters["file_bytes"] = workload.file_size().bytes().into();
        parameters["memory_bytes"] = workload.memory().bytes().into();
        Ok(Self {
            workload: workload.name(),
            parameters,
            description: describe(workload),
            machine: procfs::machine()?,
            device: device.map(|device| (device.name().to_owned(), device.readahead().ok())),
            kernel_readahead: workload.common().kernel_readahead,
            engines: engines.to_vec(),
            skipped,
            runs: Vec::new(),
        })
    }

    /// Adds a record.
    pub fn push(&mut self, record: Record) {
        let run = record.run;
        self.runs.push(record);
        // What the device gave in this turn may have been measured before or after the others.
        let rate = self.runs_numbered(run).find_map(|chunked| chunked.best_rate());
        for chunked in self.runs_numbered(run) {
            chunked.device_bytes_per_second = rate;
        }
    }

    /// What belongs to chunks of the runs with a number.
    fn runs_numbered(&mut self, run: usize) -> impl Iterator<Item = &mut Chunked> {
        let records = self.runs.iter_mut().filter(move |record| record.run == run);
        records.filter_map(|record| record.chunked.as_mut())
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    fn metrics(&self) -> impl Iterator<Item = &'static Metric> {
        metrics(self.workload)
    }

    /// One line about one run.
    pub fn line(&self, record: &Record) -> String {
        let shown = |key: &str| {
            let metric = self.metrics().find(|metric| metric.key == key)?;
            Some(format!("{} {}", metric.label, metric.unit.show((metric.of)(record)?)))
        };
        let first = self.metrics().next().map_or("", |metric| metric.key);
        let cyclic = "cyclic_gigabytes_per_second";
        let held = "file_lock_hold_ns_per_map";
        let mut keys = vec![first, cyclic, held, "cpu_ns_per_page", "bystander_p99_ns", "peak_rss_bytes"];
        // Where it is the first one itself.
        keys.dedup();
        let mut line = keys.into_iter().filter_map(shown).collect::<Vec<_>>().join(", ");
        if record.killed_at_bound {
            line.push_str(", killed at the bound");
        }
        line
    }

    fn runs_of(&self, engine: Engine, in_detail: bool) -> impl Iterator<Item = &Record> {
        self.runs.iter().filter(move |record| record.engine == engine && record.in_detail == in_detail)
    }

    /// Of each decade the median.
    fn median_waits(&self, engine: Engine, waits: &Waits) -> Option<[f64; DECADES]> {
        let all: Vec<_> = self.runs_of(engine, false).filter_map(|record| waits.of(record)).collect();
        let mut medians = [0.0; DECADES];
        for (decade, middle) in medians.iter_mut().enumerate() {
            *middle = median(all.iter().map(|waits| waits[decade]).collect())?;
        }
        Some(medians)
    }

    /// All figures of all engines.
    fn compared(&self) -> Compared<'_> {
        let line = |metric: &'static Metric| {
            let values = |engine: &Engine| {
                let runs = self.runs_of(*engine, metric.in_detail);
                runs.filter_map(|record| Some((record.run, (metric.of)(record)?))).collect()
            };
            let runs = self.engines.iter().map(values).collect();
            Line { key: metric.key, label: metric.label, unit: metric.unit, runs }
        };
        Compared::new(&self.engines, self.metrics().map(line).collect())
    }

    /// The pairs of `ratios`: Elbowroom, or else the last engine, with each of the others.
    fn comparisons(&self) -> Vec<(Engine, Engine)> {
        let elbowroom = self.engines.iter().find(|engine| **engine == Engine::whole(Kind::Elbowroom));
        let Some(subject) = elbowroom.or(self.engines.last()).copied() else { return Vec::new() };
        self.engines.iter().filter(|base| **base != subject).map(|base| (subject, *base)).collect()
    }

    /// The table, with the machine above it and what needs to be known to read it below.
    pub fn table(&self) -> String {
        let compared = self.compared();
        let mut text = self.heading() + &compared.table();
        text.push_str(&self.published(&compared));
        text.push_str(&self.histograms());
        text.push_str(self.notes().as_str());
        text
    }

    /// What was published, with our own figures of each pair of engines.
    fn published(&self, compared: &Compared<'_>) -> String {
        let pairs = engine::before_and_after(&self.engines);
        published::table(self.workload, self.seconds(), &pairs, |engine, key| compared.spread(*engine, key))
    }

    /// How long a run is.
    fn seconds(&self) -> f64 {
        self.parameters["seconds"].as_f64().unwrap_or(0.0)
    }

    /// Waits by how long they were, of each engine below what was published. Empty if there are none.
    fn histograms(&self) -> String {
        let mut text = String::new();
        for waits in histograms(self.workload) {
            let mut rows = vec![vec![waits.label.to_owned()]];
            rows[0].extend(DECADE_NAMES.map(str::to_owned));
            let mut push = |name: String, counts: [f64; DECADES]| {
                rows.push([name].into_iter().chain(counts.map(|count| format!("{count:.0}"))).collect());
            };
            for published in published::histograms(self.workload, waits.key) {
                push("published, before".into(), published.before);
                push("published, after".into(), published.after);
            }
            for engine in &self.engines {
                if let Some(counts) = self.median_waits(*engine, waits) {
                    push(engine.to_string(), counts);
                }
            }
            text.push('\n');
            align(&rows, &mut text);
        }
        text
    }

    fn heading(&self) -> String {
        let readahead = match (&self.device, self.kernel_readahead) {
            (Some((name, Some(own))), Some(set)) => {
                format!("{name}, readahead {own}, set to {set} for the kernel's runs")
            }
            (Some((name, Some(own))), None) => format!("{name}, readahead {own} as the machine has it"),
            (Some((name, None)), _) => format!("{name}, readahead unknown"),
            (None, _) => "unknown, so its reads are not counted".into(),
        };
        let Machine { kernel, cpus, memory_bytes, .. } = &self.machine;
        let runs = self.runs.iter().map(|record| record.run).max().unwrap_or(0);
        format!(
            "{}; {runs} runs\nmachine: {kernel}, {cpus} CPUs, {} MiB; device: {readahead}\n\n",
            self.description,
            memory_bytes >> 20
        )
    }

    fn notes(&self) -> String {
        let mut notes = String::from("\n");
        if self.workload == "io-retry" {
            notes.push_str(
                "A round reads every page of a file; rounds that were not finished count by their pages.\n",
            );
        }
        if self.runs.iter().any(|record| record.chunked.is_some()) {
            notes.push_str(
                "\"of device\" is of what the engine device gave in the same turn at its best depth. \
                 \"what LRU misses\" is what a cache of whole chunks with this budget would have read for \
                 the same accesses.\n",
            );
        }
        notes.push_str(
            "Every page that was read was verified, and files that were stored to were read afterwards.\n\
             CPU of the worker is all that it used, from start to end. CPU of the machine includes kernel \
             threads and everybody else; the lab itself is left out.\n\
             \"of pairs\" is the median of the ratios run by run.\n",
        );
        if self.runs.iter().any(Record::seems_unmanaged) {
            notes.push_str(
                "WARNING: under elbowroom the worker's files were mapped by the kernel, without a limit. \
                 This is no comparison; are they smaller than the smallest mapping that is managed?\n",
            );
        }
        let loads: Vec<Load> = self.runs.iter().filter_map(|record| record.load).collect();
        notes.extend(load::warning(&loads).map(|text| format!("WARNING: {text}\n")));
        for Skipped { engine, reason } in &self.skipped {
            let _ = writeln!(notes, "{engine} was left out: {reason}");
        }
        notes
    }

    /// The same as an object, with all runs.
    pub fn json(&self) -> Result<Value> {
        let compared = self.compared();
        let mut ratios = BTreeMap::new();
        for (engine, base) in self.comparisons() {
            let of_key = |key: &str| {
                let of_medians = compared.ratio(engine, base, key);
                let of_pairs = compared.median_of_pairs(engine, base, key);
                json!({ "of_medians": of_medians, "median_of_pairs": of_pairs })
            };
            let of_pair: BTreeMap<_, _> = self.metrics().map(|m| (m.key, of_key(m.key))).collect();
            ratios.insert(format!("{engine}/{base}"), of_pair);
        }
        let runs: serde_json::Result<Vec<Value>> =
            self.runs.iter().map(|run| run.to_json(self.workload)).collect();
        let of_device = |device: &(String, Option<Size>)| {
            let (name, readahead) = device;
            json!({ "name": name, "readahead_bytes": readahead })
        };
        let device = self.device.as_ref().map(of_device);
        let mut waits = BTreeMap::new();
        for engine in &self.engines {
            let of_engine: BTreeMap<_, _> =
                histograms(self.workload).iter().map(|w| (w.key, self.median_waits(*engine, w))).collect();
            if !of_engine.is_empty() {
                waits.insert(engine.to_string(), of_engine);
            }
        }
        let mut json = json!({
            "workload": self.workload,
            "description": self.description,
            "parameters": self.parameters,
            "machine": self.machine,
            "device": device,
            "kernel_readahead_bytes": self.kernel_readahead,
            "engines": self.engines,
            "skipped": self.skipped,
            "runs": runs?,
            "ratios": ratios,
            "waits": waits,
            "published": published::json(self.workload, self.seconds()),
            "published_waits": published::waits_json(self.workload),
            "goals": published::goals_json(self.workload),
        });
        compared.note(&mut json);
        origin::note(&mut json);
        Ok(json)
    }
}

/// What is run, in one line.
fn describe(workload: &Workload) -> String {
    let how = match workload {
        Workload::IoRetry(args) => format!(", pattern {}", option_name(args.pattern)),
        Workload::RandomRead(args) => format!(", advice {}", option_name(args.advice)),
        Workload::FileMapChurn(args) => format!(", {} mappings of {}", args.mappings, args.mapping_size),
        Workload::Chunks(args) => {
            let how = if args.together { "together" } else { "each its own" };
            format!(", chunks of {}, align {}, skew {}, {how}", args.chunk, args.align, args.skew)
        }
        Workload::Segments(args) => {
            let shape = args.shape;
            format!(", {} terms, {} documents, skew {}", shape.terms, shape.hits, shape.skew)
        }
        Workload::Vector(args) => {
            let shape = args.shape;
            let graph = format!("{} links, beam {}, skew {}", shape.links, shape.beam, shape.skew);
            format!(", vectors of {}, {graph}", shape.vector_size)
        }
        Workload::Moe(args) => {
            let Model { layers, experts, used } = args.model;
            let routing = match args.routing {
                Some(_) => "recorded routing".to_owned(),
                None => format!("skew {}, locality {}", args.skew, args.locality),
            };
            let parts = format!("experts of {}, dense {}", args.expert_size, args.dense);
            format!(", {layers} layers, {used} of {experts} {parts}, align {}, {routing}", args.align)
        }
        Workload::LockWait(args) => format!(", pauses of {} ms", args.pause_ms),
        Workload::SharedDirty(args) => {
            let limit = args.dirty_limit;
            let limit = limit.map(|limit| format!(", dirty limit {limit}"));
            format!(", start {}{}", option_name(args.start), limit.unwrap_or_default())
        }
        _ => String::new(),
    };
    format!(
        "{}: {} threads, {} x {}{how}, {} s, budget {}",
        workload.name(),
        workload.threads(),
        workload.files(),
        workload.file_size(),
        workload.repeat().seconds,
        workload.memory()
    )
}

pub(crate) fn median(values: Vec<f64>) -> Option<f64> {
    Spread::of(values).map(|spread| spread.median)
}

/// Writes rows with the first column to the left and the others to the right.
pub(crate) fn align(rows: &[Vec<String>], text: &mut String) {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ =
                if column == 0 { write!(text, "{cell:<width$}") } else { write!(text, "  {cell:>width$}") };
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rates: &[(Kind, usize, u64)], kinds: &[Kind]) -> Report {
        let machine = Machine { kernel: "Linux 1.2".into(), processor: None, cpus: 2, memory_bytes: 1 << 30 };
        let run = |(kind, run, pages): &(Kind, usize, u64)| Record::of_pages(*kind, *run, *pages, 1.0);
        Report {
            workload: "io-retry",
            parameters: json!({}),
            description: "io-retry".into(),
            machine,
            device: None,
            kernel_readahead: None,
            engines: kinds.iter().copied().map(Engine::whole).collect(),
            skipped: Vec::new(),
            runs: rates.iter().map(run).collect(),
        }
    }

    #[test]
    fn ratios_are_of_medians_and_of_pairs() {
        use Kind::{Elbowroom, Kernel};
        let runs = [
            (Kernel, 1, 10),
            (Elbowroom, 1, 40),
            (Kernel, 2, 20),
            (Elbowroom, 2, 100),
            (Kernel, 3, 80),
            (Elbowroom, 3, 90),
        ];
        let report = report(&runs, &[Kernel, Elbowroom]);
        let json = report.json().unwrap();
        assert_eq!(json["medians"]["kernel"]["rounds_per_second"], json!(2.0));
        let ratio = &json["ratios"]["elbowroom/kernel"]["rounds_per_second"];
        assert_eq!((&ratio["of_medians"], &ratio["median_of_pairs"]), (&json!(4.5), &json!(4.0)));
        assert_eq!(json["runs"].as_array().map(Vec::len), Some(6));
        let table = report.table();
        let cells = |start: &str| -> Vec<String> {
            let line = table.lines().find(|line| line.starts_with(start)).unwrap();
            line.split("  ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
        };
        // Runs are further apart (8 times) than the engines are.
        let expected = ["rounds/s", "2.00 (1.00 - 8.00)", "9.00 (4.00 - 10.00)", "4.50 unclear", "4.00"];
        assert_eq!(cells("rounds/s"), expected);
        assert_eq!(cells("CPU per page, worker")[3], "1.00 same");
        assert!(
            cells("WARNING")[0].starts_with("WARNING: rounds/s, elbowroom/kernel: 9.00 (4.00"),
            "{table}"
        );
        // What others have published of this workload is beside it.
        let ours = table.lines().find(|line| line.trim().starts_with("kernel -> elbowroom")).unwrap();
        assert!(ours.contains("2.00 (1.00 - 8.00)") && ours.contains("+350.0 %  4.50 unclear"), "{ours}");
        assert_eq!(json["published"][0]["key"], json!("rounds_per_second"));
    }

    #[test]
    fn rows_without_a_figure_are_left_out_and_nothing_is_divided_by_zero() {
        let table =
            report(&[(Kind::Kernel, 1, 0), (Kind::Elbowroom, 1, 5)], &[Kind::Kernel, Kind::Elbowroom])
                .table();
        assert!(!table.contains("bystander") && !table.contains("inf") && !table.contains("NaN"), "{table}");
        let row = table.lines().find(|line| line.starts_with("CPU per page, worker")).unwrap();
        assert!(row.contains(" - "), "{row}");
    }
}
