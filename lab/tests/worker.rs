//! The worker alone, over small files: what it counts, and that it finds a wrong page.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use elbowroom_lab::board::{
    Board, BoardReading, CACHE_HITS, CACHE_MISSES, DEPTH_RATES, ENDED_NS, FAULTS_MAJOR, FAULTS_MINOR, PASSES,
    PASSES_NS, SLOT_ANONYMOUS, SLOT_FIRST_PASS_NS, SLOT_MAPS, SLOT_PAGES, SLOT_ROUNDS, STARTED_NS,
};
use elbowroom_lab::chunks::DEPTHS;
use elbowroom_lab::plan::{Plan, SegmentsShape, VectorShape};
use elbowroom_lab::routing::{Model, Weights};
use elbowroom_lab::size::Size;
use elbowroom_lab::{PAGE_BYTES, WRONG_CONTENT_STATUS, content};
use tempfile::TempDir;

const SEED: u64 = 11;
const PAGES: u64 = 40;
/// Of files that parts are mapped of.
const PAGES_OF_PARTS: u64 = 300;
/// The same worker on a soft space of the library, with the least budget.
const SOFT: [&str; 2] = ["--soft-memory", "16777216"];

fn make_files(count: u64) -> TempDir {
    make_files_of(count, PAGES)
}

fn make_files_of(count: u64, pages: u64) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in 0..count {
        let mut bytes = vec![0; (pages * PAGE_BYTES) as usize];
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
    let file_bytes = fs::metadata(dir.join("0")).unwrap().len();
    let boards = tempfile::tempdir().unwrap();
    let board = Board::create(&boards.path().join("board"), threads).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_elbowroom-lab-worker"))
        .args(workload)
        .args(["--threads", &threads.to_string(), "--seconds", &seconds.to_string()])
        .args(["--seed", &SEED.to_string()])
        .args(["--file-bytes", &file_bytes.to_string()])
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
        assert_eq!(board.operations().unwrap().count, board.total(SLOT_PAGES));
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
fn shared_dirty_times_whole_passes_and_stores_to_every_page() {
    for ground in [&[] as &[&str], &SOFT] {
        let dir = make_files(1);
        let workload = [&["shared-dirty"], ground].concat();
        let board = ran(dir.path(), 1, &workload, |board| board.header(PASSES) >= Some(2));
        let (passes, pages) = (board.header(PASSES).unwrap(), board.total(SLOT_PAGES));
        assert!((passes * PAGES..(passes + 1) * PAGES).contains(&pages), "{passes} passes, {pages} pages");
        assert!(board.header(PASSES_NS).unwrap() >= passes, "{ground:?}");
        if ground.is_empty() {
            // A page is mapped by its first store, or with others of its folio by theirs.
            let minor = board.header(FAULTS_MINOR).unwrap();
            assert!((passes..=2 * pages).contains(&minor), "{minor} faults, {passes} passes, {pages} pages");
            assert!(board.header(FAULTS_MAJOR).is_none_or(|major| major < pages / 10 + 10));
        }
        // The last pass, and the one before it in the pages that it did not come to.
        let bytes = fs::read(dir.path().join("0")).unwrap();
        let stored: Vec<u8> = bytes.chunks_exact(PAGE_BYTES as usize).map(|page| page[8]).collect();
        let (first, last) = (stored[0], stored[PAGES as usize - 1]);
        assert!(last == first || last == first.wrapping_sub(1), "{ground:?}: {stored:?}");
        assert!(stored.iter().all(|byte| [first, last].contains(byte)), "{ground:?}: {stored:?}");
    }
}

#[test]
fn shared_dirty_can_begin_with_holes_and_leaves_none_behind() {
    for ground in [&[] as &[&str], &SOFT] {
        let dir = make_files(1);
        let workload = [&["shared-dirty", "--start", "hole"], ground].concat();
        let before = fs::read(dir.path().join("0")).unwrap();
        let board = ran(dir.path(), 1, &workload, |board| board.header(PASSES) >= Some(2));
        assert!(board.total(SLOT_PAGES) >= board.header(PASSES).unwrap() * PAGES, "{ground:?}");
        assert!(fs::read(dir.path().join("0")).unwrap() == before, "{ground:?}: it is for others");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{ground:?}");
    }
}

#[test]
fn shared_dirty_times_the_others_before_and_while_somebody_stores() {
    for ground in [&[] as &[&str], &SOFT] {
        let dir = make_files_of(2, PAGES_OF_PARTS);
        let workload = [&["shared-dirty"], ground].concat();
        let both = |board: &BoardReading| Some((board.idle()?.count, board.operations()?.count));
        let board = ran(dir.path(), 3, &workload, |board| both(board).is_some());
        let (idle, busy) = both(&board).unwrap();
        assert_eq!(idle + busy, board.total(SLOT_MAPS), "{ground:?}");
    }
}

#[test]
fn random_write_measures_every_store() {
    for workload in [&["random-write"] as &[&str], &["random-write", "--advice", "random", SOFT[0], SOFT[1]]]
    {
        let dir = make_files(1);
        let before = fs::read(dir.path().join("0")).unwrap();
        let board = ran(dir.path(), 2, workload, |board| board.total(SLOT_PAGES) > 0);
        assert_eq!(board.operations().unwrap().count, board.total(SLOT_PAGES));
        // The worker has checked what is there; here, that it did store.
        assert!(fs::read(dir.path().join("0")).unwrap() != before);
    }
}

#[test]
fn file_map_churn_counts_mappings_of_whole_rounds() {
    for ground in [&[] as &[&str], &SOFT] {
        let dir = make_files(1);
        let workload = [&["file-map-churn", "--mappings", "3", "--mapping-bytes", "16384"], ground].concat();
        let board = ran(dir.path(), 4, &workload, |board| board.total(SLOT_MAPS) > 0);
        let (maps, pages) = (board.total(SLOT_MAPS), board.total(SLOT_PAGES));
        assert_eq!(maps, 3 * board.total(SLOT_ROUNDS));
        assert!((maps..=maps + 4 * 3).contains(&pages), "{ground:?}: {maps} mappings, {pages} pages");
    }
}

#[test]
fn uptodate_wait_reads_with_all_threads_and_a_soft_space_says_what_happened() {
    let dir = make_files(1);
    let stats = dir.path().join("stats");
    for ground in [&[] as &[&str], &[SOFT[0], SOFT[1], "--stats", stats.to_str().unwrap()]] {
        let workload = [&["uptodate-wait"], ground].concat();
        ran(dir.path(), 4, &workload, |board| board.total(SLOT_PAGES) >= 4 * PAGES);
    }
    let stats: serde_json::Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
    let count = |key: &str| stats[key].as_u64().unwrap();
    assert!(count("pgmajfault") > 0 && count("vma_lock_success") > 0, "{stats}");
    assert!(count("read_bytes") >= PAGES * PAGE_BYTES, "{stats}");
}

#[test]
fn a_soft_space_without_an_improvement_is_without_it() {
    let dir = make_files(1);
    let stats = dir.path().join("stats");
    for (off, some) in [("", false), ("vma_locks", true)] {
        let stats_of = ["--stats", stats.to_str().unwrap()];
        let workload = [&["scan", "--soft-ablate", off] as &[&str], &SOFT, &stats_of].concat();
        ran(dir.path(), 1, &workload, |board| board.total(SLOT_PAGES) > 0);
        let stats: serde_json::Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
        assert_eq!(stats["layout_lock_faults"].as_u64() > Some(0), some, "{off}: {stats}");
    }
}

#[test]
fn lock_wait_has_three_kinds_of_threads() {
    for ground in [&[] as &[&str], &SOFT] {
        let dir = make_files_of(1, PAGES_OF_PARTS);
        let workload = [&["lock-wait"], ground].concat();
        let counts =
            |board: &BoardReading| [SLOT_PAGES, SLOT_ANONYMOUS, SLOT_MAPS].map(|word| board.total(word));
        let board = ran(dir.path(), 4, &workload, |board| counts(board).iter().all(|count| *count > 0));
        assert_eq!(board.operations().unwrap().count, counts(&board)[2], "{ground:?}");
    }
}

/// Chunks of the file of 40 pages, for the worker.
const CHUNKS: [&str; 9] = ["chunks", "--chunk", "8K-20K", "--align", "32", "--skew", "0.5", "--order", "3"];

/// The ways to read chunks by which the content of each page is compared.
const WAYS: [&[&str]; 6] = [
    &["--way", "mapped"],
    &["--way", "random"],
    &["--way", "willneed"],
    &["--way", "cache", "--cache-bytes", "196608"],
    &["--way", "direct"],
    &SOFT,
];

#[test]
fn chunks_are_read_whole_by_each_way_and_each_is_timed() {
    let dir = make_files(1);
    for way in WAYS {
        for together in ["false", "true"] {
            let workload = [&CHUNKS, way, &["--together", together]].concat();
            let board = ran(dir.path(), 3, &workload, |board| board.total(SLOT_PAGES) > 100);
            let rounds = board.total(SLOT_ROUNDS);
            if way.contains(&"direct") {
                let rates = (0..DEPTHS.len()).map(|number| board.header(DEPTH_RATES + number));
                assert!(rates.into_iter().all(|rate| rate.is_some()), "{way:?}");
                continue;
            }
            assert_eq!(board.operations().unwrap().count, rounds, "{way:?}");
            // A chunk has 2 to 5 whole pages, and each thread may have begun another one.
            let pages = board.total(SLOT_PAGES);
            assert!(
                (2 * rounds..=5 * (rounds + 3)).contains(&pages),
                "{way:?}: {rounds} chunks, {pages} pages"
            );
            if way.contains(&"cache") {
                let asked = [CACHE_HITS, CACHE_MISSES].map(|word| board.header(word).unwrap_or(0));
                assert!((rounds..=rounds + 3).contains(&asked.iter().sum()), "{asked:?} of {rounds}");
                // The file has 160 KiB, and a chunk of it takes a block of 64 KiB.
                assert!(asked.iter().all(|count| *count > 10), "{asked:?}");
            }
        }
    }
}

#[test]
fn queries_and_searches_read_what_they_say_and_find_a_flipped_bit() {
    // Of a file of 3 MiB, 1 MiB has terms, with postings of up to 1 MiB, and 1 MiB has stored fields.
    const FILE: u64 = 768;
    for (mode, most) in [("segments", 2 * 257 + 2 * 4), ("vector", FILE)] {
        let dir = make_files_of(1, FILE);
        let (shape, plan): (&[&str], _) = match mode {
            "segments" => {
                let shape = SegmentsShape { terms: 2, hits: 2, skew: 0.8 };
                let plan = Plan::of_segments(FILE * PAGE_BYTES, shape, 3);
                (&["segments", "--terms", "2", "--hits", "2", "--order", "3"], plan)
            }
            _ => {
                let shape =
                    VectorShape { vector_size: Size::from_bytes(1024), links: 16, beam: 8, skew: 0.0 };
                let plan = Plan::of_vectors(FILE * PAGE_BYTES, shape, 3);
                (&["vector", "--vector-size", "1024", "--beam", "8", "--order", "3"], plan)
            }
        };
        for way in WAYS {
            let cache = ["--way", "cache", "--cache-bytes", "2400000"];
            let way = if way.contains(&"cache") { &cache } else { way };
            let board = ran(dir.path(), 2, &[shape, way].concat(), |board| board.total(SLOT_PAGES) > 100);
            let (steps, pages) = (board.total(SLOT_ROUNDS), board.total(SLOT_PAGES));
            let is_right = way.contains(&"direct") || pages <= most * (steps + 2);
            assert!(is_right, "{mode} {way:?}: {pages} pages in {steps} steps");
        }
        // The first chunk is read by some step.
        corrupt(dir.path(), 0, plan.unwrap().layout.bytes(0).start / PAGE_BYTES);
        let (output, _) = work(dir.path(), 2, shape, 60.0);
        assert_eq!(output.status.code(), Some(i32::from(WRONG_CONTENT_STATUS)), "{mode}: {output:?}");
    }
}

/// A model of 2 layers, each with dense weights of 4 pages and 3 experts of 2, for the worker.
fn moe(routing: &Path) -> Vec<&str> {
    let model = ["moe", "--layers", "2", "--experts", "3", "--used", "2", "--align", "32", "--order", "1"];
    let sizes = ["--expert-bytes", "8192", "--dense-bytes", "16384"];
    [&model as &[&str], &sizes, &["--routing", routing.to_str().unwrap()]].concat()
}

#[test]
fn a_token_reads_the_dense_weights_and_the_experts_that_it_uses() {
    // A head of up to 1 MiB is before the first part.
    let dir = make_files_of(1, PAGES_OF_PARTS);
    let routing = dir.path().join("routing");
    fs::write(&routing, "0 1\n1 2\n2 0\n0 1\n").unwrap();
    for way in WAYS {
        let workload: Vec<&str> = [&moe(&routing), way].concat();
        let board = ran(dir.path(), 2, &workload, |board| board.total(SLOT_PAGES) > 100);
        if way.contains(&"direct") {
            continue;
        }
        // 2 layers of 4 pages and 2 experts of 2 pages.
        let (tokens, pages) = (board.total(SLOT_ROUNDS), board.total(SLOT_PAGES));
        assert!(
            (16 * tokens..=16 * (tokens + 1)).contains(&pages),
            "{way:?}: {tokens} tokens, {pages} pages"
        );
        assert_eq!(board.operations().unwrap().count, tokens, "{way:?}");
    }
    fs::write(&routing, "0 1\n1 3\n").unwrap();
    let (output, _) = work(dir.path(), 2, &moe(&routing), 0.3);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("line 2: \"3\""), "{output:?}");
}

#[test]
fn only_experts_that_are_used_are_read() {
    let model = Model { layers: 2, experts: 3, used: 2 };
    let weights = Weights { expert_bytes: 8192, dense_bytes: 16384 };
    let layout = model.layout(weights, 4096, 1);
    let page = |chunk: u64| layout.bytes(chunk).start / PAGE_BYTES;
    for (chunk, is_read) in [(model.dense(1), true), (model.expert(1, 2), true), (model.expert(0, 2), false)]
    {
        let dir = make_files_of(1, PAGES_OF_PARTS);
        corrupt(dir.path(), 0, page(chunk));
        let routing = dir.path().join("routing");
        fs::write(&routing, "0 1\n1 2\n").unwrap();
        let mut workload = moe(&routing);
        workload.iter_mut().filter(|word| **word == "32").for_each(|word| *word = "4096");
        let (output, _) = work(dir.path(), 2, &workload, if is_read { 60.0 } else { 0.3 });
        let status = if is_read { i32::from(WRONG_CONTENT_STATUS) } else { 0 };
        assert_eq!(output.status.code(), Some(status), "chunk {chunk}: {output:?}");
    }
}

#[test]
fn a_cache_without_room_for_a_chunk_says_so() {
    let dir = make_files(1);
    let workload = [&CHUNKS as &[&str], &["--way", "cache", "--cache-bytes", "4096"]].concat();
    let (output, _) = work(dir.path(), 1, &workload, 0.3);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("raise --memory"), "{output:?}");
}

#[test]
fn a_flipped_bit_of_a_chunk_is_found_by_each_way() {
    for way in WAYS {
        for together in ["false", "true"] {
            let dir = make_files(1);
            corrupt(dir.path(), 0, 23);
            let workload = [&CHUNKS, way, &["--together", together]].concat();
            let (output, _) = work(dir.path(), 3, &workload, 60.0);
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(i32::from(WRONG_CONTENT_STATUS)), "{way:?}: {stderr}");
            assert!(stderr.contains("file 0, page 23"), "{stderr}");
        }
    }
}

#[test]
fn one_flipped_bit_fails_every_workload_and_says_where() {
    for workload in [
        &["io-retry"] as &[&str],
        &["io-retry", "--pattern", "cyclic"],
        &["random-read"],
        &["random-write"],
        &["scan"],
        &["scan", SOFT[0], SOFT[1]],
        &["shared-dirty"],
        &["file-map-churn", "--mapping-bytes", "16384"],
        &["file-map-churn", "--mapping-bytes", "16384", SOFT[0], SOFT[1]],
        &["uptodate-wait"],
        &["lock-wait"],
    ] {
        let dir = make_files_of(2, if workload[0] == "lock-wait" { PAGES_OF_PARTS } else { PAGES });
        let (file, threads) = match workload[0] {
            "io-retry" => (1, 2),
            "shared-dirty" => (0, 1),
            _ => (0, 4),
        };
        corrupt(dir.path(), file, 23);
        // It ends as soon as somebody has read that page. What is only stored to is read at the end.
        let seconds = if workload[0] == "random-write" { 0.3 } else { 60.0 };
        let (output, _) = work(dir.path(), threads, workload, seconds);
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
