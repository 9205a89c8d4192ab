//! Records of several engines: medians, ratios, the table and the JSON object.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

use crate::compared::{Compared, Line};
use crate::engine::{self, Engine, Kind};
use crate::load::{self, Load};
use crate::origin;
use crate::procfs;
use crate::published;
pub use crate::record::Unit;

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
    runs: Vec<(Engine, usize, Record, Option<Load>)>,
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
    pub fn push(&mut self, engine: Engine, run: usize, record: Record, load: Option<Load>) {
        self.runs.push((engine, run, record, load));
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

    /// All figures of all engines.
    fn compared(&self) -> Compared<'_> {
        let line = |row: &Row| {
            let values = |engine: &Engine| {
                let runs = self.runs.iter().filter(|(of, ..)| of == engine);
                runs.filter_map(|(_, run, record, _)| Some((*run, *record.get(row.key)?))).collect()
            };
            let runs = self.engines.iter().map(values).collect();
            Line { key: row.key, label: row.label, unit: row.unit, runs }
        };
        Compared::new(&self.engines, self.rows.iter().map(line).collect())
    }

    /// How long a run is.
    fn seconds(&self) -> f64 {
        self.parameters["seconds"].as_f64().unwrap_or(0.0)
    }

    /// The pairs of `ratios`: each engine with soft, or else with the last.
    fn comparisons(&self) -> Vec<(Engine, Engine)> {
        let soft = self.engines.iter().find(|engine| **engine == Engine::whole(Kind::Soft));
        let Some(base) = soft.or(self.engines.last()).copied() else { return Vec::new() };
        self.engines.iter().filter(|engine| **engine != base).map(|engine| (*engine, base)).collect()
    }

    /// The table, with the machine above it.
    ///
    /// # Errors
    /// If the machine cannot be described.
    pub fn table(&self) -> Result<String> {
        let compared = self.compared();
        let mut text = format!("{}\n{}\n\n", self.description, super::machine_line(&procfs::machine()?));
        text.push_str(&compared.table());
        let pairs = engine::before_and_after(&self.engines);
        text.push_str(&published::table(self.workload, self.seconds(), &pairs, |engine, key| {
            compared.spread(*engine, key)
        }));
        let loads: Vec<Load> = self.runs.iter().filter_map(|(.., load)| *load).collect();
        text.extend(load::warning(&loads).map(|warning| format!("WARNING: {warning}\n")));
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
        let run = |one: &(Engine, usize, Record, Option<Load>)| -> Value {
            let (engine, run, figures, load) = one;
            json!({ "engine": engine, "run": run, "figures": figures, "load": load })
        };
        let compared = self.compared();
        let of_pair = |engine, base| -> BTreeMap<&str, Option<f64>> {
            self.rows.iter().map(|row| (row.key, compared.ratio(engine, base, row.key))).collect()
        };
        let ratios: BTreeMap<_, _> = self
            .comparisons()
            .into_iter()
            .map(|(engine, base)| (format!("{engine}/{base}"), of_pair(engine, base)))
            .collect();
        let skipped: Vec<_> = self
            .skipped
            .iter()
            .map(|(engine, reason)| json!({ "engine": engine, "reason": reason }))
            .collect();
        let mut json = json!({
            "workload": self.workload,
            "description": self.description,
            "parameters": self.parameters,
            "machine": procfs::machine()?,
            "engines": self.engines,
            "skipped": skipped,
            "runs": self.runs.iter().map(run).collect::<Vec<_>>(),
            "ratios": ratios,
            "published": published::json(self.workload, self.seconds()),
        });
        compared.note(&mut json);
        origin::note(&mut json);
        Ok(json)
    }
}
