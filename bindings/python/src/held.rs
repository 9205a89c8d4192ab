//! A mapping: how it is made, and how it is given up.
//!
//! A file is the manager's or the kernel's, never both, since the bytes in their two caches would differ
//! (docs/decisions/0015-one-owner.md). If the kernel must map a file that is managed, the file goes to the
//! kernel first, with all of its mappings, at the same addresses. While the kernel maps a file that can be
//! stored to through that mapping, all further mappings of it are the kernel's, too.
//!
//! Synchronization: the table of files that the kernel maps is under a mutex, which is held for moments only.

use crate::errors;
use crate::group::Budget;
use crate::house::{self, House};
use elbowroom::{Advice, Errno, FileId, MapRequest, OpenError, Origin, Place, Prot, Sharing};
use elbowroom_machine::PAGE_SIZE;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often a file is opened anew that was closed between opening and mapping it.
const STALE_ROUNDS: usize = 16;

/// What stores to a mapping do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They are not permitted: "r".
    Read,
    /// They reach the file: "r+", "w+".
    Write,
    /// They stay in the mapping: "c".
    Copy,
}

impl Mode {
    fn prot(self) -> Prot {
        if self == Mode::Read { Prot::READ } else { Prot::READ.union(Prot::WRITE) }
    }

    fn sharing(self) -> Sharing {
        if self == Mode::Copy { Sharing::Private } else { Sharing::Shared }
    }
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
    /// What stores do.
    pub mode: Mode,
    /// Manage the file also if other processes may change it: what they write is seen late.
    pub trust: bool,
}

/// A mapping, which is unmapped when the value is dropped. No interpreter's lock is needed for that.
pub struct Held {
    start: usize,
    len: usize,
    /// What the budget has promised for it, in bytes.
    promised: u64,
    budget: Option<Arc<Budget>>,
    _file: Option<Mapped>,
}

/// What is known of a file that has mappings.
#[derive(Default)]
struct MappedFile {
    /// Mappings of the file, by whomever.
    mappings: usize,
    /// Mappings by the kernel that can be stored to.
    stores: usize,
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
struct Mapped {
    id: FileId,
    stores: bool,
}

impl Mapped {
    /// `stores`: the kernel maps it, and it can be stored to.
    fn new(id: FileId, stores: bool) -> Self {
        mapped_files(|files| {
            let file = files.entry(id).or_default();
            file.mappings += 1;
            file.stores += usize::from(stores);
        });
        Self { id, stores }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        mapped_files(|files| {
            let Some(file) = files.get_mut(&self.id) else { return };
            file.mappings -= 1;
            file.stores -= usize::from(self.stores);
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
    Managed(Held),
    /// The kernel has to map it, for this reason.
    Kernels(&'static str),
}

impl Held {
    /// Maps a part of a file. In the second place is why the manager does not manage it, if so.
    ///
    /// # Errors
    /// OSError. EACCES: the descriptor does not permit it.
    pub fn of_file(
        py: Python<'_>,
        part: FilePart,
        budget: &Arc<Budget>,
    ) -> PyResult<(Self, Option<&'static str>)> {
        let failed = |error: io::Error| errors::of_io(&error, "cannot map the file");
        let id = check(&part).map_err(failed)?;
        let house = house::house(py)?;
        let reason = if IS_CHILD.load(Ordering::Relaxed) {
            Some("this process was forked from one that has managed memory: use the start method 'spawn'")
        } else if mapped_files(|files| files.get(&id).is_some_and(|file| file.given || file.stores > 0)) {
            Some("the kernel maps the file in this process already, as long as other arrays of it exist")
        } else {
            None
        };
        // SAFETY: a system call without arguments.
        let tid = unsafe { libc::gettid() } as u32;
        let reason = match reason {
            Some(reason) => reason,
            None => {
                let budget = budget.clone();
                let counted = Mapped::new(id, false);
                let mapped = house.ask(py, move |house| by_manager(house, tid, &part, budget, counted))?;
                match mapped.map_err(|errno| errors::of(errno, "cannot map the file"))? {
                    Attempt::Managed(held) => return Ok((held, None)),
                    Attempt::Kernels(reason) => reason,
                }
            }
        };
        // Entered before the file is given up, so that no other thread has the manager map it meanwhile.
        let counted = Mapped::new(id, part.mode == Mode::Write);
        let given = house.ask(py, move |house| house.space.give_file(id));
        let given = given
            .and_then(|given| given.map_err(|errno| errors::of(errno, "cannot give the file to the kernel")));
        given?;
        let start = by_kernel(&part).map_err(failed)?;
        let held = Self { start, len: part.len, promised: 0, budget: None, _file: Some(counted) };
        Ok((held, Some(reason)))
    }

    /// Maps anonymous memory, of zeros.
    ///
    /// # Errors
    /// MemoryError: the budget does not have so much. OSError.
    pub fn of_memory(py: Python<'_>, len: usize, budget: &Arc<Budget>) -> PyResult<Self> {
        let house = house::house(py)?;
        let promised = len.next_multiple_of(PAGE_SIZE) as u64;
        budget.promise(promised)?;
        let unmapped = Self { start: 0, len: 0, promised, budget: Some(budget.clone()), _file: None };
        let group = budget.id();
        let mapped = house.ask(py, move |house| {
            let request = MapRequest {
                place: Place::Anywhere,
                len,
                prot: Mode::Copy.prot(),
                may_write: true,
                sharing: Sharing::Private,
                object: None,
                offset: 0,
                populate: false,
                locked: false,
                no_reserve: false,
                group: Some(group),
            };
            let start = house.space.map(request)?;
            let mut held = unmapped;
            (held.start, held.len) = (start, len);
            Ok(held)
        })?;
        mapped.map_err(|errno: Errno| errors::of(errno, "cannot map memory"))
    }

    /// Its first address.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Whether the manager serves it now. A mapping of a file can go to the kernel at any time.
    pub fn is_managed(&self) -> bool {
        house::started().is_some_and(|house| house.manager.windows().covers(self.start, self.len))
    }

    /// How many bytes of the mapping can be in memory at a time. `None`: all, or the kernel has it.
    pub fn most_in_memory(&self) -> Option<u64> {
        let limit = self.budget.as_ref().map(|budget| budget.least_limit())?;
        (limit < self.len as u64 && self.is_managed()).then_some(limit)
    }

    /// Has parts of the mapping read from the disk, as far as there is room. Does not wait. `firsts`: where
    /// they begin, in bytes from the mapping's first one; each has `len` bytes. Parts that are not in the
    /// mapping are left out.
    pub fn will_need(self: &Arc<Self>, firsts: Vec<usize>, len: usize) {
        let Some(house) = house::started() else { return };
        // Kept by the job: no other mapping is at these addresses meanwhile.
        let held = self.clone();
        let read = move |house: &'static House| {
            let mut end = 0;
            for first in firsts {
                let last = first.saturating_add(len);
                if last > held.len {
                    continue;
                }
                // The page that a part shares with the one before is asked for once.
                let (from, to) = (first / PAGE_SIZE * PAGE_SIZE, last.next_multiple_of(PAGE_SIZE));
                let from = if from < end && end < to { end } else { from };
                end = to;
                // It is advice: a mapping that went to the kernel refuses it.
                let _ = house.space.advise(held.start + from, to - from, Advice::WillNeed);
            }
        };
        drop(house.post(read));
    }

    /// Writes what was stored to a range of it to the file, and waits until it is durable.
    ///
    /// # Errors
    /// OSError: the first error of a write-back since the last call.
    pub fn flush(&self, py: Python<'_>, from: usize, len: usize) -> PyResult<()> {
        let end = (from + len).min(self.len);
        let first = self.start + from / PAGE_SIZE * PAGE_SIZE;
        let Some(len) = (self.start + end).checked_sub(first).filter(|len| *len > 0) else { return Ok(()) };
        if self.is_managed()
            && let Some(house) = house::started()
        {
            match house.ask(py, move |house| house.space.sync(first, len, true, false))? {
                // The file went to the kernel meanwhile.
                Err(Errno::NOMEM) if !self.is_managed() => {}
                synced => return synced.map_err(|errno| errors::of(errno, "cannot write the file back")),
            }
        }
        // SAFETY: the range is this mapping's, which is not unmapped while it is borrowed.
        let synced = py.detach(|| unsafe { libc::msync(first as *mut _, len, libc::MS_SYNC) });
        match synced {
            0 => Ok(()),
            _ => Err(errors::of_io(&io::Error::last_os_error(), "cannot write the file back")),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (start, len) = (self.start, self.len);
        match house::started() {
            _ if len == 0 => {}
            Some(house) if house::is_worker() => unmap(house, start, len),
            // A worker writes back what was stored, so that it is in the file afterwards.
            Some(house) => _ = house.post(move |house| unmap(house, start, len)).recv(),
            None => unmap_in_kernel(start, len),
        }
        if let Some(budget) = &self.budget {
            budget.end_promise(self.promised);
        }
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

/// Makes an open file `len` bytes long. If the file is managed, the manager is told before and after: what
/// was stored beyond a new end must not be written back.
///
/// # Errors
/// OSError.
pub fn resize(py: Python<'_>, fd: RawFd, len: u64) -> PyResult<()> {
    let failed = |error: io::Error| errors::of_io(&error, "cannot change the size of the file");
    let id = id_of(&stat(fd).map_err(failed)?);
    let size = libc::off_t::try_from(len).map_err(|_| failed(io::Error::from_raw_os_error(libc::EFBIG)))?;
    // SAFETY: integers only.
    let cut = move |fd: RawFd| match unsafe { libc::ftruncate(fd, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    let Some(house) = house::started().filter(|_| !IS_CHILD.load(Ordering::Relaxed)) else {
        return cut(fd).map_err(failed);
    };
    // SAFETY: a system call without arguments.
    let tid = unsafe { libc::gettid() } as u32;
    let resized = house.ask(py, move |house| {
        // The program's own descriptor, in the worker's table.
        let origin = Origin::take(tid, fd, 0)?;
        let fd = origin.as_fd().as_raw_fd();
        // Another thread may have closed the descriptor, and opened another file under its number.
        if id_of(&stat(fd)?) != id {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let Some(object) = house.manager.find(id) else { return cut(fd) };
        let ticket = house.manager.write_begin(&object, len..u64::MAX);
        let resized = cut(fd);
        // A call that failed may have changed the size all the same.
        let changed = if resized.is_ok() { len..u64::MAX } else { 0..0 };
        house.manager.resized(&object, changed);
        house.manager.write_end(ticket, 0..0);
        resized
    })?;
    resized.map_err(failed)
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

/// Checks what mmap(2) would check, and tells which file it is.
fn check(part: &FilePart) -> io::Result<FileId> {
    let stat = stat(part.fd)?;
    // SAFETY: integers only.
    let flags = unsafe { libc::fcntl(part.fd, libc::F_GETFL) };
    let access = flags & libc::O_ACCMODE;
    let permitted = match part.mode {
        Mode::Write => access == libc::O_RDWR,
        Mode::Read | Mode::Copy => access != libc::O_WRONLY,
    };
    match () {
        () if flags < 0 => Err(io::Error::last_os_error()),
        () if !permitted => Err(io::Error::from_raw_os_error(libc::EACCES)),
        () if stat.st_mode & libc::S_IFMT != libc::S_IFREG => Err(io::Error::from_raw_os_error(libc::ENODEV)),
        () => Ok(id_of(&stat)),
    }
}

fn by_manager(
    house: &House,
    tid: u32,
    part: &FilePart,
    budget: Arc<Budget>,
    counted: Mapped,
) -> Result<Attempt, Errno> {
    let writable = part.mode == Mode::Write;
    let path = format!("/proc/self/task/{tid}/fd/{}", part.fd);
    for _ in 0..STALE_ROUNDS {
        let opened = if part.trust {
            house
                .manager
                .open(Path::new(&path), writable)
                .map(|object| (object, None))
                .map_err(OpenError::from)
        } else {
            let opened = house.manager.open_through(tid, part.fd, writable);
            opened.map(|(object, origin)| (object, Some(origin)))
        };
        let (object, origin) = match opened {
            Ok(opened) => opened,
            Err(OpenError::NotAlone) => {
                return Ok(Attempt::Kernels(
                    "another process uses the file, or it cannot be known whether one does (that takes \
                     CAP_SYS_ADMIN): with sharing='trust' it is managed all the same",
                ));
            }
            // The descriptor permits what opening the file anew does not.
            Err(OpenError::Failed(Errno::ACCESS | Errno::PERM)) => {
                return Ok(Attempt::Kernels("the file may not be opened again by this process"));
            }
            Err(OpenError::Failed(errno)) => return Err(errno),
        };
        let request = MapRequest {
            place: Place::Anywhere,
            len: part.len,
            prot: part.mode.prot(),
            may_write: part.mode != Mode::Read,
            sharing: part.mode.sharing(),
            object: Some(object.clone()),
            offset: part.offset,
            populate: false,
            locked: false,
            no_reserve: false,
            group: Some(budget.id()),
        };
        match house.space.map_through(request, origin) {
            Ok(start) => {
                let (len, budget, file) = (part.len, Some(budget), Some(counted));
                return Ok(Attempt::Managed(Held { start, len, promised: 0, budget, _file: file }));
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

fn by_kernel(part: &FilePart) -> io::Result<usize> {
    let prot = match part.mode {
        Mode::Read => libc::PROT_READ,
        Mode::Write | Mode::Copy => libc::PROT_READ | libc::PROT_WRITE,
    };
    let flags = if part.mode == Mode::Copy { libc::MAP_PRIVATE } else { libc::MAP_SHARED };
    // SAFETY: a new mapping, which replaces none.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), part.len, prot, flags, part.fd, part.offset as libc::off_t)
    };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at as usize) }
}
