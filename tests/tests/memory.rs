//! Anonymous memory and private copies of files' pages under `run`, more than the budget.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use elbowroom_tests::{Command, Outcome, Pattern, Scratch, Variant, behaviour, program};

const TIME_LIMIT: Duration = Duration::from_secs(400);

/// Runs a part of the program `memory`.
fn memory(scratch: &Scratch, variant: Variant, part: &str, argument: &str) -> Outcome {
    let dir = scratch.file("");
    let options = ["--swap", "512M", "--swap-dir", &dir];
    // Ten generations of processes that page, one after the other, take minutes where the disk is slow.
    let command = Command::new(program("memory")).args([part, argument]).time_limit(TIME_LIMIT);
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

fn arrays(variant: Variant) {
    was_out(&memory(&Scratch::new(), variant, "arrays", "128"));
}
behaviour!(arrays: m16, m64, copy, threads, user_mode);

/// A limit on files that the program sets for its own does not hold for the swap file.
fn limited(variant: Variant) {
    was_out(&memory(&Scratch::new(), variant, "limited", "96"));
}
behaviour!(limited: m16, threads);

/// Nor if it is there before the swap file.
fn limited_first(variant: Variant) {
    was_out(&memory(&Scratch::new(), variant, "limited_first", "96"));
}
behaviour!(limited_first: m16, copy);

/// Nothing is said about swap: there is four times the budget.
fn by_default(variant: Variant) {
    let mib = 3 * variant.memory_mib;
    let command = Command::new(program("memory")).args(["arrays".to_owned(), mib.to_string()]);
    let outcome = command.variant(variant).with_summary().run().success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
    was_out(&outcome);
}
behaviour!(by_default: m16, m64, copy);

/// A process that may not write a swap file, for which nobody has asked, has its memory from the kernel, more
/// than budget and swap.
fn without_a_place_for_swap(variant: Variant) {
    let program = program("memory");
    let line = "ulimit -f 4; exec \"$0\" arrays 128";
    let command = Command::new("bash").args(["-c", line, program.to_str().unwrap()]);
    let outcome = command.variant(variant).with_summary().maybe_unmanaged().run().success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
    assert!(outcome.left_to_kernel("anonymous") > 0, "{}", outcome.report());
    let said = "anonymous memory stays with the kernel, since /var/tmp has no place for swap";
    assert!(outcome.stderr.contains(said), "{}", outcome.report());
}
behaviour!(without_a_place_for_swap: m16, copy);

/// When budget and swap are full, an access that cannot be served fails, and what was used up is said.
/// Nothing hangs. Standard error is a file: nothing must be written over the line.
fn full(variant: Variant) {
    let scratch = Scratch::new();
    let (dir, file) = (scratch.file(""), scratch.file("stderr"));
    let line = "exec \"$0\" arrays 128 2> \"$1\"";
    let command = Command::new("bash").args(["-c", line, program("memory").to_str().unwrap(), &file]);
    let options = ["--swap", "16M", "--swap-dir", &dir];
    let outcome = command.variant(variant).run_options(&options).with_summary().run();
    assert_eq!(outcome.status.signal(), Some(libc::SIGBUS), "{}", outcome.report());
    let text = std::fs::read_to_string(&file).unwrap();
    let with_more = "a larger budget (--memory) or more swap (--swap)";
    let said = ["memory is full", "budget of 16 MiB", "16 of 16 MiB of swap", with_more];
    assert!(said.iter().all(|part| text.contains(part)), "{text}");
    // Pages for which there is no slot are not written while the access waits.
    assert!(outcome.stat("swap_written_bytes") < 32 << 20, "{}", outcome.report());
}
behaviour!(full: m16);

/// Loads of what is out fail then, too: by a load, in a system call and in a signal handler. Once there is
/// room, all is as it was.
fn full_for_loads(variant: Variant) {
    let scratch = Scratch::new();
    let dir = scratch.file("");
    let command = || Command::new(program("full")).args(["128"]).time_limit(TIME_LIMIT);
    assert_eq!(command().run().success().stdout, "there is room for all\n");
    let outcome =
        command().variant(variant).run_options(&["--swap", "64M", "--swap-dir", &dir]).run().success();
    let expected =
        "a load: SIGBUS\na system call: EFAULT\na signal handler: SIGBUS\nall of the rest is right\n";
    assert_eq!(outcome.stdout, expected, "{}", outcome.report());
    assert!(outcome.stat("faults_denied") >= 4, "{}", outcome.report());
}
behaviour!(full_for_loads: m16);

/// Zeros need no room, however they came about: a kernel has one page of zeros for all loads.
fn zeros(variant: Variant) {
    let scratch = Scratch::new();
    let dir = scratch.file("");
    let command = || Command::new(program("zeros")).args(["256"]).time_limit(TIME_LIMIT);
    let plain = command().run().success();
    let options = ["--swap", "64M", "--swap-dir", &dir];
    let managed = command().variant(variant).run_options(&options).run().success();
    managed.same_as(&plain);
    assert!(managed.stat("zeros_dropped") > 65536, "{}", managed.report());
    assert_eq!(managed.stat("swap_used_bytes"), 0, "{}", managed.report());
}
behaviour!(zeros: m16, copy);

/// What the kernel would refuse is refused: a program that gets a terabyte may count on it. 256 GiB, and more
/// than there are addresses.
fn promised(variant: Variant) {
    for mib in ["262144", "1000000000"] {
        let command = || Command::new(program("memory")).args(["promised", mib]);
        let plain = command().run().success();
        let managed = command().variant(variant).run_options(&["--swap", "512M"]).run().success();
        managed.same_as(&plain);
    }
}
behaviour!(promised: m16, copy);

fn allocators(variant: Variant) {
    was_out(&memory(&Scratch::new(), variant, "allocator", "128"));
}
behaviour!(allocators: m16, m64, copy);

fn hints(variant: Variant) {
    was_out(&memory(&Scratch::new(), variant, "hints", "128"));
}
behaviour!(hints: m16, m64, copy);

fn advised(variant: Variant) {
    was_out(&memory(&Scratch::new(), variant, "advised", "128"));
}
behaviour!(advised: m16, m64, copy);

fn what_is_refused_changes_nothing(variant: Variant) {
    was_out(&memory(&Scratch::new(), variant, "refused", "128"));
}
behaviour!(what_is_refused_changes_nothing: m16, m64, copy);

fn growth(variant: Variant) {
    was_out(&memory(&Scratch::new(), variant, "grow", "128"));
}
behaviour!(growth: m16, m64, copy);

/// As many programs are started under debuggers: at the end of the addresses there is no room to grow.
fn end_of_the_addresses(variant: Variant) {
    let scratch = Scratch::new();
    let dir = scratch.file("");
    let program = program("memory");
    let command = Command::new("setarch").args(["-R", program.to_str().unwrap(), "top", "64"]);
    let options = ["--swap", "512M", "--swap-dir", &dir];
    let outcome = command.variant(variant).run_options(&options).run().success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
}
behaviour!(end_of_the_addresses: m16, m64, copy);

fn other_threads_map_while_one_forks(variant: Variant) {
    memory(&Scratch::new(), variant, "churn", "4");
}
behaviour!(other_threads_map_while_one_forks: m16, copy);

/// With `--fork kernel` all memory goes to the kernel around a fork, and the children's is not managed.
#[test]
fn forks_by_the_kernel() {
    let command = Command::new(program("memory")).args(["forks", "96"]);
    let options = ["--swap", "512M", "--fork", "kernel"];
    let outcome = command.variant(Variant::m64()).run_options(&options).run().success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
    assert!(outcome.stat("forked_unmanaged") > 0, "{}", outcome.report());
}

fn forks(variant: Variant) {
    let mib = (variant.memory_mib * 3 / 2).max(48).to_string();
    let outcome = memory(&Scratch::new(), variant, "forks", &mib);
    assert_eq!(outcome.stat("forked_unmanaged"), 0, "{}", outcome.report());
}
behaviour!(forks: m64, copy);

/// Nothing that is asked for here makes the memory the kernel's, or cuts it in two.
fn mixed(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, 1 << 20, 7);
    let command = || Command::new(program("mixed")).args([&file]);
    let plain = command().run().success();
    let managed = command().variant(variant).run().success();
    managed.same_as(&plain);
    let left = ["mixed_range", "remapped", "too_small"].map(|reason| managed.left_to_kernel(reason));
    assert_eq!(left, [0; 3], "{}", managed.report());
    assert!(managed.stat("pswpout") > 0, "{}", managed.report());
}
behaviour!(mixed: m16, m64, copy, threads, user_mode);

fn copies(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, 96 << 20, 7);
    memory(&scratch, variant, "copies", &file);
}
behaviour!(copies: m16, m64, copy);
