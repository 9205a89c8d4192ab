//! Accesses that found nothing mapped. Plain data.
//!
//! An event of a fault says that a thread waited when the event was read. It may not wait any more when the
//! event is served: another handler has served its page and woken the thread, and then the mapping went. So
//! a fault where nothing is mapped is no proof of a wrong access. Its thread is woken; if it still needs
//! the page, it faults again. If the event of this second fault was read after the first one found nothing,
//! and nothing was mapped at the page since, then no handler can have served it, and the access is wrong.

use elbowroom_sync::time::Instant;
use std::collections::HashMap;
use std::ops::Range;

/// How many threads are remembered, so that there is a bound.
const MOST: usize = 1024;

/// The address at which each thread last found nothing mapped, and when that was seen.
#[derive(Default)]
pub(crate) struct Misses(HashMap<u32, (usize, Instant)>);

impl Misses {
    /// Whether an access at `addr`, whose event was read at `read` or later, is certain to be wrong. The
    /// caller has just found that nothing is mapped there; if the access may be right, that is remembered.
    pub(crate) fn confirm(&mut self, thread: u32, addr: usize, read: Instant) -> bool {
        if let Some(&(missed, when)) = self.0.get(&thread)
            && missed == addr
            && read > when
        {
            self.0.remove(&thread);
            return true;
        }
        // Any entry: with more threads than this a wrong access is found out at a later repetition.
        if self.0.len() >= MOST
            && let Some(other) = self.0.keys().next().copied()
        {
            self.0.remove(&other);
        }
        self.0.insert(thread, (addr, Instant::now()));
        false
    }

    /// Something has been mapped in the range.
    pub(crate) fn mapped(&mut self, range: &Range<usize>) {
        if !self.0.is_empty() {
            self.0.retain(|_, (addr, _)| !range.contains(addr));
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const PAGE: usize = 0x7000;

    #[test]
    fn an_access_is_wrong_that_comes_again_while_nothing_is_mapped() {
        let (mut misses, early) = (Misses::default(), Instant::now());
        assert!(!misses.confirm(1, PAGE, early), "somebody may have served it");
        assert!(!misses.confirm(1, PAGE, early), "an event that was read before tells nothing more");
        assert!(!misses.confirm(2, PAGE, Instant::now()), "another thread");
        let later = Instant::now();
        assert!(!misses.confirm(2, 2 * PAGE, later), "another page");
        assert!(misses.confirm(1, PAGE, later));
        assert!(!misses.confirm(1, PAGE, Instant::now()), "that was then");
    }

    #[test]
    fn what_is_mapped_meanwhile_may_have_served_it() {
        let mut misses = Misses::default();
        assert!(!misses.confirm(1, PAGE, Instant::now()));
        assert!(!misses.confirm(2, 3 * PAGE, Instant::now()));
        misses.mapped(&(PAGE..2 * PAGE));
        assert!(!misses.confirm(1, PAGE, Instant::now()));
        assert!(misses.confirm(2, 3 * PAGE, Instant::now()), "that was elsewhere");
    }

    #[test]
    fn no_more_threads_are_remembered_than_there_is_room_for() {
        let mut misses = Misses::default();
        for thread in 0..3 * MOST as u32 {
            assert!(!misses.confirm(thread, PAGE, Instant::now()));
            assert!(misses.0.len() <= MOST);
        }
        assert!(misses.confirm(3 * MOST as u32 - 1, PAGE, Instant::now()));
    }
}
