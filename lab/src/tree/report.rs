//! Figures of trees of processes, and whether the goals are met: the table and the JSON object.

use std::fmt::Write;

use serde::Serialize;
use serde_json::{Value, json};

use super::cli::Row;
use crate::load::{self, Load};
use crate::procfs::Machine;
use crate::report::align;
use crate::verdict::Spread;

/// How the processes of a figure ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// Without Elbowroom, with all memory of the machine.
    Plain,
    /// Without Elbowroom, in a control group whose limit is the budget.
    Kernel,
    /// Under `elbowroom run`.
    Elbowroom,
    /// The quiet process alone, under `elbowroom run`.
    Alone,
    /// The quiet process beside a process that computes in little memory.
    BesideBusy,
    /// The quiet process beside a process that thrashes.
    BesideThrashing,
}

impl Side {
    /// The name of the side in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Kernel => "kernel",
            Self::Elbowroom => "elbowroom",
            Self::Alone => "alone",
            Self::BesideBusy => "beside a busy one",
            Self::BesideThrashing => "beside a thrashing one",
        }
    }
}

/// A figure of one run. The key ends in its unit.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Figure {
    /// The row that the figure belongs to.
    pub row: Row,
    /// The side that was measured.
    pub side: Side,
    /// The number of the run, from 1.
    pub run: usize,
    /// The name of the figure in its row.
    pub key: &'static str,
    /// The value, in the key's unit.
    pub value: f64,
}

/// A side of a row that could not be measured.
#[derive(Debug, Clone, Serialize)]
pub struct LeftOut {
    /// The row.
    pub row: Row,
    /// The side.
    pub side: Side,
    /// Why it could not be measured, and how to get what is missing.
    pub reason: String,
}

/// The goal of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Goal {
    /// The median is at most so many times the median of the base.
    Times(f64),
    /// The median is at most so much more than the median of the base, in the key's unit.
    More(f64),
    /// No run has more than the lowest value of the base.
    NeverMore,
    /// No run has more than this, in the key's unit.
    Most(f64),
    /// There is no goal.
    None,
}

/// What a figure is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    /// The same figure of another side.
    Side(Side),
    /// Another figure of the same side, with its name in the table.
    Key(&'static str, &'static str),
    /// Nothing.
    None,
}

/// A line of the table.
struct Line {
    row: Row,
    key: &'static str,
    /// What the figure is, in words.
    about: &'static str,
    side: Side,
    base: Base,
    goal: Goal,
}

const fn line(row: Row, key: &'static str, about: &'static str, base: Base, goal: Goal) -> Line {
    Line { row, key, about, side: Side::Elbowroom, base, goal }
}

/// A line of the quiet process.
const fn quiet(key: &'static str, about: &'static str, side: Side, goal: Goal) -> Line {
    Line { row: Row::Quiet, key, about, side, base: Base::Side(Side::Alone), goal }
}

const PLAIN: Base = Base::Side(Side::Plain);
const KERNEL: Base = Base::Side(Side::Kernel);
const ALLOWED: Base = Base::Key("allowed_bytes", "allowed");
const FAULTS: &str = "faults for 1,000 accesses";
const TOUCH: &str = "p99 of first touches";
const READ: &str = "p99 of reads of the working set";

const LINES: [Line; 18] = [
    line(Row::Workers, "seconds", "time", KERNEL, Goal::Times(1.0)),
    line(Row::Workers, "peak_pss_bytes", "highest PSS of the tree", ALLOWED, Goal::NeverMore),
    line(Row::Make, "seconds", "time of make -j4", PLAIN, Goal::Times(1.03)),
    line(Row::Commands, "ms_per_command", "time of each command", PLAIN, Goal::More(1.0)),
    line(Row::Start, "true_ms", "time of true", PLAIN, Goal::None),
    line(Row::Start, "python_ms", "time of python3 -c pass", PLAIN, Goal::None),
    line(Row::Idle, "python_pss_bytes", "PSS, nothing managed", PLAIN, Goal::None),
    line(Row::Idle, "managed_pss_bytes", "PSS, 4 MiB managed", PLAIN, Goal::None),
    quiet("faults_per_1000_accesses", FAULTS, Side::BesideThrashing, Goal::Times(1.1)),
    quiet("touch_p99_ns", TOUCH, Side::BesideThrashing, Goal::Times(1.1)),
    quiet("read_p99_ns", READ, Side::BesideThrashing, Goal::Times(1.1)),
    quiet("faults_per_1000_accesses", FAULTS, Side::BesideBusy, Goal::None),
    quiet("touch_p99_ns", TOUCH, Side::BesideBusy, Goal::None),
    quiet("read_p99_ns", READ, Side::BesideBusy, Goal::None),
    line(Row::Lowered, "seconds", "max lowered: below it after", Base::None, Goal::Most(2.0)),
    line(Row::Lowered, "pss_then_bytes", "PSS of the tree then", ALLOWED, Goal::NeverMore),
    line(Row::Killed, "seconds", "killed: memory free after", Base::None, Goal::Most(1.0)),
    line(Row::Killed, "pss_then_bytes", "PSS of the tree then", ALLOWED, Goal::NeverMore),
];

/// The figures of all runs, and what the report says about them.
pub struct Report {
    /// The options.
    pub parameters: Value,
    /// The machine on which it ran.
    pub machine: Machine,
    /// The line above the table.
    pub description: String,
    /// The sides that could not be measured.
    pub left_out: Vec<LeftOut>,
    /// The figures of the sides that were measured.
    pub figures: Vec<Figure>,
    /// What else the machine did during each run.
    pub loads: Vec<Load>,
}

/// A line with its values.
struct Compared<'a> {
    line: &'a Line,
    ours: Spread,
    base: Option<Spread>,
}

impl Compared<'_> {
    /// The value that is compared with the goal: a ratio, a difference, or the worst value itself.
    fn measure(&self) -> Option<f64> {
        let ratio = |ours: f64, base: f64| (base > 0.0).then(|| ours / base);
        match (self.line.goal, self.base) {
            (Goal::Most(_), _) => Some(self.ours.most),
            (Goal::NeverMore, Some(base)) => ratio(self.ours.most, base.least),
            (Goal::More(_), Some(base)) => Some(self.ours.median - base.median),
            (Goal::Times(_) | Goal::None, Some(base)) => ratio(self.ours.median, base.median),
            (_, None) => None,
        }
    }

    /// Whether the goal is met. `None`: there is no goal, or the base was not measured.
    fn is_met(&self) -> Option<bool> {
        let most = match self.line.goal {
            Goal::Times(most) | Goal::More(most) | Goal::Most(most) => most,
            Goal::NeverMore => 1.0,
            Goal::None => return None,
        };
        self.measure().map(|measure| measure <= most)
    }

    fn base_name(&self) -> &'static str {
        match self.line.base {
            Base::Side(side) => side.name(),
            Base::Key(_, name) => name,
            Base::None => "",
        }
    }

    fn cells(&self) -> Vec<String> {
        let show = |spread: Spread| spread.show(|value| in_unit(self.line.key, value));
        let base =
            self.base.map_or_else(|| "-".to_owned(), |base| format!("{} {}", self.base_name(), show(base)));
        let compared = self.measure().map_or_else(
            || "-".to_owned(),
            |measure| match self.line.goal {
                Goal::Most(_) => in_unit(self.line.key, measure),
                Goal::More(_) => format!("+{}", in_unit(self.line.key, measure)).replace("+-", "-"),
                _ => format!("{measure:.3}"),
            },
        );
        let goal = match self.line.goal {
            Goal::Times(most) => format!("at most {most:.2} times"),
            Goal::More(most) => format!("at most {} more", in_unit(self.line.key, most)),
            Goal::NeverMore => "never more".to_owned(),
            Goal::Most(most) => format!("at most {}", in_unit(self.line.key, most)),
            Goal::None => "-".to_owned(),
        };
        let met = match self.is_met() {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "-",
        };
        let row = self.line.row.to_string();
        let ours = format!("{} {}", self.line.side.name(), show(self.ours));
        [row, self.line.about.to_owned(), base, ours, compared, goal, met.to_owned()].into()
    }
}

/// A value in the unit in which the key ends.
fn in_unit(key: &str, value: f64) -> String {
    if key.ends_with("_bytes") {
        format!("{:.1} MiB", value / f64::from(1 << 20))
    } else if key.ends_with("_ns") {
        format!("{:.2} us", value / 1000.0)
    } else if key.contains("ms_per") || key.ends_with("_ms") {
        format!("{value:.2} ms")
    } else if key.ends_with("seconds") {
        format!("{value:.2} s")
    } else {
        format!("{value:.1}")
    }
}

impl Report {
    fn spread(&self, row: Row, side: Side, key: &str) -> Option<Spread> {
        let of = |figure: &&Figure| figure.row == row && figure.side == side && figure.key == key;
        Spread::of(self.figures.iter().filter(of).map(|figure| figure.value).collect())
    }

    fn compared(&self) -> impl Iterator<Item = Compared<'_>> {
        LINES.iter().filter_map(|line| {
            let ours = self.spread(line.row, line.side, line.key)?;
            let base = match line.base {
                Base::Side(side) => self.spread(line.row, side, line.key),
                Base::Key(key, _) => self.spread(line.row, line.side, key),
                Base::None => None,
            };
            Some(Compared { line, ours, base })
        })
    }

    /// Each figure beside what it is compared with, and whether its goal is met.
    pub fn table(&self) -> String {
        let header = ["row", "figure", "base", "measured", "compared", "goal", "met"];
        let mut rows = vec![header.map(str::to_owned).into()];
        rows.extend(self.compared().map(|compared| compared.cells()));
        let mut text = format!("{}\n\n", self.description);
        align(&rows, &mut text);
        let missed = self.compared().filter(|compared| compared.is_met() == Some(false)).count();
        let judged = self.compared().filter(|compared| compared.is_met().is_some()).count();
        let _ = writeln!(text, "\n{} of {judged} goals are met.", judged - missed);
        text.push_str(
            "Medians with the range of the runs. compared: ours / base, or ours - base where a goal is so \
             much more;\npromises (never more, at most) by the worst run.\n",
        );
        text.extend(load::warning(&self.loads).map(|warning| format!("WARNING: {warning}\n")));
        for LeftOut { row, side, reason } in &self.left_out {
            let _ = writeln!(text, "{row}, {}, was left out: {reason}", side.name());
        }
        text
    }

    /// The JSON object with the figures of each run, and with the goals.
    pub fn json(&self) -> Value {
        let asked = self.compared().map(|compared| {
            json!({
                "row": compared.line.row,
                "key": compared.line.key,
                "side": compared.line.side,
                "median": compared.ours.median,
                "base": compared.base_name(),
                "base_median": compared.base.map(|base| base.median),
                "compared": compared.measure(),
                "is_met": compared.is_met(),
            })
        });
        json!({
            "workload": "tree",
            "parameters": self.parameters,
            "machine": self.machine,
            "left_out": self.left_out,
            "runs": self.figures,
            "loads": self.loads,
            "asked": asked.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs;

    fn report(values: &[(Row, Side, &'static str, &[f64])]) -> Report {
        let figures = values.iter().flat_map(|(row, side, key, values)| {
            let figure = |(run, value): (usize, &f64)| Figure {
                row: *row,
                side: *side,
                run: run + 1,
                key,
                value: *value,
            };
            values.iter().enumerate().map(figure)
        });
        Report {
            parameters: Value::Null,
            machine: procfs::machine().unwrap(),
            description: "here".to_owned(),
            left_out: vec![LeftOut { row: Row::Make, side: Side::Plain, reason: "no gcc".to_owned() }],
            figures: figures.collect(),
            loads: Vec::new(),
        }
    }

    #[test]
    fn ratios_are_of_medians_and_promises_of_the_worst_run() {
        use Side::{Alone, BesideThrashing, Elbowroom, Kernel, Plain};
        let report = report(&[
            (Row::Workers, Kernel, "seconds", &[10.0, 30.0, 20.0]),
            (Row::Workers, Elbowroom, "seconds", &[19.0, 20.0, 50.0]),
            (Row::Workers, Elbowroom, "peak_pss_bytes", &[1e9, 1.2e9, 1e9]),
            (Row::Workers, Elbowroom, "allowed_bytes", &[1.1e9, 1.1e9, 1.1e9]),
            (Row::Commands, Plain, "ms_per_command", &[1.0, 1.0, 1.0]),
            (Row::Commands, Elbowroom, "ms_per_command", &[1.5, 2.5, 1.6]),
            (Row::Start, Plain, "true_ms", &[1.0]),
            (Row::Start, Elbowroom, "true_ms", &[2.0]),
            (Row::Quiet, Alone, "touch_p99_ns", &[1000.0]),
            (Row::Quiet, BesideThrashing, "touch_p99_ns", &[1101.0]),
            (Row::Lowered, Elbowroom, "seconds", &[0.1, 2.5, 0.1]),
            (Row::Killed, Elbowroom, "seconds", &[0.1, 0.9, 0.1]),
        ]);
        let met: Vec<_> = report.compared().map(|compared| compared.is_met()).collect();
        let expected = [Some(true), Some(false), Some(true), None, Some(false), Some(false), Some(true)];
        assert_eq!(met, expected);
        let table = report.table();
        for said in ["3 of 6", "+0.60 ms", "2.50 s", "1.101", "NO", "make, plain, was left out: no gcc"] {
            assert!(table.contains(said), "{said} in {table}");
        }
        assert_eq!(report.json()["asked"][0]["compared"], 1.0);
        assert_eq!(report.json()["asked"][4]["side"], "beside-thrashing");
    }

    #[test]
    fn without_a_base_nothing_is_judged() {
        let report = report(&[(Row::Make, Side::Elbowroom, "seconds", &[1.0])]);
        assert!(report.compared().all(|compared| compared.is_met().is_none()));
        assert!(report.table().contains("0 of 0 goals"));
    }
}
