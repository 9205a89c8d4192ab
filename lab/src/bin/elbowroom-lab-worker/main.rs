//! The program under test of `elbowroom lab`: it maps files and reads them, and is the same in every engine.
//!
//! It knows nothing of Elbowroom. All it does to memory goes through libc's `mmap`, `munmap` and `madvise` by
//! ordinary dynamic linking, as any program would, so that the preloaded library sees what it would see of
//! any program. It counts on a board (`elbowroom_lab::board`) and leaves with status 3 as soon as one page is
//! not what it must be.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, ValueEnum};
use elbowroom_lab::WRONG_CONTENT_STATUS;

mod bystander;
mod io_retry;
mod memory;
mod random_read;
mod scan;
mod tally;

use tally::Outcome;

#[derive(Parser)]
#[command(name = "elbowroom-lab-worker", about = "The program that elbowroom lab measures")]
enum Mode {
    /// Joins a control group, then becomes another program
    Enter {
        /// The group's cgroup.procs file
        procs: PathBuf,
        /// The program and its arguments
        #[arg(trailing_var_arg = true, required = true)]
        command: Vec<OsString>,
    },
    /// Every thread maps its own file, reads a byte of every page, unmaps, again and again
    IoRetry {
        #[command(flatten)]
        common: CommonArgs,
        /// In which order pages are read
        #[arg(long, value_enum, default_value_t = Pattern::Seq)]
        pattern: Pattern,
    },
    /// All threads read pages at random through one mapping
    RandomRead {
        #[command(flatten)]
        common: CommonArgs,
        /// What the kernel is told about the mapping
        #[arg(long, value_enum, default_value_t = Advice::None)]
        advice: Advice,
    },
    /// Every thread reads its part of one file from start to end, again and again
    Scan {
        #[command(flatten)]
        common: CommonArgs,
    },
}

#[derive(Args, Clone)]
struct CommonArgs {
    /// Where the files 0, 1, 2, ... are
    #[arg(long)]
    dir: PathBuf,
    /// The board, made for this number of threads
    #[arg(long)]
    board: PathBuf,
    #[arg(long)]
    threads: usize,
    #[arg(long)]
    seconds: f64,
    /// Bytes of each file, whole pages
    #[arg(long)]
    file_bytes: u64,
    /// The seed of the files' content
    #[arg(long)]
    seed: u64,
}

impl CommonArgs {
    fn file(&self, number: u64) -> PathBuf {
        self.dir.join(number.to_string())
    }

    fn pages(&self) -> u64 {
        self.file_bytes / elbowroom_lab::PAGE_BYTES
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Pattern {
    Seq,
    Random,
    Cyclic,
}

#[derive(Clone, Copy, ValueEnum)]
enum Advice {
    None,
    Random,
}

fn main() -> ExitCode {
    match run(Mode::parse()) {
        Ok(Outcome::Verified) => ExitCode::SUCCESS,
        Ok(Outcome::Wrong(what)) => {
            eprintln!("elbowroom-lab-worker: {what}");
            ExitCode::from(WRONG_CONTENT_STATUS)
        }
        Err(error) => {
            eprintln!("elbowroom-lab-worker: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mode: Mode) -> Result<Outcome> {
    // A lab that is killed must not leave a worker behind that thrashes the machine. The setting outlives
    // exec.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("cannot tie the worker's life to the lab's")?;
    match mode {
        Mode::Enter { procs, command } => enter(&procs, &command),
        Mode::IoRetry { common, pattern } => io_retry::run(&common, pattern),
        Mode::RandomRead { common, advice } => random_read::run(&common, advice),
        Mode::Scan { common } => scan::run(&common),
    }
}

/// Moves this process into a control group before the measured program starts, so that all it ever uses is
/// charged.
fn enter(procs: &std::path::Path, command: &[OsString]) -> Result<Outcome> {
    std::fs::write(procs, std::process::id().to_string())
        .with_context(|| format!("cannot join the control group through {}", procs.display()))?;
    let Some((program, arguments)) = command.split_first() else {
        bail!("no program to run in the control group")
    };
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}
