//! A lock that is one bit of a word of flags, with the value that it guards.
//!
//! There are so many folios that there is room for no more than a bit each. Linux: `PG_locked` and
//! `PG_waiters` in `page->flags`, mm/filemap.c. The caller keeps the list of waiters: setting the waiters
//! bit fails once the lock bit is clear, and clearing the lock bit tells whether it was set. So a waiter is
//! either seen by the unlocker or sees the unlock.
//!
//! The guard keeps the object that contains the lock (its holder) alive, so it can be passed to another
//! thread: the lock of a folio that is being read goes with the read until that is done.
//!
//! Synchronization: acquire by setting the lock bit, release by clearing it.

use crate::Arc;
use crate::Mutant;
use crate::atomic::{AtomicU64, Ordering};
use crate::cell::UnsafeCell;
use crate::thread;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// In tests of the tests: the lock is released twice; by the second time another thread may have it.
const MUTANT_UNLOCK_TWICE: Mutant = Mutant::new("unlock_twice");

const LOCKED: u64 = 1 << 0;
const WAITERS: u64 = 1 << 1;
const HOLD: u64 = 1 << 32;

/// A lock with its value, flags, and a count of holds.
pub struct FlagLock<T> {
    word: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through the guard, of which there is one at a time.
unsafe impl<T: Send> Send for FlagLock<T> {}
// SAFETY: as above; a reference to the lock alone reaches only the word.
unsafe impl<T: Send> Sync for FlagLock<T> {}

impl<T> FlagLock<T> {
    /// The bits that a caller may use as flags.
    pub const FLAGS: u64 = (HOLD - 1) & !(LOCKED | WAITERS);

    /// An open lock around `value`, with these flags set.
    pub fn new(value: T, flags: u64) -> Self {
        Self { word: AtomicU64::new(flags & Self::FLAGS), value: UnsafeCell::new(value) }
    }

    /// Whether all of `flags` are set.
    #[inline]
    pub fn test(&self, flags: u64) -> bool {
        self.word.load(Ordering::Acquire) & flags == flags
    }

    /// Sets `flags`; tells whether one of them was set before.
    #[inline]
    pub fn set(&self, flags: u64) -> bool {
        let flags = flags & Self::FLAGS;
        self.word.fetch_or(flags, Ordering::AcqRel) & flags != 0
    }

    /// Clears `flags`; tells whether one of them was set before.
    #[inline]
    pub fn clear(&self, flags: u64) -> bool {
        let flags = flags & Self::FLAGS;
        self.word.fetch_and(!flags, Ordering::AcqRel) & flags != 0
    }

    /// Increments the count of holds, until [`FlagLock::release`].
    pub fn hold(&self) {
        self.word.fetch_add(HOLD, Ordering::AcqRel);
    }

    /// Undoes one [`FlagLock::hold`].
    pub fn release(&self) {
        let before = self.word.fetch_sub(HOLD, Ordering::AcqRel);
        debug_assert!(before >= HOLD, "it is released more often than held");
    }

    /// Whether the lock is taken.
    pub fn is_locked(&self) -> bool {
        self.word.load(Ordering::Relaxed) & LOCKED != 0
    }

    /// Whether the count of holds is not 0.
    pub fn is_held(&self) -> bool {
        self.word.load(Ordering::Acquire) >= HOLD
    }

    /// Announces a waiter, if the lock is still taken; `false` means: do not wait, try again.
    pub fn announce_waiter(&self) -> bool {
        // A read-modify-write, though it changes nothing: a thread that takes the lock after this sees what
        // the caller did before.
        let mut word = self.word.fetch_or(0, Ordering::AcqRel);
        loop {
            if word & LOCKED == 0 {
                return false;
            }
            let wanted = word | WAITERS;
            match self.word.compare_exchange_weak(word, wanted, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    fn try_lock(&self) -> bool {
        self.word.fetch_or(LOCKED, Ordering::AcqRel) & LOCKED == 0
    }

    /// Clears the lock bit, with some flags set and some cleared in the same step; tells whether a thread
    /// waits.
    fn unlock(&self, set: u64, clear: u64) -> bool {
        let (set, clear) = (set & Self::FLAGS, clear & Self::FLAGS | LOCKED | WAITERS);
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            debug_assert!(word & LOCKED != 0, "it is unlocked twice");
            let next = word & !clear | set;
            match self.word.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return word & WAITERS != 0,
                Err(now) => word = now,
            }
        }
    }
}

/// The right to a [`FlagLock`]'s value. It keeps the `H` that contains the lock alive.
#[must_use = "the lock is let go at once"]
pub struct FlagGuard<H, T> {
    /// Points into `holder`.
    lock: NonNull<FlagLock<T>>,
    holder: Arc<H>,
}

// SAFETY: the guard is a right to the value and a share of the holder; both may be anywhere.
unsafe impl<H: Send + Sync, T: Send> Send for FlagGuard<H, T> {}
// SAFETY: a shared guard gives shared references to the value and to the holder.
unsafe impl<H: Send + Sync, T: Send + Sync> Sync for FlagGuard<H, T> {}

impl<H, T> FlagGuard<H, T> {
    /// Takes the lock that `lock_of` finds in the holder; gives the holder back if the lock is taken.
    #[inline]
    pub fn try_lock(holder: Arc<H>, lock_of: impl FnOnce(&H) -> &FlagLock<T>) -> Result<Self, Arc<H>> {
        let lock = lock_of(&holder);
        if lock.try_lock() { Ok(Self { lock: NonNull::from(lock), holder }) } else { Err(holder) }
    }

    /// Makes a new holder, with its lock taken by the caller.
    ///
    /// # Panics
    /// If the holder comes with its lock taken.
    pub fn locked(holder: H, lock_of: impl FnOnce(&H) -> &FlagLock<T>) -> Self {
        let holder = Arc::new(holder);
        let lock = lock_of(&holder);
        let (start, at) = (std::ptr::from_ref::<H>(&holder).addr(), std::ptr::from_ref(lock).addr());
        // If the lock is inside the holder that was moved here, no other thread can reach it yet, so no
        // atomic exchange is needed.
        let inside = at >= start && at + size_of::<FlagLock<T>>() <= start + size_of::<H>();
        let word = lock.word.load(Ordering::Relaxed);
        let taken = if inside {
            lock.word.store(word | LOCKED, Ordering::Relaxed);
            word & LOCKED == 0
        } else {
            lock.try_lock()
        };
        assert!(taken, "nobody else knows it yet");
        Self { lock: NonNull::from(lock), holder }
    }

    /// The object that contains the lock.
    pub fn holder(&self) -> &Arc<H> {
        &self.holder
    }

    /// The object that contains the lock, and the value.
    pub fn parts(&mut self) -> (&H, &mut T) {
        // SAFETY: as in `deref_mut`. The holder has the value in a cell of its own, which a reference to the
        // holder does not reach into.
        let value = unsafe { self.lock.as_ref().value.with_mut(|value| &mut *value) };
        (&self.holder, value)
    }

    /// Releases the lock, with the flags `set` set and `clear` cleared in the same step; tells whether a
    /// thread waits.
    pub fn unlock(self, set: u64, clear: u64) -> (Arc<H>, bool) {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the holder, of which `this` has a share, keeps the lock where it is and alive.
        let waited = unsafe { this.lock.as_ref() }.unlock(set, clear);
        if MUTANT_UNLOCK_TWICE.planted() {
            // SAFETY: as above.
            unsafe { this.lock.as_ref() }.word.fetch_and(!LOCKED, Ordering::AcqRel);
        }
        // SAFETY: `this` is not used after, nor dropped.
        (unsafe { std::ptr::read(&this.holder) }, waited)
    }
}

impl<H, T> Deref for FlagGuard<H, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: (1) the lock is alive as long as the holder, of which we have a share. (2) The owner of
        // the guard has set the lock bit, and there is one guard for each time that it was set; so no other
        // thread writes.
        unsafe { self.lock.as_ref().value.with(|value| &*value) }
    }
}

impl<H, T> DerefMut for FlagGuard<H, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; the guard is borrowed mutably, so no thread reads either.
        unsafe { self.lock.as_ref().value.with_mut(|value| &mut *value) }
    }
}

impl<H, T> Drop for FlagGuard<H, T> {
    /// Releases the lock, and wakes no waiter. A thread that panics keeps the lock taken for ever, since
    /// the value may be half changed.
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        // SAFETY: the holder, of which we still have a share, keeps the lock where it is and alive.
        unsafe { self.lock.as_ref() }.unlock(0, 0);
    }
}
