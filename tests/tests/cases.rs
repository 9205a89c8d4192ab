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

/// How a run ended: its output and its status.
fn ended(command: Command, directory: &Path) -> String {
    let outcome = command.directory(directory).time_limit(LIMIT).maybe_unmanaged().run();
    format!("{}{}", outcome.stdout, outcome.status)
}

/// Runs a program plainly and in all settings, `times` in each.
fn same(program: &Path, arguments: &[&str], settings: &'static [&'static str], times: usize) {
    let scratch = Scratch::new();
    let run = || Command::new(program).args(arguments);
    let plain = ended(run(), scratch.path());
    let mut different = Vec::new();
    for setting in settings {
        let options: Vec<&str> = setting.split(' ').collect();
        for _ in 0..times {
            let ours = ended(run().variant(Variant::bare()).run_options(&options), scratch.path());
            if ours != plain {
                different.push(format!("{setting}:\n{ours}"));
                break;
            }
        }
    }
    assert!(different.is_empty(), "plain:\n{plain}\n{}", different.join("\n"));
}

fn c(name: &str, arguments: &[&str]) {
    same(&case(name, &[]), arguments, &SETTINGS, 1);
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
    ($($name:ident: $case:literal $arguments:expr;)*) => {
        $(
            #[test]
            fn $name() {
                c($case, &$arguments);
            }
        )*
    };
}

cases! {
    wipe_and_dont_fork: "wipe-and-dont-fork" [];
    raw_dontneed_in_memory: "raw-dontneed-in-memory" [];
    raw_dontneed_private_file: "raw-dontneed-private-file" ["0"];
    raw_dontneed_out: "raw-dontneed-out" ["0", "x"];
    sealed: "sealed" [];
    cached_block: "cached-block" [];
    robust_mutex: "robust-mutex" [];
    clear_tid: "clear-tid" [];
    own_userfaultfd: "own-userfaultfd" [];
    grows_down: "grows-down" [];
    aio_direct: "aio-direct" [];
}

#[test]
fn uring_fixed_buffer() {
    if require_file(Path::new("/usr/include/liburing.h"), "liburing-dev").is_some() {
        same(&case("uring-fixed-buffer", &["-luring"]), &[], &SETTINGS, 1);
    }
}

#[test]
fn go_net() {
    if let Some(program) = go("go-net") {
        same(&program, &[], &SETTINGS, 1);
    }
}

#[test]
fn go_recovers() {
    if let Some(program) = go("go-recovers") {
        same(&program, &[], &SETTINGS, 4);
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
        let ended = ended(run, scratch.path());
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
    let outcome = run.directory(scratch.path()).time_limit(LIMIT).maybe_unmanaged().run().success();
    let lines = ["SIGBUS after 3", "load: SIGBUS after 3"];
    assert!(lines.iter().all(|line| outcome.stderr.contains(line)), "{}", outcome.report());
}

#[test]
fn zeros_that_are_only_read() {
    same(&case("zeros-that-are-only-read", &[]), &["256"], &FULL, 1);
}
