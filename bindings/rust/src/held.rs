//! A mapping: how it is made and changed, and how it is given up.
//!
//! A file is the manager's or the kernel's, never both, since the bytes in their two caches would differ
//! (docs/decisions/0015-one-owner.md). If the kernel must map a file that is managed, the file goes to the
//! kernel first, with all of its mappings, at the same addresses. While the kernel maps a file in this process,
//! all further mappings of it are the kernel's, too.
//!
//! So each verb exists twice: for a mapping that the manager serves, and for one that the kernel serves. A
//! file may go to the kernel between the look at who serves it and the verb; then the manager says that
//! nothing is mapped there, and the kernel's verb follows.
//!
//! Synchronization: the table of files that have mappings is under a mutex, which is held for moments only.

use crate::budget::{self, Inner};
use crate::house::{self, House};
use elbowroom_machine::PAGE_SIZE;
use elbowroom_manager::{Advice, Errno, FileId, GroupId, MapRequest, OpenError, Origin, Place, Prot, Remap};
use elbowroom_manager::{FileObject, Sharing};
use libc::c_int;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often a file is opened anew that was closed between opening and mapping it.
const STALE_ROUNDS: usize = 16;

/// What a mapping is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Loads.
    Read,
    /// Loads, and stores that reach the file.
    Write,
    /// Loads, and stores that stay in the mapping.
    Copy,
    /// Loads, and later perhaps stores that stay in the mapping.
    CopyReadOnly,
    /// Loads, and execution.
    Exec,
}

impl Mode {
    fn prot(self) -> Prot {
        match self {
            Mode::Read | Mode::CopyReadOnly | Mode::Exec => Prot::READ,
            Mode::Write | Mode::Copy => Prot::READ.union(Prot::WRITE),
        }
    }

    fn kernels_prot(self) -> c_int {
        match self {
            Mode::Read | Mode::CopyReadOnly => libc::PROT_READ,
            Mode::Write | Mode::Copy => libc::PROT_READ | libc::PROT_WRITE,
            Mode::Exec => libc::PROT_READ | libc::PROT_EXEC,
        }
    }

    fn sharing(self) -> Sharing {
        match self {
            Mode::Read | Mode::Write | Mode::Exec => Sharing::Shared,
            Mode::Copy | Mode::CopyReadOnly => Sharing::Private,
        }
    }
}

/// What else is asked for.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// Bring the pages in now, as far as that can be done.
    pub populate: bool,
    /// Do not promise memory and swap for all of it.
    pub no_reserve: bool,
    /// Manage a file that is stored to also if other processes may change it: what they write is seen late.
    pub trust: bool,
    /// The budget; `None`: that of the process.
    pub budget: Option<Arc<Inner>>,
}

/// What to map of an open file.
#[derive(Debug, Clone, Copy)]
pub struct FilePart {
    /// The descriptor, in the calling thread's table.
    pub fd: RawFd,
    /// Where in the file, in bytes; a multiple of the page size.
    pub offset: u64,
    /// Bytes, more than 0.
    pub len: usize,
    /// What the mapping is for.
    pub mode: Mode,
}

/// A mapping, which is unmapped when the value is dropped.
#[derive(Debug)]
pub struct Held {
    start: usize,
    len: usize,
    /// What the budget has promised for it, in bytes.
    promised: u64,
    budget: Option<Arc<Inner>>,
    /// Whether all of its bytes are promised when it grows.
    is_promised: bool,
    /// A descriptor with which the kernel can make a shared mapping that is only loaded from one to store to.
    spare: Option<OwnedFd>,
    /// Where in the file it begins, in bytes.
    offset: u64,
    /// Stores to it reach the file.
    stores: bool,
    reason: Option<&'static str>,
    file: Option<Mapped>,
}

/// What is known of a file that has mappings.
#[derive(Default)]
struct MappedFile {
    /// Mappings of the file, by whomever.
    mappings: usize,
    /// Mappings that the kernel was to serve from the beginning, or since they can be stored to.
    kernels: usize,
    /// The file went to the kernel, and the kernel has mappings that were managed before.
    given: bool,
}

/// The files that have mappings.
static MAPPED: Mutex<Option<HashMap<FileId, MappedFile>>> = Mutex::new(None);

/// The table of the files that have mappings, locked.
pub struct MappedFiles(MutexGuard<'static, Option<HashMap<FileId, MappedFile>>>);

impl MappedFiles {
    /// Locks the table. A thread that forks holds the lock meanwhile, so that the child's copy is not that of
    /// another thread, which would never unlock it there.
    pub fn lock() -> Self {
        Self(MAPPED.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn mapped_files<R>(look: impl FnOnce(&mut HashMap<FileId, MappedFile>) -> R) -> R {
    look(MappedFiles::lock().0.get_or_insert_default())
}

/// Counts a mapping of a file as long as it lives.
#[derive(Debug)]
struct Mapped {
    id: FileId,
    /// The kernel is to serve it.
    kernels: bool,
}

impl Mapped {
    fn new(id: FileId, kernels: bool) -> Self {
        mapped_files(|files| {
            let file = files.entry(id).or_default();
            file.mappings += 1;
            file.kernels += usize::from(kernels);
        });
        Self { id, kernels }
    }

    /// The kernel is to serve the mapping from now on.
    fn note_kernels(&mut self) {
        if !self.kernels {
            self.kernels = true;
            mapped_files(|files| files.entry(self.id).or_default().kernels += 1);
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        mapped_files(|files| {
            let Some(file) = files.get_mut(&self.id) else { return };
            file.mappings -= 1;
            file.kernels -= usize::from(self.kernels);
            if file.mappings == 0 {
                files.remove(&self.id);
            }
        });
    }
}

/// Called by the manager before the kernel maps a file that was managed.
pub fn note_given(id: FileId) {
    mapped_files(|files| {
        if let Some(file) = files.get_mut(&id) {
            file.given = true;
        }
    });
}

/// This process is a forked child: its copy of the manager maps no files.
pub static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// What came of an attempt to have the manager map a file.
enum Attempt {
    /// `stores`: the manager can let it be stored to.
    Managed { held: Held, stores: bool },
    /// The kernel has to map it, for this reason.
    Kernels(&'static str),
}

/// What of an open file counts for a mapping of it.
struct Looked {
    id: FileId,
    /// The descriptor permits stores.
    writable: bool,
    /// Why the manager cannot map such a file.
    reason: Option<&'static str>,
}

impl Held {
    /// Maps a part of a file.
    ///
    /// # Errors
    /// Those of mmap(2). PermissionDenied: the descriptor does not permit it. Unsupported: there is no
    /// manager.
    pub fn of_file(part: FilePart, wishes: Wishes) -> io::Result<Self> {
        let looked = look(&part)?;
        let id = looked.id;
        let house = house::house()?;
        let reason = looked.reason.or_else(|| known_reason(id));
        let tid = own_tid();
        let reason = match reason {
            Some(reason) => reason,
            None => {
                let (counted, wishes) = (Mapped::new(id, false), wishes.clone());
                let writable = looked.writable;
                let attempt =
                    house.ask(move |house| by_manager(house, tid, &part, wishes, counted, writable));
                match attempt? {
                    // Another thread may have had the kernel map the file meanwhile.
                    Attempt::Managed { mut held, stores } => match known_reason(id) {
                        Some(reason) => reason,
                        None => {
                            if part.mode == Mode::Read && looked.writable && !stores {
                                held.keep_spare(&part)?;
                            }
                            return Ok(held);
                        }
                    },
                    Attempt::Kernels(reason) => reason,
                }
            }
        };
        // Entered before the file is given up, so that no other thread has the manager map it meanwhile.
        let counted = Mapped::new(id, true);
        house.ask(move |house| house.space.give_file(id))?;
        let start = by_kernel(&part, &wishes)?;
        Ok(Self {
            start,
            len: part.len,
            promised: 0,
            budget: None,
            is_promised: false,
            spare: None,
            offset: part.offset,
            stores: part.mode == Mode::Write,
            reason: Some(reason),
            file: Some(counted),
        })
    }

    /// Maps anonymous memory, of zeros.
    ///
    /// # Errors
    /// OutOfMemory: the budget does not have so much. Unsupported: there is no manager.
    pub fn of_memory(len: usize, huge: bool, wishes: Wishes) -> io::Result<Self> {
        let house = house::house()?;
        let rounded = len.checked_next_multiple_of(PAGE_SIZE).ok_or(io::ErrorKind::InvalidInput)?;
        let promised = if wishes.no_reserve { 0 } else { rounded as u64 };
        budget::promise(wishes.budget.as_deref(), promised)?;
        let unmapped = Self {
            start: 0,
            len: 0,
            promised,
            budget: wishes.budget.clone(),
            is_promised: !wishes.no_reserve,
            spare: None,
            offset: 0,
            stores: false,
            reason: None,
            file: None,
        };
        house.ask(move |house| {
            let request = request(len, Mode::Copy, None, 0, &wishes);
            let start = house.space.map(MapRequest { may_write: true, ..request })?;
            let mut held = unmapped;
            (held.start, held.len) = (start, len);
            if huge {
                house.space.advise(start, rounded, Advice::HugePage)?;
            }
            Ok(held)
        })
    }

    /// Its first address.
    #[inline]
    pub fn start(&self) -> usize {
        self.start
    }

    /// Whether the manager serves it now. A mapping of a file can go to the kernel at any time.
    pub fn is_managed(&self) -> bool {
        house::started().is_some_and(|house| house.manager.windows().covers(self.start, self.len))
    }

    /// Why the kernel has mapped it from the beginning, if so.
    pub fn reason(&self) -> Option<&'static str> {
        self.reason
    }

    /// Keeps the descriptor, with which the kernel can make the mapping one to store to.
    fn keep_spare(&mut self, part: &FilePart) -> io::Result<()> {
        // SAFETY: the caller has the descriptor open for as long as the call lasts; `look` has seen it.
        let fd = unsafe { BorrowedFd::borrow_raw(part.fd) }.try_clone_to_owned()?;
        let file = id_of(&stat(fd.as_raw_fd())?);
        // Another thread may have closed the descriptor, and opened another file under its number.
        if self.file.as_ref().is_none_or(|mapped| mapped.id != file) {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        self.spare = Some(fd);
        Ok(())
    }

    /// Has the manager do a verb, if it serves the mapping, else the kernel.
    fn verb(
        &self,
        managed: impl FnOnce(&'static House) -> Result<(), Errno> + Send + 'static,
        kernel: impl FnOnce() -> c_int,
    ) -> io::Result<()> {
        if self.is_managed()
            && let Some(house) = house::started()
        {
            match house.ask(managed) {
                Ok(()) => return Ok(()),
                // It went to the kernel meanwhile.
                Err(_) if !self.is_managed() => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        if kernel() == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The pages that have a byte of a range, as address and length; `None`: the range has none.
    fn pages(&self, from: usize, len: usize) -> Option<(usize, usize)> {
        let first = self.start + from / PAGE_SIZE * PAGE_SIZE;
        let end = self.start + from + len;
        (len > 0).then(|| (first, end - first))
    }

    /// Writes what was stored to a range of it to the file. `wait`: until it is durable; else the flusher
    /// does it within a second.
    ///
    /// # Errors
    /// The first error of a write-back since the last call.
    pub fn flush(&self, from: usize, len: usize, wait: bool) -> io::Result<()> {
        let Some((at, len)) = self.pages(from, len) else { return Ok(()) };
        let sync = move |house: &'static House| {
            if wait { house.space.sync(at, len, true, false) } else { house.space.sync_later(at, len, false) }
        };
        let flags = if wait { libc::MS_SYNC } else { libc::MS_ASYNC };
        // SAFETY: the range is this mapping's, which is not unmapped while it is borrowed.
        self.verb(sync, || unsafe { libc::msync(at as *mut _, len, flags) })
    }

    /// Acts on advice for the pages of a range. `kernels`: the number that madvise(2) has for it.
    ///
    /// # Errors
    /// Those of madvise(2).
    pub fn advise(&self, from: usize, len: usize, advice: Advice, kernels: c_int) -> io::Result<()> {
        let Some((at, len)) = self.pages(from, len) else { return Ok(()) };
        // SAFETY: as for `flush`. Whether the bytes may change is the caller's to know.
        self.verb(
            move |house| house.space.advise(at, len, advice),
            || unsafe { libc::madvise(at as *mut _, len, kernels) },
        )
    }

    /// Locks the mapping, or unlocks it.
    ///
    /// # Errors
    /// Those of mlock(2).
    pub fn lock(&self, locked: bool) -> io::Result<()> {
        let (at, len) = (self.start, self.len);
        let change = move |house: &'static House| {
            if locked { house.space.lock(at, len, false) } else { house.space.unlock(at, len) }
        };
        // SAFETY: as for `flush`.
        self.verb(change, || unsafe {
            if locked { libc::mlock(at as *const _, len) } else { libc::munlock(at as *const _, len) }
        })
    }

    /// Permits loads, and stores if `stores`.
    ///
    /// # Errors
    /// Those of mprotect(2). PermissionDenied: the file was not open for writing.
    pub fn protect(&mut self, stores: bool) -> io::Result<()> {
        if stores && self.spare.is_some() {
            return self.store_by_kernel();
        }
        self.stores |= stores;
        let (at, len) = (self.start, self.len);
        let (prot, kernels) = if stores {
            (Prot::READ | Prot::WRITE, libc::PROT_READ | libc::PROT_WRITE)
        } else {
            (Prot::READ, libc::PROT_READ)
        };
        self.verb(
            move |house| house.space.protect(at, len, prot),
            // SAFETY: as for `flush`; the mapping is borrowed alone.
            || unsafe { libc::mprotect(at as *mut _, len, kernels) },
        )
    }

    /// Permits loads and execution. The kernel maps it from then on.
    ///
    /// # Errors
    /// Those of mprotect(2), and of giving the mapping to the kernel.
    pub fn protect_exec(&mut self) -> io::Result<()> {
        let (at, len) = (self.start, self.len.next_multiple_of(PAGE_SIZE));
        if let Some(file) = &mut self.file {
            file.note_kernels();
        }
        if self.is_managed()
            && let Some(house) = house::started()
        {
            house.ask(move |house| house.space.hand_back(at, len))?;
        }
        let prot = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: as for `flush`; the mapping is borrowed alone.
        if unsafe { libc::mprotect(at as *mut _, len, prot) } == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Makes a mapping that the manager only loads for one that the kernel maps, to store to.
    fn store_by_kernel(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let (id, at, len) = (file.id, self.start, self.len);
        // Before the file is given, so that no other thread has the manager map it afterwards.
        file.note_kernels();
        if let Some(house) = house::started() {
            house.ask(move |house| house.space.give_file(id))?;
        }
        let Some(spare) = self.spare.take() else { return Ok(()) };
        self.stores = true;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        let (fd, offset) = (spare.as_raw_fd(), self.offset as libc::off_t);
        // SAFETY: replaces this mapping, which is the kernel's and borrowed alone, by one of the same bytes.
        let mapped = unsafe { libc::mmap(at as *mut _, len, prot, flags, fd, offset) };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Makes it `len` bytes long, more than 0. `may_move`: at another address if need be.
    ///
    /// # Errors
    /// Those of mremap(2). OutOfMemory: there is no room behind it; or the budget does not have so much.
    pub fn remap(&mut self, len: usize, may_move: bool) -> io::Result<()> {
        let too_large = || io::Error::from(io::ErrorKind::InvalidInput);
        let (old, at) = (self.len.next_multiple_of(PAGE_SIZE), self.start);
        let new = len.checked_next_multiple_of(PAGE_SIZE).ok_or_else(too_large)?;
        let more = if self.is_promised { new.saturating_sub(old) as u64 } else { 0 };
        budget::promise(self.budget.as_deref(), more)?;
        let moved = self.remap_pages(at, old, new, may_move);
        match moved {
            Ok(start) => {
                let less = if self.is_promised { old.saturating_sub(new) as u64 } else { 0 };
                budget::end_promise(self.budget.as_deref(), less);
                self.promised = self.promised + more - less;
                (self.start, self.len) = (start, len);
                Ok(())
            }
            Err(error) => {
                budget::end_promise(self.budget.as_deref(), more);
                Err(error)
            }
        }
    }

    /// Writes what was stored from a byte of the mapping on to the file, so that it is there when the pages
    /// are unmapped. An error is reported by the next flush of the file.
    fn write_back(&self, house: &'static House, from: usize) {
        let Some(Mapped { id, .. }) = self.file.as_ref().filter(|_| self.stores) else { return };
        // The manager does this itself when the last mapping of a file goes.
        if from == 0 && !mapped_files(|files| files.get(id).is_some_and(|file| file.mappings > 1)) {
            return;
        }
        let (id, bytes) = (*id, self.offset + from as u64..self.offset + self.len as u64);
        house.ask(move |house| {
            if let Some(object) = house.manager.find(id) {
                let _ = house.manager.write_back(&object, bytes);
            }
        });
    }

    fn remap_pages(&self, at: usize, old: usize, new: usize, may_move: bool) -> io::Result<usize> {
        if old == new {
            return Ok(at);
        }
        if self.is_managed()
            && let Some(house) = house::started()
        {
            if new < old {
                self.write_back(house, new);
            }
            let how = if may_move { Remap::MayMove } else { Remap::InPlace };
            match house.ask(move |house| house.space.remap(at, old, new, how)) {
                Ok(start) => return Ok(start),
                Err(_) if !self.is_managed() => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let flags = if may_move { libc::MREMAP_MAYMOVE } else { 0 };
        // SAFETY: the range is this mapping's, which is borrowed alone.
        let moved = unsafe { libc::mremap(at as *mut _, old, new, flags) };
        if moved == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(moved as usize) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (start, len) = (self.start, self.len);
        match house::started() {
            _ if len == 0 => {}
            Some(house) => {
                self.write_back(house, 0);
                house.ask(move |house| unmap(house, start, len));
            }
            None => unmap_in_kernel(start, len),
        }
        budget::end_promise(self.budget.as_deref(), self.promised);
    }
}

fn unmap(house: &House, start: usize, len: usize) {
    // What the manager cannot unmap now (a device uses its pages) stays mapped, and is not used again.
    if house.space.unmap_ours(start, len) == Err(Errno::XDEV) {
        // A file that went to the kernel does not come back: all of it is the kernel's.
        unmap_in_kernel(start, len);
    }
}

fn unmap_in_kernel(start: usize, len: usize) {
    // SAFETY: the range is that of a mapping whose last user is gone, and is the kernel's.
    unsafe { libc::munmap(start as *mut _, len) };
}

/// Makes an open file `len` bytes long, as [`File::set_len`] does, and tells the manager.
///
/// If the file is mapped, this is the right way to cut it or to let it grow: what was stored beyond the new
/// end is not written, and a mapping sees the new end at once, not within a second.
///
/// # Errors
/// Those of ftruncate(2).
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let file = tempfile::tempfile()?;
/// elbowroom::set_len(&file, 8192)?;
/// assert_eq!(file.metadata()?.len(), 8192);
/// # Ok(())
/// # }
/// ```
pub fn set_len(file: &File, len: u64) -> io::Result<()> {
    let fd = file.as_raw_fd();
    let id = id_of(&stat(fd)?);
    if i64::try_from(len).is_err() {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let Some(house) = house::started().filter(|_| !IS_CHILD.load(Ordering::Relaxed)) else {
        return file.set_len(len);
    };
    let tid = own_tid();
    house.ask(move |house| {
        // The program's own descriptor, in the worker's table.
        let origin = Origin::take(tid, fd, 0)?;
        let fd = origin.as_fd().as_raw_fd();
        // SAFETY: integers only.
        let cut = || match unsafe { libc::ftruncate(fd, len as libc::off_t) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        let Some(object) = house.manager.find(id) else { return cut() };
        let ticket = house.manager.write_begin(&object, len..u64::MAX);
        let resized = cut();
        // A call that failed may have changed the size all the same.
        let changed = if resized.is_ok() { len..u64::MAX } else { 0..0 };
        house.manager.resized(&object, changed);
        house.manager.write_end(ticket, 0..0);
        resized
    })
}

fn own_tid() -> u32 {
    // SAFETY: a system call without arguments.
    (unsafe { libc::gettid() }) as u32
}

/// The size of the file that a descriptor is, in bytes.
pub fn size(fd: RawFd) -> io::Result<u64> {
    stat(fd).map(|stat| stat.st_size as u64)
}

fn stat(fd: RawFd) -> io::Result<libc::stat> {
    // SAFETY: the kernel writes one `stat`; all zero is one.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &raw mut stat) == 0 { Ok(stat) } else { Err(io::Error::last_os_error()) }
    }
}

fn id_of(stat: &libc::stat) -> FileId {
    FileId { device: stat.st_dev, inode: stat.st_ino }
}

/// Checks what mmap(2) would check.
fn look(part: &FilePart) -> io::Result<Looked> {
    let stat = stat(part.fd)?;
    // SAFETY: integers only.
    let flags = unsafe { libc::fcntl(part.fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    if flags & libc::O_PATH != 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    let access = flags & libc::O_ACCMODE;
    let writable = access == libc::O_RDWR;
    if access == libc::O_WRONLY || part.mode == Mode::Write && !writable {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    let reason = if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        Some("it is no regular file")
    } else if part.mode == Mode::Exec {
        Some("the manager maps nothing to be executed")
    } else if is_in_memory(part.fd) {
        Some("the file lives in memory (tmpfs)")
    } else {
        None
    };
    Ok(Looked { id: id_of(&stat), writable, reason })
}

/// Whether the file's blocks are memory: to page them would have them in memory twice.
fn is_in_memory(fd: RawFd) -> bool {
    // SAFETY: the kernel writes one `statfs`; all zero is one.
    let kind = unsafe {
        let mut statfs: libc::statfs = std::mem::zeroed();
        if libc::fstatfs(fd, &raw mut statfs) != 0 {
            return false;
        }
        statfs.f_type
    };
    // ramfs has no constant in libc.
    [libc::TMPFS_MAGIC, libc::HUGETLBFS_MAGIC, 0x8584_58f6].contains(&kind)
}

fn known_reason(id: FileId) -> Option<&'static str> {
    if IS_CHILD.load(Ordering::Relaxed) {
        Some("this process was forked from one that has managed memory")
    } else if mapped_files(|files| files.get(&id).is_some_and(|file| file.given || file.kernels > 0)) {
        Some("the kernel maps the file in this process already, as long as other mappings of it exist")
    } else {
        None
    }
}

fn request(
    len: usize,
    mode: Mode,
    object: Option<Arc<FileObject>>,
    offset: u64,
    wishes: &Wishes,
) -> MapRequest {
    MapRequest {
        place: Place::Anywhere,
        len,
        prot: mode.prot(),
        may_write: mode != Mode::Read,
        sharing: mode.sharing(),
        object,
        offset,
        populate: wishes.populate,
        locked: false,
        no_reserve: wishes.no_reserve,
        group: Some(wishes.budget.as_ref().map_or(GroupId::ROOT, |budget| budget.id())),
    }
}

/// How the manager opens a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opening {
    /// For stores, while no other process uses it.
    Alone,
    /// For stores, whoever uses it.
    Stores,
    /// For loads, whoever uses it.
    Loads,
}

fn by_manager(
    house: &House,
    tid: u32,
    part: &FilePart,
    wishes: Wishes,
    counted: Mapped,
    writable: bool,
) -> Result<Attempt, Errno> {
    let (first, second) = match part.mode {
        Mode::Write if wishes.trust => (Opening::Stores, None),
        Mode::Write => (Opening::Alone, None),
        _ if !writable => (Opening::Loads, None),
        Mode::Read if wishes.trust => (Opening::Stores, None),
        // So that it may be mapped for stores as well, by this mapping or by another one.
        _ => (Opening::Alone, Some(Opening::Loads)),
    };
    let mut counted = Some(counted);
    match (attempt(house, tid, part, first, &wishes, &mut counted)?, second) {
        (Attempt::Kernels(_), Some(opening)) => attempt(house, tid, part, opening, &wishes, &mut counted),
        (attempt, _) => Ok(attempt),
    }
}

fn attempt(
    house: &House,
    tid: u32,
    part: &FilePart,
    opening: Opening,
    wishes: &Wishes,
    counted: &mut Option<Mapped>,
) -> Result<Attempt, Errno> {
    let stores = opening != Opening::Loads;
    let path = format!("/proc/self/task/{tid}/fd/{}", part.fd);
    for _ in 0..STALE_ROUNDS {
        let opened = if opening == Opening::Alone {
            let opened = house.manager.open_through(tid, part.fd, true);
            opened.map(|(object, origin)| (object, Some(origin)))
        } else {
            let opened = house.manager.open(Path::new(&path), stores);
            opened.map(|object| (object, None)).map_err(OpenError::from)
        };
        let (object, origin) = match opened {
            Ok(opened) => opened,
            // The descriptor permits what opening the file anew does not.
            Err(OpenError::Failed(Errno::ACCESS | Errno::PERM)) => {
                return Ok(Attempt::Kernels("the file may not be opened again by this process"));
            }
            Err(OpenError::Failed(errno)) => return Err(errno),
            Err(_) => {
                return Ok(Attempt::Kernels(
                    "another process uses the file, or it cannot be known whether one does (that takes \
                     CAP_SYS_ADMIN): with FileSharing::Trust it is managed all the same",
                ));
            }
        };
        // Another thread may have closed the descriptor, and opened another file under its number.
        if counted.as_ref().is_none_or(|counted| counted.id != object.id()) {
            house.manager.close_unused(&object);
            return Err(Errno::BADF);
        }
        let request = request(part.len, part.mode, Some(object.clone()), part.offset, wishes);
        let may_write = request.may_write || stores;
        match house.space.map_through(MapRequest { may_write, ..request }, origin) {
            Ok(start) => {
                let held = Held {
                    start,
                    len: part.len,
                    promised: 0,
                    budget: wishes.budget.clone(),
                    is_promised: false,
                    spare: None,
                    offset: part.offset,
                    stores: part.mode == Mode::Write,
                    reason: None,
                    file: counted.take(),
                };
                return Ok(Attempt::Managed { held, stores });
            }
            Err(Errno::STALE) => {}
            Err(errno) => {
                house.manager.close_unused(&object);
                return match errno {
                    Errno::OPNOTSUPP => Ok(Attempt::Kernels("the file was given to the kernel before")),
                    errno => Err(errno),
                };
            }
        }
    }
    Err(Errno::STALE)
}

fn by_kernel(part: &FilePart, wishes: &Wishes) -> io::Result<usize> {
    let mut flags = match part.mode.sharing() {
        Sharing::Private => libc::MAP_PRIVATE,
        _ => libc::MAP_SHARED,
    };
    if wishes.populate {
        flags |= libc::MAP_POPULATE;
    }
    if wishes.no_reserve {
        flags |= libc::MAP_NORESERVE;
    }
    let (len, prot, offset) = (part.len, part.mode.kernels_prot(), part.offset as libc::off_t);
    // SAFETY: a new mapping, which replaces none.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, part.fd, offset) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at as usize) }
}
