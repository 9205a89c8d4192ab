//! swap-in: paging out and in at once. Some threads page all of a private anonymous mapping out, again and
//! again (MADV_PAGEOUT); as many read one word of each page, in order, and count their passes.
//!
//! The kernel swaps to a file of the lab's own, which is made in the directory for scratch files and given up
//! at the end. A manager has the same directory for its swap file.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use super::Stage;
use super::area::{Area, Ground, Hand};
use super::compare::{Comparison, Record, Row, Unit};
use super::turns::Turns;
use crate::PAGE_BYTES;
use crate::cli::TurnArgs;
use crate::engine::Kind;
use crate::interrupt::Interrupt;
use crate::kernel_swap::KernelSwap;
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

/// What the pages have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Zeros
    Zero,
    /// What compresses about 3:1
    Compressible,
    /// What nothing makes smaller
    Noise,
}

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
    let with_kernel = turns.engines.iter().any(|engine| engine.kind == Kind::Kernel);
    let _swap = with_kernel
        .then(|| KernelSwap::on(&args.dir, Size::from_bytes(2 * args.size.bytes())))
        .transpose()?;
    let len = args.size.bytes() as usize;
    let swap = Swapping { bytes: 4 * args.size.bytes(), dir: args.dir.clone() };
    Turns::with_swap(turns, swap).take(comparison, stage, |ground, stage| {
        let area = ground.map(len)?;
        let hand = ground.hand();
        for page in 0..len / PAGE {
            fill(&area, &hand, page, args.content)?;
        }
        let measured = race(ground, &area, len, args, &stage.interrupt)?;
        for page in 0..len / PAGE {
            area.verify(&hand, page * PAGE, first_word(page, args.content))?;
        }
        area.unmap()?;
        Ok(measured)
    })
}

/// A manager's swap.
#[derive(Debug, Clone)]
pub struct Swapping {
    /// How much may be out.
    pub bytes: u64,
    /// Where the file is.
    pub dir: PathBuf,
}

/// A word of noise that belongs to a place.
fn noise(place: usize) -> u64 {
    let mut word = (place as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    word ^= word >> 29;
    word = word.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word ^ word >> 32
}

fn first_word(page: usize, content: Content) -> u64 {
    if content == Content::Zero { 0 } else { noise(page * 512) }
}

/// Stores to every word of a page.
fn fill(area: &Area<'_>, hand: &Hand, page: usize, content: Content) -> Result<()> {
    for word in 0..PAGE / 8 {
        let value = match content {
            Content::Zero => 0,
            // One word of four is noise, the others are alike.
            Content::Compressible if word % 4 > 0 => 0x2020_2020_2020_2020,
            Content::Compressible | Content::Noise => noise(page * 512 + word),
        };
        area.store(hand, page * PAGE + word * 8, value)?;
    }
    Ok(())
}

/// Lets the threads run against each other.
fn race(
    ground: &Ground,
    area: &Area<'_>,
    len: usize,
    args: &SwapInArgs,
    interrupt: &Interrupt,
) -> Result<Record> {
    let stop = AtomicBool::new(false);
    let (read, rounds) = (AtomicU64::new(0), AtomicU64::new(0));
    let before = swapped_in(ground)?;
    let begin = Instant::now();
    let result = std::thread::scope(|scope| {
        let (stop, read, rounds) = (&stop, &read, &rounds);
        let reader = move || -> Result<()> {
            let hand = ground.hand();
            while !stop.load(Ordering::Relaxed) {
                for page in 0..len / PAGE {
                    area.verify(&hand, page * PAGE, first_word(page, args.content))?;
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
        let pager = move || -> Result<()> {
            while !stop.load(Ordering::Relaxed) {
                area.page_out()?;
                rounds.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let mut threads = Vec::new();
        for _ in 0..args.turns.threads {
            threads.push(scope.spawn(reader));
            threads.push(scope.spawn(pager));
        }
        let mut result = interrupt.sleep_until(begin + Duration::from_secs_f64(args.turns.repeat.seconds));
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            result = result.and(thread.join().ok().context("a thread has panicked").flatten());
        }
        result
    });
    result?;
    let seconds = begin.elapsed().as_secs_f64();
    let after = swapped_in(ground)?;
    let rate = |count: u64| count as f64 / seconds;
    let mut record = Record::from([
        ("reader_passes_per_second", rate(read.load(Ordering::Relaxed)) / (len / PAGE) as f64),
        ("pageout_rounds_per_second", rate(rounds.load(Ordering::Relaxed))),
        ("swapped_in_per_second", rate(after - before)),
    ]);
    if let Some(stats) = ground.stats() {
        record.insert("retry_io_miss", stats.retry_io_miss as f64);
    }
    Ok(record)
}

/// Pages that came in so far, of the machine or of the manager.
fn swapped_in(ground: &Ground) -> Result<u64> {
    if let Some(stats) = ground.stats() {
        return Ok(stats.pswpin);
    }
    let text = std::fs::read_to_string("/proc/vmstat").context("cannot read /proc/vmstat")?;
    let value = text.lines().find_map(|line| line.strip_prefix("pswpin "));
    value.and_then(|value| value.trim().parse().ok()).context("/proc/vmstat has no pswpin")
}

/// The budget must have room for what is in memory.
///
/// # Errors
/// If the memory is not whole pages.
pub fn least_memory(args: &SwapInArgs) -> Result<Size> {
    ensure!(
        args.size.bytes() > 0 && args.size.bytes().is_multiple_of(PAGE_BYTES),
        "--size must be whole pages of 4 KiB"
    );
    Ok(Size::from_bytes(args.size.bytes().saturating_mul(5) / 4))
}
