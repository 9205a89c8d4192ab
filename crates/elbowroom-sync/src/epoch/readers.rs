//! Who is inside a read-side section, and how long a writer waits for them.
//!
//! Each thread that reads has a record with a count of its turns: odd inside a section, even outside. A
//! writer that has taken something out of a structure looks at all records, once. Whose count is odd may
//! still use what was taken out; nobody else can find it any more. When each of those few has another count,
//! the grace period is over. So it ends with the last section that could matter, and there is no number that
//! all readers look at. Linux: the context-tracking counters that RCU looks at (`rcu_watching_snap_save`,
//! `rcu_watching_snap_stopped_since`).
//!
//! Why it is enough: a reader makes its count odd, passes a full barrier, and then loads pointers; a writer
//! stores a pointer, passes a full barrier, and then looks at the counts. One barrier comes first. If the
//! writer's does, the reader loads the new pointer; if the reader's does, the writer sees the count odd, or
//! what it became later, and with it all that the reader did in the section. A record that is new while the
//! writer looks is the first case, or is found.
//!
//! A record is never freed. A thread that ends gives it back, for another; what it could not dispose of yet
//! (`S`, its list) is taken out by the next writer that looks at all records.
//!
//! "The owner" below is the thread that `take` gave the record to, until it gives it back. That the caller
//! is the owner is a condition of all methods of a [`Reader`], which the module `epoch` keeps: it calls them
//! on the thread's own record only.

use crate::Mutant;
use crate::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering, fence};
use crate::cell::UnsafeCell;
use std::ptr;
// Of the owner alone, so a model need not branch on them.
use std::sync::atomic as plain;

/// Nobody's, and its list is empty.
const FREE: u8 = 0;
/// A thread's.
const OWNED: u8 = 1;
/// Nobody's, with something in its list.
const LEFT: u8 = 2;

/// In tests of the tests: a section begins without a barrier.
const MUTANT_NO_BARRIER: Mutant = Mutant::new("no_barrier");
/// In tests of the tests: a writer does not pass a barrier before it looks.
const MUTANT_NO_LOOK_BARRIER: Mutant = Mutant::new("no_look_barrier");
/// In tests of the tests: what was read in a section may come after its end.
const MUTANT_RELAXED_LEAVE: Mutant = Mutant::new("relaxed_leave");
/// In tests of the tests: who takes the list out need not see that the record was given back.
const MUTANT_RELAXED_GIVE_BACK: Mutant = Mutant::new("relaxed_give_back");

/// How a section ends.
fn leave() -> Ordering {
    if MUTANT_RELAXED_LEAVE.planted() { Ordering::Relaxed } else { Ordering::Release }
}

/// How a record is given back.
fn give_back() -> Ordering {
    if MUTANT_RELAXED_GIVE_BACK.planted() { Ordering::Relaxed } else { Ordering::Release }
}

/// All records.
pub(super) struct Readers<S: 'static> {
    /// The newest; each leads to the one before it.
    first: AtomicPtr<Reader<S>>,
}

/// One thread's record, on cache lines of its own.
#[repr(align(64))]
pub(super) struct Reader<S: 'static> {
    /// Odd inside a section. Only the owner stores.
    turns: AtomicU64,
    /// `FREE`, `OWNED` or `LEFT`.
    ownership: AtomicU8,
    /// Set before others see the record.
    next: *const Reader<S>,
    /// Guards of the owner that live.
    depth: plain::AtomicU64,
    /// There is something to do when the section ends.
    due: plain::AtomicBool,
    list: UnsafeCell<S>,
}

// SAFETY: `next` is set before the record is shared and points to a record, which is never freed. `list` is
// only reached by the owner (the condition of `with_list`), to whom it is handed by `ownership`, so it moves
// between threads (`S: Send`) but is never shared.
unsafe impl<S: Send> Sync for Reader<S> {}
// SAFETY: the same.
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

    /// All records that there were when it was called, and perhaps newer ones.
    fn iter(&self) -> impl Iterator<Item = &'static Reader<S>> {
        // Acquire: a record is seen as it was made.
        let mut at: *const Reader<S> = self.first.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: null, or a record that was published by `take` and is never freed.
            let reader = unsafe { at.as_ref() }?;
            at = reader.next;
            Some(reader)
        })
    }

    /// A record for the calling thread alone, until it gives it back. Its list is empty.
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
        // Release: others see it whole. Acquire: and so what it leads to.
        while let Err(other) = self.first.compare_exchange(first, reader, Ordering::AcqRel, Ordering::Relaxed)
        {
            first = other;
            reader.next = first;
        }
        reader
    }

    /// Takes what threads that have ended left in their lists.
    pub(super) fn take_left(&self, mut each: impl FnMut(S)) {
        for reader in self.iter().filter(|reader| reader.take_over(LEFT)) {
            // SAFETY: the record is this thread's.
            each(unsafe { reader.with_list(std::mem::take) });
            reader.ownership.store(FREE, give_back());
        }
    }

    /// Ends all sections but that of `own`: their threads are not in this process.
    ///
    /// # Safety
    /// The calling thread is the only one of the process, just forked, and `own` is its record, if it has
    /// one.
    #[cfg(not(loom))]
    pub(super) unsafe fn end_all_but(&self, own: Option<&'static Reader<S>>) {
        for reader in self.iter().filter(|reader| own.is_none_or(|own| !ptr::eq(own, *reader))) {
            let turns = reader.turns.load(Ordering::Relaxed);
            // Its ownership stays: what its thread was doing with the list may be half done.
            reader.turns.store(turns + turns % 2, Ordering::Release);
        }
    }

    /// Begins a grace period, of which `grace` is to tell the end: for all that the caller, or whose doings
    /// it has seen, has taken out.
    pub(super) fn begin(&self, grace: &mut Grace<S>) {
        grace.0.clear();
        if !MUTANT_NO_LOOK_BARRIER.planted() {
            fence(Ordering::SeqCst);
        }
        // Acquire: what a section did that has ended is done.
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
                // On this machine an exchange is a full barrier, and half as dear as the fence; the compiler
                // keeps to the order, too. The language's rules alone do not order it before the loads that
                // follow, so models run the other branch.
                self.turns.swap(turns, Ordering::SeqCst);
                plain::compiler_fence(Ordering::SeqCst);
            } else {
                // Release: who sees this count, and not the end of the section before, sees that it is over
                // all the same.
                self.turns.store(turns, Ordering::Release);
                if !MUTANT_NO_BARRIER.planted() {
                    fence(Ordering::SeqCst);
                }
            }
        }
        self.depth.store(depth + 1, plain::Ordering::Relaxed);
    }

    /// Undoes one `enter`. Tells whether the section has ended and something is due.
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

    /// Whether the end of each section is to tell that something is due.
    #[inline]
    pub(super) fn set_due(&self, due: bool) {
        self.due.store(due, plain::Ordering::Relaxed);
    }

    /// Whether the owner is in a section.
    pub(super) fn is_inside(&self) -> bool {
        self.depth.load(plain::Ordering::Relaxed) > 0
    }

    /// Gives the record back; `left_some`: with something in its list. The caller is the owner no more.
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
    /// The caller is the owner, and `f` does not come here again.
    #[inline]
    pub(super) unsafe fn with_list<R>(&self, f: impl FnOnce(&mut S) -> R) -> R {
        // SAFETY: the owner is one thread, which is not here already.
        self.list.with_mut(|list| f(unsafe { &mut *list }))
    }

    /// Makes the record the calling thread's if it is as said: `FREE` or `LEFT`.
    fn take_over(&self, from: u8) -> bool {
        // A look first: an exchange that fails would take the line from an owner that begins a section.
        // Acquire: the owner before has left it.
        self.ownership.load(Ordering::Relaxed) == from
            && self.ownership.compare_exchange(from, OWNED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// The end of a grace period: those whose sections it waits for, and the count that each had.
pub(super) struct Grace<S: 'static>(Vec<(&'static Reader<S>, u64)>);

impl<S> Grace<S> {
    /// One that is over.
    pub(super) const fn over() -> Self {
        Self(Vec::new())
    }

    /// Whether all those sections have ended; what was done in them is done. Once true, always true.
    #[inline]
    pub(super) fn is_over(&mut self) -> bool {
        while let Some((reader, turns)) = self.0.last() {
            // Acquire: what the section did is done.
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
