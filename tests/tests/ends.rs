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
    abort_inside_libc: "assert", "assert-handler", "early-assert-handler", "assert-ignored", "early-assert-ignored";
    fault_that_is_ignored: "segv-ignored", "early-segv-ignored";
    small_alternate_stack: "small-stack", "small-stack-once", "early-small-stack-once";
    least_alternate_stack: "least-stack";
    stack_overflow: "overflow", "early-overflow", "overflow-default";
    process_1: "process-1";
}
