//! `elbowroom ctl`: lists runs, says what a run has, and changes its limits.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use elbowroom::{Config, ProcessRow, ProcessTree};
use elbowroom_options::size::{self, Shown};
use serde::Serialize;

use crate::failure::{Failure, NOT_DONE, USAGE};
use crate::runs::{Brief, Run};
use crate::top::sample::{Row, Sample};
use crate::top::{clock, print};

/// How long the command waits for a change to take effect.
const BOUND: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);
/// The least time between two requests of `ctl reclaim` to a process.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Memory that a process keeps even if other processes ask for it, in bytes.
const KEPT: u64 = 4 << 20;
/// Memory that a process takes again at once if the run has room, so that it has free pages at hand, in
/// bytes.
const AT_HAND: u64 = 16 << 20;

/// Look at runs from scripts, and change their limits while they run
///
/// RUN is the id of the run's main process, or of any process in it; it is not needed where there is only one
/// run. Only the user who has started a run can do this.
#[derive(Args)]
#[command(after_help = MORE)]
pub struct CtlArgs {
    #[command(subcommand)]
    action: Action,
}

const MORE: &str = "\
Exit status: 0; 1 if there is no such run or process, or if what was asked for is not reached within 2 s; \
2 if the command line is wrong.

Examples:
  elbowroom ctl list
  elbowroom ctl stat --json                 the keys: docs/groups.md
  elbowroom ctl set max=1G                  the only run
  elbowroom ctl set 4711 max=1G             the run that process 4711 is in
  elbowroom ctl set 4711 low=64M            others get nothing of the last 64 MiB of process 4711
  elbowroom ctl reclaim 4711 100M           process 4711 gives 100 MiB back";

#[derive(Subcommand)]
enum Action {
    /// List the runs of this user: a line for each, the oldest first
    List {
        /// Print a JSON array instead
        #[arg(long)]
        json: bool,
    },
    /// Say what a run has, and what each of its processes has and has counted
    Stat {
        /// The id of any process of the run
        #[arg(value_name = "RUN", value_parser = clap::value_parser!(u32).range(1..))]
        run: Option<u32>,
        /// Print a JSON object instead
        #[arg(long)]
        json: bool,
    },
    /// Change a limit: `max` of a run, or `low` of a process
    ///
    /// max: what all processes of the run together may have, at least 16M. If they have more, they give it
    /// back; that is waited for, for at most 2 s. A process never gets more than the run had at its start, so
    /// a larger max is for more processes.
    ///
    /// low: what other processes get nothing of. 0 takes the protection back.
    #[command(override_usage = "elbowroom ctl set [RUN] max=SIZE\n       elbowroom ctl set PID low=SIZE")]
    Set {
        /// The id of a process, and the limit with its value
        #[arg(value_name = "ID or LIMIT=SIZE", required = true, num_args = 1..=2, value_parser = Word::parse)]
        words: Vec<Word>,
    },
    /// Have a process give memory back to the others of its run, protected memory, too
    ///
    /// Each process keeps 4 MiB, and takes up to 16 MiB again at once, to have free pages at hand. What the
    /// process needs again it reads again.
    Reclaim {
        /// The id of the process
        #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
        pid: u32,
        /// How much
        #[arg(value_name = "SIZE", value_parser = size_of)]
        bytes: u64,
    },
}

/// An argument of `ctl set`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    Id(u32),
    Max(u64),
    Low(u64),
}

impl Word {
    fn parse(text: &str) -> Result<Self, String> {
        let Some((limit, value)) = text.split_once('=') else {
            let id = text.parse().ok().filter(|id| *id > 0).map(Self::Id);
            return id.ok_or_else(|| "it is neither the id of a process nor max=SIZE or low=SIZE".to_owned());
        };
        match (limit, size_of(value)?) {
            ("max", bytes) if bytes < Config::MIN_MEMORY => {
                Err(format!("it must be at least {}", size::Exact(Config::MIN_MEMORY)))
            }
            ("max", bytes) => Ok(Self::Max(bytes)),
            ("low", bytes) => Ok(Self::Low(bytes)),
            _ => Err(format!("there is no limit '{limit}': there are max (of a run) and low (of a process)")),
        }
    }
}

fn size_of(text: &str) -> Result<u64, String> {
    size::parse(text).map_err(|error| error.to_string())
}

/// A change of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Max { run: Option<u32>, bytes: u64 },
    Low { pid: u32, bytes: u64 },
}

impl Change {
    fn of(words: &[Word]) -> Result<Self, Failure> {
        match *words {
            [Word::Max(bytes)] => Ok(Self::Max { run: None, bytes }),
            [Word::Id(run), Word::Max(bytes)] => Ok(Self::Max { run: Some(run), bytes }),
            [Word::Id(pid), Word::Low(bytes)] => Ok(Self::Low { pid, bytes }),
            [Word::Low(bytes)] => {
                let low = size::Exact(bytes);
                let why = format!("low is a process's: name it, as in `elbowroom ctl set PID low={low}`");
                Err(Failure::new(USAGE, why))
            }
            _ => {
                let why = "say `elbowroom ctl set [RUN] max=SIZE` or `elbowroom ctl set PID low=SIZE`";
                Err(Failure::new(USAGE, why))
            }
        }
    }
}

/// Runs `elbowroom ctl`.
pub fn ctl(args: &CtlArgs) -> ExitCode {
    let done = match &args.action {
        Action::List { json } => list(*json),
        Action::Stat { run, json } => stat(*run, *json),
        Action::Set { words } => Change::of(words).and_then(set),
        Action::Reclaim { pid, bytes } => reclaim(*pid, *bytes),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn json(value: &impl Serialize) -> String {
    // Plain data with text keys always serializes.
    serde_json::to_string_pretty(value).map_or_else(|error| error.to_string(), |json| json + "\n")
}

/// Lists the runs. Without a run the list is empty, and the command succeeds.
fn list(as_json: bool) -> Result<(), Failure> {
    let runs: Vec<Brief> = Run::all().iter().map(Run::brief).collect();
    if as_json {
        return print(&json(&runs));
    }
    let titles = ["RUN", "COMMAND", "AGE", "PROCESSES", "USED", "MAX", "SWAP"].map(str::to_owned);
    let row = |run: &Brief| {
        let [used, max, swap] =
            [run.bytes, run.max_bytes, run.swap_bytes].map(|bytes| Shown(bytes).to_string());
        let (age, processes) = (clock(run.age_ms), run.pids.len().to_string());
        [run.run.to_string(), run.command.clone(), age, processes, used, max, swap]
    };
    print(&table(titles, runs.iter().map(row)))
}

fn stat(run: Option<u32>, as_json: bool) -> Result<(), Failure> {
    let sample = Sample::take(&Run::find(run)?);
    if as_json {
        return print(&json(&sample));
    }
    let shown = |bytes: u64| Shown(bytes).to_string();
    let each = sample.each_bytes.map_or_else(|| "no limit".to_owned(), shown);
    let about = [
        ("run", format!("{} {}", sample.run, sample.command)),
        ("age", clock(sample.age_ms)),
        ("max", shown(sample.max_bytes)),
        ("used", shown(sample.bytes)),
        ("peak", shown(sample.peak_bytes)),
        ("each", each),
        ("swap max", shown(sample.swap_max_bytes)),
        ("swap used", shown(sample.swap_bytes)),
        ("processes", format!("{}, {} so far", sample.rows.len(), sample.processes)),
    ];
    let mut text: String = about.iter().map(|(name, value)| format!("{name:9}  {value}\n")).collect();
    text.push('\n');
    let titles =
        ["PID", "NAME", "USED", "PEAK", "LOW", "SWAP", "FAULTS", "MAJOR", "REFAULTS"].map(str::to_owned);
    let line = |row: &Row| {
        let [used, peak, low, swap] =
            [row.bytes, row.peak_bytes, row.low_bytes, row.swap_bytes].map(|bytes| Shown(bytes).to_string());
        let counted =
            [row.used.faults, row.used.major_faults, row.used.refaults].map(|count| count.to_string());
        let [faults, major, refaults] = counted;
        let name = format!("{}{}", row.name, if row.is_gone { " (gone)" } else { "" });
        [row.pid.to_string(), name, used, peak, low, swap, faults, major, refaults]
    };
    text.push_str(&table(titles, sample.rows.iter().map(line)));
    print(&text)
}

/// A table as text: the second column is a name, the others are amounts.
fn table<const N: usize>(titles: [String; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let lines: Vec<_> = std::iter::once(titles).chain(rows).collect();
    let width =
        |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |cells: &[String; N]| {
        let cell = |(column, cell): (usize, &String)| match (column, widths[column]) {
            (1, width) => format!("{cell:<width$}"),
            (_, width) => format!("{cell:>width$}"),
        };
        cells.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ") + "\n"
    };
    lines.iter().map(line).collect()
}

fn set(change: Change) -> Result<(), Failure> {
    match change {
        Change::Max { run, bytes } => set_max(&Run::find(run)?, bytes),
        Change::Low { pid, bytes } => set_low(&Run::find(Some(pid))?, pid, bytes),
    }
}

fn set_max(run: &Run, max: u64) -> Result<(), Failure> {
    let before = run.tree.totals().max_bytes;
    run.tree.set_max(max);
    let used = || run.tree.totals().bytes;
    let is_reached = wait(|| used() <= max, || format!("{} of {} used", Shown(used()), Shown(max)));
    let (shown, used) = (Shown(max), Shown(used()));
    if !is_reached {
        let why = format!(
            "run {} may have {shown} now, and still has {used} after 2 s: it gives more back as it can. Each \
             process keeps 4 MiB and what `low` protects; a stopped process gives nothing",
            run.main_pid
        );
        return Err(Failure::new(NOT_DONE, why));
    }
    print(&format!("run {}: max {shown} (was {}), {used} used\n", run.main_pid, Shown(before)))
}

fn no_such(pid: u32) -> Failure {
    Failure::new(
        NOT_DONE,
        format!("process {pid} is in no run any more; `elbowroom ctl stat` lists those that are"),
    )
}

/// The row of a process.
fn row(tree: &ProcessTree, pid: u32) -> Result<ProcessRow, Failure> {
    tree.snapshot().rows.into_iter().find(|row| row.pid == pid).ok_or_else(|| no_such(pid))
}

fn set_low(run: &Run, pid: u32, low: u64) -> Result<(), Failure> {
    let max = run.tree.totals().max_bytes;
    if low > max {
        let why = format!(
            "low of a process cannot be more than its run may have, {}: say less, or first \
             `elbowroom ctl set {pid} max={}`",
            Shown(max),
            size::Exact(low)
        );
        return Err(Failure::new(NOT_DONE, why));
    }
    let has = row(&run.tree, pid)?.bytes;
    if !run.tree.set_low(pid, low) {
        return Err(no_such(pid));
    }
    print(&format!("process {pid}: low {}, {} used\n", Shown(low), Shown(has)))
}

fn reclaim(pid: u32, bytes: u64) -> Result<(), Failure> {
    let run = Run::find(Some(pid))?;
    let before = row(&run.tree, pid)?.bytes;
    let least = before.saturating_sub(bytes).max(KEPT + AT_HAND);
    if bytes > 0 && before <= least {
        let why = format!(
            "process {pid} has {}, and each process keeps 4 MiB, and 16 MiB to have free pages at hand: \
             there is nothing to give",
            Shown(before)
        );
        return Err(Failure::new(NOT_DONE, why));
    }
    let now = || row(&run.tree, pid).map(|row| row.bytes).unwrap_or_default();
    let (mut asked_at, mut times) = (None::<Instant>, 0_u32);
    let is_reached = wait(
        || {
            let Ok(row) = row(&run.tree, pid) else { return true };
            let is_due = asked_at.is_none_or(|asked| asked.elapsed() > ASK_AGAIN);
            // The process gives its free pages first, and then takes some again to have free pages at hand.
            // So each request asks for twice the multiple of the missing bytes that the last one asked for.
            // Else the process could give and take the same free pages for ever.
            if row.bytes > least && row.asked_bytes == 0 && is_due {
                let missing = (row.bytes - least).saturating_mul(1 << times.min(8));
                run.tree.reclaim(pid, missing.min(row.bytes - KEPT));
                (asked_at, times) = (Some(Instant::now()), times + 1);
            }
            row.bytes <= least
        },
        || format!("{} of {} left", Shown(now()), Shown(before)),
    );
    let now = row(&run.tree, pid)?.bytes;
    let changed = format!("process {pid}: {} used, {} before", Shown(now), Shown(before));
    if !is_reached {
        let why = format!(
            "{changed}: it has not given {} within 2 s; the process needs the rest or takes it again, or it \
             is stopped",
            Shown(before - least)
        );
        return Err(Failure::new(NOT_DONE, why));
    }
    print(&format!("{changed}\n"))
}

/// Waits until `is_done` gives `true`, for at most [`BOUND`]; returns whether it did. `progress`: the text
/// that a terminal shows meanwhile.
fn wait(mut is_done: impl FnMut() -> bool, progress: impl Fn() -> String) -> bool {
    let mut error = io::stderr();
    let is_shown = error.is_terminal();
    let began = Instant::now();
    let mut was_shown = false;
    let is_done = loop {
        if is_done() {
            break true;
        }
        if began.elapsed() >= BOUND {
            break false;
        }
        if is_shown {
            // The line is erased before it is written anew, and at the end. Errors are ignored: the line
            // only shows progress.
            let _ = write!(error, "\r\x1b[K{}", progress()).and_then(|()| error.flush());
            was_shown = true;
        }
        thread::sleep(LOOK);
    };
    if was_shown {
        let _ = write!(error, "\r\x1b[K");
    }
    is_done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_set() {
        let parse = |words: &[&str]| words.iter().map(|word| Word::parse(word).unwrap()).collect::<Vec<_>>();
        for (words, change) in [
            (&["max=1G"][..], Change::Max { run: None, bytes: 1 << 30 }),
            (&["7", "max=16M"], Change::Max { run: Some(7), bytes: 16 << 20 }),
            (&["7", "low=0"], Change::Low { pid: 7, bytes: 0 }),
        ] {
            assert_eq!(Change::of(&parse(words)).unwrap(), change);
        }
        for (words, said) in [
            (&["low=64M"][..], "elbowroom ctl set PID low=64M"),
            (&["7"], "elbowroom ctl set [RUN] max=SIZE"),
            (&["7", "8"], "elbowroom ctl set [RUN] max=SIZE"),
            (&["max=1G", "low=1M"], "elbowroom ctl set [RUN] max=SIZE"),
        ] {
            let failure = Change::of(&parse(words)).unwrap_err();
            assert!(failure.code == USAGE && failure.message.contains(said), "{words:?}: {failure}");
        }
        for (word, said) in [
            ("max=15M", "at least 16M"),
            ("max=", "no number"),
            ("high=1G", "there are max (of a run) and low"),
            ("make", "neither the id of a process nor max=SIZE"),
            ("0", "neither"),
            ("low=1 furlong", "not a unit"),
        ] {
            let why = Word::parse(word).unwrap_err();
            assert!(why.contains(said), "{word}: {why}");
        }
    }

    #[test]
    fn a_table_is_aligned() {
        let rows = [["1", "make", "5 MiB"], ["1234", "a", "16 MiB"]].map(|row| row.map(str::to_owned));
        let text = table(["RUN", "NAME", "USED"].map(str::to_owned), rows.into_iter());
        assert_eq!(text, " RUN  NAME    USED\n   1  make   5 MiB\n1234  a     16 MiB\n");
    }

    #[test]
    fn what_is_waited_for_has_a_bound() {
        let began = Instant::now();
        assert!(wait(|| true, String::new) && began.elapsed() < BOUND);
        assert!(!wait(|| false, String::new) && began.elapsed() >= BOUND);
    }
}
