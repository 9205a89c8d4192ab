//! The one place where the manager sleeps.
//!
//! A thread that waits for something that another thread announces waits for that: a folio's lock
//! (`page/wait.rs`), the end of a change of a layout ([`Gate`]), the [`Bell`] of a thread. A thread sleeps
//! only for what nothing announces: the kernel does not tell when direct I/O releases a page.

use elbowroom_sync::atomic::{AtomicBool, Ordering};
use elbowroom_sync::time::Duration;
use elbowroom_sync::{Awaited, Condvar, LockClass, LockStats, Mode, Mutex, thread};

/// What a thread waits for that nothing announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A page that is pinned, by the kernel for direct I/O or by a pin of a soft space, or whose mapping is
    /// being changed.
    Pinned,
    /// Another thread does the same thing, and is to get on first.
    Contended,
    /// The kernel has failed where it should not, or has no memory for a mapping.
    Kernel,
    /// Too much is dirty. In models only: elsewhere it is announced when less is.
    Dirty,
    /// Memory that could go is being written.
    Frames,
    /// The thread's group is over its `high`.
    High,
    /// The last write-back before the process ends.
    LastFlush,
}

/// Sleeps for `time`; the caller looks again then. Not for a thread that has a lock, nor for a handler in
/// the middle of a fault.
pub(crate) fn pause(_cause: Cause, time: Duration) {
    thread::sleep(time);
}

/// The end of something for which threads wait. It is opened once.
pub(crate) struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// A closed gate.
    pub(crate) fn new() -> Self {
        Self { open: Mutex::uncounted(LockClass::Sleep, false), opened: Condvar::new() }
    }

    /// Opens it.
    pub(crate) fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }

    /// Waits until it is open, or for `bound`; counted as a wait for a change.
    #[track_caller]
    pub(crate) fn wait(&self, locks: &LockStats, bound: Duration) {
        // In a model a wait with a bound has none, but a sleep takes time.
        if cfg!(shuttle) {
            return thread::sleep(bound / 100);
        }
        let mut open = self.open.lock();
        if !*open {
            let wait = locks.begin_wait(Awaited::Change, Mode::Write);
            self.opened.wait_timeout(&mut open, bound);
            locks.end_wait(wait);
        }
    }
}

/// What a thread sleeps at until other threads give it work.
pub(crate) struct Bell {
    /// It has rung since the thread looked last.
    rung: AtomicBool,
    sleeping: Mutex<()>,
    changed: Condvar,
}

impl Bell {
    pub(crate) fn new(locks: &LockStats) -> Self {
        let sleeping = locks.mutex(LockClass::Sleep, ());
        Self { rung: AtomicBool::new(false), sleeping, changed: Condvar::new() }
    }

    /// Rings it, after work was left under a lock that the thread takes to look for work. Other work may be
    /// missed until the bound of its wait.
    pub(crate) fn ring(&self) {
        // The load comes before the exchange, so that threads that ring again and again write to no shared
        // cache line.
        if !self.rung.load(Ordering::Relaxed) {
            self.ring_for_stop();
        }
    }

    /// Rings it, after something was changed that no lock guards, as `stop` is: the thread sees it.
    pub(crate) fn ring_for_stop(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // With the lock: the thread is either asleep, or has not looked yet.
            let _sleeping = self.sleeping.lock();
            self.changed.notify_all();
        }
    }

    /// Waits until it has rung, or for `bound`, or not at all once `stop` is set.
    pub(crate) fn wait(&self, stop: &AtomicBool, bound: Duration) {
        let mut sleeping = self.sleeping.lock();
        if !self.rung.load(Ordering::Acquire) && !stop.load(Ordering::Acquire) {
            self.changed.wait_timeout(&mut sleeping, bound);
        }
        // Acquire: the thread sees what others did before they rang, those too that found that it had rung
        // already.
        self.rung.swap(false, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_wait_at_a_gate_is_counted_and_none_at_an_open_one() {
        const TIME: Duration = Duration::from_millis(5);
        let (locks, gate) = (LockStats::new(), Gate::new());
        gate.wait(&locks, TIME);
        gate.open();
        gate.wait(&locks, TIME);
        let all = locks.snapshot();
        let [row] = all.rows() else { panic!("{all:?}") };
        assert_eq!((row.lock, row.contended(), row.acquisitions), (Awaited::Change, 1, 0));
        assert!(row.caller.is_some_and(|caller| caller.file() == file!()), "{row:?}");
    }
}
