//! A file while it is open, and how it is closed when no mapping of it is left.
//!
//! An object may outlive its open file: its clean pages stay in the cache, and are used again if the same
//! file is opened again and is unchanged. So a program that has closed and unmapped a file finds no
//! descriptor of ours in its way (executing it, taking a lease, unmounting), and one that maps a file again
//! and again finds its pages.

use super::FileObject;
use crate::config::{CLOSE_BOUND, TIME_GRAIN};
use elbowroom_store::{FileStat, Guard, Origin, StoreFile};
use elbowroom_sync::atomic::{AtomicUsize, Ordering};
use elbowroom_sync::time::{Instant, SystemTime, UNIX_EPOCH};
use elbowroom_sync::{Arc, thread};

/// An open file.
#[derive(Clone)]
pub(crate) struct Opened {
    /// What keeps it ours alone. Dropped before the file: its lease is known by the file's descriptor.
    pub(crate) guard: Option<Arc<Guard>>,
    pub(crate) file: Arc<StoreFile>,
    pub(crate) _counted: Arc<Counted>,
}

/// Counts one open file of a manager, as long as it lives.
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Arc<Self> {
        count.fetch_add(1, Ordering::AcqRel);
        Arc::new(Self(count.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Size and times of a file, as they were when it was looked at last.
pub(crate) fn last_seen(object: &FileObject) -> FileStat {
    object.seen.lock().stat
}

impl FileObject {
    /// The open file; `None`: it is closed, or memory.
    pub(crate) fn opened(&self) -> Option<Opened> {
        self.opened.read(Option::clone)
    }

    /// Stores the open file: it was opened again, or for writing, too.
    pub(super) fn store_opened(&self, opened: Opened) {
        self.opened.store(Some(opened));
    }

    /// Whether the file must be opened anew before it is mapped.
    pub(crate) fn is_closed(&self) -> bool {
        self.cache.lock().closed || !self.is_memory() && self.file().is_none()
    }

    /// Whether any mapping maps it.
    pub(crate) fn is_mapped(&self) -> bool {
        self.mappings.load(Ordering::Acquire) > 0
    }

    /// Whether the file looks as it did when it was closed.
    pub(super) fn is_unchanged(&self, now: &FileStat) -> bool {
        let seen = last_seen(self);
        (seen.size, seen.mtime_ns, seen.ctime_ns) == (now.size, now.mtime_ns, now.ctime_ns)
    }

    /// Whether the file changed so shortly before it was looked at that a further change could show the same
    /// times: kernels before 6.13 tell times by the tick.
    pub(crate) fn changed_just_now(&self) -> bool {
        let changed_ns = last_seen(self).ctime_ns;
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as i128);
        now_ns - changed_ns < TIME_GRAIN.as_nanos() as i128
    }

    /// Closes the file if no mapping maps it and nothing of it is dirty; its pages stay. When this returns
    /// true, no descriptor of it is open, unless a thread is still using one after [`CLOSE_BOUND`]. When
    /// the file is opened again, what fstat says then is compared with what it said last.
    pub(crate) fn close_file(&self) -> bool {
        let opened = {
            // Mapping it is counted under this lock.
            let _cache = self.cache.lock();
            if self.is_mapped() || self.has_dirty() {
                return false;
            }
            let Some(opened) = self.opened() else { return true };
            self.opened.store(None);
            opened
        };
        drop(opened.guard);
        let until = Instant::now() + CLOSE_BOUND;
        // A thread that uses it is in the middle of a system call, or about to drop it.
        while Arc::strong_count(&opened.file) > 1 && Instant::now() < until {
            thread::yield_now();
        }
        true
    }

    /// Begins to give the file to the kernel; `false`: another thread does.
    pub(crate) fn begin_giving(&self) -> bool {
        !self.giving.swap(true, Ordering::AcqRel)
    }

    /// Ends what [`FileObject::begin_giving`] has begun.
    pub(crate) fn end_giving(&self) {
        self.giving.store(false, Ordering::Release);
    }

    /// Whether a lease makes sure that no process has the file open for writing.
    pub fn is_leased(&self) -> bool {
        self.opened().and_then(|opened| opened.guard).is_some_and(|guard| guard.is_lease())
    }

    /// Gives the object up for good: when the file is opened again, it gets a new object. The file is
    /// closed when its last user is done.
    pub(crate) fn retire(&self) {
        self.cache.lock().closed = true;
    }

    /// Closes the file of an object that was retired and is not mapped.
    pub(crate) fn close_retired(&self) {
        self.opened.store(None);
    }

    /// Retires the object if its cache is empty and no mapping maps it; tells whether it is retired.
    pub(super) fn retire_if_unused(&self) -> bool {
        let mut cache = self.cache.lock();
        cache.closed |= self.pages.is_empty() && self.mappings.load(Ordering::Acquire) == 0;
        cache.closed
    }

    /// The open file description `origin` or, if the file is mapped through the same description already,
    /// the value that is known of it. Neighbouring mappings through one description may be merged.
    pub(crate) fn known_origin(&self, origin: Origin) -> Arc<Origin> {
        let mut origins = self.origins.lock();
        origins.retain(|known| known.strong_count() > 0);
        let known: Vec<_> = origins.iter().filter_map(|known| known.upgrade()).collect();
        let before = origin.serial();
        let origin = origin.or_known(known);
        if origin.serial() == before {
            origins.push(Arc::downgrade(&origin));
        }
        origin
    }
}
