//! Writes through descriptors that are under way.
//!
//! Between a write(2) and the moment its bytes are in our cached pages, those pages are stale, and writing
//! one back would undo the write. So a write is announced first, and write-back leaves the pages of its range
//! alone until it ends.

use elbowroom_sync::atomic::{AtomicUsize, Ordering};
use elbowroom_sync::{LockClass, LockStats, Mutex};
use std::ops::Range;

/// The announced writes of one file.
pub struct Writers {
    active: Mutex<Vec<(u64, Range<u64>)>>,
    count: AtomicUsize,
}

/// An announced write; ends with `Manager::write_end`.
#[must_use = "write-back of the range waits until the write ends"]
pub struct WriteTicket {
    pub(crate) object: elbowroom_sync::Arc<super::FileObject>,
    pub(crate) number: u64,
}

impl Writers {
    pub(super) fn new(locks: &LockStats) -> Self {
        Self { active: locks.mutex(LockClass::Resize, Vec::new()), count: AtomicUsize::new(0) }
    }

    /// Announces a write to the bytes `range`; returns its number.
    pub(crate) fn begin(&self, range: Range<u64>) -> u64 {
        let mut active = self.active.lock();
        let number = active.last().map_or(0, |(n, _)| n + 1);
        active.push((number, range));
        self.count.store(active.len(), Ordering::Release);
        number
    }

    /// Ends an announced write.
    pub(crate) fn end(&self, number: u64) {
        let mut active = self.active.lock();
        active.retain(|(n, _)| *n != number);
        self.count.store(active.len(), Ordering::Release);
    }

    /// Whether any write is under way.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether a write to one of the bytes is under way.
    pub(crate) fn overlap(&self, range: &Range<u64>) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.active.lock().iter().any(|(_, r)| r.start < range.end && range.start < r.end)
    }
}
