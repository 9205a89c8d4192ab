//! The command line of `lab run programs`.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::catalog::{self, Program};
use crate::engine::{self, Engine, Kind};
use crate::size::Size;

/// Examples for the help.
pub const EXAMPLES: &str = "Examples:
  elbowroom lab run programs --kind files
  elbowroom lab run programs --kind memory --percent 25 --memory 128M
  elbowroom lab run programs --kind in-memory --only maps,zstd      everything fits: at most 1.05 times plain
  elbowroom lab run programs --kind auto --only redis,needs          what is the least that works?
  elbowroom lab run programs --kind models --install                 builds llama.cpp once, some 10 minutes
  elbowroom lab run programs --kind models --percent 25 --runs 1     a model of 3 layers instead of 12
  elbowroom lab run programs --only lmdb,git --runs 5 --dir /data/lab --json programs.json
  elbowroom lab run programs --percent 2 --memory 32M --runs 1      with little data, to try it
  elbowroom lab run programs --install                              installs what is missing

The programs of --kind files, and what they need:
  numpy    12,000 rows at random of an array of 3 GiB        python: numpy
  sums     the sums of all columns of the same array         python: numpy
  sqlite   a scan of 2 GB, 8,000 lookups                     python (its own module sqlite3)
  ripgrep  a search in 1.5 GiB of lines                      apt: ripgrep; python: numpy
  annoy    the neighbours of 40 points, index of 0.9 GB      python: annoy, numpy
  lmdb     50,000 reads of 1.5 GB, 2,500 durable commits     python: lmdb
  lmdb-map the same, stored through the mapping              python: lmdb
  faiss    400 searches in inverted lists of 1 GB            python: faiss-cpu, numpy
  tokyo    1,000,000 stores to a hash database, in a quarter of the memory
                                                             apt: libtokyocabinet-dev, gcc
  git      60,000 objects of a pack of 1 GB, through windows of 1 MiB
                                                             apt: git; python
Those of --kind models, with a quarter of the model as memory:
  llama    32 tokens of a mixture of experts of random weights in f16: 3.4 GB, 12 layers x 32 experts
           of 8.65 MB, of which 4 are used   apt: g++; python: llama-cpp-python (built by pip), gguf, numpy
  faiss    400 searches in inverted lists of 1 GB; a third of that memory
                                                             python: faiss-cpu, numpy
  tantivy  3,000 queries of an index of 1.4 GB, and the texts of what they find; half of that memory
                                                             python: tantivy, numpy
Plain is the kernel with all memory that there is, and the model is in the page cache then. Each token and a
checksum of what it was chosen from must be the same in all engines. A table of its own has tokens per second,
without the program's start and the prompt.
Those of --kind memory, which need four times the memory that they have:
  arrays   sort, histogram and matrix product                python: numpy
  frames   group-by and join of 24,000,000 rows              python: polars
  sort     570 MB of lines in memory; half of the memory     apt: coreutils; python
  zstd     the same lines, --long=31; a quarter of it        apt: zstd; python
  sqlite   9,000,000 rows and an index in memory; half       python (its own module sqlite3)
  redis    7,000,000 values, then reads and changes          apt: redis-server; python
  java     a map of 12,000,000 strings                       apt: default-jdk-headless
  maps     two maps of 6,000,000 strings in C++              apt: g++
  hnswlib  4,000 searches by the graph of an index of 0.8 GB in memory; half
                                                             apt: g++; python: hnswlib (built by pip), numpy
  duckdb   groups, a join and an order of 24,000,000 rows    python: duckdb
The kernel has a swap file in DIR then, and plain is the kernel with all memory that there is.
Those of --kind in-memory are the same, with so much memory that nothing is paged out (--memory 4G, or in
proportion to --percent; at least 256M): plain, beside Elbowroom with its default heap (elbowroom-large)
and with --heap all (elbowroom). Their data is in the page cache, and free memory is touched before each run
(--cold-memory: it is not). Each must take at most 1.05 times the time of plain, which is said of each, as is
a run that paged out although it should not have.
Those of --kind auto are the same, and
  needs    1 GiB of memory of which an eighth is used          apt: gcc
with --memory auto (elbowroom-auto) beside a budget in which everything fits (elbowroom), and beside what was
needed, divided by 1.3 (elbowroom-less). The first is to take at most 1.05 times the time, the last more.
Under Elbowroom the resident memory of each process is sampled every 10 ms. It must be at most the budget,
32 MiB, and what is not managed, which /proc/PID/smaps tells.
Python is that of DIR/venv if there is one, else python3. The data is made once, about 12 GB, and kept.";

/// What the programs have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProgramsKind {
    /// They map files that are larger than the memory
    Files,
    /// They read chunks of mapped files that are larger than the memory: of a model, of indexes
    Models,
    /// They allocate more than the memory
    Memory,
    /// The same programs, and everything fits
    InMemory,
    /// The same programs, with as much memory as they need: --memory auto
    Auto,
}

/// Options of programs.
#[derive(Debug, Clone, Args, Serialize)]
pub struct ProgramsArgs {
    /// Which programs
    #[arg(long, value_enum, default_value_t = ProgramsKind::Files)]
    pub kind: ProgramsKind,
    /// Only these, with commas between; by default all of the kind
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// How often each engine runs each program; the engines take turns, and medians are reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
    /// Elbowroom's --memory, and the limit of the kernel's control group (page cache included) [default: 256M
    /// for files, a quarter of the model for models, 512M for memory, 4G for in-memory and auto or in
    /// proportion to --percent]
    #[arg(long, value_name = "SIZE")]
    #[serde(rename = "memory_bytes")]
    pub memory: Option<Size>,
    /// Elbowroom's --swap, and the size of the kernel's swap file; for --kind memory, in-memory and
    /// auto [default: eight times the memory; for in-memory and auto once]
    #[arg(long, value_name = "SIZE")]
    #[serde(rename = "swap_bytes")]
    pub swap: Option<Size>,
    /// The device's readahead during all runs; it is restored afterwards
    #[arg(long, value_name = "SIZE", default_value = "128K")]
    #[serde(rename = "kernel_readahead_bytes")]
    pub kernel_readahead: Size,
    /// How much data is made and used, in percent of the usual
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub percent: u64,
    /// The engines, in the order of their turns: plain; kernel; elbowroom (with
    /// --heap all); elbowroom-large (with --heap large); elbowroom-auto (with --memory auto);
    /// elbowroom-less (with less than that needed); elbowroom-vma_locks is elbowroom without that improvement
    /// [default: kernel and elbowroom; for models and memory plain before them; for in-memory plain,
    /// elbowroom-large and elbowroom; for auto elbowroom, elbowroom-auto and elbowroom-less]
    #[arg(long, value_name = "ENGINE", value_delimiter = ',')]
    pub engines: Vec<Engine>,
    /// For --kind in-memory, leave free memory as it is before each run. Without this as much as --memory,
    /// but at most half of what is available, is touched and freed first: where a hypervisor takes free
    /// memory back, whoever needs it next waits some 2 ms for each huge page
    #[arg(long)]
    pub cold_memory: bool,
    /// Where the data is made, and found the next time, on a disk; by default elbowroom-lab-programs in
    /// $TMPDIR, the current directory or /var/tmp, the first that is on one
    #[arg(long, value_name = "DIR")]
    #[serde(skip)]
    pub dir: Option<PathBuf>,
    /// Install what is missing: Python's modules into DIR/venv, all else by apt-get
    #[arg(long)]
    #[serde(skip)]
    pub install: bool,
    /// How long one run may take before it is killed, in seconds
    #[arg(long, value_name = "S", default_value_t = 600.0)]
    pub bound_seconds: f64,
    /// Write all runs, medians and ratios to this file
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub json: Option<PathBuf>,
}

impl ProgramsArgs {
    /// Checks everything that can be known to be wrong before any data is made.
    ///
    /// # Errors
    /// If an option is out of range; the message says what is possible.
    pub fn check(&self) -> Result<()> {
        ensure!((1..=1000).contains(&self.runs), "--runs must be from 1 to 1000");
        ensure!((1..=1000).contains(&self.percent), "--percent must be from 1 to 1000");
        ensure!((1.0..=86_400.0).contains(&self.bound_seconds), "--bound-seconds must be from 1 to 86400");
        // A quarter of it must be enough for a manager.
        ensure!(self.memory() >= Size::from_bytes(32 << 20), "--memory must be at least 32M");
        ensure!(
            self.swap.is_none() || !matches!(self.kind, ProgramsKind::Files | ProgramsKind::Models),
            "--swap is for --kind memory, in-memory and auto"
        );
        for name in &self.only {
            if !self.all().iter().any(|program| program.name == name) {
                let known: Vec<_> = self.all().iter().map(|program| program.name).collect();
                bail!("--only: there is no program {name}; there are {}", known.join(", "));
            }
        }
        let kinds = [
            Kind::Plain,
            Kind::Kernel,
            Kind::ElbowroomLarge,
            Kind::ElbowroomAuto,
            Kind::ElbowroomLess,
            Kind::Elbowroom,
        ];
        let engines = self.engines();
        let at = |kind| engines.iter().position(|engine| engine.kind == kind);
        ensure!(
            at(Kind::ElbowroomLess)
                .is_none_or(|less| at(Kind::ElbowroomAuto).is_some_and(|auto| auto < less)),
            "--engines: elbowroom-less needs elbowroom-auto before it"
        );
        engine::check_engines(&self.engines(), "programs", &kinds)
    }

    /// The programs of the kind.
    pub fn all(&self) -> &'static [Program] {
        match self.kind {
            ProgramsKind::Files => &catalog::FILES,
            ProgramsKind::Models => &catalog::MODELS,
            ProgramsKind::Memory | ProgramsKind::InMemory => &catalog::MEMORY,
            ProgramsKind::Auto => &catalog::AUTO,
        }
    }

    /// How much they may have.
    pub fn memory(&self) -> Size {
        let by_kind = match self.kind {
            ProgramsKind::Files => 256,
            // Of a model that is hardly there a quarter would be less than a manager needs.
            ProgramsKind::Models => catalog::quarter_of_model(self.percent).max(32),
            ProgramsKind::Memory => 512,
            ProgramsKind::InMemory | ProgramsKind::Auto => (4096 * self.percent / 100).max(256),
        };
        self.memory.unwrap_or(Size::from_bytes(by_kind << 20))
    }

    /// How much of their memory may be somewhere else; `None`: none.
    pub fn swap(&self) -> Option<Size> {
        let by_kind = match self.kind {
            ProgramsKind::Files | ProgramsKind::Models => return None,
            ProgramsKind::Memory => 8,
            ProgramsKind::InMemory | ProgramsKind::Auto => 1,
        };
        Some(self.swap.unwrap_or(Size::from_bytes(by_kind * self.memory().bytes())))
    }

    /// How much a program may have of what all may have.
    pub fn part_for(&self, program: &Program, all: Size) -> Size {
        match self.kind {
            ProgramsKind::InMemory | ProgramsKind::Auto => all,
            ProgramsKind::Files | ProgramsKind::Models | ProgramsKind::Memory => {
                Size::from_bytes(all.bytes() / program.memory_divisor)
            }
        }
    }

    /// Whether everything is to fit, so that what is measured is the cost of that.
    pub fn is_in_memory(&self) -> bool {
        self.kind == ProgramsKind::InMemory
    }

    /// Whether an engine has the data in the page cache from the start. Plain has models there: it is to show
    /// what is possible without a disk.
    pub fn begins_warm(&self, engine: Engine) -> bool {
        matches!(self.kind, ProgramsKind::InMemory | ProgramsKind::Auto)
            || (self.kind == ProgramsKind::Models && engine.kind == Kind::Plain)
    }

    /// Who takes turns.
    pub fn engines(&self) -> Vec<Engine> {
        if !self.engines.is_empty() {
            return self.engines.clone();
        }
        let kinds: &[Kind] = match self.kind {
            ProgramsKind::Files => &[Kind::Kernel, Kind::Elbowroom],
            ProgramsKind::Memory | ProgramsKind::Models => &[Kind::Plain, Kind::Kernel, Kind::Elbowroom],
            ProgramsKind::Auto => &[Kind::Elbowroom, Kind::ElbowroomAuto, Kind::ElbowroomLess],
            ProgramsKind::InMemory => &[Kind::Plain, Kind::ElbowroomLarge, Kind::Elbowroom],
        };
        kinds.iter().copied().map(Engine::whole).collect()
    }

    /// Whether a program is to be run.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}
