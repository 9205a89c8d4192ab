//! Devices that fail, are slow, or are full.

use elbowroom_tests::{Command, Outcome, Pattern, Scratch, Variant, behaviour, program};

const BYTES: u64 = 12 * 1024 * 1024 + 77;

/// A run of `inject` on a file named `data`, with these faults.
fn inject(scratch: &Scratch, variant: Variant, mode: &str, faults: &str) -> Outcome {
    let file = scratch.file("data");
    Command::new(program("inject"))
        .args([&file, "5", mode])
        .variant(variant)
        .run_options(&["--inject", faults])
        .run()
}

fn file_of_pattern(scratch: &Scratch) {
    Pattern::create(&scratch.file("data"), BYTES, 5);
}

/// An error on read is a SIGBUS for the pages it concerns, and for no others, however large the reads around
/// it are.
fn read_error(variant: Variant) {
    let scratch = Scratch::new();
    file_of_pattern(&scratch);
    let faults = "read:eio:file=data:from=4096:to=8192,read:eio:file=data:from=5242880:to=5259264";
    let outcome = inject(&scratch, variant, "pages", faults).success();
    assert_eq!(
        outcome.stdout,
        "SIGBUS from 4096 to 8192\nSIGBUS from 5242880 to 5259264\nthe rest is right\n",
        "{}",
        outcome.report()
    );
    assert!(outcome.stat("read_errors") > 0, "{:?}", outcome.stats);
    Pattern::check(&scratch.file("data"), BYTES, 5);
}
behaviour!(read_error: m64, m16, copy, threads);

/// The summary that the user sees has an entry for it.
#[test]
fn a_read_error_is_in_the_summary() {
    let scratch = Scratch::new();
    file_of_pattern(&scratch);
    let faults = "read:eio:file=data:from=4096:to=8192";
    let command = Command::new(program("inject")).args([&scratch.file("data"), "5", "pages"]);
    let outcome =
        command.variant(Variant::m64()).with_summary().run_options(&["--inject", faults]).run().success();
    let summary = outcome.stderr.to_lowercase();
    assert!(summary.contains("read") && summary.contains("error"), "{}", outcome.report());
}

/// Slow and short reads are still right.
fn slow_or_short(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, 6 * 1024 * 1024 + 99, 7);
    for faults in ["read:slow=2ms", "read:short", "read:short,read:slow=1ms"] {
        let command = Command::new(program("read_all")).args([&file, "7", "4"]);
        command.variant(variant).run_options(&["--inject", faults]).run().success();
    }
}
behaviour!(slow_or_short: m16, copy, threads);

/// A file system without O_DIRECT.
fn no_direct_io(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, 24 * 1024 * 1024 + 99, 7);
    for faults in ["open:nodirect", "read:nodirect,write:nodirect"] {
        let command = Command::new(program("read_all")).args([&file, "7", "4"]);
        command.variant(variant).run_options(&["--inject", faults]).run().success();
        let shared = scratch.file("shared");
        Pattern::zeros(&shared, 20 * 1024 * 1024 + 99);
        let command = |verb: &str| Command::new(program("shared_rw")).args([verb, &shared, "3", "4", "2"]);
        command("run").variant(variant).run_options(&["--inject", faults]).run().success();
        command("verify").run().success();
    }
}
behaviour!(no_direct_io: m16, threads);

/// An error on write-back is msync's; the stores stay in memory, and once the device works again they are
/// written.
fn write_error(variant: Variant) {
    for (fault, name) in [("enospc", "ENOSPC"), ("eio", "EIO")] {
        let scratch = Scratch::new();
        let file = scratch.file("data");
        Pattern::zeros(&file, 4 * 1024 * 1024 + 77);
        let outcome =
            inject(&scratch, variant, "msync", &format!("write:{fault}:file=data:times=1")).success();
        let expected = format!("msync: {name}\nmsync: success\nmsync: success\n");
        assert_eq!(outcome.stdout, expected, "{}", outcome.report());
        assert!(outcome.stat("write_errors") > 0, "{:?}", outcome.stats);
        Pattern::check(&file, 4 * 1024 * 1024 + 77, 5);
    }
}
behaviour!(write_error: m64, m16, copy, threads);

/// A device that stays full: every msync says so, and the program goes on with what it has in memory.
fn full_for_ever(variant: Variant) {
    let scratch = Scratch::new();
    Pattern::zeros(&scratch.file("data"), 4 * 1024 * 1024);
    let outcome = inject(&scratch, variant, "msync", "write:enospc:file=data").success();
    assert_eq!(outcome.stdout, "msync: ENOSPC\nmsync: ENOSPC\nmsync: ENOSPC\n", "{}", outcome.report());
}
behaviour!(full_for_ever: m64, m16);

/// What could not be written at the end is said.
#[test]
fn loss_is_said() {
    let scratch = Scratch::new();
    Pattern::zeros(&scratch.file("data"), 4 * 1024 * 1024);
    let command = Command::new(program("inject")).args([&scratch.file("data"), "5", "lose"]);
    let command = command.variant(Variant::m16()).with_summary();
    let outcome = command.run_options(&["--inject", "write:eio:file=data"]).run().success();
    let said = outcome.stderr.to_lowercase();
    assert!(said.contains("writ") && said.contains("error"), "{}", outcome.report());
    assert!(outcome.stat("write_errors") > 0, "{:?}", outcome.stats);
}

/// What the background could not write is reported by close.
fn close_reports(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::zeros(&file, 4 * 1024 * 1024);
    let outcome = inject(&scratch, variant, "close", "write:enospc:file=data:times=1").success();
    assert_eq!(outcome.stdout, "close: ENOSPC\n", "{}", outcome.report());
    Pattern::check(&file, 4 * 1024 * 1024, 5);
}
behaviour!(close_reports: m64, m16);

/// A sync of the device that fails is msync's error too.
fn sync_error(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::zeros(&file, 4 * 1024 * 1024);
    let outcome = inject(&scratch, variant, "msync", "sync:eio:file=data:times=1").success();
    assert_eq!(outcome.stdout, "msync: EIO\nmsync: success\nmsync: success\n", "{}", outcome.report());
    Pattern::check(&file, 4 * 1024 * 1024, 5);
}
behaviour!(sync_error: m64);
