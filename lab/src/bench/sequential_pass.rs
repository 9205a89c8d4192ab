//! sequential-pass: a process writes more memory than the budget, page after page, and then reads all of it,
//! once, and checks each page. Each engine has the process as a whole, as heap's. Beside it what lz4 alone
//! does with the same pages, since each page that comes in is expanded and another one compressed for it.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::apart::Line;
use super::area::Ground;
use super::asked::{self, Asked, Side};
use super::compare::{Comparison, Record, Row, Unit};
use super::paging::{Content, check_pages};
use super::terms::{Swapping, Terms};
use super::turns::Turns;
use super::{Stage, lz4, threads};
use crate::PAGE_BYTES;
use crate::cli::TurnArgs;
use crate::interrupt::Interrupt;
use crate::size::Size;

const WORDS: usize = PAGE_BYTES as usize / 8;
/// Pages between two looks at the flag that a signal raises.
const LOOK: usize = 256;
const MAX_BYTES: u64 = 1 << 40;
/// What the reading pass should reach, in GB/s, unless lz4 does less.
const LEAST_READ: f64 = 1.5;

const WRITE: &str = "write_gigabytes_per_second";
const READ: &str = "read_gigabytes_per_second";
const BOTH: &str = "both_gigabytes_per_second";
const LIMIT: &str = "lz4_two_both_gigabytes_per_second";
const ALLOWED: &str = "peak_over_allowed_ratio";

const ROWS: &[Row] = &[
    Row::new(WRITE, "writing pass, GB/s", Unit::Ratio),
    Row::new(READ, "reading pass, GB/s", Unit::Ratio),
    Row::new(BOTH, "  both, GB/s", Unit::Ratio),
    Row::new("lz4_compress_gigabytes_per_second", "lz4 compresses, one thread, GB/s", Unit::Ratio),
    Row::new("lz4_expand_gigabytes_per_second", "  expands", Unit::Ratio),
    Row::new("lz4_both_gigabytes_per_second", "  each page both ways", Unit::Ratio),
    Row::new("lz4_two_compress_gigabytes_per_second", "  compresses, two threads", Unit::Ratio),
    Row::new("lz4_two_expand_gigabytes_per_second", "  expands, two threads", Unit::Ratio),
    Row::new(LIMIT, "  each page both ways, two threads", Unit::Ratio),
    Row::new("lz4_percent", "  compressed, of a page", Unit::Percent),
    Row::new("pages_out", "pages paged out", Unit::Count),
    Row::new("pages_in", "pages paged in", Unit::Count),
    Row::new("pages_written_back", "pages from the pool to the file", Unit::Count),
    Row::new("peak_sampled_bytes", "peak resident (VmRSS, every 10 ms)", Unit::Bytes),
    Row::new("peak_managed_bytes", "  of it managed, the pool included", Unit::Bytes),
    Row::new("peak_own_bytes", "  of it Elbowroom's own", Unit::Bytes),
    Row::new("peak_unmanaged_bytes", "  of it unmanaged", Unit::Bytes),
    Row::new(ALLOWED, "  over what is allowed", Unit::Ratio),
    Row::new("engine_peak_bytes", "peak, engine's count", Unit::Bytes),
];

/// What a line about one run shows.
const HIGHLIGHTS: &[&str] = &[WRITE, READ, LIMIT, "peak_sampled_bytes"];

/// Options of sequential-pass.
#[derive(Debug, Clone, Args, Serialize)]
pub struct SequentialPassArgs {
    /// How much memory is written and read
    #[arg(long, value_name = "SIZE", default_value = "4G")]
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

/// Fails unless there is a page for each thread, and not too many.
///
/// # Errors
/// What is possible.
pub fn check(args: &SequentialPassArgs) -> Result<()> {
    check_pages(args.size)?;
    ensure!(args.size.pages() >= args.turns.threads as u64, "--size must be a page for each thread");
    ensure!(args.size.bytes() <= MAX_BYTES, "--size must be at most 1T");
    Ok(())
}

/// Runs the engines in turn; the table and the JSON object.
///
/// # Errors
/// If no engine can run here, a page was not as it was written, or a signal came.
pub fn measure(args: &SequentialPassArgs, stage: &mut Stage) -> Result<(String, Value)> {
    let turns = &args.turns;
    let description = format!(
        "sequential-pass: {} threads, {} of {:?} pages written and read once, {} runs, budget {}",
        turns.threads, args.size, args.content, turns.repeat.runs, turns.memory
    );
    let comparison = Comparison::new("sequential-pass", description, args, ROWS, HIGHLIGHTS)?;
    let swap = Swapping { bytes: 2 * args.size.bytes(), dir: args.dir.clone(), kernel: true };
    let terms = Terms { swap: Some(swap), limited: true, ..Terms::of(turns.memory) };
    let time = Duration::from_secs_f64(turns.repeat.seconds);
    let (mut table, mut json) = Turns::on(turns, terms).take(comparison, stage, |ground, stage| {
        let Ground::Apart(apart) = ground else { return record(args, &stage.interrupt) };
        let line =
            Line::of("sequential-pass", turns).option("--size", args.size).choice("--content", args.content);
        let mut record = apart.run(line, ROWS, bound(args.size), &stage.interrupt)?;
        if !apart.is_kernel() {
            record.extend(lz4::record(args.content, time, &stage.interrupt)?);
        }
        Ok(record)
    })?;
    asked::note(&what_is_asked(args.content, &json), &mut table, &mut json);
    Ok((table, json))
}

/// How long a run may take: with 20 MB/s each way, which a slow disk has.
fn bound(size: Size) -> Duration {
    Duration::from_secs(2 * size.bytes() / 20_000_000)
}

fn what_is_asked(content: Content, json: &Value) -> Vec<Asked> {
    let mut all = Vec::new();
    for engine in asked::ours(json) {
        let of = |key| asked::median(json, &engine, key);
        if let Some((read, limit)) = of(READ).zip(of(LIMIT)).filter(|_| content == Content::Compressible) {
            let least = LEAST_READ.min(limit);
            all.push(Asked::new("GB/s of the reading pass", &engine, read, Side::AtLeast, least));
        }
        if let Some(ratio) = of(ALLOWED) {
            let what = "peak resident over budget + 32 MiB + unmanaged";
            all.push(Asked::new(what, &engine, ratio, Side::AtMost, 1.0));
        }
    }
    all
}

/// The pages of one thread.
struct Part<'a> {
    first: usize,
    words: &'a mut [u64],
    /// Of each page, added up.
    sums: Vec<u64>,
}

/// Measures in this process.
fn record(args: &SequentialPassArgs, interrupt: &Interrupt) -> Result<Record> {
    let pages = args.size.pages() as usize;
    // The allocator maps it, and touches nothing.
    let mut memory = vec![0_u64; pages * WORDS];
    let each = pages.div_ceil(args.turns.threads);
    // A mutex each, since all threads are lent all parts; each locks only its own.
    let parts: Vec<_> = memory
        .chunks_mut(each * WORDS)
        .enumerate()
        .map(|(number, words)| Mutex::new(Part { first: number * each, words, sums: Vec::new() }))
        .collect();
    let timed = |work: &(dyn Fn(&mut Part<'_>) -> Result<()> + Sync)| {
        let begin = Instant::now();
        threads::all(parts.len(), |thread| {
            let mut part = parts[thread].lock().ok().context("a thread has panicked")?;
            work(&mut part)
        })?;
        Ok::<_, anyhow::Error>(begin.elapsed().as_nanos() as f64)
    };
    let write_ns = timed(&|part| part.write(args.content, interrupt))?;
    let read_ns = timed(&|part| part.read(args.content, interrupt))?;
    let bytes = args.size.bytes() as f64;
    Ok(Record::from([
        (WRITE, bytes / write_ns),
        (READ, bytes / read_ns),
        (BOTH, 2.0 * bytes / (write_ns + read_ns)),
    ]))
}

fn sum(page: &[u64]) -> u64 {
    page.iter().fold(0, |sum, word| sum.wrapping_add(*word))
}

impl Part<'_> {
    fn write(&mut self, content: Content, interrupt: &Interrupt) -> Result<()> {
        self.sums.reserve_exact(self.words.len() / WORDS);
        for (page, words) in self.words.chunks_exact_mut(WORDS).enumerate() {
            if page % LOOK == 0 {
                interrupt.check()?;
            }
            for (word, value) in words.iter_mut().enumerate() {
                *value = content.word(self.first + page, word);
            }
            self.sums.push(sum(words));
        }
        Ok(())
    }

    /// Fails unless each page has its first word, which no other has, and its sum.
    fn read(&mut self, content: Content, interrupt: &Interrupt) -> Result<()> {
        for (page, (words, expected)) in self.words.chunks_exact(WORDS).zip(&self.sums).enumerate() {
            if page % LOOK == 0 {
                interrupt.check()?;
            }
            let number = self.first + page;
            let is_right = words[0] == content.word(number, 0) && sum(words) == *expected;
            ensure!(is_right, "wrong content: page {number} is not as it was written");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_byte_or_another_page_is_found() {
        let interrupt = Interrupt::install().unwrap();
        let mut memory = vec![0; 4 * WORDS];
        let mut part = Part { first: 3, words: &mut memory, sums: Vec::new() };
        part.write(Content::Compressible, &interrupt).unwrap();
        part.read(Content::Compressible, &interrupt).unwrap();
        part.words[2 * WORDS + 77] ^= 1 << 40;
        let error = part.read(Content::Compressible, &interrupt).unwrap_err().to_string();
        assert!(error.contains("page 5 "), "{error}");
        part.words[2 * WORDS + 77] ^= 1 << 40;
        let (low, high) = part.words.split_at_mut(WORDS);
        low.swap_with_slice(&mut high[..WORDS]);
        assert!(part.read(Content::Compressible, &interrupt).is_err());
    }

    #[test]
    fn the_bound_is_what_lz4_does_where_that_is_less() {
        let json = |limit: f64| {
            serde_json::json!({
                "engines": ["kernel", "elbowroom"],
                "medians": { "kernel": { READ: 0.1 }, "elbowroom": { READ: 1.2, LIMIT: limit } },
            })
        };
        let met = |limit| what_is_asked(Content::Compressible, &json(limit)).iter().all(|one| one.is_met);
        assert!(met(1.1) && !met(1.3) && !met(9.0));
        assert_eq!(what_is_asked(Content::Compressible, &json(9.0)).len(), 1);
    }
}
