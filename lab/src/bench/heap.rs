//! heap: threads allocate, write, read, reallocate and free blocks of the program's own heap at random, small
//! ones and large ones, together more than the budget.
//!
//! Each engine has the same process as a whole: by itself, in a control group with a swap file, and under
//! `elbowroom run` with all of its heap managed, or its large blocks only.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::Stage;
use super::apart::Line;
use super::area::Ground;
use super::compare::{Comparison, Record, Row, Unit};
use super::terms::{Swapping, Terms};
use super::threads;
use super::turns::Turns;
use crate::PAGE_BYTES;
use crate::cli::TurnArgs;
use crate::content::PageDice;
use crate::interrupt::Interrupt;
use crate::procfs;
use crate::size::Size;

const WORD: u64 = 8;
/// Marks are so many words apart, so that each page of a large block has one.
const STEP: usize = (PAGE_BYTES / WORD) as usize;
/// The words of a small block: from the first to below the second.
const SMALL: (u64, u64) = (2, 128);
/// Those of a large one: 256 KiB, from which on `elbowroom run --heap large` manages blocks, to 1 MiB.
const LARGE: (u64, u64) = (32 << 10, 128 << 10);
/// One operation of so many is with a large block, half of the bytes are in such.
const LARGE_ONE_IN: u64 = 64;
const MAX_BYTES: u64 = 1 << 40;

const ROWS: &[Row] = &[
    Row::new("operations_per_second", "operations per second", Unit::Count),
    Row::new("large_operations_per_second", "  with large blocks", Unit::Count),
    Row::new("replaced_per_second", "  blocks freed and allocated", Unit::Count),
    Row::new("reallocated_per_second", "  blocks reallocated", Unit::Count),
    Row::new("live_bytes", "bytes allocated", Unit::Bytes),
    Row::new("peak_rss_bytes", "peak resident", Unit::Bytes),
];

/// What a line about one run shows.
const HIGHLIGHTS: &[&str] = &["operations_per_second", "peak_rss_bytes"];

/// Options of heap.
#[derive(Debug, Clone, Args, Serialize)]
pub struct HeapArgs {
    /// How much all threads have allocated at any time, half of it in small blocks
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    #[serde(rename = "size_bytes")]
    pub size: Size,
    /// A directory on a disk, for the swap files
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// What is taken where engines are compared.
    #[command(flatten)]
    #[serde(flatten)]
    pub turns: TurnArgs,
}

/// Fails unless there is a large block for each thread, and not too many.
///
/// # Errors
/// What is possible.
pub fn check(args: &HeapArgs) -> Result<()> {
    let each = args.size.bytes() / args.turns.threads as u64;
    ensure!(each >= 4 * LARGE.1 * WORD, "--size must be at least 4M for each thread");
    ensure!(args.size.bytes() <= MAX_BYTES, "--size must be at most 1T");
    Ok(())
}

/// Runs the engines in turn; the table and the JSON object.
///
/// # Errors
/// If no engine can run here, a wrong word was read, or a signal came.
pub fn measure(args: &HeapArgs, stage: &mut Stage) -> Result<(String, Value)> {
    let turns = &args.turns;
    let description = format!(
        "heap: {} threads, {} of blocks, {} runs of {} s, budget {}",
        turns.threads, args.size, turns.repeat.runs, turns.repeat.seconds, turns.memory
    );
    let comparison = Comparison::new("heap", description, args, ROWS, HIGHLIGHTS)?;
    let swap = Swapping { bytes: 4 * args.size.bytes(), dir: args.dir.clone(), kernel: true };
    let terms = Terms { swap: Some(swap), limited: true, ..Terms::of(turns.memory) };
    Turns::on(turns, terms).take(comparison, stage, |ground, stage| {
        let time = Duration::from_secs_f64(turns.repeat.seconds);
        match ground {
            Ground::Apart(apart) => {
                let line = Line::of("heap", turns).option("--size", args.size);
                apart.run(line, ROWS, time, &stage.interrupt)
            }
            _ => record(args, time, &stage.interrupt),
        }
    })
}

/// Measures in this process.
fn record(args: &HeapArgs, time: Duration, interrupt: &Interrupt) -> Result<Record> {
    let count = args.turns.threads;
    let each = args.size.bytes() / count as u64;
    let heaps = threads::all(count, |thread| Heap::filled(thread as u64, each, interrupt))?;
    let live: u64 = heaps.iter().flat_map(|heap| &heap.blocks).map(Block::bytes).sum();
    // Each has one thread at a time.
    let heaps: Vec<_> = heaps.into_iter().map(std::sync::Mutex::new).collect();
    let heap_of = |thread: usize| heaps[thread].lock().ok().context("a thread has panicked");
    let work = |thread: usize, stop: &AtomicBool| heap_of(thread)?.work(stop);
    let (done, took) = threads::for_a_while(count, time, interrupt, work)?;
    // Not in the measured time: where much is out, it takes as long.
    threads::all(count, |thread| heap_of(thread)?.verify(interrupt))?;
    let rate = |figure: fn(&Done) -> u64| done.iter().map(figure).sum::<u64>() as f64 / took.as_secs_f64();
    let peak = procfs::peak_resident_bytes().context("/proc/self/status has no VmHWM")?;
    Ok(Record::from([
        ("operations_per_second", rate(|done| done.operations)),
        ("large_operations_per_second", rate(|done| done.large)),
        ("replaced_per_second", rate(|done| done.replaced)),
        ("reallocated_per_second", rate(|done| done.reallocated)),
        ("live_bytes", live as f64),
        ("peak_rss_bytes", peak as f64),
    ]))
}

/// The blocks of one thread: small ones first.
struct Heap {
    blocks: Vec<Block>,
    small: u64,
    dice: PageDice,
}

/// What one thread has done.
#[derive(Default)]
struct Done {
    operations: u64,
    large: u64,
    replaced: u64,
    reallocated: u64,
}

impl Heap {
    fn filled(thread: u64, bytes: u64, interrupt: &Interrupt) -> Result<Self> {
        let number = |(from, to): (u64, u64)| bytes / 2 / ((from + to) / 2 * WORD);
        let (small, large) = (number(SMALL), number(LARGE));
        let mut heap = Self { blocks: Vec::new(), small, dice: PageDice::new(thread) };
        for number in 0..small + large {
            if number % 64 == 0 || number >= small {
                interrupt.check()?;
            }
            let words = heap.words(number);
            heap.blocks.push(Block::new(words, thread << 48 | number));
        }
        Ok(heap)
    }

    /// A size for a block at a place.
    fn words(&mut self, number: u64) -> usize {
        let (from, to) = if number < self.small { SMALL } else { LARGE };
        (from + self.dice.next_below(to - from)) as usize
    }

    fn work(&mut self, stop: &AtomicBool) -> Result<Done> {
        let (mut done, all) = (Done::default(), self.blocks.len() as u64);
        while done.operations == 0 || !stop.load(Ordering::Relaxed) {
            let is_large = self.dice.next_below(LARGE_ONE_IN) == 0;
            let number = match is_large {
                true => self.small + self.dice.next_below(all - self.small),
                false => self.dice.next_below(self.small),
            };
            let (what, words) = (self.dice.next_below(8), self.words(number));
            let block = &mut self.blocks[number as usize];
            block.verify()?;
            let stamp = block.stamp.wrapping_add(1 << 24);
            match what {
                0 => {
                    // Freed first, so that what is freed may be used again.
                    *block = Block { words: Vec::new(), stamp };
                    *block = Block::new(words, stamp);
                    done.replaced += 1;
                }
                1 => {
                    block.reallocate(words)?;
                    done.reallocated += 1;
                }
                2 | 3 => block.mark(stamp),
                _ => {}
            }
            done.operations += 1;
            done.large += u64::from(is_large);
        }
        Ok(done)
    }

    /// Fails unless all blocks have their marks.
    fn verify(&self, interrupt: &Interrupt) -> Result<()> {
        for (number, block) in self.blocks.iter().enumerate() {
            if number % 64 == 0 || number as u64 >= self.small {
                interrupt.check()?;
            }
            block.verify()?;
        }
        Ok(())
    }
}

/// A block of the heap. Its first word, one in each page and its last one have marks.
struct Block {
    words: Vec<u64>,
    stamp: u64,
}

impl Block {
    fn new(words: usize, stamp: u64) -> Self {
        let mut block = Self { words: vec![0; words], stamp };
        block.mark(stamp);
        block
    }

    fn bytes(&self) -> u64 {
        self.words.len() as u64 * WORD
    }

    /// Stores all marks.
    fn mark(&mut self, stamp: u64) {
        self.stamp = stamp;
        for index in (0..self.words.len()).step_by(STEP) {
            self.words[index] = stamp ^ index as u64;
        }
        if let Some(last) = self.words.last_mut() {
            *last = !stamp;
        }
    }

    /// Fails unless all marks are there.
    fn verify(&self) -> Result<()> {
        self.verify_first(self.words.len())?;
        let last = self.words.last().copied();
        ensure!(last == Some(!self.stamp), "wrong content: {last:?} at the end of a block of the heap");
        Ok(())
    }

    /// The same of the marks in the first words, without the last.
    fn verify_first(&self, words: usize) -> Result<()> {
        for index in (0..words - 1).step_by(STEP) {
            let (got, expected) = (self.words[index], self.stamp ^ index as u64);
            ensure!(
                got == expected,
                "wrong content: {got:#x} in word {index} of a block of the heap, {expected:#x} expected"
            );
        }
        Ok(())
    }

    /// Makes it larger or smaller by realloc.
    fn reallocate(&mut self, words: usize) -> Result<()> {
        let kept = words.min(self.words.len());
        if words > self.words.len() {
            self.words.reserve_exact(words - self.words.len());
            self.words.resize(words, 0);
        } else {
            self.words.truncate(words);
            self.words.shrink_to_fit();
        }
        self.verify_first(kept)?;
        self.mark(self.stamp);
        Ok(())
    }
}
