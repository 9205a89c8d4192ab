//! swap-in: paging out and in at once. Some threads page all of a private anonymous mapping out, again and
//! again (MADV_PAGEOUT); as many read one word of each page, in order, and count their passes.
//!
//! The kernel swaps to a file of the lab's own, which is made in the directory for scratch files and given up
//! at the end. A manager has the same directory for its swap file.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::Stage;
use super::area::{Area, Ground};
use super::compare::{Comparison, Record, Row, Unit};
use super::paging::{Content, Counts, check_pages};
use super::terms::{Swapping, Terms};
use super::threads;
use super::turns::Turns;
use crate::PAGE_BYTES;
use crate::cli::TurnArgs;
use crate::interrupt::Interrupt;
use crate::size::Size;

const PAGE: usize = PAGE_BYTES as usize;

const ROWS: &[Row] = &[
    Row::new("reader_passes_per_second", "reader passes per second", Unit::Count),
    Row::new("pageout_rounds_per_second", "rounds of MADV_PAGEOUT per second", Unit::Count),
    Row::new("swapped_in_per_second", "pages swapped in per second", Unit::Count),
    Row::new("retry_io_miss", "retries that found the page gone (0)", Unit::Count),
];

/// What a line about one run shows.
const HIGHLIGHTS: &[&str] = &["reader_passes_per_second", "pageout_rounds_per_second"];

/// Options of swap-in.
#[derive(Debug, Clone, Args, Serialize)]
pub struct SwapInArgs {
    /// How much memory is paged out and in
    #[arg(long, value_name = "SIZE", default_value = "100M")]
    #[serde(rename = "size_bytes")]
    pub size: Size,
    /// What its pages have
    #[arg(long, value_name = "CONTENT", default_value = "compressible")]
    pub content: Content,
    /// A directory on a disk, for the swap files
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// What is taken where engines are compared.
    #[command(flatten)]
    #[serde(flatten)]
    pub turns: TurnArgs,
}

/// Runs the engines in turn; the table and the JSON object.
///
/// # Errors
/// If no engine can run here, a wrong word was read, or a signal came.
pub fn measure(args: &SwapInArgs, stage: &mut Stage) -> Result<(String, Value)> {
    let turns = &args.turns;
    let description = format!(
        "swap-in: {} readers and {} that page out, {} of {:?} pages, {} runs of {} s, budget {}",
        turns.threads,
        turns.threads,
        args.size,
        args.content,
        turns.repeat.runs,
        turns.repeat.seconds,
        turns.memory
    );
    let comparison = Comparison::new("swap-in", description, args, ROWS, HIGHLIGHTS)?;
    let len = args.size.bytes() as usize;
    let swap = Swapping { bytes: 4 * args.size.bytes(), dir: args.dir.clone(), kernel: true };
    let terms = Terms { swap: Some(swap), ..Terms::of(turns.memory) };
    Turns::on(turns, terms).take(comparison, stage, |ground, stage| {
        let area = ground.map(len)?;
        let hand = ground.hand();
        for page in 0..len / PAGE {
            args.content.fill(&area, &hand, page * PAGE, page)?;
        }
        let measured = race(ground, &area, len, args, &stage.interrupt)?;
        for page in 0..len / PAGE {
            area.verify(&hand, page * PAGE, args.content.word(page, 0))?;
        }
        area.unmap()?;
        Ok(measured)
    })
}

/// Lets the threads run against each other.
fn race(
    ground: &Ground,
    area: &Area<'_>,
    len: usize,
    args: &SwapInArgs,
    interrupt: &Interrupt,
) -> Result<Record> {
    let (read, rounds) = (AtomicU64::new(0), AtomicU64::new(0));
    let before = Counts::read(ground)?;
    let reader = |stop: &AtomicBool| -> Result<()> {
        let hand = ground.hand();
        while !stop.load(Ordering::Relaxed) {
            for page in 0..len / PAGE {
                area.verify(&hand, page * PAGE, args.content.word(page, 0))?;
                if page % 64 == 63 {
                    read.fetch_add(64, Ordering::Relaxed);
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            }
        }
        Ok(())
    };
    let pager = |stop: &AtomicBool| -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            area.page_out()?;
            rounds.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let time = Duration::from_secs_f64(args.turns.repeat.seconds);
    let (_, took) = threads::for_a_while(2 * args.turns.threads, time, interrupt, |number, stop| {
        if number % 2 == 0 { reader(stop) } else { pager(stop) }
    })?;
    let seconds = took.as_secs_f64();
    let after = Counts::read(ground)?;
    let rate = |count: u64| count as f64 / seconds;
    let mut record = Record::from([
        ("reader_passes_per_second", rate(read.load(Ordering::Relaxed)) / (len / PAGE) as f64),
        ("pageout_rounds_per_second", rate(rounds.load(Ordering::Relaxed))),
        ("swapped_in_per_second", rate(after.swapped_in - before.swapped_in)),
    ]);
    if let Some(stats) = ground.stats() {
        record.insert("retry_io_miss", stats.retry_io_miss as f64);
    }
    Ok(record)
}

/// The budget must have room for what is in memory.
///
/// # Errors
/// If the memory is not whole pages.
pub fn least_memory(args: &SwapInArgs) -> Result<Size> {
    check_pages(args.size)?;
    Ok(Size::from_bytes(args.size.bytes().saturating_mul(5) / 4))
}
