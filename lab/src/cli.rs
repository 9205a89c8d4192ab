//! The command line of `elbowroom lab`.

mod args;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

pub use self::args::{
    Advice, ChunksArgs, CommonArgs, FileMapChurnArgs, IoRetryArgs, LockWaitArgs, MoeArgs, Pattern,
    RandomReadArgs, RepeatArgs, SegmentsArgs, SharedDirtyArgs, Start, TurnArgs, VectorArgs,
};
pub(crate) use self::args::{default, seconds, threads};
use crate::bench::cli::LibraryBench;
use crate::chunks::Layout;
use crate::engine::{self, Engine, Kind};
use crate::plan::Plan;
use crate::routing::Model;
use crate::seeds::SeedsArgs;
use crate::size::Size;
use crate::tree::{self, cli::TreeArgs};
use crate::unmodified::{self, cli::ProgramsArgs};
use crate::{PAGE_BYTES, PART_BYTES};

/// What `elbowroom lab list` prints.
pub const LIST: &str = "\
By a worker program, in each engine in turn:
io-retry           many threads, each maps its own file, reads a byte of every page, unmaps, again
random-read        4 KiB reads at random through one shared mapping of one file
random-write       the same with stores
scan               one sequential pass over a file larger than the budget, then the same again and again
cyclic             the same; what counts are the passes after the first
shared-dirty       one thread stores to every page of a shared mapping, whose file is in memory
file-map-churn     many threads map, touch and unmap parts of one file, as fast as they can
uptodate-wait      many threads read the same cold pages of one file at the same time
chunks             threads read whole chunks of 4 KiB to 15 MiB at random places of one file
moe                a model of experts: each token reads the dense weights and some experts of each layer
segments           queries of a search engine: skip lists, postings in order, stored fields at random
vector             searches for near vectors, by a graph of neighbours
lock-wait          threads fault with reads outstanding, while others map, protect and unmap

Of the library alone, in the lab's own process:
anonymous-touch    first touches of anonymous memory that fits, in order and at random, and further ones
core               what single operations cost, in nanoseconds, beside their targets
fork-exec          fork + exec of a process with 512 MiB that fit, beside the kernel's
heap               blocks of the heap at random, more than the budget, of a whole process
hot-cold           loads and stores, most of them to a few pages, of more memory than the budget
in-memory          accesses at random to memory that fits, beside a plain pointer
map-unmap          map + unmap of 64 KiB, and map + touch + unmap, per second
sequential-pass    one pass of stores and one of loads over more than the budget, beside lz4 alone
swap-in            threads page memory out while others read it, beside the kernel's swap
thread-storm       many threads start at once: each maps a few areas and faults its working set in
usemem             workers touch more memory than the budget at random, beside the kernel's swap
zero-copy-receive  threads insert received pages while another changes the rights of other mappings

Unmodified programs:
programs           on files larger than their memory (numpy, SQLite, ripgrep, Annoy, LMDB, faiss, git ...)
programs           --kind models: models and indexes larger than their memory (llama.cpp, faiss, Tantivy)
programs           --kind memory: allocate more than their memory (NumPy, Polars, redis, Java, C++ ...)
programs           --kind in-memory: the same, and everything fits: what does it cost?
tree               trees of processes under one budget: Python workers, make, commands, kills
";

/// More threads than this make the board so large that an engine could take it for data.
const MAX_THREADS: usize = 10_000;
/// The smallest budget with which Elbowroom works, and so the smallest that can be compared.
const MIN_MEMORY: Size = Size::from_bytes(16 << 20);

/// What a program with a cache of its own needs beside it, in bytes; and a thirty-second of the budget.
const OWN_BYTES: u64 = 4 << 20;
/// What it needs for each chunk that is in its cache, in bytes, at most.
const OWN_BYTES_PER_CHUNK: u64 = 256;

const IO_RETRY_EXAMPLES: &str = "Examples:
  elbowroom lab run io-retry --threads 100 --memory 240M --kernel-readahead 128K
  elbowroom lab run io-retry --engines elbowroom-vma_locks,elbowroom --json io-retry.json";

const RANDOM_EXAMPLES: &str = "Examples:
  elbowroom lab run random-read --threads 16 --memory 200M --kernel-readahead 128K
  elbowroom lab run random-write --threads 64 --engines kernel-random,elbowroom --json write.json";

const SCAN_EXAMPLES: &str = "Examples:
  elbowroom lab run scan --memory 240M
  elbowroom lab run cyclic --memory 64M --threads 2 --engines kernel,elbowroom,soft";

const SHARED_DIRTY_EXAMPLES: &str = "Examples:
  elbowroom lab run shared-dirty --seconds 5 --engines kernel,elbowroom-vma_locks,elbowroom,soft
  elbowroom lab run shared-dirty --start hole
  elbowroom lab run shared-dirty --threads 3 --file-size 64M --memory 96M --dirty-limit 32M
                                        a low dirty limit, and others that map and fault meanwhile";

const CHURN_EXAMPLES: &str = "Examples:
  elbowroom lab run file-map-churn --threads 160 --seconds 5
  elbowroom lab run file-map-churn --mappings 8 --engines soft-vma_locks,soft --json churn.json";

const UPTODATE_EXAMPLES: &str = "Examples:
  elbowroom lab run uptodate-wait --threads 16 --kernel-readahead 128K
  elbowroom lab run uptodate-wait --engines elbowroom-vma_locks,elbowroom,soft --json wait.json";

const LOCK_WAIT_EXAMPLES: &str = "Examples:
  elbowroom lab run lock-wait --threads 40 --kernel-readahead 128K
  elbowroom lab run lock-wait --engines soft-vma_locks,soft --json lock-wait.json";

const CHUNKS_EXAMPLES: &str = "Examples:
  elbowroom lab run chunks --kernel-readahead 128K
  elbowroom lab run chunks --chunk 300K-15M --threads 1 --file-size 4G --memory 1G
  elbowroom lab run chunks --chunk 4K --threads 16 --engines kernel-random,cache,elbowroom,device
  elbowroom lab run chunks --chunk 15M --threads 2 --together --skew 0.8 --align 32 --json chunks.json";

const QUERY_EXAMPLES: &str = "Examples:
  elbowroom lab run segments --kernel-readahead 128K
  elbowroom lab run segments --terms 4 --hits 50 --skew 1 --threads 1
  elbowroom lab run vector --vector-size 4K --beam 64 --kernel-readahead 128K
  elbowroom lab run vector --threads 16 --engines kernel-random,cache,elbowroom,device --json vector.json";

const MOE_EXAMPLES: &str = "Examples:
  elbowroom lab run moe --kernel-readahead 128K
  elbowroom lab run moe --layers 12 --experts 32 --used 4 --expert-size 8860K --memory 800M
  elbowroom lab run moe --record routing.txt && elbowroom lab run moe --routing routing.txt --memory 512M";

const SEEDS_EXAMPLES: &str = "Examples:
  elbowroom lab seeds --json seeds.json -o report.html
  elbowroom lab seeds --only lock-wait,file-map-churn --runs 5 -o locks.html

It takes about 9 minutes on 2 processors. After Ctrl-C, what was measured is still written. The exit status
is 1 if a workload failed, and 130 after a signal.";

const REPORT_EXAMPLES: &str = "Examples:
  elbowroom lab run lock-wait --json lock-wait.json && elbowroom lab report lock-wait.json
  elbowroom lab report seeds.json random-read.json -o figures.html";

const TUNE_EXAMPLES: &str = "Examples:
  elbowroom lab tune io-retry --threads 20 --memory 64M --seconds 2
  elbowroom lab tune --only standby_share,skipped_chances random-read --runs 5 --json tune.json";

/// What a signal that ends a worker's run leaves behind.
pub(crate) const PAGING_UNDONE: &str =
    "the worker is killed, and files, control groups, readahead and dirty limit are put back";

/// A name of what can be switched off.
fn parse_name(text: &str) -> Result<String, String> {
    elbowroom::Ablation::without(text).map(|_| text.trim().to_owned())
}

/// `elbowroom lab`: the reference workloads, beside the kernel.
#[derive(Debug, Args)]
pub struct LabArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// What the lab can do.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Run one workload in several engines in turn, and compare them
    #[command(after_help = engine::legend_of_all())]
    Run {
        /// Which one, with its options.
        #[command(subcommand)]
        workload: Runnable,
    },
    /// List the workloads
    List,
    /// Run all workloads in a short form, in each engine and without what each is about, in minutes
    #[command(after_help = SEEDS_EXAMPLES)]
    Seeds(SeedsArgs),
    /// Make one HTML page of files that `lab run --json` and `lab seeds --json` have written
    #[command(after_help = REPORT_EXAMPLES)]
    Report {
        /// The files; their workloads are in one page
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// The page; what is there under that name is replaced if all goes well
        #[arg(short, long, value_name = "FILE", default_value = "report.html")]
        output: PathBuf,
    },
    /// Run one workload with each improvement and tuned constant switched off, beside runs with all on
    #[command(after_help = TUNE_EXAMPLES)]
    Tune {
        /// Only these, with commas between; by default all
        #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = parse_name)]
        only: Vec<String>,
        /// Which one, with its options; its engines are not asked for.
        #[command(subcommand)]
        workload: Workload,
    },
}

/// What `lab run` can run.
#[derive(Debug, Subcommand)]
pub enum Runnable {
    /// By a worker program, in several engines.
    #[command(flatten)]
    Paging(Workload),
    /// In the lab's own process.
    #[command(flatten)]
    Library(LibraryBench),
    /// Programs that people use, on files larger than the memory, beside the kernel
    #[command(after_help = unmodified::cli::EXAMPLES)]
    Programs(ProgramsArgs),
    /// Trees of processes under one budget, beside the kernel
    #[command(after_help = tree::cli::EXAMPLES)]
    Tree(TreeArgs),
}

/// A workload and its options. The improvement that is off by default is the one that the workload is about.
#[derive(Debug, Subcommand, Serialize)]
#[serde(tag = "workload", rename_all = "kebab-case")]
pub enum Workload {
    /// Many threads, each maps its own file, reads a byte of every page, unmaps, again
    #[command(
        after_help = IO_RETRY_EXAMPLES,
        mut_arg("threads", threads("100", "How many threads, each with a file of its own")),
        mut_arg("file_size", default("16MiB")),
    )]
    IoRetry(IoRetryArgs),
    /// 4 KiB reads at random through one shared mapping of one file
    #[command(
        after_help = RANDOM_EXAMPLES,
        mut_arg("threads", threads("16", "How many threads read through the one mapping")),
        mut_arg("file_size", default("2GiB")),
        mut_arg("engines", default("kernel,kernel-random,elbowroom")),
    )]
    RandomRead(RandomReadArgs),
    /// Stores at random through one shared mapping of one file
    #[command(
        after_help = RANDOM_EXAMPLES,
        mut_arg("threads", threads("16", "How many threads store through the one mapping")),
        mut_arg("file_size", default("2GiB")),
        mut_arg("engines", default("kernel,kernel-random,elbowroom")),
    )]
    RandomWrite(CommonArgs),
    /// One sequential pass over a file larger than the budget, then the same again and again
    #[command(
        after_help = SCAN_EXAMPLES,
        mut_arg("threads", threads("1", "How many threads, each of which reads its own part of the file")),
    )]
    Scan(CommonArgs),
    /// The same as scan; what counts are the passes after the first
    #[command(
        after_help = SCAN_EXAMPLES,
        mut_arg("threads", threads("1", "How many threads, each of which reads its own part of the file")),
    )]
    Cyclic(CommonArgs),
    // So much memory that its file is no third of it, from which on stores are throttled.
    /// One thread stores to every page of a shared mapping, whose file is in memory
    #[command(
        after_help = SHARED_DIRTY_EXAMPLES,
        mut_arg("threads", threads("1", DIRTY_THREADS)),
        mut_arg("file_size", default("400MiB")),
        mut_arg("memory", default("1536M")),
        mut_arg("engines", default("kernel,elbowroom-completed,elbowroom")),
    )]
    SharedDirty(SharedDirtyArgs),
    /// Many threads map, touch and unmap parts of one file, as fast as they can
    #[command(
        after_help = CHURN_EXAMPLES,
        mut_arg("threads", threads("160", "How many threads map and unmap")),
        mut_arg("file_size", default("64MiB")),
        mut_arg("engines", default(CHURN_ENGINES)),
    )]
    FileMapChurn(FileMapChurnArgs),
    /// Many threads read the same cold pages of one file at the same time
    #[command(
        after_help = UPTODATE_EXAMPLES,
        mut_arg("threads", threads("16", "How many threads read the same pages at the same time")),
        mut_arg("file_size", default("1GiB")),
        mut_arg("engines", default("kernel,elbowroom-uptodate_wait,elbowroom,soft-uptodate_wait,soft")),
    )]
    UptodateWait(CommonArgs),
    /// Threads fault with reads outstanding, while others map, protect and unmap
    #[command(
        after_help = LOCK_WAIT_EXAMPLES,
        mut_arg("threads", threads("40", LOCK_WAIT_THREADS)),
        mut_arg("file_size", default("1GiB")),
        mut_arg("engines", default(LOCK_WAIT_ENGINES)),
    )]
    LockWait(LockWaitArgs),
    /// Threads read whole chunks at random places of one file
    #[command(
        after_help = CHUNKS_EXAMPLES,
        mut_arg("threads", threads("8", CHUNKS_THREADS)),
        mut_arg("file_size", default("1GiB")),
        mut_arg("memory", default("256M")),
        mut_arg("engines", default(CHUNK_ENGINES)),
    )]
    Chunks(ChunksArgs),
    /// Queries of a search engine: skip lists, postings in order, stored fields at random
    #[command(
        after_help = QUERY_EXAMPLES,
        mut_arg("threads", threads("4", "How many threads ask, each queries of its own")),
        mut_arg("file_size", default("1GiB")),
        mut_arg("memory", default("256M")),
        mut_arg("engines", default(CHUNK_ENGINES)),
    )]
    Segments(SegmentsArgs),
    /// Searches for near vectors, by a graph of neighbours
    #[command(
        after_help = QUERY_EXAMPLES,
        mut_arg("threads", threads("8", "How many threads search, each for vectors of its own")),
        mut_arg("file_size", default("1GiB")),
        mut_arg("memory", default("256M")),
        mut_arg("engines", default(CHUNK_ENGINES)),
    )]
    Vector(VectorArgs),
    /// A model of experts that is larger than memory: each token reads the dense weights and some experts of
    /// each layer
    #[command(
        after_help = MOE_EXAMPLES,
        mut_arg("threads", threads("2", "How many threads read each part of the model together")),
        mut_arg("file_size", |arg| arg.hide(true)),
        mut_arg("memory", default("260M")),
        mut_arg("engines", default(CHUNK_ENGINES)),
    )]
    Moe(MoeArgs),
}

const CHUNKS_THREADS: &str = "How many threads read chunks, each its own, or all the same with --together";
const CHUNK_ENGINES: &str = "kernel,kernel-random,kernel-willneed,cache,elbowroom,device";
const DIRTY_THREADS: &str = "How many threads: one stores, the others map, read and unmap parts of another \
                             file, a quarter of the time while nobody stores";
const CHURN_ENGINES: &str = "kernel,elbowroom-narrow_file_lock,elbowroom,soft-narrow_file_lock,soft";
const LOCK_WAIT_THREADS: &str = "How many threads: of each four, two read a file at random, one maps \
                                 anonymous memory, touches and unmaps it, and one maps, protects and \
                                 unmaps parts of the file";
const LOCK_WAIT_ENGINES: &str = "kernel,elbowroom-vma_locks,elbowroom-retry_under_vma_lock,elbowroom";

/// The name of an option's value, as the command lines of the lab and of the worker have it.
pub(crate) fn option_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

impl Runnable {
    /// The name on the command line.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Paging(workload) => workload.name(),
            Self::Library(bench) => bench.name(),
            Self::Programs(_) => "programs",
            Self::Tree(_) => "tree",
        }
    }

    /// What a signal that ends the run leaves behind.
    pub(crate) fn undone(&self) -> &'static str {
        match self {
            Self::Paging(_) => PAGING_UNDONE,
            Self::Library(_) => "the threads are stopped, and nothing is left behind",
            Self::Programs(_) => unmodified::UNDONE,
            Self::Tree(_) => tree::UNDONE,
        }
    }
}

impl Workload {
    /// The name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::IoRetry(_) => "io-retry",
            Self::RandomRead(_) => "random-read",
            Self::RandomWrite(_) => "random-write",
            Self::Scan(_) => "scan",
            Self::Cyclic(_) => "cyclic",
            Self::SharedDirty(_) => "shared-dirty",
            Self::FileMapChurn(_) => "file-map-churn",
            Self::UptodateWait(_) => "uptodate-wait",
            Self::LockWait(_) => "lock-wait",
            Self::Chunks(_) => "chunks",
            Self::Moe(_) => "moe",
            Self::Segments(_) => "segments",
            Self::Vector(_) => "vector",
        }
    }

    /// The name of the worker's mode.
    pub fn mode(&self) -> &'static str {
        match self {
            Self::Cyclic(_) => "scan",
            _ => self.name(),
        }
    }

    /// What every workload takes.
    pub fn common(&self) -> &CommonArgs {
        match self {
            Self::IoRetry(IoRetryArgs { common, .. })
            | Self::RandomRead(RandomReadArgs { common, .. })
            | Self::SharedDirty(SharedDirtyArgs { common, .. })
            | Self::FileMapChurn(FileMapChurnArgs { common, .. })
            | Self::RandomWrite(common)
            | Self::Scan(common)
            | Self::Cyclic(common)
            | Self::LockWait(LockWaitArgs { common, .. })
            | Self::Chunks(ChunksArgs { common, .. })
            | Self::Moe(MoeArgs { common, .. })
            | Self::Segments(SegmentsArgs { common, .. })
            | Self::Vector(VectorArgs { common, .. })
            | Self::UptodateWait(common) => common,
        }
    }

    /// What everything that is measured takes.
    pub fn repeat(&self) -> &RepeatArgs {
        &self.common().turns.repeat
    }

    /// The budget.
    pub fn memory(&self) -> Size {
        self.common().turns.memory
    }

    /// The engines, in the order of their turns.
    pub fn engines(&self) -> &[Engine] {
        &self.common().turns.engines
    }

    /// How many threads the worker has, without the bystander.
    pub fn threads(&self) -> usize {
        self.common().turns.threads
    }

    /// How many files there are.
    pub fn files(&self) -> u64 {
        match self {
            Self::IoRetry(_) => self.threads() as u64,
            // The others have a file of their own.
            Self::SharedDirty(_) if self.threads() > 1 => 2,
            _ => 1,
        }
    }

    /// The size of each file.
    pub fn file_size(&self) -> Size {
        if let Self::Moe(args) = self {
            return Size::from_bytes(args.layout().end());
        }
        self.common().file_size.unwrap_or_else(|| {
            let budget = self.memory().bytes().next_multiple_of(PAGE_BYTES);
            Size::from_bytes(budget.saturating_mul(8))
        })
    }

    /// How many pages a round has: a pass over a file, or a token.
    pub(crate) fn pages_per_round(&self) -> u64 {
        match self {
            Self::Moe(args) => args.model.pages_per_token(args.weights()),
            _ => self.file_size().pages(),
        }
    }

    /// Whether runs in which it is measured how long locks are held, which is not free, belong to it.
    pub fn has_hold_times(&self) -> bool {
        matches!(self, Self::FileMapChurn(_))
    }

    /// The kernel's dirty limit in its runs, if it is to be another than the machine's.
    pub fn dirty_limit(&self) -> Option<Size> {
        match self {
            Self::SharedDirty(args) => args.dirty_limit,
            _ => None,
        }
    }

    /// The options of the worker's mode that only it has.
    pub(crate) fn worker_options(&self, engine: Engine) -> Vec<(&'static str, String)> {
        let random = engine.kind == Kind::KernelRandom;
        match self {
            Self::IoRetry(args) => vec![("--pattern", option_name(args.pattern))],
            Self::RandomRead(args) => {
                vec![("--advice", option_name(if random { Advice::Random } else { args.advice }))]
            }
            Self::RandomWrite(_) => {
                vec![("--advice", option_name(if random { Advice::Random } else { Advice::None }))]
            }
            Self::FileMapChurn(args) => vec![
                ("--mappings", args.mappings.to_string()),
                ("--mapping-bytes", args.mapping_size.bytes().to_string()),
            ],
            Self::SharedDirty(args) => vec![("--start", option_name(args.start))],
            Self::LockWait(args) => vec![("--pause-ms", args.pause_ms.to_string())],
            Self::Chunks(args) => {
                let mut options = vec![
                    ("--chunk", args.chunk.to_string()),
                    ("--align", args.align.bytes().to_string()),
                    ("--skew", args.skew.to_string()),
                    ("--order", args.seed.to_string()),
                ];
                if args.together {
                    options.push(("--together", "true".into()));
                }
                options.extend(self.reading_options(engine.kind));
                options
            }
            Self::Segments(SegmentsArgs { shape, seed, .. }) => {
                let options = [
                    ("--terms", shape.terms.to_string()),
                    ("--hits", shape.hits.to_string()),
                    ("--skew", shape.skew.to_string()),
                    ("--order", seed.to_string()),
                ];
                options.into_iter().chain(self.reading_options(engine.kind)).collect()
            }
            Self::Vector(VectorArgs { shape, seed, .. }) => {
                let options = [
                    ("--vector-size", shape.vector_size.bytes().to_string()),
                    ("--links", shape.links.to_string()),
                    ("--beam", shape.beam.to_string()),
                    ("--skew", shape.skew.to_string()),
                    ("--order", seed.to_string()),
                ];
                options.into_iter().chain(self.reading_options(engine.kind)).collect()
            }
            Self::Moe(args) => {
                let Model { layers, experts, used } = args.model;
                let mut options = vec![
                    ("--layers", layers.to_string()),
                    ("--experts", experts.to_string()),
                    ("--used", used.to_string()),
                    ("--expert-bytes", args.expert_size.bytes().to_string()),
                    ("--dense-bytes", args.dense.bytes().to_string()),
                    ("--align", args.align.bytes().to_string()),
                    ("--order", args.seed.to_string()),
                ];
                options.extend(self.reading_options(engine.kind));
                options
            }
            Self::Scan(_) | Self::Cyclic(_) | Self::UptodateWait(_) => Vec::new(),
        }
    }

    /// How the worker reads chunks.
    fn reading_options(&self, kind: Kind) -> [(&'static str, String); 2] {
        let way = match kind {
            Kind::KernelRandom => "random",
            Kind::KernelWillneed => "willneed",
            Kind::Cache => "cache",
            Kind::Device => "direct",
            _ => "mapped",
        };
        [("--way", way.into()), ("--cache-bytes", self.cache_bytes().to_string())]
    }

    /// What of the budget the engine `cache` has for chunks, in bytes. The rest is for the program itself,
    /// for what it knows of all chunks, and of those that are there.
    pub(crate) fn cache_bytes(&self) -> u64 {
        let (memory, layout) = (self.memory().bytes(), self.layout());
        let (count, largest) = layout.map_or((0, PAGE_BYTES), |layout| (layout.count(), layout.largest()));
        let vectors = match self {
            Self::Vector(args) => self.file_size().bytes() / args.shape.vector_size.bytes(),
            _ => 0,
        };
        let own = OWN_BYTES + memory / 32 + 24 * count + 4 * vectors;
        let left = u128::from(memory.saturating_sub(own));
        (left * u128::from(largest) / u128::from(largest + OWN_BYTES_PER_CHUNK)) as u64
    }

    /// What is read, where the workload is of chunks that are drawn.
    pub(crate) fn plan(&self) -> Option<Plan> {
        let file_bytes = self.file_size().bytes();
        match self {
            Self::Chunks(args) => {
                let layout = Layout::fill(file_bytes, args.chunk, args.align.bytes(), args.seed)?;
                Some(Plan::of_chunks(layout, args.skew, args.seed))
            }
            Self::Segments(args) => Plan::of_segments(file_bytes, args.shape, args.seed),
            Self::Vector(args) => Plan::of_vectors(file_bytes, args.shape, args.seed),
            _ => None,
        }
    }

    /// The chunks of the file, where the workload is of chunks.
    pub(crate) fn layout(&self) -> Option<Layout> {
        match self {
            Self::Moe(args) => Some(args.layout()),
            _ => self.plan().map(|plan| plan.layout),
        }
    }

    /// Whether all threads go through each chunk together.
    pub(crate) fn is_together(&self) -> bool {
        match self {
            Self::Chunks(args) => args.together,
            _ => matches!(self, Self::Moe(_)),
        }
    }

    /// The engines that it has.
    fn kinds(&self) -> &'static [Kind] {
        match self {
            Self::RandomRead(_) | Self::RandomWrite(_) => {
                &[Kind::Kernel, Kind::KernelRandom, Kind::Elbowroom, Kind::Soft]
            }
            Self::Chunks(_) | Self::Moe(_) | Self::Segments(_) | Self::Vector(_) => &[
                Kind::Kernel,
                Kind::KernelRandom,
                Kind::KernelWillneed,
                Kind::Cache,
                Kind::Elbowroom,
                Kind::Soft,
                Kind::Device,
            ],
            _ => &[Kind::Kernel, Kind::Elbowroom, Kind::Soft],
        }
    }

    /// Checks everything that can be known to be wrong before any file is made.
    ///
    /// # Errors
    /// If an option is out of range; the message says what is possible.
    pub fn check(&self) -> Result<()> {
        let (common, repeat, file_size) = (self.common(), self.repeat(), self.file_size());
        ensure!((1..=MAX_THREADS).contains(&self.threads()), "--threads must be from 1 to {MAX_THREADS}");
        ensure!((0.1..=86_400.0).contains(&repeat.seconds), "--seconds must be from 0.1 to 86400");
        ensure!((0.1..=3_600.0).contains(&common.grace_seconds), "--grace-seconds must be from 0.1 to 3600");
        ensure!((1..=1000).contains(&repeat.runs), "--runs must be from 1 to 1000");
        ensure!(
            self.memory() >= MIN_MEMORY,
            "--memory must be at least {MIN_MEMORY}, or nothing can run in it"
        );
        ensure!(
            file_size.bytes() > 0
                && file_size.bytes().is_multiple_of(PAGE_BYTES)
                && file_size.pages() < 1 << 32,
            "--file-size must be whole pages of 4 KiB, at least one and less than 16T"
        );
        self.check_own(file_size)?;
        if let Some(readahead) = common.kernel_readahead {
            ensure!(
                readahead.bytes().is_multiple_of(PAGE_BYTES) && readahead.bytes() <= 1 << 30,
                "--kernel-readahead must be whole pages of 4 KiB and at most 1G"
            );
        }
        engine::check_engines(self.engines(), self.name(), self.kinds())
    }

    /// What only one workload asks for.
    fn check_own(&self, file_size: Size) -> Result<()> {
        match self {
            Self::Scan(_) | Self::Cyclic(_) => ensure!(
                file_size.pages() >= self.threads() as u64,
                "scan needs a file of at least one page per thread"
            ),
            Self::SharedDirty(args) => {
                ensure!(
                    self.threads() == 1 || file_size.bytes() >= PART_BYTES,
                    "the other threads map parts of 1M of a file: --file-size must be at least that"
                );
                let limits = (16 * PAGE_BYTES)..=(1 << 40);
                ensure!(
                    args.dirty_limit.is_none_or(|limit| limits.contains(&limit.bytes())),
                    "--dirty-limit must be from 64K to 1T"
                );
            }
            Self::FileMapChurn(args) => {
                let bytes = args.mapping_size.bytes();
                ensure!(
                    bytes > 0 && bytes.is_multiple_of(PAGE_BYTES) && bytes <= file_size.bytes(),
                    "--mapping-size must be whole pages of 4 KiB, and at most the size of the file"
                );
                ensure!((1..=1000).contains(&args.mappings), "--mappings must be from 1 to 1000");
            }
            Self::LockWait(args) => {
                ensure!(args.pause_ms <= 1000, "--pause-ms must be at most 1000");
                ensure!(
                    self.threads() >= 4,
                    "lock-wait has three kinds of threads: --threads must be at least 4"
                );
                ensure!(
                    file_size.bytes() >= PART_BYTES,
                    "threads map parts of 1M of the file: --file-size must be at least that"
                );
            }
            Self::Chunks(args) => {
                check_align(args.align)?;
                ensure!(args.chunk.least.bytes() >= PAGE_BYTES, "--chunk must be at least 4K");
                check_skew(args.skew)?;
                self.check_layout()?;
            }
            Self::Segments(SegmentsArgs { shape, .. }) => {
                check_skew(shape.skew)?;
                ensure!((1..=1000).contains(&shape.terms), "--terms must be from 1 to 1000");
                ensure!(shape.hits <= 100_000, "--hits must be at most 100000");
                self.check_layout()?;
            }
            Self::Vector(VectorArgs { shape, .. }) => {
                check_skew(shape.skew)?;
                let bytes = shape.vector_size.bytes();
                ensure!(
                    bytes.is_power_of_two() && (512..=PAGE_BYTES).contains(&bytes),
                    "--vector-size must be 512, 1K, 2K or 4K"
                );
                ensure!((2..=256).contains(&shape.links), "--links must be from 2 to 256");
                ensure!((1..=1000).contains(&shape.beam), "--beam must be from 1 to 1000");
                ensure!(file_size.bytes() <= 1 << 40, "--file-size must be at most 1T");
                self.check_layout()?;
            }
            Self::Moe(args) => {
                check_align(args.align)?;
                check_skew(args.skew)?;
                check_model(args)?;
                self.check_layout()?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Fails unless an alignment is one of chunks.
fn check_align(align: Size) -> Result<()> {
    ensure!(
        align.bytes().is_power_of_two() && (32..=PAGE_BYTES).contains(&align.bytes()),
        "--align must be a power of two from 32 to 4K"
    );
    Ok(())
}

/// Fails unless there can be such a model, and such a routing.
fn check_model(args: &MoeArgs) -> Result<()> {
    let Model { layers, experts, used } = args.model;
    ensure!((1..=1000).contains(&layers), "--layers must be from 1 to 1000");
    ensure!((1..=1000).contains(&experts), "--experts must be from 1 to 1000");
    ensure!((1..=experts).contains(&used), "--used must be from 1 to --experts");
    for (name, size) in [("--expert-size", args.expert_size), ("--dense", args.dense)] {
        let is_whole = size.bytes().is_multiple_of(PAGE_BYTES);
        ensure!(
            is_whole && (PAGE_BYTES..=1 << 30).contains(&size.bytes()),
            "{name} must be whole pages of 4 KiB, at least one and at most 1G"
        );
    }
    ensure!((0.0..1.0).contains(&args.locality), "--locality must be from 0 to less than 1");
    ensure!((1..=1_000_000).contains(&args.tokens), "--tokens must be from 1 to 1000000");
    ensure!(
        args.common.file_size.is_none(),
        "the file is as large as the model: give --layers, --experts, --expert-size and --dense, and leave \
         --file-size out"
    );
    Ok(())
}

/// Fails unless a skew is one that gives a distribution.
fn check_skew(skew: f64) -> Result<()> {
    ensure!((0.0..=10.0).contains(&skew), "--skew must be from 0 to 10");
    Ok(())
}

impl Workload {
    /// Fails unless there are chunks, and the budget has room for some of them.
    fn check_layout(&self) -> Result<()> {
        let layout = self.layout().context("no chunk fits into the file: raise --file-size")?;
        let largest = layout.largest();
        let is_cached = self.engines().iter().any(|engine| engine.kind == Kind::Cache);
        ensure!(
            !is_cached || self.cache_bytes() >= 2 * (largest + 2 * PAGE_BYTES),
            "the engine cache needs room for two chunks of {}: raise --memory, or leave it out",
            Size::from_bytes(largest)
        );
        Ok(())
    }
}
