//! The mappings of an object: how many there are, and what happens when the last one is gone.

use super::FileObject;
use crate::group::GroupId;
use elbowroom_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Arc, LockClass, LockStats, Mutex};
use std::ops::Deref;

/// A moment that is set again and again.
pub(super) struct Since {
    made: Instant,
    /// How much later than `made` it is.
    nanos: AtomicU64,
}

impl Since {
    pub(super) fn now() -> Self {
        Self { made: Instant::now(), nanos: AtomicU64::new(0) }
    }

    pub(super) fn set_now(&self) {
        self.nanos.store(self.made.elapsed().as_nanos() as u64, Ordering::Release);
    }

    pub(super) fn moment(&self) -> Instant {
        self.made + Duration::from_nanos(self.nanos.load(Ordering::Acquire))
    }
}

/// A mapping of an object, or a part of one that is being changed: while one of these lives, a file stays
/// open and memory keeps its bytes.
///
/// Locks: `cache` when the first is made; `queue` when the last is dropped, which may be under the layout
/// lock.
pub struct Mapped(Arc<FileObject>);

impl Mapped {
    /// Counts a mapping of the object, for a group: the first one's pays for the object's pages from now on.
    /// [`FileObject::is_closed`] tells afterwards whether it was closed before.
    pub fn new(object: Arc<FileObject>, group: GroupId) -> Self {
        // Under the cache lock, as the closing is: one of the two sees the other.
        let cache = object.cache.lock();
        if object.mappings.fetch_add(1, Ordering::AcqRel) == 0 {
            object.group.set(group);
        }
        drop(cache);
        Self(object)
    }
}

impl Clone for Mapped {
    fn clone(&self) -> Self {
        // It is mapped, so it is not being closed.
        self.0.mappings.fetch_add(1, Ordering::AcqRel);
        Self(self.0.clone())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.0.mappings.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        if !self.0.is_memory() {
            self.0.note_unmapped();
        }
        if let Some(unmapped) = &self.0.unmapped {
            unmapped.push(self.0.clone());
        }
    }
}

impl Deref for Mapped {
    type Target = Arc<FileObject>;

    fn deref(&self) -> &Arc<FileObject> {
        &self.0
    }
}

/// The objects that no mapping is left of: memory, which will never be mapped again and whose pages are to
/// be freed, and files that are to be closed.
pub struct Unmapped {
    objects: Mutex<Vec<Arc<FileObject>>>,
    any: AtomicBool,
}

impl Unmapped {
    /// An empty list.
    pub(super) fn new(locks: &LockStats) -> Arc<Self> {
        let objects = locks.mutex(LockClass::Unmapped, Vec::new());
        Arc::new(Self { objects, any: AtomicBool::new(false) })
    }

    fn push(&self, object: Arc<FileObject>) {
        let mut objects = self.objects.lock();
        objects.push(object);
        self.any.store(true, Ordering::Release);
    }

    /// Whether there is any. Takes no lock, since each unmapping asks.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes all objects.
    pub fn take(&self) -> Vec<Arc<FileObject>> {
        let mut objects = self.objects.lock();
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut *objects)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::object::{ObjectTable, WhenUnmapped};

    /// A thread that asks a slow file for its size keeps no other from unmapping it.
    #[test]
    fn the_last_one_of_a_file_waits_for_nobody() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let table = ObjectTable::new(None, WhenUnmapped::Keep, &LockStats::new());
        let (object, _) = table.open(file.path(), false).unwrap();
        let mapped = Mapped::new(object.clone(), GroupId::ROOT);
        assert!(object.unmapped_since().is_none());
        // Held over fstat. To take it twice in one thread is a deadlock.
        let _asking = object.seen.lock();
        drop(mapped);
        assert!(object.unmapped_since().is_some());
    }
}
