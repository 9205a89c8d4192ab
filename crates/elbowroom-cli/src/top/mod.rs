//! `elbowroom top`: a run, live, by its processes.
//!
//! How a figure comes to the screen: [`sample`] reads the run's table ([`names`] has the paths of files),
//! [`rates`] makes rates of two
//! samples, [`view`] sorts and filters, [`page`] makes lines of the columns in [`columns`], [`draw`] puts
//! them on the terminal that [`screen`] has taken. [`record`] keeps samples in a file. Of these, only
//! [`sample`], [`names`], [`screen`], [`live`] and [`record`] do I/O or read clocks; the others are pure.

mod columns;
mod draw;
mod live;
mod names;
mod page;
mod rates;
mod record;
pub mod sample;
mod screen;
mod view;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use elbowroom_options::size::Shown;
use elbowroom_options::{duration, size};

use crate::failure::{Failure, NOT_DONE, USAGE, say};
use crate::options::check_path;
use crate::runs::{Run, count};

pub use self::page::clock;

use self::draw::Palette;
use self::rates::History;
use self::record::Recorder;
use self::sample::Sample;
use self::screen::Ended;
use self::view::View;

/// Watch a run: what each of its processes has of the budget, and what it does
///
/// Reads the table that the processes of the run share, and costs them nothing. Keys: q leaves, ? lists the
/// others. Ends when the run ends.
#[derive(Args)]
#[command(after_help = MORE)]
pub struct TopArgs {
    /// The id of the run's main process, or of any process in it; not needed where there is only one run
    #[arg(value_name = "RUN", value_parser = clap::value_parser!(u32).range(1..))]
    run: Option<u32>,
    /// Print one table and end
    #[arg(long)]
    once: bool,
    /// Print a JSON object for each sample, in a line; with --once for one
    #[arg(long)]
    json: bool,
    /// How often to look, 100ms to 1h
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Keep the newest samples in a file of fixed size; without a terminal nothing is shown
    #[arg(long, value_name = "FILE", conflicts_with = "once")]
    record: Option<PathBuf>,
    /// How large that file may become, at least 64K
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = record_size, requires = "record")]
    record_size: u64,
    /// Show a file that --record has written; Space stops, Left and Right go back and forward
    #[arg(long, value_name = "FILE", conflicts_with_all = ["run", "record"])]
    replay: Option<PathBuf>,
}

const MORE: &str = "\
Columns: SIZE is what the process has of the budget, PEAK the most that it had, SWAP what of it is out, \
LOW what is protected from other processes, COST pages that came back for each 1,024 that it has in a \
second, FLT/S, MAJ/S and REF/S faults, those with I/O, and pages that came back, in a second, ASKED what \
others want of it. Narrow terminals have fewer columns.

The key Tab goes to the table of pressure: percent of the last 10, 60 and 300 s in which some thread waited \
for memory, or (FULL) all did, and for what; and to that of tiers and locks: the compressed pool, the swap \
file, what is out, and the lock with the longest waits. --once prints all three.

Environment: NO_COLOR; with TERM=dumb the table is printed again and again.

Exit status: 0; 1 if there is no such run; 2 if the command line is wrong.

Examples:
  elbowroom top                                     the only run
  elbowroom top 4711                                the run that process 4711 is in
  elbowroom top --once                              one table
  elbowroom top --json --interval 5s >> log.jsonl   the keys: docs/groups.md
  elbowroom top --record night.top > /dev/null &    keep the newest 16 MiB of samples, show nothing
  elbowroom top --replay night.top                  look at them";

fn interval(text: &str) -> Result<Duration, String> {
    let duration = duration::parse(text).map_err(|error| error.to_string())?;
    let fits = (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&duration);
    if fits { Ok(duration) } else { Err("it must be 100ms to 1h".to_owned()) }
}

fn record_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text).map_err(|error| error.to_string())?;
    if bytes >= 64 << 10 { Ok(bytes) } else { Err("it must be at least 64K".to_owned()) }
}

/// Shows a run, or a recording of one.
pub fn top(args: &TopArgs) -> ExitCode {
    match show(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// How the samples are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// On a terminal, until a key or the run's end.
    Live(Palette),
    /// One table below the other, for a terminal that cannot draw a screen.
    Tables,
    /// A line of JSON for each sample.
    Json,
    /// Samples are recorded, and not shown.
    Silent,
}

impl Manner {
    fn of(args: &TopArgs) -> Result<Self, Failure> {
        let is_set = |name| std::env::var_os(name).is_some_and(|value: std::ffi::OsString| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        match io::stdout().is_terminal() {
            _ if args.json => Ok(Self::Json),
            true if is_dumb => Ok(Self::Tables),
            true => Ok(Self::Live(if is_set("NO_COLOR") { Palette::None } else { Palette::Colours })),
            false if args.record.is_some() => Ok(Self::Silent),
            false => {
                Err(Failure::new(USAGE, "standard output is no terminal: say --once, --json or --record"))
            }
        }
    }
}

fn show(args: &TopArgs) -> Result<(), Failure> {
    if let Some(path) = &args.replay {
        return replay(args, path);
    }
    if args.once {
        return once(args, &Run::find(args.run)?);
    }
    // Checked before the run is looked up: these mistakes do not depend on the run.
    let manner = Manner::of(args)?;
    let record = args.record.as_deref().map(|path| check_path("--record", path)).transpose();
    let record = record.map_err(|why| Failure::new(USAGE, why))?;
    let run = Run::find(args.run)?;
    let cannot = |error: io::Error| Failure::new(NOT_DONE, format!("cannot write the recording: {error}"));
    let mut recorder =
        record.map(|path| Recorder::create(&path, args.record_size)).transpose().map_err(cannot)?;
    let mut add = |sample: &Sample| {
        let added = recorder.as_mut().map_or(Ok(()), |recorder| recorder.add(sample));
        added.map_err(cannot)
    };
    let is_over = match manner {
        Manner::Live(palette) => live::watch(&run, args.interval, palette, &mut add)?,
        _ => follow(&run, args.interval, manner, &mut add)?,
    };
    if is_over && !args.json {
        let sample = Sample::take(&run);
        let (peak, max) = (Shown(sample.peak_bytes), Shown(sample.max_bytes));
        let (age, processes) = (page::clock(sample.age_ms), count(sample.processes));
        say(&format!("run {} has ended after {age}: {processes}, at most {peak} of {max}", run.main_pid));
    }
    Ok(())
}

/// Prints one table, or one JSON object. For the rates in a table, each process must note its counters once
/// more after the first sample, which takes up to a second.
fn once(args: &TopArgs, run: &Run) -> Result<(), Failure> {
    const LOOK: Duration = Duration::from_millis(200);
    const BOUND: Duration = Duration::from_millis(2200);
    let sample = Sample::take(run);
    if args.json {
        return print(&json(&sample));
    }
    let mut history = History::default();
    let began = Instant::now();
    history.next(sample);
    loop {
        thread::sleep(LOOK);
        let report = history.next(Sample::take(run));
        if history.is_complete() || began.elapsed() > BOUND {
            return print(&page::text(&report, &View::new(false), columns_of_output()));
        }
    }
}

/// Takes a sample at each interval, and prints it unless `manner` is silent, until the run's end or a
/// signal. `true`: the run has ended.
fn follow(
    run: &Run,
    interval: Duration,
    manner: Manner,
    add: &mut dyn FnMut(&Sample) -> Result<(), Failure>,
) -> Result<bool, Failure> {
    let cannot = |error: io::Error| Failure::new(NOT_DONE, error.to_string());
    let ended = Ended::watch().map_err(cannot)?;
    let (mut history, view) = (History::default(), View::new(false));
    let mut due = Instant::now();
    while !run.is_over() {
        let sample = Sample::take(run);
        add(&sample)?;
        match manner {
            Manner::Json => print(&json(&sample))?,
            Manner::Tables => print(&(page::text(&history.next(sample), &view, columns_of_output()) + "\n"))?,
            Manner::Live(_) | Manner::Silent => {}
        }
        due = live::next(due, interval);
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if ended.is_set() {
                return Ok(false);
            }
            thread::sleep(left.min(live::LOOK));
        }
    }
    Ok(true)
}

fn replay(args: &TopArgs, path: &Path) -> Result<(), Failure> {
    let failure = |why: String| Failure::new(NOT_DONE, format!("{}: {why}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| failure(error.to_string()))?;
    let samples = record::samples(&bytes).ok_or_else(|| {
        failure("this is no recording; `elbowroom top --record FILE` writes such files".to_owned())
    })?;
    let last = samples.len().checked_sub(1).ok_or_else(|| failure("it has no sample".to_owned()))?;
    if args.json {
        let from = if args.once { last } else { 0 };
        return samples[from..].iter().try_for_each(|sample| print(&json(sample)));
    }
    if args.once {
        let report = live::report_of(&samples, last);
        return print(&page::text(&report, &View::new(true), columns_of_output()));
    }
    match Manner::of(args)? {
        Manner::Live(palette) => live::replay(&samples, palette),
        _ => Err(Failure::new(USAGE, "this terminal cannot show a recording: say --once or --json")),
    }
}

/// A sample as a line of JSON.
fn json(sample: &Sample) -> String {
    // Plain data with text keys always serializes.
    serde_json::to_string(sample).map_or_else(|error| error.to_string(), |json| json + "\n")
}

/// Prints a text to standard output. If the reader has closed the pipe, the command ends without an error.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::new(NOT_DONE, format!("cannot print this: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// The width of printed tables, in characters: that of the terminal, or else COLUMNS; without both, a width
/// in which all columns fit.
fn columns_of_output() -> usize {
    const ALL: usize = 120;
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    let terminal = terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    terminal.or_else(variable).unwrap_or(ALL)
}
