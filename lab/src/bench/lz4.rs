//! What lz4 alone does with pages: the same functions of the same crate that a manager calls, on one thread
//! and on two, without anything else.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};

use super::compare::Record;
use super::paging::Content;
use super::threads;
use crate::PAGE_BYTES;
use crate::interrupt::Interrupt;

const PAGE: usize = PAGE_BYTES as usize;
/// The pages of each thread: more than caches hold.
const PAGES: usize = 16 << 10;

/// Bytes per nanosecond: GB/s.
#[derive(Debug, Clone, Copy)]
struct Speed {
    compress: f64,
    expand: f64,
    /// Of pages of which each is expanded and another one compressed.
    both: f64,
    /// The size after over the size before.
    part: f64,
}

/// Figures of one thread and of two, for about so long each.
///
/// # Errors
/// If a page comes back otherwise than it was, or a signal came.
pub fn record(content: Content, time: Duration, interrupt: &Interrupt) -> Result<Record> {
    let (one, two) = (speed(1, content, time, interrupt)?, speed(2, content, time, interrupt)?);
    Ok(Record::from([
        ("lz4_compress_gigabytes_per_second", one.compress),
        ("lz4_expand_gigabytes_per_second", one.expand),
        ("lz4_both_gigabytes_per_second", one.both),
        ("lz4_two_compress_gigabytes_per_second", two.compress),
        ("lz4_two_expand_gigabytes_per_second", two.expand),
        ("lz4_two_both_gigabytes_per_second", two.both),
        ("lz4_percent", 100.0 * one.part),
    ]))
}

fn speed(count: usize, content: Content, time: Duration, interrupt: &Interrupt) -> Result<Speed> {
    let done = threads::all(count, |thread| Pages::new(thread, content).work(time, interrupt))?;
    let sum = |of: fn(&Done) -> f64| done.iter().map(of).sum::<f64>();
    Ok(Speed {
        compress: sum(|done| done.bytes / done.compress_ns),
        expand: sum(|done| done.bytes / done.expand_ns),
        both: sum(|done| done.bytes / (done.compress_ns + done.expand_ns)),
        part: sum(|done| done.part) / count as f64,
    })
}

/// What one thread has done.
struct Done {
    bytes: f64,
    compress_ns: f64,
    expand_ns: f64,
    part: f64,
}

/// The pages of one thread, and what they become.
struct Pages {
    pages: Vec<u8>,
    compressed: Vec<u8>,
    /// Where in it each page ends.
    ends: Vec<usize>,
    page: Vec<u8>,
}

impl Pages {
    fn new(thread: usize, content: Content) -> Self {
        let words = (0..PAGES).flat_map(|page| {
            (0..PAGE / 8).map(move |word| content.word(thread * PAGES + page, word).to_le_bytes())
        });
        let pages = words.flatten().collect();
        let compressed = vec![0; PAGES * get_maximum_output_size(PAGE)];
        Self { pages, compressed, ends: Vec::with_capacity(PAGES), page: vec![0; PAGE] }
    }

    fn work(mut self, time: Duration, interrupt: &Interrupt) -> Result<Done> {
        // The first round is for warming up.
        self.round()?;
        let mut done = Done { bytes: 0.0, compress_ns: 0.0, expand_ns: 0.0, part: 0.0 };
        let begin = Instant::now();
        while done.bytes == 0.0 || begin.elapsed() < 2 * time {
            interrupt.check()?;
            let (compress, expand) = self.round()?;
            done.bytes += self.pages.len() as f64;
            done.compress_ns += compress.as_nanos() as f64;
            done.expand_ns += expand.as_nanos() as f64;
        }
        done.part = self.ends.last().copied().unwrap_or(0) as f64 / self.pages.len() as f64;
        Ok(done)
    }

    /// Compresses all pages, then expands all; how long each took.
    fn round(&mut self) -> Result<(Duration, Duration)> {
        let begin = Instant::now();
        self.ends.clear();
        let mut at = 0;
        for page in self.pages.chunks_exact(PAGE) {
            at += compress_into(page, &mut self.compressed[at..]).context("lz4 has no room")?;
            self.ends.push(at);
        }
        let compress = begin.elapsed();
        let begin = Instant::now();
        let mut at = 0;
        for end in &self.ends {
            let len = decompress_into(&self.compressed[at..*end], &mut self.page);
            ensure!(len.ok() == Some(PAGE), "lz4 does not expand what it has compressed");
            at = *end;
        }
        let expand = begin.elapsed();
        ensure!(self.pages.ends_with(&self.page), "lz4 gives other bytes than it got");
        Ok((compress, expand))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_take_as_long_as_each_after_the_other_and_sizes_are_of_the_content() {
        let interrupt = Interrupt::install().unwrap();
        let figures = |content| record(content, Duration::from_millis(1), &interrupt).unwrap();
        let figures = [Content::Zero, Content::Compressible, Content::Noise].map(figures);
        for of in &figures {
            let of = |key: &str| of[key];
            let both = 1.0
                / (1.0 / of("lz4_compress_gigabytes_per_second")
                    + 1.0 / of("lz4_expand_gigabytes_per_second"));
            assert!((both / of("lz4_both_gigabytes_per_second") - 1.0).abs() < 0.01, "{both}");
        }
        let [zero, compressible, noise] = figures.map(|of| of["lz4_percent"]);
        assert!(zero < 2.0 && (20.0..50.0).contains(&compressible) && noise > 99.0, "{compressible}");
    }
}
