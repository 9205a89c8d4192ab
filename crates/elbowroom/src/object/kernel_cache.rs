//! What write calls of the program have left of a file in the kernel's page cache, beside our own frames.
//!
//! It is dropped a while later, not at once: the kernel would have to send it to the device at once then,
//! page by page, though the program may write the same pages again, or make many durable together.

use crate::config::KERNEL_CACHE_BYTES;
use elbowroom_sync::{LockClass, LockStats, Mutex};
use std::ops::Range;

/// The range of a file's bytes in which such pages are.
pub(crate) struct KernelCache {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Noted since the last [`KernelCache::take`].
    new: Range<u64>,
    /// Noted before that: what was dirty when it was dropped is there still.
    old: Range<u64>,
    /// How many bytes were noted since the last [`KernelCache::take`].
    bytes: u64,
}

impl KernelCache {
    pub(crate) fn new(locks: &LockStats) -> Self {
        Self { state: locks.mutex(LockClass::Resize, State::default()) }
    }

    /// Notes that the kernel has these bytes. Tells whether it is so much by now that it should be dropped.
    pub(crate) fn note(&self, bytes: &Range<u64>) -> bool {
        let mut state = self.state.lock();
        state.new = union(&state.new, bytes);
        state.bytes += bytes.end.saturating_sub(bytes.start);
        state.bytes > KERNEL_CACHE_BYTES
    }

    /// The bytes to be dropped now; empty: none. Gives each range twice, since pages that are dirty survive
    /// the first drop.
    pub(crate) fn take(&self) -> Range<u64> {
        let mut state = self.state.lock();
        let new = std::mem::take(&mut state.new);
        state.bytes = 0;
        let old = std::mem::replace(&mut state.old, new.clone());
        union(&old, &new)
    }
}

fn union(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    match (a.is_empty(), b.is_empty()) {
        (true, _) => b.clone(),
        (_, true) => a.clone(),
        _ => a.start.min(b.start)..a.end.max(b.end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_dropped_twice_and_much_of_it_soon() {
        let cache = KernelCache::new(&LockStats::new());
        assert!(cache.take().is_empty());
        assert!(!cache.note(&(4096..8192)) && !cache.note(&(100_000..100_001)));
        assert_eq!(cache.take(), 4096..100_001);
        assert!(!cache.note(&(0..1)));
        assert_eq!(cache.take(), 0..100_001);
        assert_eq!(cache.take(), 0..1);
        assert!(cache.take().is_empty());
        assert!(cache.note(&(0..KERNEL_CACHE_BYTES + 1)));
    }
}
