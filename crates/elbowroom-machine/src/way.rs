//! The program's own changes of its mappings go first.
//!
//! What the host MMU asks of the kernel takes mmap_lock for reading now and then (write-protecting), and
//! interrupts the other processors while it has it. The lock lets readers past a writer that sleeps, for 4 ms
//! (`RWSEM_WAIT_TIMEOUT`), and a writer that is woken up may find its processor taken by who woke it. So
//! before it write-protects what it has moved in, between the steps of growing the arena, and where the
//! manager says so, a thread looks whether the program wants to change its mappings, and if so lets it go
//! first (docs/decisions/0013).
//!
//! Synchronization: one atomic, relaxed; it only keeps the time that is given within bounds.

use elbowroom_sync::atomic::{AtomicU64, Ordering};
use elbowroom_sync::thread::yield_now;
use elbowroom_sync::time::Instant;

/// For how long a thread gives way at a time, but for what it takes to get its processor back: a few times
/// what a change takes.
const AT_A_TIME_US: u64 = 100;

/// One part in this many of a thread's time may be given, since faults must be served, too, if the program
/// never stops changing.
const SHARE: u64 = 3;

/// That is kept over this time.
const OVER_US: u64 = 2000;

/// Whether there is somebody to give way to, and how much of that may be done.
pub(crate) struct Way {
    changes_wait: Option<fn() -> bool>,
    born: Instant,
    /// How far the time that was given is paid back, in microseconds since `born`.
    paid_until: AtomicU64,
}

impl Way {
    /// `changes_wait` tells whether a thread of the program wants to change its mappings; `None`: nobody ever
    /// does.
    pub(crate) fn new(changes_wait: Option<fn() -> bool>) -> Self {
        Self { changes_wait, born: Instant::now(), paid_until: AtomicU64::new(0) }
    }

    /// Yields the processor until nobody waits, or enough was given.
    #[inline]
    pub(crate) fn give(&self) {
        if let Some(wait) = self.changes_wait
            && wait()
        {
            self.give_while(wait);
        }
    }

    #[cold]
    fn give_while(&self, wait: fn() -> bool) {
        let now = || self.born.elapsed().as_micros() as u64;
        let begin = now();
        // Threads that come here together may both give: it is about a share, not a limit.
        let paid_until = self.paid_until.load(Ordering::Relaxed);
        if begin < paid_until {
            return;
        }
        let mut end = begin;
        while wait() && end < begin + AT_A_TIME_US {
            // Who waits may have been woken on this processor.
            yield_now();
            end = now();
        }
        let given = (end - begin).min(AT_A_TIME_US);
        let paid_until = paid_until.max(begin.saturating_sub(OVER_US)) + given * SHARE;
        self.paid_until.store(paid_until, Ordering::Relaxed);
    }
}
