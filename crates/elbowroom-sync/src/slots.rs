//! The memory of VMAs and their read locks: a table whose slots are reused for the same type only, each
//! with a read lock that never blocks.
//!
//! Linux: a slab with `SLAB_TYPESAFE_BY_RCU`, and `vma_start_read`, `vma_mark_detached`
//! (include/linux/mmap_lock.h, mm/mmap_lock.c). A value is never changed in place (as Linux does after
//! `vma_start_write`): it is removed, and another is inserted. Neighbours: `layout_lock`, whose sequence
//! number ends all write locks at once, and `word`, the state of one slot.
//!
//! # How a reader uses it
//! 1. It finds a [`Key`] in an index, under RCU, or has one from before. The key may be stale by now.
//! 2. [`Slots::try_read`]. If that fails, [`TryReadError`] says why: `Locked` means that a writer changes the
//!    layout (take the layout lock and use [`Slots::read_locked`]); `Detached` and `Reused` mean that the
//!    index has a newer entry (look again).
//! 3. It checks that the value still covers the address that it looked for. The generation in the key
//!    proves that it is the same VMA, but not that its bounds are those of step 1.
//! 4. It drops the guard soon: at the latest after one request to the kernel, and before it waits for
//!    anything, the layout lock above all.
//!
//! # States of a VMA
//! "Marked" means inserted by the current write of the layout; a mark of an earlier write does not count.
//! "Readers" are guards that are alive.
//!
//! Which threads may enter, and which wait:
//! * Attached, not marked, no readers: any reader and the holder of the layout lock may enter; no thread
//!   waits.
//! * Attached, not marked, n readers: any reader may enter, and the holder of the layout lock, to read.
//!   `detach` and `remove` wait, after detaching.
//! * Attached, marked, no readers: the writer of the layout may enter. No thread waits: readers get
//!   `Locked` until that write ends.
//! * Detached, marked or not, no readers: the writer of the layout may enter, and the holder of the layout
//!   lock, to read. No thread waits: readers get `Detached` for good.
//! * Detached, marked or not, n readers: no new thread may enter. The writer of the layout waits for the n
//!   readers to leave.
//! * Vacant, marked or not, no readers: no thread may enter, and none waits: readers get `Reused`, also
//!   after the slot's next `insert`.
//!
//! A new VMA is attached and marked. `detach` detaches it for good, `remove` makes its slot vacant, and the
//! end of the layout's write removes all marks. A reader that is turned away is counted for a moment; a
//! writer that sees the count waits for that moment.
//!
//! # Why it is enough to compare two numbers
//! * A writer detaches and looks for readers with one read-modify-write of the word. A reader counts itself
//!   and checks that the value is attached with another read-modify-write. One of the two comes first. If
//!   the reader's does, the writer sees it, and waits until it has left. If the writer's does, the reader
//!   is turned away.
//! * A reader that finds its generation attached sees the mark of that `insert` (release and acquire of the
//!   word), and no later one: the slot is not used again while the reader is counted. It sees a sequence at
//!   least as new, because a writer knows its sequence before it marks with it. So a mark of the current
//!   write is never taken for one of an earlier write.
//! * If the sequence is newer than the mark, then the write that made the mark has ended; the reader sees
//!   what that write changed (release and acquire of the sequence).
//! * A reader may see an old sequence after the write has ended, because the store of the new number comes
//!   late. Then the mark still matches, and the reader fails with `Locked` although it need not: harmless, as
//!   it falls back to the layout lock.
//! * Linux's numbers have 32 bits, so an old mark may match a sequence that has wrapped, with the same
//!   harmless failure. Ours have 64 bits and never wrap.
//! * The sequence does not move at the beginning of a write, as Linux's does: marks are made only between the
//!   beginning and the end of a write, so a number that only moves at the end tells two writes apart just as
//!   well.
//!
//! # Who may call what
//! `detach`, `insert` and `remove` take the guard of a layout write, so the layout lock orders them. A
//! table belongs to one layout lock for good, and panics if it is given the guard of another.

mod chunks;
mod word;

use crate::Lines;
use crate::Mutant;
use crate::atomic::{AtomicU32, Ordering};
use crate::blocking::{Inside, entered, left, may_wait};
use crate::contention::{Awaited, LockStats, Mode};
use crate::layout_lock::{Held, LayoutHeld, LayoutLock, LayoutWrite};
use crate::lock::sys;
use crate::thread::look_around;
use chunks::Chunks;
use std::fmt;
use std::ops::Deref;
use word::Slot;

/// How often a writer checks whether the readers have left, before it yields: about two microseconds.
const LOOKS: u32 = 80;
/// How often it yields, before it sleeps: a reader that is in the kernel takes some microseconds.
const YIELDS: u32 = 8;

/// No slot: the end of the list of vacant slots.
const NONE: u32 = u32::MAX;

/// In tests of the tests: a writer does not wait for readers.
const MUTANT_NO_DRAIN: Mutant = Mutant::new("no_drain");

/// Identifies one VMA for as long as the table lives: its slot, and its generation among the slot's
/// successive values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The slot's number.
    pub slot: u32,
    /// Which of the slot's values, from 1.
    pub generation: u32,
}

impl Key {
    /// Both in one word: `generation << 32 | slot`. Never 0 for a key that a table gave.
    pub fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The inverse of [`Key::to_u64`]. Any number is a key; a key that no table made finds no value, or
    /// another one, but is never unsafe.
    pub fn from_u64(packed: u64) -> Self {
        Self { slot: packed as u32, generation: (packed >> 32) as u32 }
    }
}

/// The table has as many values as it may. Linux: ENOMEM past `max_map_count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the table of mappings is full")
    }
}

impl std::error::Error for Full {}

/// Why a VMA could not be read-locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TryReadError {
    /// A writer of the layout has the VMA locked, or had it a moment ago. Take the layout lock.
    Locked,
    /// The VMA has left the index. Look again.
    Detached,
    /// The VMA is gone, and its slot may have another. Look again.
    Reused,
}

impl fmt::Display for TryReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TryReadError::Locked => "the mapping is being changed",
            TryReadError::Detached => "the mapping has left the index",
            TryReadError::Reused => "the mapping is gone",
        })
    }
}

impl std::error::Error for TryReadError {}

/// A table of `T` that grows up to a limit, whose slots never move and are freed with the table only.
pub struct Slots<T> {
    /// The layout lock that orders all changes.
    layout: u64,
    limit: u32,
    chunks: Chunks<T>,
    upkeep: Lines<Upkeep>,
}

/// The fields that readers of values do not need.
struct Upkeep {
    /// Slots made so far. This and the next two are changed under the layout lock only.
    made: AtomicU32,
    /// Values in the table.
    used: AtomicU32,
    /// The slot that became vacant last; it links to the next vacant one.
    vacant: AtomicU32,
    /// Counts the waits for readers, but not the cases without a wait: counting would cost more than the
    /// check itself.
    stats: LockStats,
    /// The mutex of `drained`, the condition at which the one writer that waits for readers sleeps.
    drain: sys::Mutex<()>,
    drained: sys::Condvar,
}

impl<T> Slots<T> {
    /// An empty table for at most `limit` values, changed under `layout`.
    ///
    /// It takes memory as it grows, and `limit` / 16 bytes from the beginning.
    ///
    /// # Panics
    /// If `limit` is `u32::MAX`.
    pub fn new<L>(layout: &LayoutLock<L>, limit: u32) -> Self {
        assert!(limit < NONE, "the limit of a table is below 2^32 - 1");
        Self {
            layout: layout.id(),
            limit,
            chunks: Chunks::new(limit),
            upkeep: Lines(Upkeep {
                made: AtomicU32::new(0),
                used: AtomicU32::new(0),
                vacant: AtomicU32::new(NONE),
                stats: layout.stats().clone(),
                drain: sys::Mutex::new(()),
                drained: sys::Condvar::new(),
            }),
        }
    }

    /// How many values it has.
    pub fn len(&self) -> usize {
        self.upkeep.used.load(Ordering::Relaxed) as usize
    }

    /// Whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts `value` in, write-locked until the layout's write ends.
    ///
    /// # Errors
    /// [`Full`] if the table is at its limit; the value is dropped.
    ///
    /// # Panics
    /// As all methods that take a guard: if it is the guard of another layout lock.
    pub fn insert<L>(&self, layout: &mut LayoutWrite<'_, L>, value: T) -> Result<Key, Full> {
        self.check(layout);
        let number = self.take_vacant().ok_or(Full)?;
        let slot = self.slot(number).expect("a vacant slot has been made");
        // SAFETY: the slot is vacant, so no reader enters it, and the layout lock keeps all other threads
        // out.
        unsafe { slot.put(value) };
        let generation = slot.attach(layout.sequence());
        self.upkeep.used.store(self.upkeep.used.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(Key { slot: number, generation })
    }

    /// Read-locks the value that `key` names. Never blocks and never spins.
    ///
    /// # Errors
    /// Why the VMA could not be locked. `Locked` may be wrong just after a write; the other two are final,
    /// if the key came from an index, or by another path that orders this after the key's `insert`.
    #[inline]
    pub fn try_read<L>(&self, key: Key, layout: &LayoutLock<L>) -> Result<SlotRead<'_, T>, TryReadError> {
        self.check_id(layout.id());
        let slot = self.slot(key.slot).ok_or(TryReadError::Reused)?;
        // Checked before the reader is counted, which spares a busy slot's cache line. The word may be out
        // of date, but not older than a key from an index.
        slot.refusal(slot.load(), key.generation, layout)?;
        let word = slot.count_reader();
        match slot.refusal(word, key.generation, layout) {
            Ok(()) => {
                entered(Inside::Slot);
                Ok(SlotRead { table: self, slot })
            }
            Err(why) => {
                self.leave(slot);
                Err(why)
            }
        }
    }

    /// The value that `key` names, for a thread that has the layout lock and so needs no VMA lock. Detached
    /// values included.
    #[inline]
    pub fn read_locked<'g>(&'g self, key: Key, layout: &'g impl LayoutHeld) -> Option<&'g T> {
        self.check(layout);
        let slot = self.current(key)?;
        // SAFETY: a thread that changes a value has the layout lock for writing, and borrows its guard
        // mutably meanwhile.
        unsafe { slot.value() }
    }

    /// Turns readers away from the value for good, and waits for those inside. Returns whether the value
    /// was there.
    ///
    /// Those inside stay for one request to the kernel at most. A thread that has a read lock of the same
    /// value waits for itself forever: drop it before taking the layout lock.
    ///
    /// When this returns, no thread uses the value without the layout lock, or ever will. Take it out of
    /// the index before.
    #[track_caller]
    pub fn detach<L>(&self, key: Key, layout: &mut LayoutWrite<'_, L>) -> bool {
        self.check(layout);
        let Some(slot) = self.current(key) else { return false };
        if slot.detach() {
            self.wait_for_readers(slot);
        }
        true
    }

    /// Removes the value, detaching it first if need be, and makes its slot vacant. `None` if the value is
    /// gone.
    #[track_caller]
    pub fn remove<L>(&self, key: Key, layout: &mut LayoutWrite<'_, L>) -> Option<T> {
        self.check(layout);
        let slot = self.current(key)?;
        let retired = slot.retire();
        if retired.busy {
            self.wait_for_readers(slot);
        }
        // SAFETY: its readers are out, and its keys are stale; the layout lock keeps all other threads out.
        let value = unsafe { slot.take() };
        if retired.reusable {
            slot.next_vacant.store(self.upkeep.vacant.load(Ordering::Relaxed), Ordering::Relaxed);
            self.upkeep.vacant.store(key.slot, Ordering::Relaxed);
        }
        self.upkeep.used.store(self.upkeep.used.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        value
    }

    #[inline]
    fn check(&self, held: &impl Held) {
        self.check_id(held.lock_id());
    }

    #[inline]
    fn check_id(&self, layout: u64) {
        assert!(layout == self.layout, "a table of VMAs is used with another layout lock than its own");
    }

    #[inline]
    fn slot(&self, number: u32) -> Option<&Slot<T>> {
        self.chunks.get(number)
    }

    /// The slot of `key`, if it still has the value of that generation. The caller has the layout lock.
    #[inline]
    fn current(&self, key: Key) -> Option<&Slot<T>> {
        self.slot(key.slot).filter(|slot| slot.holds(key.generation))
    }

    /// A vacant slot's number, taken off the list or made.
    fn take_vacant(&self) -> Option<u32> {
        let vacant = self.upkeep.vacant.load(Ordering::Relaxed);
        if vacant != NONE {
            let slot = self.slot(vacant).expect("a vacant slot has been made");
            self.upkeep.vacant.store(slot.next_vacant.load(Ordering::Relaxed), Ordering::Relaxed);
            return Some(vacant);
        }
        let number = self.upkeep.made.load(Ordering::Relaxed);
        if number == self.limit {
            return None;
        }
        self.chunks.make(number);
        self.upkeep.made.store(number + 1, Ordering::Relaxed);
        Some(number)
    }

    /// Ends a read lock, or an attempt at one.
    #[inline]
    fn leave(&self, slot: &Slot<T>) {
        if slot.uncount_reader() {
            self.wake_writer();
        }
    }

    #[cold]
    fn wake_writer(&self) {
        // With the mutex held, so that the writer either sleeps or has not checked the count yet.
        let _guard = self.upkeep.drain.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.upkeep.drained.notify_all();
    }

    /// Waits until no reader is inside. The caller has turned away new ones. Linux: `vma_mark_detached`,
    /// `__vma_enter_locked`.
    #[cold]
    #[track_caller]
    fn wait_for_readers(&self, slot: &Slot<T>) {
        if MUTANT_NO_DRAIN.planted() {
            return;
        }
        let wait = self.upkeep.stats.begin_wait(Awaited::Vma, Mode::Write);
        if !look_around(LOOKS, YIELDS, || slot.is_unread()) {
            self.sleep_until_unread(slot);
        }
        self.upkeep.stats.end_wait(wait);
    }

    fn sleep_until_unread(&self, slot: &Slot<T>) {
        may_wait();
        let mut guard = self.upkeep.drain.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while !slot.ask_for_wake() {
            guard = self.upkeep.drained.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        slot.awake();
    }
}

/// A read lock of one value, which is not moved or removed while this lives.
///
/// A guard that is forgotten (`mem::forget`) makes the next writer of the value wait forever.
#[must_use = "the lock is released at once"]
pub struct SlotRead<'a, T> {
    table: &'a Slots<T>,
    slot: &'a Slot<T>,
}

impl<T> Deref for SlotRead<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this reader is counted, and it was let in: no writer is inside, and writers that come
        // wait for it.
        unsafe { self.slot.value() }.expect("an attached slot has a value")
    }
}

impl<T> Drop for SlotRead<'_, T> {
    #[inline]
    fn drop(&mut self) {
        left(Inside::Slot);
        self.table.leave(self.slot);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
