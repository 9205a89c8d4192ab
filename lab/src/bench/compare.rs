//! Records of several engines: medians, ratios, the table and the JSON object.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

use crate::engine::{self, Engine, Kind};
use crate::origin;
use crate::procfs;
use crate::published;
use crate::report::{align, median, ratio};

/// How a figure is shown.
#[derive(Clone, Copy)]
pub enum Unit {
    /// Nanoseconds, in the unit that fits.
    Time,
    Count,
    Ratio,
    Percent,
    /// In MiB.
    Bytes,
}

impl Unit {
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Time if value < 1e4 => format!("{value:.0} ns"),
            Self::Time if value < 1e7 => format!("{:.1} us", value / 1e3),
            Self::Time => format!("{:.1} ms", value / 1e6),
            Self::Count => format!("{value:.0}"),
            Self::Ratio => format!("{value:.2}"),
            Self::Bytes => format!("{:.1} MiB", value / f64::from(1 << 20)),
            Self::Percent => format!("{value:.2} %"),
        }
    }
}

/// A figure of a record.
pub struct Row {
    pub key: &'static str,
    pub label: &'static str,
    pub unit: Unit,
}

impl Row {
    pub const fn new(key: &'static str, label: &'static str, unit: Unit) -> Self {
        Self { key, label, unit }
    }
}

/// What one run of one engine gave, by key; a key that does not apply is absent.
pub type Record = BTreeMap<&'static str, f64>;

/// All that is known at the end.
pub struct Comparison {
    pub workload: &'static str,
    pub description: String,
    pub parameters: Value,
    pub rows: &'static [Row],
    /// The keys of what a line about one run shows.
    pub highlights: &'static [&'static str],
    pub engines: Vec<Engine>,
    pub skipped: Vec<(Engine, String)>,
    runs: Vec<(Engine, usize, Record)>,
}

impl Comparison {
    /// One without records.
    ///
    /// # Errors
    /// If the parameters cannot be written down.
    pub fn new(
        workload: &'static str,
        description: String,
        parameters: &impl Serialize,
        rows: &'static [Row],
        highlights: &'static [&'static str],
    ) -> Result<Self> {
        let parameters = serde_json::to_value(parameters)?;
        let (engines, skipped, runs) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { workload, description, parameters, rows, highlights, engines, skipped, runs })
    }

    /// Adds a record.
    pub fn push(&mut self, engine: Engine, run: usize, record: Record) {
        self.runs.push((engine, run, record));
    }

    /// Leaves an engine out, with what it has measured so far.
    pub fn leave_out(&mut self, engine: Engine, reason: String) {
        self.engines.retain(|other| *other != engine);
        self.runs.retain(|(other, ..)| *other != engine);
        self.skipped.push((engine, reason));
    }

    /// One line about a record.
    pub fn line(&self, record: &Record) -> String {
        let shown =
            |row: &Row| record.get(row.key).map(|value| format!("{} {}", row.label, row.unit.show(*value)));
        let highlighted = self.rows.iter().filter(|row| self.highlights.contains(&row.key));
        highlighted.filter_map(shown).collect::<Vec<_>>().join(", ")
    }

    /// The median of a figure over the runs of an engine.
    pub fn median(&self, engine: Engine, key: &str) -> Option<f64> {
        let of_engine = self.runs.iter().filter(|(of, ..)| *of == engine);
        median(of_engine.filter_map(|(.., record)| record.get(key).copied()).collect())
    }

    /// Who is compared with whom: soft, or else the last engine, with each of the others.
    fn comparisons(&self) -> Vec<(Engine, Engine)> {
        let soft = self.engines.iter().find(|engine| **engine == Engine::whole(Kind::Soft));
        let Some(base) = soft.or(self.engines.last()).copied() else { return Vec::new() };
        self.engines.iter().filter(|engine| **engine != base).map(|engine| (*engine, base)).collect()
    }

    fn ratio(&self, engine: Engine, base: Engine, key: &str) -> Option<f64> {
        ratio(self.median(engine, key)?, self.median(base, key)?)
    }

    /// The table, with the machine above it.
    ///
    /// # Errors
    /// If the machine cannot be described.
    pub fn table(&self) -> Result<String> {
        let mut header = vec![String::from("median")];
        header.extend(self.engines.iter().map(Engine::to_string));
        header.extend(self.comparisons().iter().map(|(engine, base)| format!("{engine}/{base}")));
        let mut rows = vec![header];
        let dash = || String::from("-");
        for row in self.rows {
            let medians: Vec<_> = self.engines.iter().map(|engine| self.median(*engine, row.key)).collect();
            if medians.iter().all(Option::is_none) {
                continue;
            }
            let mut cells = vec![row.label.to_owned()];
            cells.extend(medians.iter().map(|value| value.map_or_else(dash, |value| row.unit.show(value))));
            for (engine, base) in self.comparisons() {
                let value = self.ratio(engine, base, row.key);
                cells.push(value.map_or_else(dash, |value| format!("{value:.2}")));
            }
            rows.push(cells);
        }
        let mut text = format!("{}\n{}\n\n", self.description, super::machine_line(&procfs::machine()?));
        align(&rows, &mut text);
        text.push_str(&published::table(
            self.workload,
            &engine::before_and_after(&self.engines),
            |engine, key| self.median(*engine, key),
        ));
        for (engine, reason) in &self.skipped {
            let _ = writeln!(text, "{engine} was left out: {reason}");
        }
        Ok(text)
    }

    /// The same as an object, with all runs.
    ///
    /// # Errors
    /// If the machine cannot be described.
    pub fn json(&self) -> Result<Value> {
        let run = |one: &(Engine, usize, Record)| {
            let (engine, run, record) = one;
            json!({ "engine": engine, "run": run, "figures": record })
        };
        let of_rows = |figure: &dyn Fn(&str) -> Option<f64>| -> BTreeMap<&str, Option<f64>> {
            self.rows.iter().map(|row| (row.key, figure(row.key))).collect()
        };
        let medians: BTreeMap<_, _> = self
            .engines
            .iter()
            .map(|engine| (engine.to_string(), of_rows(&|key| self.median(*engine, key))))
            .collect();
        let ratios: BTreeMap<_, _> = self
            .comparisons()
            .into_iter()
            .map(|(engine, base)| (format!("{engine}/{base}"), of_rows(&|key| self.ratio(engine, base, key))))
            .collect();
        let skipped: Vec<_> = self
            .skipped
            .iter()
            .map(|(engine, reason)| json!({ "engine": engine, "reason": reason }))
            .collect();
        let rows: Vec<_> =
            self.rows.iter().map(|row| json!({ "key": row.key, "label": row.label.trim() })).collect();
        let mut json = json!({
            "workload": self.workload,
            "description": self.description,
            "rows": rows,
            "parameters": self.parameters,
            "machine": procfs::machine()?,
            "engines": self.engines,
            "skipped": skipped,
            "runs": self.runs.iter().map(run).collect::<Vec<_>>(),
            "medians": medians,
            "ratios": ratios,
            "published": published::json(self.workload),
        });
        origin::note(&mut json);
        Ok(json)
    }
}
