//! How a process ends: its status, its signal and its files are those of a plain run, whatever ends it.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use elbowroom_tests::{Command, Pattern, Scratch, Variant, behaviour, elbowroom_exe, program};
use rustix::process::Signal;

/// More than the smallest budget, so that some of it has to be written before the end.
const DIRTY_BYTES: u64 = 24_000_001;

/// Stores that were never synced are on the file, and output and status are those of the plain run.
fn ends(mode: &str, variant: Variant) {
    let scratch = Scratch::new();
    let run = |name: &str, variant| {
        let file = scratch.file(name);
        Pattern::zeros(&file, DIRTY_BYTES);
        let command = Command::new(program("ends2")).args([&file, "9", mode]).variant(variant);
        // There the process that maps is not the one that `run` became.
        let outcome = if mode == "process-1" { command.maybe_unmanaged().run() } else { command.run() };
        Pattern::check(&file, DIRTY_BYTES, 9);
        outcome
    };
    let plain = run("plain", Variant::plain());
    assert_ne!(plain.status.code(), Some(99), "{}", plain.report());
    run("data", variant).same_as(&plain);
}

/// A test for each way of ending: what it prepares, it does before and after the first mapping.
macro_rules! ends {
    ($($name:ident: $($mode:literal),+;)+) => {
        $(
            fn $name(variant: Variant) {
                $(ends($mode, variant);)+
            }
            behaviour!($name: m64, m16);
        )+
    };
}

ends! {
    once: "once", "early-once";
    once_with_siginfo: "once-info", "early-once-info";
    once_without_deferring: "once-nodefer", "early-once-nodefer";
    once_by_sysv_signal: "once-sysv", "early-once-sysv";
    once_real_time: "once-real-time", "early-once-real-time";
    once_by_a_fault: "once-segv", "early-once-segv";
    abort_with_a_handler: "abort-handler", "early-abort-handler", "abort-signal", "early-abort-signal";
    abort_with_a_handler_once: "abort-once", "early-abort-once";
    abort_that_is_left: "abort-jump", "early-abort-jump";
    abort_that_is_ignored: "abort-ignored", "early-abort-ignored";
    abort_that_is_blocked: "abort-blocked";
    abort_inside_libc: "assert", "assert-handler", "early-assert-handler", "assert-ignored",
        "early-assert-ignored";
    fault_that_is_ignored: "segv-ignored", "early-segv-ignored";
    small_alternate_stack: "small-stack", "small-stack-once", "early-small-stack-once";
    least_alternate_stack: "least-stack";
    stack_overflow: "overflow", "early-overflow", "overflow-default", "overflow-abort";
    process_1: "process-1";
    faults_that_are_blocked: "blocked-segv", "blocked-default", "blocked-ill", "blocked-fpe", "blocked-trap";
    fault_in_a_thread_that_blocks: "blocked-thread";
    fault_in_a_handler: "blocked-nested", "blocked-by-term";
    fault_handlers_that_are_left: "blocked-left";
    fault_signals_that_are_sent: "blocked-sent";
}

/// The same with the summary, which is put together and written while the process ends.
fn small_stacks_and_the_summary(variant: Variant) {
    let scratch = Scratch::new();
    for (mode, signal) in
        [("small-stack", Signal::TERM), ("least-stack", Signal::TERM), ("overflow", Signal::SEGV)]
    {
        let file = scratch.file("data");
        Pattern::zeros(&file, DIRTY_BYTES);
        let command = Command::new(program("ends2")).args([&file, "9", mode]).variant(variant).with_summary();
        let outcome = command.run();
        assert_eq!(outcome.status.signal(), Some(signal.as_raw()), "{}", outcome.report());
        assert!(outcome.stderr.contains("left to kernel"), "{}", outcome.report());
        Pattern::check(&file, DIRTY_BYTES, 9);
    }
}
behaviour!(small_stacks_and_the_summary: m64, m16);

/// How long a summary that nobody reads may delay the end, on a busy machine.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Standard error is a pipe that nobody reads: closed at the other end, or full. The end is that of the
/// program.
fn unread_summary(closed: bool, variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::zeros(&file, DIRTY_BYTES);
    let (reader, mut writer) = std::io::pipe().expect("a pipe can be made");
    if !closed {
        // What a pipe holds, unless its size was changed.
        writer.write_all(&[b'x'; 65_536]).expect("an empty pipe has room");
    }
    let mut command = std::process::Command::new(elbowroom_exe());
    command.arg("run").args(variant.options.expect("a variant under Elbowroom")).arg("--");
    command.arg(program("ends")).args([&file, "9", "exit"]).stdin(Stdio::null()).stderr(writer);
    let mut child = command.spawn().expect("it can be started");
    drop(command);
    let _reader = (!closed).then_some(reader);
    let until = Instant::now() + END_LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break status;
        }
        if Instant::now() > until {
            child.kill().expect("it can be killed");
            panic!("it has not ended: {:?}", child.wait());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(3), "{status}");
    Pattern::check(&file, DIRTY_BYTES, 9);
}

fn summary_into_a_closed_pipe(variant: Variant) {
    unread_summary(true, variant);
}
behaviour!(summary_into_a_closed_pipe: m16);

fn summary_into_a_full_pipe(variant: Variant) {
    unread_summary(false, variant);
}
behaviour!(summary_into_a_full_pipe: m16);

const BYTES: u64 = 9_000_000;

/// A mode of the program `children`: as in a plain run.
fn children(mode: &str, variant: Variant) -> elbowroom_tests::Outcome {
    children_with(mode, variant, &[])
}

fn children_with(mode: &str, variant: Variant, options: &[&str]) -> elbowroom_tests::Outcome {
    let scratch = Scratch::new();
    let run = |variant| {
        let file = scratch.file("data");
        Pattern::zeros(&file, BYTES);
        let command = Command::new(program("children")).args([&file, "9", mode]).variant(variant);
        let command = command.run_options(options);
        // The outputs would differ by lines about what cannot be managed, if they were wanted (said.rs has
        // them): of a program that is executed without our variables, and of a file under a low limit.
        let silent = |command: Command| command.run_options(&["--fallback", "kernel"]);
        let outcome = match mode {
            "lists" => silent(command).run(),
            // There the file is to be what the manager is first wanted for, after the limit was set.
            "low-limit" => silent(command).maybe_unmanaged().run_options(&["--swap", "0"]).run(),
            _ => command.run(),
        };
        Pattern::check(&file, BYTES, 9);
        outcome
    };
    let plain = run(Variant::plain());
    assert_ne!(plain.status.code(), Some(99), "{}", plain.report());
    let outcome = run(variant);
    outcome.same_as(&plain);
    outcome
}

/// What clone, _Fork and vfork make reads the files as they are, and finds its arguments in their places.
fn children_of_all_kinds(variant: Variant) {
    children("ways", variant);
    children("lists", variant);
    children("masks", variant);
}
behaviour!(children_of_all_kinds: plain, m64, m16, copy);

/// What is reserved for mappings is not taken from the program's limits, which read as they were set.
fn limits_of_address_space(variant: Variant) {
    for mode in ["limits", "limits-data", "limits-before", "limits-data-before"] {
        children(mode, variant);
    }
}
behaviour!(limits_of_address_space: plain, m64, m16);

/// Where limits leave no room for windows, the mapping is the kernel's, and the program goes on.
fn limits_without_room(variant: Variant) {
    let outcome = children("low-limit", variant);
    if !variant.is_plain() {
        assert_eq!(outcome.stat("pgmajfault"), 0, "{}", outcome.report());
        let left = &outcome.stats.as_ref().expect("there are statistics")["left_to_kernel"];
        assert!(left["address_space_limit"].as_u64() == Some(1), "{left}");
    }
}
behaviour!(limits_without_room: plain, m16);

/// Only a process of one thread gets a user namespace: it fails as the kernel says, and nothing else happens.
fn user_namespace(variant: Variant) {
    children("user-namespace", variant);
}
behaviour!(user_namespace: plain, m16);

/// It is said in how many children that only fork nothing is managed; one that executes is not among them,
/// nor is one that has a copy of the manager.
fn forked_children_are_counted(variant: Variant) {
    for (how, unmanaged) in [("kernel", 2), ("copy", 0)] {
        let outcome = children_with("forks", variant, &["--fork", how]);
        assert_eq!(outcome.stat("forked_unmanaged"), unmanaged, "--fork {how}");
    }
}
behaviour!(forked_children_are_counted: m16);
