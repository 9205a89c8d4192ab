//! Reading and writing mapped files from many threads.

use std::time::Duration;

use elbowroom_tests::{Command, Pattern, Scratch, Variant, behaviour, program, skipped};

/// Three times the smallest budget, and no multiple of a page.
const READ_BYTES: u64 = 48 * 1024 * 1024 + 1234;

fn read_all(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, READ_BYTES, 7);
    let command = || Command::new(program("read_all")).args([&file, "7", "4"]);
    let plain = command().run().success();
    command().variant(variant).run().success().same_as(&plain);
}
behaviour!(read_all: plain, m64, m16, copy, threads, handlers1, handlers4);

fn shared_rw(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::zeros(&file, 24 * 1024 * 1024 + 99);
    let command = |verb: &str| Command::new(program("shared_rw")).args([verb, &file, "3", "8", "2"]);
    command("run").variant(variant).run().success();
    command("verify").run().success();
}
behaviour!(shared_rw: plain, m64, m16, copy, threads, handlers1, handlers4);

fn readers_writers(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::zeros(&file, 32 * 1024 * 1024);
    let command = |verb: &str| Command::new(program("readers_writers")).args([verb, &file, "3", "8", "8000"]);
    let ran = command("run").variant(variant).run().success();
    let verified = command("verify").run().success();
    assert_eq!(ran.stdout, verified.stdout);
}
behaviour!(readers_writers: plain, m64, m16, copy, threads, handlers1, handlers4);

/// More threads that wait for I/O than a small budget has room for: each still comes to its end.
fn many_threads(variant: Variant) {
    let scratch = Scratch::new();
    let prefix = scratch.file("data");
    Pattern::create_many(&prefix, 500, 1_500_000);
    let command = Command::new(program("many_threads")).args([&prefix, "500", "2"]);
    let outcome = command.variant(variant).time_limit(Duration::from_secs(180)).run().success();
    assert_eq!(outcome.stdout, "500 threads, 2 passes\n");
}
behaviour!(many_threads: plain, m64);

/// The same with the least memory and fewer threads.
fn threads_in_little_memory(variant: Variant) {
    let scratch = Scratch::new();
    let prefix = scratch.file("data");
    Pattern::create_many(&prefix, 100, 1_500_000);
    let command = Command::new(program("many_threads")).args([&prefix, "100", "2"]);
    let outcome = command.variant(variant).run().success();
    assert_eq!(outcome.stdout, "100 threads, 2 passes\n");
}
behaviour!(threads_in_little_memory: plain, m16, copy, threads);

/// Small files are the kernel's, unless the user says otherwise.
fn small_files(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, 300_000, 7);
    let command = || Command::new(program("read_all")).args([&file, "7", "4"]).variant(variant);
    let outcome = command().maybe_unmanaged().run().success();
    if !variant.is_plain() {
        assert_eq!(outcome.stat("pgmajfault"), 0, "{:?}", outcome.stats);
        command().run_options(&["--min-size", "64K"]).run().success();
    }
}
behaviour!(small_files: plain, m16);

/// Files that live in memory are the kernel's.
fn files_in_memory(variant: Variant) {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        skipped("there is no /dev/shm to write to");
        return;
    };
    let file = directory.path().join("data").display().to_string();
    Pattern::create(&file, 4_000_000, 7);
    let command = Command::new(program("read_all")).args([&file, "7", "4"]).variant(variant);
    let outcome = command.maybe_unmanaged().run().success();
    assert!(variant.is_plain() || outcome.stat("pgmajfault") == 0, "{:?}", outcome.stats);
}
behaviour!(files_in_memory: plain, m16);

/// Without any of the improvements it may be slower, but the bytes are the same.
fn every_improvement_off(variant: Variant) {
    let scratch = Scratch::new();
    let prefix = scratch.file("data");
    Pattern::create_many(&prefix, 16, 3_000_000);
    // The last one has the tuned constants, too.
    let all = elbowroom::Ablation::names().join(",");
    let each =
        ["skipped_chances", "given_way", "shared_faults", "uptodate_wait", "completed,narrow_file_lock"];
    for off in each.into_iter().chain(["vma_locks", "retry_under_vma_lock", &all]) {
        let command = Command::new(program("many_threads")).args([&prefix, "16", "2"]);
        let outcome = command.variant(variant).run_options(&["--ablate", off]).run().success();
        assert_eq!(outcome.stdout, "16 threads, 2 passes\n");
        let locked = outcome.stat("layout_lock_faults");
        let [retries, misses] = ["retry_mmap_drop", "retry_io_miss"].map(|key| outcome.stat(key));
        if off.contains("vma_locks") {
            assert!(locked >= outcome.stat("vma_lock_success"), "{off}: {:?}", outcome.stats);
        } else if off.contains("retry_under_vma_lock") {
            // Some of them waited for nothing in the end.
            assert!(locked >= retries / 2 && retries > 0, "{off}: {:?}", outcome.stats);
        } else {
            assert!(locked < retries / 10 && misses == 0, "{off}: {:?}", outcome.stats);
        }
    }
}
behaviour!(every_improvement_off: m16, copy);
