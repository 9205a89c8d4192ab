//! The board: a small shared file on which the worker counts, and from which the lab reads.
//!
//! A worker that thrashes may never come to an end and has to be killed; what it had counted by then must not
//! be lost, and must be readable while every one of its threads is stuck in a fault. So the worker maps this
//! file shared and counts with relaxed atomics; the lab reads the file. It is far below the size from which
//! `elbowroom run` manages a mapping.
//!
//! The layout is in 64-bit words of the machine's own byte order:
//! header | bystander histogram | two histograms of operations | one slot of eight words (a cache line) per
//! thread. An operation is what the workload times: a single read or store, or a map + touch + unmap.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::histogram::{BUCKETS, Latency, bucket_of};

/// Header word: the worker's process id, 0 until it runs.
pub const PID: usize = 0;
/// Header word: when all threads were let go, in nanoseconds of the monotonic clock; 0 until then.
pub const STARTED_NS: usize = 1;
/// Header word: when the last thread had come back; 0 until then.
pub const ENDED_NS: usize = 2;
/// Header word: when the bystander's round that is under way began; 0 between rounds.
pub const BYSTANDER_SINCE_NS: usize = 3;
/// Header word: the bystander's longest round, in nanoseconds.
pub const BYSTANDER_MAX_NS: usize = 4;
/// Header word: the longest operation, in nanoseconds.
pub const OPERATION_MAX_NS: usize = 5;
/// Header word: the longest operation while the workload was idle, in nanoseconds.
pub const IDLE_MAX_NS: usize = 6;
/// Header word: how long all passes together took, in nanoseconds, where the workload has timed passes.
pub const PASSES_NS: usize = 7;
/// Header word: how many of them there were.
pub const PASSES: usize = 8;
/// Header word: faults that the kernel counted for the threads while they did what is measured, without I/O.
pub const FAULTS_MINOR: usize = 9;
/// Header word: the same, with I/O. The kernel also counts faults here that it had to try again, as it does
/// for each that a userfaultfd serves.
pub const FAULTS_MAJOR: usize = 10;
/// Header word: chunks that the worker's own cache had when they were wanted.
pub const CACHE_HITS: usize = 11;
/// Header word: those that it had not.
pub const CACHE_MISSES: usize = 12;
/// First of the header words, one for each of [`crate::chunks::DEPTHS`], with the bytes per second that the
/// engine `device` has read at that depth.
pub const DEPTH_RATES: usize = 13;
const HEADER_WORDS: usize = 24;
/// First word of the bystander's histogram.
pub const BYSTANDER: usize = HEADER_WORDS;
/// First word of the histogram of operations.
pub const OPERATIONS: usize = BYSTANDER + BUCKETS;
/// First word of the histogram of operations while the workload was idle.
pub const IDLE: usize = OPERATIONS + BUCKETS;
const SLOTS: usize = IDLE + BUCKETS;
const SLOT_WORDS: usize = 8;
/// Slot word: pages read and verified, or stored to.
pub const SLOT_PAGES: usize = 0;
/// Slot word: rounds or passes completed.
pub const SLOT_ROUNDS: usize = 1;
/// Slot word: when the first pass was complete, in nanoseconds of the monotonic clock; 0 until then.
pub const SLOT_FIRST_PASS_NS: usize = 2;
/// Slot word: mappings of files made and unmapped, where the workload counts them.
pub const SLOT_MAPS: usize = 3;
/// Slot word: anonymous mappings made, touched and unmapped, where the workload counts them.
pub const SLOT_ANONYMOUS: usize = 4;

/// The word at which the slot of a thread starts.
pub const fn slot(thread: usize) -> usize {
    SLOTS + thread * SLOT_WORDS
}

/// The length of a board for that many threads.
pub const fn words(threads: usize) -> usize {
    slot(threads)
}

/// The monotonic clock, in nanoseconds. The same for every process.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The lab's side of a board.
#[derive(Debug)]
pub struct Board {
    file: File,
    path: PathBuf,
    threads: usize,
}

impl Board {
    /// Makes a board of zeros for a worker with that many threads.
    ///
    /// # Errors
    /// If the file cannot be made or written.
    pub fn create(path: &Path, threads: usize) -> Result<Self> {
        let context = || format!("cannot make the board {}", path.display());
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).open(path).with_context(context)?;
        file.write_all_at(&vec![0; words(threads) * 8], 0).with_context(context)?;
        Ok(Self { file, path: path.to_owned(), threads })
    }

    /// Where the board is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the board as it is now.
    ///
    /// # Errors
    /// If the file cannot be read, or became shorter than it was made.
    pub fn read(&self) -> Result<BoardReading> {
        let mut bytes = vec![0; words(self.threads) * 8];
        self.file
            .read_exact_at(&mut bytes, 0)
            .with_context(|| format!("cannot read the board {}", self.path.display()))?;
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        Ok(BoardReading { words, threads: self.threads })
    }
}

/// What was on a board at one moment.
#[derive(Debug, Clone)]
pub struct BoardReading {
    words: Vec<u64>,
    threads: usize,
}

impl BoardReading {
    /// A header word, or `None` while it is 0.
    pub fn header(&self, word: usize) -> Option<u64> {
        assert!(word < HEADER_WORDS);
        Some(self.words[word]).filter(|value| *value != 0)
    }

    /// The sum of one slot word over all threads.
    pub fn total(&self, slot_word: usize) -> u64 {
        (0..self.threads).map(|thread| self.words[slot(thread) + slot_word]).sum()
    }

    /// One slot word of each thread.
    pub fn of_threads(&self, slot_word: usize) -> impl Iterator<Item = u64> {
        (0..self.threads).map(move |thread| self.words[slot(thread) + slot_word])
    }

    /// The largest of one slot word over all threads, `None` while it is 0 for any of them.
    pub fn latest(&self, slot_word: usize) -> Option<u64> {
        let all = (0..self.threads).map(|thread| self.words[slot(thread) + slot_word]);
        if all.clone().any(|value| value == 0) { None } else { all.max() }
    }

    /// Counts the bystander's round that was under way when the worker was killed, as if it had ended at
    /// `now_ns`.
    ///
    /// Without it the longest waits of all would be the ones that are not counted.
    pub fn end_bystander_round(&mut self, now_ns: u64) {
        if let Some(since) = self.header(BYSTANDER_SINCE_NS) {
            let ns = now_ns.saturating_sub(since);
            self.words[BYSTANDER + bucket_of(ns)] += 1;
            self.words[BYSTANDER_MAX_NS] = self.words[BYSTANDER_MAX_NS].max(ns);
            self.words[BYSTANDER_SINCE_NS] = 0;
        }
    }

    /// The bystander's latencies.
    pub fn bystander(&self) -> Option<Latency> {
        Latency::from_counts(&self.words[BYSTANDER..BYSTANDER + BUCKETS], self.words[BYSTANDER_MAX_NS])
    }

    /// The latencies of operations, where the workload measures them.
    pub fn operations(&self) -> Option<Latency> {
        let counts = &self.words[OPERATIONS..OPERATIONS + BUCKETS];
        Latency::from_counts(counts, self.words[OPERATION_MAX_NS])
    }

    /// The same while the workload was idle.
    pub fn idle(&self) -> Option<Latency> {
        Latency::from_counts(&self.words[IDLE..IDLE + BUCKETS], self.words[IDLE_MAX_NS])
    }
}

/// Checks that a board made for `threads` threads is what is in the file of that length.
///
/// # Errors
/// If the length is another: then the two programs do not belong together.
pub fn check_length(file_bytes: u64, threads: usize) -> Result<()> {
    let expected = words(threads) as u64 * 8;
    ensure!(
        file_bytes == expected,
        "the board has {file_bytes} bytes, not {expected}: the worker and the lab are of different builds"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_cut_off_by_the_kill_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let board = Board::create(&dir.path().join("board"), 2).unwrap();
        let put =
            |word: usize, value: u64| board.file.write_all_at(&value.to_ne_bytes(), word as u64 * 8).unwrap();
        put(BYSTANDER_SINCE_NS, 1_000);
        put(slot(0) + SLOT_PAGES, 3);
        put(slot(1) + SLOT_PAGES, 4);
        put(slot(1) + SLOT_FIRST_PASS_NS, 9);
        let mut reading = board.read().unwrap();
        assert_eq!((reading.total(SLOT_PAGES), reading.latest(SLOT_FIRST_PASS_NS)), (7, None));
        assert_eq!(reading.bystander(), None);
        reading.end_bystander_round(9_000_001_000);
        reading.end_bystander_round(19_000_001_000);
        assert_eq!(reading.bystander().map(|b| (b.count, b.max_ns)), Some((1, 9_000_000_000)));
    }
}
