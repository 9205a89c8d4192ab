//! The command lines of what is measured in the lab's own process.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use elbowroom::Ablation;
use serde::Serialize;

use crate::PAGE_BYTES;
use crate::engine::{self, Engine, Kind};
use crate::size::Size;

/// The engines in the lab's own process.
const IN_PROCESS: [Kind; 3] = [Kind::Kernel, Kind::Soft, Kind::Host];
/// The most threads of one engine.
const MAX_THREADS: usize = 1000;
/// The smallest budget in which a thread-storm of the most threads has its working sets.
const MIN_MEMORY: Size = Size::from_bytes(16 << 20);

const CORE_EXAMPLES: &str = "Examples:
  elbowroom lab run core --json core.json
  elbowroom lab run core --seconds 1 --runs 9      take longer, for steadier medians";

const STORM_EXAMPLES: &str = "Examples:
  elbowroom lab run thread-storm --threads 100
  elbowroom lab run thread-storm --engines soft,soft-vma_locks --json storm.json";

const RECEIVE_EXAMPLES: &str = "Examples:
  elbowroom lab run zero-copy-receive --threads 4
  elbowroom lab run zero-copy-receive --batch 64 --json receive.json";

const IN_MEMORY_EXAMPLES: &str = "Examples:
  elbowroom lab run in-memory --size 64M
  elbowroom lab run in-memory --threads 2 --engines kernel,soft,host --json in-memory.json";

const MAP_UNMAP_EXAMPLES: &str = "Examples:
  elbowroom lab run map-unmap
  elbowroom lab run map-unmap --threads 16 --engines kernel,soft-vma_locks,soft --json map-unmap.json";

/// A measurement of the library alone.
#[derive(Debug, Subcommand)]
pub enum LibraryBench {
    /// What single operations cost, in nanoseconds, beside their targets
    #[command(after_help = CORE_EXAMPLES)]
    Core(CoreArgs),
    /// Accesses to memory that fits, beside a plain pointer
    #[command(after_help = IN_MEMORY_EXAMPLES)]
    InMemory(InMemoryArgs),
    /// Mappings of 64 KiB made and unmapped per second, untouched and touched
    #[command(after_help = MAP_UNMAP_EXAMPLES)]
    MapUnmap(MapUnmapArgs),
    /// Many threads start at once: each maps a few areas and faults its working set in
    #[command(after_help = STORM_EXAMPLES)]
    ThreadStorm(StormArgs),
    /// Threads insert received pages while another changes the rights of other mappings
    #[command(after_help = RECEIVE_EXAMPLES)]
    ZeroCopyReceive(ReceiveArgs),
}

/// Options of core.
#[derive(Debug, Clone, Args)]
pub struct CoreArgs {
    /// How long each figure is measured in each run, in seconds
    #[arg(long, value_name = "S", default_value_t = 0.3)]
    pub seconds: f64,
    /// How often everything is measured; the figures take turns, and medians are reported
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub runs: usize,
    /// Write the medians to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The kernel, soft spaces, and the host's space.
fn all_kinds() -> Vec<Engine> {
    IN_PROCESS.map(Engine::whole).to_vec()
}

/// Options of in-memory.
#[derive(Debug, Clone, Args, Serialize)]
pub struct InMemoryArgs {
    /// How many threads read, all of them the same memory
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// How long each of the four phases (random and in order, each also by a plain pointer) takes in each
    /// run, in seconds
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    pub seconds: f64,
    /// How often each engine is run; the engines take turns, and medians are reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
    /// How much memory is read
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    #[serde(rename = "size_bytes")]
    pub size: Size,
    /// The budget of a manager, in which that fits
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    #[serde(rename = "memory_bytes")]
    pub memory: Size,
    /// The engines, in the order of their turns: kernel, soft (spaces of the library), host (real pointers,
    /// by userfaultfd); soft-vma_locks is soft without that improvement
    #[arg(long, value_name = "ENGINE", value_delimiter = ',', default_values_t = all_kinds())]
    pub engines: Vec<Engine>,
    /// Write all runs, medians and ratios to this file
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub json: Option<PathBuf>,
}

/// Options of map-unmap.
#[derive(Debug, Clone, Args, Serialize)]
pub struct MapUnmapArgs {
    /// How many threads map and unmap
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// How long each of the two phases (untouched, touched) takes in each run, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub seconds: f64,
    /// How often each engine is run; the engines take turns, and medians are reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
    /// The budget of a manager
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    #[serde(rename = "memory_bytes")]
    pub memory: Size,
    /// The engines, in the order of their turns: kernel, soft (spaces of the library), host (real pointers,
    /// by userfaultfd); soft-vma_locks is soft without that improvement
    #[arg(long, value_name = "ENGINE", value_delimiter = ',', default_values_t = all_kinds())]
    pub engines: Vec<Engine>,
    /// Write all runs, medians and ratios to this file
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub json: Option<PathBuf>,
}

/// Options of thread-storm.
#[derive(Debug, Clone, Args, Serialize)]
pub struct StormArgs {
    /// How many threads start together; the faults of one are measured while the others map and unmap
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub threads: usize,
    /// How long each of the four phases (starts, faults alone, among others and beside others) takes in each
    /// run, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub seconds: f64,
    /// How often each engine is run; the engines take turns, and medians are reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
    /// The budget of a manager
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    #[serde(rename = "memory_bytes")]
    pub memory: Size,
    /// The engines, in the order of their turns: kernel, soft (spaces of the library), host (real pointers,
    /// by userfaultfd); soft-vma_locks is soft without that improvement
    #[arg(long, value_name = "ENGINE", value_delimiter = ',', default_values_t = [
        Engine::whole(Kind::Kernel),
        without_vma_locks(),
        Engine::whole(Kind::Soft),
        Engine::whole(Kind::Host),
    ])]
    pub engines: Vec<Engine>,
    /// Write all runs, medians and ratios to this file
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub json: Option<PathBuf>,
}

/// Options of zero-copy-receive.
#[derive(Debug, Clone, Args, Serialize)]
pub struct ReceiveArgs {
    /// How many threads: all but one insert pages, that one changes the rights of other mappings
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub threads: usize,
    /// How long each of the two phases (empty batches, full batches) takes in each run, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub seconds: f64,
    /// How often each engine is run; the engines take turns, and medians are reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
    /// How many pages of 4 KiB are inserted by one call
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub batch: usize,
    /// The budget of a manager
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    #[serde(rename = "memory_bytes")]
    pub memory: Size,
    /// The engines, in the order of their turns: soft; soft-vma_locks is soft without that improvement
    #[arg(long, value_name = "ENGINE", value_delimiter = ',', default_values_t = [
        without_vma_locks(),
        Engine::whole(Kind::Soft),
    ])]
    pub engines: Vec<Engine>,
    /// Write all runs, medians and ratios to this file
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub json: Option<PathBuf>,
}

impl LibraryBench {
    /// Where the results are to be written.
    pub fn json(&self) -> Option<&PathBuf> {
        match self {
            Self::Core(args) => args.json.as_ref(),
            Self::InMemory(args) => args.json.as_ref(),
            Self::MapUnmap(args) => args.json.as_ref(),
            Self::ThreadStorm(args) => args.json.as_ref(),
            Self::ZeroCopyReceive(args) => args.json.as_ref(),
        }
    }

    /// Checks everything that can be known to be wrong before anything is measured.
    ///
    /// # Errors
    /// If an option is out of range; the message says what is possible.
    pub fn check(&self) -> Result<()> {
        let (seconds, runs) = match self {
            Self::Core(args) => (args.seconds, args.runs),
            Self::InMemory(args) => (args.seconds, args.runs),
            Self::MapUnmap(args) => (args.seconds, args.runs),
            Self::ThreadStorm(args) => (args.seconds, args.runs),
            Self::ZeroCopyReceive(args) => (args.seconds, args.runs),
        };
        ensure!((0.01..=3600.0).contains(&seconds), "--seconds must be from 0.01 to 3600");
        ensure!((1..=1000).contains(&runs), "--runs must be from 1 to 1000");
        match self {
            Self::Core(_) => Ok(()),
            Self::InMemory(args) => {
                let threads = 1..=MAX_THREADS;
                ensure!(threads.contains(&args.threads), "--threads must be from 1 to {MAX_THREADS}");
                ensure!(
                    args.size.bytes() > 0 && args.size.bytes().is_multiple_of(PAGE_BYTES),
                    "--size must be whole pages of 4 KiB"
                );
                // Frames, and what describes them.
                let least = Size::from_bytes(args.size.bytes().saturating_mul(5) / 4).max(MIN_MEMORY);
                ensure!(args.memory >= least, "--memory must be at least {least}, so that everything fits");
                check_engines(&args.engines, "in-memory", &IN_PROCESS)
            }
            Self::MapUnmap(args) => {
                let threads = 1..=MAX_THREADS;
                ensure!(threads.contains(&args.threads), "--threads must be from 1 to {MAX_THREADS}");
                let least = super::storm::least_memory(args.threads);
                ensure!(
                    args.memory >= least.max(MIN_MEMORY),
                    "--memory must be at least {least} for {} threads",
                    args.threads
                );
                check_engines(&args.engines, "map-unmap", &IN_PROCESS)
            }
            Self::ThreadStorm(args) => {
                ensure!(
                    (2..=MAX_THREADS).contains(&args.threads),
                    "--threads must be from 2 to {MAX_THREADS}"
                );
                let least = super::storm::least_memory(args.threads).max(MIN_MEMORY);
                ensure!(
                    args.memory >= least,
                    "--memory must be at least {least} for {} threads",
                    args.threads
                );
                check_engines(&args.engines, "thread-storm", &IN_PROCESS)
            }
            Self::ZeroCopyReceive(args) => {
                ensure!(
                    (2..=MAX_THREADS).contains(&args.threads),
                    "--threads must be from 2 to {MAX_THREADS}"
                );
                ensure!((1..=256).contains(&args.batch), "--batch must be from 1 to 256");
                let least = super::receive::least_memory(args.threads, args.batch).max(MIN_MEMORY);
                ensure!(
                    args.memory >= least,
                    "--memory must be at least {least} for {} threads",
                    args.threads
                );
                // Pages are inserted into soft spaces.
                check_engines(&args.engines, "zero-copy-receive", &[Kind::Soft])
            }
        }
    }
}

/// Soft spaces whose faults take the layout lock, as they did before VMA locks.
pub fn without_vma_locks() -> Engine {
    let ablation = Ablation { vma_locks: false, ..Ablation::default() };
    Engine { kind: Kind::Soft, ablation }
}

/// Single pages are what is measured here, whatever the engine.
fn check_engines(engines: &[Engine], workload: &str, kinds: &[Kind]) -> Result<()> {
    ensure!(engines.iter().all(|engine| engine.ablation.huge_folios), "huge_folios are always off here");
    engine::check_engines(engines, workload, kinds)
}
