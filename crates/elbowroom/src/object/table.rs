//! The file objects of one manager, by device and inode number.

use super::opened::Counted;
use super::{FileLocking, FileObject, Opened, Unmapped};
use crate::config::OPEN_ROUNDS;
use crate::error::OpenError;
use elbowroom_machine::Errno;
use elbowroom_store::{FileId, Guard, Guards, Inject, Origin, StoreFile};
use elbowroom_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use elbowroom_sync::{Arc, LockClass, LockStats, Mutex};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// The table.
pub struct ObjectTable {
    objects: Mutex<Objects>,
    /// Files that are open.
    opened: Arc<AtomicUsize>,
    serials: AtomicU64,
    /// The objects that no mapping is left of.
    pub(crate) unmapped: Arc<Unmapped>,
    when_unmapped: WhenUnmapped,
    inject: Option<Arc<Inject>>,
    /// What makes sure that no other process uses managed files.
    pub(crate) guards: Option<Arc<Guards>>,
    locks: LockStats,
    /// What the lock of a file's reverse map covers.
    locking: FileLocking,
}

#[derive(Default)]
struct Objects {
    by_id: HashMap<FileId, Arc<FileObject>>,
    /// Files that went to the kernel, which may still map them.
    given: HashSet<FileId>,
}

/// What becomes of a file when no mapping of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenUnmapped {
    /// It stays open for a while.
    Keep,
    /// It is written back and closed.
    Close,
}

/// Which processes may use a file besides ours.
pub(crate) enum Access<'a> {
    /// Any process: what others change is noticed late.
    Anybody,
    /// No other process: the file gets a guard, or is not opened.
    Alone(&'a Arc<Guards>),
}

impl ObjectTable {
    pub(crate) fn new(inject: Option<Arc<Inject>>, when_unmapped: WhenUnmapped, locks: &LockStats) -> Self {
        Self {
            locking: FileLocking::Narrow,
            objects: locks.mutex(LockClass::Objects, Objects::default()),
            opened: Arc::new(AtomicUsize::new(0)),
            serials: AtomicU64::new(1),
            unmapped: Unmapped::new(locks),
            when_unmapped,
            inject,
            guards: None,
            locks: locks.clone(),
        }
    }

    /// The table, with reverse maps that are locked so.
    pub(crate) fn locked(self, locking: FileLocking) -> Self {
        Self { locking, ..self }
    }

    /// The table, with the guards that keep files ours alone.
    pub(crate) fn guarded(self, guards: Option<Arc<Guards>>) -> Self {
        Self { guards, ..self }
    }

    /// A number that no object and no description of this manager has had.
    pub(crate) fn next_serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed)
    }

    /// The object of the file at `path`, opened if need be; opened anew if it must be written and was open
    /// for reading only. In the second place is an object that was given up for it, whose pages the caller
    /// frees.
    pub(crate) fn open(
        &self,
        path: &Path,
        writable: bool,
    ) -> Result<(Arc<FileObject>, Option<Arc<FileObject>>), Errno> {
        let (object, given_up) = self.open_anew(path, writable)?;
        if self.objects.lock().given.contains(&object.id) {
            // The caller does not know whether the kernel still maps it.
            object.set_aliased(true);
        }
        Ok((object, given_up))
    }

    fn open_anew(
        &self,
        path: &Path,
        writable: bool,
    ) -> Result<(Arc<FileObject>, Option<Arc<FileObject>>), Errno> {
        // Opened outside the lock: it may wait for the disk. A second opener's descriptor is dropped again.
        let file = StoreFile::open(path, writable, self.inject.clone())?;
        self.enter(file, None)
    }

    /// [`ObjectTable::open`] for the file that the program has open as `origin`. The caller checks whether
    /// the kernel still maps the file, since a file that went to the kernel may come back.
    pub(crate) fn open_origin(
        &self,
        origin: &Origin,
        writable: bool,
        access: Access<'_>,
    ) -> Result<(Arc<FileObject>, Option<Arc<FileObject>>), OpenError> {
        let Access::Alone(guards) = access else {
            return Ok(self.open_anew(origin.path().as_ref(), writable)?);
        };
        for _ in 0..OPEN_ROUNDS {
            let there = self.find(origin.id()).and_then(|object| Some((object.opened()?, object)));
            if let Some((opened, object)) = there {
                let Some(guard) = opened.guard.filter(|guard| !guard.is_broken()) else {
                    return Err(OpenError::NotAlone);
                };
                if !writable || opened.file.writable() {
                    return Ok((object, None));
                }
                if guard.is_lease() {
                    // The program has it open for writing, so the lease is about to be broken.
                    return Err(OpenError::NotAlone);
                }
                let file = StoreFile::open(origin.path().as_ref(), true, self.inject.clone())?;
                return self.enter_guarded(file, guard);
            }
            let (file, guard) = self.open_guarded(origin, writable, guards)?;
            let entered = self.enter_guarded(file, Arc::new(guard))?;
            if entered.0.file().is_some() {
                return Ok(entered);
            }
        }
        Err(OpenError::Failed(Errno::STALE))
    }

    /// [`ObjectTable::enter`], with a guard. A process that came for the file before the table had it was
    /// let in, and the file was not given to the kernel: this process is announced again, so that the file
    /// is given now.
    fn enter_guarded(
        &self,
        file: StoreFile,
        guard: Arc<Guard>,
    ) -> Result<(Arc<FileObject>, Option<Arc<FileObject>>), OpenError> {
        let entered = self.enter(file, Some(guard))?;
        match entered.0.opened().and_then(|opened| opened.guard) {
            Some(guard) if guard.is_broken() => {
                guard.announce_again();
                Err(OpenError::NotAlone)
            }
            _ => Ok(entered),
        }
    }

    /// Opens the file and gets a guard for it.
    fn open_guarded(
        &self,
        origin: &Origin,
        writable: bool,
        guards: &Arc<Guards>,
    ) -> Result<(StoreFile, Guard), OpenError> {
        let open = || StoreFile::open(origin.path().as_ref(), writable, self.inject.clone());
        if writable && !guards.was_alone(origin.id()) {
            // Before the manager opens it, too: then it is known best which others have it open.
            let guard = guards.watch(origin).ok_or(OpenError::NotAlone)?;
            return Ok((open()?, guard));
        }
        // Each opening of a watched file waits for the thread that answers, ours, too.
        let file = open()?;
        let lease = if writable { None } else { guards.lease(file.id(), file.as_fd()) };
        let guard = lease.or_else(|| guards.watch(origin)).ok_or(OpenError::NotAlone)?;
        Ok((file, guard))
    }

    /// Enters an open file: into the file's object, if that has it open, or if the file is unchanged since
    /// that closed it; else into a new object. In the second place is the object that this replaces.
    fn enter(
        &self,
        file: StoreFile,
        guard: Option<Arc<Guard>>,
    ) -> Result<(Arc<FileObject>, Option<Arc<FileObject>>), Errno> {
        let stat = file.stat()?;
        let opened = Opened { guard, file: Arc::new(file), _counted: Counted::new(&self.opened) };
        let id = opened.file.id();
        loop {
            let there = self.objects.lock().by_id.get(&id).cloned();
            // Not with the table's lock: another thread may have the lock of `seen` and wait for a file
            // that does not answer.
            let unchanged = there.as_ref().is_some_and(|object| object.is_unchanged(&stat));
            let mut objects = self.objects.lock();
            let serial = |object: Option<&Arc<FileObject>>| object.map(|object| object.serial);
            if serial(objects.by_id.get(&id)) != serial(there.as_ref()) {
                continue;
            }
            if let Some(object) = &there {
                match object.opened() {
                    Some(before) => {
                        if opened.file.writable() && !before.file.writable() {
                            object.store_opened(opened);
                        }
                        return Ok((object.clone(), None));
                    }
                    None if unchanged => {
                        object.store_opened(opened);
                        return Ok((object.clone(), None));
                    }
                    None => object.retire(),
                }
            }
            let closed = self.when_unmapped == WhenUnmapped::Close;
            let unmapped = closed.then(|| self.unmapped.clone());
            let object = Arc::new(FileObject::new(
                self.next_serial(),
                opened,
                stat,
                unmapped,
                &self.locks,
                self.locking,
            ));
            objects.by_id.insert(id, object.clone());
            return Ok((object, there));
        }
    }

    /// Memory of `size` bytes that mappings share. The table does not know it: it lives as long as it is
    /// mapped.
    pub(crate) fn memory(&self, size: u64) -> Arc<FileObject> {
        Arc::new(FileObject::memory(
            self.next_serial(),
            size,
            self.unmapped.clone(),
            &self.locks,
            self.locking,
        ))
    }

    /// The object of a file that is open.
    pub(crate) fn find(&self, id: FileId) -> Option<Arc<FileObject>> {
        self.objects.lock().by_id.get(&id).filter(|object| object.file().is_some()).cloned()
    }

    /// How many files are open.
    pub(crate) fn opened(&self) -> usize {
        self.opened.load(Ordering::Acquire)
    }

    /// All objects, those whose file is closed among them.
    pub(crate) fn all(&self) -> Vec<Arc<FileObject>> {
        self.objects.lock().by_id.values().cloned().collect()
    }

    /// Forgets the object if no mapping maps it and its cache is empty.
    pub(crate) fn forget_if_unused(&self, object: &FileObject) {
        let mut objects = self.objects.lock();
        if object.retire_if_unused() {
            objects.take_out(object);
        }
    }

    /// Forgets the object, whose file went to the kernel.
    pub(crate) fn give(&self, object: &FileObject) {
        let mut objects = self.objects.lock();
        object.retire();
        objects.take_out(object);
        objects.given.insert(object.id);
    }
}

impl Objects {
    fn take_out(&mut self, object: &FileObject) {
        if self.by_id.get(&object.id).is_some_and(|there| there.serial == object.serial) {
            self.by_id.remove(&object.id);
        }
    }
}
