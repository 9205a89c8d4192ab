//! in-memory: accesses to memory that fits. What does it cost that somebody manages it?
//!
//! All pages are stored to before; then threads read words of them at random, and in order, and so they do
//! with an array of the program's own heap, right beside it: a plain pointer.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::area::{Area, Ground, Hand};
use super::cli::InMemoryArgs;
use super::compare::{Comparison, Record, Row, Unit};
use super::turns::Turns;
use super::{Stage, ns_per_operation, timed};
use crate::content::PageDice;
use crate::interrupt::Interrupt;

/// Accesses between two looks at the clock.
const BATCH: usize = 16 << 10;
/// After this, the faults of the stores are counted.
const SETTLE: Duration = Duration::from_millis(20);
/// Words are this far apart: a cache line.
const STEP: usize = 64;

const ROWS: &[Row] = &[
    Row::new("random_ns", "read of 8 bytes at random", Unit::Nanoseconds),
    Row::new("plain_random_ns", "  by a plain pointer", Unit::Nanoseconds),
    Row::new("random_over_plain_ratio", "  ratio", Unit::Ratio),
    Row::new("sequential_ns", "read of 8 bytes in order", Unit::Nanoseconds),
    Row::new("plain_sequential_ns", "  by a plain pointer", Unit::Nanoseconds),
    Row::new("sequential_over_plain_ratio", "  ratio", Unit::Ratio),
    Row::new("faults", "faults meanwhile (0)", Unit::Count),
];

/// What a line about one run shows.
const HIGHLIGHTS: &[&str] = &["random_ns", "plain_random_ns", "sequential_ns"];

/// Runs the engines in turn; the table and the JSON object.
///
/// # Errors
/// If no engine can run here, a wrong byte was read, or a signal came.
pub fn measure(args: &InMemoryArgs, stage: &mut Stage) -> Result<(String, Value)> {
    let turns = &args.turns;
    let description = format!(
        "in-memory: {} threads, {} of memory, {} runs of 4 x {} s, budget {}",
        turns.threads, args.size, turns.repeat.runs, turns.repeat.seconds, turns.memory
    );
    let comparison = Comparison::new("in-memory", description, args, ROWS, HIGHLIGHTS)?;
    let len = args.size.bytes() as usize;
    // Each word holds its own offset, as the area's do.
    let plain: Vec<AtomicU64> = (0..len as u64).step_by(8).map(AtomicU64::new).collect();
    Turns::of(turns).take(comparison, stage, |ground, stage| {
        let area = ground.map(len)?;
        let hand = ground.hand();
        for offset in (0..len).step_by(STEP) {
            area.store(&hand, offset, offset as u64)?;
        }
        // A handler counts a fault after it has let the thread go on.
        std::thread::sleep(SETTLE);
        let measured = Measured { ground, area, plain: &plain, len, args, interrupt: &stage.interrupt };
        measured.record()
    })
}

struct Measured<'a> {
    ground: &'a Ground,
    area: Area<'a>,
    plain: &'a [AtomicU64],
    len: usize,
    args: &'a InMemoryArgs,
    interrupt: &'a Interrupt,
}

impl Measured<'_> {
    fn record(self) -> Result<Record> {
        let faults = || self.ground.stats().map(|stats| stats.pgfault);
        let before = faults();
        let area = |hand: &Hand, offset: usize| self.area.verify(hand, offset, offset as u64);
        let plain = |_: &Hand, offset: usize| {
            let got = self.plain[offset / 8].load(Ordering::Relaxed);
            ensure!(got == offset as u64, "wrong content: {got:#x} at byte {offset} of the heap");
            Ok(())
        };
        let random = self.all_threads(Order::Random, &area)?;
        let plain_random = self.all_threads(Order::Random, &plain)?;
        let sequential = self.all_threads(Order::Sequential, &area)?;
        let plain_sequential = self.all_threads(Order::Sequential, &plain)?;
        let mut record = Record::from([
            ("random_ns", random),
            ("plain_random_ns", plain_random),
            ("random_over_plain_ratio", random / plain_random),
            ("sequential_ns", sequential),
            ("plain_sequential_ns", plain_sequential),
            ("sequential_over_plain_ratio", sequential / plain_sequential),
        ]);
        if let Some((before, after)) = before.zip(faults()) {
            record.insert("faults", (after - before) as f64);
        }
        self.area.unmap()?;
        Ok(record)
    }

    /// Nanoseconds per access of a thread, on average.
    fn all_threads(
        &self,
        order: Order,
        access: &(impl Fn(&Hand, usize) -> Result<()> + Sync),
    ) -> Result<f64> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.args.turns.threads)
                .map(|number| scope.spawn(move || self.one_thread(number as u64, order, access)))
                .collect();
            let mut sum = 0.0;
            for thread in threads {
                sum += thread.join().ok().context("a thread has panicked")??;
            }
            Ok(sum / self.args.turns.threads as f64)
        })
    }

    fn one_thread(
        &self,
        number: u64,
        order: Order,
        access: impl Fn(&Hand, usize) -> Result<()>,
    ) -> Result<f64> {
        let hand = self.ground.hand();
        let words = self.len / STEP;
        let mut dice = PageDice::new(number);
        let mut next = 0;
        let time = Duration::from_secs_f64(self.args.turns.repeat.seconds);
        ns_per_operation(time, self.interrupt, || {
            timed(|| {
                for _ in 0..BATCH {
                    let word = match order {
                        Order::Random => dice.next_below(words as u64) as usize,
                        Order::Sequential => {
                            next = if next + 1 < words { next + 1 } else { 0 };
                            next
                        }
                    };
                    access(&hand, black_box(word * STEP))?;
                }
                Ok(BATCH as u64)
            })
        })
    }
}

#[derive(Clone, Copy)]
enum Order {
    Random,
    Sequential,
}
