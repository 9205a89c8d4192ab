//! The options of what can be measured. What several have in common is here once; the defaults that differ
//! are where the workloads are listed, by [`default`] and [`threads`].

use std::path::PathBuf;

use clap::{Arg, Args, ValueEnum};
use serde::Serialize;

use crate::chunks::{ChunkSizes, Layout};
use crate::engine::Engine;
use crate::plan::{SegmentsShape, VectorShape};
use crate::routing::{Model, Recipe, Weights};
use crate::size::Size;

/// Gives an option its default in one workload.
pub(crate) fn default(value: &'static str) -> impl FnOnce(Arg) -> Arg {
    move |arg| arg.default_value(value)
}

/// Says what the threads of one workload do, and how many there are by default.
pub(crate) fn threads(value: &'static str, help: &'static str) -> impl FnOnce(Arg) -> Arg {
    move |arg| arg.default_value(value).help(help)
}

/// The same of the seconds.
pub(crate) fn seconds(value: &'static str, help: &'static str) -> impl FnOnce(Arg) -> Arg {
    move |arg| arg.default_value(value).help(help)
}

/// What everything that is measured takes.
#[derive(Debug, Clone, Args, Serialize)]
pub struct RepeatArgs {
    /// How long each engine is measured in each run, in seconds
    #[arg(long, value_name = "S", default_value = "10")]
    pub seconds: f64,
    /// How often everything is measured; engines take turns, and medians are reported
    #[arg(long, value_name = "N", default_value = "3")]
    pub runs: usize,
    /// Write all runs, medians and ratios to this file; `lab report` makes a page of it
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub json: Option<PathBuf>,
}

/// What is taken where engines are compared.
#[derive(Debug, Clone, Args, Serialize)]
pub struct TurnArgs {
    /// How many threads
    #[arg(long, value_name = "N", default_value = "1")]
    pub threads: usize,
    /// The budget: Elbowroom's --memory, or that of a manager in this process; and the limit of the kernel's
    /// control group (page cache included), where a worker program runs in one
    #[arg(long, value_name = "SIZE", default_value = "240M")]
    #[serde(rename = "memory_bytes")]
    pub memory: Size,
    /// The engines, in the order of their turns: kernel; elbowroom (by elbowroom run); soft (a soft space of
    /// the library); of the library alone also host (real pointers, by userfaultfd); of random accesses
    /// also kernel-random (with MADV_RANDOM); of first touches kernel-huge; of chunks also kernel-willneed
    /// (with MADV_WILLNEED), cache (a cache of the program's own) and device (the disk alone).
    /// elbowroom-vma_locks is elbowroom without that improvement
    #[arg(long, value_name = "ENGINE", value_delimiter = ',', default_value = "kernel,elbowroom")]
    pub engines: Vec<Engine>,
    /// What everything takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub repeat: RepeatArgs,
}

/// What every workload of the worker takes; all that some of them take.
#[derive(Debug, Clone, Args, Serialize)]
pub struct CommonArgs {
    /// The size of each file; of scan and cyclic 8 times the budget by default
    #[arg(long, value_name = "SIZE")]
    #[serde(rename = "file_bytes")]
    pub file_size: Option<Size>,
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
    /// What is taken where engines are compared.
    #[command(flatten)]
    #[serde(flatten)]
    pub turns: TurnArgs,
}

/// Options of chunks.
#[derive(Debug, Args, Serialize)]
pub struct ChunksArgs {
    /// The size of the chunks; or the smallest and the largest, between which sizes are spread evenly on a
    /// logarithmic scale, as 300K-15M; 4K are single pages
    #[arg(long, value_name = "SIZE[-SIZE]", default_value = "1M")]
    pub chunk: ChunkSizes,
    /// Chunks begin at multiples of so much, from 32 (as in GGUF files) to 4K, a power of two
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    #[serde(rename = "align_bytes")]
    pub align: Size,
    /// How uneven it is which chunks are read: the exponent of a zipf distribution; 0 is even
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.0)]
    pub skew: f64,
    /// All threads go through each chunk together, each takes the next 64 KiB of it
    #[arg(long)]
    pub together: bool,
    /// The places of the chunks, and the order in which they are read, follow from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// What every workload takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Options of segments.
#[derive(Debug, Args, Serialize)]
pub struct SegmentsArgs {
    /// What a query reads.
    #[command(flatten)]
    #[serde(flatten)]
    pub shape: SegmentsShape,
    /// What there is, and the order in which it is read, follows from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// What every workload takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Options of vector.
#[derive(Debug, Args, Serialize)]
pub struct VectorArgs {
    /// What a search reads.
    #[command(flatten)]
    #[serde(flatten)]
    pub shape: VectorShape,
    /// What there is, and the order in which it is read, follows from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// What every workload takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Options of moe.
#[derive(Debug, Args, Serialize)]
pub struct MoeArgs {
    /// How many layers and experts there are
    #[command(flatten)]
    #[serde(flatten)]
    pub model: Model,
    /// The size of an expert, whole pages
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    #[serde(rename = "expert_bytes")]
    pub expert_size: Size,
    /// The size of the dense weights of a layer, whole pages, which each token reads
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    #[serde(rename = "dense_bytes")]
    pub dense: Size,
    /// Dense weights and experts begin at multiples of so much, from 32 (as in GGUF files) to 4K, a power of
    /// two
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    #[serde(rename = "align_bytes")]
    pub align: Size,
    /// How uneven it is which experts of a layer are used: the exponent of a zipf distribution; 0 is even
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.7)]
    pub skew: f64,
    /// How probable it is that an expert of the token before is used again, from 0 to 1
    #[arg(long, value_name = "P", default_value_t = 0.3)]
    pub locality: f64,
    /// How many tokens are drawn; behind the last comes the first again
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub tokens: u64,
    /// The experts that tokens use, instead of drawn ones: a line for each token and layer with their numbers
    #[arg(long, value_name = "FILE", conflicts_with_all = ["skew", "locality", "tokens"])]
    #[serde(skip)]
    pub routing: Option<PathBuf>,
    /// Write the experts that tokens used to this file, as --routing takes it
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub record: Option<PathBuf>,
    /// Where the parts are, and which experts are drawn, follows from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// What every workload takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

impl MoeArgs {
    /// How large the parts of the model are.
    pub(crate) fn weights(&self) -> Weights {
        Weights { expert_bytes: self.expert_size.bytes(), dense_bytes: self.dense.bytes() }
    }

    /// Where these are in the file.
    pub(crate) fn layout(&self) -> Layout {
        self.model.layout(self.weights(), self.align.bytes(), self.seed)
    }

    /// How the routing is drawn.
    pub(crate) fn recipe(&self) -> Recipe {
        Recipe { tokens: self.tokens, skew: self.skew, locality: self.locality, seed: self.seed }
    }
}

/// Options of io-retry.
#[derive(Debug, Args, Serialize)]
pub struct IoRetryArgs {
    /// In which order a thread reads the pages of its file
    #[arg(long, value_enum, default_value_t = Pattern::Seq)]
    pub pattern: Pattern,
    /// What every workload takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Options of random-read.
#[derive(Debug, Args, Serialize)]
pub struct RandomReadArgs {
    /// What the worker tells its system about the mapping, by madvise, in every engine
    #[arg(long, value_enum, default_value_t = Advice::None)]
    pub advice: Advice,
    /// What every workload takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Options of shared-dirty.
#[derive(Debug, Args, Serialize)]
pub struct SharedDirtyArgs {
    /// What the stores find
    #[arg(long, value_enum, default_value_t = Start::Cached)]
    pub start: Start,
    /// The dirty limit: Elbowroom's --dirty, and that of the kernel for the whole machine (vm.dirty_bytes)
    /// during the kernel's runs, restored afterwards; soft spaces have three quarters of --memory
    #[arg(long, value_name = "SIZE")]
    #[serde(rename = "kernel_dirty_limit_bytes")]
    pub dirty_limit: Option<Size>,
    /// What every workload takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Options of file-map-churn.
#[derive(Debug, Args, Serialize)]
pub struct FileMapChurnArgs {
    /// How many mappings a thread makes before it unmaps them all
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub mappings: u64,
    /// The size of each; elbowroom run leaves mappings of less than 1M to the kernel
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    #[serde(rename = "mapping_bytes")]
    pub mapping_size: Size,
    /// What every workload takes.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}
/// Options of lock-wait.
#[derive(Debug, Args, Serialize)]
pub struct LockWaitArgs {
    /// How long threads that map and unmap pause after each time, in milliseconds: how rare writers of the
    /// layout lock are beside its readers
    #[arg(long, value_name = "MS", default_value_t = 10)]
    pub pause_ms: u64,
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
