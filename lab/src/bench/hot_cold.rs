//! hot-cold: what a store of keys and values does, as redis: threads load from and store to pages of
//! anonymous memory, of which there is more than the budget. A few of the pages get most of the accesses.
//!
//! Each engine has the same process as a whole, as in [`heap`](super::heap).

use std::path::PathBuf;
use std::sync::Mutex;
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
use super::paging::{Content, check_pages};
use super::terms::{Swapping, Terms};
use super::threads;
use super::turns::Turns;
use crate::PAGE_BYTES;
use crate::board::now_ns;
use crate::chunks::shuffled;
use crate::cli::TurnArgs;
use crate::content::PageDice;
use crate::histogram::{BUCKETS, Latency, bucket_of};
use crate::interrupt::Interrupt;
use crate::procfs;
use crate::size::Size;

/// The words of a page.
const WORDS: usize = PAGE_BYTES as usize / 8;
/// More than any disk is to be filled with.
const MAX_BYTES: u64 = 1 << 40;

const ROWS: &[Row] = &[
    Row::new("operations_per_second", "loads and stores per second", Unit::Count),
    Row::new("hot_p50_ns", "hot page p50", Unit::Nanoseconds),
    Row::new("hot_p99_ns", "hot page p99", Unit::Nanoseconds),
    Row::new("cold_p50_ns", "cold page p50", Unit::Nanoseconds),
    Row::new("cold_p99_ns", "cold page p99", Unit::Nanoseconds),
    Row::new("max_ns", "longest", Unit::Nanoseconds),
    Row::new("peak_rss_bytes", "peak resident", Unit::Bytes),
];

/// What a line about one run shows.
const HIGHLIGHTS: &[&str] = &["operations_per_second", "hot_p99_ns", "cold_p50_ns"];

/// Options of hot-cold.
#[derive(Debug, Clone, Args, Serialize)]
pub struct HotColdArgs {
    /// How much memory all threads have together
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    #[serde(rename = "size_bytes")]
    pub size: Size,
    /// How many of the pages are hot, in percent; they are spread over all
    #[arg(long, value_name = "PERCENT", default_value_t = 10)]
    pub hot: u64,
    /// How many of the accesses are to hot pages, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 90)]
    pub hot_accesses: u64,
    /// How many of the accesses are stores, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    pub stores: u64,
    /// What the pages have beside what is stored
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

/// Fails unless each thread has hot and cold pages, and shares are shares.
///
/// # Errors
/// What is possible.
pub fn check(args: &HotColdArgs) -> Result<()> {
    check_pages(args.size)?;
    ensure!(args.size.bytes() <= MAX_BYTES, "--size must be at most 1T");
    ensure!((1..=99).contains(&args.hot), "--hot must be from 1 to 99 percent");
    for (name, share) in [("--hot-accesses", args.hot_accesses), ("--stores", args.stores)] {
        ensure!(share <= 100, "{name} must be from 0 to 100 percent");
    }
    let pages = args.size.pages() / args.turns.threads as u64;
    ensure!(pages * args.hot / 100 > 0, "--size must be so much that each thread has a hot page");
    Ok(())
}

/// Runs the engines in turn; the table and the JSON object.
///
/// # Errors
/// If no engine can run here, a wrong word was read, or a signal came.
pub fn measure(args: &HotColdArgs, stage: &mut Stage) -> Result<(String, Value)> {
    let turns = &args.turns;
    let description = format!(
        "hot-cold: {} threads, {} of memory, {} % of it hot with {} % of accesses, {} % stores, {} runs \
         of {} s, budget {}",
        turns.threads,
        args.size,
        args.hot,
        args.hot_accesses,
        args.stores,
        turns.repeat.runs,
        turns.repeat.seconds,
        turns.memory
    );
    let comparison = Comparison::new("hot-cold", description, args, ROWS, HIGHLIGHTS)?;
    let swap = Swapping { bytes: 2 * args.size.bytes(), dir: args.dir.clone(), kernel: true };
    let terms = Terms { swap: Some(swap), limited: true, ..Terms::of(turns.memory) };
    Turns::on(turns, terms).take(comparison, stage, |ground, stage| {
        let time = Duration::from_secs_f64(turns.repeat.seconds);
        match ground {
            Ground::Apart(apart) => {
                let line = Line::of("hot-cold", turns)
                    .option("--size", args.size)
                    .option("--hot", args.hot)
                    .option("--hot-accesses", args.hot_accesses)
                    .option("--stores", args.stores)
                    .choice("--content", args.content);
                apart.run(line, ROWS, time, &stage.interrupt)
            }
            _ => record(args, time, &stage.interrupt),
        }
    })
}

/// Measures in this process.
fn record(args: &HotColdArgs, time: Duration, interrupt: &Interrupt) -> Result<Record> {
    let count = args.turns.threads;
    let parts = threads::all(count, |thread| Part::filled(args, thread as u64, interrupt))?;
    // Each has one thread at a time.
    let parts: Vec<_> = parts.into_iter().map(Mutex::new).collect();
    let part_of = |thread: usize| parts[thread].lock().ok().context("a thread has panicked");
    let work = |thread: usize, stop: &AtomicBool| part_of(thread)?.work(args, stop);
    let (done, took) = threads::for_a_while(count, time, interrupt, work)?;
    // Not in the measured time: where much is out, it takes as long.
    threads::all(count, |thread| part_of(thread)?.verify_all(interrupt))?;
    let mut all = Done::default();
    done.iter().for_each(|done| all.add(done));
    let (hot, cold) = (latency(&all.hot, all.max_ns)?, latency(&all.cold, all.max_ns)?);
    let peak = procfs::peak_resident_bytes().context("/proc/self/status has no VmHWM")?;
    Ok(Record::from([
        ("operations_per_second", (hot.count + cold.count) as f64 / took.as_secs_f64()),
        ("hot_p50_ns", hot.p50_ns as f64),
        ("hot_p99_ns", hot.p99_ns as f64),
        ("cold_p50_ns", cold.p50_ns as f64),
        ("cold_p99_ns", cold.p99_ns as f64),
        ("max_ns", all.max_ns as f64),
        ("peak_rss_bytes", peak as f64),
    ]))
}

fn latency(counts: &[u64], max_ns: u64) -> Result<Latency> {
    let none = "there was no access to hot pages, or none to cold ones; raise --seconds";
    Latency::from_counts(counts, max_ns).context(none)
}

/// What one thread has done: how long its accesses took.
struct Done {
    hot: Vec<u64>,
    cold: Vec<u64>,
    max_ns: u64,
}

impl Default for Done {
    fn default() -> Self {
        Self { hot: vec![0; BUCKETS], cold: vec![0; BUCKETS], max_ns: 0 }
    }
}

impl Done {
    fn add(&mut self, other: &Self) {
        for (counts, more) in [(&mut self.hot, &other.hot), (&mut self.cold, &other.cold)] {
            counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        }
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

/// The memory of one thread.
struct Part {
    words: Vec<u64>,
    /// The pages, the hot ones first.
    order: Vec<u32>,
    /// How often each page was stored to.
    versions: Vec<u32>,
    thread: u64,
    dice: PageDice,
}

impl Part {
    fn filled(args: &HotColdArgs, thread: u64, interrupt: &Interrupt) -> Result<Self> {
        let pages = args.size.pages() / args.turns.threads as u64;
        let mut dice = PageDice::new(thread);
        let order = shuffled(pages, &mut dice);
        let words = vec![0; pages as usize * WORDS];
        let mut part = Self { words, order, versions: vec![0; pages as usize], thread, dice };
        for page in 0..pages as usize {
            if page % 64 == 0 {
                interrupt.check()?;
            }
            let number = (thread * pages) as usize + page;
            for (word, value) in part.words[page * WORDS..(page + 1) * WORDS].iter_mut().enumerate() {
                *value = args.content.word(number, word);
            }
            part.store(page);
        }
        Ok(part)
    }

    /// The mark of a page, at its beginning and in its middle.
    fn mark(&self, page: usize) -> u64 {
        self.thread << 56 | (page as u64) << 32 | u64::from(self.versions[page])
    }

    fn store(&mut self, page: usize) {
        self.versions[page] += 1;
        let mark = self.mark(page);
        (self.words[page * WORDS], self.words[page * WORDS + WORDS / 2]) = (mark, !mark);
    }

    fn verify(&self, page: usize) -> Result<()> {
        let mark = self.mark(page);
        let got = (self.words[page * WORDS], self.words[page * WORDS + WORDS / 2]);
        ensure!(got == (mark, !mark), "wrong content: page {page} has {got:#x?}, {mark:#x} expected");
        Ok(())
    }

    fn work(&mut self, args: &HotColdArgs, stop: &AtomicBool) -> Result<Done> {
        let (mut done, pages) = (Done::default(), self.order.len() as u64);
        let hot = pages * args.hot / 100;
        while !stop.load(Ordering::Relaxed) {
            let is_hot = self.dice.next_below(100) < args.hot_accesses;
            let rank =
                if is_hot { self.dice.next_below(hot) } else { hot + self.dice.next_below(pages - hot) };
            let page = self.order[rank as usize] as usize;
            let is_store = self.dice.next_below(100) < args.stores;
            let before = now_ns();
            match is_store {
                true => self.store(page),
                false => self.verify(page)?,
            }
            let ns = now_ns() - before;
            let counts = if is_hot { &mut done.hot } else { &mut done.cold };
            counts[bucket_of(ns)] += 1;
            done.max_ns = done.max_ns.max(ns);
        }
        Ok(done)
    }

    /// Fails unless each page has what was stored last.
    fn verify_all(&self, interrupt: &Interrupt) -> Result<()> {
        for page in 0..self.order.len() {
            if page % 64 == 0 {
                interrupt.check()?;
            }
            self.verify(page)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: HotColdArgs,
    }

    fn args(line: &str) -> HotColdArgs {
        Cli::try_parse_from(["hot-cold"].into_iter().chain(line.split(' '))).unwrap().args
    }

    #[test]
    fn hot_pages_get_most_accesses_and_a_lost_store_is_found() {
        let args = args("--size 4M --threads 1");
        check(&args).unwrap();
        let interrupt = Interrupt::install().unwrap();
        let mut part = Part::filled(&args, 0, &interrupt).unwrap();
        let stop = AtomicBool::new(false);
        let done = std::thread::scope(|scope| {
            let working = scope.spawn(|| part.work(&args, &stop));
            std::thread::sleep(Duration::from_millis(200));
            stop.store(true, Ordering::Relaxed);
            working.join().unwrap().unwrap()
        });
        let [hot, cold] = [&done.hot, &done.cold].map(|counts| counts.iter().sum::<u64>() as f64);
        assert!((0.85..0.95).contains(&(hot / (hot + cold))), "{hot} hot, {cold} cold");
        // Half of them were stores, and one for each page is of the beginning.
        let stores = part.versions.iter().map(|version| f64::from(version - 1)).sum::<f64>();
        assert!((0.4..0.6).contains(&(stores / (hot + cold))), "{stores} stores");
        part.verify_all(&interrupt).unwrap();
        part.words[17 * WORDS + WORDS / 2] ^= 1;
        let error = part.verify_all(&interrupt).unwrap_err().to_string();
        assert!(error.contains("page 17"), "{error}");
    }

    #[test]
    fn shares_that_are_none_are_refused() {
        for wrong in
            ["--hot 0", "--hot 100", "--hot-accesses 101", "--stores 101", "--size 5000", "--size 4K"]
        {
            assert!(check(&args(&format!("--threads 1 {wrong}"))).is_err(), "{wrong}");
        }
    }
}
