//! What threads read in workloads of chunks: each draws one step after the other, and a step is a list of
//! parts of chunks. The lab draws the same steps afterwards, to tell what a cache would have had.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::ops::Range;

use clap::Args;
use serde::Serialize;

use crate::PAGE_BYTES;
use crate::chunks::{ChunkSizes, Layout, Popularity, Zipf, shuffled};
use crate::content::{self, PageDice};
use crate::size::Size;

/// What is read at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The chunk.
    pub chunk: u64,
    /// What of it, in bytes from its beginning, a multiple of 8.
    pub part: Range<u64>,
}

/// The chunks of a file, and how steps are drawn.
#[derive(Debug)]
pub struct Plan {
    /// Where the chunks are.
    pub layout: Layout,
    steps: Steps,
    seed: u64,
}

#[derive(Debug)]
enum Steps {
    Chunks(Popularity),
    Segments(Segments),
    Vectors(Vectors),
}

impl Plan {
    /// A step is one whole chunk.
    pub fn of_chunks(layout: Layout, skew: f64, seed: u64) -> Self {
        let popularity = Popularity::new(layout.count(), skew, seed);
        Self { layout, steps: Steps::Chunks(popularity), seed }
    }

    /// A step is a query of a search engine, in a file of that size. `None` if it is too small.
    pub fn of_segments(file_bytes: u64, shape: SegmentsShape, seed: u64) -> Option<Self> {
        let (layout, terms) = Segments::layout(file_bytes, seed)?;
        let stored = layout.count() - 2 * terms;
        let popularity = Popularity::new(terms, shape.skew, seed);
        Some(Self { layout, steps: Steps::Segments(Segments { shape, stored, terms, popularity }), seed })
    }

    /// A step is a search for near vectors, in a file of that size. `None` if it is too small.
    pub fn of_vectors(file_bytes: u64, shape: VectorShape, seed: u64) -> Option<Self> {
        let page = Size::from_bytes(PAGE_BYTES);
        let pages = ChunkSizes { least: page, most: page };
        let layout = Layout::fill(file_bytes, pages, PAGE_BYTES, seed)?;
        let steps = Steps::Vectors(Vectors::new(&layout, shape, seed)?);
        Some(Self { layout, steps, seed })
    }

    /// The dice of a thread, by which it draws its steps.
    pub fn dice(&self, thread: u64) -> PageDice {
        PageDice::new(self.seed.wrapping_mul(0x0100_0000_01b3) ^ (thread + 1))
    }

    /// Draws the next step into a list, which is emptied before.
    pub fn draw(&self, dice: &mut PageDice, step: &mut Vec<Access>) {
        step.clear();
        let mut whole = |chunk: u64| step.push(Access { chunk, part: 0..self.layout.len(chunk) });
        match &self.steps {
            Steps::Chunks(popularity) => whole(popularity.draw(dice)),
            Steps::Segments(segments) => segments.draw(dice, whole),
            Steps::Vectors(vectors) => vectors.draw(dice, |chunk, part| step.push(Access { chunk, part })),
        }
    }
}

/// What a query of a search engine reads.
#[derive(Debug, Clone, Copy, PartialEq, Args, Serialize)]
pub struct SegmentsShape {
    /// How many terms a query has: of each a skip list of 4 KiB and postings of 4 KiB to 2 MiB are read
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub terms: u64,
    /// How many documents a query finds: of each the stored fields, 16 KiB, are read
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub hits: u64,
    /// How uneven it is which terms are asked for: the exponent of a zipf distribution; 0 is even
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.8)]
    pub skew: f64,
}

/// The size of the stored fields of a document, in bytes.
const STORED_BYTES: u64 = 16 << 10;

/// The smallest and the largest postings of a term, in bytes.
const POSTINGS_BYTES: (u64, u64) = (4 << 10, 2 << 20);

#[derive(Debug)]
struct Segments {
    shape: SegmentsShape,
    terms: u64,
    stored: u64,
    popularity: Popularity,
}

impl Segments {
    /// Half of the file has terms, a skip list and postings each, and the other half stored fields. The
    /// number of terms is with it.
    fn layout(file_bytes: u64, seed: u64) -> Option<(Layout, u64)> {
        let mut dice = PageDice::new(seed);
        let (least, most) = POSTINGS_BYTES;
        // Room for what stands before the first chunk.
        let half_bytes = file_bytes.checked_sub(1 << 20)? / 2;
        let (mut sizes, mut bytes) = (Vec::new(), 0);
        loop {
            let ratio = (most as f64 / least as f64).powf(content::share(&mut dice));
            let postings = ((least as f64 * ratio) as u64).clamp(least, most).next_multiple_of(PAGE_BYTES);
            bytes += PAGE_BYTES + postings;
            if bytes > half_bytes {
                break;
            }
            sizes.extend([PAGE_BYTES, postings]);
        }
        let terms = sizes.len() as u64 / 2;
        let stored = half_bytes / STORED_BYTES;
        sizes.extend((0..stored).map(|_| STORED_BYTES));
        (terms > 0 && stored > 0).then(|| (Layout::of_sizes(sizes, PAGE_BYTES, seed), terms))
    }

    fn draw(&self, dice: &mut PageDice, mut read: impl FnMut(u64)) {
        for _ in 0..self.shape.terms {
            let term = self.popularity.draw(dice);
            read(2 * term);
            read(2 * term + 1);
        }
        for _ in 0..self.shape.hits {
            read(2 * self.terms + dice.next_below(self.stored));
        }
    }
}

/// What a search for near vectors reads.
#[derive(Debug, Clone, Copy, PartialEq, Args, Serialize)]
pub struct VectorShape {
    /// The size of a vector: 512, 1K, 2K or 4K
    #[arg(long, value_name = "SIZE", default_value = "1K")]
    #[serde(rename = "vector_bytes")]
    pub vector_size: Size,
    /// How many neighbours a vector has in the graph
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub links: u64,
    /// How many of the nearest vectors a search keeps and goes on from (ef in HNSW)
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub beam: usize,
    /// How uneven it is near what vectors are searched for: the exponent of a zipf distribution over regions;
    /// 0 is even
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.0)]
    pub skew: f64,
}

/// In how many regions searches are more or less frequent.
const REGIONS: u64 = 1024;

/// A graph of vectors. Each has a position on a ring, and near vectors are near on it: a vector is linked
/// with both that are next to it, and with others, of which near ones are more frequent. In the file they are
/// in no order. The links are a function of the position, as those of an index that is in memory.
#[derive(Debug)]
struct Vectors {
    shape: VectorShape,
    /// Of each position the number of the vector in the file.
    places: Vec<u32>,
    regions: Zipf,
    /// The region of each rank.
    ranked: Vec<u32>,
    seed: u64,
}

impl Vectors {
    fn new(layout: &Layout, shape: VectorShape, seed: u64) -> Option<Self> {
        let count = layout.count() * (PAGE_BYTES / shape.vector_size.bytes());
        let mut dice = PageDice::new(seed ^ 0x7ec7);
        let places = shuffled(u32::try_from(count).ok()?.into(), &mut dice);
        let ranked = shuffled(REGIONS, &mut dice);
        Some(Self { shape, places, regions: Zipf::new(REGIONS, shape.skew), ranked, seed })
    }

    fn count(&self) -> u64 {
        self.places.len() as u64
    }

    fn distance(&self, one: u64, other: u64) -> u64 {
        let apart = one.abs_diff(other);
        apart.min(self.count() - apart)
    }

    /// The positions with which one is linked.
    fn links(&self, position: u64) -> impl Iterator<Item = u64> {
        let mut dice = PageDice::new(self.seed ^ position << 20);
        let count = self.count();
        (0..self.shape.links).map(move |number| {
            // The first two are next to it, so that each is reached.
            let far = ((count / 2).max(1) as f64).powf(content::share(&mut dice)) as u64;
            let far = if number < 2 { 1 } else { far.max(1) };
            let is_up = if number < 2 { number == 0 } else { dice.next_below(2) == 0 };
            if is_up { (position + far) % count } else { (position + count - far % count) % count }
        })
    }

    /// Searches from position 0 for what is near to a position that is drawn. Each vector that is looked at
    /// is read once.
    fn draw(&self, dice: &mut PageDice, mut read: impl FnMut(u64, Range<u64>)) {
        let region = u64::from(self.ranked[self.regions.draw(dice) as usize]);
        let target = (region * self.count() + dice.next_below(self.count())) / REGIONS;
        let (mut seen, mut ahead, mut nearest) = (HashSet::new(), BinaryHeap::new(), BinaryHeap::new());
        let mut look = |position: u64, ahead: &mut BinaryHeap<_>, nearest: &mut BinaryHeap<_>| {
            if !seen.insert(position) {
                return;
            }
            let (chunk, part) = self.place(position);
            read(chunk, part);
            let distance = self.distance(position, target);
            if nearest.len() == self.shape.beam {
                if nearest.peek().is_some_and(|(farthest, _)| distance >= *farthest) {
                    return;
                }
                nearest.pop();
            }
            nearest.push((distance, position));
            ahead.push(Reverse((distance, position)));
        };
        look(0, &mut ahead, &mut nearest);
        while let Some(Reverse((distance, position))) = ahead.pop() {
            let is_full = nearest.len() == self.shape.beam;
            if is_full && nearest.peek().is_some_and(|(farthest, _)| distance > *farthest) {
                break;
            }
            self.links(position).for_each(|position| look(position, &mut ahead, &mut nearest));
        }
    }

    /// Where the vector of a position is: the chunk, and the part of it.
    fn place(&self, position: u64) -> (u64, Range<u64>) {
        let bytes = self.shape.vector_size.bytes();
        let place = u64::from(self.places[position as usize]);
        let in_page = PAGE_BYTES / bytes;
        let start = place % in_page * bytes;
        (place / in_page, start..start + bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u64 = 64 << 20;

    fn steps(plan: &Plan, count: usize) -> Vec<Vec<Access>> {
        let mut dice = plan.dice(0);
        let mut draw = || {
            let mut step = Vec::new();
            plan.draw(&mut dice, &mut step);
            step
        };
        (0..count).map(|_| draw()).collect()
    }

    fn check_places(plan: &Plan, steps: &[Vec<Access>]) {
        assert!(plan.layout.end() <= FILE, "{}", plan.layout.end());
        for access in steps.iter().flatten() {
            let len = plan.layout.len(access.chunk);
            assert!(access.part.start < access.part.end && access.part.end <= len, "{access:?} of {len}");
        }
    }

    #[test]
    fn a_query_reads_skips_postings_and_stored_fields_in_that_order() {
        let shape = SegmentsShape { terms: 2, hits: 3, skew: 0.8 };
        let plan = Plan::of_segments(FILE, shape, 4).unwrap();
        let steps = steps(&plan, 200);
        check_places(&plan, &steps);
        for step in &steps {
            let lens: Vec<u64> = step.iter().map(|access| plan.layout.len(access.chunk)).collect();
            assert!(lens.len() == 7 && lens[0] == 4096 && lens[2] == 4096, "{lens:?}");
            assert!(step[1].chunk == step[0].chunk + 1 && step[3].chunk == step[2].chunk + 1);
            assert!(lens[4..].iter().all(|len| *len == STORED_BYTES), "{lens:?}");
        }
        let postings: HashSet<u64> = steps.iter().map(|step| plan.layout.len(step[1].chunk)).collect();
        assert!(postings.len() > 10, "{postings:?}");
        assert!(Plan::of_segments(1 << 20, shape, 4).is_none());
    }

    #[test]
    fn a_search_finds_what_is_nearest_by_few_vectors() {
        let shape = VectorShape { vector_size: Size::from_bytes(1 << 10), links: 16, beam: 32, skew: 0.0 };
        let plan = Plan::of_vectors(FILE, shape, 4).unwrap();
        let Steps::Vectors(vectors) = &plan.steps else { unreachable!("it has just been made") };
        assert!(vectors.count() > 50_000, "{}", vectors.count());
        let mut found = 0;
        let (mut dice, mut again) = (plan.dice(0), plan.dice(0));
        for _ in 0..50 {
            let mut step = Vec::new();
            plan.draw(&mut dice, &mut step);
            check_places(&plan, std::slice::from_ref(&step));
            assert!((32..20_000).contains(&step.len()), "{} vectors", step.len());
            let all: HashSet<_> = step.iter().map(|access| (access.chunk, access.part.start)).collect();
            assert_eq!(all.len(), step.len(), "a vector is read once");
            let region = u64::from(vectors.ranked[vectors.regions.draw(&mut again) as usize]);
            let target = (region * vectors.count() + again.next_below(vectors.count())) / REGIONS;
            let (chunk, part) = vectors.place(target);
            found += usize::from(all.contains(&(chunk, part.start)));
        }
        assert!(found >= 48, "{found} of 50 found what they searched for");
        assert_ne!(steps(&plan, 2)[0], steps(&plan, 2)[1]);
    }

    #[test]
    fn all_that_is_drawn_follows_from_the_seed() {
        let layout = || Layout::fill(FILE, "300K-1M".parse().unwrap(), 4096, 9).unwrap();
        let plans = [Plan::of_chunks(layout(), 0.5, 9), Plan::of_chunks(layout(), 0.5, 9)];
        assert_eq!(steps(&plans[0], 100), steps(&plans[1], 100));
        assert_ne!(steps(&plans[0], 100), steps(&Plan::of_chunks(layout(), 0.5, 8), 100));
        // Each thread has an order of its own.
        assert_ne!(plans[0].dice(0).next_below(1 << 40), plans[0].dice(1).next_below(1 << 40));
    }
}
