//! usemem: workers have more anonymous memory together than the budget, and each touches pages of its own at
//! random: what reclaim does when nothing can be foreseen, and what its locks cost.
//!
//! With `--groups` the memory is that of a group in a group, whose limit is the budget: the case of which
//! waits for the LRU lock were published by call site.
//!
//! Managers are in the lab's process. The kernel has a process of its own, in a control group with the budget
//! as its limit, and a swap file.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use elbowroom_sync::LockClass;
use serde::Serialize;
use serde_json::Value;

use super::Stage;
use super::apart::Line;
use super::area::{Area, Ground};
use super::asked::{self, Asked, Side};
use super::compare::{Comparison, Record, Row, Unit};
use super::lru_rows;
use super::paging::{Content, Counts, check_pages};
use super::terms::{Leaf, Swapping, Terms};
use super::threads;
use super::turns::Turns;
use crate::PAGE_BYTES;
use crate::cli::TurnArgs;
use crate::content::PageDice;
use crate::engine::{self, Engine};
use crate::interrupt::Interrupt;
use crate::size::Size;

const PAGE: usize = PAGE_BYTES as usize;
/// A manager's memory beside a group has at least so many bytes.
const LEAST_BESIDE: u64 = 32 << 20;
/// How much more, as a factor, reclaim may do for each touch with an improvement than without it.
const SAME_WORK: f64 = 1.05;
/// All workers together; more than any disk is to be filled with.
const MAX_TOTAL_BYTES: u64 = 1 << 40;

const ROWS: &[Row] = &[
    Row::new("touches_per_second", "touches per second", Unit::Count),
    Row::new("fewest_touches_per_second", "  of the worker with the fewest", Unit::Count),
    Row::new("swapped_in_per_second", "pages swapped in per second", Unit::Count),
    Row::new("swapped_out_per_second", "pages swapped out per second", Unit::Count),
    Row::new("refaults_per_second", "refaults per second", Unit::Count),
    Row::new("scanned_per_second", "pages scanned per second", Unit::Count),
    Row::new("stolen_per_second", "pages stolen per second", Unit::Count),
    Row::new("lru_acquisitions_per_second", "LRU lock taken per second", Unit::Count),
    Row::new("lru_waits", "  found taken", Unit::Count),
    Row::new("lru_wait_ns", "  all waits for it", Unit::Nanoseconds),
    Row::new("lru_wait_percent", "  of all workers' time", Unit::Percent),
    Row::new("lru_hold_ns", "  held in all", Unit::Nanoseconds),
    Row::new("lru_acquisitions_shrink_cost_per_second", "cost of a list shrunk: taken/s", Unit::Count),
    Row::new("lru_wait_shrink_cost_ns", "  all waits", Unit::Nanoseconds),
    Row::new("lru_hold_shrink_cost_ns", "  held in all", Unit::Nanoseconds),
    Row::new("lru_acquisitions_refault_cost_per_second", "cost of a refault: taken/s", Unit::Count),
    Row::new("lru_wait_refault_cost_ns", "  all waits", Unit::Nanoseconds),
    Row::new("lru_hold_refault_cost_ns", "  held in all", Unit::Nanoseconds),
    Row::new("lru_acquisitions_scan_start_per_second", "start of a scan: taken/s", Unit::Count),
    Row::new("lru_wait_scan_start_ns", "  all waits", Unit::Nanoseconds),
    Row::new("lru_hold_scan_start_ns", "  held in all", Unit::Nanoseconds),
    Row::new("lru_acquisitions_active_list_per_second", "active list: taken/s", Unit::Count),
    Row::new("lru_wait_active_list_ns", "  all waits", Unit::Nanoseconds),
    Row::new("lru_hold_active_list_ns", "  held in all", Unit::Nanoseconds),
    Row::new("lru_acquisitions_drain_per_second", "folios are listed: taken/s", Unit::Count),
    Row::new("lru_wait_drain_ns", "  all waits", Unit::Nanoseconds),
    Row::new("lru_hold_drain_ns", "  held in all", Unit::Nanoseconds),
    Row::new("lru_acquisitions_other_per_second", "all else: taken/s", Unit::Count),
    Row::new("lru_wait_other_ns", "  all waits", Unit::Nanoseconds),
    Row::new("lru_hold_other_ns", "  held in all", Unit::Nanoseconds),
    Row::new("cost_acquisitions_per_second", "lock of the costs: taken/s", Unit::Count),
    Row::new("cost_wait_ns", "  all waits", Unit::Nanoseconds),
    Row::new("retry_io_miss", "retries that found the page gone (0)", Unit::Count),
];

/// What a line about one run shows.
const HIGHLIGHTS: &[&str] = &["touches_per_second", "swapped_in_per_second"];

/// Options of usemem.
#[derive(Debug, Clone, Args, Serialize)]
pub struct UsememArgs {
    /// How much memory each worker has
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    #[serde(rename = "size_bytes")]
    pub size: Size,
    /// What its pages have
    #[arg(long, value_name = "CONTENT", default_value = "compressible")]
    pub content: Content,
    /// The memory is that of a group in a group, whose limit is --memory: as waits for the LRU lock were
    /// published. Other defaults: 16 workers, 256 MiB each, 512 MiB, 30 s; beside ours without scan_cost. How
    /// long locks are held is measured, too, which reads the clock for each of them
    #[arg(long)]
    pub groups: bool,
    /// With little of everything, to try it: 4 workers, 32 MiB each, 64 MiB, one run of 2 s
    #[arg(long, requires = "groups")]
    pub short: bool,
    /// A directory on a disk, for the swap files
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// What is taken where engines are compared.
    #[command(flatten)]
    #[serde(flatten)]
    pub turns: TurnArgs,
}

impl UsememArgs {
    fn total_bytes(&self) -> u64 {
        self.size.bytes().saturating_mul(self.turns.threads as u64)
    }

    fn pages(&self) -> usize {
        self.size.bytes() as usize / PAGE
    }

    /// The group with the limit, if any. Half of all memory is beside it, so that only the group is short of
    /// memory: compressible pages take a third.
    fn leaf(&self) -> Option<Leaf> {
        self.groups.then(|| Leaf { beside: Size::from_bytes((self.total_bytes() / 2).max(LEAST_BESIDE)) })
    }
}

/// Fails unless the workers' memory is whole pages, and can be had.
///
/// # Errors
/// What is possible.
pub fn check(args: &UsememArgs) -> Result<()> {
    check_pages(args.size)?;
    ensure!(args.total_bytes() <= MAX_TOTAL_BYTES, "--size times --threads must be at most 1T");
    Ok(())
}

/// Runs the engines in turn; the table and the JSON object.
///
/// # Errors
/// If no engine can run here, a wrong word was read, or a signal came.
pub fn measure(args: &UsememArgs, stage: &mut Stage) -> Result<(String, Value)> {
    let turns = &args.turns;
    let description = format!(
        "usemem: {} workers, each with {} of {:?} pages, {} runs of {} s, {} {}",
        turns.threads,
        args.size,
        args.content,
        turns.repeat.runs,
        turns.repeat.seconds,
        if args.groups { "a group in a group with at most" } else { "budget" },
        turns.memory
    );
    let comparison = Comparison::new("usemem", description, args, ROWS, HIGHLIGHTS)?;
    let swap = Swapping { bytes: 2 * args.total_bytes(), dir: args.dir.clone(), kernel: true };
    let terms = Terms { swap: Some(swap), limited: true, leaf: args.leaf(), ..Terms::of(turns.memory) };
    let (mut table, mut json) = Turns::on(turns, terms).take(comparison, stage, |ground, stage| {
        if let Ground::Apart(apart) = ground {
            let line =
                Line::of("usemem", turns).option("--size", args.size).choice("--content", args.content);
            let time = Duration::from_secs_f64(turns.repeat.seconds);
            return apart.run(line, ROWS, time, &stage.interrupt);
        }
        let areas = (0..turns.threads).map(|_| ground.map(args.size.bytes() as usize));
        let areas = areas.collect::<Result<Vec<_>>>()?;
        let workers = Workers { ground, areas: &areas, args, interrupt: &stage.interrupt };
        let record = workers.record()?;
        areas.into_iter().try_for_each(Area::unmap)?;
        Ok(record)
    })?;
    if args.groups {
        asked::note(&what_is_asked(&turns.engines, &json), &mut table, &mut json);
    }
    Ok((table, json))
}

/// Of each engine, that its reclaim does the same work for each touch as without the improvement.
fn what_is_asked(engines: &[Engine], json: &Value) -> Vec<Asked> {
    let works = [
        ("pages scanned per touch, beside those without it", "scanned_per_second"),
        ("pages stolen per touch, beside those without it", "stolen_per_second"),
        ("refaults per touch, beside those without it", "refaults_per_second"),
    ];
    let pairs = engine::before_and_after(engines).into_iter().filter(|(before, _)| !before.is_kernel());
    let of = |(before, after): (Engine, Engine)| {
        works.into_iter().filter_map(move |(what, key)| {
            let median = |engine: Engine, key| asked::median(json, &engine.to_string(), key);
            let per_touch = |engine| Some(median(engine, key)? / median(engine, "touches_per_second")?);
            let ratio = per_touch(after)? / per_touch(before)?;
            let apart = ratio.max(1.0 / ratio);
            Some(Asked::new(what, &after.to_string(), apart, Side::AtMost, SAME_WORK))
        })
    };
    pairs.flat_map(of).collect()
}

struct Workers<'a> {
    ground: &'a Ground,
    areas: &'a [Area<'a>],
    args: &'a UsememArgs,
    interrupt: &'a Interrupt,
}

impl Workers<'_> {
    fn record(&self) -> Result<Record> {
        let threads = self.areas.len();
        threads::all(threads, |worker| self.fill(worker))?;
        let lru = || self.ground.locks(LockClass::Lru).zip(self.ground.stats());
        let locks = || self.ground.lru_uses().zip(self.ground.locks(LockClass::Cost));
        let (before, lru_before, locks_before) = (Counts::read(self.ground)?, lru(), locks());
        let time = Duration::from_secs_f64(self.args.turns.repeat.seconds);
        let touch = |worker: usize, stop: &AtomicBool| self.touch(worker, stop);
        let (touched, took) = threads::for_a_while(threads, time, self.interrupt, touch)?;
        let (after, lru_after, locks_after) = (Counts::read(self.ground)?, lru(), locks());
        threads::all(threads, |worker| self.verify(worker, &touched[worker]))?;

        let fewest = touched.iter().map(|touched| touched.count).min().unwrap_or(0);
        let rate = |count: u64| count as f64 / took.as_secs_f64();
        let mut record = Record::from([
            ("touches_per_second", rate(touched.iter().map(|touched| touched.count).sum())),
            ("fewest_touches_per_second", rate(fewest)),
            ("swapped_in_per_second", rate(after.swapped_in - before.swapped_in)),
            ("swapped_out_per_second", rate(after.swapped_out - before.swapped_out)),
        ]);
        if let Some((before, after)) = before.reclaim.zip(after.reclaim) {
            record.extend([
                ("refaults_per_second", rate(after.refaults - before.refaults)),
                ("scanned_per_second", rate(after.scanned - before.scanned)),
                ("stolen_per_second", rate(after.stolen - before.stolen)),
            ]);
        }
        if let Some(((lru, stats), (lru_after, stats_after))) = lru_before.zip(lru_after) {
            let wait_ns = (lru_after.wait_ns - lru.wait_ns) as f64;
            let all_time_ns = took.as_nanos() as f64 * threads as f64;
            record.extend([
                ("lru_acquisitions_per_second", rate(lru_after.acquisitions - lru.acquisitions)),
                ("lru_waits", (lru_after.contended - lru.contended) as f64),
                ("lru_wait_ns", wait_ns),
                ("lru_wait_percent", wait_ns / all_time_ns * 100.0),
                ("retry_io_miss", (stats_after.retry_io_miss - stats.retry_io_miss) as f64),
            ]);
        }
        if let Some(((uses, cost), (uses_after, cost_after))) = locks_before.zip(locks_after) {
            record.extend(lru_rows::figures(&uses, &uses_after, took.as_secs_f64()));
            record.extend([
                ("cost_acquisitions_per_second", rate(cost_after.acquisitions - cost.acquisitions)),
                ("cost_wait_ns", (cost_after.wait_ns - cost.wait_ns) as f64),
            ]);
        }
        Ok(record)
    }

    /// The number of a page of a worker among those of all of them.
    fn number(&self, worker: usize, page: usize) -> usize {
        worker * self.args.pages() + page
    }

    fn fill(&self, worker: usize) -> Result<()> {
        let hand = self.ground.hand();
        (0..self.args.pages()).try_for_each(|page| {
            self.interrupt.check()?;
            self.args.content.fill(&self.areas[worker], &hand, page * PAGE, self.number(worker, page))
        })
    }

    /// Reads the first word of a page at random, and stores to the second, until it is time to stop.
    fn touch(&self, worker: usize, stop: &AtomicBool) -> Result<Touched> {
        let (hand, content, area) = (self.ground.hand(), self.args.content, &self.areas[worker]);
        let mut dice = PageDice::new(worker as u64);
        let mut touched = Touched { count: 0, last: vec![0; self.args.pages()] };
        while touched.count == 0 || !stop.load(Ordering::Relaxed) {
            let page = dice.next_below(self.args.pages() as u64) as usize;
            area.verify(&hand, page * PAGE, content.word(self.number(worker, page), 0))?;
            touched.count += 1;
            touched.last[page] = touched.count;
            // Pages of zeros stay that.
            let value = if content == Content::Zero { 0 } else { touched.count };
            area.store(&hand, page * PAGE + 8, value)?;
        }
        Ok(touched)
    }

    /// Fails unless each page has its content, and what was stored to it last.
    fn verify(&self, worker: usize, touched: &Touched) -> Result<()> {
        let (hand, content, area) = (self.ground.hand(), self.args.content, &self.areas[worker]);
        touched.last.iter().enumerate().try_for_each(|(page, last)| {
            self.interrupt.check()?;
            let number = self.number(worker, page);
            let second = match (content, last) {
                (Content::Zero, _) | (_, 0) => content.word(number, 1),
                _ => *last,
            };
            area.verify(&hand, page * PAGE, content.word(number, 0))?;
            area.verify(&hand, page * PAGE + 8, second)?;
            area.verify(&hand, page * PAGE + PAGE - 8, content.word(number, PAGE / 8 - 1))
        })
    }
}

/// What a worker has done.
struct Touched {
    count: u64,
    /// The count at which each page was touched last; 0: never.
    last: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reclaim_is_asked_to_do_the_same_work_for_each_touch_either_way() {
        let engines = ["kernel", "soft-scan_cost", "soft"].map(|name| name.parse::<Engine>().unwrap());
        let of = |touches: u32, scanned: u32, stolen: u32| {
            json!({ "touches_per_second": touches, "scanned_per_second": scanned,
                    "stolen_per_second": stolen })
        };
        let json = json!({ "medians": {
            "kernel": of(1, 1, 1), "soft-scan_cost": of(100, 200, 100), "soft": of(200, 404, 150),
        } });
        let asked = what_is_asked(&engines, &json);
        assert_eq!(asked.iter().map(|one| one.is_met).collect::<Vec<_>>(), [true, false]);
        assert!((asked[1].figure - 4.0 / 3.0).abs() < 1e-9 && asked[0].engine == "soft", "{asked:?}");
    }
}
