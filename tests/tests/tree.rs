//! Trees of processes under one budget.

use elbowroom_tests::{Command, Outcome, Scratch, Variant, behaviour, program};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// What a tree may have beyond its budget for a moment: a copy after a fork, and what starting managers need.
const PASSING: u64 = 96 * MIB;

/// Runs a part of the program `tree` under Elbowroom, and before that without, which checks the program
/// itself.
fn tree(variant: Variant, arguments: &[&str], options: &[&str]) -> Outcome {
    let plain = Command::new(program("tree")).args(arguments).run().success();
    assert!(plain.stdout.ends_with("ok\n") || arguments[0] == "random", "{}", plain.report());
    let scratch = Scratch::new();
    let dir = scratch.file("");
    let mut all = vec!["--swap", "600M", "--swap-dir", &dir];
    all.extend(options);
    let command = Command::new(program("tree")).args(arguments).variant(variant).run_options(&all);
    let outcome = command.time_limit(Duration::from_secs(400)).maybe_unmanaged().run().success();
    assert_eq!(outcome.stderr, "", "{}", outcome.report());
    outcome
}

/// A figure of the whole run.
fn of_run(outcome: &Outcome, key: &str) -> u64 {
    let run = outcome.stats.as_ref().and_then(|stats| stats.get("run")).unwrap_or_else(|| {
        panic!("the statistics have nothing of the whole run\n{}", outcome.report());
    });
    run.get(key).and_then(serde_json::Value::as_u64).unwrap_or_else(|| panic!("{key}: {run}"))
}

/// Four processes need twelve times the budget.
fn workers_share_the_budget(variant: Variant) {
    let outcome = tree(variant, &["workers", "4", "48"], &[]);
    let peak = of_run(&outcome, "peak_bytes");
    assert!((12 * MIB..16 * MIB + PASSING).contains(&peak), "{peak}\n{}", outcome.report());
    assert!(of_run(&outcome, "swapped_in") > 10_000, "{}", outcome.report());
    assert_eq!(of_run(&outcome, "processes"), 5);
}
behaviour!(workers_share_the_budget: m16, copy, threads);

fn a_limit_for_each(variant: Variant) {
    let outcome = tree(variant, &["workers", "2", "48"], &["--each", "16M"]);
    let peak = of_run(&outcome, "peak_bytes");
    assert!((24 * MIB..=32 * MIB + 8 * MIB).contains(&peak), "{peak}\n{}", outcome.report());
}
behaviour!(a_limit_for_each: m64);

/// Processes fork, execute programs and are killed at random, and each one finds its own bytes.
fn a_tree_at_random(variant: Variant) {
    for seed in ["1", "2"] {
        tree(variant, &["random", seed, "24", "2"], &[]);
    }
}
behaviour!(a_tree_at_random: m16, copy, threads);

/// The memory of a killed process goes to the other processes. Else killed processes would use up the
/// budget.
fn processes_that_are_killed(variant: Variant) {
    let outcome = tree(variant, &["killed", "4", "24", "6"], &[]);
    let kills: u64 = outcome.stdout.split(' ').next().and_then(|kills| kills.parse().ok()).unwrap();
    assert!(kills > 20, "{}", outcome.report());
    // The first process, which is the only one left, has no managed memory.
    let left = of_run(&outcome, "bytes");
    assert!(left < 8 * MIB, "the dead count on: {left} bytes\n{}", outcome.report());
}
behaviour!(processes_that_are_killed: m64);

/// A process that has not reached its budget grows, and lacks nothing: no thread waits for memory.
fn growing_is_no_pressure(variant: Variant) {
    let outcome = tree(variant, &["waits", "24"], &[]);
    let stalled = outcome.stats.as_ref().and_then(|stats| stats["pressure"]["some"]["total_us"].as_u64());
    assert_eq!(stalled, Some(0), "{}", outcome.report());
}
behaviour!(growing_is_no_pressure: m64);

/// Waits until something holds, for 20 s.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// How many tables are in a directory of this test's own.
fn tables(dir: &str) -> usize {
    fs::read_dir(dir).expect("the directory is there").count()
}

/// A process that executes its program only after its parent has ended is in the run, and the table goes with
/// it.
fn a_parent_that_ends_first(variant: Variant) {
    for how in ["fork", "vfork"] {
        let scratch = Scratch::new();
        let (dir, plain, file) = (scratch.file("tables"), scratch.file("plain"), scratch.file("output"));
        fs::create_dir(&dir).unwrap();
        let said = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let orphan = |path: &str| Command::new(program("tree")).args(["orphan", "24", how, path]);
        orphan(&plain).run().success();
        wait_until("the plain program does not end", || said(&plain) == "ok\n");
        for turn in 1..=5 {
            let command = orphan(&file).variant(variant).env("XDG_RUNTIME_DIR", &dir);
            command.run_options(&["--swap", "100M"]).maybe_unmanaged().run().success();
            wait_until("the program does not end", || said(&file).matches("ok\n").count() == turn);
            assert_eq!(said(&file), "ok\n".repeat(turn), "{how}: nothing else is said");
            wait_until("the table is left behind", || tables(&dir) == 0);
        }
    }
}
behaviour!(a_parent_that_ends_first: m64);

/// The last processes of a run end at about the same time: one of them removes the table.
fn processes_that_end_together(variant: Variant) {
    let scratch = Scratch::new();
    let dir = scratch.file("tables");
    fs::create_dir(&dir).unwrap();
    for _ in 0..10 {
        let command = Command::new(program("tree")).args(["together", "8"]).variant(variant);
        command.env("XDG_RUNTIME_DIR", &dir).run_options(&["--swap", "100M"]).run().success();
        wait_until("the table is left behind", || tables(&dir) == 0);
    }
}
behaviour!(processes_that_end_together: m64);

/// What a process in another pid namespace had is free after its end, though others cannot see the process.
fn a_process_in_another_pid_namespace(variant: Variant) {
    if !elbowroom_tests::may_watch() {
        return elbowroom_tests::skipped("a pid namespace needs CAP_SYS_ADMIN");
    }
    let outcome = tree(variant, &["apart", "24"], &[]);
    assert!(of_run(&outcome, "peak_bytes") > 20 * MIB, "{}", outcome.report());
    assert!(of_run(&outcome, "bytes") < 8 * MIB, "{}", outcome.report());
}
behaviour!(a_process_in_another_pid_namespace: m64);
