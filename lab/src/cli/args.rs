//! The options of the workloads that a worker runs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::engine::{Engine, Kind};
use crate::size::Size;

/// The kernel and Elbowroom.
fn kernel_and_ours() -> Vec<Engine> {
    [Kind::Kernel, Kind::Elbowroom].map(Engine::whole).to_vec()
}

/// The same, and the kernel with MADV_RANDOM.
fn kernels_and_ours() -> Vec<Engine> {
    [Kind::Kernel, Kind::KernelRandom, Kind::Elbowroom].map(Engine::whole).to_vec()
}

/// The kernel, then each kind without one improvement, where there is one of that name, and with it.
fn before_and_after(improvement: &str, kinds: &[Kind]) -> Vec<Engine> {
    let pair = |kind: &Kind| [Engine::without(*kind, improvement), Some(Engine::whole(*kind))];
    let pairs = kinds.iter().flat_map(pair).flatten();
    [Engine::whole(Kind::Kernel)].into_iter().chain(pairs).collect()
}

/// The options of every workload.
#[derive(Debug, Clone, Args, Serialize)]
pub struct CommonArgs {
    /// How long each engine is measured in each run, in seconds
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// The budget: Elbowroom's --memory, and the limit of the kernel's control group (page cache included);
    /// by default 240M, and 1536M for shared-dirty
    #[arg(long, value_name = "SIZE")]
    #[serde(rename = "memory_bytes")]
    pub memory: Option<Size>,
    /// How often each engine is run; the engines take turns, and medians are reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
    /// Write all runs, medians and ratios to this file
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub json: Option<PathBuf>,
    /// The device's readahead during the kernel's runs; it is restored afterwards
    #[arg(long, value_name = "SIZE")]
    #[serde(rename = "kernel_readahead_bytes")]
    pub kernel_readahead: Option<Size>,
    /// Where to make the files, on a disk; by default $TMPDIR, the current directory or /var/tmp, the first
    /// that is on one
    #[arg(long, value_name = "DIR")]
    #[serde(skip)]
    pub dir: Option<PathBuf>,
    /// How long a worker may take to start, and to end when its time is over, before it is killed, in seconds
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    pub grace_seconds: f64,
}

/// Options of io-retry.
#[derive(Debug, Args, Serialize)]
pub struct IoRetryArgs {
    /// How many threads, each with a file of its own
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub threads: usize,
    /// The size of each thread's file
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    #[serde(rename = "file_bytes")]
    pub file_size: Size,
    /// In which order a thread reads the pages of its file
    #[arg(long, value_enum, default_value_t = Pattern::Seq)]
    pub pattern: Pattern,
    /// The engines, in the order of their turns: kernel, elbowroom (by elbowroom run), soft (a soft space of
    /// the library); elbowroom-vma_locks is elbowroom without that improvement
    #[arg(long, value_name = "ENGINE", value_delimiter = ',', default_values_t = kernel_and_ours())]
    pub engines: Vec<Engine>,
    /// What every workload takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Options of random-read.
#[derive(Debug, Args, Serialize)]
pub struct RandomReadArgs {
    /// How many threads read through the one mapping
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub threads: usize,
    /// The size of the file
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    #[serde(rename = "file_bytes")]
    pub file_size: Size,
    /// What the worker tells its system about the mapping, by madvise, in every engine
    #[arg(long, value_enum, default_value_t = Advice::None)]
    pub advice: Advice,
    /// The engines, in the order of their turns; kernel-random is the kernel with MADV_RANDOM
    #[arg(long, value_name = "ENGINE", value_delimiter = ',', default_values_t = kernels_and_ours())]
    pub engines: Vec<Engine>,
    /// What every workload takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Options of scan.
#[derive(Debug, Args, Serialize)]
pub struct ScanArgs {
    /// How many threads, each of which reads its own part of the file
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// The size of the file; by default 8 times the budget
    #[arg(long, value_name = "SIZE")]
    #[serde(rename = "file_bytes")]
    pub file_size: Option<Size>,
    /// The engines, in the order of their turns: kernel, elbowroom (by elbowroom run), soft (a soft space of
    /// the library); elbowroom-vma_locks is elbowroom without that improvement
    #[arg(long, value_name = "ENGINE", value_delimiter = ',', default_values_t = kernel_and_ours())]
    pub engines: Vec<Engine>,
    /// What every workload takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Options of random-write.
#[derive(Debug, Args, Serialize)]
pub struct RandomWriteArgs {
    /// How many threads store through the one mapping
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub threads: usize,
    /// The size of the file
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    #[serde(rename = "file_bytes")]
    pub file_size: Size,
    /// The engines, in the order of their turns; kernel-random is the kernel with MADV_RANDOM
    #[arg(long, value_name = "ENGINE", value_delimiter = ',', default_values_t = kernels_and_ours())]
    pub engines: Vec<Engine>,
    /// What every workload takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Options of shared-dirty.
#[derive(Debug, Args, Serialize)]
pub struct SharedDirtyArgs {
    /// How many threads: one stores, the others map, read and unmap parts of another file, a quarter of the
    /// time while nobody stores
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// The size of the file, and of the other one
    #[arg(long, value_name = "SIZE", default_value = "400MiB")]
    #[serde(rename = "file_bytes")]
    pub file_size: Size,
    /// What the stores find
    #[arg(long, value_enum, default_value_t = Start::Cached)]
    pub start: Start,
    /// The kernel's dirty limit for the whole machine (vm.dirty_bytes) during the kernel's runs; it is
    /// restored afterwards. Elbowroom's is a third of its budget: --memory
    #[arg(long, value_name = "SIZE")]
    #[serde(rename = "kernel_dirty_limit_bytes")]
    pub kernel_dirty_limit: Option<Size>,
    /// The engines, in the order of their turns: kernel, elbowroom (by elbowroom run), soft (a soft space of
    /// the library); elbowroom-vma_locks is elbowroom without that improvement
    #[arg(long, value_name = "ENGINE", value_delimiter = ',',
          default_values_t = before_and_after("completed", &[Kind::Elbowroom]))]
    pub engines: Vec<Engine>,
    /// What every workload takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Options of file-map-churn.
#[derive(Debug, Args, Serialize)]
pub struct FileMapChurnArgs {
    /// How many threads map and unmap
    #[arg(long, value_name = "N", default_value_t = 160)]
    pub threads: usize,
    /// The size of the file
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    #[serde(rename = "file_bytes")]
    pub file_size: Size,
    /// How many mappings a thread makes before it unmaps them all
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub mappings: u64,
    /// The size of each; elbowroom run leaves mappings of less than 1M to the kernel
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    #[serde(rename = "mapping_bytes")]
    pub mapping_size: Size,
    /// The engines, in the order of their turns: kernel, elbowroom (by elbowroom run), soft (a soft space of
    /// the library); soft-vma_locks is soft without that improvement
    #[arg(long, value_name = "ENGINE", value_delimiter = ',',
          default_values_t = before_and_after("narrow_file_lock", &[Kind::Elbowroom, Kind::Soft]))]
    pub engines: Vec<Engine>,
    /// What every workload takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Options of uptodate-wait.
#[derive(Debug, Args, Serialize)]
pub struct UptodateWaitArgs {
    /// How many threads read the same pages at the same time
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub threads: usize,
    /// The size of the file; much more than the budget, so that pages are cold
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    #[serde(rename = "file_bytes")]
    pub file_size: Size,
    /// The engines, in the order of their turns: kernel, elbowroom (by elbowroom run), soft (a soft space of
    /// the library); soft-vma_locks is soft without that improvement
    #[arg(long, value_name = "ENGINE", value_delimiter = ',',
          default_values_t = before_and_after("uptodate_wait", &[Kind::Elbowroom, Kind::Soft]))]
    pub engines: Vec<Engine>,
    /// What every workload takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Options of lock-wait.
#[derive(Debug, Args, Serialize)]
pub struct LockWaitArgs {
    /// How many threads: of each four, two read a file at random, one maps anonymous memory, touches and
    /// unmaps it, and one maps, protects and unmaps parts of the file
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub threads: usize,
    /// The size of the file; more than the budget, so that reads are outstanding all the time
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    #[serde(rename = "file_bytes")]
    pub file_size: Size,
    /// The engines, in the order of their turns: kernel, elbowroom (by elbowroom run), soft (a soft space of
    /// the library); soft-vma_locks is soft without that improvement
    #[arg(long, value_name = "ENGINE", value_delimiter = ',',
          default_values_t = before_and_after("vma_locks", &[Kind::Elbowroom]))]
    pub engines: Vec<Engine>,
    /// What every workload takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// In which order pages are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// From start to end; mapped anew for every round
    Seq,
    /// As many pages as the file has, each drawn at random; mapped anew for every round
    Random,
    /// From start to end, again and again through one mapping that is kept
    Cyclic,
}

/// What the first stores of shared-dirty find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// A file of data that is in memory, and clean
    Cached,
    /// A new file without data for each pass, a hole; up to two of them are there at a time
    Hole,
}

/// What is told about a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// Nothing
    None,
    /// MADV_RANDOM
    Random,
}
