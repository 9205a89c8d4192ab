//! Which threads are inside a read-side section, and how a writer waits for them.
//!
//! Each thread that reads has a record with a count of its turns: odd inside a section, even outside. A
//! writer that has taken a value out of a structure looks at all records, once. A thread whose count is odd
//! may still use the value; no other thread can find it any more. When each of those few threads has
//! another count, the grace period is over. So it ends with the last section that could matter, and there
//! is no number that all readers look at. Linux: the context-tracking counters that RCU looks at
//! (`rcu_watching_snap_save`, `rcu_watching_snap_stopped_since`).
//!
//! Why this is enough: a reader makes its count odd, passes a full barrier, and then loads pointers; a
//! writer stores a pointer, passes a full barrier, and then looks at the counts. One of the two barriers
//! comes first. If it is the writer's, the reader loads the new pointer. If it is the reader's, the writer
//! sees the odd count, or a later one, and with it all that the reader did in the section. A record that is
//! added while the writer looks either is seen by it, or belongs to a reader of the first case.
//!
//! A record is never freed. A thread that ends gives its record back, for another thread. The values that
//! it could not dispose of yet (`S`, its list) are taken by the next writer that looks at all records.
//!
//! "The owner" below is the thread that `take` gave the record to, until it gives it back. That the caller
//! is the owner is a condition of all methods of a [`Reader`], which the module `epoch` keeps: it calls them
//! on the thread's own record only.

use crate::Mutant;
use crate::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering, fence};
use crate::cell::UnsafeCell;
use std::ptr;
// std's atomics, since only the owner uses these fields, so a model need not branch on them.
use std::sync::atomic as plain;

/// The record has no owner, and its list is empty.
const FREE: u8 = 0;
/// The record has an owner.
const OWNED: u8 = 1;
/// The record has no owner, but its list is not empty.
const LEFT: u8 = 2;

/// In tests of the tests: a section begins without a barrier.
const MUTANT_NO_BARRIER: Mutant = Mutant::new("no_barrier");
/// In tests of the tests: a writer does not pass a barrier before it looks at the records.
const MUTANT_NO_LOOK_BARRIER: Mutant = Mutant::new("no_look_barrier");
/// In tests of the tests: loads of a section may come after its end.
const MUTANT_RELAXED_LEAVE: Mutant = Mutant::new("relaxed_leave");
/// In tests of the tests: a thread that takes over a record need not see what its owner did before.
const MUTANT_RELAXED_GIVE_BACK: Mutant = Mutant::new("relaxed_give_back");

/// The memory order of the store that ends a section.
fn leave() -> Ordering {
    if MUTANT_RELAXED_LEAVE.planted() { Ordering::Relaxed } else { Ordering::Release }
}

/// The memory order of the store that gives a record back.
fn give_back() -> Ordering {
    if MUTANT_RELAXED_GIVE_BACK.planted() { Ordering::Relaxed } else { Ordering::Release }
}

/// All records.
pub(super) struct Readers<S: 'static> {
    /// The newest record; each record links to the next older one.
    first: AtomicPtr<Reader<S>>,
}

/// One thread's record, on cache lines of its own.
#[repr(align(64))]
pub(super) struct Reader<S: 'static> {
    /// Odd inside a section. Only the owner stores to it.
    turns: AtomicU64,
    /// `FREE`, `OWNED` or `LEFT`.
    ownership: AtomicU8,
    /// Set before others see the record.
    next: *const Reader<S>,
    /// How many guards of the owner are alive.
    depth: plain::AtomicU64,
    /// Whether the owner has work to do at the end of the section.
    due: plain::AtomicBool,
    list: UnsafeCell<S>,
}

// SAFETY: `next` is set before the record is shared and points to a record, which is never freed. `list` is
// only reached by the owner (the condition of `with_list`), to whom it is handed by `ownership`, so it moves
// between threads (`S: Send`) but is never shared.
unsafe impl<S: Send> Sync for Reader<S> {}
// SAFETY: as above.
unsafe impl<S: Send> Send for Reader<S> {}

impl<S: Default + Send> Readers<S> {
    #[cfg(not(loom))]
    pub(super) const fn new() -> Self {
        Self { first: AtomicPtr::new(ptr::null_mut()) }
    }

    #[cfg(loom)]
    pub(super) fn new() -> Self {
        Self { first: AtomicPtr::new(ptr::null_mut()) }
    }

    /// All records that existed when this was called, and perhaps newer ones.
    fn iter(&self) -> impl Iterator<Item = &'static Reader<S>> {
        // Acquire: the contents of the record are seen.
        let mut at: *const Reader<S> = self.first.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: null, or a record that was published by `take` and is never freed.
            let reader = unsafe { at.as_ref() }?;
            at = reader.next;
            Some(reader)
        })
    }

    /// Makes the calling thread the owner of a record with an empty list, until the thread gives it back.
    pub(super) fn take(&self) -> &'static Reader<S> {
        if let Some(reader) = self.iter().find(|reader| reader.take_over(FREE)) {
            return reader;
        }
        let mut first = self.first.load(Ordering::Relaxed);
        let reader = Box::leak(Box::new(Reader {
            turns: AtomicU64::new(0),
            ownership: AtomicU8::new(OWNED),
            next: first,
            depth: plain::AtomicU64::new(0),
            due: plain::AtomicBool::new(false),
            list: UnsafeCell::new(S::default()),
        }));
        // Release: threads that see the record see its contents. Acquire: and those of the older record
        // that it links to.
        while let Err(other) = self.first.compare_exchange(first, reader, Ordering::AcqRel, Ordering::Relaxed)
        {
            first = other;
            reader.next = first;
        }
        reader
    }

    /// Calls `each` with the lists that threads left when they ended.
    pub(super) fn take_left(&self, mut each: impl FnMut(S)) {
        for reader in self.iter().filter(|reader| reader.take_over(LEFT)) {
            // SAFETY: the record is this thread's.
            each(unsafe { reader.with_list(std::mem::take) });
            reader.ownership.store(FREE, give_back());
        }
    }

    /// Ends all sections but that of `own`: the threads of the others do not exist in this process.
    ///
    /// # Safety
    /// The calling thread is the only one of the process, just forked, and `own` is its record, if it has
    /// one.
    #[cfg(not(loom))]
    pub(super) unsafe fn end_all_but(&self, own: Option<&'static Reader<S>>) {
        for reader in self.iter().filter(|reader| own.is_none_or(|own| !ptr::eq(own, *reader))) {
            let turns = reader.turns.load(Ordering::Relaxed);
            // The record stays owned, because its thread may have been in the middle of a change of the
            // list.
            reader.turns.store(turns + turns % 2, Ordering::Release);
        }
    }

    /// Begins a grace period, whose end `grace` tells: for all values that were taken out before, by the
    /// caller, or by threads whose changes the caller has seen.
    pub(super) fn begin(&self, grace: &mut Grace<S>) {
        grace.0.clear();
        if !MUTANT_NO_LOOK_BARRIER.planted() {
            fence(Ordering::SeqCst);
        }
        // Acquire: everything that an ended section did happened before this.
        let looked = self.iter().map(|reader| (reader, reader.turns.load(Ordering::Acquire)));
        grace.0.extend(looked.filter(|(_, turns)| turns % 2 == 1));
    }
}

impl<S: Default + Send> Reader<S> {
    /// Begins a section, unless the thread is in one.
    #[inline]
    pub(super) fn enter(&self) {
        let depth = self.depth.load(plain::Ordering::Relaxed);
        if depth == 0 {
            let turns = self.turns.load(Ordering::Relaxed) + 1;
            if cfg!(all(target_arch = "x86_64", not(any(loom, miri)))) {
                // On x86-64 an exchange is a full barrier, and costs half as much as the fence; the
                // compiler fence keeps the order, too. The language's rules alone do not order the exchange
                // before the loads that follow, so models run the other branch.
                self.turns.swap(turns, Ordering::SeqCst);
                plain::compiler_fence(Ordering::SeqCst);
            } else {
                // Release: a writer that sees this count also sees all that the section before did, even if
                // it never saw the count at that section's end.
                self.turns.store(turns, Ordering::Release);
                if !MUTANT_NO_BARRIER.planted() {
                    fence(Ordering::SeqCst);
                }
            }
        }
        self.depth.store(depth + 1, plain::Ordering::Relaxed);
    }

    /// Undoes one `enter`. Returns whether the section has ended and work is due.
    #[inline]
    pub(super) fn leave(&self) -> bool {
        let depth = self.depth.load(plain::Ordering::Relaxed) - 1;
        self.depth.store(depth, plain::Ordering::Relaxed);
        if depth > 0 {
            return false;
        }
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, leave());
        self.due.load(plain::Ordering::Relaxed)
    }

    /// Sets whether `leave` reports at the end of each section that work is due.
    #[inline]
    pub(super) fn set_due(&self, due: bool) {
        self.due.store(due, plain::Ordering::Relaxed);
    }

    /// Whether the owner is in a section.
    pub(super) fn is_inside(&self) -> bool {
        self.depth.load(plain::Ordering::Relaxed) > 0
    }

    /// Gives the record back; the caller is then no longer the owner. `left_some`: the list is not empty.
    ///
    /// # Panics
    /// Inside a section.
    pub(super) fn give_back(&self, left_some: bool) {
        assert!(!self.is_inside(), "a record is given back inside a section");
        self.set_due(false);
        self.ownership.store(if left_some { LEFT } else { FREE }, give_back());
    }

    /// Runs `f` on the list.
    ///
    /// # Safety
    /// The caller is the owner, and `f` does not call this again.
    #[inline]
    pub(super) unsafe fn with_list<R>(&self, f: impl FnOnce(&mut S) -> R) -> R {
        // SAFETY: the owner is one thread, which is not here already.
        self.list.with_mut(|list| f(unsafe { &mut *list }))
    }

    /// Makes the calling thread the owner of the record if its ownership is `from`: `FREE` or `LEFT`.
    fn take_over(&self, from: u8) -> bool {
        // A plain load first, because an exchange that fails would also take the cache line from an owner
        // that begins a section. Acquire: all that the former owner did happened before.
        self.ownership.load(Ordering::Relaxed) == from
            && self.ownership.compare_exchange(from, OWNED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// A grace period: the records of the threads whose sections it waits for, and the count that each had.
pub(super) struct Grace<S: 'static>(Vec<(&'static Reader<S>, u64)>);

impl<S> Grace<S> {
    /// A grace period that is over.
    pub(super) const fn over() -> Self {
        Self(Vec::new())
    }

    /// Whether all those sections have ended; all that they did then happened before. Once true, always
    /// true.
    #[inline]
    pub(super) fn is_over(&mut self) -> bool {
        while let Some((reader, turns)) = self.0.last() {
            // Acquire: all that the section did happened before.
            if reader.turns.load(Ordering::Acquire) == *turns {
                return false;
            }
            self.0.pop();
        }
        true
    }
}

#[cfg(all(test, loom))]
mod models;
