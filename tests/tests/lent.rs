//! Calls that reach mapped files where nobody can stand before the access itself: stdio, and what the kernel
//! does with pages after a call has returned.

use elbowroom_tests::{Command, Pattern, Scratch, Variant, behaviour, program};

/// What the program prints, part by part.
fn parts(names: &[&str]) -> String {
    names.iter().map(|name| format!("ok {name}\n")).collect()
}

fn stdio(variant: Variant) {
    let scratch = Scratch::new();
    let outcome =
        Command::new(program("stdio")).args([&scratch.file("data")]).variant(variant).run().success();
    let names = [
        "writes",
        "writes_without_a_flush",
        "writes_of_a_descriptor",
        "reads",
        "streams_before_mappings",
        "made_anew",
        "standard_streams",
        "left_to_exit",
        "races",
    ];
    assert_eq!(outcome.stdout, parts(&names));
    assert_eq!(outcome.stderr, "123456789 1 2 3 4 5 6\n", "{}", outcome.report());
}
behaviour!(stdio: plain, m64, m16, copy, threads, handlers1);

/// A stream that reads does not keep a file that is only read from being managed.
fn only_read(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, 20_000_000, 3);
    let outcome = Command::new(program("stdio")).args([&file, "read", "3"]).variant(variant).run().success();
    if let Some(stats) = &outcome.stats {
        assert!(outcome.stat("read_bytes") >= 20_000_000, "{}", outcome.report());
        assert!(stats["left_to_kernel"].get("stdio").is_none(), "{stats}");
    }
}
behaviour!(only_read: plain, m16, copy);

fn zero_copy(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, 32 * 1024 * 1024, 7);
    let outcome = Command::new(program("zerocopy")).args([&file, "7"]).variant(variant).run().success();
    let names = [
        "vmsplice_of_mapped_pages",
        "tee_of_a_mapped_file",
        "sends_of_mapped_pages",
        "long_sends",
        "bad_sends",
        "ways_of_debuggers",
        "advice",
    ];
    assert_eq!(outcome.stdout, parts(&names));
}
behaviour!(zero_copy: plain, m64, m16, copy, threads, handlers1);

fn asynchronous(variant: Variant) {
    let scratch = Scratch::new();
    let outcome = Command::new(program("aio")).args([&scratch.file("data")]).variant(variant).run().success();
    assert_eq!(outcome.stdout, parts(&["of_libc", "of_libaio"]));
}
behaviour!(asynchronous: plain, m64, m16, copy);
