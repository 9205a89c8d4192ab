//! Chunks: parts of a file that are read whole, as the weights of an expert or the postings of a term. The
//! lab and the worker derive the same chunks, and the same order of reads, from the same options.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::PAGE_BYTES;
use crate::content::{self, PageDice};
use crate::size::Size;

/// What a thread takes at a time where threads go through one chunk together, in bytes.
pub const PIECE_BYTES: u64 = 64 << 10;

/// The largest read of the engines that read by themselves, in bytes.
pub const REQUEST_BYTES: u64 = 1 << 20;

/// At how many depths the engine `device` reads.
pub const DEPTH_COUNT: usize = 4;

/// The depths at which the engine `device` reads, one after the other: reads under way at a time.
pub const DEPTHS: [usize; DEPTH_COUNT] = [1, 4, 16, 32];

/// From which size to which chunks are: `1M`, or `300K-15M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkSizes {
    /// The smallest.
    pub least: Size,
    /// The largest.
    pub most: Size,
}

impl FromStr for ChunkSizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        let sizes = Self { least: least.parse()?, most: most.parse()? };
        if sizes.least.bytes() == 0 || sizes.least > sizes.most {
            return Err("write one size, as 1M, or the smallest and the largest, as 300K-15M".into());
        }
        Ok(sizes)
    }
}

impl fmt::Display for ChunkSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.least)?;
        if self.most == self.least { Ok(()) } else { write!(f, "-{}", self.most) }
    }
}

impl Serialize for ChunkSizes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Where the chunks of a file are: one behind the other, behind a head that takes them from round addresses.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The first byte of each chunk, and the end of the last.
    bounds: Vec<u64>,
}

impl Layout {
    /// Fills a file with chunks whose sizes are spread evenly on a logarithmic scale. Each begins and ends at
    /// a multiple of `align` bytes. `None` if not even one fits.
    pub fn fill(file_bytes: u64, sizes: ChunkSizes, align: u64, seed: u64) -> Option<Self> {
        let mut dice = PageDice::new(seed);
        let (least, most) = (sizes.least.bytes(), sizes.most.bytes());
        let mut bounds = vec![head(file_bytes, align, &mut dice)];
        loop {
            let ratio = (most as f64 / least as f64).powf(content::share(&mut dice));
            let bytes = ((least as f64 * ratio) as u64).clamp(least, most).next_multiple_of(align);
            let end = bounds[bounds.len() - 1] + bytes;
            if end > file_bytes {
                break;
            }
            bounds.push(end);
        }
        (bounds.len() > 1).then_some(Self { bounds })
    }

    /// Chunks of the given sizes, in that order, each a multiple of `align` bytes, behind a head of at most
    /// 1 MiB.
    pub fn of_sizes(sizes: impl IntoIterator<Item = u64>, align: u64, seed: u64) -> Self {
        let mut bounds = vec![head(u64::MAX, align, &mut PageDice::new(seed))];
        for bytes in sizes {
            bounds.push(bounds[bounds.len() - 1] + bytes.next_multiple_of(align));
        }
        Self { bounds }
    }

    /// How many chunks there are.
    pub fn count(&self) -> u64 {
        self.bounds.len() as u64 - 1
    }

    /// The bytes of the file that a chunk has.
    ///
    /// # Panics
    /// If there is no such chunk.
    pub fn bytes(&self, chunk: u64) -> Range<u64> {
        self.bounds[chunk as usize]..self.bounds[chunk as usize + 1]
    }

    /// How long a chunk is, in bytes.
    ///
    /// # Panics
    /// If there is no such chunk.
    pub fn len(&self, chunk: u64) -> u64 {
        let bytes = self.bytes(chunk);
        bytes.end - bytes.start
    }

    /// Whether there is no chunk.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// The pages that a chunk is on, as bytes of the file: what a reader without the page cache has to read.
    ///
    /// # Panics
    /// If there is no such chunk.
    pub fn pages(&self, chunk: u64) -> Range<u64> {
        let bytes = self.bytes(chunk);
        bytes.start / PAGE_BYTES * PAGE_BYTES..bytes.end.next_multiple_of(PAGE_BYTES)
    }

    /// The pieces of a chunk, in order, in bytes from its beginning.
    ///
    /// # Panics
    /// If there is no such chunk.
    pub fn pieces(&self, chunk: u64) -> impl Iterator<Item = Range<u64>> {
        let len = self.len(chunk);
        (0..len.div_ceil(PIECE_BYTES)).map(move |piece| piece_of(len, piece))
    }

    /// A piece of a chunk by its number; `None` behind the last.
    ///
    /// # Panics
    /// If there is no such chunk.
    pub fn piece(&self, chunk: u64, piece: u64) -> Option<Range<u64>> {
        let len = self.len(chunk);
        (piece < len.div_ceil(PIECE_BYTES)).then(|| piece_of(len, piece))
    }

    /// The length of the largest chunk, in bytes.
    pub fn largest(&self) -> u64 {
        (0..self.count()).map(|chunk| self.len(chunk)).max().unwrap_or(0)
    }

    /// The end of the last chunk, in whole pages, as bytes: the least that the file must have.
    pub fn end(&self) -> u64 {
        self.bounds[self.bounds.len() - 1].next_multiple_of(PAGE_BYTES)
    }
}

fn piece_of(len: u64, piece: u64) -> Range<u64> {
    piece * PIECE_BYTES..((piece + 1) * PIECE_BYTES).min(len)
}

/// What stands before the first chunk: up to 1 MiB, and at most an eighth of the file.
fn head(file_bytes: u64, align: u64, dice: &mut PageDice) -> u64 {
    let most = (1 << 20).min(file_bytes / 8);
    dice.next_below(most / align + 1) * align
}

/// Draws things by their rank, the first ones more often: rank `r` (from 1) has the weight `r^-skew`.
#[derive(Debug, Clone)]
pub struct Zipf {
    /// The sum of the weights up to each rank, as a share of all; empty if all weigh the same.
    sums: Vec<f64>,
    count: u64,
}

impl Zipf {
    /// Of so many things; a skew of 0 draws each as often as any other.
    pub fn new(count: u64, skew: f64) -> Self {
        if skew == 0.0 {
            return Self { sums: Vec::new(), count };
        }
        let mut sum = 0.0;
        let weight = |rank: u64| {
            sum += (rank as f64).powf(-skew);
            sum
        };
        let mut sums: Vec<f64> = (1..=count).map(weight).collect();
        let all = sums.last().copied().unwrap_or(1.0);
        sums.iter_mut().for_each(|sum| *sum /= all);
        Self { sums, count }
    }

    /// A rank, from 0.
    pub fn draw(&self, dice: &mut PageDice) -> u64 {
        if self.sums.is_empty() {
            return dice.next_below(self.count);
        }
        let share = content::share(dice);
        (self.sums.partition_point(|sum| *sum <= share) as u64).min(self.count - 1)
    }
}

/// Numbers below `count` in a random order.
pub fn shuffled(count: u64, dice: &mut PageDice) -> Vec<u32> {
    let mut all: Vec<u32> = (0..count as u32).collect();
    for last in (1..all.len()).rev() {
        all.swap(last, dice.next_below(last as u64 + 1) as usize);
    }
    all
}

/// Which chunks are read, and how often: all threads share the hot ones.
#[derive(Debug)]
pub struct Popularity {
    zipf: Zipf,
    /// The chunk of each rank; empty if all are as hot.
    ranked: Vec<u32>,
}

impl Popularity {
    /// Of so many chunks.
    pub fn new(count: u64, skew: f64, seed: u64) -> Self {
        let mut dice = PageDice::new(seed ^ 0x5eed);
        let ranked = if skew == 0.0 { Vec::new() } else { shuffled(count, &mut dice) };
        Self { zipf: Zipf::new(count, skew), ranked }
    }

    /// The next chunk.
    pub fn draw(&self, dice: &mut PageDice) -> u64 {
        let rank = self.zipf.draw(dice);
        self.ranked.get(rank as usize).map_or(rank, |chunk| u64::from(*chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str) -> ChunkSizes {
        text.parse().unwrap()
    }

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for text in ["1M", "300K-15M", "4K"] {
            let again: ChunkSizes = sizes(text).to_string().parse().unwrap();
            assert_eq!(again, sizes(text));
        }
        assert_eq!(sizes("300K-15M").most.bytes(), 15 << 20);
        for wrong in ["15M-300K", "0", "-", "1M-", "1M-2M-3M", "much"] {
            assert!(wrong.parse::<ChunkSizes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn chunks_fill_the_file_without_holes_and_are_the_same_for_a_seed() {
        for (text, align) in [("1M", 4096), ("300K-3M", 4096), ("300K-3M", 32), ("4K", 4096)] {
            let layout = Layout::fill(64 << 20, sizes(text), align, 7).unwrap();
            let again = Layout::fill(64 << 20, sizes(text), align, 7).unwrap();
            let (least, most) = (sizes(text).least.bytes(), sizes(text).most.bytes());
            for chunk in 0..layout.count() {
                let bytes = layout.bytes(chunk);
                assert_eq!(bytes, again.bytes(chunk));
                assert!(bytes.start.is_multiple_of(align) && bytes.end <= 64 << 20, "{bytes:?}");
                assert!((least..most + align).contains(&layout.len(chunk)), "{text}: {bytes:?}");
                if chunk > 0 {
                    assert_eq!(bytes.start, layout.bytes(chunk - 1).end);
                }
                let pages = layout.pages(chunk);
                assert!(pages.start <= bytes.start && pages.end >= bytes.end);
                assert!(pages.start.is_multiple_of(PAGE_BYTES) && pages.end.is_multiple_of(PAGE_BYTES));
            }
            assert!(layout.end() > (64 << 20) - most - align, "{text}: room for another one");
        }
        let mixed = Layout::fill(64 << 20, sizes("300K-3M"), 32, 7).unwrap();
        assert!((0..mixed.count()).any(|chunk| !mixed.bytes(chunk).start.is_multiple_of(PAGE_BYTES)));
        assert!(Layout::fill(64 << 10, sizes("1M"), 4096, 7).is_none());
    }

    #[test]
    fn skew_prefers_few_and_none_prefers_nobody() {
        let counts = |skew: f64| {
            let popularity = Popularity::new(100, skew, 3);
            let mut counts = vec![0_u32; 100];
            let mut dice = PageDice::new(8);
            (0..100_000).for_each(|_| counts[popularity.draw(&mut dice) as usize] += 1);
            counts
        };
        let even = counts(0.0);
        assert!(even.iter().all(|count| (800..1200).contains(count)), "{even:?}");
        let mut skewed = counts(1.0);
        // 1 / (1 + 1/2 + ... + 1/100) of all.
        let hottest = *skewed.iter().max().unwrap();
        assert!((18_000..21_000).contains(&hottest), "{hottest}");
        // The hottest is not simply the first.
        skewed.truncate(1);
        assert_ne!(skewed[0], hottest);
    }
}
