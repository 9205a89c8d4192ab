//! The memory of slots: chunks that are allocated when they are needed and freed with the table, so that a
//! slot never moves.

use super::word::Slot;
use crate::atomic::{AtomicPtr, Ordering};
use std::marker::PhantomData;
use std::ptr;

/// Slots in a chunk, all of which one `insert` may have to make. Few under loom, which has to keep track of
/// each.
const CHUNK: usize = if cfg!(loom) { 2 } else { 128 };

/// An array of slots that grows.
pub(super) struct Chunks<T> {
    /// Each is null, or points to the first of `CHUNK` slots that came from a box. A null pointer is
    /// replaced by a chunk once, for good.
    heads: Box<[AtomicPtr<Slot<T>>]>,
    owns: PhantomData<Box<Slot<T>>>,
}

impl<T> Chunks<T> {
    /// Room for `limit` slots, none made.
    pub(super) fn new(limit: u32) -> Self {
        let heads = (0..(limit as usize).div_ceil(CHUNK)).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        Self { heads, owns: PhantomData }
    }

    /// A slot, if its chunk has been made.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Slot<T>> {
        // Acquire: the contents of the new chunk are seen.
        let head = self.heads.get(number as usize / CHUNK)?.load(Ordering::Acquire);
        if head.is_null() {
            return None;
        }
        // SAFETY: `head` is the first of `CHUNK` slots, which live until `self` is dropped.
        Some(unsafe { &*head.add(number as usize % CHUNK) })
    }

    /// Makes the chunk of a slot below the limit, if it has not been made. The caller has the layout lock for
    /// writing.
    pub(super) fn make(&self, number: u32) {
        let head = &self.heads[number as usize / CHUNK];
        if head.load(Ordering::Relaxed).is_null() {
            let chunk: Box<[Slot<T>]> = (0..CHUNK).map(|_| Slot::new()).collect();
            head.store(Box::into_raw(chunk).cast(), Ordering::Release);
        }
    }
}

impl<T> Drop for Chunks<T> {
    fn drop(&mut self) {
        for head in &self.heads {
            let head = head.load(Ordering::Relaxed);
            if !head.is_null() {
                // SAFETY: it came from a box of `CHUNK` slots, and nobody borrows it any more.
                drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(head, CHUNK)) });
            }
        }
    }
}
