//! How much anonymous memory to bring at a fault: single pages for a thread that touches memory at random,
//! growing runs for one that goes through it in order.
//!
//! Streams are told apart by thread and by where they are, not by mapping: a sort goes through one array
//! from both ends, a sum through two arrays, both with places at random between. Linux: `swap_vma_readahead`,
//! which has one window for each mapping.
//!
//! Synchronization: streams are in sets with a lock each, so that threads meet only by chance; what is
//! known of neighbours, for pages where no stream goes on, is under one lock.

use elbowroom_sync::{Lines, LockClass, LockStats, Mutex};
use std::collections::VecDeque;

/// Streams that a set holds.
const WAYS: usize = 8;

/// Sets of streams.
const SETS: usize = 64;

/// log2 of the pages whose streams are in one set: those of 64 MiB.
const REGION: u32 = 14;

/// log2 of the pages of a region of [`Neighbours`]: 4 MiB.
const REGION_PAGES: u32 = 10;

/// A stream that went on is kept for so many uses of its set, in preference to streams that never did.
const KEPT: u32 = 256;

#[derive(Clone, Copy, Default)]
struct Stream {
    thread: u32,
    /// When it was used last, in uses of its set.
    used: u32,
    /// The pages that were brought last, or reached.
    start: u64,
    next: u64,
    /// How many were brought at once; 0: there is no stream here.
    pages: u64,
}

/// What a fault is to a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The page right behind, or before, what was brought last. Pages farther away do not count: of a table
    /// of some hundred pages that is used at random, most are near the end of one stream or another.
    On,
    /// A page of what was brought last, which is gone again: it came for nothing, or too early.
    Back,
}

impl Stream {
    /// What a fault of `thread` at `page` is to this stream; `None`: nothing.
    fn has(&self, thread: u32, page: u64) -> Option<Step> {
        if self.pages == 0 || self.thread != thread {
            None
        } else if page == self.next || page + 1 == self.start {
            Some(Step::On)
        } else {
            (self.start..self.next).contains(&page).then_some(Step::Back)
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Set {
    uses: u32,
    streams: [Stream; WAYS],
}

impl Set {
    fn find(&mut self, thread: u32, page: u64) -> Option<(&mut Stream, Step)> {
        self.uses = self.uses.wrapping_add(1);
        self.streams.iter_mut().find_map(|stream| stream.has(thread, page).map(|step| (stream, step)))
    }

    /// The stream that makes room for a new one: the oldest of those that never went on, or not lately; if
    /// there is none, the oldest.
    fn oldest(&mut self) -> &mut Stream {
        let uses = self.uses;
        let age = |stream: &Stream| uses.wrapping_sub(stream.used);
        let worth = |stream: &Stream| {
            let kept = stream.pages > 1 && age(stream) < KEPT;
            (stream.pages > 0, kept, u32::MAX - age(stream))
        };
        let oldest = (0..WAYS).min_by_key(|&way| worth(&self.streams[way])).unwrap_or(0);
        &mut self.streams[oldest]
    }
}

/// How densely a region is used, where no stream goes through it.
#[derive(Clone, Copy, Default)]
struct Region {
    /// The number of the region that has the entry now.
    number: u64,
    /// Of the pages that came with one that was wanted, those that were touched soon after, in 256ths.
    touched: u32,
    /// Pages that were wanted.
    asked: u32,
}

/// Entries of the table of regions: a power of two.
const REGIONS: usize = 512;

/// From so many touched 256ths on so many pages come together, as log2.
const DENSE: [(u32, u8); 3] = [(160, 4), (96, 3), (48, 2)];

/// From so many touched 256ths on pages of the pool come together. They need no read, whose cost neighbours
/// would share; each must be expanded, and takes the place of another page, which is compressed. A fault of
/// its own costs hardly more than that.
const DENSE_IN_POOL: u32 = 208;

/// One fault in so many is used for a look: its pages are mapped one by one, to count those that are
/// touched.
const PROBE_ONE_IN: u32 = 8;

/// log2 of the pages of such a look where hardly any is touched.
const PROBE_ORDER: u8 = 2;

/// So many looks are under way at most.
const PROBES: usize = 128;

/// A look is over after so many faults, or as many as one part in [`WINDOW_SHARE`] of memory has pages, if
/// those are fewer. Pages that are used at random are all touched sooner or later, but each of them as late
/// as any other, so it is of no use that one of them is there already.
const WINDOW: usize = 1024;
const WINDOW_SHARE: usize = 32;

/// Pages that were brought around one that was wanted, and are mapped as they are touched.
struct Probe {
    first: u64,
    order: u8,
    /// How many came with the one that was wanted: others of the 2^`order` pages may have been there.
    others: u32,
    touched: u32,
    /// The fault, by number, with which the look is over.
    until: u64,
}

/// What comes with a page that is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Around {
    /// log2 of how many pages, with that one.
    pub(crate) order: u8,
    /// The fault is used for a look: the pages are to be mapped one by one as they are touched, or come in
    /// pieces. The caller calls [`Runs::probe`], and then [`Runs::touched`] for each page that is touched.
    pub(crate) counted: bool,
}

/// Which pages that are out are worth bringing with others, where no stream goes on. Plain data.
struct Neighbours {
    regions: Vec<Region>,
    /// How densely regions are used on average: what is assumed of one that nothing is known of.
    usual: u32,
    /// The looks under way, in the order in which they are over.
    probes: VecDeque<Probe>,
    /// Faults where no stream goes on.
    faults: u64,
    window: u64,
}

impl Neighbours {
    /// For a memory of so many frames.
    fn new(frames: usize) -> Self {
        Self {
            regions: vec![Region::default(); REGIONS],
            usual: DENSE[2].0,
            probes: VecDeque::new(),
            faults: 0,
            window: (frames / WINDOW_SHARE).min(WINDOW) as u64,
        }
    }

    fn region(&mut self, page: u64) -> &mut Region {
        let number = page >> REGION_PAGES;
        let region = &mut self.regions[number as usize % REGIONS];
        if region.number != number {
            *region = Region { number, touched: self.usual, asked: 0 };
        }
        region
    }

    /// Counts what the looks that are over have seen, unless memory is plenty: pages that are gone again
    /// were put out by advice then, which says nothing about how many should come.
    fn end_probes(&mut self, plenty: bool) {
        while let Some(probe) = self.probes.pop_front_if(|probe| probe.until <= self.faults) {
            let others = probe.others;
            if plenty || others == 0 {
                continue;
            }
            let part = probe.touched.saturating_sub(1).min(others) * 256 / others;
            let region = self.region(probe.first);
            region.touched = (region.touched * 3 + part) / 4;
            self.usual = (self.usual * 15 + part) / 16;
        }
    }

    /// [`Runs::around`].
    fn around(&mut self, page: u64, in_pool: bool, plenty: bool) -> Around {
        self.faults += 1;
        self.end_probes(plenty);
        let room = self.probes.len() < PROBES;
        let region = self.region(page);
        region.asked = region.asked.wrapping_add(1);
        let least = if in_pool { DENSE_IN_POOL } else { 0 };
        let touched = if region.touched < least { 0 } else { region.touched };
        let order = DENSE.iter().find(|(dense, _)| touched >= *dense).map(|dense| dense.1);
        let turn = room && region.asked.is_multiple_of(PROBE_ONE_IN);
        match order {
            Some(order) => Around { order, counted: turn },
            // Seldom, since these pages take the place of others.
            None if turn && region.asked.is_multiple_of(4 * PROBE_ONE_IN) => {
                Around { order: PROBE_ORDER, counted: true }
            }
            None => Around { order: 0, counted: false },
        }
    }

    /// [`Runs::probe`].
    fn probe(&mut self, first: u64, order: u8, others: u32) {
        let until = self.faults + self.window;
        self.probes.push_back(Probe { first, order, others, touched: 0, until });
    }

    /// [`Runs::touched`].
    fn touched(&mut self, page: u64) -> bool {
        // Of two looks at the same page the later one is meant.
        let has = |probe: &Probe| page >> probe.order == probe.first >> probe.order;
        let probe = self.probes.iter_mut().rev().find(|probe| has(probe));
        let open = probe.filter(|probe| probe.until > self.faults);
        open.map(|probe| probe.touched += 1).is_some()
    }
}

/// How anonymous memory was used last.
pub(crate) struct Runs {
    sets: Vec<Lines<Mutex<Set>>>,
    neighbours: Mutex<Neighbours>,
}

impl Runs {
    /// For a memory of so many frames.
    pub(crate) fn new(frames: usize, locks: &LockStats) -> Self {
        let set = |_| Lines(locks.mutex(LockClass::Streams, Set::default()));
        let neighbours = locks.mutex(LockClass::Streams, Neighbours::new(frames));
        Self { sets: (0..SETS).map(set).collect(), neighbours }
    }

    /// What should come with a page that is out, where no stream goes on: its neighbours, if those are
    /// used, too. Reading a few pages takes hardly longer than reading one. Linux: `swap_vma_readahead`,
    /// which counts the pages that were touched, too, but sees them only while they are not mapped.
    /// `in_pool`: the page's bytes are compressed in memory.
    #[track_caller]
    pub(crate) fn around(&self, page: u64, in_pool: bool, plenty: bool) -> Around {
        self.neighbours.lock().around(page, in_pool, plenty)
    }

    /// A look begins at 2^`order` pages from `first` on, of which one was wanted, and so many others came.
    #[track_caller]
    pub(crate) fn probe(&self, first: u64, order: u8, others: u32) {
        self.neighbours.lock().probe(first, order, others);
    }

    /// Notes that a page of a look is touched for the first time; called for the page that was wanted, too.
    /// `false`: the look is over.
    #[track_caller]
    pub(crate) fn touched(&self, page: u64) -> bool {
        self.neighbours.lock().touched(page)
    }

    fn set(&self, thread: u32, page: u64) -> &Mutex<Set> {
        let hash = (page >> REGION << 32 ^ u64::from(thread)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.sets[(hash >> 40) as usize % SETS]
    }

    /// How many pages to bring for a fault of `thread` at `page`: twice as many as last time, up to `most`,
    /// if a stream goes on there; half as many where what it brought is gone, or as many if memory is
    /// `plenty`; else 1. [`Runs::note`] is to be told what was brought.
    #[track_caller]
    pub(crate) fn pages(&self, thread: u32, page: u64, most: u64, plenty: bool) -> u64 {
        match self.set(thread, page).lock().find(thread, page) {
            Some((stream, Step::On)) => (stream.pages * 2).min(most),
            Some((stream, Step::Back)) if plenty => stream.pages.min(most),
            Some((stream, Step::Back)) => (stream.pages / 2).max(1),
            None => 1,
        }
    }

    /// Notes that so many pages from `start` on were brought for a fault of `thread` at `page`.
    #[track_caller]
    pub(crate) fn note(&self, thread: u32, page: u64, (start, pages): (u64, u64)) {
        let mut set = self.set(thread, page).lock();
        let known = set.find(thread, page).is_some();
        let used = set.uses;
        let stream = if known { set.find(thread, page).expect("it was found").0 } else { set.oldest() };
        *stream = Stream { thread, used, start, next: start + pages, pages };
    }

    /// Notes that a fault of `thread` at `page` found these pages in memory: its stream goes on beyond
    /// them.
    #[track_caller]
    pub(crate) fn reached(&self, thread: u32, page: u64, (start, pages): (u64, u64)) {
        let mut set = self.set(thread, page).lock();
        let used = set.uses;
        if let Some((stream, Step::On)) = set.find(thread, page) {
            (stream.start, stream.next, stream.used) = (start, start + pages, used);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn new_runs() -> Runs {
        Runs::new(1 << 20, &LockStats::new())
    }

    /// Pages that are brought for a thread that touches those, one after the other, and finds what was
    /// brought last for any of so many streams.
    fn brought(runs: &Runs, streams: usize, pages: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut have = vec![0..0; streams];
        let mut counts = Vec::new();
        for (nth, page) in pages.enumerate() {
            if have.iter().any(|have| have.contains(&page)) {
                continue;
            }
            let count = runs.pages(1, page, 16, false);
            assert_eq!(count, runs.pages(1, page, 16, false), "asked again");
            let first = page & !(count - 1);
            runs.note(1, page, (first, count));
            assert_eq!(runs.pages(1, page, 16, false), (count / 2).max(1), "it was gone at once");
            have[nth % streams] = first..first + count;
            counts.push(count);
        }
        counts
    }

    #[test]
    fn runs_grow_in_either_direction_and_nowhere_else() {
        let runs = new_runs();
        let up = brought(&runs, 1, 1024..1024 + 64);
        assert!(up[0] == 1 && up.ends_with(&[16, 16]) && up.len() < 9, "{up:?}");
        let down = brought(&runs, 1, (4096..4096 + 64).rev());
        assert!(down[0] == 1 && down.ends_with(&[16, 16]) && down.len() < 9, "{down:?}");
        let random = brought(&runs, 1, (0..200).map(|page| page * 7919 % 100_003));
        assert!(random.iter().all(|count| *count == 1), "{random:?}");
    }

    #[test]
    fn streams_of_one_region_do_not_forget_each_other() {
        let runs = new_runs();
        // From both ends of an array, and somewhere in it.
        let three = |turn: u64| [turn, 4095 - turn, 1000 + turn * 7919 % 2000];
        let counts = brought(&runs, 3, (0..512).flat_map(three));
        let large = counts.iter().filter(|count| **count == 16).count();
        assert!((2 * 20..).contains(&large), "{large} of {counts:?}");
        let random = counts.iter().filter(|count| **count == 1).count();
        assert!(random > 480, "{random} of {}", counts.len());
    }

    /// Brings what is told for pages at random, each of which brings `used` of its 15 neighbours into use
    /// after so many faults. Tells how many pages came, and how many looks there were.
    fn pages_around(used: u32, later: usize, in_pool: bool) -> (u64, u64) {
        let runs = new_runs();
        let (mut pages, mut counted) = (0, 0);
        let mut touches = VecDeque::new();
        for turn in 0..10_000_u64 {
            while let Some((_, first, touched)) =
                touches.pop_front_if(|touch: &mut (u64, u64, u32)| touch.0 <= turn)
            {
                (0..touched).for_each(|_| _ = runs.touched(first));
            }
            let page = turn * 7919 % 1000;
            let around = runs.around(page, in_pool, false);
            pages += 1 << around.order;
            if around.counted {
                counted += 1;
                let (first, others) = (page >> around.order << around.order, (1 << around.order) - 1);
                runs.probe(first, around.order, others);
                assert!(runs.touched(first), "the one that was wanted");
                touches.push_back((turn + later as u64, first, (others * used).div_ceil(15)));
            }
        }
        (pages, counted)
    }

    #[test]
    fn neighbours_come_where_they_are_used() {
        let (none, few) = pages_around(0, 100, false);
        assert!(none < 15_000 && (200..600).contains(&few), "{none} pages, {few} looks");
        let (some, _) = pages_around(5, 100, false);
        assert!((30_000..50_000).contains(&some), "{some}");
        let (all, looks) = pages_around(15, 100, false);
        assert!(all > 120_000 && looks > 1000, "{all} pages, {looks} looks");
    }

    #[test]
    fn of_the_pool_neighbours_come_only_where_nearly_all_are_used() {
        let (some, looks) = pages_around(8, 100, true);
        assert!(some < 15_000 && looks > 200, "{some} pages, {looks} looks");
        let (all, _) = pages_around(15, 100, true);
        assert!(all > 100_000, "{all}");
    }

    #[test]
    fn neighbours_that_are_used_much_later_do_not_come() {
        let (late, looks) = pages_around(15, 2 * WINDOW, false);
        assert!(late < 15_000 && looks > 200, "{late} pages, {looks} looks");
    }

    /// A table that is used at random, so small that most pages are near the end of a stream, of which
    /// hardly anything stays in memory.
    #[test]
    fn what_is_used_at_random_comes_by_single_pages() {
        let runs = new_runs();
        let mut number = 1_u64;
        let random = (0..20_000).map(|_| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (number >> 33) % 300
        });
        let counts = brought(&runs, 1, random);
        let pages: u64 = counts.iter().sum();
        assert!(pages * 10 < counts.len() as u64 * 12, "{pages} for {}", counts.len());
    }

    #[test]
    fn what_goes_by_advice_while_memory_is_plenty_says_nothing() {
        let runs = new_runs();
        brought(&runs, 1, 1024..1024 + 64);
        let (first, page) = (1088, 1090);
        runs.note(1, first, (first, 16));
        assert_eq!(runs.pages(1, page, 16, false), 8, "memory is short: it came too early");
        assert_eq!(runs.pages(1, page, 16, true), 16);
        let mut neighbours = runs.neighbours.lock();
        let density = neighbours.region(page).touched;
        for turn in 0..20 {
            neighbours.probe(turn << REGION_PAGES, 3, 7);
        }
        neighbours.faults += WINDOW as u64;
        neighbours.end_probes(true);
        let known = (neighbours.probes.len(), neighbours.region(page).touched, neighbours.usual);
        assert_eq!(known, (0, density, DENSE[2].0));
    }

    #[test]
    fn streams_that_ended_make_room() {
        let runs = new_runs();
        for stream in 0..100 {
            let counts = brought(&runs, 1, stream * 160..stream * 160 + 64);
            assert!(counts.ends_with(&[16, 16]), "stream {stream}: {counts:?}");
        }
    }

    #[test]
    fn a_stream_goes_on_behind_what_was_in_memory() {
        let runs = new_runs();
        brought(&runs, 1, 1024..1024 + 64);
        runs.reached(1, 1088, (1088, 16));
        runs.reached(1, 1104, (1104, 1));
        assert_eq!(runs.pages(1, 1105, 16, false), 16);
        assert_eq!(runs.pages(2, 1105, 16, false), 1, "another thread");
        runs.reached(1, 9000, (9000, 1));
        assert_eq!(runs.pages(1, 9001, 16, false), 1, "that was no stream");
    }
}
