//! fork-exec: a process with much memory that fits forks, and its child becomes another program at once.
//!
//! Between two forks it stores to each of its pages, as a program would that goes on with its work.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::Stage;
use super::apart::Line;
use super::area::Ground;
use super::asked::{self, Asked, Side};
use super::compare::{Comparison, Record, Row, Unit};
use super::paging::check_pages;
use super::terms::{Swapping, Terms};
use super::turns::Turns;
use crate::PAGE_BYTES;
use crate::cli::TurnArgs;
use crate::interrupt::Interrupt;
use crate::procfs;
use crate::report::median;
use crate::size::Size;

const WORDS: usize = PAGE_BYTES as usize / 8;
/// Beside what must be resident: what describes it, and room so that nothing has to go out.
const BESIDE: u64 = 64 << 20;
/// How long all forks of a run may take.
const BOUND: Duration = Duration::from_secs(120);
/// What a fork + exec should take at most, of the kernel's.
const MOST_RATIO: f64 = 1.5;

const FORK: &str = "fork_exec_ns";
const FIRST: &str = "first_fork_exec_ns";

const ROWS: &[Row] = &[
    Row::new(FORK, "fork + exec", Unit::Nanoseconds),
    Row::new(FIRST, "  the first", Unit::Nanoseconds),
    Row::new("most_fork_exec_ns", "  the longest of the others", Unit::Nanoseconds),
    Row::new("until_end_ns", "fork + exec of true, until its end", Unit::Nanoseconds),
    Row::new("store_ns", "stores to all pages after it", Unit::Nanoseconds),
    Row::new("resident_bytes", "resident before the first", Unit::Bytes),
    Row::new("pages_out", "pages paged out (0)", Unit::Count),
];

/// What a line about one run shows.
const HIGHLIGHTS: &[&str] = &[FORK, FIRST, "store_ns"];

/// Options of fork-exec.
#[derive(Debug, Clone, Args, Serialize)]
pub struct ForkExecArgs {
    /// How much memory the process has
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    #[serde(rename = "size_bytes")]
    pub size: Size,
    /// How often it forks in each run, after a first time that is not in the median
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub forks: usize,
    /// A directory on a disk, for the swap file, which stays empty
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// What is taken where engines are compared.
    #[command(flatten)]
    #[serde(flatten)]
    pub turns: TurnArgs,
}

/// The least budget in which everything fits.
///
/// # Errors
/// What is possible.
pub fn least_memory(args: &ForkExecArgs) -> Result<Size> {
    check_pages(args.size)?;
    ensure!((1..=10_000).contains(&args.forks), "--forks must be from 1 to 10000");
    Ok(Size::from_bytes((args.size.bytes().saturating_mul(5) / 4).saturating_add(BESIDE)))
}

/// Runs the engines in turn; the table and the JSON object.
///
/// # Errors
/// If no engine can run here, a wrong word was read, or a signal came.
pub fn measure(args: &ForkExecArgs, stage: &mut Stage) -> Result<(String, Value)> {
    let turns = &args.turns;
    let description = format!(
        "fork-exec: of a process with {}, {} runs of 1 + {} forks, budget {}",
        args.size, turns.repeat.runs, args.forks, turns.memory
    );
    let comparison = Comparison::new("fork-exec", description, args, ROWS, HIGHLIGHTS)?;
    let swap = Swapping { bytes: 2 * args.size.bytes(), dir: args.dir.clone(), kernel: false };
    let terms = Terms { swap: Some(swap), limited: true, ..Terms::of(turns.memory) };
    let (mut table, mut json) = Turns::on(turns, terms).take(comparison, stage, |ground, stage| {
        let Ground::Apart(apart) = ground else { return record(args, &stage.interrupt) };
        let line = Line::of("fork-exec", turns).option("--size", args.size).option("--forks", args.forks);
        apart.run(line, ROWS, BOUND, &stage.interrupt)
    })?;
    asked::note(&what_is_asked(&json), &mut table, &mut json);
    Ok((table, json))
}

fn what_is_asked(json: &Value) -> Vec<Asked> {
    let figures =
        [(FORK, "fork + exec over the kernel's"), (FIRST, "the first fork + exec over the kernel's")];
    let ratio = |(engine, (key, what)): (&str, (&str, &'static str))| {
        let ratio = asked::median(json, engine, key)? / asked::median(json, "plain", key)?;
        Some(Asked::new(what, engine, ratio, Side::AtMost, MOST_RATIO))
    };
    let of = |engine: &String| figures.map(|figure| ratio((engine, figure)));
    asked::ours(json).iter().flat_map(of).flatten().collect()
}

/// Measures in this process.
fn record(args: &ForkExecArgs, interrupt: &Interrupt) -> Result<Record> {
    let mut memory = vec![0_u64; args.size.pages() as usize * WORDS];
    store(&mut memory, 0);
    let resident = procfs::resident(std::process::id().into()).context("/proc has no VmRSS")?;
    let (mut forks, mut ends, mut stores) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 1..=args.forks as u64 + 1 {
        interrupt.check()?;
        let begin = Instant::now();
        let mut child = forking().spawn().context("cannot fork and exec")?;
        // The call returns when the child has become the other program.
        forks.push(begin.elapsed().as_nanos() as f64);
        let status = child.wait().context("cannot wait for the child")?;
        ends.push(begin.elapsed().as_nanos() as f64);
        ensure!(status.success(), "the program in the child has failed: {status}");
        let begin = Instant::now();
        store(&mut memory, turn);
        stores.push(begin.elapsed().as_nanos() as f64);
        verify(&memory, turn)?;
    }
    let first = forks.remove(0);
    let most = forks.iter().copied().fold(0.0, f64::max);
    let middle = |of: Vec<f64>| median(of).context("nothing was measured");
    Ok(Record::from([
        (FORK, middle(forks)?),
        (FIRST, first),
        ("most_fork_exec_ns", most),
        ("until_end_ns", middle(ends.split_off(1))?),
        ("store_ns", middle(stores.split_off(1))?),
        ("resident_bytes", resident.total_bytes as f64),
    ]))
}

/// A program that does nothing. That it is to have a user, even if it is the same, has the standard library
/// call fork: else it would take posix_spawn, which copies no page tables.
fn forking() -> Command {
    let mut command = Command::new("/bin/true");
    command.uid(rustix::process::getuid().as_raw()).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// A word of each page.
fn store(memory: &mut [u64], turn: u64) {
    for (page, words) in memory.chunks_exact_mut(WORDS).enumerate() {
        words[page % WORDS] = turn << 32 | page as u64;
    }
}

fn verify(memory: &[u64], turn: u64) -> Result<()> {
    for (page, words) in memory.chunks_exact(WORDS).enumerate() {
        let (got, expected) = (words[page % WORDS], turn << 32 | page as u64);
        ensure!(got == expected, "wrong content: {got:#x} in page {page}, {expected:#x} expected");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fork_is_asked_for_beside_the_others() {
        let json = serde_json::json!({
            "engines": ["plain", "elbowroom"],
            "medians": {
                "plain": { FORK: 10.0, FIRST: 10.0 },
                "elbowroom": { FORK: 15.0, FIRST: 16.0 },
            },
        });
        let met: Vec<_> = what_is_asked(&json).iter().map(|one| one.is_met).collect();
        assert_eq!(met, [true, false]);
    }

    #[test]
    fn a_page_without_its_last_store_is_found() {
        let mut memory = vec![0; 600 * WORDS];
        store(&mut memory, 1);
        store(&mut memory, 2);
        verify(&memory, 2).unwrap();
        // The word of page 599, which comes after that of page 511.
        memory[599 * WORDS + 599 % WORDS] = 1 << 32 | 599;
        assert!(verify(&memory, 2).unwrap_err().to_string().contains("page 599"));
    }
}
