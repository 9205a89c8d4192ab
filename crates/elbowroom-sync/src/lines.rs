//! Keeps data that is written off the cache lines of data that is only read.

use std::ops::{Deref, DerefMut};

/// A value on cache lines of its own: writes to its neighbours in memory do not slow its readers down.
///
/// 64 bytes a line, as on all machines that this runs on. Linux: `____cacheline_aligned_in_smp`.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Lines<T>(pub T);

impl<T> Deref for Lines<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Lines<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
