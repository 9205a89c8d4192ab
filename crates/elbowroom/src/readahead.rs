//! How much to read at a fault that must wait for I/O. Plain data.
//!
//! Streams are found per thread and file, so that many threads reading one file do not look random. A read
//! that continues where the last one ended is larger by a factor; anything else starts as small as streams of
//! that file usually are. Linux: mm/readahead.c (per open file there, and it always reads around a fault).
//!
//! How long a stream is cannot be seen if it was read ahead, since what is in memory causes no faults. So
//! one in a few streams of a file starts with a single page, whatever is known, and its length is counted.

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
    /// Where it began: the page of its first fault.
    first: u64,
    /// Behind the last page of it that is known to have been used.
    reached: u64,
    /// It was begun with a single page, to see how far it goes.
    sample: bool,
    /// The page of the last first store, plus 1; 0: there was none.
    stored: u64,
    /// Pages stored to in a row: first stores, each to the next page or to one as far behind as was
    /// guessed, and the pages between.
    stores: u64,
    /// When it was used last, in uses of the table.
    used: u64,
}

/// How large a read may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadRoom {
    /// The most pages that it may take.
    pub most: u64,
    /// As many pages as cost nothing but the device's time, since memory is free for them; 1 if none is.
    pub free: u64,
}

/// Streams that a set holds: what is used least recently makes room.
const WAYS: usize = 8;

/// Files whose usual streams are known at a time.
const HABITS: usize = 256;

/// Longer streams count as so long.
const LONGEST_HABIT: u64 = 64;

/// How long the streams of a file usually are.
#[derive(Clone, Copy, Default)]
struct Habit {
    object: u64,
    /// The mean of the logarithms of their lengths, in 16ths, later streams counting more: a few long ones
    /// among many short ones do not count for much.
    log: u64,
    /// Streams that were begun.
    begun: u64,
    /// Streams that were counted.
    counted: u64,
}

impl Habit {
    /// A stream of so many pages has ended.
    fn count(&mut self, pages: u64) {
        let log = 16 * u64::from(pages.clamp(1, LONGEST_HABIT).ilog2());
        self.counted += 1;
        let weight = self.counted.min(8);
        // Rounded, so that a mean can be reached.
        self.log = (self.log * (weight - 1) + log + weight / 2) / weight;
    }

    /// How many pages a stream usually has, as a power of two, and rather more: a page too many costs the
    /// device some 2 us, a read of its own some 100.
    fn pages(&self) -> u64 {
        if self.log < 8 { 1 } else { 1 << self.log.div_ceil(16) }
    }
}

/// The streams seen last: a set-associative table by a hash of thread and file, so that streams that collide
/// do not forget each other.
pub(crate) struct Streams {
    tuning: Tuning,
    slots: Vec<Stream>,
    habits: Vec<Habit>,
    uses: u64,
}

impl Streams {
    pub(crate) fn new(tuning: Tuning) -> Self {
        let habits = vec![Habit::default(); HABITS];
        Self { slots: vec![Stream::default(); tuning.stream_slots], habits, tuning, uses: 0 }
    }

    /// The slot of the thread's stream in the file, or the one that it may take.
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

    /// The slot of the thread's stream in the file, emptied if it was another's.
    fn own(&mut self, thread: u32, object: u64) -> &mut Stream {
        let used = self.uses + 1;
        let slot = self.slot(thread, object);
        if (slot.thread, slot.object) != (thread, object) || slot.used == 0 {
            *slot = Stream { thread, object, used, ..Stream::default() };
        }
        slot
    }

    /// How many pages to read for a fault of `thread` at page `index` of `object`: 1 to `room.most`, a power
    /// of two if both of `room` are.
    pub(crate) fn plan(
        &mut self,
        thread: u32,
        object: u64,
        index: u64,
        pattern: Pattern,
        room: ReadRoom,
    ) -> u64 {
        let cap = room.most.clamp(1, MAX_FOLIO_PAGES);
        let stream = *self.slot(thread, object);
        let known = stream.pages > 0 && (stream.thread, stream.object) == (thread, object);
        // What was read ahead is gone before the thread has come to it.
        let lost = index == stream.start && stream.reached <= index;
        let forward = known && (lost || index >= stream.next && index - stream.next < stream.pages);
        let backward = known && index < stream.start && stream.start - index <= stream.pages;
        let usual = self.habit(object).pages();
        if forward {
            let slot = self.own(thread, object);
            slot.reached = slot.reached.max(index + 1);
        }
        let near_end = usual > 1 && !stream.sample && stream.next.saturating_sub(stream.first) <= usual;
        let pages = match pattern {
            Pattern::Random => 1,
            Pattern::Sequential => cap,
            // Folios are aligned, so the first read may have been only a part of what is usual.
            Pattern::Detect if forward && near_end => stream.pages.max(usual),
            Pattern::Detect if forward || backward => stream.pages * self.tuning.read_growth,
            Pattern::Detect => self.begin(stream, (thread, object), index, known).max(room.free),
        };
        pages.min(cap)
    }

    /// What is known of a file's streams.
    fn habit(&mut self, object: u64) -> &mut Habit {
        let habit = &mut self.habits[object as usize % HABITS];
        if habit.object != object {
            *habit = Habit { object, ..Habit::default() };
        }
        habit
    }

    /// A stream begins at page `index`, and the one that had its slot, `before`, ends: returns how many
    /// pages to read.
    fn begin(&mut self, before: Stream, (thread, object): (u32, u64), index: u64, known: bool) -> u64 {
        let (first_read, growth) = (self.tuning.first_read_pages, self.tuning.read_growth);
        let every = self.tuning.sample_one_in;
        // The same fault asks again, since something was missing.
        let again = known && before.first == index && before.reached == index + 1;
        let habit = self.habit(object);
        if known && before.sample && !again {
            habit.count(before.reached.saturating_sub(before.first));
        }
        habit.begun += u64::from(!again);
        let usual = habit.pages();
        let sampled = habit.counted < every || habit.begun.is_multiple_of(every);
        let sample = if again { before.sample } else { known && index > 0 && sampled };
        let slot = self.own(thread, object);
        (slot.first, slot.reached, slot.sample) = (index, index + 1, sample);
        match known {
            // A stream that begins at the beginning of the file probably goes on.
            _ if index == 0 => first_read * growth,
            true if sample => 1,
            true => usual,
            false => first_read.max(usual),
        }
    }

    /// Notes that `thread` has reached pages that were in memory already: a stream goes on behind them.
    pub(crate) fn reached(&mut self, thread: u32, object: u64, pages: Range<u64>) {
        let stream = self.slot(thread, object);
        let same = (stream.thread, stream.object) == (thread, object);
        if same && pages.start >= stream.start && pages.start <= stream.next + stream.pages {
            stream.next = stream.next.max(pages.end);
            stream.reached = stream.reached.max(pages.start + 1);
        }
    }

    /// Notes what was read for a fault of `thread` in `object`.
    pub(crate) fn note(&mut self, thread: u32, object: u64, start: u64, pages: u64) {
        let slot = self.own(thread, object);
        *slot = Stream { next: start + pages, start, pages, ..*slot };
    }

    /// Notes that `thread` makes its first store to page `index` of `object`, and guesses to how many of
    /// the pages behind it the thread will store, too: 0 up to `most`. 0 before a few pages in a row; then
    /// as many as there were so far.
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

    /// No memory is free.
    fn most(pages: u64) -> ReadRoom {
        ReadRoom { most: pages, free: 1 }
    }

    #[test]
    fn a_sequential_stream_grows_and_a_random_one_stays_small() {
        let mut streams = Streams::new(Tuning::default());
        let mut index = 0;
        let mut sizes = Vec::new();
        for _ in 0..6 {
            let pages = streams.plan(1, 1, index, Pattern::Detect, most(512));
            streams.note(1, 1, index, pages);
            sizes.push(pages);
            index += pages;
        }
        assert_eq!(sizes, [16, 64, 256, 512, 512, 512]);
        for i in 0..100_u64 {
            let index = i * 7919 % 100_003 + 10_000;
            let pages = streams.plan(2, 1, index, Pattern::Detect, most(512));
            assert!(pages <= if i == 0 { 4 } else { 1 }, "{pages} at {i}");
            streams.note(2, 1, index, pages);
        }
        assert_eq!(
            streams.plan(1, 1, index, Pattern::Detect, most(128)),
            128,
            "the other thread's stream is its own"
        );
    }

    /// Reads runs of so many pages at places all over a file as a program does that touches each of their
    /// pages, and gives how many reads and pages each of the last 100 runs took.
    fn runs_of(lengths: &[u64]) -> (f64, f64) {
        let mut streams = Streams::new(Tuning::default());
        let (mut reads, mut read) = (0, 0);
        for run in 0..200_u64 {
            // Away from the last one, and aligned to nothing.
            let first = 1_000 + run * 7919 % 100_003 * 1_001;
            let mut have = 0..0;
            for index in first..first + lengths[run as usize % lengths.len()] {
                if have.contains(&index) {
                    continue;
                }
                let pages = streams.plan(1, 1, index, Pattern::Detect, most(512));
                assert_eq!(pages, streams.plan(1, 1, index, Pattern::Detect, most(512)), "asked again");
                let mut start = index & !(pages - 1);
                let mut order = pages;
                // As where a part is in the cache already.
                while start < have.end && start < index && have.end > first {
                    order /= 2;
                    start = index & !(order.max(1) - 1);
                }
                let order = order.max(1);
                streams.note(1, 1, start, order);
                have = start.min(first)..start + order;
                if run >= 100 {
                    reads += 1;
                    read += order;
                }
            }
        }
        (f64::from(reads) / 100.0, read as f64 / 100.0)
    }

    #[test]
    fn a_stream_begins_with_as_much_as_streams_of_its_file_usually_have() {
        let (reads, pages) = runs_of(&[1]);
        assert_eq!((reads, pages), (1.0, 1.0), "nothing is read that nobody wants");
        let (reads, pages) = runs_of(&[5]);
        assert!(reads < 2.7 && pages < 10.0, "{reads} reads of {pages} pages");
        let (reads, pages) = runs_of(&[125]);
        assert!(reads < 4.5 && pages < 300.0, "{reads} reads of {pages} pages");
        // A few long ones do not make all the others read more.
        let mixed = [1, 1, 1, 1, 1, 60, 1, 1, 1, 1];
        let (_, pages) = runs_of(&mixed);
        assert!(pages < 15.0, "{pages} pages");
    }

    #[test]
    fn a_file_whose_streams_get_shorter_is_noticed() {
        let mut habit = Habit::default();
        (0..20).for_each(|_| habit.count(40));
        assert_eq!(habit.pages(), 32);
        (0..40).for_each(|_| habit.count(1));
        assert_eq!(habit.pages(), 1);
    }

    #[test]
    fn advice_wins() {
        let mut streams = Streams::new(Tuning::default());
        assert_eq!(streams.plan(1, 1, 0, Pattern::Sequential, most(256)), 256);
        streams.note(1, 1, 0, 256);
        assert_eq!(streams.plan(1, 1, 256, Pattern::Random, most(256)), 1);
    }

    #[test]
    fn a_stream_whose_readahead_was_lost_goes_on() {
        let mut streams = Streams::new(Tuning::default());
        streams.note(1, 1, 128, 128);
        assert_eq!(streams.plan(1, 1, 128, Pattern::Detect, most(512)), 512);
    }

    #[test]
    fn a_stream_goes_on_behind_what_was_in_memory() {
        let mut streams = Streams::new(Tuning::default());
        streams.note(1, 1, 128, 128);
        streams.reached(1, 1, 256..384);
        streams.reached(1, 1, 384..512);
        assert_eq!(streams.plan(1, 1, 512, Pattern::Detect, most(128)), 128);
        streams.reached(1, 1, 5000..5001);
        assert_eq!(streams.plan(1, 1, 5001, Pattern::Detect, most(128)), 1);
    }

    #[test]
    fn streams_that_collide_keep_apart() {
        let mut streams = Streams::new(Tuning::default());
        for round in 0..64 {
            for thread in 0..400 {
                let pages = streams.plan(thread, 7, round * 64, Pattern::Detect, most(64));
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
        assert_eq!(streams.plan(1, 1, 256, Pattern::Detect, most(512)), 512);
        streams.note(1, 1, 256, 512);
        assert_eq!(streams.store(1, 1, 4, 64), 5);
        // A thread that has only stored begins to read as any other does.
        assert_eq!(streams.plan(9, 9, 50, Pattern::Detect, most(64)), 4);
        streams.store(8, 8, 0, 64);
        assert_eq!(streams.plan(8, 8, 50, Pattern::Detect, most(64)), 4);
    }

    #[test]
    fn backward_streams_grow_too() {
        let mut streams = Streams::new(Tuning::default());
        streams.note(1, 1, 1000, 4);
        assert_eq!(streams.plan(1, 1, 999, Pattern::Detect, most(512)), 16);
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

    #[test]
    fn while_memory_is_free_more_is_read_at_random_too() {
        let mut streams = Streams::new(Tuning::default());
        let free = ReadRoom { most: 512, free: 32 };
        for i in 0..100_u64 {
            let index = i * 7919 % 100_003 + 10_000;
            assert_eq!(streams.plan(1, 1, index, Pattern::Detect, free), 32);
            streams.note(1, 1, index & !31, 32);
        }
        assert_eq!(streams.plan(1, 1, 500_000, Pattern::Detect, ReadRoom { most: 8, free: 32 }), 8);
        assert_eq!(streams.plan(1, 1, 600_000, Pattern::Random, free), 1, "advice wins");
        // Later nothing is left of it.
        streams.note(1, 1, 500_000, 8);
        let pages: Vec<u64> = (0..20)
            .map(|i| {
                let pages = streams.plan(1, 1, 1_000_000 + i * 7919, Pattern::Detect, most(512));
                streams.note(1, 1, 1_000_000 + i * 7919, pages);
                pages
            })
            .collect();
        assert!(pages[2..].iter().all(|&pages| pages == 1), "{pages:?}");
    }
}
