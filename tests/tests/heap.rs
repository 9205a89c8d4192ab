//! `run --swap --heap large`: large blocks of the heap, more than the budget, beside small ones of libc's.

use elbowroom_tests::{Command, Outcome, Scratch, Variant, behaviour, program};

/// Runs a part of the program `heap`.
fn heap(variant: Variant, part: &str, mib: &str) -> Outcome {
    let scratch = Scratch::new();
    let dir = scratch.file("");
    let options = ["--swap", "512M", "--swap-dir", &dir];
    let command = Command::new(program("heap")).args([part, mib]);
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
behaviour!(blocks: m16, m64, copy, threads);

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
