//! The one place where the manager sleeps.
//!
//! Whoever waits for something that somebody announces waits for that: a folio's lock (`page/wait.rs`), the
//! end of a change of a layout ([`Gate`]), the bell of a thread (`core.rs`). What is left is announced by
//! nobody: the kernel does not tell when direct I/O lets go of a page.

use elbowroom_sync::time::Duration;
use elbowroom_sync::{Condvar, LockClass, Mutex, thread};

/// What a thread waits for that nobody announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A page that is pinned, by the kernel for direct I/O or by a pin of a soft space, or whose mapping is
    /// being changed.
    Pinned,
    /// Somebody else does the same thing, and is to get on first.
    Contended,
    /// The kernel has failed where it should not, or has no memory for a mapping.
    Kernel,
    /// The last write-back before the process ends.
    LastFlush,
}

/// Lets `time` pass, to look again then. Not for who has a lock, nor for handlers in the middle of a fault.
pub(crate) fn pause(_cause: Cause, time: Duration) {
    thread::sleep(time);
}

/// The end of something for which threads wait. It is opened once.
pub(crate) struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// A closed one.
    pub(crate) fn new() -> Self {
        Self { open: Mutex::uncounted(LockClass::Queue, false), opened: Condvar::new() }
    }

    /// Opens it.
    pub(crate) fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }

    /// Waits until it is open, or for `bound`.
    pub(crate) fn wait(&self, bound: Duration) {
        // In a model a wait with a bound has none, but a sleep takes time.
        if cfg!(shuttle) {
            return thread::sleep(bound / 100);
        }
        let mut open = self.open.lock();
        if !*open {
            self.opened.wait_timeout(&mut open, bound);
        }
    }
}
