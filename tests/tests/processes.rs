//! What a program sees of itself, its children, and its end.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use elbowroom_tests::{Command, Pattern, Scratch, Variant, behaviour, program};
use rustix::process::Signal;

const BYTES: u64 = 9_000_000;
/// More than the smallest budget, so that some of it has to be written before the end.
const DIRTY_BYTES: u64 = 24_000_001;

/// Descriptors, signals, and everything else that a program can ask about itself are as under the plain
/// kernel.
fn identity(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, BYTES, 5);
    let command = || Command::new(program("identity")).args([&file, "5"]).env("BEHAVIOUR_MARK", "there");
    let plain = command().run().success();
    command().variant(variant).run().success().same_as(&plain);
    Pattern::check(&file, BYTES, 5);
}
behaviour!(identity: plain, m64, m16, copy);

fn forks(mode: &str, variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, BYTES, 5);
    let command = || Command::new(program("forks")).args([&file, "5", mode]);
    let plain = command().run().success();
    command().variant(variant).run().success().same_as(&plain);
    Pattern::check(&file, BYTES, 5);
}

fn children_that_exec(variant: Variant) {
    forks("exec", variant);
}
behaviour!(children_that_exec: plain, m64, m16, copy);

fn children_that_map(variant: Variant) {
    forks("remap", variant);
}
behaviour!(children_that_map: plain, m16, copy);

fn children_that_unmap(variant: Variant) {
    forks("unmap", variant);
}
behaviour!(children_that_unmap: plain, m16);

/// What may be stored to goes back to the kernel before a fork.
fn children_that_share(variant: Variant) {
    forks("share", variant);
}
behaviour!(children_that_share: plain, m16, copy);

/// A child that goes on with a mapping of a file that its parent had managed reads the right bytes, since the
/// file went to the kernel. Where forks do not copy the manager it gets a signal and says why. It never sees
/// wrong bytes.
fn children_that_touch(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, BYTES, 5);
    for copies in [true, false] {
        let options: &[&str] = if copies { &["--fork", "copy"] } else { &["--swap", "0"] };
        let command = Command::new(program("forks")).args([&file, "5", "touch"]).variant(variant);
        let outcome = command.run_options(options).run().success();
        if variant.is_plain() || copies {
            assert_eq!(outcome.stdout, "child: exit 42, signal 0\n", "{}", outcome.report());
            continue;
        }
        assert!(outcome.stdout.starts_with("child: exit -1, signal "), "{}", outcome.report());
        assert!(
            outcome.stderr.contains("elbowroom") && outcome.stderr.contains("fork"),
            "{}",
            outcome.report()
        );
    }
}
behaviour!(children_that_touch: plain, m16, copy);

/// Stores that were never synced are on the file however the process ends, and its status is its own.
fn ends(mode: &str, variant: Variant) {
    let scratch = Scratch::new();
    let run = |name: &str, variant| {
        let file = scratch.file(name);
        Pattern::zeros(&file, DIRTY_BYTES);
        let command = Command::new(program("ends")).args([&file, "9", mode]).variant(variant);
        // Statistics are per process image: after exec they are those of a program that maps nothing.
        let outcome = if mode == "exec" { command.maybe_unmanaged().run() } else { command.run() };
        Pattern::check(&file, DIRTY_BYTES, 9);
        outcome
    };
    run("data", variant).same_as(&run("plain", Variant::plain()));
}

/// A test for each way of ending, in the variants that make a difference.
macro_rules! ends {
    ($($name:ident: $mode:literal;)+) => {
        $(
            fn $name(variant: Variant) {
                ends($mode, variant);
            }
            behaviour!($name: m64, m16, threads);
        )+
    };
}

ends! {
    ends_by_return: "return";
    ends_by_exit: "exit";
    ends_by_underscore_exit: "_exit";
    ends_by_underscore_capital_exit: "_Exit";
    ends_by_quick_exit: "quick_exit";
    ends_by_abort: "abort";
    ends_by_raise: "raise";
    ends_by_segv: "segv";
    ends_by_trap: "trap";
    ends_by_alarm: "alarm";
    ends_by_broken_pipe: "pipe";
    ends_by_another_thread: "thread-exit";
    ends_after_main: "main-leaves";
    ends_by_exec: "exec";
    ends_after_a_handler: "handler";
}

/// A signal from outside, whose default action ends the process.
fn ends_by_a_signal(variant: Variant) {
    let scratch = Scratch::new();
    for (mode, signal) in [
        ("wait", Signal::TERM),
        ("wait-threads", Signal::TERM),
        ("wait", Signal::INT),
        ("wait-threads", Signal::HUP),
        ("wait", Signal::USR1),
    ] {
        let file = scratch.file("data");
        Pattern::zeros(&file, DIRTY_BYTES);
        let mut running = Command::new(program("ends")).args([&file, "9", mode]).variant(variant).start();
        running.wait_for_line("ready");
        running.signal(signal);
        let outcome = running.finish();
        assert_eq!(outcome.status.signal(), Some(signal.as_raw()), "{}", outcome.report());
        Pattern::check(&file, DIRTY_BYTES, 9);
    }
}
behaviour!(ends_by_a_signal: plain, m64, m16);

/// A signal that somebody else sends to the program is the program's, also while our threads wait for signals
/// of their own.
fn signals_from_outside(variant: Variant) {
    const EACH: usize = 60;
    for signal in [Signal::IO, Signal::URG, Signal::USR1, Signal::ALARM] {
        let scratch = Scratch::new();
        let arguments = [scratch.file("data"), "9".to_owned(), signal.as_raw().to_string(), EACH.to_string()];
        let command = Command::new(program("sent")).args(arguments).variant(variant);
        let mut running = command.run_options(&["--min-size", "4K"]).start();
        running.wait_for_line("ready");
        for number in 1..=EACH {
            running.signal(signal);
            running.wait_for_line(&format!("got {number}"));
        }
        running.finish().success();
    }
}
behaviour!(signals_from_outside: plain, m64, m16);

/// The background writes what was stored, with nobody asking for it: it survives SIGKILL.
fn background_write_back(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::zeros(&file, DIRTY_BYTES);
    let mut running = Command::new(program("ends")).args([&file, "9", "wait"]).variant(variant).start();
    running.wait_for_line("ready");
    // After its interval; but the disk may be slow, and others may have the processors.
    let until = Instant::now() + Duration::from_secs(60);
    while !Pattern::holds(&file, DIRTY_BYTES, 9) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(100));
    }
    running.signal(Signal::KILL);
    assert_eq!(running.finish().status.signal(), Some(Signal::KILL.as_raw()));
    Pattern::check(&file, DIRTY_BYTES, 9);
}
behaviour!(background_write_back: plain, m64, m16, copy);

/// SIGKILL in the middle of msync: everything that an msync had confirmed is on the file.
fn killed_in_msync(variant: Variant) {
    for milliseconds in [300, 700, 1100] {
        let scratch = Scratch::new();
        let file = scratch.file("data");
        Pattern::zeros(&file, DIRTY_BYTES);
        let mut running = Command::new(program("ends")).args([&file, "9", "msyncs"]).variant(variant).start();
        running.wait_for_line("1");
        std::thread::sleep(Duration::from_millis(milliseconds));
        running.signal(Signal::KILL);
        let outcome = running.finish();
        assert_eq!(outcome.status.signal(), Some(Signal::KILL.as_raw()), "{}", outcome.report());
        // The last line may be cut short: a line counts when its end was written.
        let complete = &outcome.stdout[..outcome.stdout.rfind('\n').map_or(0, |end| end + 1)];
        let last = complete.lines().last().expect("the first line was seen");
        Command::new(program("ends")).args([&file, "9", "confirmed", last]).run().success();
    }
}
behaviour!(killed_in_msync: plain, m64, m16, copy);
