//! shared-dirty: first stores to a shared mapping of a file that is in memory.
//!
//! One thread maps the file anew for each pass, stores a byte to each page from the first to the last, which
//! is what is timed, and syncs and unmaps it. The file is one of data, and in memory, or for each pass a new
//! one without data. All other threads map parts of another file, read and unmap them, all the time; for the
//! first quarter of the time nobody stores. What was stored is read afterwards.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use elbowroom_lab::board::{PASSES, PASSES_NS, SLOT_MAPS, SLOT_PAGES, now_ns};
use elbowroom_lab::content::PageDice;
use elbowroom_lab::{PAGE_BYTES, PART_BYTES};

use crate::ground::{Ground, Opened};
use crate::memory::Rights;
use crate::tally::{Counter, Outcome, Phase, Stop, run_threads};
use crate::verify::{self, STORED, Stored};
use crate::{CommonArgs, Start};

/// Pages that the others read of a part.
const READ_PAGES: u64 = 4;
/// Stores between two looks at whether the time is over.
const BATCH: u64 = 256;
const LOOK: Duration = Duration::from_millis(1);

/// What the storing thread does now.
const PREPARES: u8 = 0;
const WAITS: u8 = 1;
const STORES: u8 = 2;

struct Work<'a> {
    common: &'a CommonArgs,
    ground: &'a Ground,
    start: Start,
    now: AtomicU8,
    /// What the first pass stores; each later one stores another byte.
    first: u8,
    /// Whole passes so far, and the pages that the one after them has stored to.
    passes: AtomicU64,
    rest: AtomicU64,
}

pub fn run(common: &CommonArgs, ground: &Ground, start: Start) -> Result<Outcome> {
    // Another one in each run, so that what an earlier run has stored is not taken for what this one has.
    let first = (now_ns() / 1000) as u8;
    let (now, passes, rest) = (AtomicU8::new(PREPARES), AtomicU64::new(0), AtomicU64::new(0));
    let work = Work { common, ground, start, now, first, passes, rest };
    let outcome = run_threads(common, ground, |thread, counter| {
        let result = if thread == 0 { work.store(counter) } else { work.map(thread as u64, counter) };
        result.err().unwrap_or(Stop::Over)
    })?;
    if matches!(outcome, Outcome::Verified) { work.verify() } else { Ok(outcome) }
}

impl Work<'_> {
    fn byte(&self, pass: u64) -> u8 {
        self.first.wrapping_add(pass as u8)
    }

    fn hole(&self, pass: u64) -> PathBuf {
        self.common.dir.join(format!("hole-{pass}"))
    }

    /// Reads what the last passes have left.
    fn verify(&self) -> Result<Outcome> {
        let (passes, rest) = (self.passes.load(Ordering::Relaxed), self.rest.load(Ordering::Relaxed));
        let last = passes.checked_sub(1).context("not one pass was made")?;
        match self.start {
            Start::Cached => verify::file(self.common, self.ground, &Stored::Data(0), |page| {
                Some([self.byte(if page < rest { passes } else { last })])
            }),
            Start::Hole => {
                let stored = Stored::Hole(self.hole(last));
                let outcome = verify::file(self.common, self.ground, &stored, |_| Some([self.byte(last)]));
                remove(&self.hole(last))?;
                outcome
            }
        }
    }

    fn store(&self, counter: &Counter<'_>) -> Result<(), Stop> {
        match self.start {
            Start::Cached => {
                let file = self.ground.open(&self.common.file(0), Rights::ReadWrite)?;
                let whole = 0..self.common.file_bytes;
                // Nobody touches this mapping: it only keeps the file open, and so in memory.
                let _kept = self.ground.map(&file, whole.clone(), Rights::Read)?;
                let warm = self.ground.map(&file, whole, Rights::Read)?;
                (0..self.common.pages()).try_for_each(|page| counter.verify(&warm, 0, page))?;
                drop(warm);
                self.passes(counter, |_| Ok(()), |_| self.pass(&file, counter))
            }
            Start::Hole => {
                let make = |pass| -> Result<()> {
                    let path = self.hole(pass);
                    let made = File::create_new(&path).and_then(|file| file.set_len(self.common.file_bytes));
                    made.with_context(|| format!("cannot make {}", path.display()))?;
                    // Of the last one it is read what was stored.
                    pass.checked_sub(2).map_or(Ok(()), |old| remove(&self.hole(old)))
                };
                self.passes(counter, make, |pass| {
                    let file = self.ground.open(&self.hole(pass), Rights::ReadWrite)?;
                    self.pass(&file, counter)
                })?;
                // What the pass that was not finished has left, and the one before the last.
                let passes = self.passes.load(Ordering::Relaxed);
                Ok([passes.checked_sub(2), Some(passes)]
                    .iter()
                    .flatten()
                    .try_for_each(|n| remove(&self.hole(*n)))?)
            }
        }
    }

    /// Makes passes until the time is over; at least one.
    fn passes(
        &self,
        counter: &Counter<'_>,
        prepare: impl Fn(u64) -> Result<()>,
        pass: impl Fn(u64) -> Result<u64, Stop>,
    ) -> Result<(), Stop> {
        if self.common.threads > 1 {
            self.now.store(WAITS, Ordering::Relaxed);
            let until = now_ns() + (self.common.seconds / 4.0 * 1e9) as u64;
            while now_ns() < until && !counter.tally.stopped() {
                std::thread::sleep(LOOK);
            }
        }
        self.now.store(STORES, Ordering::Relaxed);
        for number in 0.. {
            if number > 0 && counter.tally.stopped() {
                break;
            }
            prepare(number)?;
            let stored = pass(number)?;
            counter.add(SLOT_PAGES, stored);
            if stored < self.common.pages() {
                self.rest.store(stored, Ordering::Relaxed);
                break;
            }
            self.passes.fetch_add(1, Ordering::Relaxed);
            counter.round_done();
        }
        Ok(())
    }

    /// Stores to all pages, or, if there was a pass before, to those that there is time for; tells how many.
    fn pass(&self, file: &Opened, counter: &Counter<'_>) -> Result<u64, Stop> {
        let (pages, number) = (self.common.pages(), self.passes.load(Ordering::Relaxed));
        let view = self.ground.map(file, 0..self.common.file_bytes, Rights::ReadWrite)?;
        let begin = now_ns();
        let stored = counter.with_faults(|| -> Result<u64> {
            for page in 0..pages {
                if number > 0 && page % BATCH == 0 && counter.tally.stopped() {
                    return Ok(page);
                }
                view.store_byte(&counter.hand, page * PAGE_BYTES + STORED as u64, self.byte(number))?;
            }
            Ok(pages)
        })??;
        if stored == pages {
            counter.tally.add(PASSES_NS, now_ns() - begin);
            counter.tally.add(PASSES, 1);
        }
        view.sync()?;
        Ok(stored)
    }

    fn map(&self, number: u64, counter: &Counter<'_>) -> Result<(), Stop> {
        let file = self.ground.open(&self.common.file(1), Rights::Read)?;
        // Each has a part of its own, as far as there are enough.
        let start = number % (self.common.file_bytes / PART_BYTES) * PART_BYTES;
        let mut dice = PageDice::new(number);
        while !counter.tally.stopped() {
            let phase = match self.now.load(Ordering::Relaxed) {
                PREPARES => {
                    std::thread::sleep(LOOK);
                    continue;
                }
                WAITS => Phase::Idle,
                _ => Phase::Busy,
            };
            let begin = now_ns();
            let view = self.ground.map(&file, start..start + PART_BYTES, Rights::Read)?;
            for _ in 0..READ_PAGES {
                let page = (start / PAGE_BYTES) + dice.next_below(PART_BYTES / PAGE_BYTES);
                counter.verify(&view, 1, page)?;
            }
            drop(view);
            counter.tally.operation_took(phase, now_ns() - begin);
            counter.bump(SLOT_MAPS);
        }
        Ok(())
    }
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
