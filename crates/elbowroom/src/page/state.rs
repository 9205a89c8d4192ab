//! A folio's state in one word: flags, and the count of faults that hold it.
//!
//! The lock bit orders everything: who sets it owns the folio's frames until clearing it, across I/O too.
//! Setting the waiters bit fails once the lock bit is clear, and clearing the lock bit tells whether it was
//! set: so a waiter is either seen by the unlocker or sees the unlock. Linux: `PG_locked` and `PG_waiters`,
//! mm/filemap.c.

use elbowroom_sync::atomic::{AtomicU64, Ordering};

/// A flag of a folio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Flag {
    /// Somebody owns the frames.
    Locked = 1 << 0,
    /// Somebody waits for the lock.
    Waiters = 1 << 1,
    /// The frames hold the file's bytes.
    Uptodate = 1 << 2,
    /// It left the cache: look the page up again.
    Dead = 1 << 3,
    /// It was mapped at least once.
    Used = 1 << 4,
    /// It was touched again after it was unmapped.
    Referenced = 1 << 5,
    /// It is in the active queue, or on its way there.
    Active = 1 << 6,
    /// It was read ahead of its reader: mapping it reads on.
    Readahead = 1 << 7,
    /// Its last write-back failed.
    WriteFailed = 1 << 8,
    /// The flusher has been asked to write it.
    Queued = 1 << 9,
    /// It was activated once. Linux: `PG_workingset`.
    Workingset = 1 << 10,
}

const HOLD: u64 = 1 << 32;

/// The word.
#[derive(Debug)]
pub struct StateWord(AtomicU64);

impl StateWord {
    /// A folio that is being made: locked by its maker.
    pub fn locked() -> Self {
        Self(AtomicU64::new(Flag::Locked as u64))
    }

    /// The same, with its bytes.
    pub fn filled() -> Self {
        Self(AtomicU64::new(Flag::Locked as u64 | Flag::Uptodate as u64))
    }

    /// Whether `flag` is set.
    pub fn test(&self, flag: Flag) -> bool {
        self.0.load(Ordering::Acquire) & flag as u64 != 0
    }

    /// Sets `flag`; tells whether it was set before.
    pub fn set(&self, flag: Flag) -> bool {
        self.0.fetch_or(flag as u64, Ordering::AcqRel) & flag as u64 != 0
    }

    /// Clears `flag`; tells whether it was set before.
    pub fn clear(&self, flag: Flag) -> bool {
        self.0.fetch_and(!(flag as u64), Ordering::AcqRel) & flag as u64 != 0
    }

    /// Takes the lock if it is free. Acquire: what the last owner did is seen.
    pub fn try_lock(&self) -> bool {
        !self.set(Flag::Locked)
    }

    /// Clears the lock; tells whether somebody waits. Release: the next owner sees what this one did.
    pub fn unlock(&self) -> bool {
        let gone = Flag::Locked as u64 | Flag::Waiters as u64;
        let before = self.0.fetch_and(!gone, Ordering::AcqRel);
        debug_assert!(before & Flag::Locked as u64 != 0, "a folio is unlocked twice");
        before & Flag::Waiters as u64 != 0
    }

    /// Announces a waiter, if the lock is still held; `false` means: do not wait, try again.
    pub fn announce_waiter(&self) -> bool {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            if word & Flag::Locked as u64 == 0 {
                return false;
            }
            let wanted = word | Flag::Waiters as u64;
            match self.0.compare_exchange_weak(word, wanted, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Keeps reclaim away until [`StateWord::release`].
    pub fn hold(&self) {
        self.0.fetch_add(HOLD, Ordering::AcqRel);
    }

    /// Undoes one [`StateWord::hold`].
    pub fn release(&self) {
        let before = self.0.fetch_sub(HOLD, Ordering::AcqRel);
        debug_assert!(before >= HOLD, "a folio is released more often than held");
    }

    /// Whether a fault holds it.
    pub fn is_held(&self) -> bool {
        self.0.load(Ordering::Acquire) >= HOLD
    }
}
