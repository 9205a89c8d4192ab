//! Finished reads that an injected fault delays: kept until they are due.

use crate::reactor::ReadDone;
use elbowroom_sync::time::{Duration, Instant};
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Reads to be given back later, by the time at which they are due. Empty unless faults are injected.
#[derive(Default)]
pub(crate) struct HeldReads {
    heap: BinaryHeap<Held>,
    /// Counts the reads that were ever held: of two that are due at the same time, the first comes first.
    sequence: u64,
}

/// A held read, ordered so that the heap's greatest is the one that is due first.
struct Held {
    due: Instant,
    sequence: u64,
    done: ReadDone,
}

impl HeldReads {
    /// Keeps `done` until `delay` after `now`.
    pub(crate) fn hold(&mut self, now: Instant, delay: Duration, done: ReadDone) {
        // A delay that overflows the clock counts as none: no test can have meant it.
        let due = now.checked_add(delay).unwrap_or(now);
        self.sequence += 1;
        self.heap.push(Held { due, sequence: self.sequence, done });
    }

    /// When the next one is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.heap.peek().map(|held| held.due)
    }

    /// The next one that is due at `now`.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<ReadDone> {
        if self.next_due()? <= now { self.heap.pop().map(|held| held.done) } else { None }
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.sequence).cmp(&(self.due, self.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_comes_first_and_not_before_its_time() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        let mut held = HeldReads::default();
        for (token, delay_ms) in [30, 10, 20, 10].into_iter().enumerate() {
            let done = ReadDone { token: token as u64, buf: crate::test_extent::extent(0), result: Ok(0) };
            held.hold(now, ms(delay_ms), done);
        }
        let mut due_at = |after| {
            let due = std::iter::from_fn(|| held.take_due(now + ms(after)));
            due.map(|done| done.token).collect::<Vec<_>>()
        };
        assert_eq!([due_at(9), due_at(10), due_at(25), due_at(60)], [vec![], vec![1, 3], vec![2], vec![0]]);
        assert_eq!(held.next_due(), None);
    }
}
