//! What every workload shares: the board, the start and the stop of the threads, and the verdict.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use elbowroom_lab::board::{
    self, ENDED_NS, FAULTS_MAJOR, FAULTS_MINOR, IDLE, IDLE_MAX_NS, OPERATION_MAX_NS, OPERATIONS, PID,
    SLOT_FIRST_PASS_NS, SLOT_PAGES, SLOT_ROUNDS, STARTED_NS,
};
use elbowroom_lab::histogram::bucket_of;
use elbowroom_lab::{content, procfs};

use crate::ground::{Ground, Hand, View};
use crate::memory::SharedWords;
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

impl Stop {
    /// A page does not begin as it must.
    pub fn wrong_page(file: u64, page: u64, got: u64, expected: u64) -> Self {
        Self::Wrong(format!(
            "wrong content: file {file}, page {page} starts with {got:#018x}, {expected:#018x} expected"
        ))
    }
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

/// One thread's part of the tally, and its way to the memory of the ground.
pub struct Counter<'a> {
    pub tally: &'a Tally,
    pub hand: Hand,
    slot: usize,
}

impl Counter<'_> {
    /// Reads one page of a mapping of file `file` and counts it, or says why to stop.
    #[inline]
    pub fn read(&self, view: &View<'_>, file: u64, page: u64) -> Result<(), Stop> {
        if self.tally.stopped() {
            return Err(Stop::Over);
        }
        self.verify(view, file, page)?;
        self.bump(SLOT_PAGES);
        Ok(())
    }

    /// Reads one page of a mapping of file `file`, whether the time is over or not, and does not count it.
    #[inline]
    pub fn verify(&self, view: &View<'_>, file: u64, page: u64) -> Result<(), Stop> {
        let got = view.stamp_at(&self.hand, page)?;
        let expected = content::stamp(self.tally.seed, file, page);
        if got != expected {
            return Err(Stop::wrong_page(file, page, got, expected));
        }
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

    /// Counts one more.
    #[inline]
    pub fn bump(&self, slot_word: usize) {
        self.add(slot_word, 1);
    }

    /// Counts so many more. Only this thread writes its slot, so no read-modify-write is needed.
    pub fn add(&self, slot_word: usize, more: u64) {
        let word = self.tally.words.word(self.slot + slot_word);
        word.store(word.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    /// Counts so many pages that were read and verified.
    pub fn add_pages(&self, pages: u64) {
        self.add(SLOT_PAGES, pages);
    }

    /// Does what is measured, and counts the faults of this thread meanwhile.
    pub fn with_faults<R>(&self, work: impl FnOnce() -> R) -> Result<R> {
        let (minor, major) = procfs::faults_of_this_thread()?;
        let result = work();
        let (minor_after, major_after) = procfs::faults_of_this_thread()?;
        self.tally.add(FAULTS_MINOR, minor_after - minor);
        self.tally.add(FAULTS_MAJOR, major_after - major);
        Ok(result)
    }
}

/// What the workload does while operations are timed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Idle,
    Busy,
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

    /// Counts how long one operation took.
    pub fn operation_took(&self, phase: Phase, ns: u64) {
        let (counts, max) = match phase {
            Phase::Idle => (IDLE, IDLE_MAX_NS),
            Phase::Busy => (OPERATIONS, OPERATION_MAX_NS),
        };
        self.words.word(counts + bucket_of(ns)).fetch_add(1, Ordering::Relaxed);
        self.words.word(max).fetch_max(ns, Ordering::Relaxed);
    }

    /// Adds to a word of the header.
    pub fn add(&self, header_word: usize, more: u64) {
        self.words.word(header_word).fetch_add(more, Ordering::Relaxed);
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
    ground: &Ground,
    body: impl Fn(usize, &Counter<'_>) -> Stop + Sync,
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
                    bystander::run(tally, ground)
                } else {
                    body(number, &Counter { tally, hand: ground.hand(), slot: board::slot(number) })
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
