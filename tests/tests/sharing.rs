//! Two processes that use one file see what the other did, whether one of them is managed, or both.

use elbowroom_tests::{Command, Pattern, Scratch, Variant, behaviour, program};

const BYTES: u64 = 4 << 20;

fn with_another(kind: &str, variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, BYTES, 5);
    let outcome = Command::new(program("sharing")).args([&file, "5", kind]).variant(variant).run().success();
    if outcome.stats.is_some() {
        // It was managed, and went back when the other came, each time.
        assert!(outcome.stat("contested_files") >= 6, "{}", outcome.report());
    }
}

fn with_a_plain_process(variant: Variant) {
    with_another("plain", variant);
}
behaviour!(with_a_plain_process: plain, m64, m16, copy, threads);

fn with_a_managed_process(variant: Variant) {
    with_another("same", variant);
}
behaviour!(with_a_managed_process: plain, m16, copy);
