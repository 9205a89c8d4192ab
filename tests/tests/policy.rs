//! `elbowroom run --policy`: which pages of files go when memory is short.

use elbowroom_tests::{Command, Outcome, Scratch, Variant, program};

const FILE_MIB: u64 = 256;
const PASSES: u64 = 8;

/// Passes over a file of four times the memory.
fn passes(policy: &str) -> Outcome {
    let scratch = Scratch::new();
    let command = Command::new(program("rereads")).args([scratch.file("data")]).args([FILE_MIB, PASSES]);
    let options = ["-m64M", "--policy", policy, "--swap", "0"];
    let outcome = command.variant(Variant::bare()).run_options(&options).run().success();
    assert!(outcome.stdout.ends_with("whole\n"), "{}", outcome.report());
    outcome
}

/// The bytes that all passes but the first have read, in percent of the bytes that these passes needed.
fn percent_read(outcome: &Outcome) -> u64 {
    let read = outcome.stat("read_bytes").saturating_sub(FILE_MIB << 20);
    read * 100 / ((PASSES - 1) * (FILE_MIB << 20))
}

/// A policy that is given does not change. Passes over four times the memory read less with `kept`, and with
/// the policy that a run chooses by itself, than with the other two.
#[test]
fn passes_find_what_the_policy_keeps() {
    let [even, long, kept] = ["even", "long", "kept"].map(passes);
    for fixed in [&even, &long, &kept] {
        assert_eq!(fixed.stat("policy_changes"), 0, "{}", fixed.report());
    }
    let auto = passes("auto");
    assert!(auto.stat("policy_changes") >= 1, "{}", auto.report());
    let read = [&even, &long, &kept, &auto].map(percent_read);
    let [even, long, kept, auto] = read;
    assert!(kept.max(auto) + 3 <= even.min(long), "{read:?}");
}

/// An unknown name is refused, and the error says which names are known.
#[test]
fn another_name_is_refused() {
    let command = Command::new("true").variant(Variant::bare()).run_options(&["--policy", "lru"]);
    let outcome = command.maybe_unmanaged().run();
    assert_eq!(outcome.status.code(), Some(2), "{}", outcome.report());
    assert!(outcome.stderr.contains("'lru'") && outcome.stderr.contains("kept"), "{}", outcome.report());
}
