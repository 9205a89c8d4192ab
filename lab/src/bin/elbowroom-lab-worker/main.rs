//! The program under test of `elbowroom lab`: it maps files and reads them, and is the same in every engine.
//!
//! Under the kernel and under `elbowroom run` it knows nothing of Elbowroom. All it does to memory goes
//! through libc's `mmap`, `munmap`, `mprotect`, `msync` and `madvise` by ordinary dynamic linking, as any
//! program would, so that the preloaded library sees what it would see of any program. With `--soft-memory`
//! it makes the same mappings in a soft space of the library instead. It counts on a board
//! (`elbowroom_lab::board`) and leaves with status 3 as soon as one page is not what it must be.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, ValueEnum};
use elbowroom_lab::WRONG_CONTENT_STATUS;

mod bystander;
mod cache;
mod chunks;
mod direct;
mod file_map_churn;
mod ground;
mod io_retry;
mod lock_wait;
mod memory;
mod moe;
mod own_memory;
mod random_read;
mod random_write;
mod scan;
mod shared_dirty;
mod source;
mod tally;
mod team;
mod uptodate_wait;
mod verify;

use chunks::{ChunksArgs, SegmentsArgs, VectorArgs};
use file_map_churn::Round;
use ground::{Ground, HoldTimes};
use moe::MoeArgs;
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
    /// All threads store to pages at random through one mapping
    RandomWrite {
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
    /// One thread stores to every page of a mapping, the others map parts of another file
    SharedDirty {
        #[command(flatten)]
        common: CommonArgs,
        /// What the stores find
        #[arg(long, value_enum, default_value_t = Start::Cached)]
        start: Start,
    },
    /// All threads map parts of one file, read and unmap them
    FileMapChurn {
        #[command(flatten)]
        common: CommonArgs,
        /// How many mappings are made before they are unmapped
        #[arg(long, default_value_t = 4)]
        mappings: u64,
        /// Bytes of each, whole pages
        #[arg(long, default_value_t = elbowroom_lab::PART_BYTES)]
        mapping_bytes: u64,
    },
    /// All threads read the same pages at the same time
    UptodateWait {
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Threads read, map, protect and unmap
    LockWait {
        #[command(flatten)]
        common: CommonArgs,
        /// How long those that map pause after each time
        #[arg(long, default_value_t = 10)]
        pause_ms: u64,
    },
    /// Threads read whole chunks at random places of one file
    Chunks {
        #[command(flatten)]
        common: CommonArgs,
        #[command(flatten)]
        chunks: ChunksArgs,
    },
    /// Threads read what queries of a search engine read
    Segments {
        #[command(flatten)]
        common: CommonArgs,
        #[command(flatten)]
        segments: SegmentsArgs,
    },
    /// Threads read what searches for near vectors read
    Vector {
        #[command(flatten)]
        common: CommonArgs,
        #[command(flatten)]
        vector: VectorArgs,
    },
    /// All threads read the dense weights and the used experts of each layer together
    Moe {
        #[command(flatten)]
        common: CommonArgs,
        #[command(flatten)]
        moe: MoeArgs,
    },
    /// Changes pages of its own memory at random, and verifies each
    Hold {
        /// How much memory, whole pages
        #[arg(long)]
        bytes: u64,
        /// It ends when this file is there
        #[arg(long)]
        until: PathBuf,
    },
    /// Reads pages of its own memory at random, touches a little new memory, and rests, again and again
    Quiet {
        /// How much memory it reads, whole pages
        #[arg(long)]
        bytes: u64,
        /// It begins to measure when this file is there
        #[arg(long)]
        go: PathBuf,
        /// For how long it measures
        #[arg(long)]
        seconds: f64,
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
    /// Make the mappings in a soft space with a budget of so many bytes
    #[arg(long)]
    soft_memory: Option<u64>,
    /// What of the library is switched off there, with commas between
    #[arg(long, default_value = "")]
    soft_ablate: String,
    /// Measure how long its manager's locks are held
    #[arg(long)]
    soft_hold_times: bool,
    /// Where the statistics of its manager are written
    #[arg(long)]
    stats: Option<PathBuf>,
}

impl CommonArgs {
    fn file(&self, number: u64) -> PathBuf {
        self.dir.join(number.to_string())
    }

    fn pages(&self) -> u64 {
        self.file_bytes / elbowroom_lab::PAGE_BYTES
    }

    /// Runs a workload on the ground that is asked for.
    fn on_ground(&self, workload: impl FnOnce(&Ground) -> Result<Outcome>) -> Result<Outcome> {
        let hold_times = if self.soft_hold_times { HoldTimes::Measured } else { HoldTimes::Unknown };
        let ground = match self.soft_memory {
            Some(memory) => Ground::soft(memory, &self.soft_ablate, hold_times)?,
            None => Ground::Pointers,
        };
        let outcome = workload(&ground)?;
        if let Some(path) = &self.stats {
            ground.write_stats(path)?;
        }
        Ok(outcome)
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

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Start {
    Cached,
    Hole,
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
        Mode::IoRetry { common, pattern } => {
            common.on_ground(|ground| io_retry::run(&common, ground, pattern))
        }
        Mode::RandomRead { common, advice } => {
            common.on_ground(|ground| random_read::run(&common, ground, advice))
        }
        Mode::RandomWrite { common, advice } => {
            common.on_ground(|ground| random_write::run(&common, ground, advice))
        }
        Mode::Scan { common } => common.on_ground(|ground| scan::run(&common, ground)),
        Mode::SharedDirty { common, start } => {
            common.on_ground(|ground| shared_dirty::run(&common, ground, start))
        }
        Mode::FileMapChurn { common, mappings, mapping_bytes } => {
            let round = Round { mappings, mapping_bytes };
            common.on_ground(|ground| file_map_churn::run(&common, ground, round))
        }
        Mode::UptodateWait { common } => common.on_ground(|ground| uptodate_wait::run(&common, ground)),
        Mode::LockWait { common, pause_ms } => {
            let pause = Duration::from_millis(pause_ms);
            common.on_ground(|ground| lock_wait::run(&common, ground, pause))
        }
        Mode::Chunks { common, chunks } => common.on_ground(|ground| chunks::run(&common, ground, &chunks)),
        Mode::Segments { common, segments } => {
            common.on_ground(|ground| chunks::run_segments(&common, ground, &segments))
        }
        Mode::Vector { common, vector } => {
            common.on_ground(|ground| chunks::run_vector(&common, ground, &vector))
        }
        Mode::Moe { common, moe } => common.on_ground(|ground| moe::run(&common, ground, &moe)),
        Mode::Hold { bytes, until } => own_memory::hold(bytes, &until),
        Mode::Quiet { bytes, go, seconds } => {
            own_memory::quiet(bytes, &go, Duration::try_from_secs_f64(seconds).context("--seconds")?)
        }
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
