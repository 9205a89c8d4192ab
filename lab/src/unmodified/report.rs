//! Medians and ratios of the programs' runs; the table and the JSON object.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use serde_json::{Value, json};

use super::auto::{self, Need};
use super::goals;
use crate::engine::{self, Engine};
use crate::load::{self, Load};
use crate::procfs::Machine;
use crate::report::align;
use crate::resident::Peak;
use crate::verdict::{LEGEND, Spread, ratio, ratio_cell};

/// Less of it is better.
const SECONDS: &str = "time_ns";
/// More of it is better.
const RATE: &str = "lines_per_second";

/// One run of a program.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// As `--only` has it.
    pub program: &'static str,
    /// Who had the memory.
    pub engine: Engine,
    /// Which turn, from 1.
    pub run: usize,
    /// From the start of the program to its end.
    pub seconds: f64,
    /// How many lines it printed in a second, from the first one on, if they are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines_per_second: Option<f64>,
    /// What each of these lines is.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub lines_are: &'static str,
    /// User and system time of the program, and under Elbowroom of the manager in it.
    pub cpu_seconds: f64,
    /// What devices read for it.
    pub device_read_bytes: Option<u64>,
    /// What they wrote for it, or are to write.
    pub device_written_bytes: Option<u64>,
    /// What else the machine did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// What the program printed, and what it stored, as checksums.
    pub result: String,
    /// The budget, or the limit.
    pub memory_bytes: u64,
    /// The most that a process of it had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak: Option<Peak>,
    /// The sums over its processes, by their statistics.
    #[serde(flatten)]
    pub sums: Sums,
    /// `elbowroom run --stats`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine_stats: Option<Value>,
}

/// What all processes of a run have counted together.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Sums {
    /// What they have paged out, of anonymous memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages_out: Option<u64>,
    /// What they need, by `--memory auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub need: Option<Need>,
}

/// A program that was not run, and why.
#[derive(Debug, Clone, Serialize)]
pub struct LeftOut {
    /// As `--only` has it, or an engine's name.
    pub what: String,
    /// With how to get what is missing.
    pub reason: String,
}

/// All that is known at the end.
pub struct Report {
    /// The options.
    pub parameters: Value,
    /// Where it ran.
    pub machine: Machine,
    /// The line above the table.
    pub description: String,
    /// Everything was to fit.
    pub in_memory: bool,
    /// In the order of their turns.
    pub engines: Vec<Engine>,
    /// What could not be run.
    pub left_out: Vec<LeftOut>,
    /// A program did not run to its end under an engine of ours.
    pub ours_failed: bool,
    /// What was.
    pub runs: Vec<Run>,
}

impl Report {
    fn spread(&self, program: &str, engine: Engine, of: impl Fn(&Run) -> Option<f64>) -> Option<Spread> {
        let runs = self.runs.iter().filter(|run| run.program == program && run.engine == engine);
        Spread::of(runs.filter_map(of).collect())
    }

    fn median(&self, program: &str, engine: Engine) -> Option<f64> {
        self.seconds(program, engine).map(|spread| spread.median)
    }

    fn seconds(&self, program: &str, engine: Engine) -> Option<Spread> {
        self.spread(program, engine, |run| Some(run.seconds))
    }

    pub(super) fn programs(&self) -> Vec<&'static str> {
        let mut programs: Vec<_> = self.runs.iter().map(|run| run.program).collect();
        programs.dedup();
        programs
    }

    /// The engines that the last one is compared with; the goals have the ratios of what is to fit.
    fn others(&self) -> &[Engine] {
        let others = self.engines.split_last().map_or(&[][..], |(_, others)| others);
        if self.in_memory { &[] } else { others }
    }

    /// The last engine's seconds over another one's.
    fn ratio(&self, program: &str, other: Engine) -> Option<f64> {
        self.ratio_of(program, *self.engines.last()?, other)
    }

    /// The engine's seconds over another one's.
    pub(super) fn ratio_of(&self, program: &str, last: Engine, other: Engine) -> Option<f64> {
        ratio(self.median(program, last)?, self.median(program, other)?)
    }

    /// Of each program the seconds in each engine, the ratios, and beside them CPU time and what was read.
    pub fn table(&self) -> String {
        let pairs = engine::compared(&self.engines);
        let mut header = vec!["seconds, median (range of runs)".to_owned()];
        header.extend(self.engines.iter().map(Engine::to_string));
        header.extend(pairs.iter().map(|(ours, base)| format!("{ours}/{base}")));
        header.extend(self.engines.iter().map(|engine| format!("CPU, {engine}")));
        header.extend(self.engines.iter().map(|engine| format!("read, {engine}")));
        let show = |spread: Option<Spread>, show: &dyn Fn(f64) -> String| {
            spread.map_or_else(|| "-".to_owned(), |spread| spread.show(show))
        };
        let mut rows = vec![header];
        for program in self.programs() {
            let mut row = vec![program.to_owned()];
            let each = |of: &dyn Fn(&Run) -> Option<f64>, shown: &dyn Fn(f64) -> String| {
                let engines = self.engines.iter();
                engines.map(|engine| show(self.spread(program, *engine, of), shown)).collect::<Vec<_>>()
            };
            let seconds = |value: f64| format!("{value:.2}");
            let gigabytes = |value: f64| format!("{:.2} GB", value / 1e9);
            row.extend(each(&|run| Some(run.seconds), &seconds));
            row.extend(pairs.iter().map(|(ours, base)| {
                ratio_cell(SECONDS, self.seconds(program, *ours), self.seconds(program, *base))
            }));
            row.extend(each(&|run| Some(run.cpu_seconds), &seconds));
            row.extend(each(&|run| run.device_read_bytes.map(|bytes| bytes as f64), &gigabytes));
            rows.push(row);
        }
        let mut text = format!("{}\n\n", self.description);
        align(&rows, &mut text);
        self.add_rates(&mut text);
        text.push_str(&goals::table(self));
        text.push_str(&auto::table(self));
        let _ = write!(text, "\n{LEGEND}\n{}", engine::legend(&self.engines));
        let loads: Vec<Load> = self.runs.iter().filter_map(|run| run.load).collect();
        text.extend(load::warning(&loads).map(|warning| format!("WARNING: {warning}\n")));
        for LeftOut { what, reason } in &self.left_out {
            let _ = writeln!(text, "{what} was left out: {reason}");
        }
        text
    }

    /// A row for each program whose lines are counted.
    fn add_rates(&self, text: &mut String) {
        let pairs = engine::compared(&self.engines);
        let mut header = vec!["in a second, from the first one on".to_owned()];
        header.extend(self.engines.iter().map(Engine::to_string));
        header.extend(pairs.iter().map(|(ours, base)| format!("{ours}/{base}")));
        let mut rows = vec![header];
        for program in self.programs() {
            let rate = |engine| self.spread(program, engine, |run| run.lines_per_second);
            let Some(run) = self.runs.iter().find(|run| run.program == program) else { continue };
            if run.lines_per_second.is_none() {
                continue;
            }
            let mut row = vec![format!("{program}: {}", run.lines_are)];
            let shown = |rate: Spread| rate.show(|value| format!("{value:.2}"));
            row.extend(self.engines.iter().map(|engine| rate(*engine).map_or_else(|| "-".into(), shown)));
            row.extend(pairs.iter().map(|(ours, base)| ratio_cell(RATE, rate(*ours), rate(*base))));
            rows.push(row);
        }
        if rows.len() > 1 {
            text.push('\n');
            align(&rows, text);
        }
    }

    /// The object with the single runs, and with medians by program and engine.
    pub fn json(&self) -> Value {
        let medians: BTreeMap<_, _> = self
            .programs()
            .into_iter()
            .map(|program| {
                let seconds: BTreeMap<_, _> = self
                    .engines
                    .iter()
                    .map(|engine| (engine.to_string(), self.median(program, *engine)))
                    .collect();
                let ratios =
                    self.others().iter().map(|other| (other.to_string(), self.ratio(program, *other)));
                let rates: BTreeMap<_, _> = self
                    .engines
                    .iter()
                    .filter_map(|engine| {
                        let rate = self.spread(program, *engine, |run| run.lines_per_second)?;
                        Some((engine.to_string(), rate.median))
                    })
                    .collect();
                let ratios: BTreeMap<_, _> = ratios.collect();
                (program, json!({ "seconds": seconds, "ratios": ratios, "lines_per_second": rates }))
            })
            .collect();
        json!({
            "workload": "programs",
            "parameters": self.parameters,
            "machine": self.machine,
            "left_out": self.left_out,
            "runs": self.runs,
            "medians": medians,
            "asked": goals::json(self),
            "auto": auto::json(self),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Kind;
    use crate::procfs;

    #[test]
    fn the_ratio_is_of_the_medians_and_what_was_left_out_is_said() {
        let engines = vec![Engine::whole(Kind::Kernel), Engine::whole(Kind::Elbowroom)];
        let run = |engine, run, seconds| Run {
            program: "git",
            engine,
            run,
            seconds,
            lines_per_second: Some(1.0 / seconds),
            lines_are: "objects",
            cpu_seconds: 1.0,
            device_read_bytes: None,
            device_written_bytes: None,
            load: None,
            result: "same".to_owned(),
            memory_bytes: 1 << 20,
            peak: None,
            sums: Sums::default(),
            engine_stats: None,
        };
        let mut runs = Vec::new();
        for (turn, kernel, ours) in [(1, 2.0, 3.0), (2, 4.0, 1.0), (3, 100.0, 2.0)] {
            runs.extend([run(engines[0], turn, kernel), run(engines[1], turn, ours)]);
        }
        let report = Report {
            parameters: Value::Null,
            machine: procfs::machine().unwrap(),
            description: "here".to_owned(),
            in_memory: false,
            engines,
            left_out: vec![LeftOut { what: "faiss".into(), reason: "pip install faiss-cpu".into() }],
            ours_failed: false,
            runs,
        };
        assert_eq!(report.json()["medians"]["git"]["ratios"]["kernel"], 0.5);
        assert_eq!(report.json()["medians"]["git"]["lines_per_second"]["kernel"], 0.25);
        let table = report.table();
        assert!(table.contains("git: objects"), "{table}");
        // One run of the kernel's took 100 s.
        assert!(table.contains("4.00 (2.00 - 100.00)  2.00 (1.00 - 3.00)") && table.contains("0.50 unclear"));
        assert!(
            table.contains("kernel: Linux") && table.contains("faiss was left out: pip install"),
            "{table}"
        );
    }
}
