//! How much anonymous memory to bring at a fault: single pages to who touches memory at random, growing runs
//! to who goes through it in order. Plain data.
//!
//! Streams are told apart by thread and by where they are, not by mapping: a sort goes through one array
//! from both ends, a sum through two arrays, both with places at random between. Linux: `swap_vma_readahead`,
//! which has one window for each mapping.

/// Streams that a set holds.
const WAYS: usize = 8;

/// Sets: a power of two.
const SETS: usize = 64;

/// log2 of the pages whose streams are in one set: those of 64 MiB.
const REGION: u32 = 14;

/// A stream that went on is kept for so many uses of its set, before ones that never did.
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

impl Stream {
    /// Whether a fault of `thread` at `page` is its next one, and if so, whether it goes on.
    fn has(&self, thread: u32, page: u64) -> Option<bool> {
        let goes_on = (self.next..self.next + self.pages).contains(&page)
            || (self.start.saturating_sub(self.pages)..self.start).contains(&page);
        let again = (self.start..self.next).contains(&page);
        (self.pages > 0 && self.thread == thread && (goes_on || again)).then_some(goes_on)
    }
}

#[derive(Clone, Copy, Default)]
struct Set {
    uses: u32,
    streams: [Stream; WAYS],
}

impl Set {
    fn find(&mut self, thread: u32, page: u64) -> Option<(&mut Stream, bool)> {
        self.uses = self.uses.wrapping_add(1);
        self.streams.iter_mut().find_map(|stream| stream.has(thread, page).map(|goes_on| (stream, goes_on)))
    }

    /// The one that makes room: the oldest of those that never went on, or not for long; else the oldest.
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

/// The streams of accesses to anonymous memory seen last.
pub(crate) struct Runs {
    sets: Vec<Set>,
}

impl Runs {
    pub(crate) fn new() -> Self {
        Self { sets: vec![Set::default(); SETS] }
    }

    fn set(&mut self, thread: u32, page: u64) -> &mut Set {
        let hash = (page >> REGION << 32 ^ u64::from(thread)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &mut self.sets[(hash >> 40) as usize % SETS]
    }

    /// How many pages to bring for a fault of `thread` at `page`: twice as many as last time, up to `most`,
    /// if a stream goes on there; else 1. [`Runs::note`] is to be told what was brought.
    pub(crate) fn pages(&mut self, thread: u32, page: u64, most: u64) -> u64 {
        match self.set(thread, page).find(thread, page) {
            Some((stream, true)) => (stream.pages * 2).min(most),
            Some((stream, false)) => stream.pages,
            None => 1,
        }
    }

    /// Notes that so many pages from `start` on were brought for a fault of `thread` at `page`.
    pub(crate) fn note(&mut self, thread: u32, page: u64, (start, pages): (u64, u64)) {
        let set = self.set(thread, page);
        let known = set.find(thread, page).is_some();
        let used = set.uses;
        let stream = if known { set.find(thread, page).expect("it was found").0 } else { set.oldest() };
        *stream = Stream { thread, used, start, next: start + pages, pages };
    }

    /// Notes that a fault of `thread` at `page` found these in memory: its stream goes on beyond them.
    pub(crate) fn reached(&mut self, thread: u32, page: u64, (start, pages): (u64, u64)) {
        let set = self.set(thread, page);
        let used = set.uses;
        if let Some((stream, true)) = set.find(thread, page) {
            (stream.start, stream.next, stream.used) = (start, start + pages, used);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// Pages that are brought for a thread that touches those, one after the other, and finds what was
    /// brought last for any of so many streams.
    fn brought(runs: &mut Runs, streams: usize, pages: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut have = vec![0..0; streams];
        let mut counts = Vec::new();
        for (nth, page) in pages.enumerate() {
            if have.iter().any(|have| have.contains(&page)) {
                continue;
            }
            let count = runs.pages(1, page, 16);
            assert_eq!(count, runs.pages(1, page, 16), "asked again");
            let first = page & !(count - 1);
            runs.note(1, page, (first, count));
            assert!(count <= runs.pages(1, page, 16), "asked again, since it was gone at once");
            have[nth % streams] = first..first + count;
            counts.push(count);
        }
        counts
    }

    #[test]
    fn runs_grow_in_either_direction_and_nowhere_else() {
        let mut runs = Runs::new();
        let up = brought(&mut runs, 1, 1024..1024 + 64);
        assert!(up[0] == 1 && up.ends_with(&[16, 16]) && up.len() < 9, "{up:?}");
        let down = brought(&mut runs, 1, (4096..4096 + 64).rev());
        assert!(down[0] == 1 && down.ends_with(&[16, 16]) && down.len() < 9, "{down:?}");
        let random = brought(&mut runs, 1, (0..200).map(|page| page * 7919 % 100_003));
        assert!(random.iter().all(|count| *count == 1), "{random:?}");
    }

    #[test]
    fn streams_of_one_region_do_not_forget_each_other() {
        let mut runs = Runs::new();
        // From both ends of an array, and somewhere in it.
        let three = |turn: u64| [turn, 4095 - turn, 1000 + turn * 7919 % 2000];
        let counts = brought(&mut runs, 3, (0..512).flat_map(three));
        let large = counts.iter().filter(|count| **count == 16).count();
        assert!((2 * 20..).contains(&large), "{large} of {counts:?}");
        let random = counts.iter().filter(|count| **count == 1).count();
        assert!(random > 480, "{random} of {}", counts.len());
    }

    #[test]
    fn streams_that_ended_make_room() {
        let mut runs = Runs::new();
        for stream in 0..100 {
            let counts = brought(&mut runs, 1, stream * 160..stream * 160 + 64);
            assert!(counts.ends_with(&[16, 16]), "stream {stream}: {counts:?}");
        }
    }

    #[test]
    fn a_stream_goes_on_behind_what_was_in_memory() {
        let mut runs = Runs::new();
        brought(&mut runs, 1, 1024..1024 + 64);
        runs.reached(1, 1088, (1088, 16));
        runs.reached(1, 1104, (1104, 1));
        assert_eq!(runs.pages(1, 1105, 16), 16);
        assert_eq!(runs.pages(2, 1105, 16), 1, "another thread");
        runs.reached(1, 9000, (9000, 1));
        assert_eq!(runs.pages(1, 9001, 16), 1, "that was no stream");
    }
}
