//! How much to read at a fault that must wait for I/O. Plain data.
//!
//! Streams are found per thread and file, so that many threads reading one file do not look random. A read
//! that continues where the last one ended is larger by a factor; anything else starts small. Linux:
//! mm/readahead.c (per open file there).

use crate::ablation::Tuning;
use crate::config::{MAX_FOLIO_PAGES, STORES_IN_A_ROW};
use crate::vma::Pattern;
use std::ops::Range;

#[derive(Clone, Copy, Default)]
struct Stream {
    thread: u32,
    object: u64,
    /// The page after the last read.
    next: u64,
    /// The first page of the last read.
    start: u64,
    /// Pages of the last read; 0: there was none.
    pages: u64,
    /// The page of the last first store, plus 1; 0: there was none.
    stored: u64,
    /// First stores to one page after the other, or as far behind as was guessed.
    stores: u64,
    /// When it was used last, in uses of the table.
    used: u64,
}

/// Streams that a set holds: what is used least recently makes room.
const WAYS: usize = 8;

/// The streams seen last: a set-associative table by a hash of thread and file, so that streams that collide
/// do not forget each other.
pub(crate) struct Streams {
    tuning: Tuning,
    slots: Vec<Stream>,
    uses: u64,
}

impl Streams {
    pub(crate) fn new(tuning: Tuning) -> Self {
        Self { slots: vec![Stream::default(); tuning.stream_slots], tuning, uses: 0 }
    }

    /// The stream's slot, or the one that it may take.
    fn slot(&mut self, thread: u32, object: u64) -> &mut Stream {
        let hash = (object << 32 ^ u64::from(thread)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let first = (hash >> 40) as usize % (self.slots.len() / WAYS) * WAYS;
        self.uses += 1;
        let uses = self.uses;
        let set = &mut self.slots[first..first + WAYS];
        let own = set.iter().position(|s| (s.thread, s.object) == (thread, object) && s.used > 0);
        let oldest = || (0..WAYS).min_by_key(|&i| set[i].used).unwrap_or(0);
        let slot = own.unwrap_or_else(oldest);
        if own.is_some() {
            set[slot].used = uses;
        }
        &mut set[slot]
    }

    /// The same, empty if it was another's.
    fn own(&mut self, thread: u32, object: u64) -> &mut Stream {
        let used = self.uses + 1;
        let slot = self.slot(thread, object);
        if (slot.thread, slot.object) != (thread, object) || slot.used == 0 {
            *slot = Stream { thread, object, used, ..Stream::default() };
        }
        slot
    }

    /// How many pages to read for a fault of `thread` at page `index` of `object`: 1 to `cap`, a power of two
    /// if `cap` is one.
    pub(crate) fn plan(&mut self, thread: u32, object: u64, index: u64, pattern: Pattern, cap: u64) -> u64 {
        let cap = cap.clamp(1, MAX_FOLIO_PAGES);
        let stream = *self.slot(thread, object);
        let known = stream.pages > 0 && (stream.thread, stream.object) == (thread, object);
        let forward = known && index >= stream.start && index.saturating_sub(stream.next) < stream.pages;
        let backward = known && index < stream.start && stream.start - index <= stream.pages;
        let pages = match pattern {
            Pattern::Random => 1,
            Pattern::Sequential => cap,
            Pattern::Detect if forward || backward => stream.pages * self.tuning.read_growth,
            // Whoever begins at the beginning probably goes on.
            Pattern::Detect if index == 0 => self.tuning.first_read_pages * self.tuning.read_growth,
            Pattern::Detect if known => 1,
            Pattern::Detect => self.tuning.first_read_pages,
        };
        pages.min(cap)
    }

    /// Notes that `thread` has reached pages that were in memory already: a stream goes on behind them.
    pub(crate) fn reached(&mut self, thread: u32, object: u64, pages: Range<u64>) {
        let stream = self.slot(thread, object);
        let same = (stream.thread, stream.object) == (thread, object);
        if same && pages.start >= stream.start && pages.start <= stream.next + stream.pages {
            stream.next = stream.next.max(pages.end);
        }
    }

    /// Notes what was read for it.
    pub(crate) fn note(&mut self, thread: u32, object: u64, start: u64, pages: u64) {
        let slot = self.own(thread, object);
        *slot = Stream { next: start + pages, start, pages, ..*slot };
    }

    /// Notes that `thread` makes its first store to page `index` of `object`, and tells to how many pages
    /// behind it it will store, too: 0 up to `most`. None before a few pages in a row; then as many as there
    /// were so far.
    pub(crate) fn store(&mut self, thread: u32, object: u64, index: u64, most: u64) -> u64 {
        let slot = self.own(thread, object);
        let behind = index.wrapping_sub(slot.stored);
        // What was guessed last may have been more than there was room for.
        let goes_on = slot.stored > 0 && behind <= guess(slot.stores, most);
        slot.stores = if goes_on { slot.stores + 1 + behind } else { 1 };
        slot.stored = index + 1;
        guess(slot.stores, most)
    }

    /// If `thread` is reading `object` in sequence and has just come to the end of what was read, where to
    /// read on and how much.
    pub(crate) fn read_on(&mut self, thread: u32, object: u64, reached: u64, cap: u64) -> Option<(u64, u64)> {
        let stream = *self.slot(thread, object);
        let same = (stream.thread, stream.object) == (thread, object);
        let sequential = same
            && stream.pages >= self.tuning.first_read_pages * self.tuning.read_growth
            && stream.next == reached;
        sequential.then(|| {
            (stream.next, (stream.pages * self.tuning.read_growth).min(cap.clamp(1, MAX_FOLIO_PAGES)))
        })
    }
}

/// How many stores to expect after so many in a row.
fn guess(stores: u64, most: u64) -> u64 {
    if stores < STORES_IN_A_ROW { 0 } else { stores.min(most) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_stream_grows_and_a_random_one_stays_small() {
        let mut streams = Streams::new(Tuning::default());
        let mut index = 0;
        let mut sizes = Vec::new();
        for _ in 0..6 {
            let pages = streams.plan(1, 1, index, Pattern::Detect, 512);
            streams.note(1, 1, index, pages);
            sizes.push(pages);
            index += pages;
        }
        assert_eq!(sizes, [16, 64, 256, 512, 512, 512]);
        for i in 0..100_u64 {
            let index = i * 7919 % 100_003 + 10_000;
            let pages = streams.plan(2, 1, index, Pattern::Detect, 512);
            assert!(pages <= if i == 0 { 4 } else { 1 }, "{pages} at {i}");
            streams.note(2, 1, index, pages);
        }
        assert_eq!(
            streams.plan(1, 1, index, Pattern::Detect, 128),
            128,
            "the other thread's stream is its own"
        );
    }

    #[test]
    fn advice_wins() {
        let mut streams = Streams::new(Tuning::default());
        assert_eq!(streams.plan(1, 1, 0, Pattern::Sequential, 256), 256);
        streams.note(1, 1, 0, 256);
        assert_eq!(streams.plan(1, 1, 256, Pattern::Random, 256), 1);
    }

    #[test]
    fn a_stream_whose_readahead_was_lost_goes_on() {
        let mut streams = Streams::new(Tuning::default());
        streams.note(1, 1, 128, 128);
        assert_eq!(streams.plan(1, 1, 128, Pattern::Detect, 512), 512);
    }

    #[test]
    fn a_stream_goes_on_behind_what_was_in_memory() {
        let mut streams = Streams::new(Tuning::default());
        streams.note(1, 1, 128, 128);
        streams.reached(1, 1, 256..384);
        streams.reached(1, 1, 384..512);
        assert_eq!(streams.plan(1, 1, 512, Pattern::Detect, 128), 128);
        streams.reached(1, 1, 5000..5001);
        assert_eq!(streams.plan(1, 1, 5001, Pattern::Detect, 128), 1);
    }

    #[test]
    fn streams_that_collide_keep_apart() {
        let mut streams = Streams::new(Tuning::default());
        for round in 0..64 {
            for thread in 0..400 {
                let pages = streams.plan(thread, 7, round * 64, Pattern::Detect, 64);
                assert!(round < 2 || pages == 64, "thread {thread} in round {round}: {pages}");
                streams.note(thread, 7, round * 64, 64);
            }
        }
    }

    #[test]
    fn a_thread_that_stores_in_a_row_has_pages_made_writable_ahead() {
        let mut streams = Streams::new(Tuning::default());
        let mut index = 7;
        let mut ahead = Vec::new();
        for _ in 0..9 {
            ahead.push(streams.store(1, 1, index, 64));
            index += 1 + ahead.last().unwrap();
        }
        assert_eq!(ahead, [0, 0, 0, 4, 9, 19, 39, 64, 64]);
        // A folio that ended earlier does not end it, another place does.
        index -= 10;
        assert_eq!(streams.store(1, 1, index, 64), 64);
        assert_eq!(streams.store(2, 1, index + 1, 64), 0, "another thread");
        assert_eq!(streams.store(1, 2, index + 1, 64), 0, "another file");
        assert_eq!(streams.store(1, 1, index + 100, 64), 0);
        assert_eq!(streams.store(1, 1, index + 99, 64), 0);
    }

    #[test]
    fn every_second_page_is_not_in_a_row() {
        let mut streams = Streams::new(Tuning::default());
        assert!((0..100).all(|nth| streams.store(1, 1, nth * 2, 64) == 0));
        assert!((0..100).all(|nth| streams.store(2, 1, nth * 7919 % 1009, 64) == 0));
        assert!((0..10).all(|_| streams.store(3, 1, 5, 64) == 0), "one page again and again");
    }

    #[test]
    fn stores_and_reads_of_a_thread_do_not_forget_each_other() {
        let mut streams = Streams::new(Tuning::default());
        streams.note(1, 1, 128, 128);
        (0..4).for_each(|index| _ = streams.store(1, 1, index, 64));
        assert_eq!(streams.plan(1, 1, 256, Pattern::Detect, 512), 512);
        streams.note(1, 1, 256, 512);
        assert_eq!(streams.store(1, 1, 4, 64), 5);
        // Who has only stored begins to read as anybody does.
        assert_eq!(streams.plan(9, 9, 50, Pattern::Detect, 64), 4);
        streams.store(8, 8, 0, 64);
        assert_eq!(streams.plan(8, 8, 50, Pattern::Detect, 64), 4);
    }

    #[test]
    fn backward_streams_grow_too() {
        let mut streams = Streams::new(Tuning::default());
        streams.note(1, 1, 1000, 4);
        assert_eq!(streams.plan(1, 1, 999, Pattern::Detect, 512), 16);
    }

    #[test]
    fn reading_on_starts_only_in_a_stream() {
        let mut streams = Streams::new(Tuning::default());
        streams.note(1, 1, 0, 4);
        assert_eq!(streams.read_on(1, 1, 4, 512), None);
        streams.note(1, 1, 64, 64);
        assert_eq!(streams.read_on(1, 1, 128, 512), Some((128, 256)));
        assert_eq!(streams.read_on(1, 1, 64, 512), None);
    }
}
