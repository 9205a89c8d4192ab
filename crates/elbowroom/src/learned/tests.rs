//! Chunks against a model of a cache: which pages are read for which accesses, and how many faults wait.

use super::*;
use crate::ablation::Tuning;
use crate::readahead::{ReadRoom, Streams};
use crate::vma::Pattern;
use std::collections::{BTreeMap, VecDeque};

const FILE: u64 = 7;

/// A cache of one file that evicts what came first, and reads as faults do.
struct Cache {
    learned: Learned,
    streams: Streams,
    /// By first page: how many pages, and whether the folio was accessed, and read as a part of a chunk.
    folios: BTreeMap<u64, (u64, bool, bool)>,
    came: VecDeque<u64>,
    pages: u64,
    room: u64,
    size: u64,
    /// Whether chunks are read whole.
    is_on: bool,
    thread: u32,
    /// What happened: pages that were read, faults that waited, pages that were wanted and were not there.
    read: u64,
    waits: u64,
    wanted: u64,
}

impl Cache {
    fn new(room: u64, size: u64, is_on: bool) -> Self {
        Self {
            learned: Learned::new((room as usize) << 12, &LockStats::default()),
            streams: Streams::new(Tuning::default()),
            folios: BTreeMap::new(),
            came: VecDeque::new(),
            pages: 0,
            room,
            size,
            is_on,
            thread: 1,
            read: 0,
            waits: 0,
            wanted: 0,
        }
    }

    fn folio(&self, page: u64) -> Option<(u64, u64)> {
        let (&first, &(pages, ..)) = self.folios.range(..=page).next_back()?;
        (page < first + pages).then_some((first, pages))
    }

    fn is_mapped(&self, page: u64) -> bool {
        self.folio(page).is_some_and(|(first, _)| self.folios[&first].1)
    }

    fn insert(&mut self, page: u64, order: u8, of_chunk: bool) -> Range<u64> {
        let is_free = |order: &u8| {
            let first = page >> order << order;
            let last = first + (1 << order) - 1;
            last < self.size && self.folio(last).is_none() && self.folios.range(first..=last).next().is_none()
        };
        let order = (1..=order).take_while(is_free).last().unwrap_or(0);
        let first = page >> order << order;
        while self.pages + (1 << order) > self.room {
            let gone = self.came.pop_front().unwrap();
            let (pages, used, _) = self.folios.remove(&gone).unwrap();
            self.pages -= pages;
            if !used {
                self.learned.unused(FILE, gone..gone + pages);
            }
        }
        self.folios.insert(first, (1 << order, false, of_chunk));
        self.came.push_back(first);
        self.pages += 1 << order;
        self.read += 1 << order;
        first..first + (1 << order)
    }

    fn fault(&mut self, page: u64) {
        self.waits += 1;
        let most = self.room / 8;
        let to_read = self.learned.to_read(self.thread, (FILE, page), most, |page| self.is_mapped(page));
        let Some(chunk) = to_read.clone().ok().filter(|_| self.is_on) else {
            let room = ReadRoom { most: 512.min(self.room / 4), free: 1 };
            let pages = self.streams.plan(self.thread, FILE, page, Pattern::Detect, room);
            let before = to_read.err().filter(|_| self.is_on).unwrap_or(0);
            let pages = pages.max((before * Tuning::default().read_growth).min(room.most));
            let came = self.insert(page, pages.ilog2() as u8, false);
            return self.streams.note(self.thread, FILE, came.start, came.end - came.start);
        };
        assert!(chunk.pages.start == page && chunk.pages.end - page <= most, "{chunk:?}");
        let end = chunk.pages.end.min(self.size);
        let first = self.insert(page, chunk.part_order(page, 6), false);
        self.streams.note(self.thread, FILE, first.start, first.end - first.start);
        let mut at = first.end;
        while at < end {
            at = match self.folio(at) {
                Some((first, pages)) => first + pages,
                None => {
                    let part = self.insert(at, chunk.part_order(at, 9), true);
                    self.learned.note_read(FILE, part.end - part.start);
                    part.end
                }
            };
        }
    }

    fn access(&mut self, page: u64) {
        let there = self.folio(page).is_some();
        if !there {
            self.wanted += 1;
            self.fault(page);
        }
        let (first, pages) = self.folio(page).unwrap();
        let folio = self.folios.get_mut(&first).unwrap();
        let of_chunk = folio.2;
        if !std::mem::replace(&mut folio.1, true) {
            let of = first..first + pages;
            if there {
                self.streams.reached(self.thread, FILE, of.clone());
            }
            let thread = self.thread;
            let access = Reached { thread, index: page, folio: of, is_first: true, of_chunk };
            self.learned.touched(FILE, &access, |page| self.is_mapped(page));
        }
    }

    /// What was counted since the last call: pages that were read, and faults that waited.
    fn counted(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.read), std::mem::take(&mut self.waits))
    }
}

/// Chunks of these lengths, one behind the other, in a file of `size` pages.
fn chunks(lengths: impl Fn(u64) -> u64, size: u64) -> Vec<Range<u64>> {
    let (mut all, mut at) = (Vec::new(), 3);
    while at + lengths(at) <= size {
        let end = at + lengths(at);
        all.push(at..end);
        at = end;
    }
    all
}

fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// Goes through chunks at random, so many times; returns pages read for each page of the chunks that was not
/// there when an access came to its chunk, and faults for each chunk.
fn go_through(cache: &mut Cache, chunks: &[Range<u64>], times: u64, seed: &mut u64) -> (f64, f64) {
    cache.counted();
    let mut missing = 0;
    for _ in 0..times {
        let chunk = &chunks[random(seed) as usize % chunks.len()];
        missing += chunk.clone().filter(|page| cache.folio(*page).is_none()).count();
        chunk.clone().for_each(|page| cache.access(page));
    }
    let (read, waits) = cache.counted();
    (read as f64 / missing.max(1) as f64, waits as f64 / times as f64)
}

/// Rounds through chunks of these lengths, in a file that is four times the cache: pages read for each one
/// that was missing, and faults for each chunk, round by round.
fn rounds(lengths: impl Fn(u64) -> u64, size: u64, rounds: usize, is_on: bool) -> Vec<(f64, f64)> {
    let all = chunks(lengths, size);
    let (mut cache, mut seed) = (Cache::new(size / 4, size, is_on), 7);
    (0..rounds).map(|_| go_through(&mut cache, &all, all.len() as u64, &mut seed)).collect()
}

#[test]
fn chunks_that_were_read_before_are_read_with_one_fault_and_nothing_else() {
    for (pages, most) in [(75, 1.25), (256, 1.1), (704, 1.1), (3840, 1.1)] {
        let size = (pages * 150).max(100_000);
        let on = rounds(|_| pages, size, 8, true);
        let off = rounds(|_| pages, size, 2, false);
        // Nothing is known in the first round; in the second one half of the chunks.
        assert!(on[0].0 < off[0].0 * 1.1 && on[0].1 < off[0].1 * 1.1, "{pages}: {on:?}, off {off:?}");
        assert!(on[2].1 < off[1].1 * 0.7, "{pages}: {on:?}, off {off:?}");
        let (read, waits) = on[7];
        assert!(read < most && waits < 1.2, "{pages}: {on:?}, off {off:?}");
    }
}

#[test]
fn chunks_of_many_sizes_are_told_apart() {
    let lengths = |at: u64| 75 + (at ^ at >> 5).wrapping_mul(0x9E37_79B9) % 3700;
    let on = rounds(lengths, 300_000, 8, true);
    assert!(on.iter().all(|round| round.0 < 1.3) && on[7].0 < 1.1 && on[7].1 < 1.5, "{on:?}");
}

#[test]
fn pages_at_random_are_read_alone() {
    let size = 100_000;
    // What is read in each of so many accesses, for each page that was missing.
    let read = |cache: &mut Cache, seed: &mut u64| {
        cache.counted();
        cache.wanted = 0;
        (0..50_000).for_each(|_| cache.access(random(seed) % size));
        cache.counted().0 as f64 / cache.wanted as f64
    };
    let (mut cache, mut seed) = (Cache::new(size / 4, size, true), 5);
    for _ in 0..4 {
        let read = read(&mut cache, &mut seed);
        assert!(read < 1.1, "{read}");
    }
    // Also where all pages were gone through in order before; the first reads show that this is over.
    let after = [true, false].map(|is_on| {
        let (mut cache, mut seed) = (Cache::new(size / 4, size, is_on), 5);
        (0..2 * size).for_each(|page| cache.access(page % size));
        [(); 3].map(|()| read(&mut cache, &mut seed))
    });
    let [on, off] = after;
    let mean = on.iter().sum::<f64>() / 3.0;
    assert!(mean < 1.1 && on[2] < 1.05, "{on:?}, off {off:?}");
}

#[test]
fn what_is_no_longer_read_whole_is_forgotten() {
    let (pages, size) = (704, 704 * 150);
    let all = chunks(|_| pages, size);
    let (mut cache, mut seed) = (Cache::new(size / 4, size, true), 3);
    (0..6).for_each(|_| _ = go_through(&mut cache, &all, 150, &mut seed));
    // Only the first sixteen pages of each chunk from now on.
    let firsts: Vec<_> = all.iter().map(|chunk| chunk.start..chunk.start + 16).collect();
    let parts = [(); 8].map(|()| go_through(&mut cache, &firsts, 600, &mut seed).0);
    assert!(parts[7] < 4.0, "{parts:?}");
    // And all again.
    let whole = [(); 8].map(|()| go_through(&mut cache, &all, 150, &mut seed));
    assert!(whole[7].0 < 1.1 && whole[7].1 < 1.3, "{whole:?}");
}

/// An access to the first of these pages, which are a folio.
fn touch(learned: &Learned, object: u64, folio: Range<u64>) {
    let access = Reached { thread: 1, index: folio.start, folio, is_first: true, of_chunk: false };
    learned.touched(object, &access, |_| false);
}

#[test]
fn a_chunk_is_bounded_by_the_file_and_by_what_may_be_read() {
    let learned = Learned::new(1 << 30, &LockStats::default());
    for _ in 0..2 {
        for page in (64..4096).step_by(16) {
            touch(&learned, FILE, page..page + 16);
        }
        // Time passes.
        (0..1000).for_each(|_| touch(&learned, FILE, 0..1));
    }
    let to_read = |file, page, most| learned.to_read(1, (file, page), most, |_| false);
    let chunk = |most| to_read(FILE, 64, most).unwrap().pages;
    assert_eq!(chunk(1 << 20), 64..4096);
    assert_eq!(chunk(100), 64..164);
    assert_eq!(to_read(FILE, 80, 100), Err(0), "accesses begin at page 64");
    // Where the pages before are mapped, the access has come through them.
    assert_eq!(learned.to_read(1, (FILE, 96), 100, |page| page < 96).unwrap().pages, 96..196);
    assert_eq!(to_read(FILE + 1, 64, 100), Err(0), "nothing is known of another file");
}

#[test]
fn what_is_known_has_a_bound() {
    let budget = 64 << 20;
    let learned = Learned::new(budget, &LockStats::default());
    for page in (0..1 << 28).step_by(1 << 12) {
        touch(&learned, FILE, page..page + 1);
    }
    let table = learned.0.lock();
    let leaves: usize = table.sets.iter().map(Vec::len).sum();
    let others = table.touches.len() * size_of::<Touch>() + size_of_val(&table.files);
    let bytes = leaves * size_of::<Leaf>() + others;
    assert!(leaves > 0 && bytes <= budget / BUDGET_SHARE, "{leaves} leaves, {bytes} bytes");
    assert!(LEAST_SETS * WAYS * size_of::<Leaf>() + others <= 40 << 10);
}

#[test]
fn files_whose_entries_collide_do_not_disturb_each_other() {
    let learned = Learned::new(64 << 20, &LockStats::default());
    let slot = |object: u64| hash(object, 0) as usize % FILES;
    let other = (FILE + 1..).find(|other| slot(*other) == slot(FILE)).unwrap();
    touch(&learned, other, 0..1);
    (0..1000).for_each(|nth| touch(&learned, FILE, nth * 160..nth * 160 + 1));
    // The clock of the other file has not begun anew.
    touch(&learned, other, 16..17);
    assert!(!learned.0.lock().is_linked(other, 1), "the access goes on with one of long ago");
}

#[test]
fn small_files_are_not_read_again_and_again_for_pages_at_random() {
    // A read of such a file is nearly all of it, so each access is near what was read last.
    let mut streams = Streams::new(Tuning::default());
    let (mut seed, mut read) = (1, 0);
    for nth in 0..4_000_u64 {
        let (file, page) = (nth % 30, random(&mut seed) % 1024);
        let pages = streams.plan(1, file, page, Pattern::Detect, ReadRoom { most: 512, free: 1 });
        streams.note(1, file, page & !(pages - 1), pages);
        read += pages;
    }
    assert!(read < 16_000, "{read} pages for 4000 accesses");
}

/// Reads chunks with threads that take turns within each, each with so many pages at a time: faults for each
/// chunk, round by round.
fn turns(pages: u64, rounds: u64) -> Vec<f64> {
    let (size, mut seed) = (704 * 150, 7);
    let all = chunks(|_| 704, size);
    let mut cache = Cache::new(size / 4, size, true);
    let mut round = || {
        for _ in 0..all.len() {
            let chunk = &all[random(&mut seed) as usize % all.len()];
            for page in chunk.clone() {
                cache.thread = 1 + ((page - chunk.start) / pages % 2) as u32;
                cache.access(page);
            }
        }
        cache.counted().1 as f64 / all.len() as f64
    };
    (0..rounds).map(|_| round()).collect()
}

#[test]
fn threads_that_take_turns_within_a_chunk_are_one_reader() {
    for pages in [1, 4, 16] {
        let faults = turns(pages, 8);
        let late = faults[4..].iter().sum::<f64>() / 4.0;
        assert!(faults[0] < 10.0 && late < 1.6, "turns of {pages}: {faults:?}");
    }
}

/// Reads chunks with threads at the same time: each takes the next block of so many pages of the chunk, goes
/// through it, and takes another, as matrix products do. Faults for each chunk, and pages read for each page
/// that was missing, round by round.
/// `shared`: the last page of each chunk is the first one of the next chunk.
fn blocks(threads: usize, pages: u64, shared: bool, rounds: u64) -> Vec<(f64, f64)> {
    let (size, mut seed) = (704 * 150, 7);
    let all = chunks(|_| 704, size);
    let mut cache = Cache::new(size / 4, size, true);
    let mut round = || {
        let mut missing = 0;
        for _ in 0..all.len() {
            let chunk = all[random(&mut seed) as usize % all.len()].clone();
            let chunk = chunk.start..(chunk.end + u64::from(shared)).min(size);
            missing += chunk.clone().filter(|page| cache.folio(*page).is_none()).count();
            let mut next = chunk.start;
            let mut own: Vec<Range<u64>> = vec![0..0; threads];
            while next < chunk.end || own.iter().any(|own| !own.is_empty()) {
                let nth = random(&mut seed) as usize % threads;
                if own[nth].is_empty() {
                    own[nth] = next..(next + pages).min(chunk.end);
                    next = own[nth].end;
                }
                cache.thread = 1 + nth as u32;
                own[nth].next().into_iter().for_each(|page| cache.access(page));
            }
        }
        let (read, waits) = cache.counted();
        (waits as f64 / all.len() as f64, read as f64 / missing.max(1) as f64)
    };
    (0..rounds).map(|_| round()).collect()
}

#[test]
fn threads_that_take_blocks_of_a_chunk_at_the_same_time_are_one_reader() {
    let all = [(2, 16, false), (2, 32, true), (2, 44, false), (4, 32, false), (8, 20, true), (2, 128, false)];
    for (threads, pages, shared) in all {
        let rounds = blocks(threads, pages, shared, 8);
        let mean = |what: fn(&(f64, f64)) -> f64| rounds[5..].iter().map(what).sum::<f64>() / 3.0;
        let (faults, read) = (mean(|round| round.0), mean(|round| round.1));
        let most = if threads > 4 { 2.5 } else { 1.5 };
        assert!(faults < most && read < 1.1, "{threads} threads, blocks of {pages}, {shared}: {rounds:?}");
    }
}

#[test]
fn threads_that_read_neighbouring_chunks_at_the_same_time_are_two_readers() {
    let (learned, chunk) = (Learned::new(64 << 20, &LockStats::default()), 160);
    let touch = |thread, page: u64| {
        let access = Reached { thread, index: page, folio: page..page + 1, is_first: true, of_chunk: false };
        learned.touched(FILE, &access, |_| false);
    };
    let time_passes = || (0..100).for_each(|_| touch(9, 100 * chunk));
    let knows = |nth: u64| {
        let to_read = learned.to_read(3, (FILE, nth * chunk), 1 << 20, |_| false);
        to_read.is_ok_and(|read| read.pages == (nth * chunk..(nth + 1) * chunk))
    };
    for nth in [2, 1, 0] {
        (nth * chunk..(nth + 1) * chunk).for_each(|page| touch(1, page));
        time_passes();
    }
    assert!(knows(0) && knows(1));
    for (first, second) in [(0, 1), (1, 0), (0, 1), (1, 0), (1, 0)] {
        for page in 0..chunk {
            touch(1, first * chunk + page);
            touch(2, second * chunk + page);
        }
        time_passes();
        assert!(knows(0) && knows(1), "{first} before {second}");
    }
}

#[test]
fn threads_that_read_pages_at_random_are_not_taken_for_one_reader() {
    let size = 100_000;
    let (mut cache, mut seed) = (Cache::new(size / 4, size, true), 5);
    (0..2 * size).for_each(|page| cache.access(page % size));
    let mut read = || {
        cache.counted();
        cache.wanted = 0;
        for _ in 0..50_000 {
            cache.thread = 1 + (random(&mut seed) % 16) as u32;
            cache.access(random(&mut seed) % size);
        }
        cache.counted().0 as f64 / cache.wanted as f64
    };
    let rounds = [(); 3].map(|()| read());
    assert!(rounds.iter().sum::<f64>() / 3.0 < 1.1 && rounds[2] < 1.05, "{rounds:?}");
}
