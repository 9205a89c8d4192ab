//! The description of each option. The order is that of `elbowroom run --help`.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::choices::{Choice, Core, Fallback, Faults, Fork, Heap, Idle, Io, Mmu, Policy, Sharing};

/// What the value of an option may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A size; the range in bytes.
    Size {
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// A size, or `auto`, which is [`AUTO`]; in bytes.
    SizeOrAuto {
        /// The least.
        least: u64,
    },
    /// A part of a whole in percent, as `5%` or `0.5%`, in ten-thousandths of the whole.
    Percent {
        /// The most.
        most: u64,
    },
    /// A duration.
    Duration {
        /// The least.
        least: Duration,
        /// The most.
        most: Duration,
    },
    /// A whole number from 0.
    Count {
        /// The most.
        most: u64,
    },
    /// One of a few names.
    Choice(&'static [Choice]),
    /// A flag: given or not.
    Flag,
    /// A path of a file or directory.
    Path,
    /// A text whose grammar is not this crate's.
    Text,
}

impl Kind {
    const fn size(range: RangeInclusive<u64>) -> Self {
        Self::Size { least: *range.start(), most: *range.end() }
    }
}

/// Where an option can be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenIn {
    /// On the command line, and the help has it.
    CommandLine,
    /// On the command line, but not in the help: the option is for tests and measurements.
    Hidden,
    /// Only in the environment variable, not on the command line: `elbowroom run` determines the value.
    Variable,
}

/// The description of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// The name: on the command line after `--`, in the variable before `=`.
    pub name: &'static str,
    /// The letter after one `-`.
    pub short: Option<char>,
    /// What its value may be.
    pub kind: Kind,
    /// The placeholder for the value in the help.
    pub value_name: &'static str,
    /// The value where none is given, as it would be written.
    pub default: Option<&'static str>,
    /// What the option does, in a few lines of the help.
    pub help: &'static str,
    /// What only `--help` says, not `-h`.
    pub more: &'static str,
    /// The option that must be given with it.
    pub requires: Option<&'static str>,
    /// Where it can be given.
    pub place: GivenIn,
}

/// The smallest budget, in bytes.
pub const MIN_MEMORY: u64 = 16 << 20;

/// The largest value of the type: no other limit.
const ANY: u64 = u64::MAX;

impl Spec {
    const fn new(name: &'static str, value_name: &'static str, kind: Kind, help: &'static str) -> Self {
        Self {
            name,
            short: None,
            kind,
            value_name,
            default: None,
            help,
            more: "",
            requires: None,
            place: GivenIn::CommandLine,
        }
    }

    const fn flag(name: &'static str, help: &'static str) -> Self {
        Self::new(name, "", Kind::Flag, help)
    }

    const fn or(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    const fn short(self, letter: char) -> Self {
        Self { short: Some(letter), ..self }
    }

    const fn at(self, place: GivenIn) -> Self {
        Self { place, ..self }
    }

    /// Whether the command line takes it.
    pub fn is_on_the_command_line(&self) -> bool {
        self.place != GivenIn::Variable
    }
}

/// The value of [`MEMORY`] that stands for `auto`.
pub const AUTO: u64 = u64::MAX;

/// What `auto` costs if nothing else is said, in ten-thousandths of the time.
pub const DEFAULT_SLOWDOWN: u64 = 500;

/// The budget.
pub const MEMORY: Spec = Spec {
    more: "With auto the run has as much memory as it needs and, at most, --memory-max: pages that a process \
           has not used for some time go out before memory is short, as long as that costs it no more of its \
           time than --slowdown, and their memory goes to the machine. The summary says how much was \
           allocated and how much was needed.",
    ..Spec::new(
        "memory",
        "SIZE",
        Kind::SizeOrAuto { least: MIN_MEMORY },
        "The budget: a hard limit on managed memory of all processes that the command starts together, at \
         least 16M, or auto [default: half of the memory that is available, or of what the memory group has \
         left, if that is smaller]",
    )
    .short('m')
};

/// The most that the budget can become.
pub const MEMORY_MAX: Spec = Spec::new(
    "memory-max",
    "SIZE",
    Kind::size(MIN_MEMORY..=ANY),
    "With --memory auto: the hard limit [default: as the default of --memory]",
);

/// What the smallest budget may cost.
pub const SLOWDOWN: Spec = Spec::new(
    "slowdown",
    "PERCENT",
    Kind::Percent { most: 5000 },
    "With --memory auto: how much of its time each process may lose so that it has no more memory than it \
     needs, up to 50% [default: 5%]",
);

/// The budget of each process.
pub const EACH: Spec = Spec::new(
    "each",
    "SIZE",
    Kind::size(MIN_MEMORY..=ANY),
    "A hard limit for each single process as well, at least 16M [default: --memory]",
);

/// The file of memory groups.
pub const GROUP: Spec = Spec {
    more: "The file is TOML: a table [group.NAME] for each group, with limits (max, high, low, min, \
           swap-max, memory-swap-max, dirty, swappiness; docs/groups.md has all), and a list [[rule]] that \
           says which memory goes to which group, by program, file, kind and size. The first rule that fits \
           decides. Each process has these groups, with these limits. Example:\n\n\
           \x20 [group.cache]\n\
           \x20 max = \"256M\"\n\
           \x20 [[rule]]\n\
           \x20 group = \"cache\"\n\
           \x20 file = \"*.bin\"",
    ..Spec::new(
        "group",
        "FILE",
        Kind::Path,
        "Limits and protection for parts of the memory of each process: a file that says which groups there \
         are, and which programs, files, sizes and kinds of memory go where",
    )
};

/// What the file of [`GROUP`] says.
pub const GROUPS: Spec =
    Spec::new("groups", "TEXT", Kind::Text, "What the file of --group says, in its compact form")
        .at(GivenIn::Variable);

/// The smallest mapping of a file that is managed.
pub const MIN_SIZE: Spec =
    Spec::new("min-size", "SIZE", Kind::size(1..=ANY), "Leave mappings of less than this to the kernel")
        .or("1M");

/// The engine of reads and writes.
pub const IO: Spec =
    Spec::new("io", "ENGINE", Kind::Choice(Io::CHOICES), "How bytes move between files and memory")
        .or("auto");

/// The way of pages.
pub const MMU: Spec =
    Spec::new("mmu", "HOW", Kind::Choice(Mmu::CHOICES), "How pages get into the program's mappings")
        .or("auto");

/// Which faults are served.
pub const FAULTS: Spec =
    Spec::new("faults", "WHICH", Kind::Choice(Faults::CHOICES), "Which page faults are served").or("auto");

/// Threads that serve faults.
pub const HANDLERS: Spec = Spec::new(
    "handlers",
    "N",
    Kind::Count { most: 16 },
    "Threads that serve page faults, up to 16; 0 chooses by the processors there are",
)
.or("0");

/// How long a page stays dirty.
pub const WRITEBACK_INTERVAL: Spec = Spec::new(
    "writeback-interval",
    "DURATION",
    Kind::Duration { least: Duration::from_millis(10), most: Duration::from_secs(3600) },
    "Write changed pages back to their file at the latest after this, 10ms to 60m",
)
.or("1s");

/// How much may be dirty.
pub const DIRTY: Spec = Spec::new(
    "dirty",
    "SIZE",
    Kind::size(8 << 10..=ANY),
    "How much may be changed and not written back: from three quarters of it on stores are slowed down to \
     what the disk takes. At least 8K [default: three quarters of the budget]",
);

/// How much anonymous memory may be out.
pub const SWAP: Spec = Spec::new(
    "swap",
    "SIZE",
    Kind::size(0..=ANY),
    "So much anonymous memory, and private copies of files' pages, may be out of the budget, compressed or \
     in a file; 0: all of it stays with the kernel [default: four times the budget; less, which is said, if \
     the swap file's directory has no room for that]",
)
.short('s');

/// Whether the amount of swap is a default.
pub const SWAP_BY_DEFAULT: Spec = Spec::flag(
    "swap-by-default",
    "Nobody has said how much swap there is: a process that cannot have so much makes do with less",
)
.or("0")
.at(GivenIn::Variable);

/// Which blocks of the heap are managed.
pub const HEAP: Spec = Spec::new(
    "heap",
    "WHICH",
    Kind::Choice(Heap::CHOICES),
    "Which blocks of the program's heap are managed; none with --swap 0",
)
.or("large");

/// The smallest large block.
pub const HEAP_MIN: Spec = Spec::new(
    "heap-min",
    "SIZE",
    Kind::size(1..=ANY),
    "The smallest block that is large, and the smallest private mapping that is managed",
)
.or("256K");

/// Where the swap file is.
pub const SWAP_DIR: Spec = Spec::new(
    "swap-dir",
    "DIR",
    Kind::Path,
    "The directory of the swap file, on a disk: by default the first of /var/tmp, TMPDIR and /tmp that has \
     room; the file has no name, and takes room there only as it is used",
)
.or("/var/tmp");

/// Whether the swap file is encrypted.
pub const SWAP_ENCRYPT: Spec = Spec::flag(
    "swap-encrypt",
    "Encrypt the swap file, with a key that is nowhere but in the process's memory",
)
.or("0");

/// What a forked child gets.
pub const FORK: Spec = Spec::new(
    "fork",
    "HOW",
    Kind::Choice(Fork::CHOICES),
    "What a forked child gets of the private memory that is managed; nothing is with --swap 0",
)
.or("copy");

/// How long a fork may take.
pub const FORK_BOUND: Spec = Spec::new(
    "fork-bound",
    "MS",
    Kind::Count { most: ANY },
    "So many milliseconds a fork may take at most, for tests",
)
.at(GivenIn::Hidden);

/// Where the statistics go.
pub const STATS: Spec =
    Spec::new("stats", "FILE", Kind::Path, "Write statistics to this file at the end, as JSON");

/// Where it is kept what was learned.
pub const LEARNED: Spec = Spec {
    more: "The file is read when a file of the program is mapped that it knows, and replaced at the end. \
           What it says of a file that has changed since, by size or times, is not used. Several runs may \
           have the same one; it has at most 4 MiB, and drops what was not used for longest.",
    ..Spec::new(
        "learned",
        "FILE",
        Kind::Path,
        "Keep in this file, for the next run, which parts of the program's files are read whole, so that \
         they are from the start",
    )
};

/// No summary.
pub const QUIET: Spec = Spec::flag("quiet", "Print no summary at the end").short('q').or("0");

/// A longer summary.
pub const VERBOSE: Spec = Spec::flag(
    "verbose",
    "Print the largest processes of the run at the end, too: at most 10, each with its peak, its faults, \
     what it has put out to swap, and its time",
)
.short('v')
.or("0");

/// The lock statistics.
pub const CONTENTION: Spec = Spec {
    more: "As `perf lock contention` does for the kernel, without root. Acquisitions are counted by caller \
           and have their hold times measured then, which costs some 60 ns each. --stats has the same \
           figures under the key `locks`.",
    ..Spec::flag(
        "contention",
        "Print at the end which locks of the manager were waited for, and where, most total wait first; also \
         with --quiet",
    )
    .or("0")
};

/// Where the trace goes.
pub const TRACE: Spec = Spec {
    more: "Each thread keeps the last of what it did (--trace-buffer); the file says how much was lost. \
           Costs some 100 ns for each event.",
    ..Spec::new(
        "trace",
        "FILE",
        Kind::Path,
        "Write what happened to this file at the end: faults, what they waited for, reads, writes, reclaim, \
         calls of the mmap family; as JSON for ui.perfetto.dev",
    )
};

/// How much of the trace a thread keeps.
pub const TRACE_BUFFER: Spec = Spec {
    requires: Some("trace"),
    ..Spec::new(
        "trace-buffer",
        "SIZE",
        Kind::size(4 << 10..=1 << 30),
        "How much of the trace each thread keeps, 4K to 1G; 48 bytes an event",
    )
    .or("4M")
};

/// What to do where memory cannot be managed.
pub const FALLBACK: Spec = Spec::new(
    "fallback",
    "HOW",
    Kind::Choice(Fallback::CHOICES),
    "What to do where memory cannot be managed (userfaultfd not permitted, program statically linked, ...)",
)
.or("none");

/// What a core dump has of managed memory.
pub const CORE: Spec = Spec::new(
    "core",
    "WHAT",
    Kind::Choice(Core::CHOICES),
    "What a core dump has of managed memory; what is missing is said",
)
.or("managed");

/// Whether other processes may use the files.
pub const SHARING: Spec = Spec::new(
    "sharing",
    "HOW",
    Kind::Choice(Sharing::CHOICES),
    "Whether other processes may use the files that the program maps",
)
.or("auto");

/// Which pages of files go.
pub const POLICY: Spec = Spec::new(
    "policy",
    "NAME",
    Kind::Choice(Policy::CHOICES),
    "Which pages of files go when memory is short",
)
.or("auto");

/// How deeply idle processors may sleep.
pub const IDLE: Spec = Spec::new(
    "idle",
    "HOW",
    Kind::Choice(Idle::CHOICES),
    "How deeply idle processors may sleep while page faults come often",
)
.or("shallow");

/// Faults to inject.
pub const INJECT: Spec =
    Spec::new("inject", "TEXT", Kind::Text, "Make the store fail, for tests").at(GivenIn::Hidden);

/// Improvements that are off.
pub const ABLATE: Spec = Spec::new(
    "ablate",
    "NAMES",
    Kind::Text,
    "Switch improvements off, to measure what they are worth: names of `Ablation`, with commas between",
)
.at(GivenIn::Hidden);

/// The process that the command becomes.
pub const MAIN_PID: Spec =
    Spec::new("main-pid", "PID", Kind::Count { most: u32::MAX as u64 }, "The process that `run` becomes")
        .or("0")
        .at(GivenIn::Variable);

/// The file with the table of the run's processes.
pub const TREE: Spec = Spec::new("tree", "FILE", Kind::Path, "The table that the processes of the run share")
    .at(GivenIn::Variable);
