//! Files: what mappings map. One object per device and inode, with the page cache that all its mappings
//! share.
//!
//! Synchronization: the index of folios is read under RCU and changed under the `cache` lock, which may be
//! taken with a folio's lock held; no folio's lock is waited for under it. Sizes are atomics: a size is
//! stored before pages beyond it are dropped, and checked again by a fault that has locked the folio.

mod kernel_cache;
mod mapped;
mod opened;
mod rmap;
mod table;
mod writers;

use mapped::Since;
pub use mapped::{Mapped, Unmapped};
pub(crate) use opened::{Opened, last_seen};
pub(crate) use rmap::{FileLocking, Kept, MappedRange, Standing, Which};
pub(crate) use table::Access;
pub use table::{ObjectTable, WhenUnmapped};
pub use writers::{WriteTicket, Writers};

use crate::group::GroupCell;
use crate::page::{Flag, Folio};
use elbowroom_index::{XArray, xarray::Mark};
use elbowroom_machine::{Errno, PAGE_SHIFT, PAGE_SIZE};
use elbowroom_store::{FileId, FileStat, Origin, StoreFile};
use elbowroom_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use elbowroom_sync::epoch::pin;
use elbowroom_sync::time::Instant;
use elbowroom_sync::{Arc, LockClass, LockStats, Mutex, RcuCell, Weak};
use kernel_cache::KernelCache;
use rmap::ReverseMap;
use std::ops::Range;

/// All pages that an object, or a space, can have.
pub(crate) const ALL_PAGES: Range<u64> = 0..u64::MAX >> PAGE_SHIFT;
/// No access to a page was made to fail.
const NONE_DENIED: u64 = u64::MAX;

/// A managed file, or memory that mappings share.
pub struct FileObject {
    /// Device and inode number.
    pub(crate) id: FileId,
    /// A number that no other object of this manager has had.
    pub(crate) serial: u64,
    /// The group that pays for its new folios: that of the mapping that was the first.
    pub(crate) group: GroupCell,
    /// Memory that has no file behind it.
    memory: bool,
    /// The open file; `None`: the object is memory, or the file was closed and not mapped since; its clean
    /// pages stay, for when it is opened again.
    opened: RcuCell<Option<Opened>>,
    size: AtomicU64,
    /// The folios; those that differ from the file are marked dirty.
    pages: XArray<Folio>,
    cache: Mutex<Cache>,
    /// Writes through descriptors that are being made.
    pub(crate) writers: Writers,
    /// How many [`Mapped`] there are.
    mappings: AtomicUsize,
    /// Where it is mapped.
    pub(crate) rmap: ReverseMap,
    /// The list to which the object goes when no mapping of it is left, to be freed or closed at once;
    /// `None`: it is kept for a while.
    unmapped: Option<Arc<Unmapped>>,
    /// What fstat said last, and whether our own changes explain it.
    seen: Mutex<Seen>,
    /// What the kernel has cached of it since a write call.
    pub(crate) kernel_cache: KernelCache,
    /// A thread is giving the file to the kernel.
    giving: AtomicBool,
    /// The program's descriptions that it is mapped through.
    origins: Mutex<Vec<Weak<Origin>>>,
    /// The first write-back error since the last [`FileObject::take_error`], as an errno; 0: none. An
    /// atomic, since handlers record errors, too.
    error: AtomicU32,
    /// In the page of this byte, what lies behind the byte may have been stored when it was beyond the end
    /// of the file. Changed with the lock of the page's folio, if there is one.
    settled: AtomicU64,
    /// The smallest size that the file was seen with since stores beyond it were dropped; `u64::MAX`: it did
    /// not shrink.
    cut: AtomicU64,
    /// When it was unmapped last, or made.
    unmapped_at: Since,
    /// It was mapped privately: there may be copies of its pages.
    private: AtomicBool,
    /// The program has stored to a mapping of it without the right to.
    strict: AtomicBool,
    /// A read of it failed since the last [`FileObject::take_unreadable`].
    unreadable: AtomicBool,
    /// The first page to which an access may have been made to fail since denials were undone last.
    denied_from: AtomicU64,
    /// How many threads are undoing denials of its pages.
    undoing: AtomicU32,
    /// A folio of it goes from one mapping to another all the time.
    bouncing: AtomicBool,
    /// It is left to the kernel, since it is used through several mappings at once.
    aliased: AtomicBool,
    /// A number that the user of the manager keeps with the file.
    mark: AtomicU64,
}

/// What the cache lock guards besides changes of the index.
#[derive(Default)]
struct Cache {
    /// It was closed: nothing may be inserted any more.
    closed: bool,
}

struct Seen {
    stat: FileStat,
    /// How many changes of our own are under way. Each changes what fstat says, at an unknown moment.
    own_changes: usize,
    /// What fstat says has changed while one was under way: by that one, or by another process.
    doubtful: bool,
}

/// Why a folio was not inserted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InsertError {
    /// The cache has a folio in its range already.
    Exists,
    /// The object was closed; open the file anew.
    Closed,
}

impl FileObject {
    pub(crate) fn new(
        serial: u64,
        opened: Opened,
        stat: FileStat,
        unmapped: Option<Arc<Unmapped>>,
        locks: &LockStats,
        locking: FileLocking,
    ) -> Self {
        Self::with(serial, opened.file.id(), stat, Some(opened), unmapped, (locks, locking))
    }

    /// Memory of `size` bytes that mappings share, zero at first. Linux: `shmem_zero_setup`.
    fn memory(
        serial: u64,
        size: u64,
        unmapped: Arc<Unmapped>,
        locks: &LockStats,
        locking: FileLocking,
    ) -> Self {
        let stat = FileStat { size, mtime_ns: 0, ctime_ns: 0, links: 0 };
        let id = FileId { device: 0, inode: serial };
        Self::with(serial, id, stat, None, Some(unmapped), (locks, locking))
    }

    fn with(
        serial: u64,
        id: FileId,
        stat: FileStat,
        opened: Option<Opened>,
        unmapped: Option<Arc<Unmapped>>,
        (locks, locking): (&LockStats, FileLocking),
    ) -> Self {
        let seen = Seen { stat, own_changes: 0, doubtful: false };
        Self {
            id,
            serial,
            group: GroupCell::root(),
            memory: opened.is_none(),
            opened: RcuCell::new(opened),
            size: AtomicU64::new(stat.size),
            pages: XArray::new(),
            cache: locks.mutex(LockClass::Cache, Cache::default()),
            writers: Writers::new(locks),
            mappings: AtomicUsize::new(0),
            rmap: ReverseMap::new(locks, locking),
            unmapped,
            seen: locks.mutex(LockClass::Resize, seen),
            kernel_cache: KernelCache::new(locks),
            giving: AtomicBool::new(false),
            origins: locks.mutex(LockClass::Resize, Vec::new()),
            error: AtomicU32::new(0),
            settled: AtomicU64::new(stat.size),
            cut: AtomicU64::new(u64::MAX),
            unmapped_at: Since::now(),
            private: AtomicBool::new(false),
            strict: AtomicBool::new(false),
            unreadable: AtomicBool::new(false),
            denied_from: AtomicU64::new(NONE_DENIED),
            undoing: AtomicU32::new(0),
            bouncing: AtomicBool::new(false),
            aliased: AtomicBool::new(false),
            mark: AtomicU64::new(0),
        }
    }

    /// Whether it has no file behind it: its folios are the only place of their bytes.
    pub(crate) fn is_memory(&self) -> bool {
        self.memory
    }

    /// Device and inode number.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Whether pages of it differ from the file. May be late by one store that is under way.
    pub fn has_dirty(&self) -> bool {
        self.pages.any(Mark::Dirty)
    }

    /// A number that the user of the manager keeps with the file; 0 at first, and again whenever the
    /// manager has forgotten the file.
    pub fn mark(&self) -> u64 {
        self.mark.load(Ordering::Acquire)
    }

    /// Sets the number that [`FileObject::mark`] returns.
    pub fn set_mark(&self, mark: u64) {
        self.mark.store(mark, Ordering::Release);
    }

    /// The first write-back error since the last call: msync, fsync and close report it once.
    pub fn take_error(&self) -> Option<Errno> {
        let number = self.error.swap(0, Ordering::AcqRel);
        (number != 0).then(|| Errno::from_raw_os_error(number as i32))
    }

    /// Whether the file is open for writing, so that its mappings may be stored to.
    pub fn is_open_for_writing(&self) -> bool {
        self.file().is_some_and(|file| file.writable())
    }

    pub(crate) fn record_error(&self, error: Errno) {
        let number = error.raw_os_error() as u32;
        // One that is there already stays: it came first.
        let _ = self.error.compare_exchange(0, number, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Its file; `None`: it is memory, or closed.
    pub(crate) fn file(&self) -> Option<Arc<StoreFile>> {
        self.opened.read(|opened| opened.as_ref().map(|opened| opened.file.clone()))
    }

    /// The file's size in bytes, as far as known.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// The number of pages with bytes of the file.
    pub(crate) fn size_pages(&self) -> u64 {
        self.size().div_ceil(PAGE_SIZE as u64)
    }

    /// Asks the file with fstat, and stores its size. Returns what fstat said before. With the lock of
    /// `seen`, so that of two threads that ask at once the later answer is stored last.
    fn ask(&self, seen: &mut Seen) -> Result<FileStat, Errno> {
        let Some(file) = self.file() else { return Ok(seen.stat) };
        let stat = file.stat()?;
        if stat.size < self.size.swap(stat.size, Ordering::AcqRel) {
            self.cut.fetch_min(stat.size, Ordering::AcqRel);
            self.settled.fetch_min(stat.size, Ordering::AcqRel);
        }
        Ok(std::mem::replace(&mut seen.stat, stat))
    }

    /// The smallest size that the file was seen with since the last call, if it has shrunk.
    pub(crate) fn take_cut(&self) -> Option<u64> {
        let cut = self.cut.swap(u64::MAX, Ordering::AcqRel);
        (cut != u64::MAX).then_some(cut)
    }

    /// Undoes [`FileObject::take_cut`]: not all pages beyond `size` could be dropped.
    pub(crate) fn note_cut(&self, size: u64) {
        self.cut.fetch_min(size, Ordering::AcqRel);
    }

    /// The size up to which no page has stores that were made beyond the end of the file.
    pub(crate) fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }

    /// Notes that below `size`, which the file had, no page has stores that were made beyond its end.
    ///
    /// Locks: `resize`, under which a cut of the file lowers the number: it is not beyond a size that the
    /// file has had since.
    pub(crate) fn settle(&self, size: u64) {
        let _seen = self.seen.lock();
        self.settled.fetch_max(size.min(self.size()), Ordering::AcqRel);
    }

    /// Looks the size up again.
    pub(crate) fn refresh_size(&self) -> Result<u64, Errno> {
        let mut seen = self.seen.lock();
        let before = self.ask(&mut seen)?;
        // Only the size was asked for: whose change it was is still to be found out.
        seen.stat = before;
        Ok(self.size())
    }

    /// Begins a change of our own: a write-back, or a call of the program's. Until [`FileObject::end_change`]
    /// what the file looks like is taken for our own doing. Tells what [`FileObject::changed_by_others`]
    /// does.
    pub(crate) fn begin_change(&self) -> bool {
        let mut seen = self.seen.lock();
        let foreign = self.look(&mut seen);
        seen.own_changes += 1;
        foreign
    }

    /// Ends a change of our own.
    pub(crate) fn end_change(&self) -> Result<(), Errno> {
        let mut seen = self.seen.lock();
        seen.own_changes -= 1;
        self.ask(&mut seen).map(|_| ())
    }

    /// Takes what the file looks like now as our own doing, in the middle of a change of ours.
    pub(crate) fn note_own_change(&self) -> Result<(), Errno> {
        self.ask(&mut self.seen.lock()).map(|_| ())
    }

    /// Whether another process has changed the file since we last looked; looks the size up again. Tells of
    /// each change once. A change of the file's name or rights counts, too: the time of the inode's change
    /// (ctime) is the only one that no program can set back.
    pub(crate) fn changed_by_others(&self) -> bool {
        self.look(&mut self.seen.lock())
    }

    fn look(&self, seen: &mut Seen) -> bool {
        let Ok(before) = self.ask(seen) else { return false };
        let of = |stat: &FileStat| (stat.size, stat.mtime_ns, stat.ctime_ns);
        let changed = of(&before) != of(&seen.stat);
        seen.doubtful |= changed && seen.own_changes > 0;
        changed && seen.own_changes == 0
    }

    /// Whether, since the last call, another process may have changed the file during a change of our own.
    /// Never so if the file is ours alone.
    pub(crate) fn take_doubt(&self) -> bool {
        let doubtful = std::mem::take(&mut self.seen.lock().doubtful);
        doubtful && self.opened().is_some_and(|opened| opened.guard.is_none())
    }

    /// The folio that has page `index`. Takes no lock.
    pub(crate) fn lookup(&self, index: u64) -> Option<Arc<Folio>> {
        self.pages.load_arc(index, &pin())
    }

    /// The largest order, at most `order`, of a folio that has page `index` and would overlap nothing in the
    /// cache nor reach beyond page `end`. Only a hint: nothing is locked.
    pub(crate) fn free_order(&self, index: u64, order: u8, end: u64) -> u8 {
        self.pages.free_order(index, order, end, &pin())
    }

    pub(crate) fn insert(&self, folio: &Arc<Folio>) -> Result<(), InsertError> {
        let cache = self.cache.lock();
        if cache.closed {
            return Err(InsertError::Closed);
        }
        let stored = self.pages.writer().store(folio.index, folio.order, folio.clone());
        stored.map(|_| ()).map_err(|_| InsertError::Exists)
    }

    /// Takes the folio out of the cache. The caller holds its lock, so that no other thread uses it
    /// meanwhile.
    pub(crate) fn remove(&self, folio: &Folio) {
        if !folio.state.set(Flag::Dead) {
            let _cache = self.cache.lock();
            self.pages.writer().erase(folio.index);
        }
    }

    /// Whether any page of `pages` is in the cache.
    pub(crate) fn has_any(&self, pages: Range<u64>) -> bool {
        !self.pages.is_empty() && self.pages.range(pages, &pin()).next().is_some()
    }

    /// The folios with pages in `pages`.
    pub(crate) fn folios_in(&self, pages: Range<u64>) -> Vec<Arc<Folio>> {
        self.pages.range(pages, &pin()).arcs().map(|entry| entry.value).collect()
    }

    /// The folios with pages in `pages` that are mapped anywhere. Of the others not even the reference
    /// count is touched.
    pub(crate) fn mapped_in(&self, pages: Range<u64>) -> Vec<Arc<Folio>> {
        let epoch = pin();
        let mapped = self.pages.range(pages, &epoch).filter(|entry| entry.value.state.test(Flag::Mapped));
        mapped.filter_map(|entry| self.pages.load_arc(entry.index, &epoch)).collect()
    }

    /// The dirty folios with pages in `pages`.
    pub(crate) fn dirty_in(&self, pages: Range<u64>) -> Vec<Arc<Folio>> {
        self.pages.marked(pages, Mark::Dirty, &pin()).arcs().map(|entry| entry.value).collect()
    }

    /// Marks the folio dirty in the index. The caller has the folio's lock.
    pub(crate) fn index_dirty(&self, folio: &Folio) {
        let _cache = self.cache.lock();
        self.pages.writer().set_mark(folio.index, Mark::Dirty);
    }

    /// Undoes [`FileObject::index_dirty`]. The caller has the folio's lock.
    pub(crate) fn index_clean(&self, folio: &Folio) {
        let _cache = self.cache.lock();
        self.pages.writer().clear_mark(folio.index, Mark::Dirty);
    }

    /// Whether pages must be write-protected from the moment they are mapped: the program is known to store
    /// where it may not.
    pub(crate) fn is_strict(&self) -> bool {
        self.strict.load(Ordering::Relaxed)
    }

    /// Notes that a read failed: accesses that failed for it may be tried again after a while.
    pub(crate) fn note_unreadable(&self) {
        self.unreadable.store(true, Ordering::Relaxed);
    }

    /// Whether a read failed since the last call.
    pub(crate) fn take_unreadable(&self) -> bool {
        self.unreadable.swap(false, Ordering::Relaxed)
    }

    /// Notes that an access to a page is about to be made to fail. Called before the last look whether it
    /// must fail.
    pub(crate) fn note_denied(&self, index: u64) {
        self.denied_from.fetch_min(index, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// If [`FileObject::note_denied`] was called for a page that is inside the file now: how many pages the
    /// file has. The caller undoes the denials of these pages, and then calls [`FileObject::end_undoing`].
    /// Call this after the change that makes such accesses succeed.
    ///
    /// Gives the number also while another thread undoes denials, and may not have undone all yet: a thread
    /// that has made a file grow goes on only when its pages can be accessed.
    pub(crate) fn begin_undoing(&self) -> Option<u64> {
        fence(Ordering::SeqCst);
        if self.denied_from.load(Ordering::Acquire) == NONE_DENIED {
            return None;
        }
        self.undoing.fetch_add(1, Ordering::SeqCst);
        let end = self.size_pages();
        // Denials from `end` on stay noted: an access there may be about to fail just now.
        let from = self.denied_from.fetch_max(end, Ordering::SeqCst);
        if from < end || self.undoing.load(Ordering::SeqCst) > 1 {
            return Some(end);
        }
        self.end_undoing();
        None
    }

    /// The denials for which [`FileObject::begin_undoing`] gave a number are undone.
    pub(crate) fn end_undoing(&self) {
        self.undoing.fetch_sub(1, Ordering::SeqCst);
    }

    /// Notes that a folio goes from one mapping to another all the time.
    pub(crate) fn note_bouncing(&self) {
        self.bouncing.store(true, Ordering::Relaxed);
    }

    /// Whether [`FileObject::note_bouncing`] was called since the last call.
    pub(crate) fn take_bouncing(&self) -> bool {
        self.bouncing.swap(false, Ordering::Relaxed)
    }

    /// Leaves the file to the kernel, or takes it back; a thread that maps it just now asks
    /// [`FileObject::is_aliased`] afterwards.
    pub(crate) fn set_aliased(&self, aliased: bool) {
        self.aliased.store(aliased, Ordering::SeqCst);
    }

    /// Whether it is left to the kernel.
    pub(crate) fn is_aliased(&self) -> bool {
        self.aliased.load(Ordering::SeqCst)
    }

    pub(crate) fn make_strict(&self) {
        self.strict.store(true, Ordering::Relaxed);
    }

    /// Since when no mapping maps it; `None` while one does.
    pub(crate) fn unmapped_since(&self) -> Option<Instant> {
        if self.mappings.load(Ordering::Acquire) > 0 {
            return None;
        }
        Some(self.unmapped_at.moment())
    }

    fn note_unmapped(&self) {
        self.unmapped_at.set_now();
    }

    /// Notes that it is about to be mapped privately.
    pub(crate) fn note_private(&self) {
        self.private.store(true, Ordering::SeqCst);
    }

    /// Whether there may be copies of its pages. To be called after a full fence: a thread that makes a
    /// copy later sees what was stored before the fence.
    pub(crate) fn may_have_copies(&self) -> bool {
        self.private.load(Ordering::SeqCst)
    }

    /// The byte range of the file that the pages cover, up to its end.
    pub(crate) fn bytes_of(&self, pages: Range<u64>) -> Range<u64> {
        let size = self.size();
        (pages.start << PAGE_SHIFT).min(size)..(pages.end << PAGE_SHIFT).min(size)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::{Config, Manager, Soft};

    /// A thread that settles a file's end may take long, and the file may be cut meanwhile.
    #[test]
    fn what_was_settled_is_not_beyond_the_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let manager = Manager::<Soft>::start_on(Config::with_memory(16 << 20)).unwrap();
        let object = manager.open(file.path(), true).unwrap();
        let resize = |size| {
            file.as_file().set_len(size).unwrap();
            object.refresh_size().unwrap();
        };
        resize(20_000);
        assert_eq!(object.settled(), 0);
        let seen = object.size();
        resize(12_000);
        object.settle(seen);
        assert_eq!(object.settled(), 12_000);
        resize(20_000);
        object.settle(object.size());
        assert_eq!(object.settled(), 20_000);
    }
}
