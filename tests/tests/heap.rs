//! `run --swap --heap large` and `all`: blocks of the heap, more than the budget.

use elbowroom_tests::program::{self, program};
use elbowroom_tests::{Command, Outcome, Pattern, Scratch, Variant, behaviour};
use std::path::Path;

/// Runs a part of the program `heap`, with large blocks managed.
fn heap(variant: Variant, part: &str, mib: &str) -> Outcome {
    run(variant, Command::new(program("heap")).args([part, mib]), "large")
}

/// The same, with all blocks managed.
fn all(variant: Variant, part: &str, mib: &str) -> Outcome {
    run(variant, Command::new(program("heap")).args([part, mib]), "all")
}

fn run(variant: Variant, command: Command, which: &str) -> Outcome {
    let scratch = Scratch::new();
    let dir = scratch.file("");
    let options = ["--swap", "512M", "--swap-dir", &dir, "--heap", which];
    let outcome = command.variant(variant).run_options(&options).run().success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
    outcome
}

/// What went out came back, and nothing is left of it.
fn was_out(outcome: &Outcome) {
    assert!(outcome.stat("pswpout") > 1000 && outcome.stat("pswpin") > 1000, "{}", outcome.report());
    let left = ["swap_used_bytes", "swap_file_bytes", "swap_pool_bytes", "swap_errors"];
    assert_eq!(left.map(|key| outcome.stat(key)), [0; 4], "{}", outcome.report());
}

fn blocks(variant: Variant) {
    was_out(&heap(variant, "blocks", "160"));
}
behaviour!(blocks: m64, copy, threads);

fn storm(variant: Variant) {
    heap(variant, "storm", "160");
}
behaviour!(storm: m16, m64, copy);

fn forks(variant: Variant) {
    heap(variant, "forks", "64");
}
behaviour!(forks: m16, m64, copy);

/// A block that is freed and allocated again costs no mapping and no faults.
fn again(variant: Variant) {
    let outcome = heap(variant, "again", "0");
    assert!(outcome.stat("pgfault") < 10_000, "{}", outcome.report());
}
behaviour!(again: m16, m64);

fn small_blocks(variant: Variant) {
    let outcome = all(variant, "small", "64");
    assert!(outcome.stat("pswpout") > 1000 && outcome.stat("pswpin") > 1000, "{}", outcome.report());
}
behaviour!(small_blocks: m16, copy, threads);

fn blocks_of_all_sizes(variant: Variant) {
    all(variant, "blocks", "160");
}
behaviour!(blocks_of_all_sizes: m16);

fn storm_of_all_sizes(variant: Variant) {
    all(variant, "storm", "160");
}
behaviour!(storm_of_all_sizes: m16, m64);

fn forks_of_all_sizes(variant: Variant) {
    all(variant, "forks", "64");
}
behaviour!(forks_of_all_sizes: m16);

/// If that is linked into the executable, so that nothing can stand before it, all memory is the kernel's.
fn allocator_in_the_executable(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, 48 << 20, 7);
    for which in ["off", "large", "all"] {
        let outcome = run(variant, Command::new(program("own_malloc")).args(["64", &file]), which);
        assert!(outcome.left_to_kernel("own_allocator") > 0, "{}", outcome.report());
    }
}
behaviour!(allocator_in_the_executable: m16, m64);

/// A program with an allocator of its own keeps it. What that maps is managed, but for what our own threads
/// and the loader ask it for.
fn allocator_of_the_program(variant: Variant, library: &str, package: &str, parts: &[&str]) {
    let library = format!("/usr/lib/x86_64-linux-gnu/{library}");
    let Some(library) = program::require_file(Path::new(&library), package) else { return };
    for part in parts {
        let command = Command::new(program("heap")).args([part, "64"]);
        run(variant, command.env("LD_PRELOAD", library.to_str().unwrap()), "all");
    }
}

fn jemalloc(variant: Variant) {
    allocator_of_the_program(variant, "libjemalloc.so.2", "libjemalloc2", &["small", "storm"]);
}
behaviour!(jemalloc: m16);

/// It aligns some blocks less than they should be, so that the other parts fail plainly, too.
fn mimalloc(variant: Variant) {
    allocator_of_the_program(variant, "libmimalloc.so.2.0", "libmimalloc2.0", &["storm"]);
}
behaviour!(mimalloc: m16, copy);

fn tcmalloc(variant: Variant) {
    allocator_of_the_program(
        variant,
        "libtcmalloc_minimal.so.4",
        "libtcmalloc-minimal4",
        &["small", "storm"],
    );
}
behaviour!(tcmalloc: m16, copy);

fn tbbmalloc(variant: Variant) {
    allocator_of_the_program(variant, "libtbbmalloc_proxy.so.2", "libtbbmalloc2", &["small", "storm"]);
}
behaviour!(tbbmalloc: m16, copy);

/// What cannot be allocated is refused as the allocator that serves it does that: libc, or the program's own.
/// What libc's functions take, ours take.
fn refused(variant: Variant) {
    let jemalloc = Path::new("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2");
    let jemalloc = program::require_file(jemalloc, "libjemalloc2");
    for allocator in [None, jemalloc.as_ref().and_then(|path| path.to_str())] {
        let command = || {
            let command = Command::new(program("heap")).args(["refused"]).maybe_unmanaged();
            if let Some(path) = allocator { command.env("LD_PRELOAD", path) } else { command }
        };
        let plain = command().run().success();
        for which in ["off", "large", "all"] {
            let managed = command().variant(variant).run_options(&["--swap", "64M", "--heap", which]).run();
            let differs = |(seen, plain): &(&str, &str)| seen != plain;
            let lines = managed.stdout.lines().zip(plain.stdout.lines());
            let differences: Vec<_> = lines.filter(differs).take(20).collect();
            assert!(differences.is_empty(), "{allocator:?}, {which}, and plainly: {differences:#?}");
            managed.same_as(&plain);
        }
    }
}
behaviour!(refused: m16);
