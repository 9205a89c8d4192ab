//! `elbowroom run`: checks everything, then becomes the program.
//!
//! The program is executed in the place of this process, so it keeps the process id, the streams, the signal
//! mask and the parent, and its exit status is nobody else's. Two things that the standard library changes
//! before `main` are not put back by its `exec`: SIGPIPE has its default action even where it was ignored,
//! and a descriptor 0, 1 or 2 that was closed is open on /dev/null.

use std::env;
use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use elbowroom::Config;
use elbowroom_machine::{PAGE_SIZE, probe};

use crate::failure::{CANNOT_RUN, CANNOT_WORK, Failure, NOT_FOUND, USAGE, say};
use crate::options::{self, Fallback, Fork, Heap, Idle, Io, Mmu, Options, Sharing};
use crate::plan;
use crate::preload::{self, LOADER_VARIABLE, Library, OVERRIDE_VARIABLE};
use crate::program::{self, Obstacle};
use crate::size::{parse_interval, parse_size, parse_size_or_none, show_size};
use crate::swap;

/// Run a program with its memory managed under a budget
///
/// The program runs in the place of this command: same process, same streams, its own exit status. What it
/// maps of regular files, its large blocks of the heap and its anonymous mappings are paged by Elbowroom and
/// never take more memory than the budget; everything else is left to the kernel. A short summary goes to
/// standard error at the end.
#[derive(Args)]
#[command(after_help = MORE, override_usage = "elbowroom run [OPTIONS] [--] PROGRAM [ARGS]...")]
pub struct RunArgs {
    /// The budget: a hard limit on managed memory, at least 16M [default: half of the memory that is
    /// available, or of the memory group's limit if that is smaller]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    memory: Option<u64>,
    /// Leave mappings of less than this to the kernel
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1M")]
    min_size: u64,
    /// How bytes move between files and memory
    #[arg(long, value_name = "ENGINE", value_enum, default_value = "auto")]
    io: Io,
    /// How pages get into the program's mappings
    #[arg(long, value_name = "HOW", value_enum, default_value = "auto")]
    mmu: Mmu,
    /// Threads that serve page faults, up to 16; 0 chooses by the processors there are
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=16))]
    handlers: u8,
    /// Write changed pages back to their file at the latest after this, 10ms to 60m
    #[arg(long, value_name = "DURATION", value_parser = parse_interval, default_value = "1s")]
    writeback_interval: Duration,
    /// How much may be changed and not written back: from three quarters of it on stores are slowed down to
    /// what the disk takes. At least 8K [default: three quarters of the budget]
    #[arg(long, value_name = "SIZE", value_parser = parse_dirty)]
    dirty: Option<u64>,
    /// So much anonymous memory, and private copies of files' pages, may be out of the budget, compressed or
    /// in a file; 0: all of it stays with the kernel [default: four times the budget; less, which is said,
    /// if the swap file's directory has no room for that]
    #[arg(long, value_name = "SIZE", value_parser = parse_size_or_none)]
    swap: Option<u64>,
    /// Which blocks of the program's heap are managed; none with --swap 0
    #[arg(long, value_name = "WHICH", value_enum, default_value = "large")]
    heap: Heap,
    /// The smallest block that is large, and the smallest private mapping that is managed
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256K")]
    heap_min: u64,
    /// The directory of the swap file, on a disk; the file has no name, and takes room there only as it is
    /// used [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    swap_dir: Option<PathBuf>,
    /// Encrypt the swap file, with a key that is nowhere but in the process's memory
    #[arg(long)]
    swap_encrypt: bool,
    /// What a forked child gets of the private memory that is managed; nothing is with --swap 0
    #[arg(long, value_name = "HOW", value_enum, default_value = "copy")]
    fork: Fork,
    /// So many milliseconds a fork may take at most, for tests
    #[arg(long, value_name = "MS", hide = true)]
    fork_bound: Option<u64>,
    /// Write statistics to this file at the end, as JSON
    #[arg(long, value_name = "FILE")]
    stats: Option<OsString>,
    /// Print no summary at the end
    #[arg(long)]
    quiet: bool,
    /// Print at the end which locks of the manager were waited for, and where, most total wait first; also
    /// with --quiet
    ///
    /// As `perf lock contention` does for the kernel, without root. Acquisitions are counted by caller and
    /// have their hold times measured then, which costs some 60 ns each. --stats has the same figures under
    /// the key `locks`.
    #[arg(long)]
    contention: bool,
    /// Write what happened to this file at the end: faults, what they waited for, reads, writes, reclaim,
    /// calls of the mmap family; as JSON for ui.perfetto.dev
    ///
    /// Each thread keeps the last of what it did (--trace-buffer); the file says how much was lost. Costs
    /// some 100 ns for each event.
    #[arg(long, value_name = "FILE")]
    trace: Option<OsString>,
    /// How much of the trace each thread keeps; 48 bytes an event
    #[arg(long, value_name = "SIZE", value_parser = parse_trace_buffer, default_value = "4M")]
    #[arg(requires = "trace")]
    trace_buffer: u64,
    /// What to do where memory cannot be managed (userfaultfd not permitted, program statically linked, ...)
    #[arg(long, value_name = "HOW", value_enum, default_value = "none")]
    fallback: Fallback,
    /// Whether other processes may use the files that the program maps
    #[arg(long, value_name = "HOW", value_enum, default_value = "auto")]
    sharing: Sharing,
    /// How deeply idle processors may sleep while page faults come often
    #[arg(long, value_name = "HOW", value_enum, default_value = "shallow")]
    idle: Idle,
    /// Make the store fail, for tests
    #[arg(long, value_name = "TEXT", hide = true, value_parser = parse_inject)]
    inject: Option<String>,
    /// Switch improvements off, to measure what they are worth: names of `Ablation`, with commas between
    #[arg(long, value_name = "NAMES", hide = true, value_parser = parse_ablate)]
    ablate: Option<String>,
    /// The program, looked up in PATH, and its arguments, which are passed on as they are
    // No hyphen is allowed in front: an unknown option of ours must not become the name of a program.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// What a thread may keep of the trace, in bytes.
const TRACE_BUFFER: RangeInclusive<u64> = 4 << 10..=1 << 30;

const MORE: &str = "SIZE is in bytes or has a unit: K, M, G, T, also written KB or KiB and so on. All units
are binary: 240M, 240MB and 240MiB are 240 * 1048576 bytes. Fractions are allowed: 1.5G. DURATION has
a unit: 500ms, 2s, 1m.

Exit status: the program's own; or 2 if the command line is wrong, 125 if Elbowroom cannot work here (see
`elbowroom doctor`), 126 if the program cannot be run or not be managed, 127 if it is not found.

Environment: ELBOWROOM_PRELOAD names another preloaded library than the one beside this command.

Examples:
  elbowroom run --memory 512M -- python3 train.py
  elbowroom run --memory 2G --stats stats.json --quiet -- ./search index/ 'some words'
  elbowroom run --memory 1G --contention -- ./server  who waited for which lock of the manager, and where
  elbowroom run --trace trace.json -- ./program       open it with ui.perfetto.dev: why did faults take long?
  elbowroom run --fallback kernel -- ./program        run it in any case, managed if possible";

fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if bytes < Config::MIN_MEMORY {
        return Err(format!("a budget must be at least {}; less cannot work", show_size(Config::MIN_MEMORY)));
    }
    Ok(bytes)
}

fn parse_trace_buffer(text: &str) -> Result<u64, String> {
    let (bytes, range) = (parse_size(text)?, TRACE_BUFFER);
    if range.contains(&bytes) {
        return Ok(bytes);
    }
    Err(format!("it must be {} to {}", show_size(*range.start()), show_size(*range.end())))
}

fn parse_dirty(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if bytes < 2 * PAGE_SIZE as u64 { Err("it must be at least 8K, two pages".to_owned()) } else { Ok(bytes) }
}

fn parse_ablate(text: &str) -> Result<String, String> {
    elbowroom::Ablation::without(text).map(|_| text.to_owned())
}

fn parse_inject(text: &str) -> Result<String, String> {
    if text.contains(';') { Err("it must not contain ';'".to_owned()) } else { Ok(text.to_owned()) }
}

/// Becomes the program; returns only if that failed, with the exit code, after it has said why.
pub fn run(args: RunArgs) -> ExitCode {
    match start(&args) {
        Ok(never) => match never {},
        Err(failure) => failure.report(),
    }
}

/// The options of the library that stands before malloc: `SMALLEST;KEPT`, in bytes.
const HEAP_VARIABLE: &str = "ELBOWROOM_HEAP";

/// One part in so many of the budget is kept of freed blocks, at most.
const KEPT_SHARE: u64 = 8;

/// And no more than this, in bytes.
const MOST_KEPT: u64 = 64 << 20;

/// What [`start`] returns when it succeeds: nothing, because then this process is the program.
enum Never {}

fn start(args: &RunArgs) -> Result<Never, Failure> {
    let check = |option, path: &Option<OsString>| {
        let checked = path.as_deref().map(|path| options::check_path(option, path)).transpose();
        checked.map_err(|why| Failure::new(USAGE, why))
    };
    let (stats, trace) = (check("--stats", &args.stats)?, check("--trace", &args.trace)?);
    if stats.is_some() && stats == trace {
        return Err(Failure::new(USAGE, "--stats and --trace name the same file"));
    }
    // clap has seen to it that there is a program.
    let memory = budget(args);
    let asked = swap::Asked {
        bytes: args.swap,
        dir: args.swap_dir.as_deref(),
        encrypt: args.swap_encrypt,
        for_named_budget: args.memory.is_some(),
    };
    asked.check(memory)?;
    let (name, arguments) =
        args.command.split_first().ok_or_else(|| Failure::new(USAGE, "no program is named"))?;
    let program = program::find(name, env::var_os("PATH").as_deref())?;
    let exe = env::current_exe().map_err(|error| {
        Failure::new(CANNOT_WORK, format!("cannot find out where this command is: {error}"))
    })?;
    let library = preload::find(env::var_os(OVERRIDE_VARIABLE).as_deref(), &exe)?;

    let mut command = Command::new(&program);
    command.arg0(name).args(arguments);
    let swap = match obstacle(args, &program, &library)? {
        None => asked.decide(memory),
        Some(failure) => Err(failure),
    };
    match swap {
        Ok(mut swap) => {
            // It is needed also if it manages no block (elbowroom-heap, `apart`).
            let heap = match (swap.bytes > 0).then(|| preload::find_heap(&library, &exe)).transpose() {
                Err(missing) if swap.by_default => {
                    swap.leave(&missing);
                    None
                }
                found => found?,
            };
            if let Some(note) = swap.note.as_ref().filter(|_| !args.quiet) {
                say(&format!("note: {note}"));
            }
            let options = Options {
                memory_bytes: memory,
                min_size_bytes: args.min_size,
                io: args.io,
                mmu: args.mmu,
                handlers: args.handlers,
                writeback_interval: args.writeback_interval,
                dirty_bytes: args.dirty,
                swap_bytes: swap.bytes,
                swap_by_default: swap.by_default,
                memory_min_bytes: if args.heap == Heap::Off { args.min_size } else { args.heap_min },
                swap_dir: swap.dir.clone(),
                swap_encrypt: args.swap_encrypt,
                fork: args.fork,
                fork_bound_ms: args.fork_bound,
                quiet: args.quiet,
                contention: args.contention,
                fallback: args.fallback,
                sharing: args.sharing,
                idle: args.idle,
                inject: args.inject.clone(),
                ablate: args.ablate.clone(),
                main_pid: std::process::id(),
                trace,
                trace_bytes: args.trace_buffer,
                stats,
            };
            let before = env::var_os(LOADER_VARIABLE);
            command.env(options::VARIABLE, options.encode());
            let ours = [Some(&library), heap.as_ref()];
            let ours: Vec<_> = ours.into_iter().flatten().map(|library| library.path.as_path()).collect();
            if heap.is_some() && args.heap != Heap::Off {
                let kept = (memory / KEPT_SHARE).min(MOST_KEPT);
                let arena = if args.heap == Heap::All { arena_bytes(memory, swap.bytes) } else { 0 };
                command.env(HEAP_VARIABLE, format!("{};{kept};{arena}", args.heap_min));
            } else {
                command.env_remove(HEAP_VARIABLE);
            }
            command.env(LOADER_VARIABLE, preload::loader_value(&ours, before.as_deref()));
        }
        Err(failure) if args.fallback == Fallback::Kernel => {
            say(&format!("warning: running unmanaged: {failure}"));
            unmanaged(&mut command, &library);
        }
        Err(failure) => return Err(failure),
    }
    Err(execute(command, name))
}

/// Addresses for all small blocks of a program's heap, in bytes: several times what can be in memory or out,
/// since an allocator has pages that are used in part, and returns others late.
fn arena_bytes(memory: u64, swap: u64) -> u64 {
    const TIMES: u64 = 4;
    const SMALLEST: u64 = 4 << 30;
    const LARGEST: u64 = 1 << 40;
    memory.saturating_add(swap).saturating_mul(TIMES).clamp(SMALLEST, LARGEST).next_multiple_of(1 << 30)
}

/// Why the program's memory cannot be managed, if so.
fn obstacle(args: &RunArgs, program: &Path, library: &Library) -> Result<Option<Failure>, Failure> {
    match program::check(program, library.target) {
        Ok(()) => {}
        Err(Obstacle::Unmanageable(why)) => return Ok(Some(Failure::new(CANNOT_RUN, why))),
        Err(Obstacle::Broken(failure)) => return Err(failure),
    }
    let mode = plan::mode(&probe::userfaultfd(), &probe::io_uring(), args.mmu, args.io);
    Ok(mode.err().map(|why| Failure::new(CANNOT_WORK, why)))
}

/// The budget that is asked for, or the default. Says so if it is more than there can be.
fn budget(args: &RunArgs) -> u64 {
    let memory = probe::memory();
    match (args.memory, memory.total_bytes) {
        (Some(asked), Some(total)) => {
            if asked > total && !args.quiet {
                let (asked, total) = (show_size(asked), show_size(total));
                say(&format!("warning: --memory {asked} is more than this machine has ({total})"));
            }
            asked
        }
        (Some(asked), None) => asked,
        (None, _) => plan::default_memory_bytes(&memory, probe::memory_cgroup().as_ref(), Config::MIN_MEMORY),
    }
}

/// Takes out of the environment what a run around this one has put there.
fn unmanaged(command: &mut Command, library: &Library) {
    command.env_remove(options::VARIABLE);
    command.env_remove(HEAP_VARIABLE);
    let Some(before) = env::var_os(LOADER_VARIABLE) else { return };
    match preload::loader_value_without(&library.path, &before) {
        Some(rest) => command.env(LOADER_VARIABLE, rest),
        None => command.env_remove(LOADER_VARIABLE),
    };
}

fn execute(mut command: Command, name: &OsStr) -> Failure {
    let error = command.exec();
    let code = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN };
    Failure::new(code, format!("cannot execute {}: {error}", name.to_string_lossy()))
}
