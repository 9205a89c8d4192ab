//! A cell that has a value, a word, or nothing. Linux: value entries of an xarray (`xa_mk_value`).
//!
//! The word is in the place of the pointer, with its lowest bit set, so a cell has the size of a pointer
//! whatever it holds, and a reader sees one of the three by one load.

use super::{Guard, Slot};
use crate::Arc;
use crate::atomic::{AtomicPtr, Ordering};
use std::marker::PhantomData;
use std::ptr;

/// An optional `Arc`, as in an [`ArcCell`](super::ArcCell), or a word of 63 bits.
///
/// Dropping the cell drops its value at once: no reference loaded from it can outlive it.
pub struct SlotCell<T> {
    /// Null; or from [`Arc::into_raw`], and the owner of that one count; or a word, shifted by a bit, and 1.
    state: AtomicPtr<T>,
    owns: PhantomData<Arc<T>>,
}

impl<T: Send + Sync + 'static> SlotCell<T> {
    /// Pointers to values are even.
    const TAGGED: () = assert!(align_of::<T>() > 1, "a value's address needs a bit for the tag");

    /// A cell that holds nothing.
    pub const fn empty() -> Self {
        let () = Self::TAGGED;
        Self { state: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    /// The present contents of the cell; a reference is valid as long as both the guard and the cell are.
    #[inline]
    pub fn load<'g>(&'g self, guard: &'g Guard) -> Slot<&'g T> {
        let _ = guard;
        let state = self.state.load(Ordering::Acquire);
        if let Some(word) = word_of(state) {
            return Slot::Word(word);
        }
        // SAFETY: the pointer is null or from `Arc::into_raw`, since the only others have their lowest bit
        // set; the `Acquire` load makes its contents visible. The cell's count keeps the value alive while it
        // is in the cell. It leaves the cell in two ways, each later than 'g: to `Guard::retire`, which waits
        // for the guards pinned before then, of which `guard` is one if this load saw the old pointer, and 'g
        // borrows `guard`; or with the cell, which 'g borrows.
        match unsafe { state.as_ref() } {
            Some(value) => Slot::Full(value),
            None => Slot::Empty,
        }
    }

    /// Another handle on the value as it is now, valid without a guard.
    pub fn load_arc(&self, guard: &Guard) -> Option<Arc<T>> {
        let Slot::Full(value) = self.load(guard) else { return None };
        let value = ptr::from_ref(value);
        // SAFETY: `load` shows that the pointer came from `Arc::into_raw` and that the count it stands for
        // cannot go before `guard` does, so the count is at least 1 here; the count added here is the
        // returned handle's.
        unsafe {
            Arc::increment_strong_count(value);
            Some(Arc::from_raw(value))
        }
    }

    /// Publishes `new`, and returns the old contents; a reader sees either. The cell's handle on an old
    /// value is dropped after a grace period; the returned handle is an extra one.
    ///
    /// # Panics
    /// If `new` is a word of more than 63 bits.
    pub fn swap(&self, new: Slot<Arc<T>>, guard: &Guard) -> Slot<Arc<T>> {
        let new = match new {
            Slot::Empty => ptr::null_mut(),
            Slot::Full(value) => Arc::into_raw(value).cast_mut(),
            Slot::Word(word) => {
                assert!(word < 1 << 63, "a slot's word has 63 bits");
                ptr::without_provenance_mut((word << 1 | 1) as usize)
            }
        };
        // `Acquire`, too: the thread that drops the old value must see what its writer stored.
        let old = self.state.swap(new, Ordering::AcqRel);
        if let Some(word) = word_of(old) {
            return Slot::Word(word);
        }
        if old.is_null() {
            return Slot::Empty;
        }
        // SAFETY: a pointer in the cell that is neither null nor a word came from `Arc::into_raw` and stands
        // for one count, which the swap has taken out of the cell for this caller alone.
        let old = unsafe { Arc::from_raw(old) };
        guard.retire(old.clone());
        Slot::Full(old)
    }
}

fn word_of<T>(state: *mut T) -> Option<u64> {
    (state.addr() & 1 != 0).then(|| (state.addr() >> 1) as u64)
}

impl<T> Drop for SlotCell<T> {
    fn drop(&mut self) {
        let state = *self.state.get_mut();
        if !state.is_null() && word_of(state).is_none() {
            // SAFETY: as in `swap`; the cell is gone after this, and `load` borrowed it for its references.
            drop(unsafe { Arc::from_raw(state) });
        }
    }
}

impl<T: Send + Sync + 'static> Default for SlotCell<T> {
    fn default() -> Self {
        Self::empty()
    }
}
