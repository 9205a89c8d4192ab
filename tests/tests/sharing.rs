//! Two processes that use one file see what the other did, whether one of them is managed, or both.

use elbowroom_tests::{Command, Pattern, Scratch, Variant, behaviour, may_watch, program, skipped};

const BYTES: u64 = 4 << 20;

fn with_another(kind: &str, variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, BYTES, 5);
    let outcome = Command::new(program("sharing")).args([&file, "5", kind]).variant(variant).run().success();
    if outcome.stats.is_some() {
        // It was managed, and went back when the other came, each time. Without watches those are the times
        // in which it was only read.
        let contested = outcome.stat("contested_files");
        assert!(contested == if may_watch() { 13 } else { 6 }, "{contested}: {}", outcome.report());
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

/// Another process has the file open where only a look at each of its threads shows it.
fn held_by_a_thread(how: &str) {
    if !may_watch() {
        return skipped("watches on files need CAP_SYS_ADMIN");
    }
    let scratch = Scratch::new();
    let (file, other) = (scratch.file("data"), scratch.file("other"));
    Pattern::zeros(&file, BYTES);
    Pattern::zeros(&other, BYTES);
    let mut holder = Command::new(program("held")).args([&file, how]).start();
    holder.wait_for_line("ready");
    let left = |file: &str| {
        let command = Command::new(program("shared_rw")).args(["run", file, "3", "8", "2"]);
        command.variant(Variant::m16()).maybe_unmanaged().run().success().left_to_kernel("not_alone")
    };
    assert_eq!(left(&other), 0, "nobody has it");
    assert!(left(&file) > 0, "it was taken for ours alone");
    drop(holder);
    assert_eq!(left(&file), 0, "nobody has it any more");
}

#[test]
fn held_in_a_table_of_a_threads_own() {
    held_by_a_thread("table");
}

#[test]
fn held_after_the_main_thread_has_ended() {
    held_by_a_thread("ended");
}

/// More files than can be watched with the descriptors that the process may have.
fn more_than_descriptors(variant: Variant) {
    let scratch = Scratch::new();
    let command = Command::new(program("watched")).args([&scratch.file("data")]);
    let outcome = command.variant(variant).maybe_unmanaged().run().success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
    if outcome.stats.is_some() && may_watch() {
        let left = outcome.left_to_kernel("not_alone") + outcome.left_to_kernel("open_failed");
        assert!(left > 0 && outcome.stat("contested_files") > 100, "{}", outcome.report());
    }
}
behaviour!(more_than_descriptors: plain, small);
