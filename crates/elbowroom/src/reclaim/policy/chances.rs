//! Whether second chances are worth what they cost.
//!
//! A page that waits on standby was copied home, and is copied again if it is touched. If hardly any of
//! these pages is touched (random reads of far more than memory), it is cheaper to drop pages in their
//! windows at once. Reclaim still gives some pages their chance, to see when that changes.

use crate::config::{CHANCE_BAD_ONE_IN, CHANCE_GOOD_ONE_IN, CHANCE_SAMPLE_ONE_IN};
use elbowroom_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The number of remembered chances: once there are more, the counts are halved.
const WINDOW: u64 = if cfg!(shuttle) { 16 } else { 1024 };

/// Counts of second chances that have ended. Counts that get lost because threads race do no harm.
#[derive(Default)]
pub(crate) struct Chances {
    ended: AtomicU64,
    taken: AtomicU64,
    rarely_taken: AtomicBool,
    turn: AtomicUsize,
}

impl Chances {
    /// Notes that a page's second chance has ended; `taken`: the page was touched.
    pub(crate) fn note(&self, taken: bool) {
        let taken = self.taken.fetch_add(u64::from(taken), Ordering::Relaxed) + u64::from(taken);
        let ended = self.ended.fetch_add(1, Ordering::Relaxed) + 1;
        if ended >= WINDOW / 4 {
            let one_in = if self.are_rarely_taken() { CHANCE_GOOD_ONE_IN } else { CHANCE_BAD_ONE_IN };
            self.rarely_taken.store(taken * one_in < ended, Ordering::Relaxed);
        }
        if ended > WINDOW {
            self.ended.store(WINDOW / 2, Ordering::Relaxed);
            self.taken.store(taken / 2, Ordering::Relaxed);
        }
    }

    /// Whether hardly any second chance was taken lately.
    pub(crate) fn are_rarely_taken(&self) -> bool {
        self.rarely_taken.load(Ordering::Relaxed)
    }

    /// Whether the next page is to get a second chance although hardly any is taken.
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
        assert!(!chances.are_rarely_taken(), "nothing is known");
        (0..2000).for_each(|i| chances.note(i % 100 == 0));
        assert!(chances.are_rarely_taken());
        let given = (0..CHANCE_SAMPLE_ONE_IN * 10).filter(|_| chances.sample()).count();
        assert_eq!(given, 10, "some are still given");
        (0..2000).for_each(|i| chances.note(i % 16 == 0));
        assert!(chances.are_rarely_taken(), "giving them again takes more than going on with them");
        (0..2000).for_each(|i| chances.note(i % 4 == 0));
        assert!(!chances.are_rarely_taken());
        (0..2000).for_each(|i| chances.note(i % 16 == 0));
        assert!(!chances.are_rarely_taken());
    }
}
