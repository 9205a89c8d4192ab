//! `elbowroom run`: checks everything, then becomes the program.
//!
//! The program is executed in the place of this process, so it keeps the process id, the streams, the
//! signal mask and the parent, and its exit status is the program's own. Two things that the standard
//! library changes before `main` are not put back by its `exec`: SIGPIPE has its default action even where
//! it was ignored, and a descriptor 0, 1 or 2 that was closed is open on /dev/null.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;
use elbowroom::{Ablation, Config, check_learned_file};
use elbowroom_machine::probe::{self, Groups};
use elbowroom_options::size::Shown;
use elbowroom_options::{Fallback, Faults, Heap, KernelOptions, Options, RunFacts, VARIABLE, table};
use elbowroom_store::Inject;

use crate::config;
use crate::failure::{CANNOT_RUN, CANNOT_WORK, Failure, NOT_FOUND, USAGE, say};
use crate::groups as spec;
use crate::options::{self, Given};
use crate::plan;
use crate::preload::{self, LOADER_VARIABLE, Library, OVERRIDE_VARIABLE};
use crate::program::{self, Binary, Obstacle};
use crate::run_table;
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
    /// The options.
    #[command(flatten)]
    given: Given,
    /// Read options from this file, `none`: from no file [default: ~/.config/elbowroom.toml, if there is one]
    ///
    /// The file is TOML, with the names of options as keys, as in `memory = "512M"` and `quiet = true`. The
    /// options of the command line and of the environment come first.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    config: Option<OsString>,
    /// The program, looked up in PATH, and its arguments, which are passed on as they are
    // No hyphen is allowed in front: an unknown option of ours must not become the name of a program.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    #[arg(value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

const MORE: &str = "\
SIZE is in bytes or has a unit: K, M, G, T, also written KB or KiB and so on. All units are binary: 240M, \
240MB and 240MiB are 240 * 1048576 bytes. Fractions are allowed: 1.5G. DURATION has a unit: 500ms, 2s, 1m.

Exit status: the program's own; or 2 if the command line is wrong, 125 if Elbowroom cannot work here (see \
`elbowroom doctor`), 126 if the program cannot be run or not be managed, 127 if it is not found.

Environment: each option has a variable, as ELBOWROOM_SWAP_DIR for --swap-dir and ELBOWROOM_QUIET=1 for \
--quiet. ELBOWROOM_CONFIG is for --config, and ELBOWROOM_PRELOAD names another preloaded library than the \
one beside this command.

Examples:
  elbowroom run --memory 512M -- python3 train.py
  elbowroom run --memory auto --slowdown 5% -- ./server      as little as it needs, and how much that is
  elbowroom run --memory 2G --stats stats.json --quiet -- ./search index/ 'some words'
  elbowroom run --memory 1G --contention -- ./server  who waited for which lock of the manager, and where
  elbowroom run --memory 1G --group spec.toml -- ./server       limits for parts of its memory
  elbowroom run --trace trace.json -- ./program       open it with ui.perfetto.dev: why did faults take long?
  elbowroom run --fallback kernel -- ./program        run it in any case, managed if possible";

/// Becomes the program. Returns only if that failed: writes why to standard error, and gives the exit code.
pub fn run(args: &RunArgs) -> ExitCode {
    match start(args) {
        Ok(never) => match never {},
        Err(failure) => failure.report(),
    }
}

/// What [`start`] returns when it succeeds: nothing, because then this process is the program.
enum Never {}

fn start(args: &RunArgs) -> Result<Never, Failure> {
    let mut given = args.given.clone();
    config::complete(&mut given, args.config.as_deref())?;
    let given = &given;
    let mut options = given.options.clone();
    check(&mut options)?;
    let groups = Groups::read();
    (options.memory_bytes, options.reclaim.slowdown) = budget(given, groups.as_ref())?;
    options.memory_max_bytes = None;
    let asked = swap::Asked::of(given);
    asked.check(options.memory_bytes)?;
    read_groups(given, &mut options)?;
    // clap has checked that a program is named.
    let (name, arguments) =
        args.command.split_first().ok_or_else(|| Failure::new(USAGE, "no program is named"))?;
    let program = program::find(name, env::var_os("PATH").as_deref())?;

    let mut command = Command::new(&program);
    command.arg0(name).args(arguments);
    let binary = Binary::of(&program);
    if let Some(sanitizer) = binary.as_ref().ok().and_then(Binary::sanitizer) {
        if options.fallback == Fallback::None {
            let (program, name) = (program.display(), sanitizer.name);
            say(&format!(
                "{program} has the runtime of {name}, beside which no manager can be: nothing of it, and of \
                 what it starts, is managed"
            ));
        }
        unmanaged(&mut command);
        return Err(execute(command, name));
    }
    match prepare(&mut options, &asked, binary, groups.as_ref(), given.names(&table::HEAP_MIN))? {
        Ok(libraries) => {
            command.env(VARIABLE, options.encode());
            let ours: Vec<_> = libraries.iter().map(|library| library.path.as_path()).collect();
            let before = env::var_os(LOADER_VARIABLE);
            command.env(LOADER_VARIABLE, preload::loader_value(&ours, before.as_deref()));
        }
        Err(failure) if options.fallback == Fallback::Kernel => {
            if !options.report.quiet {
                say(&format!("warning: running unmanaged: {failure}"));
            }
            unmanaged(&mut command);
        }
        Err(failure) => return Err(failure),
    }
    Err(execute(command, name))
}

/// Finds the libraries that manage the program's memory, and completes the options. The inner error says
/// why the memory cannot be managed, where the program could still be run.
fn prepare(
    options: &mut Options,
    asked: &swap::Asked<'_>,
    binary: Result<Binary, Obstacle>,
    groups: Option<&Groups>,
    names_heap_min: bool,
) -> Result<Result<Vec<Library>, Failure>, Failure> {
    // Under Valgrind there is no userfaultfd to try, and to read the auxiliary vector ends the program.
    if env::var_os(LOADER_VARIABLE).is_some_and(|libraries| preload::has_valgrind(&libraries)) {
        let why = "Valgrind runs this command, and knows no userfaultfd; say `elbowroom run -- valgrind \
                   PROGRAM`, which runs the program unmanaged";
        return Ok(Err(Failure::new(CANNOT_WORK, why)));
    }
    // Checked before the libraries, since without it none is found.
    let signal = probe::InternalSignal::look();
    let needs = probe::start(options.handlers, options.memory_bytes, groups);
    signal.put_back();
    if let Some((about, why)) = plan::start_obstacles(&needs, &probe::limits()).into_iter().next() {
        return Ok(Err(Failure::new(CANNOT_WORK, format!("{about}: {why}"))));
    }
    let found = env::current_exe()
        .map_err(|error| Failure::new(CANNOT_WORK, format!("cannot find out where this command is: {error}")))
        .and_then(|exe| {
            let library = preload::find(env::var_os(OVERRIDE_VARIABLE).as_deref(), &exe)?;
            Ok((library, exe))
        });
    let (library, exe) = match found {
        Ok(found) => found,
        Err(failure) => return Ok(Err(failure)),
    };
    let mode = match obstacle(options, binary, &library)? {
        Err(failure) => return Ok(Err(failure)),
        Ok(mode) => mode,
    };
    // A child with other rights must not serve other faults: what is managed depends on that.
    options.kernel.faults = Faults::All;
    if mode.userfaultfd == plan::USER_MODE {
        options.kernel.faults = Faults::UserMode;
        if let Err(failure) = without_kernel_faults(options, names_heap_min) {
            return Ok(Err(failure));
        }
    }
    let mut swap = match asked.decide(options.memory_bytes) {
        Ok(swap) => swap,
        Err(failure) => return Ok(Err(failure)),
    };
    // The library is needed even if it manages no block (elbowroom-heap, `apart`).
    let heap = match (swap.bytes > 0).then(|| preload::find_heap(&library, &exe)).transpose() {
        Err(missing) if asked.bytes.is_none() && options.fallback == Fallback::Kernel => {
            swap.leave(&missing);
            None
        }
        Err(missing) => return Ok(Err(missing)),
        Ok(found) => found,
    };
    if let Some(note) = swap.note.as_ref().filter(|_| !options.report.quiet) {
        say(&format!("note: {note}"));
    }
    (options.swap.bytes, options.swap.by_default) = (swap.bytes, swap.by_default);
    options.swap.dir = Some(swap.dir);
    options.main_pid = std::process::id();
    match run_table::make(options) {
        Ok(path) => options.tree = Some(path),
        Err(why) if options.report.quiet => drop(why),
        Err(why) => say(&format!(
            "note: each process has the whole budget for itself, since the run has no table: {why}"
        )),
    }
    Ok(Ok([Some(library), heap].into_iter().flatten().collect()))
}

/// Reads and checks the file of `--group`, which the library has in its compact form.
fn read_groups(given: &Given, options: &mut Options) -> Result<(), Failure> {
    let Some(path) = options.groups.file.take() else { return Ok(()) };
    let budget = options.memory_bytes;
    let facts = RunFacts {
        budget_bytes: options.each_bytes.map_or(budget, |each| each.min(budget)),
        is_without_swap: given.names(&table::SWAP) && options.swap.bytes == 0,
        heap: options.heap,
        heap_min_bytes: options.heap_min_bytes,
    };
    options.groups.spec = Some(spec::compact(&path, &facts)?);
    Ok(())
}

/// Checks what the table of options cannot know: that files can be written, and the grammars of other crates.
fn check(options: &mut Options) -> Result<(), Failure> {
    let wrong = |why| Failure::new(USAGE, why);
    let report = &mut options.report;
    let named = [
        ("--stats", &mut report.stats, options::check_path as fn(&str, &Path) -> _),
        ("--trace", &mut report.trace, options::check_path),
        ("--learned", &mut report.learned, options::check_replaceable),
    ];
    let mut paths: Vec<(&str, PathBuf)> = Vec::new();
    for (option, path, check) in named {
        let Some(path) = path else { continue };
        *path = check(option, path).map_err(wrong)?;
        if let Some((other, _)) = paths.iter().find(|(_, other)| other == path) {
            return Err(wrong(format!("{other} and {option} name the same file")));
        }
        paths.push((option, path.clone()));
    }
    if let Some(path) = &options.report.learned {
        check_learned_file(path).map_err(|why| wrong(format!("--learned: {} {why}", path.display())))?;
    }
    if options.report.quiet && options.report.verbose {
        return Err(Failure::new(USAGE, "--verbose says more in the summary, and --quiet leaves it out"));
    }
    let ablate = options.tests.ablate.as_deref().map(Ablation::without).transpose();
    ablate.map_err(|why| wrong(format!("--ablate: {why}")))?;
    let inject = options.tests.inject.as_deref().map(Inject::parse).transpose();
    inject.map_err(|why| wrong(format!("--inject: {why}")))?;
    Ok(())
}

/// Raises `--heap-min` for a run in which system calls fail on managed memory that is not in memory: libc's
/// own blocks must not be managed.
fn without_kernel_faults(options: &mut Options, is_heap_min_given: bool) -> Result<(), Failure> {
    // libc reads directories into blocks of up to 1 MiB.
    const LEAST_BYTES: u64 = 2 << 20;
    if options.heap == Heap::All {
        return Err(Failure::new(
            CANNOT_WORK,
            format!(
                "--heap all: here only faults of instructions are served, and system calls on small blocks \
                 would fail. Use --heap large. To have all faults served: {}",
                plan::PERMIT
            ),
        ));
    }
    if is_heap_min_given && options.heap_min_bytes < LEAST_BYTES && !options.report.quiet {
        say(&format!(
            "note: --heap-min is {}, since only faults of instructions are served here",
            Shown(LEAST_BYTES)
        ));
    }
    options.heap_min_bytes = options.heap_min_bytes.max(LEAST_BYTES);
    Ok(())
}

/// How the program's memory is managed, or why it cannot be.
fn obstacle(
    options: &Options,
    binary: Result<Binary, Obstacle>,
    library: &Library,
) -> Result<Result<plan::Mode, Failure>, Failure> {
    match binary.and_then(|binary| binary.check(library.target)) {
        Ok(()) => {}
        Err(Obstacle::Unmanageable(why)) => return Ok(Err(Failure::new(CANNOT_RUN, why))),
        Err(Obstacle::Broken(failure)) => return Err(failure),
    }
    let KernelOptions { mmu, io, faults } = options.kernel;
    let mode = plan::mode(&probe::userfaultfd(), &probe::io_uring(), mmu, io, faults);
    Ok(mode.map_err(|why| Failure::new(CANNOT_WORK, why)))
}

/// The budget that is asked for, or the default; and what it may cost to have less, with `--memory auto`, in
/// ten-thousandths of the time. Warns if it is more than there can be, also with
/// `--quiet`, since the kernel would kill the program without a message.
///
/// # Errors
/// Options for `--memory auto` are given without it.
fn budget(given: &Given, groups: Option<&Groups>) -> Result<(u64, Option<u64>), Failure> {
    let (memory, group) = (probe::memory(), groups.and_then(probe::memory_cgroup));
    let Options { memory_bytes, memory_max_bytes, .. } = given.options;
    let slowdown = given.options.reclaim.slowdown;
    let is_auto = given.names(&table::MEMORY) && memory_bytes == table::AUTO;
    for option in [&table::MEMORY_MAX, &table::SLOWDOWN] {
        if !is_auto && given.names(option) {
            let name = option.name;
            return Err(Failure::new(USAGE, format!("--{name} is an option of --memory auto: say both")));
        }
    }
    let asked = if is_auto { memory_max_bytes } else { Some(memory_bytes) };
    let asked = asked.filter(|_| given.names(&table::MEMORY));
    let named = asked.is_some();
    let budget =
        asked.unwrap_or_else(|| plan::default_memory_bytes(&memory, group.as_ref(), Config::MIN_MEMORY));
    let total = memory.total_bytes.filter(|total| named && budget > *total);
    if let Some(warning) = plan::group_warning(budget, group.as_ref(), Config::MIN_MEMORY) {
        say(&format!("warning: {warning}"));
    } else if let Some(total) = total {
        let (asked, total) = (Shown(budget), Shown(total));
        let name = if is_auto { table::MEMORY_MAX.name } else { table::MEMORY.name };
        say(&format!("warning: --{name} {asked} is more than this machine has ({total})"));
    }
    Ok((budget, is_auto.then(|| slowdown.unwrap_or(table::DEFAULT_SLOWDOWN))))
}

/// Removes from the environment what a surrounding `elbowroom run` has put there.
fn unmanaged(command: &mut Command) {
    command.env_remove(VARIABLE);
    let Some(before) = env::var_os(LOADER_VARIABLE) else { return };
    match preload::loader_value_without_ours(env::var_os(OVERRIDE_VARIABLE).as_deref(), &before) {
        Some(rest) => command.env(LOADER_VARIABLE, rest),
        None => command.env_remove(LOADER_VARIABLE),
    };
}

fn execute(mut command: Command, name: &OsStr) -> Failure {
    let error = command.exec();
    let code = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN };
    Failure::new(code, format!("cannot execute {}: {error}", name.to_string_lossy()))
}
