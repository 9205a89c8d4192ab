//! What is between stores and their file: its end, limits of the process, changes by others, and pages that
//! are gone.

use elbowroom_tests::{Command, Outcome, Scratch, Variant, behaviour, program};

/// Stores beyond the end, in the last page, are in no file and do not come back.
fn stores_beyond_the_end(variant: Variant) {
    let scratch = Scratch::new();
    let command = Command::new(program("eof2")).args([&scratch.file("data"), "5"]).variant(variant);
    let outcome = command.run().success();
    assert_eq!(outcome.stdout, "ok every_way\nok records\nok growth_by_others\nok cut_by_others\n");
}
behaviour!(stores_beyond_the_end: plain, m64, m16, copy, threads);

/// Half of what may be dirty is more than the file has: what was stored is not written before time.
fn disk(variant: Variant, mode: &str) -> Outcome {
    let scratch = Scratch::new();
    let command = Command::new(program("disk")).args([&scratch.file("data"), "7", mode]);
    let outcome =
        command.variant(variant).run_options(&["--min-size", "4K", "--dirty", "10M"]).run().success();
    assert!(outcome.stdout.ends_with(&format!("ok {mode}\n")), "{}", outcome.report());
    outcome
}

/// How many mappings and calls were left to the kernel, for any reason.
fn left_to_kernel(outcome: &Outcome) -> usize {
    let reasons = outcome.stats.as_ref().and_then(|stats| stats.get("left_to_kernel"));
    reasons.and_then(|reasons| reasons.as_object()).map_or(0, |reasons| reasons.len())
}

/// Stores are not subject to RLIMIT_FSIZE inside a file, so their write-back is not, and raises no signal.
fn file_size_limit(variant: Variant) {
    let outcome = disk(variant, "fsize");
    if !variant.is_plain() {
        assert_eq!(outcome.stat("write_errors"), 0, "{}", outcome.report());
    }
}
behaviour!(file_size_limit: plain, m64, m16, copy, threads);

/// More files are mapped than the soft limit on descriptors allows, and that limit is as it was.
fn more_files_than_descriptors(variant: Variant) {
    let outcome = disk(variant, "many");
    if !variant.is_plain() {
        assert_eq!(left_to_kernel(&outcome), 0, "{:?}", outcome.stats);
    }
}
behaviour!(more_files_than_descriptors: plain, m64, m16, threads);

/// What was stored to pages that a raw munmap took is lost, and said so once; whoever reads gets what the
/// disk has.
fn a_raw_munmap(variant: Variant) {
    let outcome = disk(variant, "raw");
    if variant.is_plain() {
        assert!(outcome.stdout.starts_with("fsync: success\nfsync: success\n"), "{}", outcome.report());
    } else {
        assert!(outcome.stdout.starts_with("fsync: EIO\nfsync: success\n"), "{}", outcome.report());
        assert_eq!(outcome.stat("lost_dirty_pages"), 1 + 16 + 512, "{}", outcome.report());
    }
}
behaviour!(a_raw_munmap: plain, m64, m16, threads);

/// Who puts size and time of a file back cannot put the inode's time back.
fn writes_with_the_time_put_back(variant: Variant) {
    disk(variant, "times");
}
behaviour!(writes_with_the_time_put_back: plain, m64, m16);

/// The program's own writes, and those of its stores, are nobody else's.
fn own_changes(variant: Variant) {
    let outcome = disk(variant, "own");
    if !variant.is_plain() {
        assert_eq!(outcome.stat("foreign_changes"), 0, "{}", outcome.report());
    }
}
behaviour!(own_changes: plain, m64, m16);
