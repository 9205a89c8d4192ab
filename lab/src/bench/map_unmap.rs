//! map-unmap: how many mappings of 64 KiB can be made and unmapped per second, untouched, and with every page
//! stored to.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::Stage;
use super::area::{Ground, Hand};
use super::compare::{Comparison, Record, Row, Unit};
use super::threads;
use super::turns::Turns;
use crate::cli::TurnArgs;
use crate::interrupt::Interrupt;

const PAGE: usize = crate::PAGE_BYTES as usize;
const LEN_BYTES: usize = 64 << 10;

const ROWS: &[Row] = &[
    Row::new("map_unmap_per_second", "map + unmap per second", Unit::Count),
    Row::new("map_touch_unmap_per_second", "map + touch + unmap per second", Unit::Count),
    Row::new("layout_lock_faults", "layout lock taken by faults (0)", Unit::Count),
];

/// What a line about one run shows.
const HIGHLIGHTS: &[&str] = &["map_unmap_per_second", "map_touch_unmap_per_second"];

/// Runs the engines in turn; the table and the JSON object.
///
/// # Errors
/// If no engine can run here, a wrong byte was read, or a signal came.
pub fn measure(args: &TurnArgs, stage: &mut Stage) -> Result<(String, Value)> {
    let description = format!(
        "map-unmap: {} threads, {} runs of 2 x {} s, budget {}",
        args.threads, args.repeat.runs, args.repeat.seconds, args.memory
    );
    let comparison = Comparison::new("map-unmap", description, args, ROWS, HIGHLIGHTS)?;
    Turns::of(args).take(comparison, stage, |ground, stage| {
        let time = Duration::from_secs_f64(args.repeat.seconds);
        let before = ground.stats();
        let rate = |round: &(dyn Fn(&Hand, u64) -> Result<()> + Sync)| {
            per_second(ground, args.threads, time, &stage.interrupt, round)
        };
        let untouched = rate(&|_, _| ground.map(LEN_BYTES)?.unmap())?;
        let touched = rate(&|hand, round| touch(ground, hand, round))?;
        let mut record =
            Record::from([("map_unmap_per_second", untouched), ("map_touch_unmap_per_second", touched)]);
        if let Some((before, after)) = before.zip(ground.stats()) {
            let taken = after.layout_lock_faults - before.layout_lock_faults;
            record.insert("layout_lock_faults", taken as f64);
        }
        Ok(record)
    })
}

/// Maps, stores to every page, reads one of them, and unmaps.
fn touch(ground: &Ground, hand: &Hand, round: u64) -> Result<()> {
    let area = ground.map(LEN_BYTES)?;
    for offset in (0..LEN_BYTES).step_by(PAGE) {
        area.store(hand, offset, round + offset as u64)?;
    }
    let offset = round as usize % (LEN_BYTES / PAGE) * PAGE;
    area.verify(hand, offset, round + offset as u64)?;
    area.verify(hand, offset + 8, 0)?;
    area.unmap()
}

/// Rounds per second of all threads together.
fn per_second(
    ground: &Ground,
    threads: usize,
    time: Duration,
    interrupt: &Interrupt,
    round: &(dyn Fn(&Hand, u64) -> Result<()> + Sync),
) -> Result<f64> {
    let (rounds, took) = threads::for_a_while(threads, time, interrupt, |_, stop| {
        let hand = ground.hand();
        let mut done = 0;
        while done == 0 || !stop.load(Ordering::Relaxed) {
            round(&hand, done)?;
            done += 1;
        }
        Ok(done)
    })?;
    Ok(rounds.iter().sum::<u64>() as f64 / took.as_secs_f64())
}
