//! A folio's state in one word: its lock, flags, and the count of faults that hold it.
//!
//! The lock bit orders everything: the thread that sets it owns the folio's frames until it is cleared,
//! during I/O, too. Linux: `PG_locked` and the other page flags, `include/linux/page-flags.h`.

use elbowroom_sync::FlagLock;

/// A flag of a folio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Flag {
    /// The frames hold the file's bytes.
    Uptodate = 1 << 2,
    /// It left the cache: look the page up again.
    Dead = 1 << 3,
    /// It was mapped at least once.
    Used = 1 << 4,
    /// It was touched again after it was unmapped.
    Referenced = 1 << 5,
    /// It is in the active list, or on its way there.
    Active = 1 << 6,
    /// It was read ahead of its reader: the fault that maps it reads on.
    Readahead = 1 << 7,
    /// Its last write-back failed.
    WriteFailed = 1 << 8,
    /// The flusher has been asked to write it.
    Queued = 1 << 9,
    /// It was activated once. Linux: `PG_workingset`.
    Workingset = 1 << 10,
    /// Its bytes are being read from a device, with its lock held; none of its pages is mapped.
    Reading = 1 << 11,
    /// One of its pages may be mapped: set before the lock is let go after mapping it, cleared before a
    /// device has the folio or the lock is let go.
    Mapped = 1 << 13,
    /// Its bytes are being written to a device, with its lock held; none of its pages is mapped. Linux:
    /// `PG_writeback`.
    Writeback = 1 << 12,
    /// It was read as a part of a chunk ([`Learned`](crate::learned::Learned)).
    Chunk = 1 << 16,
    /// Its pages are mapped only as they are touched, to count how many are.
    Sparse = 1 << 15,
    /// Its lock was never let go: the thread that had it has panicked.
    Abandoned = 1 << 14,
}

/// The word, and what its lock guards.
pub struct StateWord<T>(FlagLock<T>);

impl<T> StateWord<T> {
    /// The state of a new folio; the thread that makes it locks it before another thread can find it.
    pub fn new(value: T) -> Self {
        Self(FlagLock::new(value, 0))
    }

    /// The state of a new folio that has its bytes already.
    pub fn uptodate(value: T) -> Self {
        Self(FlagLock::new(value, Flag::Uptodate as u64))
    }

    /// Whether `flag` is set.
    pub fn test(&self, flag: Flag) -> bool {
        self.0.test(flag as u64)
    }

    /// Sets `flag`; tells whether it was set before.
    pub fn set(&self, flag: Flag) -> bool {
        self.0.set(flag as u64)
    }

    /// Clears `flag`; tells whether it was set before.
    pub fn clear(&self, flag: Flag) -> bool {
        self.0.clear(flag as u64)
    }

    /// Keeps reclaim away until [`StateWord::release`].
    pub fn hold(&self) {
        self.0.hold();
    }

    /// Undoes one [`StateWord::hold`].
    pub fn release(&self) {
        self.0.release();
    }

    /// Whether a fault holds the folio ([`StateWord::hold`]).
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// Whether the folio is locked.
    pub fn is_locked(&self) -> bool {
        self.0.is_locked()
    }

    /// Announces a waiter, if the lock is still taken; `false` means: do not wait, try again.
    pub fn announce_waiter(&self) -> bool {
        self.0.announce_waiter()
    }

    /// The lock itself, for [`LockedFolio`](super::LockedFolio).
    pub(super) fn flag_lock(&self) -> &FlagLock<T> {
        &self.0
    }
}
