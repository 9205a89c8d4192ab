//! The layout verbs, the end of the file, and wrong accesses.

use elbowroom_tests::{Command, Pattern, Scratch, Variant, behaviour, program};

const BYTES: u64 = 9_000_000;

/// A program that takes a file of the pattern and its seed, prints what has passed, and leaves the file as it
/// was.
fn passes(name: &str, variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, BYTES, 5);
    let command = || Command::new(program(name)).args([&file, "5"]).variant(variant);
    let outcome = command().run().success();
    assert!(outcome.stdout.lines().count() > 5, "{}", outcome.report());
    Pattern::check(&file, BYTES, 5);
}

fn partial(variant: Variant) {
    passes("partial", variant);
}
behaviour!(partial: plain, m64, m16, copy, threads, handlers1, handlers4);

fn segv(variant: Variant) {
    passes("segv", variant);
}
behaviour!(segv: plain, m64, m16, copy, handlers1, handlers4);

fn eof(variant: Variant) {
    let scratch = Scratch::new();
    // One part has a small file, which is to be managed like the others. Small blocks of memory do not count.
    let command = Command::new(program("eof")).args([&scratch.file("data"), "5"]);
    let outcome = command.variant(variant).run_options(&["--min-size", "4K", "--swap", "0"]).run().success();
    assert_eq!(outcome.stdout.lines().count(), 12, "{}", outcome.report());
    if !variant.is_plain() {
        assert_eq!(outcome.left_to_kernel("too_small"), 0, "{}", outcome.report());
    }
}
behaviour!(eof: plain, m64, m16, copy, threads);

/// What is at the end of a file can be read while other threads change what that is.
fn end_in_motion(variant: Variant) {
    let scratch = Scratch::new();
    let command = Command::new(program("eof3")).args([&scratch.file("data"), "150"]);
    let outcome = command.variant(variant).run_options(&["--min-size", "4K"]).run().success();
    assert_eq!(outcome.stdout.lines().count(), 2, "{}", outcome.report());
}
behaviour!(end_in_motion: plain, m64, m16, copy, threads, handlers4);
