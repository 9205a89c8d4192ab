//! Faults that find their page mapped. Plain data.
//!
//! The event of such a fault is late, as a rule: the page was mapped after the kernel reported the fault,
//! and the thread goes on when it is woken. If the thread faults at the page again, either the page was
//! unmapped and mapped again meanwhile, or it is not mapped although the extent says so.

use elbowroom_sync::time::{Duration, Instant};
use std::collections::HashMap;

/// How many threads are remembered, so that there is a bound.
const MOST: usize = 1024;

/// A wakeup this old has helped: if the thread still lacked the page, it would have faulted again within
/// microseconds.
const HELPED: Duration = Duration::from_secs(1);

/// What follows from a fault that finds its page mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeated {
    /// Nothing yet: the event may be late.
    No,
    /// The page is not there.
    Gone,
    /// The page is there, but the thread faults at it again and again all the same.
    ForEver,
}

struct Answered {
    addr: usize,
    /// When the thread was last told to go on.
    when: Instant,
    /// When it was first told to go on in this sequence, in which no wakeup has helped.
    since: Instant,
    count: u64,
}

/// Which thread was told to go on at which page, and how often.
#[derive(Default)]
pub(super) struct Repeats(HashMap<u32, Answered>);

impl Repeats {
    /// Notes that the fault of a thread at `addr`, whose event was read at `read` or later, finds its page
    /// mapped. Tells how often its thread was told to go on there before that, and since when.
    pub(super) fn note(&mut self, thread: u32, addr: usize, read: Instant) -> (u64, Instant) {
        let now = Instant::now();
        if let Some(answered) = self.0.get_mut(&thread)
            && answered.addr == addr
            && read < answered.when + HELPED
        {
            // An event that was read before the last wakeup does not show whether that helped.
            if read > answered.when {
                answered.count += 1;
                answered.when = now;
            }
            return (answered.count, answered.since);
        }
        // Forget any other thread. Its count begins anew then, so a fault that repeats for ever is found
        // later.
        if self.0.len() >= MOST
            && !self.0.contains_key(&thread)
            && let Some(other) = self.0.keys().next().copied()
        {
            self.0.remove(&other);
        }
        self.0.insert(thread, Answered { addr, when: now, since: now, count: 0 });
        (0, now)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const PAGE: usize = 0x7000;

    #[test]
    fn answers_to_one_thread_at_one_page_are_counted() {
        let (mut repeats, early) = (Repeats::default(), Instant::now());
        assert_eq!(repeats.note(1, PAGE, early).0, 0);
        assert_eq!(repeats.note(1, PAGE, early).0, 0, "it was read before the answer");
        assert_eq!(repeats.note(2, PAGE, Instant::now()).0, 0, "another thread");
        let (first, since) = repeats.note(1, PAGE, Instant::now());
        let (second, same) = repeats.note(1, PAGE, Instant::now());
        assert_eq!((first, second, since), (1, 2, same));
        assert_eq!(repeats.note(1, 2 * PAGE, Instant::now()).0, 0, "another page");
        assert_eq!(repeats.note(1, PAGE, Instant::now()).0, 0, "a page in between");
        repeats.note(1, PAGE, Instant::now());
        assert_eq!(repeats.note(1, PAGE, Instant::now() + 2 * HELPED).0, 0, "it went on in between");
        for thread in 0..3 * MOST as u32 {
            repeats.note(thread, PAGE, Instant::now());
            assert!(repeats.0.len() <= MOST);
        }
    }
}
