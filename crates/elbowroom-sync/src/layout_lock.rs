//! The layout lock: a reader-writer lock with a queue, and the sequence number that ends all VMA locks at once.
//!
//! Linux: `mmap_lock` with `mm_lock_seq` (include/linux/mmap_lock.h). [`LayoutLock::write`] is `mmap_write_lock`, and the end of
//! its guard is `vma_end_write_all` and `mmap_write_unlock`. Neighbour: `slots`, whose VMA locks compare their marks with
//! the sequence.
//!
//! # Who gets it
//! First come, first served. Who finds the lock free, and nobody queued, takes it with one compare-and-swap. Everybody else draws a
//! ticket and is let in by whoever leaves, in the order of the tickets, readers that stand together all at once. So a writer that
//! waits is never overtaken, and neither is a reader. The price is a wake-up per hand-over; waiters look around for a
//! moment before they sleep.
//!
//! # The word
//! `WRITER` | `QUEUED` | count of readers. It is changed by read-modify-writes only. While `QUEUED` is set nobody enters but by
//! the hand of somebody who has the queue's mutex. `QUEUED` is set, and then the word looked at, by who wants to wait; it is
//! looked at, after the word was changed, by who leaves: so one of the two sees the other, and no wake-up is lost.

use crate::atomic::{AtomicU64, Ordering};
use crate::cell::UnsafeCell;
use crate::lock::{LockClass, LockStats, order, sys};
use crate::thread::look_around;
use crate::time::Instant;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// A writer is inside.
const WRITER: u64 = 1 << 63;
/// Somebody waits, or is about to: nobody enters past the queue.
const QUEUED: u64 = 1 << 62;
/// One reader. Their count cannot reach `QUEUED`, even if each forgets its guard: that takes more than a century.
const READER: u64 = 1;

/// How often a reader tries to enter among other readers, before it goes by the queue's mutex, where it succeeds.
const READ_TRIES: u32 = 16;
/// How often a waiter looks whether it was let in, before it sleeps: about a microsecond.
const LOOKS: u32 = 40;
/// Conditions that sleepers are spread over by ticket, so that a hand-over wakes few for nothing.
const LANES: usize = if cfg!(loom) { 2 } else { 8 };

/// In tests of the tests: readers enter although somebody is queued.
const MUTANT_OVERTAKE: bool = cfg!(elbowroom_mutant = "overtake");
/// In tests of the tests: the last reader to leave lets nobody in.
const MUTANT_NO_HAND_OVER: bool = cfg!(elbowroom_mutant = "no_hand_over");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Read,
    Write,
}

impl Mode {
    /// What it adds to the word.
    fn unit(self) -> u64 {
        match self {
            Mode::Read => READER,
            Mode::Write => WRITER,
        }
    }

    /// Whether it may enter besides those who are inside.
    fn fits(self, word: u64) -> bool {
        match self {
            Mode::Read => word & WRITER == 0,
            Mode::Write => word & !QUEUED == 0,
        }
    }
}

/// Those who wait, first come first.
struct Queue {
    modes: VecDeque<Mode>,
    /// Sleepers by lane. Notifying is a system call even if nobody listens.
    asleep: [usize; LANES],
}

/// What readers of VMAs look at, on a line that changes only when a write ends.
#[repr(align(64))]
struct Current {
    /// Which lock this is: no two have the same in one process.
    id: u64,
    sequence: AtomicU64,
}

#[repr(align(64))]
struct Word(AtomicU64);

/// A reader-writer lock of the class [`LockClass::Layout`] around a `T`, in the order of arrival, with a sequence number.
///
/// A panic while it is held does not poison it. A thread that holds it must not take it again, not even for reading.
pub struct LayoutLock<T> {
    current: Current,
    word: Word,
    /// Tickets let in so far. Written under the queue's mutex.
    granted: AtomicU64,
    queue: sys::Mutex<Queue>,
    lanes: [sys::Condvar; LANES],
    stats: LockStats,
    data: UnsafeCell<T>,
}

// SAFETY: the lock owns its `T`, so it may move to another thread if the `T` may.
unsafe impl<T: Send> Send for LayoutLock<T> {}
// SAFETY: `&T` is given to several threads at a time (`T: Sync`), `&mut T` to one at a time, whichever it is (`T: Send`).
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
            granted: AtomicU64::new(0),
            queue: sys::Mutex::new(Queue { modes: VecDeque::new(), asleep: [0; LANES] }),
            lanes: std::array::from_fn(|_| sys::Condvar::new()),
            stats: self.clone(),
            data: UnsafeCell::new(value),
        }
    }
}

/// Marks begin at 0, so that what was never locked is not locked.
const FIRST_SEQUENCE: u64 = 1;

impl<T> LayoutLock<T> {
    /// Takes the lock for writing, waiting for everybody who came before.
    ///
    /// # Panics
    /// In debug builds, if this thread holds a lock of the class `layout` or a later one.
    #[inline]
    pub fn write(&self) -> LayoutWrite<'_, T> {
        order::before_lock(LockClass::Layout);
        self.stats.cells(LockClass::Layout).acquired();
        if self.word.0.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.enter_by_the_queue(Mode::Write);
        }
        order::locked(LockClass::Layout);
        LayoutWrite { lock: self, thread: PhantomData }
    }

    /// Takes the lock for reading, waiting for everybody who came before, other readers excepted if nobody waits.
    ///
    /// # Panics
    /// As [`LayoutLock::write`].
    #[inline]
    pub fn read(&self) -> LayoutRead<'_, T> {
        order::before_lock(LockClass::Layout);
        self.stats.cells(LockClass::Layout).acquired();
        if !self.join_readers() {
            self.enter_by_the_queue(Mode::Read);
        }
        order::locked(LockClass::Layout);
        LayoutRead { lock: self, thread: PhantomData }
    }

    /// The number of the current or next write. What is marked with it is write-locked.
    ///
    /// Acquire: who sees that a write has ended sees all that it changed.
    #[inline]
    pub fn sequence(&self) -> u64 {
        self.current.sequence.load(Ordering::Acquire)
    }

    /// How many threads wait for the lock now.
    pub fn waiters(&self) -> usize {
        self.queue().modes.len()
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
        let closed = if MUTANT_OVERTAKE { WRITER } else { WRITER | QUEUED };
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

    #[cold]
    fn enter_by_the_queue(&self, mode: Mode) {
        let mut queue = self.queue();
        // Acquire: if the lock turns out to be free, all who left it are seen.
        let word = self.word.0.fetch_or(QUEUED, Ordering::AcqRel);
        if queue.modes.is_empty() && mode.fits(word) {
            self.word.0.fetch_add(mode.unit(), Ordering::Relaxed);
            self.word.0.fetch_and(!QUEUED, Ordering::Relaxed);
            return;
        }
        queue.modes.push_back(mode);
        let ticket = self.granted.load(Ordering::Relaxed) + queue.modes.len() as u64;
        drop(queue);
        let start = Instant::now();
        self.wait_for(ticket);
        self.stats.cells(LockClass::Layout).waited(start);
    }

    /// Waits until `ticket` is let in: until all who came before have left.
    fn wait_for(&self, ticket: u64) {
        // Acquire: what was done under the lock before is seen.
        let granted = || self.granted.load(Ordering::Acquire) >= ticket;
        if look_around(LOOKS, 0, granted) {
            return;
        }
        let lane = ticket as usize % LANES;
        let mut queue = self.queue();
        while !granted() {
            queue.asleep[lane] += 1;
            queue = self.lanes[lane].wait(queue).unwrap_or_else(|poisoned| poisoned.into_inner());
            queue.asleep[lane] -= 1;
        }
    }

    /// Lets in those at the head of the queue, as many as fit. Called by who left a lock that had `QUEUED` set.
    #[cold]
    fn hand_over(&self) {
        let mut queue = self.queue();
        while let Some(&mode) = queue.modes.front() {
            // Acquire: what they did who left is passed on by `granted`.
            if !mode.fits(self.word.0.load(Ordering::Acquire)) {
                return;
            }
            queue.modes.pop_front();
            self.word.0.fetch_add(mode.unit(), Ordering::Relaxed);
            let ticket = self.granted.fetch_add(1, Ordering::Release) + 1;
            let lane = ticket as usize % LANES;
            if queue.asleep[lane] > 0 {
                self.lanes[lane].notify_all();
            }
        }
        self.word.0.fetch_and(!QUEUED, Ordering::Relaxed);
    }

    #[inline]
    fn end_write(&self) {
        // Only the writer changes it. Release: who sees the new number sees what was changed.
        let sequence = self.current.sequence.load(Ordering::Relaxed);
        self.current.sequence.store(sequence + 1, Ordering::Release);
        // A subtraction, since it is set: one instruction, where clearing and testing is a loop.
        if self.word.0.fetch_sub(WRITER, Ordering::Release) & QUEUED != 0 {
            self.hand_over();
        }
    }

    #[inline]
    fn end_read(&self) {
        // Release: the next writer sees that this reader has read.
        let last = self.word.0.fetch_sub(READER, Ordering::Release) == QUEUED | READER;
        if last && !MUTANT_NO_HAND_OVER {
            self.hand_over();
        }
    }
}

/// The right to change the layout, and to write-lock VMAs. Its end unlocks all VMAs that were locked under it.
#[must_use = "the lock is released at once"]
pub struct LayoutWrite<'a, T> {
    lock: &'a LayoutLock<T>,
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
        // SAFETY: the lock is held for writing, so nobody else has a reference, and a mutable one would borrow the guard.
        self.lock.data.with(|data| unsafe { &*data })
    }
}

impl<T> DerefMut for LayoutWrite<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held for writing, so nobody else has a reference, and the guard is borrowed mutably.
        self.lock.data.with_mut(|data| unsafe { &mut *data })
    }
}

impl<T> Drop for LayoutWrite<'_, T> {
    #[inline]
    fn drop(&mut self) {
        order::unlocked(LockClass::Layout);
        self.lock.end_write();
    }
}

/// The right to look at the layout. Nobody changes it meanwhile, nor write-locks a VMA.
#[must_use = "the lock is released at once"]
pub struct LayoutRead<'a, T> {
    lock: &'a LayoutLock<T>,
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
