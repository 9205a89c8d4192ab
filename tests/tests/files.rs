//! Calls on files that are mapped and stored to: each sees the stores, is seen by the mappings, holds nobody
//! off, and fails as it should.

use elbowroom_tests::{Command, Scratch, Variant, behaviour, program};

/// One case of `filecalls`.
fn case(name: &str, variant: Variant) {
    let scratch = Scratch::new();
    let command = Command::new(program("filecalls")).args([&scratch.file("data"), name]);
    let outcome = command.variant(variant).run().success();
    assert_eq!(outcome.stdout, format!("ok {name}\n"), "{}", outcome.report());
}

fn bad_pointers(variant: Variant) {
    case("bad_pointers", variant);
}
behaviour!(bad_pointers: plain, m64, m16, copy, user_mode);

/// Every name that opens with O_TRUNC.
fn cuts(variant: Variant) {
    case("cuts", variant);
}
behaviour!(cuts: plain, m64, m16, copy, threads);

/// SEEK_DATA, SEEK_HOLE and FIEMAP.
fn holes(variant: Variant) {
    case("holes", variant);
}
behaviour!(holes: plain, m64, m16, copy, threads);

/// copy_file_range, sendfile, splice, and where the disk can do it, clones.
fn copies(variant: Variant) {
    case("copies", variant);
}
behaviour!(copies: plain, m64, m16, copy, threads);

/// RWF_NOAPPEND and O_APPEND.
fn appends(variant: Variant) {
    case("appends", variant);
}
behaviour!(appends: plain, m64, m16, copy);

/// fallocate.
fn shifts(variant: Variant) {
    case("shifts", variant);
}
behaviour!(shifts: plain, m64, m16, copy);

/// Opens for writing with O_NONBLOCK, of a file that has a lease.
fn nonblocking(variant: Variant) {
    case("nonblocking", variant);
}
behaviour!(nonblocking: plain, m64, m16, copy);

/// Waits for pipes, beside whatever others do with the file.
fn pipes(variant: Variant) {
    let scratch = Scratch::new();
    let command = Command::new(program("pipes")).args([&scratch.file("data")]);
    let outcome = command.variant(variant).run().success();
    assert_eq!(outcome.stdout.lines().count(), 7, "{}", outcome.report());
}
behaviour!(pipes: plain, m64, m16, copy, threads, user_mode);

/// One case of `cursors`.
fn cursors(name: &str, rounds: u32, variant: Variant, options: &[&str]) {
    let scratch = Scratch::new();
    let command = Command::new(program("cursors"))
        .args([&scratch.file("data"), name])
        .args([rounds])
        .run_options(options);
    let outcome = command.variant(variant).run().success();
    assert_eq!(outcome.stdout, format!("ok {name}\n"), "{}", outcome.report());
}

/// Threads that write at a shared position, while pages there are stored to and written back. Slow writes
/// make what goes wrong more likely.
fn shared_position_writes(variant: Variant) {
    cursors("writes", 10, variant, &["--inject", "write:slow=50us"]);
}
behaviour!(shared_position_writes: plain, m64, m16, copy, threads, user_mode);

fn shared_position_reads(variant: Variant) {
    cursors("reads", 2, variant, &[]);
}
behaviour!(shared_position_reads: plain, m64, m16, copy);

/// Threads that append while another cuts the file.
fn appends_and_cuts(variant: Variant) {
    cursors("appends", 5, variant, &[]);
}
behaviour!(appends_and_cuts: plain, m64, m16, copy);

/// A file is mapped for the first time while it is written.
fn first_mappings(variant: Variant) {
    cursors("first_mappings", 300, variant, &[]);
}
behaviour!(first_mappings: plain, m64, m16, copy);

/// Chunks that are read whole, while their file, their mapping and the process change.
fn chunks(variant: Variant) {
    let scratch = Scratch::new();
    let command = Command::new(program("chunks")).args([&scratch.file("data"), "7", "12"]);
    let outcome = command.variant(variant).run().success();
    assert_eq!(outcome.stdout, "whole\n", "{}", outcome.report());
    if let Some(stats) = &outcome.stats {
        assert!(stats["chunk_reads"].as_u64() >= Some(100), "{}", outcome.report());
    }
}
behaviour!(chunks: plain, m64, m16, copy, threads, user_mode);
