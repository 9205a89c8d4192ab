//! The epoch on `crossbeam-epoch`.

use super::limbo::Limbo;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A read-side section: while it lives, nothing that this thread can load from an [`ArcCell`] is dropped.
///
/// Belongs to its thread. Guards nest; an inner one costs next to nothing. Linux: `rcu_read_lock`.
pub struct Guard {
    inner: crossbeam_epoch::Guard,
}

/// Begins a read-side section of this thread, which ends when the guard is dropped. May drop retired values.
#[inline]
pub fn pin() -> Guard {
    Guard { inner: crossbeam_epoch::pin() }
}

impl Guard {
    /// Hands what this thread has retired to the collector now, and drops what may go. Otherwise that happens
    /// every few dozen retirements.
    pub fn flush(&self) {
        self.inner.flush();
    }

    /// Drops `old`, which has just left its cell, after a grace period.
    fn retire<T: Send + Sync + 'static>(&self, old: Arc<T>) {
        self.defer(move || drop(old));
    }

    /// Runs `f` after a grace period, on any thread.
    pub(super) fn defer(&self, f: impl FnOnce() + Send + 'static) {
        self.inner.defer(f);
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
        // SAFETY: the pointer is null or from `Arc::into_raw`, and the `Acquire` load makes its contents visible.
        // The cell's count keeps the value alive while it is in the cell. It leaves the cell in three ways, each later
        // than 'g: to `Guard::retire` or to a `Limbo`, which both wait for the guards pinned before then, of which
        // `guard` is one if this load saw the old pointer, and 'g borrows `guard`; or with the cell, which 'g borrows.
        unsafe { self.value.load(Ordering::Acquire).as_ref() }
    }

    /// Another handle on the value as it is now, valid without a guard.
    pub fn load_arc(&self, guard: &Guard) -> Option<Arc<T>> {
        let value = ptr::from_ref(self.load(guard)?);
        // SAFETY: `load` shows that the pointer came from `Arc::into_raw` and that the count it stands for cannot go
        // before `guard` does, so the count is at least 1 here; the count added here is the returned handle's.
        unsafe {
            Arc::increment_strong_count(value);
            Some(Arc::from_raw(value))
        }
    }

    /// Publishes `value`. A reader sees the old value or this one; the cell's handle on the old one is dropped after a
    /// grace period.
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

    /// As [`store`](Self::store) of `value`, but `limbo` gets the old one, and back to the writer after a grace period.
    #[inline]
    pub fn store_reusing(&self, value: Arc<T>, limbo: &mut Limbo<T>, guard: &Guard) {
        if let Some(old) = self.exchange(Some(value)) {
            limbo.retire(old, guard);
        }
    }

    /// Takes the value out of a cell that nobody else uses; nothing is deferred.
    pub fn take(&mut self) -> Option<Arc<T>> {
        self.exchange(None)
    }

    /// Puts `value` in and returns the cell's own handle on the old one, which readers may still use.
    #[inline]
    fn exchange(&self, value: Option<Arc<T>>) -> Option<Arc<T>> {
        // `Acquire` too: dropping the old value needs what its writer did.
        let old = self.value.swap(into_raw(value), Ordering::AcqRel);
        // SAFETY: a non-null pointer in the cell came from `Arc::into_raw` and stands for one count, which the swap has
        // taken out of the cell for this caller alone.
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
            // SAFETY: as in `exchange`; the cell is gone after this, and `load` borrowed it for its references.
            drop(unsafe { Arc::from_raw(value) });
        }
    }
}

impl<T: Send + Sync + 'static> Default for ArcCell<T> {
    fn default() -> Self {
        Self::empty()
    }
}
