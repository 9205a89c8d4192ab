//! Dirty pages: what msync says, and writers that are slowed down since too much is dirty.

use elbowroom_tests::{Command, Outcome, Pattern, Scratch, Variant, behaviour, program};
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;

const BYTES: u64 = 8 << 20;

/// A disk that takes 4 MiB and less in a second, and a dirty limit of 1 MiB.
const SLOW: [&str; 4] = ["--dirty", "1M", "--inject", "write:slow=20ms:file=data"];

/// Every case of msync gets the kernel's answer.
fn msync_answers(variant: Variant) {
    let scratch = Scratch::new();
    let run = |variant: Variant, name: &str| {
        let file = scratch.file(name);
        Pattern::zeros(&file, 4 << 20);
        Command::new(program("msyncs")).args([&file]).variant(variant).run().success()
    };
    let (plain, ours) = (run(Variant::plain(), "plain"), run(variant, "ours"));
    assert!(plain.stdout.lines().count() > 250, "{}", plain.report());
    ours.same_as(&plain);
}
behaviour!(msync_answers: plain, m64, m16, small, copy);

fn throttled(scratch: &Scratch, variant: Variant, mode: &str) -> Outcome {
    let file = scratch.file("data");
    Pattern::zeros(&file, BYTES);
    Pattern::zeros(&format!("{file}.child"), BYTES);
    let command = Command::new(program("throttled")).args([&file, "6", mode]).variant(variant);
    let command = if variant.is_plain() { command } else { command.run_options(&SLOW) };
    let outcome = command.run().success();
    assert_eq!(outcome.stdout, "done\n", "{}", outcome.report());
    if !variant.is_plain() {
        assert!(outcome.stat("throttled_writers") > 0, "{}", outcome.report());
        assert_eq!(outcome.stat("lost_dirty_pages"), 0);
        assert_eq!(outcome.stat("overdue_faults"), 0);
    }
    outcome
}

fn verify(scratch: &Scratch) {
    Command::new(program("throttled")).args([&scratch.file("data"), "6", "verify"]).run().success();
}

/// SIGKILL while all threads wait: the process is gone at once.
fn throttled_writers_killed(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    for signal in [Signal::KILL, Signal::TERM] {
        Pattern::zeros(&file, BYTES);
        let command = Command::new(program("throttled")).args([&file, "6", "forever"]).variant(variant);
        let command = if variant.is_plain() { command } else { command.run_options(&SLOW) };
        let mut running = command.start();
        running.wait_for_line("ready");
        running.signal(signal);
        let outcome = running.finish();
        assert_eq!(outcome.status.signal(), Some(signal.as_raw()), "{}", outcome.report());
    }
}
behaviour!(throttled_writers_killed: plain, m64, m16, copy);

fn throttled_writers_get_signals(variant: Variant) {
    let scratch = Scratch::new();
    throttled(&scratch, variant, "signals");
    verify(&scratch);
}
behaviour!(throttled_writers_get_signals: plain, m64, m16, copy);

fn throttled_writers_are_cancelled(variant: Variant) {
    let scratch = Scratch::new();
    throttled(&scratch, variant, "cancel");
    verify(&scratch);
}
behaviour!(throttled_writers_are_cancelled: plain, m64, m16, copy);

fn throttled_writers_lose_their_mapping(variant: Variant) {
    throttled(&Scratch::new(), variant, "unmap");
}
behaviour!(throttled_writers_lose_their_mapping: plain, m64, m16, copy);

fn throttled_writers_lose_their_file(variant: Variant) {
    throttled(&Scratch::new(), variant, "truncate");
}
behaviour!(throttled_writers_lose_their_file: plain, m64, m16, copy);

fn a_child_is_killed_while_it_is_throttled(variant: Variant) {
    let scratch = Scratch::new();
    throttled(&scratch, variant, "child");
    verify(&scratch);
}
behaviour!(a_child_is_killed_while_it_is_throttled: plain, m64, m16);
