//! What every workload shares: the board, the start and the stop of the threads, and the verdict.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use elbowroom_lab::board::{
    self, ENDED_NS, PID, READ_MAX_NS, READS, SLOT_FIRST_PASS_NS, SLOT_PAGES, SLOT_ROUNDS, STARTED_NS,
};
use elbowroom_lab::content;
use elbowroom_lab::histogram::bucket_of;

use crate::memory::{Mapping, SharedWords};
use crate::{CommonArgs, bystander};

/// Threads do little and are many.
const STACK_BYTES: usize = 256 << 10;
/// How often the main thread looks whether a thread has failed.
const LOOK: Duration = Duration::from_millis(20);

/// How a run ended.
pub enum Outcome {
    /// All that was read was right.
    Verified,
    /// What was wrong, and where.
    Wrong(String),
}

/// Why a thread stops before its time.
pub enum Stop {
    /// Time is over, or another thread has failed.
    Over,
    /// A page is not what it must be.
    Wrong(String),
    /// A system call failed.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Stop {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// The counters and the flag that all threads share.
pub struct Tally {
    pub words: SharedWords,
    stop: AtomicBool,
    seed: u64,
}

/// One thread's part of the tally.
pub struct Counter<'a> {
    tally: &'a Tally,
    slot: usize,
}

impl Counter<'_> {
    /// Reads one page of a mapping of file `file` and counts it, or says why to stop.
    #[inline]
    pub fn read(&self, mapping: &Mapping, file: u64, page: u64) -> Result<(), Stop> {
        if self.tally.stopped() {
            return Err(Stop::Over);
        }
        let (got, expected) = (mapping.stamp_at(page), content::stamp(self.tally.seed, file, page));
        if got != expected {
            return Err(Stop::Wrong(format!(
                "wrong content: file {file}, page {page} starts with {got:#018x}, {expected:#018x} expected"
            )));
        }
        self.bump(SLOT_PAGES);
        Ok(())
    }

    /// Counts a completed round or pass.
    pub fn round_done(&self) {
        self.bump(SLOT_ROUNDS);
        let first = self.tally.words.word(self.slot + SLOT_FIRST_PASS_NS);
        if first.load(Ordering::Relaxed) == 0 {
            first.store(board::now_ns(), Ordering::Relaxed);
        }
    }

    /// Only this thread writes its slot, so no read-modify-write is needed.
    fn bump(&self, slot_word: usize) {
        let word = self.tally.words.word(self.slot + slot_word);
        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

impl Tally {
    fn open(path: &Path, threads: usize, seed: u64) -> Result<Self> {
        let context = || format!("cannot map the board {}", path.display());
        let file = OpenOptions::new().read(true).write(true).open(path).with_context(context)?;
        board::check_length(file.metadata().with_context(context)?.len(), threads)?;
        let words = SharedWords::of_file(&file).with_context(context)?;
        words.word(PID).store(u64::from(std::process::id()), Ordering::Relaxed);
        Ok(Self { words, stop: AtomicBool::new(false), seed })
    }

    /// Whether threads should come back.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Counts the latency of one read.
    pub fn read_took(&self, ns: u64) {
        self.words.word(READS + bucket_of(ns)).fetch_add(1, Ordering::Relaxed);
        self.words.word(READ_MAX_NS).fetch_max(ns, Ordering::Relaxed);
    }

    fn stamp_time(&self, word: usize) {
        self.words.word(word).store(board::now_ns(), Ordering::Relaxed);
    }
}

/// The first reason for which a thread stopped before its time.
struct Verdict<'a> {
    tally: &'a Tally,
    first: Mutex<Result<Outcome>>,
}

impl Verdict<'_> {
    /// Only the first reason counts: the threads that stop after it do so because of it.
    fn settle(&self, stop: Stop) {
        let reason = match stop {
            Stop::Over => return,
            Stop::Wrong(what) => Ok(Outcome::Wrong(what)),
            Stop::Failed(error) => Err(error),
        };
        let mut first = self.first.lock().expect("no thread panics while it holds the verdict");
        if matches!(*first, Ok(Outcome::Verified)) {
            *first = reason;
        }
        self.tally.stop.store(true, Ordering::Relaxed);
    }
}

/// Runs `body` on every thread until the time is over or one of them stops for another reason, beside the
/// bystander.
///
/// `body` gets the thread's number and is called once; it runs until it returns why it stopped.
pub fn run_threads(
    common: &CommonArgs,
    body: impl Fn(usize, &Tally, &Counter<'_>) -> Stop + Sync,
) -> Result<Outcome> {
    let tally = &Tally::open(&common.board, common.threads, common.seed)?;
    // The readers, the bystander and this thread start together.
    let gate = Barrier::new(common.threads + 2);
    let verdict = Verdict { tally, first: Mutex::new(Ok(Outcome::Verified)) };
    let (gate, shared_verdict, body) = (&gate, &verdict, &body);
    thread::scope(|scope| {
        for number in 0..=common.threads {
            let work = move || {
                gate.wait();
                shared_verdict.settle(if number == common.threads {
                    bystander::run(tally)
                } else {
                    body(number, tally, &Counter { tally, slot: board::slot(number) })
                });
            };
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            if let Err(error) = builder.spawn_scoped(scope, work) {
                // Threads that already wait at the gate can only leave it when all have come, so the process
                // ends here.
                eprintln!(
                    "elbowroom-lab-worker: cannot start thread {number} of {}: {error}",
                    common.threads
                );
                std::process::exit(1);
            }
        }
        tally.stamp_time(STARTED_NS);
        gate.wait();
        let end = Instant::now() + Duration::from_secs_f64(common.seconds);
        while !tally.stopped() && Instant::now() < end {
            thread::sleep(LOOK.min(end.saturating_duration_since(Instant::now())));
        }
        tally.stop.store(true, Ordering::Relaxed);
    });
    tally.stamp_time(ENDED_NS);
    verdict.first.into_inner().map_err(|_| anyhow!("a thread panicked"))?
}
