//! `run --swap --fork copy`: forked children go on with their parent's memory, four times the budget, and
//! have a manager of their own.

use elbowroom_tests::{Command, Outcome, Scratch, Variant, behaviour, program};

/// Runs a part of the program `forked` with 64 MiB, beside the kernel, which validates it.
fn forked(variant: Variant, part: &str, swap: &str, more: &[&str]) -> Outcome {
    let scratch = Scratch::new();
    let dir = scratch.file("");
    let plain = Command::new(program("forked")).args([part, "64"]).run().success();
    let mut options = vec!["--swap", swap, "--swap-dir", &dir, "--fork", "copy"];
    options.extend(more);
    // Budget, what the library needs, and the program itself.
    let command = Command::new(program("forked")).args([part, "64", "56"]);
    let outcome = command.variant(variant).run_options(&options).run().success();
    assert_eq!((outcome.stdout.as_str(), plain.stdout.as_str()), ("ok\n", "ok\n"), "{}", outcome.report());
    assert_eq!(outcome.stat("forked_unmanaged"), 0, "{}", outcome.report());
    assert_eq!(outcome.stat("swap_errors"), 0, "{}", outcome.report());
    // The parent's memory is managed to the end.
    assert!(outcome.stat("pswpin") > 10_000, "{}", outcome.report());
    outcome
}

fn both_check_and_change_all_pages(variant: Variant) {
    forked(variant, "both", "256M", &[]);
}
behaviour!(both_check_and_change_all_pages: m16, copy, threads);

fn ten_deep(variant: Variant) {
    forked(variant, "deep", "256M", &[]);
}
behaviour!(ten_deep: m16, copy, threads);

fn other_threads_store_while_one_forks(variant: Variant) {
    forked(variant, "threads", "256M", &[]);
}
behaviour!(other_threads_store_while_one_forks: m16, copy);

fn what_may_only_be_read_stays_so(variant: Variant) {
    forked(variant, "rights", "256M", &[]);
}
behaviour!(what_may_only_be_read_stays_so: m16, copy);

/// libc stores to its streams in the child before anybody else runs there.
fn streams_of_a_managed_heap(variant: Variant) {
    forked(variant, "streams", "256M", &["--heap", "all"]);
}
behaviour!(streams_of_a_managed_heap: m16, copy);

/// A child's child needs pages of the first process's file after the child has gone.
fn orphans(variant: Variant) {
    forked(variant, "orphan", "256M", &[]);
}
behaviour!(orphans: m16, copy);

/// What a child read of the parent's file is free again once it is gone, however it went: the swap has room
/// for the memory twice, and six children leave theirs behind.
fn children_are_killed(variant: Variant) {
    forked(variant, "killed", "150M", &["--swap-encrypt"]);
}
behaviour!(children_are_killed: m16);

#[test]
fn shells_are_started() {
    let scratch = Scratch::new();
    let dir = scratch.file("");
    let options = ["--swap", "256M", "--swap-dir", &dir, "--fork", "copy"];
    let command = Command::new(program("forked")).args(["exec", "64"]);
    let outcome = command.variant(Variant::m16()).run_options(&options).run().success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
}

const MULTIPROCESSING: &str = r#"
import array, multiprocessing, subprocess
multiprocessing.set_start_method("fork")
N = 8 << 20
numbers = array.array("d", range(N))
small = [i * 3 for i in range(200000)]
def work(k):
    for i in range(k, N, 64):
        numbers[i] = -k
    return k, sum(numbers[k::64]), sum(small[k::64])
with multiprocessing.Pool(3) as pool:
    got = pool.map(work, range(12))
for k, own, rest in got:
    assert own == -k * (N // 64) and rest == sum(small[k::64]), (k, own, rest)
assert sum(numbers) == N * (N - 1) // 2
queue = multiprocessing.Queue()
children = [multiprocessing.Process(target=lambda n=n: queue.put((n, numbers[n]))) for n in (1, 1000, N - 1)]
[child.start() for child in children]
assert sorted(queue.get() for _ in children) == [(n, float(n)) for n in (1, 1000, N - 1)]
[child.join() for child in children]
assert [child.exitcode for child in children] == [0, 0, 0]
assert subprocess.run(["sh", "-c", "exit 7"], preexec_fn=lambda: None).returncode == 7
print("ok")
"#;

#[test]
fn python_multiprocessing() {
    let scratch = Scratch::new();
    let dir = scratch.file("");
    let options = ["--swap", "512M", "--swap-dir", &dir, "--fork", "copy"];
    let command = Command::new("python3").args(["-c", MULTIPROCESSING]);
    let outcome = command.variant(Variant::m16()).run_options(&options).run().success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
    assert!(outcome.stat("pswpin") > 10_000, "{}", outcome.report());
}
