//! The open file objects of one manager, by device and inode number.

use super::{FileObject, Unmapped};
use elbowroom_machine::Errno;
use elbowroom_store::{FileId, Inject, StoreFile};
use elbowroom_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use elbowroom_sync::{Arc, LockClass, LockStats, Mutex};
use std::collections::HashMap;
use std::path::Path;

/// The table.
pub struct ObjectTable {
    objects: Mutex<HashMap<FileId, Arc<FileObject>>>,
    count: AtomicUsize,
    serials: AtomicU64,
    /// Memory that nobody maps any more.
    pub(crate) unmapped: Arc<Unmapped>,
    inject: Option<Arc<Inject>>,
    locks: LockStats,
}

impl ObjectTable {
    pub(crate) fn new(inject: Option<Arc<Inject>>, locks: &LockStats) -> Self {
        Self {
            objects: locks.mutex(LockClass::Objects, HashMap::new()),
            count: AtomicUsize::new(0),
            serials: AtomicU64::new(1),
            unmapped: Unmapped::new(locks),
            inject,
            locks: locks.clone(),
        }
    }

    /// The object of the file at `path`, opened if need be; opened anew if it must be written and so far was not.
    pub(crate) fn open(&self, path: &Path, writable: bool) -> Result<Arc<FileObject>, Errno> {
        // Opened outside the lock: it may wait for the disk. A second opener's descriptor is dropped again.
        let file = StoreFile::open(path, writable, self.inject.clone())?;
        let mut objects = self.objects.lock();
        if let Some(object) = objects.get(&file.id()) {
            if writable && !object.file().writable() {
                object.replace_file(file);
            }
            return Ok(object.clone());
        }
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let object = Arc::new(FileObject::new(serial, file, &self.locks)?);
        objects.insert(object.id, object.clone());
        self.count.store(objects.len(), Ordering::Release);
        Ok(object)
    }

    /// Memory of `size` bytes that mappings share. The table does not know it: it lives as long as it is mapped.
    pub(crate) fn memory(&self, size: u64) -> Arc<FileObject> {
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        Arc::new(FileObject::memory(serial, size, self.unmapped.clone(), &self.locks))
    }

    pub(crate) fn find(&self, id: FileId) -> Option<Arc<FileObject>> {
        self.objects.lock().get(&id).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn all(&self) -> Vec<Arc<FileObject>> {
        self.objects.lock().values().cloned().collect()
    }

    /// Closes and forgets the object if nobody maps it and its cache is empty.
    pub(crate) fn forget_if_unused(&self, object: &FileObject) {
        let mut objects = self.objects.lock();
        if object.close_if_unused() {
            objects.remove(&object.id);
        }
        self.count.store(objects.len(), Ordering::Release);
    }
}
