//! The program's own changes of its mappings go first.
//!
//! Some requests of the host MMU (write-protecting) take mmap_lock for reading, and send TLB shootdowns
//! while they have it. The lock lets readers pass a sleeping writer for 4 ms (`RWSEM_WAIT_TIMEOUT`), and a
//! writer that is woken may find its processor in use by the thread that woke it. So before a thread
//! write-protects pages that it has moved in, between the steps of growing the arena, and where the manager
//! says so, it checks whether the program wants to change its mappings, and if so lets the program go first
//! (docs/decisions/0013).
//!
//! Synchronization: one atomic, relaxed; it only bounds the time that is given.

use crate::host::Ask;
use elbowroom_sync::atomic::{AtomicU64, Ordering};
use elbowroom_sync::thread::yield_now;
use elbowroom_sync::time::Instant;

/// How long a thread gives way at a time, without the time to get its processor back: a few times as long
/// as a change of mappings takes.
const AT_A_TIME_US: u64 = 100;

/// At most 1/`SHARE` of the time is given, since faults must be served, too, if the program never stops
/// changing its mappings.
const SHARE: u64 = 3;

/// The share is kept over periods of this length, in microseconds.
const OVER_US: u64 = 2000;

/// Whether a change of the program waits, and how much time may be given to it.
pub(crate) struct Way {
    changes_wait: Option<Ask>,
    born: Instant,
    /// No more time is given before this moment, in microseconds since `born`: the time given so far has
    /// then been made up for.
    paid_until: AtomicU64,
}

impl Way {
    /// `changes_wait` tells whether a thread of the program wants to change its mappings; `None`: none ever
    /// does.
    pub(crate) fn new(changes_wait: Option<Ask>) -> Self {
        Self { changes_wait, born: Instant::now(), paid_until: AtomicU64::new(0) }
    }

    /// Yields the processor until no change waits, or the time that may be given is used up.
    #[inline]
    pub(crate) fn give(&self) {
        if let Some(wait) = &self.changes_wait
            && wait()
        {
            self.give_while(wait);
        }
    }

    #[cold]
    fn give_while(&self, wait: &Ask) {
        let now = || self.born.elapsed().as_micros() as u64;
        let begin = now();
        // Two threads that come here at once may both give way: the share need not be exact.
        let paid_until = self.paid_until.load(Ordering::Relaxed);
        if begin < paid_until {
            return;
        }
        let mut end = begin;
        while wait() && end < begin + AT_A_TIME_US {
            // The thread that waits for mmap_lock may have been woken on this processor.
            yield_now();
            end = now();
        }
        let given = (end - begin).min(AT_A_TIME_US);
        let paid_until = paid_until.max(begin.saturating_sub(OVER_US)) + given * SHARE;
        self.paid_until.store(paid_until, Ordering::Relaxed);
    }
}
