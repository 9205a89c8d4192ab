//! The epoch on the machine's own atomics.

use super::limbo::Limbo;
use super::readers::{self, Readers};
use crate::blocking::{Inside, entered, left};
use crate::thread::look_around;
use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Values that share one look at all readers. With larger batches more memory and cache would wait; with
/// smaller ones there would be more looks.
const BATCH: usize = 64;
/// How often a thread that flushes, or ends, checks whether the last readers are gone, before it leaves its
/// values for later: some microseconds.
const LOOKS: u32 = 80;
/// How often it then yields the processor to them, with a check after each.
const YIELDS: u32 = 8;

/// A value that waits to be dropped.
type Retired = Arc<dyn Retire>;
type Reader = readers::Reader<RetireList>;
/// A grace period of this process.
pub(super) type Grace = readers::Grace<RetireList>;

static READERS: Readers<RetireList> = Readers::new();

trait Retire: Send + Sync {}
impl<T: Send + Sync> Retire for T {}

/// The values that a thread has retired and not dropped yet.
#[derive(Default)]
pub(super) struct RetireList {
    /// Values retired since the last look at the readers.
    filling: Vec<Retired>,
    /// Batches with their grace periods, in the order in which they began, so that the first one ends
    /// first.
    waiting: VecDeque<(Grace, Vec<Retired>)>,
    /// An empty vector whose memory is used again.
    spare: Vec<Retired>,
    /// Whether a look at the readers is due even if the batch is not full.
    flush: bool,
    /// Whether the thread is dropping values; a drop may retire more values, and end sections.
    disposing: bool,
}

std::thread_local! {
    /// The thread's record. It has no destructor, so that it can be used until the thread has ended.
    static READER: Cell<Option<&'static Reader>> = const { Cell::new(None) };
    static AT_THREAD_END: AtThreadEnd = const { AtThreadEnd };
}

/// Gives the thread's record back when the thread ends.
struct AtThreadEnd;

impl AtThreadEnd {
    /// Whether the destructor of this thread-local has run, or is running.
    fn is_over() -> bool {
        AT_THREAD_END.try_with(|_| ()).is_err()
    }
}

impl Drop for AtThreadEnd {
    fn drop(&mut self) {
        // Another destructor of the thread may be in a section, or begin one later: then the drop of its
        // outermost guard gives the record back.
        if READER.get().is_some() {
            pin().flush();
        }
    }
}

/// Runs `f` on what this thread has retired. `f` drops nothing and begins no section.
#[inline]
fn with_list<R>(reader: &'static Reader, f: impl FnOnce(&mut RetireList) -> R) -> R {
    // SAFETY: a thread only reaches its own record: by `READER`, and by a guard, which keeps the record
    // from being given back. Only drops of values and of guards could call this again, and `f` does
    // neither.
    unsafe { reader.with_list(f) }
}

/// A read-side section: while it lives, nothing that this thread can load from an [`ArcCell`] is dropped.
///
/// Belongs to its thread. Guards nest; an inner one costs next to nothing. Linux: `rcu_read_lock`.
pub struct Guard {
    reader: &'static Reader,
    not_send: PhantomData<*const ()>,
}

/// Begins a read-side section of this thread, which ends when the guard is dropped.
#[inline]
pub fn pin() -> Guard {
    let reader = READER.get().unwrap_or_else(|| register());
    reader.enter();
    entered(Inside::Section);
    Guard { reader, not_send: PhantomData }
}

/// Gets a record for the thread: at its first section, or at one after its destructors have run.
#[cold]
fn register() -> &'static Reader {
    let reader = READERS.take();
    READER.set(Some(reader));
    // `is_over` accesses `AT_THREAD_END`, which registers its destructor. If that has already run, the
    // thread gives the record back at the end of its section.
    reader.set_due(AtThreadEnd::is_over());
    reader
}

/// In the child of a fork: ends the sections of all threads that exist in the parent only. Otherwise
/// nothing would ever be dropped in the child. Values that those threads had retired are never dropped.
///
/// # Safety
/// The calling thread is the only one of its process, which has just come from a fork.
pub unsafe fn after_fork() {
    // SAFETY: passed on; the record is the thread's own.
    unsafe { READERS.end_all_but(READER.get()) };
}

impl Guard {
    /// Has the values that this thread has retired dropped when its outermost guard is dropped. The thread
    /// then waits some microseconds for readers; if they stay longer, the values are dropped at the end of
    /// a later section. Without this call, values are dropped every few dozen retirements.
    pub fn flush(&self) {
        with_list(self.reader, |list| list.flush = true);
        self.reader.set_due(true);
    }

    /// Has `old`, which has just left its cell, dropped after a grace period.
    #[inline]
    pub(super) fn retire<T: Send + Sync + 'static>(&self, old: Arc<T>) {
        let filled = with_list(self.reader, |list| {
            list.filling.push(old);
            list.filling.len()
        });
        if filled >= BATCH {
            self.reader.set_due(true);
        }
    }

    /// Begins a grace period for values that have left their cells before; `grace` tells its end. It waits
    /// for this guard, too.
    pub(super) fn begin(&self, grace: &mut Grace) {
        READERS.begin(grace);
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        left(Inside::Section);
        if self.reader.leave() {
            dispose(self.reader);
        }
    }
}

/// Drops the values whose grace period is over, outside of any section.
#[cold]
fn dispose(reader: &'static Reader) {
    if with_list(reader, |list| std::mem::replace(&mut list.disposing, true)) {
        // This is a section that ended inside one of the drops below.
        return;
    }
    let _end = EndOfDisposal(reader);
    while let Some(mut values) = with_list(reader, RetireList::next) {
        // The drops may retire more values, which the next turn of the loop sees.
        values.clear();
        with_list(reader, |list| list.spare = values);
    }
}

/// Ends a disposal, even if a drop panics.
struct EndOfDisposal(&'static Reader);

impl Drop for EndOfDisposal {
    fn drop(&mut self) {
        let reader = self.0;
        with_list(reader, |list| {
            list.disposing = false;
            reader.set_due(!list.waiting.is_empty());
        });
        if !AtThreadEnd::is_over() {
            return;
        }
        // A destructor may have left a guard alive, whose drop comes here again.
        if reader.is_inside() {
            reader.set_due(true);
        } else {
            READER.set(None);
            reader.give_back(with_list(reader, |list| !list.is_empty()));
        }
    }
}

impl RetireList {
    fn is_empty(&self) -> bool {
        self.filling.is_empty() && self.waiting.is_empty()
    }

    /// The next batch that no reader can reach any more, after a look at all readers if one is due.
    fn next(&mut self) -> Option<Vec<Retired>> {
        let flush = std::mem::take(&mut self.flush);
        if flush || self.filling.len() >= BATCH {
            self.close_batch();
        }
        if flush && let Some((last, _)) = self.waiting.back_mut() {
            look_around(LOOKS, YIELDS, || last.is_over());
        }
        self.waiting.pop_front_if(|(grace, _)| grace.is_over()).map(|(_, values)| values)
    }

    /// Begins a grace period for the values that were retired since the last one, and for those that ended
    /// threads have left.
    fn close_batch(&mut self) {
        READERS.take_left(|left| {
            self.filling.extend(left.filling);
            self.filling.extend(left.waiting.into_iter().flat_map(|(_, values)| values));
        });
        if !self.filling.is_empty() {
            let mut grace = Grace::over();
            READERS.begin(&mut grace);
            let next = std::mem::take(&mut self.spare);
            self.waiting.push_back((grace, std::mem::replace(&mut self.filling, next)));
        }
    }
}

/// An optional `Arc` that readers load without touching its count.
///
/// A pointer in size. Dropping the cell drops its value at once: no reference loaded from it can outlive it.
pub struct ArcCell<T> {
    /// From [`Arc::into_raw`], and the owner of that one count; null for none.
    value: AtomicPtr<T>,
    owns: PhantomData<Arc<T>>,
}

impl<T: Send + Sync + 'static> ArcCell<T> {
    /// A cell that holds nothing.
    pub const fn empty() -> Self {
        Self { value: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    /// A cell that holds `value`.
    pub fn new(value: Arc<T>) -> Self {
        Self { value: AtomicPtr::new(into_raw(Some(value))), owns: PhantomData }
    }

    /// The value as it is now, valid as long as both the guard and the cell are.
    #[inline]
    pub fn load<'g>(&'g self, guard: &'g Guard) -> Option<&'g T> {
        let _ = guard;
        // SAFETY: the pointer is null or from `Arc::into_raw`, and the `Acquire` load makes its contents
        // visible. The cell's count keeps the value alive while it is in the cell. It leaves the cell in
        // three ways, each later than 'g: to `Guard::retire` or to a `Limbo`, which both wait for the guards
        // pinned before then, of which `guard` is one if this load saw the old pointer, and 'g borrows
        // `guard`; or with the cell, which 'g borrows.
        unsafe { self.value.load(Ordering::Acquire).as_ref() }
    }

    /// Another handle on the value as it is now, valid without a guard.
    pub fn load_arc(&self, guard: &Guard) -> Option<Arc<T>> {
        let value = ptr::from_ref(self.load(guard)?);
        // SAFETY: `load` shows that the pointer came from `Arc::into_raw` and that the count it stands for
        // cannot go before `guard` does, so the count is at least 1 here; the count added here is the
        // returned handle's.
        unsafe {
            Arc::increment_strong_count(value);
            Some(Arc::from_raw(value))
        }
    }

    /// Publishes `value`. A reader sees the old value or this one; the cell's handle on the old one is
    /// dropped after a grace period.
    #[inline]
    pub fn store(&self, value: Option<Arc<T>>, guard: &Guard) {
        if let Some(old) = self.exchange(value) {
            guard.retire(old);
        }
    }

    /// As [`store`](Self::store), and returns an extra handle on the old value.
    pub fn swap(&self, value: Option<Arc<T>>, guard: &Guard) -> Option<Arc<T>> {
        let old = self.exchange(value)?;
        guard.retire(old.clone());
        Some(old)
    }

    /// As [`store`](Self::store) of `value`, but the old value goes to `limbo`, and back to the writer
    /// after a grace period.
    #[inline]
    pub fn store_reusing(&self, value: Arc<T>, limbo: &mut Limbo<T>, guard: &Guard) {
        if let Some(old) = self.exchange(Some(value)) {
            limbo.retire(old, guard);
        }
    }

    /// Takes the value out of a cell that no other thread can use, so that no grace period is needed.
    pub fn take(&mut self) -> Option<Arc<T>> {
        self.exchange(None)
    }

    /// Puts `value` in and returns the cell's own handle on the old one, which readers may still use.
    #[inline]
    fn exchange(&self, value: Option<Arc<T>>) -> Option<Arc<T>> {
        // `Acquire`, too: the thread that drops the old value must see what its writer stored.
        let old = self.value.swap(into_raw(value), Ordering::AcqRel);
        // SAFETY: a non-null pointer in the cell came from `Arc::into_raw` and stands for one count, which
        // the swap has taken out of the cell for this caller alone.
        (!old.is_null()).then(|| unsafe { Arc::from_raw(old) })
    }
}

#[inline]
fn into_raw<T>(value: Option<Arc<T>>) -> *mut T {
    value.map_or(ptr::null_mut(), |value| Arc::into_raw(value).cast_mut())
}

impl<T> Drop for ArcCell<T> {
    fn drop(&mut self) {
        let value = *self.value.get_mut();
        if !value.is_null() {
            // SAFETY: as in `exchange`; the cell is gone after this, and `load` borrowed it for its
            // references.
            drop(unsafe { Arc::from_raw(value) });
        }
    }
}

impl<T: Send + Sync + 'static> Default for ArcCell<T> {
    fn default() -> Self {
        Self::empty()
    }
}
