//! The command lines of what is measured in the lab's own process.

use anyhow::{Result, ensure};
use clap::{Arg, Args, Subcommand};
use elbowroom::Ablation;
use serde::Serialize;

use super::anonymous_touch::AnonymousTouchArgs;
use super::fork_exec::ForkExecArgs;
use super::heap::HeapArgs;
use super::hot_cold::HotColdArgs;
use super::paging::check_pages;
use super::sequential_pass::SequentialPassArgs;
use super::swap_in::SwapInArgs;
use super::usemem::UsememArgs;
use crate::cli::{RepeatArgs, TurnArgs, default, seconds, threads};
use crate::engine::{self, Engine, Kind};
use crate::size::Size;

/// The engines in the lab's own process.
const IN_PROCESS: [Kind; 3] = [Kind::Kernel, Kind::Soft, Kind::Host];
/// The same, and the kernel without a limit.
const WITH_PLAIN: [Kind; 4] = [Kind::Kernel, Kind::Plain, Kind::Soft, Kind::Host];
/// Those that have whole processes.
const WHOLE_PROCESSES: [Kind; 4] = [Kind::Plain, Kind::Kernel, Kind::ElbowroomLarge, Kind::Elbowroom];
/// Those whose forks differ.
const FORKING: [Kind; 3] = [Kind::Plain, Kind::Elbowroom, Kind::ElbowroomForkKernel];
/// Those in the lab's process, and the kernel with pages of 2 MiB.
const WITH_HUGE: [Kind; 4] = [Kind::Kernel, Kind::KernelHuge, Kind::Soft, Kind::Host];
/// The most threads of one engine.
const MAX_THREADS: usize = 1000;
/// The smallest budget in which a thread-storm of the most threads has its working sets.
const MIN_MEMORY: Size = Size::from_bytes(16 << 20);

const TOUCH_EXAMPLES: &str = "Examples:
  elbowroom lab run anonymous-touch
  elbowroom lab run anonymous-touch --size 256M --memory 320M --engines kernel,host-huge_folios,host";

const FORK_EXEC_EXAMPLES: &str = "Examples:
  elbowroom lab run fork-exec
  elbowroom lab run fork-exec --size 64M --forks 5 --engines plain,elbowroom --json fork.json

Each engine has a process of its own, in which everything fits. The median of its forks is asked to be at
most 1.5 times that of plain, and so is the first. With elbowroom-fork-kernel (--fork kernel) that gives all
memory to the kernel, and those after it are the kernel's own.";

const PASS_EXAMPLES: &str = "Examples:
  elbowroom lab run sequential-pass
  elbowroom lab run sequential-pass --size 256M --memory 64M --runs 1 --engines kernel,elbowroom
  elbowroom lab run sequential-pass --content noise --threads 2 --json pass.json

Every page is written, then every page is read and checked, once. The reading pass is asked to reach
1.5 GB/s, or what lz4 compresses and expands of the same pages on two threads if that is less, which is
measured in each run; and the peak of VmRSS, sampled every 10 ms, to be at most the budget, 32 MiB, and what
is not managed, which /proc/PID/smaps tells.";

const HEAP_EXAMPLES: &str = "Examples:
  elbowroom lab run heap
  elbowroom lab run heap --threads 2 --size 512M --engines kernel,elbowroom --json heap.json";

const HOT_COLD_EXAMPLES: &str = "Examples:
  elbowroom lab run hot-cold
  elbowroom lab run hot-cold --hot 25 --stores 0 --threads 4 --engines kernel,elbowroom --json hot.json";

const USEMEM_EXAMPLES: &str = "Examples:
  elbowroom lab run usemem
  elbowroom lab run usemem --threads 16 --size 32M --memory 64M --content noise --json usemem.json
  elbowroom lab run usemem --groups                waits for the LRU lock by call site, in a group in a group
  elbowroom lab run usemem --groups --short        the same with little of everything, to try it";

/// Those that are compared in a group in a group: before and after.
const GROUP_ENGINES: &str = "kernel,soft-scan_cost,soft";

/// Other defaults with `--groups`, and with `--short` as well.
fn in_groups(whole: &'static str, short: &'static str) -> impl FnOnce(Arg) -> Arg {
    move |arg| arg.default_value_ifs([("short", "true", Some(short)), ("groups", "true", Some(whole))])
}

const CORE_EXAMPLES: &str = "Examples:
  elbowroom lab run core --json core.json
  elbowroom lab run core --seconds 1 --runs 9      take longer, for steadier medians";

const SWAP_IN_EXAMPLES: &str = "Examples:
  elbowroom lab run swap-in --content zero
  elbowroom lab run swap-in --content noise --engines kernel,soft-retry_under_vma_lock,soft --seconds 5";

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

/// What most of them have time for, and what for.
const EACH_PHASE: &str = "How long each phase of a run takes, in seconds";

/// A measurement of the library alone.
#[derive(Debug, Subcommand)]
pub enum LibraryBench {
    /// First touches of anonymous memory that fits, in order and at random, and further ones
    #[command(
        after_help = TOUCH_EXAMPLES,
        mut_arg("threads", threads("1", "How many threads touch it, each its own part")),
        mut_arg("seconds", seconds("1", "For how long, at least, memory is mapped and touched in a run")),
        mut_arg("memory", default("1280M")),
        mut_arg("engines", default("kernel,kernel-huge,soft,host")),
    )]
    AnonymousTouch(AnonymousTouchArgs),
    /// What single operations cost, in nanoseconds, beside their targets
    #[command(
        after_help = CORE_EXAMPLES,
        mut_arg("seconds", seconds("0.3", "How long each figure is measured in each run, in seconds")),
        mut_arg("runs", default("5")),
    )]
    Core(RepeatArgs),
    /// fork + exec of a process with much memory that fits, beside the kernel's
    #[command(
        after_help = FORK_EXEC_EXAMPLES,
        mut_arg("threads", |arg| arg.hide(true)),
        mut_arg("seconds", |arg| arg.hide(true)),
        mut_arg("memory", default("1G")),
        mut_arg("engines", |arg| default("plain,elbowroom,elbowroom-fork-kernel")(arg).help(FORK_ENGINES)),
    )]
    ForkExec(ForkExecArgs),
    /// Blocks of the heap at random, more than the budget: whole processes, beside the kernel's swap
    #[command(
        after_help = HEAP_EXAMPLES,
        mut_arg("threads", threads("4", "How many threads, each with blocks of its own")),
        mut_arg("seconds", seconds("5", "How long a run takes, in seconds, without allocating at first")),
        mut_arg("memory", default("128M")),
        mut_arg("engines", |arg| default("plain,kernel,elbowroom-large,elbowroom")(arg).help(HEAP_ENGINES)),
    )]
    Heap(HeapArgs),
    /// Loads and stores of more memory than the budget, most of them to a few pages, as redis does: whole
    /// processes, beside the kernel's swap
    #[command(
        after_help = HOT_COLD_EXAMPLES,
        mut_arg("threads", threads("1", "How many threads, each with memory of its own")),
        mut_arg("seconds", seconds("5", "How long a run takes, in seconds, without filling the memory")),
        mut_arg("memory", default("128M")),
        mut_arg("engines", |arg| default("plain,kernel,elbowroom")(arg).help(HEAP_ENGINES)),
    )]
    HotCold(HotColdArgs),
    /// Accesses to memory that fits, beside a plain pointer
    #[command(
        after_help = IN_MEMORY_EXAMPLES,
        mut_arg("threads", threads("1", "How many threads read, all of them the same memory")),
        mut_arg("seconds", seconds("0.5", EACH_PHASE)),
        mut_arg("memory", default("256M")),
        mut_arg("engines", default("kernel,soft,host")),
    )]
    InMemory(InMemoryArgs),
    /// Mappings of 64 KiB made and unmapped per second, untouched and touched
    #[command(
        after_help = MAP_UNMAP_EXAMPLES,
        mut_arg("threads", threads("1", "How many threads map and unmap")),
        mut_arg("seconds", seconds("1", EACH_PHASE)),
        mut_arg("memory", default("256M")),
        mut_arg("engines", default("kernel,soft,host")),
    )]
    MapUnmap(TurnArgs),
    /// One pass of stores and one of loads over more memory than the budget, beside lz4 alone
    #[command(
        after_help = PASS_EXAMPLES,
        mut_arg("threads", threads("1", "How many threads, each of which has its own part")),
        mut_arg("seconds", seconds("0.5", "How long lz4 is measured in each run, each way")),
        mut_arg("memory", default("1G")),
        mut_arg("engines", |arg| default("plain,kernel,elbowroom")(arg).help(HEAP_ENGINES)),
    )]
    SequentialPass(SequentialPassArgs),
    /// Threads page memory out while others read it, beside the kernel's swap
    #[command(
        after_help = SWAP_IN_EXAMPLES,
        mut_arg("threads", threads("5", "How many threads read, and as many page out")),
        mut_arg("seconds", seconds("30", "How long a run takes, in seconds")),
        mut_arg("memory", default("256M")),
        mut_arg("engines", default("kernel,soft,host")),
    )]
    SwapIn(SwapInArgs),
    /// Many threads start at once: each maps a few areas and faults its working set in
    #[command(
        after_help = STORM_EXAMPLES,
        mut_arg("threads", threads("100", STORM_THREADS)),
        mut_arg("seconds", seconds("1", EACH_PHASE)),
        mut_arg("memory", default("256M")),
        mut_arg("engines", default("kernel,soft-vma_locks,soft,host")),
    )]
    ThreadStorm(TurnArgs),
    /// Workers touch more memory than the budget at random, beside the kernel's swap
    #[command(
        after_help = USEMEM_EXAMPLES,
        mut_arg("threads", threads("4", "How many workers, each with memory of its own")),
        mut_arg("threads", in_groups("16", "4")),
        mut_arg("seconds", seconds("10", "How long a run takes, in seconds, without filling the memory")),
        mut_arg("seconds", in_groups("30", "2")),
        mut_arg("runs", in_groups("3", "1")),
        mut_arg("size", in_groups("256M", "32M")),
        mut_arg("memory", |arg| in_groups("512M", "64M")(default("128M")(arg))),
        mut_arg("engines", default("kernel,soft,host")),
        mut_arg("engines", in_groups(GROUP_ENGINES, GROUP_ENGINES)),
    )]
    Usemem(UsememArgs),
    /// Threads insert received pages while another changes the rights of other mappings
    #[command(
        after_help = RECEIVE_EXAMPLES,
        mut_arg("threads", threads("4", RECEIVE_THREADS)),
        mut_arg("seconds", seconds("1", EACH_PHASE)),
        mut_arg("memory", default("64M")),
        mut_arg("engines", default("soft-vma_locks,soft")),
    )]
    ZeroCopyReceive(ReceiveArgs),
}

const HEAP_ENGINES: &str = "The engines, in the order of their turns: plain (the kernel, with all memory \
                            that there is); kernel (in a control group, with a swap file); elbowroom (by \
                            elbowroom run --heap all); elbowroom-large (with --heap large: small blocks \
                            stay with the kernel)";
const FORK_ENGINES: &str = "The engines, in the order of their turns: plain (the kernel); elbowroom (by \
                            elbowroom run); elbowroom-fork-kernel (with --fork kernel)";
const STORM_THREADS: &str = "How many threads start together; the faults of one are measured while the \
                             others map and unmap";
const RECEIVE_THREADS: &str =
    "How many threads: all but one insert pages, that one changes the rights of other mappings";

/// Options of in-memory.
#[derive(Debug, Clone, Args, Serialize)]
pub struct InMemoryArgs {
    /// How much memory is read
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    #[serde(rename = "size_bytes")]
    pub size: Size,
    /// What is taken where engines are compared.
    #[command(flatten)]
    #[serde(flatten)]
    pub turns: TurnArgs,
}

/// Options of zero-copy-receive.
#[derive(Debug, Clone, Args, Serialize)]
pub struct ReceiveArgs {
    /// How many pages of 4 KiB are inserted by one call
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub batch: usize,
    /// What is taken where engines are compared.
    #[command(flatten)]
    #[serde(flatten)]
    pub turns: TurnArgs,
}

impl LibraryBench {
    /// The name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AnonymousTouch(_) => "anonymous-touch",
            Self::Core(_) => "core",
            Self::ForkExec(_) => "fork-exec",
            Self::Heap(_) => "heap",
            Self::HotCold(_) => "hot-cold",
            Self::InMemory(_) => "in-memory",
            Self::MapUnmap(_) => "map-unmap",
            Self::SequentialPass(_) => "sequential-pass",
            Self::SwapIn(_) => "swap-in",
            Self::ThreadStorm(_) => "thread-storm",
            Self::Usemem(_) => "usemem",
            Self::ZeroCopyReceive(_) => "zero-copy-receive",
        }
    }

    /// What everything that is measured takes.
    pub fn repeat(&self) -> &RepeatArgs {
        match self {
            Self::Core(repeat) => repeat,
            _ => &self.turns().expect("only core has no engines").repeat,
        }
    }

    /// What is taken where engines are compared; `core` does not.
    pub fn turns(&self) -> Option<&TurnArgs> {
        match self {
            Self::Core(_) => None,
            Self::AnonymousTouch(AnonymousTouchArgs { turns, .. })
            | Self::ForkExec(ForkExecArgs { turns, .. })
            | Self::Heap(HeapArgs { turns, .. })
            | Self::HotCold(HotColdArgs { turns, .. })
            | Self::SequentialPass(SequentialPassArgs { turns, .. })
            | Self::InMemory(InMemoryArgs { turns, .. })
            | Self::Usemem(UsememArgs { turns, .. })
            | Self::SwapIn(SwapInArgs { turns, .. })
            | Self::MapUnmap(turns)
            | Self::ThreadStorm(turns)
            | Self::ZeroCopyReceive(ReceiveArgs { turns, .. }) => Some(turns),
        }
    }

    /// Checks everything that can be known to be wrong before anything is measured.
    ///
    /// # Errors
    /// If an option is out of range; the message says what is possible.
    pub fn check(&self) -> Result<()> {
        let RepeatArgs { seconds, runs, .. } = self.repeat();
        ensure!((0.01..=3600.0).contains(seconds), "--seconds must be from 0.01 to 3600");
        ensure!((1..=1000).contains(runs), "--runs must be from 1 to 1000");
        let Some(TurnArgs { threads, memory, engines, .. }) = self.turns() else { return Ok(()) };
        let fewest = if matches!(self, Self::ThreadStorm(_) | Self::ZeroCopyReceive(_)) { 2 } else { 1 };
        ensure!((fewest..=MAX_THREADS).contains(threads), "--threads must be from {fewest} to {MAX_THREADS}");
        let least = self.least_memory(*threads)?;
        ensure!(*memory >= least, "--memory must be at least {least}, so that everything fits");
        match self {
            // How large pages are is a part of an engine's name here.
            Self::AnonymousTouch(_) => engine::check_engines(engines, self.name(), &WITH_HUGE),
            // Pages are inserted into soft spaces.
            Self::ZeroCopyReceive(_) => check_engines(engines, self.name(), &[Kind::Soft]),
            Self::Heap(_) | Self::HotCold(_) | Self::SequentialPass(_) => {
                engine::check_engines(engines, self.name(), &WHOLE_PROCESSES)
            }
            Self::ForkExec(_) => engine::check_engines(engines, self.name(), &FORKING),
            Self::Usemem(_) => check_engines(engines, self.name(), &WITH_PLAIN),
            _ => check_engines(engines, self.name(), &IN_PROCESS),
        }
    }

    /// The least budget in which so many threads have what they use.
    fn least_memory(&self, threads: usize) -> Result<Size> {
        let least = match self {
            Self::Core(_) => MIN_MEMORY,
            Self::InMemory(args) => {
                check_pages(args.size)?;
                // Frames, and what describes them.
                Size::from_bytes(args.size.bytes().saturating_mul(5) / 4)
            }
            Self::AnonymousTouch(args) => super::anonymous_touch::least_memory(args)?,
            Self::SwapIn(args) => super::swap_in::least_memory(args)?,
            Self::ForkExec(args) => super::fork_exec::least_memory(args)?,
            Self::SequentialPass(args) => {
                super::sequential_pass::check(args)?;
                MIN_MEMORY
            }
            Self::Heap(args) => {
                super::heap::check(args)?;
                MIN_MEMORY
            }
            Self::HotCold(args) => {
                super::hot_cold::check(args)?;
                MIN_MEMORY
            }
            Self::Usemem(args) => {
                super::usemem::check(args)?;
                MIN_MEMORY
            }
            Self::MapUnmap(_) | Self::ThreadStorm(_) => super::storm::least_memory(threads),
            Self::ZeroCopyReceive(args) => {
                ensure!((1..=256).contains(&args.batch), "--batch must be from 1 to 256");
                super::receive::least_memory(threads, args.batch)
            }
        };
        Ok(least.max(MIN_MEMORY))
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
