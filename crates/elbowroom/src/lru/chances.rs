//! Whether second chances are worth what they cost.
//!
//! A page that waits on standby was copied home, and its home must be emptied again if it is touched; where hardly any is (random reads of far more than
//! memory), reclaim does better to drop pages where they are. It goes on giving some of them their chance, to see when that changes.

use crate::config::{CHANCE_SAMPLE_ONE_IN, CHANCE_WORTH_ONE_IN};
use elbowroom_sync::atomic::{AtomicU64, Ordering};

/// So many chances are remembered; then the past counts half.
const WINDOW: u64 = if cfg!(shuttle) { 16 } else { 1024 };

/// Counts of second chances that have ended. Counts that threads lose to each other do no harm.
#[derive(Default)]
pub(crate) struct Chances {
    ended: AtomicU64,
    taken: AtomicU64,
    turn: AtomicU64,
}

impl Chances {
    /// Notes that a page's chance has ended; `taken`: it was touched.
    pub(crate) fn note(&self, taken: bool) {
        if taken {
            self.taken.fetch_add(1, Ordering::Relaxed);
        }
        if self.ended.fetch_add(1, Ordering::Relaxed) >= WINDOW {
            self.ended.store(WINDOW / 2, Ordering::Relaxed);
            self.taken.store(self.taken.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        }
    }

    /// Whether hardly any was taken lately.
    pub(crate) fn are_vain(&self) -> bool {
        let ended = self.ended.load(Ordering::Relaxed);
        ended >= WINDOW / 4 && self.taken.load(Ordering::Relaxed) * CHANCE_WORTH_ONE_IN < ended
    }

    /// Whether the next page is to get one although hardly any is taken.
    pub(crate) fn sample(&self) -> bool {
        self.turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(CHANCE_SAMPLE_ONE_IN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_are_skipped_while_hardly_any_is_taken() {
        let chances = Chances::default();
        assert!(!chances.are_vain(), "nothing is known");
        (0..2000).for_each(|i| chances.note(i % 100 == 0));
        assert!(chances.are_vain());
        let given = (0..CHANCE_SAMPLE_ONE_IN * 10).filter(|_| chances.sample()).count();
        assert_eq!(given, 10, "some are still given");
        (0..2000).for_each(|i| chances.note(i % 4 == 0));
        assert!(!chances.are_vain());
    }
}
