//! The command line of `elbowroom lab`.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::PAGE_BYTES;
use crate::bench::cli::LibraryBench;
use crate::engine::Engine;
use crate::size::Size;

/// What `elbowroom lab list` prints.
pub const LIST: &str = "\
io-retry     many threads, each maps its own file, reads a byte of every page, unmaps, again
random-read  4 KiB reads at random through one shared mapping of one file
scan         one sequential pass over a file larger than the budget, then the same again and again

Of the library alone, in the lab's own process:
core               what single operations cost, in nanoseconds, beside their targets
thread-storm       many threads start at once: each maps a few areas and faults its working set in
zero-copy-receive  threads insert received pages while another changes the rights of other mappings
";

/// More threads than this make the board so large that an engine could take it for data.
const MAX_THREADS: usize = 10_000;
/// The smallest budget with which Elbowroom works, and so the smallest that can be compared.
const MIN_MEMORY: Size = Size::from_bytes(16 << 20);

const TUNE_EXAMPLES: &str = "Examples:
  elbowroom lab tune io-retry --threads 20 --memory 64M --seconds 2
  elbowroom lab tune --only standby_share,skipped_chances random-read --runs 5 --json tune.json";

/// What a signal that ends a worker's run leaves behind.
pub(crate) const PAGING_UNDONE: &str =
    "the worker is killed, and files, control groups and readahead are put back";

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
    Run {
        /// Which one, with its options.
        #[command(subcommand)]
        workload: Runnable,
    },
    /// List the workloads
    List,
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
}

/// A workload and its options.
#[derive(Debug, Subcommand, Serialize)]
#[serde(tag = "workload", rename_all = "kebab-case")]
pub enum Workload {
    /// Many threads, each maps its own file, reads a byte of every page, unmaps, again
    IoRetry(IoRetryArgs),
    /// 4 KiB reads at random through one shared mapping of one file
    RandomRead(RandomReadArgs),
    /// One sequential pass over a file larger than the budget, then the same again and again
    Scan(ScanArgs),
}

/// The options of every workload.
#[derive(Debug, Clone, Args, Serialize)]
pub struct CommonArgs {
    /// How long each engine is measured in each run, in seconds
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// The budget: Elbowroom's --memory, and the limit of the kernel's control group (page cache included)
    #[arg(long, value_name = "SIZE", default_value = "240M")]
    #[serde(rename = "memory_bytes")]
    pub memory: Size,
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
    /// The engines, in the order of their turns
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Engine::Kernel, Engine::Elbowroom])]
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
    #[arg(long, value_enum, value_delimiter = ',',
          default_values_t = [Engine::Kernel, Engine::KernelRandom, Engine::Elbowroom])]
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
    /// The engines, in the order of their turns
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Engine::Kernel, Engine::Elbowroom])]
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

/// What is told about a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// Nothing
    None,
    /// MADV_RANDOM
    Random,
}

/// The name of an option's value, as the command lines of the lab and of the worker have it.
pub(crate) fn option_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

impl Runnable {
    /// What a signal that ends the run leaves behind.
    pub(crate) fn undone(&self) -> &'static str {
        match self {
            Self::Paging(_) => PAGING_UNDONE,
            Self::Library(_) => "the threads are stopped, and nothing is left behind",
        }
    }
}

impl Workload {
    /// The name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::IoRetry(_) => "io-retry",
            Self::RandomRead(_) => "random-read",
            Self::Scan(_) => "scan",
        }
    }

    /// What every workload takes.
    pub fn common(&self) -> &CommonArgs {
        match self {
            Self::IoRetry(args) => &args.common,
            Self::RandomRead(args) => &args.common,
            Self::Scan(args) => &args.common,
        }
    }

    /// The engines, in the order of their turns.
    pub fn engines(&self) -> &[Engine] {
        match self {
            Self::IoRetry(args) => &args.engines,
            Self::RandomRead(args) => &args.engines,
            Self::Scan(args) => &args.engines,
        }
    }

    /// How many reading threads the worker has.
    pub fn threads(&self) -> usize {
        match self {
            Self::IoRetry(args) => args.threads,
            Self::RandomRead(args) => args.threads,
            Self::Scan(args) => args.threads,
        }
    }

    /// How many files there are.
    pub fn files(&self) -> u64 {
        match self {
            Self::IoRetry(args) => args.threads as u64,
            Self::RandomRead(_) | Self::Scan(_) => 1,
        }
    }

    /// The size of each file.
    pub fn file_size(&self) -> Size {
        match self {
            Self::IoRetry(args) => args.file_size,
            Self::RandomRead(args) => args.file_size,
            Self::Scan(args) => args.file_size.unwrap_or_else(|| {
                let budget = args.common.memory.bytes().next_multiple_of(PAGE_BYTES);
                Size::from_bytes(budget.saturating_mul(8))
            }),
        }
    }

    /// Checks everything that can be known to be wrong before any file is made.
    ///
    /// # Errors
    /// If an option is out of range; the message says what is possible.
    pub fn check(&self) -> Result<()> {
        let (common, file_size, engines) = (self.common(), self.file_size(), self.engines());
        ensure!((1..=MAX_THREADS).contains(&self.threads()), "--threads must be from 1 to {MAX_THREADS}");
        ensure!((0.1..=86_400.0).contains(&common.seconds), "--seconds must be from 0.1 to 86400");
        ensure!((0.1..=3_600.0).contains(&common.grace_seconds), "--grace-seconds must be from 0.1 to 3600");
        ensure!((1..=1000).contains(&common.runs), "--runs must be from 1 to 1000");
        ensure!(
            common.memory >= MIN_MEMORY,
            "--memory must be at least {MIN_MEMORY}, or nothing can run in it"
        );
        ensure!(
            file_size.bytes() > 0
                && file_size.bytes().is_multiple_of(PAGE_BYTES)
                && file_size.pages() < 1 << 32,
            "--file-size must be whole pages of 4 KiB, at least one and less than 16T"
        );
        ensure!(
            !matches!(self, Self::Scan(_)) || file_size.pages() >= self.threads() as u64,
            "scan needs a file of at least one page per thread"
        );
        if let Some(readahead) = common.kernel_readahead {
            ensure!(
                readahead.bytes().is_multiple_of(PAGE_BYTES) && readahead.bytes() <= 1 << 30,
                "--kernel-readahead must be whole pages of 4 KiB and at most 1G"
            );
        }
        ensure!(!engines.is_empty(), "--engines must name at least one engine");
        for (index, engine) in engines.iter().enumerate() {
            ensure!(!engines[..index].contains(engine), "--engines names {engine} twice");
            ensure!(
                *engine != Engine::KernelRandom || matches!(self, Self::RandomRead(_)),
                "the engine kernel-random is for random-read only"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        lab: LabArgs,
    }

    fn parse(line: &str) -> Result<Workload> {
        match Cli::try_parse_from(line.split(' '))?.lab.command {
            LabCommand::Run { workload: Runnable::Paging(workload) } => workload.check().map(|()| workload),
            _ => unreachable!("these tests run workloads of the worker"),
        }
    }

    #[test]
    fn the_documented_command_is_understood() {
        let line =
            "lab run io-retry --threads 7 --seconds 5 --memory 240M --engines kernel,elbowroom --json F";
        let workload = parse(&format!("{line} --kernel-readahead 128K")).unwrap();
        assert_eq!((workload.threads(), workload.files(), workload.file_size().pages()), (7, 7, 4096));
        assert_eq!(workload.engines(), [Engine::Kernel, Engine::Elbowroom]);
        assert_eq!(workload.common().kernel_readahead.map(Size::bytes), Some(128 << 10));
    }

    #[test]
    fn a_scan_is_eight_budgets_long() {
        assert_eq!(parse("lab run scan --memory 32M").unwrap().file_size().bytes(), 256 << 20);
    }

    #[test]
    fn what_cannot_work_is_refused_before_it_starts() {
        for wrong in [
            "io-retry --threads 0",
            "io-retry --seconds 0",
            "io-retry --seconds nan",
            "io-retry --memory 0",
            "io-retry --memory much",
            "io-retry --file-size 5000",
            "io-retry --runs 0",
            "io-retry --engines kernel,kernel",
            "io-retry --engines kernel-random",
            "io-retry --kernel-readahead 5K",
            "scan --threads 2 --file-size 4K",
            "swap",
        ] {
            assert!(parse(&format!("lab run {wrong}")).is_err(), "{wrong}");
        }
    }
}
