//! Figures of several engines: the table with medians, the range of the runs, ratios and what is said of
//! them; and the same as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use crate::engine::{self, Engine};
use crate::record::Unit;
use crate::report::{align, median};
use crate::verdict::{LEGEND, Spread, Verdict, ratio, ratio_cell};

/// How many figures of which nothing can be said are named.
const MAX_NAMED: usize = 4;

/// A figure of all engines.
pub struct Line {
    /// In the JSON object.
    pub key: &'static str,
    /// In the table.
    pub label: &'static str,
    /// How it is shown.
    pub unit: Unit,
    /// Of each engine the runs that have it: the number of the run, and the value.
    pub runs: Vec<Vec<(usize, f64)>>,
}

impl Line {
    fn spread(&self, engine: usize) -> Option<Spread> {
        Spread::of(self.runs[engine].iter().map(|(_, value)| *value).collect())
    }
}

/// Figures of several engines.
pub struct Compared<'a> {
    engines: &'a [Engine],
    lines: Vec<Line>,
}

impl<'a> Compared<'a> {
    /// Of the engines, in the order of their turns, and with a line for each figure.
    pub fn new(engines: &'a [Engine], lines: Vec<Line>) -> Self {
        Self { engines, lines }
    }

    fn index(&self, engine: Engine) -> Option<usize> {
        self.engines.iter().position(|other| *other == engine)
    }

    fn line(&self, key: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.key == key)
    }

    /// The runs of a figure of an engine.
    pub fn spread(&self, engine: Engine, key: &str) -> Option<Spread> {
        self.line(key)?.spread(self.index(engine)?)
    }

    /// The median of a figure over the runs of an engine.
    pub fn median(&self, engine: Engine, key: &str) -> Option<f64> {
        self.spread(engine, key).map(|spread| spread.median)
    }

    /// The ratio of two engines' medians.
    pub fn ratio(&self, engine: Engine, base: Engine, key: &str) -> Option<f64> {
        ratio(self.median(engine, key)?, self.median(base, key)?)
    }

    /// Of each run in which both engines have a figure, the ratio; of these the median.
    pub fn median_of_pairs(&self, engine: Engine, base: Engine, key: &str) -> Option<f64> {
        let line = self.line(key)?;
        let (ours, others) = (&line.runs[self.index(engine)?], &line.runs[self.index(base)?]);
        let other = |run: usize| others.iter().find(|(of, _)| *of == run).map(|(_, value)| *value);
        median(ours.iter().filter_map(|(run, value)| ratio(*value, other(*run)?)).collect())
    }

    /// Each figure's median and range in each engine; ours beside the kernel and beside ours without an
    /// improvement; and what the words mean. A figure that no engine has is left out.
    pub fn table(&self) -> String {
        let pairs = engine::compared(self.engines);
        let mut rows = vec![vec![String::from("median (range of runs)")]];
        rows[0].extend(self.engines.iter().map(Engine::to_string));
        for (engine, base) in &pairs {
            rows[0].extend([format!("{engine}/{base}"), "of pairs".into()]);
        }
        let dash = || String::from("-");
        for line in self.lines.iter().filter(|line| line.runs.iter().any(|runs| !runs.is_empty())) {
            let mut row = vec![line.label.to_owned()];
            let cells = (0..self.engines.len()).map(|engine| line.spread(engine));
            row.extend(
                cells.map(|cell| cell.map_or_else(dash, |cell| cell.show(|value| line.unit.show(value)))),
            );
            for (engine, base) in &pairs {
                let of = |engine: Engine| line.spread(self.index(engine)?);
                row.push(ratio_cell(line.key, of(*engine), of(*base)));
                let of_pairs = self.median_of_pairs(*engine, *base, line.key);
                row.push(of_pairs.map_or_else(dash, |value| format!("{value:.2}")));
            }
            rows.push(row);
        }
        let mut text = String::new();
        align(&rows, &mut text);
        if !pairs.is_empty() {
            let _ = write!(text, "\n{LEGEND}");
        }
        text.push_str(&self.unclear());
        let _ = write!(text, "\n{}", engine::legend(self.engines));
        text
    }

    /// Names figures that are none: where the runs of one engine are further apart than two engines are.
    fn unclear(&self) -> String {
        let mut text = String::new();
        let mut more = 0;
        for (line, engine, base, verdict) in self.verdicts() {
            let (Verdict::Unclear, Some(ours), Some(others)) =
                (verdict, self.spread(engine, line.key), self.spread(base, line.key))
            else {
                continue;
            };
            if text.lines().count() == MAX_NAMED {
                more += 1;
                continue;
            }
            let show = |spread: Spread| spread.show(|value| line.unit.show(value));
            let _ = writeln!(
                text,
                "WARNING: {}, {engine}/{base}: {} beside {} is no figure",
                line.label.trim(),
                show(ours),
                show(others)
            );
        }
        if more > 0 {
            let _ = writeln!(text, "WARNING: {more} more ratios are unclear");
        }
        text
    }

    /// All that is said.
    fn verdicts(&self) -> Vec<(&Line, Engine, Engine, Verdict)> {
        let pairs = engine::compared(self.engines);
        let of = |line: &Line, (engine, base): (Engine, Engine)| {
            let (ours, base) = (line.spread(self.index(engine)?)?, line.spread(self.index(base)?)?);
            Verdict::of(line.key, &ours, &base)
        };
        let all = self.lines.iter().flat_map(|line| pairs.iter().map(move |pair| (line, *pair)));
        all.filter_map(|(line, pair)| Some((line, pair.0, pair.1, of(line, pair)?))).collect()
    }

    /// Adds `rows`, `medians`, `ranges` and `comparisons` to an object.
    pub fn note(&self, json: &mut Value) {
        let rows = self.lines.iter().map(|line| json!({ "key": line.key, "label": line.label.trim() }));
        json["rows"] = rows.collect();
        let of_engines = |figure: &dyn Fn(Spread) -> Value| -> BTreeMap<String, BTreeMap<&str, Value>> {
            let of_engine = |engine: usize| {
                let one = |line: &Line| (line.key, line.spread(engine).map_or(Value::Null, figure));
                (self.engines[engine].to_string(), self.lines.iter().map(one).collect())
            };
            (0..self.engines.len()).map(of_engine).collect()
        };
        json["medians"] = json!(of_engines(&|spread| json!(spread.median)));
        json["ranges"] = json!(of_engines(&|spread| json!([spread.least, spread.most])));
        let mut comparisons: BTreeMap<String, BTreeMap<&str, Value>> = BTreeMap::new();
        for (line, engine, base, verdict) in self.verdicts() {
            let ratio = self.ratio(engine, base, line.key);
            let said = json!({ "ratio": ratio, "verdict": verdict.word() });
            comparisons.entry(format!("{engine}/{base}")).or_default().insert(line.key, said);
        }
        json["comparisons"] = json!(comparisons);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Kind;

    fn line(key: &'static str, runs: &[&[f64]]) -> Line {
        let numbered = |values: &&[f64]| (1..).zip(values.iter().copied()).collect();
        Line { key, label: key, unit: Unit::Ratio, runs: runs.iter().map(numbered).collect() }
    }

    #[test]
    fn ours_over_the_kernel_with_a_word_and_wide_ranges_are_warned_of() {
        let engines = [Kind::Kernel, Kind::Soft].map(Engine::whole);
        let lines = vec![
            line("pass_ns", &[&[100.0, 101.0, 99.0], &[4.0, 3.0, 209.0]]),
            line("maps_per_second", &[&[2.0, 2.1], &[8.0, 9.0]]),
            line("never_ns", &[&[], &[]]),
        ];
        let compared = Compared::new(&engines, lines);
        let table = compared.table();
        let row = |start: &str| table.lines().find(|line| line.starts_with(start)).unwrap();
        assert!(row("median").contains("soft/kernel") && !table.contains("kernel/soft"), "{table}");
        assert!(row("maps").contains(" 2.05 (2.00 - 2.10) ") && row("maps").contains(" 8.50 (8.00 - 9.00) "));
        assert!(row("maps").contains("4.15 better") && row("pass").contains("0.04 unclear"), "{table}");
        let warning = "WARNING: pass_ns, soft/kernel: 4.00 (3.00 - 209.00) beside 100.00 (99.00 - 101.00)";
        assert!(row("WARNING").starts_with(warning), "{table}");
        assert!(!table.contains("never") && table.contains("soft: "), "{table}");
        let mut json = json!({});
        compared.note(&mut json);
        assert_eq!(json["medians"]["soft"]["pass_ns"], 4.0);
        assert_eq!(json["medians"]["soft"]["never_ns"], Value::Null);
        assert_eq!(json["ranges"]["soft"]["pass_ns"], json!([3.0, 209.0]));
        let said = |key: &str| json["comparisons"]["soft/kernel"][key]["verdict"].clone();
        assert_eq!([said("pass_ns"), said("maps_per_second")], ["unclear", "better"]);
    }
}
