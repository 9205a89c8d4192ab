//! anonymous-touch: what the first touch of private anonymous memory costs, and the next one. All of it fits.
//!
//! Each thread stores to each page of its own part of a new mapping once, in order, and then once more; and
//! so in another new mapping, in a random order.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::Stage;
use super::area::{Area, Ground, Hand};
use super::compare::{Comparison, Record, Row, Unit};
use super::paging::check_pages;
use super::terms::{Pages, Swapping, Terms};
use super::threads;
use super::turns::Turns;
use crate::PAGE_BYTES;
use crate::cli::TurnArgs;
use crate::content::PageDice;
use crate::interrupt::Interrupt;
use crate::procfs;
use crate::size::Size;

const PAGE: usize = PAGE_BYTES as usize;
/// So many pages are touched between two looks at the flag that a signal raises.
const BATCH: usize = 256;

const ROWS: &[Row] = &[
    Row::new("first_touch_ns", "first touch of each page, in order", Unit::Nanoseconds),
    Row::new("first_touch_gigabytes_per_second", "  GB/s", Unit::Ratio),
    Row::new("pages_per_fault", "  pages per fault", Unit::Ratio),
    Row::new("touch_again_ns", "touch again, in order", Unit::Nanoseconds),
    Row::new("touch_again_gigabytes_per_second", "  GB/s", Unit::Ratio),
    Row::new("random_first_touch_ns", "first touch of each page, at random", Unit::Nanoseconds),
    Row::new("random_first_touch_gigabytes_per_second", "  GB/s", Unit::Ratio),
    Row::new("random_pages_per_fault", "  pages per fault", Unit::Ratio),
    Row::new("random_touch_again_ns", "touch again, at random", Unit::Nanoseconds),
    Row::new("random_touch_again_gigabytes_per_second", "  GB/s", Unit::Ratio),
];

/// What a line about one run shows.
const HIGHLIGHTS: &[&str] = &["first_touch_ns", "random_first_touch_ns"];

/// Options of anonymous-touch.
#[derive(Debug, Clone, Args, Serialize)]
pub struct AnonymousTouchArgs {
    /// How much memory is touched
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    #[serde(rename = "size_bytes")]
    pub size: Size,
    /// A directory on a disk, for the swap file of a manager, which uses none of it
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// What is taken where engines are compared.
    #[command(flatten)]
    #[serde(flatten)]
    pub turns: TurnArgs,
}

/// The least budget that holds it all.
///
/// # Errors
/// If the memory is not whole pages, or there are not enough for all threads.
pub fn least_memory(args: &AnonymousTouchArgs) -> Result<Size> {
    check_pages(args.size)?;
    ensure!(args.size.pages() >= args.turns.threads as u64, "--size must be at least a page for each thread");
    ensure!(args.size.bytes() <= 1 << 40, "--size must be at most 1T");
    // Frames, and what describes them.
    Ok(Size::from_bytes(args.size.bytes() / 4 * 5))
}

/// Runs the engines in turn; the table and the JSON object.
///
/// # Errors
/// If no engine can run here, a wrong word was read, or a signal came.
pub fn measure(args: &AnonymousTouchArgs, stage: &mut Stage) -> Result<(String, Value)> {
    let turns = &args.turns;
    let description = format!(
        "anonymous-touch: {} threads, {} of memory, {} runs of at least {} s, budget {}",
        turns.threads, args.size, turns.repeat.runs, turns.repeat.seconds, turns.memory
    );
    let comparison = Comparison::new("anonymous-touch", description, args, ROWS, HIGHLIGHTS)?;
    // As under `elbowroom run --swap`: without it memory is given out less freely.
    let swap = Swapping { bytes: 4 * turns.memory.bytes(), dir: args.dir.clone(), kernel: false };
    let terms = Terms { pages: Pages::AsNamed, swap: Some(swap), ..Terms::of(turns.memory) };
    let (in_order, at_random) = (parts(args), shuffled(parts(args)));
    Turns::on(turns, terms).take(comparison, stage, |ground, stage| {
        let time = Duration::from_secs_f64(turns.repeat.seconds);
        let begin = Instant::now();
        let (mut ordered, mut random) = (Vec::new(), Vec::new());
        while ordered.is_empty() || begin.elapsed() < time {
            ordered.push(Touches::of(ground, args, &in_order, &stage.interrupt)?);
            random.push(Touches::of(ground, args, &at_random, &stage.interrupt)?);
        }
        let bytes = args.size.bytes() as f64;
        let (ordered, random) = (Touches::mean(&ordered), Touches::mean(&random));
        Ok(Record::from([
            ("first_touch_ns", ordered.first_ns),
            ("first_touch_gigabytes_per_second", bytes / ordered.first_ns),
            ("pages_per_fault", ordered.pages_per_fault),
            ("touch_again_ns", ordered.again_ns),
            ("touch_again_gigabytes_per_second", bytes / ordered.again_ns),
            ("random_first_touch_ns", random.first_ns),
            ("random_first_touch_gigabytes_per_second", bytes / random.first_ns),
            ("random_pages_per_fault", random.pages_per_fault),
            ("random_touch_again_ns", random.again_ns),
            ("random_touch_again_gigabytes_per_second", bytes / random.again_ns),
        ]))
    })
}

/// The numbers of the pages that each thread touches, in order.
fn parts(args: &AnonymousTouchArgs) -> Vec<Vec<u32>> {
    let (pages, threads) = (args.size.pages(), args.turns.threads as u64);
    let start = |thread: u64| (pages * thread / threads) as u32;
    (0..threads).map(|thread| (start(thread)..start(thread + 1)).collect()).collect()
}

/// The same, each in a random order.
fn shuffled(mut parts: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    let mut dice = PageDice::new(1);
    for part in &mut parts {
        for last in (1..part.len()).rev() {
            part.swap(last, dice.next_below(last as u64 + 1) as usize);
        }
    }
    parts
}

/// What touching one mapping gave.
struct Touches {
    first_ns: f64,
    again_ns: f64,
    pages_per_fault: f64,
}

impl Touches {
    /// Maps, has all threads touch all pages twice, verifies, and unmaps.
    fn of(
        ground: &Ground,
        args: &AnonymousTouchArgs,
        parts: &[Vec<u32>],
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let area = ground.map(args.size.bytes() as usize)?;
        let faults = || ground.stats().map(|stats| stats.pgfault);
        let pass = |value: u64| {
            let one = |thread: usize| touch(&area, &ground.hand(), &parts[thread], value, interrupt);
            let touched = threads::all(parts.len(), one)?;
            let longest = touched.iter().map(|(took, _)| took.as_nanos()).max().unwrap_or(0);
            Ok::<_, anyhow::Error>((longest as f64, touched.iter().map(|(_, faults)| faults).sum::<u64>()))
        };
        let before = faults();
        let (first_ns, by_threads) = pass(1)?;
        let faults = before.zip(faults()).map_or(by_threads, |(before, after)| after - before);
        let (again_ns, _) = pass(2)?;
        let hand = ground.hand();
        for page in 0..args.size.bytes() as usize / PAGE {
            area.verify(&hand, page * PAGE, page as u64 + 2)?;
            area.verify(&hand, page * PAGE + PAGE - 8, 0)?;
        }
        area.unmap()?;
        let pages_per_fault = args.size.pages() as f64 / faults.max(1) as f64;
        Ok(Self { first_ns, again_ns, pages_per_fault })
    }

    fn mean(all: &[Self]) -> Self {
        let mean = |figure: fn(&Self) -> f64| all.iter().map(figure).sum::<f64>() / all.len() as f64;
        Self {
            first_ns: mean(|one| one.first_ns),
            again_ns: mean(|one| one.again_ns),
            pages_per_fault: mean(|one| one.pages_per_fault),
        }
    }
}

/// Stores to a word of each page: how long that took, and how many faults the kernel has counted of it.
fn touch(
    area: &Area<'_>,
    hand: &Hand,
    pages: &[u32],
    value: u64,
    interrupt: &Interrupt,
) -> Result<(Duration, u64)> {
    let (minor, major) = procfs::faults_of_this_thread()?;
    let begin = Instant::now();
    for batch in pages.chunks(BATCH) {
        interrupt.check()?;
        for page in batch {
            let page = *page as usize;
            area.store(hand, page * PAGE, page as u64 + value)?;
        }
    }
    let took = begin.elapsed();
    let (minor_after, major_after) = procfs::faults_of_this_thread()?;
    Ok((took, minor_after + major_after - minor - major))
}
