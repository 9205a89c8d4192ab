//! The layout lock: a reader-writer lock with a queue, and the sequence number that ends all VMA locks at
//! once.
//!
//! Linux: `mmap_lock` with `mm_lock_seq` (include/linux/mmap_lock.h). [`LayoutLock::write`] is
//! `mmap_write_lock`, and the end of its guard is `vma_end_write_all` and `mmap_write_unlock`. Neighbour:
//! `slots`, whose VMA locks compare their marks with the sequence.
//!
//! # Who gets it
//! Who finds the lock free, and nobody queued, takes it with one compare-and-swap. Everybody else looks
//! around for a moment, draws a ticket, and sleeps until it is the head of the queue and the lock is free.
//!
//! Who leaves wakes the head, but leaves the lock free: until the head runs, a writer that comes by may take
//! it. Such a thief has a processor, and is done before a wake-up is. If each release gave the lock to a
//! thread that sleeps, nobody would be inside until that one runs, everybody would come to sleep behind it,
//! and each release would cost a wake-up: a lock convoy. A head that finds a thief inside sleeps again, and
//! is woken again. Linux does so too (kernel/locking/rwsem.c, `RWSEM_FLAG_HANDOFF`) and ends it by time. Here
//! a count ends it: after [`MAX_STEALS`] thefts in a row the lock is the head's, even if that still sleeps.
//!
//! * Those who wait are let in in the order of their tickets, readers that stand together all at once.
//! * Between one of those and the next at most [`MAX_STEALS`] writers enter without a ticket. So who has `n`
//!   before it in the queue is overtaken by at most `(n + 1) * MAX_STEALS` writers.
//! * A reader overtakes nobody who waits.
//!
//! # The word
//! `WRITER` | `QUEUED` | `AWAKE` | count of thefts | count of readers. It is changed by read-modify-writes
//! only, and `QUEUED` and `AWAKE` under the queue's mutex only. `QUEUED` says that the queue is not empty,
//! and keeps readers out. `AWAKE` says that the head is awake and will look at the word once more, so nobody
//! else needs to wake it. Thefts are counted while `QUEUED` is set, and from 0 again when the head enters; so
//! there are none while readers are inside. `queue` says why no wake-up is lost.

mod queue;

use crate::Mutant;
use crate::atomic::{AtomicU64, Ordering};
use crate::cell::UnsafeCell;
use crate::contention::{Hold, LockStats, Mode};
use crate::lock::{LockClass, order, sys};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::Location;

use self::queue::{LANES, Queue};

/// A writer is inside.
const WRITER: u64 = 1 << 63;
/// Somebody waits: nobody enters past the queue, thieves excepted.
const QUEUED: u64 = 1 << 62;
/// The head of the queue is awake and will look: nobody needs to wake it.
const AWAKE: u64 = 1 << 61;
/// One writer that took the lock past the queue. Seven bits count them.
const THEFT: u64 = 1 << 54;
const THEFTS: u64 = AWAKE - THEFT;
/// One reader. Their count cannot reach `THEFT`, even if each forgets its guard: that takes more than ten
/// years.
const READER: u64 = 1;
const READERS: u64 = THEFT - READER;

/// How many writers may take a [`LayoutLock`] past those who wait, until the first of those is let in. Few in
/// models, which go through them.
pub const MAX_STEALS: u64 = if cfg!(any(loom, shuttle)) { 1 } else { 64 };
const _: () = assert!(MAX_STEALS <= THEFTS / THEFT);

/// How often a reader tries to enter among other readers, before it goes by the queue's mutex, where nobody
/// else joins.
const READ_TRIES: u32 = 16;

/// In tests of the tests: readers enter although somebody is queued.
const MUTANT_OVERTAKE: Mutant = Mutant::new("overtake");
/// In tests of the tests: the last reader to leave wakes nobody.
const MUTANT_NO_HAND_OVER: Mutant = Mutant::new("no_hand_over");
/// In tests of the tests: a writer that leaves wakes nobody.
const MUTANT_NO_WAKE_HEAD: Mutant = Mutant::new("no_wake_head");

/// What readers of VMAs look at, on a line that changes only when a write ends.
#[repr(align(64))]
struct Current {
    /// Which lock this is: no two have the same in one process.
    id: u64,
    sequence: AtomicU64,
}

#[repr(align(64))]
struct Word(AtomicU64);

/// A reader-writer lock of the class [`LockClass::Layout`] around a `T`, with a queue and a sequence number.
///
/// Who waits is let in in the order of arrival, and overtaken by at most [`MAX_STEALS`] writers, and as many
/// more for each thread that waits before it. Readers overtake nobody.
///
/// A panic while it is held does not poison it. A thread that holds it must not take it again, not even for
/// reading.
pub struct LayoutLock<T> {
    current: Current,
    word: Word,
    queue: sys::Mutex<Queue>,
    lanes: [sys::Condvar; LANES],
    stats: LockStats,
    data: UnsafeCell<T>,
}

// SAFETY: the lock owns its `T`, so it may move to another thread if the `T` may.
unsafe impl<T: Send> Send for LayoutLock<T> {}
// SAFETY: `&T` is given to several threads at a time (`T: Sync`), `&mut T` to one at a time, whichever it is
// (`T: Send`).
unsafe impl<T: Send + Sync> Sync for LayoutLock<T> {}

impl LockStats {
    /// A layout lock around `value`, counted here under [`LockClass::Layout`].
    pub fn layout_lock<T>(&self, value: T) -> LayoutLock<T> {
        // Not the facade's: only the difference matters, and the number outlives a model's run.
        static NEXT_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        LayoutLock {
            current: Current {
                id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                sequence: AtomicU64::new(FIRST_SEQUENCE),
            },
            word: Word(AtomicU64::new(0)),
            queue: sys::Mutex::new(Queue::new()),
            lanes: std::array::from_fn(|_| sys::Condvar::new()),
            stats: self.clone(),
            data: UnsafeCell::new(value),
        }
    }
}

/// Marks begin at 0, so that what was never locked is not locked.
const FIRST_SEQUENCE: u64 = 1;

impl<T> LayoutLock<T> {
    /// Takes the lock for writing, past those who wait if it is free and they were not overtaken too often,
    /// else waiting for them.
    ///
    /// # Panics
    /// In debug builds, if this thread holds a lock of the class `layout` or a later one.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> LayoutWrite<'_, T> {
        order::before_lock(LockClass::Layout);
        let caller = Location::caller();
        if self.word.0.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.enter_slowly(Mode::Write, caller);
        }
        order::locked(LockClass::Layout);
        let hold = self.stats.acquired(LockClass::Layout, Mode::Write, caller);
        LayoutWrite { lock: self, hold, thread: PhantomData }
    }

    /// Takes the lock for reading, waiting for everybody who came before, other readers excepted if nobody
    /// waits.
    ///
    /// # Panics
    /// As [`LayoutLock::write`].
    #[inline]
    #[track_caller]
    pub fn read(&self) -> LayoutRead<'_, T> {
        order::before_lock(LockClass::Layout);
        let caller = Location::caller();
        if !self.join_readers() {
            self.enter_slowly(Mode::Read, caller);
        }
        order::locked(LockClass::Layout);
        let hold = self.stats.acquired(LockClass::Layout, Mode::Read, caller);
        LayoutRead { lock: self, hold, thread: PhantomData }
    }

    /// The number of the current or next write. What is marked with it is write-locked.
    ///
    /// Acquire: who sees that a write has ended sees all that it changed.
    #[inline]
    pub fn sequence(&self) -> u64 {
        self.current.sequence.load(Ordering::Acquire)
    }

    /// What counts how it is used.
    #[inline]
    pub(crate) fn stats(&self) -> &LockStats {
        &self.stats
    }

    /// How many threads wait for the lock now: models and tests let one come after another.
    #[cfg(any(test, loom))]
    pub fn waiters(&self) -> usize {
        self.queue().len()
    }

    /// Which lock this is.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.current.id
    }

    fn queue(&self) -> sys::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    #[inline]
    fn join_readers(&self) -> bool {
        let closed = if MUTANT_OVERTAKE.planted() { WRITER } else { WRITER | QUEUED };
        let mut word = self.word.0.load(Ordering::Relaxed);
        for _ in 0..READ_TRIES {
            if word & closed != 0 {
                return false;
            }
            match self.word.0.compare_exchange_weak(word, word + READER, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    #[inline]
    fn end_write(&self) {
        // Only the writer changes it. Release: who sees the new number sees what was changed.
        let sequence = self.current.sequence.load(Ordering::Relaxed);
        self.current.sequence.store(sequence + 1, Ordering::Release);
        // A subtraction, since it is set: one instruction, where clearing and testing is a loop.
        let word = self.word.0.fetch_sub(WRITER, Ordering::Release);
        if word & (QUEUED | AWAKE) == QUEUED && !MUTANT_NO_WAKE_HEAD.planted() {
            self.wake_head();
        }
    }

    #[inline]
    fn end_read(&self) {
        // Release: the next writer sees that this reader has read.
        let word = self.word.0.fetch_sub(READER, Ordering::Release);
        if word & (QUEUED | AWAKE | READERS) == QUEUED | READER && !MUTANT_NO_HAND_OVER.planted() {
            self.wake_head();
        }
    }
}

/// The right to change the layout, and to write-lock VMAs. Its end unlocks all VMAs that were locked under
/// it.
#[must_use = "the lock is released at once"]
pub struct LayoutWrite<'a, T> {
    lock: &'a LayoutLock<T>,
    hold: Hold,
    /// The order of locks is checked by thread, so a guard stays in its own.
    thread: PhantomData<*const ()>,
}

impl<T> LayoutWrite<'_, T> {
    /// The number with which this write marks what it locks.
    #[inline]
    pub(crate) fn sequence(&self) -> u64 {
        self.lock.current.sequence.load(Ordering::Relaxed)
    }
}

impl<T> Deref for LayoutWrite<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held for writing, so nobody else has a reference, and a mutable one would
        // borrow the guard.
        self.lock.data.with(|data| unsafe { &*data })
    }
}

impl<T> DerefMut for LayoutWrite<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held for writing, so nobody else has a reference, and the guard is borrowed
        // mutably.
        self.lock.data.with_mut(|data| unsafe { &mut *data })
    }
}

impl<T> Drop for LayoutWrite<'_, T> {
    #[inline]
    fn drop(&mut self) {
        order::unlocked(LockClass::Layout);
        if self.hold.is_measured() {
            self.lock.stats.end_hold(self.hold);
        }
        self.lock.end_write();
    }
}

/// The right to look at the layout. Nobody changes it meanwhile, nor write-locks a VMA.
#[must_use = "the lock is released at once"]
pub struct LayoutRead<'a, T> {
    lock: &'a LayoutLock<T>,
    hold: Hold,
    thread: PhantomData<*const ()>,
}

impl<T> Deref for LayoutRead<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held for reading, so nobody has a mutable reference.
        self.lock.data.with(|data| unsafe { &*data })
    }
}

impl<T> Drop for LayoutRead<'_, T> {
    #[inline]
    fn drop(&mut self) {
        order::unlocked(LockClass::Layout);
        if self.hold.is_measured() {
            self.lock.stats.end_hold(self.hold);
        }
        self.lock.end_read();
    }
}

mod sealed {
    /// Says which lock a guard holds. Unsafe code relies on it, so nobody else may say it.
    pub trait Held {
        /// The lock's number.
        fn lock_id(&self) -> u64;
    }
}

pub(crate) use sealed::Held;

/// A guard that holds a layout lock, for reading or writing.
pub trait LayoutHeld: sealed::Held {}

impl<T> sealed::Held for LayoutWrite<'_, T> {
    #[inline]
    fn lock_id(&self) -> u64 {
        self.lock.id()
    }
}

impl<T> sealed::Held for LayoutRead<'_, T> {
    #[inline]
    fn lock_id(&self) -> u64 {
        self.lock.id()
    }
}

impl<T> LayoutHeld for LayoutWrite<'_, T> {}
impl<T> LayoutHeld for LayoutRead<'_, T> {}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
