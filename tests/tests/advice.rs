//! What advice, locks, guards and flags of mappings mean (docs/advice.md): a program prints a line for each
//! case, the same plainly and under all variants.

use elbowroom_tests::program::program;
use elbowroom_tests::{Command, Outcome, Scratch, Variant, behaviour};

/// Runs a part of the program plainly and with the options.
fn both(variant: Variant, args: &[&str], options: &[&str]) -> (Outcome, Outcome) {
    let scratch = Scratch::new();
    let dir = scratch.file("");
    let run = || Command::new(program("advice")).args(args);
    let all: Vec<_> =
        ["--swap", "512M", "--swap-dir", &dir].into_iter().chain(options.iter().copied()).collect();
    (run().run(), run().variant(variant).run_options(&all).run())
}

/// The lines are the same.
fn same(variant: Variant, args: &[&str], options: &[&str]) -> Outcome {
    let (plain, ours) = both(variant, args, options);
    let pairs = ours.stdout.lines().zip(plain.stdout.lines());
    let differences: Vec<_> = pairs.filter(|(ours, plain)| ours != plain).take(20).collect();
    assert!(differences.is_empty(), "{args:?}, {options:?}, and plainly: {differences:#?}");
    ours.same_as(&plain);
    ours
}

fn states(variant: Variant) {
    let scratch = Scratch::new();
    let outcome = same(variant, &[&scratch.file("data")], &["--fork", "copy", "--min-size", "4K"]);
    assert!(outcome.stat("pgfault") > 1000, "it was managed: {}", outcome.report());
}
behaviour!(states: m64, m16, copy, threads, handlers1);

/// The kernel does not make one mapping of what goes back to it in parts (docs/limits.md).
fn states_where_the_kernel_forks(variant: Variant) {
    let scratch = Scratch::new();
    same(variant, &[&scratch.file("data"), "parts"], &["--fork", "kernel"]);
}
behaviour!(states_where_the_kernel_forks: m64, m16, copy);

/// What is wiped in a child, or not there, was in memory, compressed and in the swap file.
fn pages_that_are_out(variant: Variant) {
    for fork in ["copy", "kernel"] {
        let outcome = same(variant, &["out", "48"], &["--fork", fork]);
        assert!(outcome.stat("pswpout") > 1000, "{}", outcome.report());
    }
}
behaviour!(pages_that_are_out: m16, copy, threads);

fn refusals(variant: Variant) {
    same(variant, &["calls"], &[]);
}
behaviour!(refusals: m64, m16);

fn mappings_that_grow_downwards(variant: Variant) {
    same(variant, &["grow"], &[]);
}
behaviour!(mappings_that_grow_downwards: m64, m16, copy);

/// A block of the heap that is allocated is as new, whatever became of the one before it.
fn blocks_of_the_heap(variant: Variant) {
    for which in ["large", "all"] {
        same(variant, &["heap"], &["--heap", which]);
    }
}
behaviour!(blocks_of_the_heap: m64, m16, copy);

/// With a line and SIGABRT, as plainly; which line is the allocator's.
fn blocks_that_are_freed_wrongly(variant: Variant) {
    for (way, line) in [
        ("twice", "free(): double free or invalid pointer"),
        ("inside", "free(): double free or invalid pointer"),
        ("odd", "free(): double free or invalid pointer"),
        ("resized", "realloc(): invalid pointer"),
        ("inside-large", ""),
    ] {
        let (plain, ours) = both(variant, &["wrong", way], &["--heap", "all"]);
        assert_eq!((&ours.status, &ours.stdout), (&plain.status, &plain.stdout), "{}", ours.report());
        assert!(ours.stdout.is_empty() && ours.stderr.contains(line), "{}", ours.report());
    }
}
behaviour!(blocks_that_are_freed_wrongly: m64, m16);
