//! `elbowroom ctl`: lists runs, says what a run and the groups of its processes have, and changes limits.
//!
//! [`words`] reads the words of the command line, [`groups`] serves the commands for groups.

mod groups;
mod words;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use elbowroom::{GroupRow, ProcessRow, StallAverages};
use elbowroom_options::size::{self, Shown};
use serde::Serialize;

use self::words::{Change, GroupName, Reclaim, Word};
use crate::failure::{Failure, NOT_DONE};
use crate::runs::{Brief, Run, printable};
use crate::top::sample::{Row, RunPressure, Sample, Stalls, stall_kind};
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
/// run. It may also stand first: `elbowroom ctl RUN stat`. GROUP is the name of a group of `run --group`:
/// that of all processes of the run which have it, or, as PID/GROUP, of one. Only the user who has started a
/// run can do this.
#[derive(Args)]
#[command(after_help = MORE)]
pub struct CtlArgs {
    #[command(subcommand)]
    action: Action,
}

const MORE: &str = "\
Exit status: 0; 1 if there is no such run, process or group, or if what was asked for is not reached within \
2 s; 2 if the command line is wrong.

Examples:
  elbowroom ctl list
  elbowroom ctl stat --json                 the keys: docs/groups.md
  elbowroom ctl stat cache                  the groups cache of all processes of the only run
  elbowroom ctl pressure                    who waits for memory, and for what
  elbowroom ctl set max=1G                  the only run
  elbowroom ctl set 4711 max=1G             the run that process 4711 is in
  elbowroom ctl set 4711 low=64M            others get nothing of the last 64 MiB of process 4711
  elbowroom ctl set 4711/cache max=256M     the group cache of process 4711
  elbowroom ctl reclaim 4711 100M           process 4711 gives 100 MiB back
  elbowroom ctl reclaim 4711/cache 100M     100 MiB of its group cache are reclaimed";

#[derive(Subcommand)]
enum Action {
    /// List the runs of this user, the oldest first; or the processes of one run, and their groups
    List {
        /// The id of any process of the run
        #[arg(value_name = "RUN", value_parser = clap::value_parser!(u32).range(1..))]
        run: Option<u32>,
        /// Print a JSON array instead
        #[arg(long)]
        json: bool,
    },
    /// Say what a run has, and what each of its processes has and has counted; or the same of a group
    Stat {
        /// The id of any process of the run, and a group
        #[arg(value_name = "RUN or GROUP", num_args = 0..=2)]
        words: Vec<String>,
        /// Print a JSON object instead
        #[arg(long)]
        json: bool,
    },
    /// Say how long threads wait for memory: percent of the last 10, 60 and 300 s
    ///
    /// SOME: at least one thread of the process, or of the group, waits. FULL: none of it runs meanwhile.
    Pressure {
        /// The id of any process of the run, and a group
        #[arg(value_name = "RUN or GROUP", num_args = 0..=2)]
        words: Vec<String>,
        /// Print a JSON object instead
        #[arg(long)]
        json: bool,
    },
    /// Change a limit: `max` of a run, `low` of a process, or any limit of a group
    ///
    /// max of a run: what all processes of the run together may have, at least 16M. If they have more, they
    /// give it back; that is waited for, for at most 2 s. A process never gets more than the run had at its
    /// start, so a larger max is for more processes.
    ///
    /// low of a process: what other processes get nothing of. 0 takes the protection back.
    ///
    /// max, high, low, min, swap-max, memory-swap-max, dirty (sizes) and swappiness (0 to 200) of a group: as
    /// in the file of `run --group`. `none`: no limit; low and min are taken back by 0. If a group has more
    /// than a smaller max, the rest is reclaimed; that is waited for, for at most 2 s.
    #[command(
        override_usage = "elbowroom ctl set [RUN] max=SIZE\n       elbowroom ctl set PID low=SIZE\n       \
                          elbowroom ctl set [RUN] GROUP LIMIT=SIZE"
    )]
    Set {
        /// The id of a process, a group, and the limit with its value
        #[arg(
            value_name = "ID, GROUP or LIMIT=SIZE",
            required = true,
            num_args = 1..=3,
            value_parser = Word::parse
        )]
        words: Vec<Word>,
    },
    /// Have a process give memory back to the others of its run, or have memory of a group reclaimed
    ///
    /// Each process keeps 4 MiB, and takes up to 16 MiB again at once, to have free pages at hand. Protected
    /// memory is given, too. What the process needs again it reads again.
    #[command(
        override_usage = "elbowroom ctl reclaim PID SIZE\n       elbowroom ctl reclaim [RUN] GROUP SIZE"
    )]
    Reclaim {
        /// The id of the process or the group, and how much
        #[arg(value_name = "ID, GROUP or SIZE", required = true, num_args = 1..=3)]
        words: Vec<String>,
    },
}

/// The arguments of the command, with the run behind the action if it was named first: `ctl RUN ACTION` is
/// `ctl ACTION RUN`.
pub fn in_order(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let is_id = |word: &OsString| word.to_str().is_some_and(|word| word.parse::<u32>().is_ok());
    if arguments.get(1).is_some_and(|word| word == "ctl")
        && arguments.get(2).is_some_and(is_id)
        && arguments.len() > 3
    {
        arguments.swap(2, 3);
    }
    arguments
}

/// Runs `elbowroom ctl`.
pub fn ctl(args: &CtlArgs) -> ExitCode {
    let done = match &args.action {
        Action::List { run: None, json } => list(*json),
        Action::List { run, json } => list_one(*run, *json),
        Action::Stat { words, json } => words::run_and_group(words).and_then(|named| match named {
            (run, None) => stat(run, *json),
            (run, Some(group)) => stat_groups(run, &group, *json),
        }),
        Action::Pressure { words, json } => {
            words::run_and_group(words).and_then(|(run, group)| pressure(run, group.as_ref(), *json))
        }
        Action::Set { words } => Change::of(words).and_then(set),
        Action::Reclaim { words } => Reclaim::of(words).and_then(|asked| match asked {
            Reclaim::Process { pid, bytes } => reclaim(pid, bytes),
            Reclaim::Group { run, group, bytes } => {
                let run = Run::find(run)?;
                print(&groups::reclaim(&run, &groups::named(&run, &group)?, bytes)?)
            }
        }),
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

/// Lists the processes of a run, and their groups.
fn list_one(run: Option<u32>, as_json: bool) -> Result<(), Failure> {
    let run = Run::find(run)?;
    let (processes, groups) = (run.snapshot().rows, groups::all(&run));
    let of = |row: &ProcessRow| groups.iter().filter(|group| group.pid == row.pid).collect::<Vec<_>>();
    if as_json {
        let process = |row: &ProcessRow| {
            let names: Vec<_> = of(row).iter().map(|group| printable(&group.name)).collect();
            let name = printable(&row.name);
            serde_json::json!({"pid": row.pid, "name": name, "bytes": row.bytes, "groups": names})
        };
        return print(&json(&processes.iter().map(process).collect::<Vec<_>>()));
    }
    let titles = ["PID or GROUP", "NAME", "USED"].map(str::to_owned);
    let mut lines = Vec::new();
    for row in &processes {
        lines.push([row.pid.to_string(), printable(&row.name), Shown(row.bytes).to_string()]);
        let group = |group: &&GroupRow| {
            [groups::name(group), String::new(), Shown(group.used.usage_bytes).to_string()]
        };
        lines.extend(of(row).iter().map(group));
    }
    print(&table(titles, lines.into_iter()))
}

/// A sample of a run, with its groups.
#[derive(Serialize)]
struct Stat {
    #[serde(flatten)]
    sample: Sample,
    groups: Vec<groups::Group>,
}

fn group_table(groups: &[GroupRow]) -> String {
    table(groups::TITLES.map(str::to_owned), groups.iter().map(groups::cells))
}

fn stat_groups(run: Option<u32>, group: &GroupName, as_json: bool) -> Result<(), Failure> {
    let groups = groups::named(&Run::find(run)?, group)?;
    if as_json {
        return print(&json(&groups.iter().map(groups::Group::of).collect::<Vec<_>>()));
    }
    print(&group_table(&groups))
}

/// The pressure of a run, of its processes and of groups.
#[derive(Serialize)]
struct PressureReport {
    run: u32,
    pressure: RunPressure,
    processes: Vec<ProcessReport>,
    groups: Vec<groups::Group>,
}

/// The pressure of a process.
#[derive(Serialize)]
struct ProcessReport {
    pid: u32,
    name: String,
    pressure: Option<elbowroom::ProcessPressure>,
    stalls: Option<Stalls>,
}

fn pressure(run: Option<u32>, group: Option<&GroupName>, as_json: bool) -> Result<(), Failure> {
    let run = Run::find(run)?;
    let groups = match group {
        Some(group) => groups::named(&run, group)?,
        None => groups::all(&run),
    };
    let sample = Sample::take(&run);
    let rows = if group.is_some() { Vec::new() } else { sample.rows };
    if as_json {
        let process = |row: Row| ProcessReport {
            pid: row.pid,
            name: row.name,
            pressure: row.shown.pressure,
            stalls: row.shown.stalls,
        };
        return print(&json(&PressureReport {
            run: run.main_pid,
            pressure: sample.pressure,
            processes: rows.into_iter().map(process).collect(),
            groups: groups.iter().map(groups::Group::of).collect(),
        }));
    }
    let titles =
        ["PID or GROUP", "NAME", "SOME10", "SOME60", "SOME300", "FULL10", "FULL60", "FULL300", "STALLS FOR"];
    let percent = |[some, full]: [&StallAverages; 2]| {
        let each = [some.avg10, some.avg60, some.avg300, full.avg10, full.avg60, full.avg300];
        each.map(|percent| format!("{percent:.1}"))
    };
    let line = |id: String, name: String, figures: Option<[&StallAverages; 2]>, stalls: String| {
        let [a, b, c, d, e, f] = figures.map_or_else(|| [(); 6].map(|()| "-".to_owned()), percent);
        [id, name, a, b, c, d, e, f, stalls]
    };
    let mut lines = Vec::new();
    for row in &rows {
        let kind = row.shown.pressure.as_ref().and_then(stall_kind).unwrap_or_default();
        let source = row.shown.stalls.as_ref().map(Stalls::short).unwrap_or_default();
        let figures = row.shown.pressure.as_ref().map(|pressure| [&pressure.some, &pressure.full]);
        lines.push(line(
            row.pid.to_string(),
            row.name.clone(),
            figures,
            format!("{kind} {source}").trim().to_owned(),
        ));
    }
    for group in &groups {
        let figures = group.noted_at.map(|_| [&group.used.some, &group.used.full]);
        lines.push(line(groups::name(group), String::new(), figures, String::new()));
    }
    print(&table(titles.map(str::to_owned), lines.into_iter()))
}

fn stat(run: Option<u32>, as_json: bool) -> Result<(), Failure> {
    let run = Run::find(run)?;
    let (groups, sample) = (groups::all(&run), Sample::take(&run));
    if as_json {
        let groups = groups.iter().map(groups::Group::of).collect();
        return print(&json(&Stat { sample, groups }));
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
    if !groups.is_empty() {
        text.push('\n');
        text.push_str(&group_table(&groups));
    }
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
        Change::Group { run, group, limit, value } => {
            let run = Run::find(run)?;
            print(&groups::set(&run, &groups::named(&run, &group)?, limit, value)?)
        }
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
fn row(run: &Run, pid: u32) -> Result<ProcessRow, Failure> {
    run.snapshot().rows.into_iter().find(|row| row.pid == pid).ok_or_else(|| no_such(pid))
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
    let has = row(run, pid)?.bytes;
    if !run.tree.set_low(pid, low) {
        return Err(no_such(pid));
    }
    print(&format!("process {pid}: low {}, {} used\n", Shown(low), Shown(has)))
}

fn reclaim(pid: u32, bytes: u64) -> Result<(), Failure> {
    let run = Run::find(Some(pid))?;
    let before = row(&run, pid)?.bytes;
    let least = before.saturating_sub(bytes).max(KEPT + AT_HAND);
    if bytes > 0 && before <= least {
        let why = format!(
            "process {pid} has {}, and each process keeps 4 MiB, and 16 MiB to have free pages at hand: \
             there is nothing to give",
            Shown(before)
        );
        return Err(Failure::new(NOT_DONE, why));
    }
    let now = || row(&run, pid).map(|row| row.bytes).unwrap_or_default();
    let (mut asked_at, mut times) = (None::<Instant>, 0_u32);
    let is_reached = wait(
        || {
            let Ok(row) = row(&run, pid) else { return true };
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
    let now = row(&run, pid)?.bytes;
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
    fn a_run_may_be_named_before_the_action() {
        let of = |words: &[&str]| {
            let ordered = in_order(words.iter().map(OsString::from).collect());
            ordered.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(&["elbowroom", "ctl", "7", "set", "a", "max=1G"]), "elbowroom ctl set 7 a max=1G");
        assert_eq!(of(&["elbowroom", "ctl", "set", "7", "max=1G"]), "elbowroom ctl set 7 max=1G");
        for words in [&["elbowroom", "ctl", "7"][..], &["elbowroom", "run", "7", "x"], &["elbowroom"]] {
            assert_eq!(of(words), words.join(" "));
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
