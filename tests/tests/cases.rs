//! Small programs that once differed under `run`: each must print and end as under the plain kernel, in every
//! setting.

use elbowroom_tests::place::{root, workspace};
use elbowroom_tests::program::{case, require_file};
use elbowroom_tests::{Command, Scratch, Variant};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the cases run in, but for those about full memory.
const SETTINGS: [&str; 6] = [
    "--memory 64M --swap 1G",
    "--memory 16M --swap 600M",
    "--memory 64M --heap all --swap 1G",
    "--memory 32M --mmu copy --swap 1G",
    "--memory 32M --io threads --swap-encrypt --swap 1G",
    "--memory 32M --fork kernel --swap 1G",
];
/// Less memory than the case has.
const FULL: [&str; 1] = ["--memory 16M --swap 64M"];
/// Longer than any case takes: some wait for 30 s by design.
const LIMIT: Duration = Duration::from_secs(200);

/// Whether the runs of a case must have something managed. If the kernel has all of it, the kernel is
/// compared with itself.
#[derive(Clone, Copy)]
enum Managed {
    Something,
    PerhapsNothing,
}

/// How a run ended: its output and its status.
fn ended(command: Command, managed: Managed, directory: &Path) -> String {
    let command = command.directory(directory).time_limit(LIMIT);
    let outcome = match managed {
        Managed::Something => command.run(),
        Managed::PerhapsNothing => command.maybe_unmanaged().run(),
    };
    format!("{}{}", outcome.stdout, outcome.status)
}

/// Runs a program plainly and in all settings, `times` in each.
fn same(
    program: &Path,
    arguments: &[&str],
    managed: Managed,
    settings: &'static [&'static str],
    times: usize,
) {
    let scratch = Scratch::new();
    let run = || Command::new(program).args(arguments);
    let plain = ended(run(), Managed::PerhapsNothing, scratch.path());
    let mut different = Vec::new();
    for setting in settings {
        let options: Vec<&str> = setting.split(' ').collect();
        for _ in 0..times {
            let command = run().variant(Variant::bare()).run_options(&options);
            let ours = ended(command, managed, scratch.path());
            if ours != plain {
                different.push(format!("{setting}:\n{ours}"));
                break;
            }
        }
    }
    assert!(different.is_empty(), "plain:\n{plain}\n{}", different.join("\n"));
}

fn c(name: &str, arguments: &[&str], managed: Managed) {
    same(&case(name, &[]), arguments, managed, &SETTINGS, 1);
}

/// A Go program of the default build, which uses cgo for the packages that it imports.
fn go(name: &str) -> Option<PathBuf> {
    let go = require_file(Path::new("/usr/lib/go-1.19/bin/go"), "golang-1.19-go")?;
    let directory = root().join("go");
    let program = directory.join(name);
    let source = workspace().join("tests/cases").join(format!("{name}.go"));
    let built = std::process::Command::new(go)
        .args(["build", "-o"])
        .args([&program, &source])
        .env("GOCACHE", directory.join("cache"))
        .env("GO111MODULE", "off")
        .status();
    assert!(built.is_ok_and(|status| status.success()), "{name}.go is not built");
    Some(program)
}

macro_rules! cases {
    ($($name:ident: $case:literal $arguments:expr, $managed:ident;)*) => {
        $(
            #[test]
            fn $name() {
                c($case, &$arguments, Managed::$managed);
            }
        )*
    };
}

cases! {
    wipe_and_dont_fork: "wipe-and-dont-fork" [], Something;
    raw_dontneed_in_memory: "raw-dontneed-in-memory" [], Something;
    raw_dontneed_private_file: "raw-dontneed-private-file" ["0"], Something;
    raw_dontneed_out: "raw-dontneed-out" ["0", "x"], Something;
    sealed: "sealed" [], PerhapsNothing;
    cached_block: "cached-block" [], Something;
    robust_mutex: "robust-mutex" [], Something;
    clear_tid: "clear-tid" [], Something;
    own_userfaultfd: "own-userfaultfd" [], PerhapsNothing;
    grows_down: "grows-down" [], PerhapsNothing;
    aio_direct: "aio-direct" [], Something;
}

#[test]
fn uring_fixed_buffer() {
    if require_file(Path::new("/usr/include/liburing.h"), "liburing-dev").is_some() {
        same(&case("uring-fixed-buffer", &["-luring"]), &[], Managed::Something, &SETTINGS, 1);
    }
}

#[test]
fn go_net() {
    if let Some(program) = go("go-net") {
        same(&program, &[], Managed::PerhapsNothing, &SETTINGS, 1);
    }
}

#[test]
fn go_recovers() {
    if let Some(program) = go("go-recovers") {
        same(&program, &[], Managed::PerhapsNothing, &SETTINGS, 4);
    }
}

/// As many MiB as under the kernel, but for what the heap of the program itself takes of the last one.
#[test]
fn rlimit_data_later() {
    let program = case("rlimit-data-later", &[]);
    let scratch = Scratch::new();
    for setting in SETTINGS {
        let options: Vec<&str> = setting.split(' ').collect();
        let run = Command::new(&program).variant(Variant::bare()).run_options(&options);
        let ended = ended(run, Managed::Something, scratch.path());
        let mapped = [97, 98, 99].iter().any(|mib| ended.contains(&format!(": {mib} MiB mapped")));
        assert!(mapped, "{setting}: {ended}");
    }
}

/// The plain kernel has memory enough; documented is SIGBUS after 30 s where budget and swap are full.
#[test]
fn memory_full_then_load() {
    let scratch = Scratch::new();
    let options: Vec<&str> = FULL[0].split(' ').collect();
    let run = Command::new(case("memory-full-then-load", &[])).variant(Variant::bare()).run_options(&options);
    let outcome = run.directory(scratch.path()).time_limit(LIMIT).run().success();
    for start in ["store ", "load: "] {
        let line = outcome.stderr.lines().find(|line| line.starts_with(start)).unwrap_or_default();
        let after = line.split_once("SIGBUS after ").and_then(|(_, after)| after.strip_suffix(" s"));
        let seconds: Option<f64> = after.and_then(|seconds| seconds.parse().ok());
        // Later only where others have the processors.
        assert!(seconds.is_some_and(|seconds| (30.0..90.0).contains(&seconds)), "{}", outcome.report());
    }
}

#[test]
fn zeros_that_are_only_read() {
    same(&case("zeros-that-are-only-read", &[]), &["256"], Managed::Something, &FULL, 1);
}
