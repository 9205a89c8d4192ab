//! The worker alone, over small files: what it counts, and that it finds a wrong page.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use elbowroom_lab::board::{
    Board, BoardReading, ENDED_NS, SLOT_FIRST_PASS_NS, SLOT_PAGES, SLOT_ROUNDS, STARTED_NS,
};
use elbowroom_lab::{PAGE_BYTES, WRONG_CONTENT_STATUS, content};
use tempfile::TempDir;

const SEED: u64 = 11;
const PAGES: u64 = 40;

fn make_files(count: u64) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in 0..count {
        let mut bytes = vec![0; (PAGES * PAGE_BYTES) as usize];
        for (page, bytes) in (0..).zip(bytes.chunks_exact_mut(PAGE_BYTES as usize)) {
            content::fill_page(bytes, SEED, file, page);
        }
        fs::write(dir.path().join(file.to_string()), bytes).unwrap();
    }
    dir
}

fn corrupt(dir: &Path, file: u64, page: u64) {
    let file = OpenOptions::new().read(true).write(true).open(dir.join(file.to_string())).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, page * PAGE_BYTES).unwrap();
    file.write_all_at(&[byte[0] ^ 1], page * PAGE_BYTES).unwrap();
}

fn work(dir: &Path, threads: usize, workload: &[&str], seconds: f64) -> (Output, BoardReading) {
    let boards = tempfile::tempdir().unwrap();
    let board = Board::create(&boards.path().join("board"), threads).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_elbowroom-lab-worker"))
        .args(workload)
        .args(["--threads", &threads.to_string(), "--seconds", &seconds.to_string()])
        .args(["--seed", &SEED.to_string()])
        .args(["--file-bytes", &(PAGES * PAGE_BYTES).to_string()])
        .args(["--dir".as_ref(), dir.as_os_str(), "--board".as_ref(), board.path().as_os_str()])
        .output()
        .unwrap();
    (output, board.read().unwrap())
}

/// Runs the worker for 0.3 s; for longer, if that is not `enough` because others have the processors.
fn ran(
    dir: &Path,
    threads: usize,
    workload: &[&str],
    enough: impl Fn(&BoardReading) -> bool,
) -> BoardReading {
    for seconds in [0.3, 3.0, 20.0] {
        let (output, board) = work(dir, threads, workload, seconds);
        if assert_ran(&output, &board, seconds) && enough(&board) {
            return board;
        }
    }
    panic!("{workload:?}: hardly anything was done in 20 s");
}

/// Tells whether the bystander had some turns.
fn assert_ran(output: &Output, board: &BoardReading, seconds: f64) -> bool {
    assert!(output.status.success(), "{output:?}");
    let (started, ended) = (board.header(STARTED_NS).unwrap(), board.header(ENDED_NS).unwrap());
    assert!(ended - started >= (seconds * 1e9) as u64 - 10_000_000, "it must run for its time");
    let Some(bystander) = board.bystander() else { return false };
    assert!(bystander.count <= (ended - started) / 1_000_000, "one a millisecond at most: {bystander:?}");
    assert!(
        bystander.p50_ns > 0
            && bystander.p50_ns <= bystander.p999_ns
            && bystander.p999_ns <= bystander.max_ns
    );
    bystander.count >= 5
}

#[test]
fn io_retry_counts_whole_rounds_and_the_pages_of_unfinished_ones() {
    let dir = make_files(3);
    for pattern in ["seq", "random", "cyclic"] {
        // Every thread finishes rounds over files that are in memory.
        let enough = |board: &BoardReading| board.total(SLOT_ROUNDS) >= 3;
        let board = ran(dir.path(), 3, &["io-retry", "--pattern", pattern], enough);
        let (pages, rounds) = (board.total(SLOT_PAGES), board.total(SLOT_ROUNDS));
        assert!(
            (rounds * PAGES..=(rounds + 3) * PAGES).contains(&pages),
            "{pattern}: {pages} pages, {rounds} rounds"
        );
    }
}

#[test]
fn random_read_measures_every_read() {
    let dir = make_files(1);
    for advice in ["none", "random"] {
        let enough = |board: &BoardReading| board.total(SLOT_PAGES) > 0;
        let board = ran(dir.path(), 2, &["random-read", "--advice", advice], enough);
        assert_eq!(board.reads().unwrap().count, board.total(SLOT_PAGES));
    }
}

#[test]
fn scan_passes_over_the_whole_file_in_parts() {
    let dir = make_files(1);
    let board = ran(dir.path(), 3, &["scan"], |board| board.latest(SLOT_FIRST_PASS_NS).is_some());
    assert!(board.latest(SLOT_FIRST_PASS_NS).unwrap() >= board.header(STARTED_NS).unwrap());
    let (pages, rounds) = (board.total(SLOT_PAGES), board.total(SLOT_ROUNDS));
    // Parts of 40 pages for three threads have 13 or 14 pages.
    assert!((rounds * 13..=(rounds + 3) * 14).contains(&pages), "{pages} pages, {rounds} passes of parts");
}

#[test]
fn one_flipped_bit_fails_every_workload_and_says_where() {
    for workload in
        [&["io-retry"] as &[&str], &["io-retry", "--pattern", "cyclic"], &["random-read"], &["scan"]]
    {
        let dir = make_files(2);
        let (file, threads) = if workload[0] == "io-retry" { (1, 2) } else { (0, 2) };
        corrupt(dir.path(), file, 23);
        // It ends as soon as somebody has read that page.
        let (output, _) = work(dir.path(), threads, workload, 60.0);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(i32::from(WRONG_CONTENT_STATUS)), "{workload:?}: {stderr}");
        assert!(stderr.contains(&format!("file {file}, page 23")), "{stderr}");
    }
}

#[test]
fn a_missing_file_and_a_foreign_board_are_errors_and_no_wrong_content() {
    let dir = make_files(1);
    let (output, _) = work(dir.path(), 2, &["io-retry"], 0.3);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot open"), "{output:?}");

    let short = dir.path().join("short");
    fs::write(&short, [0; 64]).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_elbowroom-lab-worker"))
        .args(["scan", "--threads", "1", "--seconds", "1", "--seed", "1", "--file-bytes", "4096"])
        .args(["--dir".as_ref(), dir.path().as_os_str(), "--board".as_ref(), short.as_os_str()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("different builds"), "{output:?}");
}
