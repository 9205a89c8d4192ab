//! How many of the pages that went out are still out, by the time when they went: at a fault, how many more
//! frames would have kept the page.
//!
//! All pages that were used later than a page that went out were in memory then, and are still, or have gone
//! out after it. So an LRU list with as many more frames as pages that are out have gone after it would have
//! kept it. The refault distance (`shadow`) is larger: it counts a page each time it goes out, and pages
//! that are back. Source: the stack distance of Mattson et al. (Evaluation techniques for storage
//! hierarchies, IBM Systems Journal 9, 1970), of which the part within memory need not be known.
//!
//! Synchronization: atomics. Counts that get lost because threads race do no harm.

use elbowroom_sync::OnceLock;
use elbowroom_sync::atomic::{AtomicU64, Ordering};

/// Times are told apart by so many spans.
const SPANS: u64 = 128;
/// In so many spans as many pages go out as there are frames.
const SPANS_OF_MEMORY: u64 = 16;

/// Counts of the pages that are out.
pub(crate) struct Outside {
    /// How many pages went out so far.
    clock: AtomicU64,
    /// How many pages of a span of the clock are still out. A span's count begins anew after [`SPANS`]. They
    /// are allocated when the first page goes out: most processes never evict anything.
    counts: OnceLock<Box<[AtomicU64]>>,
    /// How many pages go out in a span.
    span: u64,
}

impl Outside {
    /// No page is out, of a memory of so many frames.
    pub(crate) fn new(frames: usize) -> Self {
        Self {
            clock: AtomicU64::new(0),
            counts: OnceLock::new(),
            span: (frames as u64 / SPANS_OF_MEMORY).max(1),
        }
    }

    /// How many pages went out so far.
    pub(crate) fn clock(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Notes that so many pages went out. Returns how many went out so far, these included.
    pub(crate) fn note_out(&self, pages: u64) -> u64 {
        let before = self.clock.fetch_add(pages, Ordering::Relaxed);
        let now = before + pages;
        for span in (self.span_of(before) + 1..=self.span_of(now)).take(SPANS as usize) {
            self.count(span).store(0, Ordering::Relaxed);
        }
        self.count(self.span_of(now)).fetch_add(pages, Ordering::Relaxed);
        now
    }

    /// Notes that so many pages that went out at the time `then` are no longer out.
    pub(crate) fn note_back(&self, then: u64, pages: u64) {
        if self.knows(then) {
            self.count(self.span_of(then)).fetch_sub(pages, Ordering::Relaxed);
        }
    }

    /// How many pages are out that went later than the time `then`; `None`: that is too long ago.
    pub(crate) fn later(&self, then: u64) -> Option<u64> {
        if !self.knows(then) {
            return None;
        }
        let (now, span) = (self.clock(), self.span_of(then));
        // More may have come back than went out, if those were counted that are forgotten.
        let count = |span| (self.count(span).load(Ordering::Relaxed) as i64).max(0) as u64;
        let end = (span * self.span).min(now);
        let (rest, all) = (end.saturating_sub(then), (end + self.span).saturating_sub(span * self.span));
        Some((span + 1..=self.span_of(now)).map(count).sum::<u64>() + count(span) * rest / all.max(1))
    }

    /// How many pages are out, of those that are known.
    #[cfg(test)]
    pub(crate) fn count_all(&self) -> i64 {
        self.counts
            .get()
            .iter()
            .flat_map(|counts| counts.iter())
            .map(|n| n.load(Ordering::Relaxed) as i64)
            .sum()
    }

    /// The number of the span of a time, of which each ends with a multiple of its length.
    fn span_of(&self, time: u64) -> u64 {
        time.div_ceil(self.span)
    }

    fn count(&self, span: u64) -> &AtomicU64 {
        let counts = self.counts.get_or_init(|| (0..SPANS).map(|_| AtomicU64::new(0)).collect());
        &counts[(span % SPANS) as usize]
    }

    fn knows(&self, then: u64) -> bool {
        self.span_of(self.clock()) - self.span_of(then) < SPANS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// An LRU list beside the counts: what a larger list would have kept is what the counts say.
    #[test]
    fn pages_that_are_out_and_went_later_are_as_many_as_a_larger_lru_list_needs() {
        const FRAMES: usize = 256;
        let outside = Outside::new(FRAMES);
        let (mut stack, mut out) = (Vec::<u64>::new(), HashMap::new());
        let mut random = fastrand::Rng::with_seed(1);
        let (mut off, mut seen) = (0, 0);
        for _ in 0..20_000 {
            // Some pages far more often than others.
            let among = 1 << random.u32(4..11);
            let page = random.u64(0..among);
            if let Some(at) = stack.iter().position(|other| *other == page) {
                stack.remove(at);
                if at >= FRAMES {
                    let then = out.remove(&page).unwrap();
                    // Pages that were out for long are not known.
                    if let Some(later) = outside.later(then) {
                        off = off.max(later.abs_diff((at - FRAMES) as u64));
                        seen += 1;
                    }
                    outside.note_back(then, 1);
                }
            }
            stack.insert(0, page);
            if let Some(last) = stack.get(FRAMES).filter(|last| !out.contains_key(*last)) {
                out.insert(*last, outside.note_out(1));
            }
        }
        assert!(seen > 2000, "{seen}");
        assert!(off <= FRAMES as u64 / SPANS_OF_MEMORY, "{off}");
    }

    #[test]
    fn what_went_out_too_long_ago_is_not_known() {
        let outside = Outside::new(16);
        let then = outside.note_out(1);
        assert_eq!(outside.later(then), Some(0));
        outside.note_out(64);
        assert_eq!(outside.later(then), Some(64));
        outside.note_out(64);
        assert_eq!(outside.later(then), None);
        outside.note_back(then, 1);
        assert_eq!(outside.later(outside.clock()), Some(0));
        outside.note_out(1 << 40);
        assert_eq!(outside.later(then), None);
    }
}
