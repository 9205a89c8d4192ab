//! The layout lock: a reader-writer lock with a queue, and the sequence number that ends all VMA locks at
//! once.
//!
//! Linux: `mmap_lock` with `mm_lock_seq` (include/linux/mmap_lock.h). [`LayoutLock::write`] is
//! `mmap_write_lock`, and the end of its guard is `vma_end_write_all` and `mmap_write_unlock`. Neighbour:
//! `slots`, whose VMA locks compare their marks with the sequence.
//!
//! # Who gets it
//! A thread that finds the lock free and the queue empty takes the lock with one compare-and-swap. Any
//! other thread spins for a moment, draws a ticket, and sleeps until it is the head of the queue and the
//! lock is free.
//!
//! A thread that releases the lock wakes the head, but leaves the lock free: until the head runs, a writer
//! that comes by may take it. Such a thief is running already, and is often done before the head has woken
//! up. If each release handed the lock to a sleeping thread, no thread could enter until that one runs, all
//! others would sleep behind it, and each release would cost a wake-up: a lock convoy. A head that finds a
//! thief inside sleeps again, and is woken again. Linux does the same (kernel/locking/rwsem.c,
//! `RWSEM_FLAG_HANDOFF`), with a limit by time. Here the limit is a count: after [`MAX_STEALS`] thefts in a
//! row no further thief may enter before the head does, even if the head still sleeps.
//!
//! * Waiters enter in the order of their tickets; neighbouring readers in the queue enter together.
//! * Between one entry from the queue and the next, at most [`MAX_STEALS`] writers enter without a ticket.
//!   So a thread with `n` others before it in the queue is overtaken by at most `(n + 1) * MAX_STEALS`
//!   writers.
//! * A reader overtakes no waiter.
//!
//! # The word
//! `WRITER` | `QUEUED` | `AWAKE` | count of thefts | count of readers. It is changed by read-modify-writes
//! only, and `QUEUED` and `AWAKE` under the queue's mutex only. `QUEUED` says that the queue is not empty,
//! and keeps readers out. `AWAKE` says that the head is awake and will look at the word once more, so no
//! other thread needs to wake it. Thefts are counted while `QUEUED` is set, and the count is reset when the
//! head enters; so it is 0 while readers are inside. `queue` says why no wake-up is lost.

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
/// The queue is not empty: only thieves may enter past it.
const QUEUED: u64 = 1 << 62;
/// The head of the queue is awake and will look at the word again, so it need not be woken.
const AWAKE: u64 = 1 << 61;
/// The unit in which thefts (writers that took the lock past the queue) are counted, in seven bits.
const THEFT: u64 = 1 << 54;
const THEFTS: u64 = AWAKE - THEFT;
/// The unit in which readers are counted. The count cannot reach `THEFT`, even if each reader forgets its
/// guard: that would take more than ten years.
const READER: u64 = 1;
const READERS: u64 = THEFT - READER;

/// How many writers may take a [`LayoutLock`] past the queue, until the head of the queue enters. Small in
/// models, which try every number of thefts.
pub const MAX_STEALS: u64 = if cfg!(any(loom, shuttle)) { 1 } else { 64 };
const _: () = assert!(MAX_STEALS <= THEFTS / THEFT);

/// How often a reader tries to enter among other readers, before it takes the queue's mutex, with which it
/// cannot lose against them.
const READ_TRIES: u32 = 16;

/// In tests of the tests: readers enter although the queue is not empty.
const MUTANT_OVERTAKE: Mutant = Mutant::new("overtake");
/// In tests of the tests: the last reader to leave wakes nobody.
const MUTANT_NO_HAND_OVER: Mutant = Mutant::new("no_hand_over");
/// In tests of the tests: a writer that leaves wakes nobody.
const MUTANT_NO_WAKE_HEAD: Mutant = Mutant::new("no_wake_head");

/// The fields that readers of VMAs load, on a cache line that changes only when a write ends.
#[repr(align(64))]
struct Current {
    /// The lock's number, unique in the process.
    id: u64,
    sequence: AtomicU64,
}

#[repr(align(64))]
struct Word(AtomicU64);

/// A reader-writer lock of the class [`LockClass::Layout`] around a `T`, with a queue and a sequence number.
///
/// Waiters enter in the order of arrival. At most [`MAX_STEALS`] writers overtake a waiter, and as many
/// more for each thread that waits before it. Readers overtake no waiter.
///
/// A panic while the lock is held does not poison it. A thread that holds it must not take it again, not
/// even for reading.
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
        // std's atomic, not the facade's: only uniqueness matters, and the counter outlives a model's run.
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

/// Marks begin at 0, so that a slot that was never marked does not count as locked.
const FIRST_SEQUENCE: u64 = 1;

impl<T> LayoutLock<T> {
    /// Takes the lock for writing: past the queue if the lock is free and the queue was not overtaken too
    /// often, else through the queue.
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
        let hold = self.stats.acquired(LockClass::Layout, Mode::Write, None, caller);
        LayoutWrite { lock: self, hold, thread: PhantomData }
    }

    /// Takes the lock for reading: at once if there is no writer inside and the queue is empty, else
    /// through the queue.
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
        let hold = self.stats.acquired(LockClass::Layout, Mode::Read, None, caller);
        LayoutRead { lock: self, hold, thread: PhantomData }
    }

    /// The number of the current or next write. VMAs that are marked with it are write-locked.
    ///
    /// Acquire: a thread that sees that a write has ended sees all that it changed.
    #[inline]
    pub fn sequence(&self) -> u64 {
        self.current.sequence.load(Ordering::Acquire)
    }

    /// The statistics in which this lock is counted.
    #[inline]
    pub(crate) fn stats(&self) -> &LockStats {
        &self.stats
    }

    /// How many threads wait for the lock now: models and tests use it to queue threads one after another.
    #[cfg(any(test, loom))]
    pub fn waiters(&self) -> usize {
        self.queue().len()
    }

    /// The lock's number, unique in the process.
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
        // Only the writer changes the sequence. Release: a thread that sees the new number sees all changes
        // of this write.
        let sequence = self.current.sequence.load(Ordering::Relaxed);
        self.current.sequence.store(sequence + 1, Ordering::Release);
        // A subtraction, since the bit is set: one instruction, while `fetch_and` with its result used is a
        // loop.
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

/// The right to change the layout, and to write-lock VMAs. Dropping it unlocks all VMAs that were locked
/// under it.
#[must_use = "the lock is released at once"]
pub struct LayoutWrite<'a, T> {
    lock: &'a LayoutLock<T>,
    hold: Hold,
    /// Makes the guard not `Send`: the order of locks is checked by thread.
    thread: PhantomData<*const ()>,
}

impl<T> LayoutWrite<'_, T> {
    /// The number with which this write marks the VMAs that it locks.
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

/// The right to read the layout. No thread changes it meanwhile, or write-locks a VMA.
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
    /// Tells which lock a guard holds. Unsafe code relies on it, so the trait is sealed.
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
