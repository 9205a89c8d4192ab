//! A mapping of bindings/house, with what memmap2 has more: rights that change, execution, files of all
//! kinds, and stores that are in the file when the mapping is gone.
//!
//! If a mapping for loads is made one for stores (`make_mut`), the manager permits it if it has opened the
//! file for stores, which it tries if the descriptor permits that. If not, a descriptor is kept, with which
//! the kernel maps the file in place then.

use crate::process;
use elbowroom_house::budget::Budget as Group;
use elbowroom_house::caller::Thread;
use elbowroom_house::files::{self, Opened};
use elbowroom_house::held::{self, FilePart, Mode, Moving, Opening};
use elbowroom_house::house::{self, House};
use elbowroom_machine::PAGE_SIZE;
use elbowroom_manager::{Advice, Place, Prot};
use libc::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// What a mapping is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
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

impl Use {
    fn mode(self) -> Mode {
        match self {
            Use::Read | Use::Exec => Mode::Read,
            Use::Write => Mode::Write,
            Use::Copy | Use::CopyReadOnly => Mode::Copy,
        }
    }

    fn prot(self) -> c_int {
        match self {
            Use::Read | Use::CopyReadOnly => libc::PROT_READ,
            Use::Write | Use::Copy => libc::PROT_READ | libc::PROT_WRITE,
            Use::Exec => libc::PROT_READ | libc::PROT_EXEC,
        }
    }
}

/// What else is asked for.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// What the manager or the kernel is asked for.
    pub common: held::Wishes,
    /// Manage a file that is stored to also if other processes may change it: what they write is seen late.
    pub trust: bool,
    /// The budget; `None`: that of the process.
    pub budget: Option<Arc<Group>>,
}

/// What to map of an open file.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// The descriptor, in the calling thread's table.
    pub fd: RawFd,
    /// Where in the file, in bytes; a multiple of the page size.
    pub offset: u64,
    /// Bytes, more than 0.
    pub len: usize,
    /// What the mapping is for.
    pub usage: Use,
}

/// A mapping, which is unmapped when the value is dropped.
#[derive(Debug)]
pub struct Held {
    inner: held::Held,
    /// A descriptor with which the kernel can make a shared mapping that is only loaded from one to store to.
    spare: Option<OwnedFd>,
    /// Where in the file it begins, in bytes.
    offset: u64,
    /// Stores to it reach the file.
    stores: bool,
    /// Why the kernel has served it from the beginning.
    reason: Option<String>,
}

impl Held {
    /// Maps a part of a file.
    ///
    /// # Errors
    /// Those of mmap(2). PermissionDenied: the descriptor does not permit it. Unsupported: there is no
    /// manager.
    pub fn of_file(part: Part, wishes: &Wishes) -> io::Result<Self> {
        let Part { fd, offset, len, usage } = part;
        let opened = Opened::look(fd)?;
        let house = process::house()?;
        let asked = FilePart {
            prot: usage.prot(),
            openings: openings(usage, opened.is_for_both(), wishes.trust),
            wishes: wishes.common,
            ..FilePart::new(fd, offset, len, usage.mode(), wishes.trust)
        };
        let (inner, reason) = match never_managed(&part, &opened) {
            Some(reason) => (held::Held::of_kernel(Thread, house, &asked)?, Some(reason.to_owned())),
            None => held::Held::of_file(Thread, house, asked, wishes.budget.as_ref())?,
        };
        let stores = usage == Use::Write;
        let mut held = Self { inner, spare: None, offset, stores, reason };
        if usage == Use::Read && opened.is_for_both() && !held.inner.has_stores() {
            held.keep_spare(fd)?;
        }
        Ok(held)
    }

    /// Maps anonymous memory, of zeros.
    ///
    /// # Errors
    /// OutOfMemory: the budget does not have so much. Unsupported: there is no manager.
    pub fn of_memory(len: usize, huge: bool, wishes: &Wishes) -> io::Result<Self> {
        let (house, budget) = (process::house()?, wishes.budget.as_ref());
        let inner = held::Held::of_memory(Thread, house, len, Place::Anywhere, wishes.common, budget)?;
        let held = Self { inner, spare: None, offset: 0, stores: false, reason: None };
        if huge {
            held.advise(0, len, Advice::HugePage, libc::MADV_HUGEPAGE)?;
        }
        Ok(held)
    }

    /// Its first address.
    #[inline]
    pub fn start(&self) -> usize {
        self.inner.start()
    }

    /// Whether the manager serves it now. A mapping of a file can go to the kernel at any time.
    pub fn is_managed(&self) -> bool {
        self.inner.is_managed()
    }

    /// Why the kernel has served it from the beginning, if so.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Keeps the descriptor, with which the kernel can make the mapping one to store to.
    fn keep_spare(&mut self, fd: RawFd) -> io::Result<()> {
        // SAFETY: the caller of `of_file` has the descriptor open for as long as the call lasts.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
        // Another thread may have closed the descriptor, and opened another file under its number.
        if self.inner.file() != Some(Opened::look(fd.as_raw_fd())?.id) {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        self.spare = Some(fd);
        Ok(())
    }

    /// Writes what was stored to a range of it to the file. `wait`: until it is durable; else the flusher
    /// does it within a second.
    ///
    /// # Errors
    /// The first error of a write-back since the last call.
    pub fn flush(&self, from: usize, len: usize, wait: bool) -> io::Result<()> {
        if wait {
            return Ok(self.inner.flush(Thread, from, len)?);
        }
        let flushed = self.inner.verb(
            Thread,
            (from, len),
            |house, at, len| house.space.sync_later(at, len, false),
            // SAFETY: the range is this mapping's, which is not unmapped while it is borrowed.
            |at, len| unsafe { libc::msync(at as *mut _, len, libc::MS_ASYNC) },
            "cannot write the file back",
        );
        Ok(flushed?)
    }

    /// Acts on advice for the pages of a range. `kernels`: the number that madvise(2) has for it.
    ///
    /// # Errors
    /// Those of madvise(2).
    pub fn advise(&self, from: usize, len: usize, advice: Advice, kernels: c_int) -> io::Result<()> {
        // Whether the bytes may change is the caller's to know.
        Ok(self.inner.advise(Thread, (from, len), Some(advice), kernels)?)
    }

    /// Locks the mapping, or unlocks it.
    ///
    /// # Errors
    /// Those of mlock(2).
    pub fn lock(&self, locked: bool) -> io::Result<()> {
        let changed = self.inner.verb(
            Thread,
            (0, self.inner.len()),
            move |house, at, len| {
                if locked { house.space.lock(at, len, false) } else { house.space.unlock(at, len) }
            },
            // SAFETY: as for `flush`.
            |at, len| unsafe {
                if locked { libc::mlock(at as *const _, len) } else { libc::munlock(at as *const _, len) }
            },
            "the pages cannot be locked",
        );
        Ok(changed?)
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
        let (prot, kernels) = if stores {
            (Prot::READ | Prot::WRITE, libc::PROT_READ | libc::PROT_WRITE)
        } else {
            (Prot::READ, libc::PROT_READ)
        };
        let changed = self.inner.verb(
            Thread,
            (0, self.inner.len()),
            move |house, at, len| house.space.protect(at, len, prot),
            // SAFETY: as for `flush`; the mapping is borrowed alone.
            |at, len| unsafe { libc::mprotect(at as *mut _, len, kernels) },
            "the rights cannot be changed",
        );
        Ok(changed?)
    }

    /// Permits loads and execution. The kernel maps it from then on.
    ///
    /// # Errors
    /// Those of mprotect(2), and of giving the mapping to the kernel.
    pub fn protect_exec(&mut self) -> io::Result<()> {
        let (at, len) = (self.start(), self.inner.len().next_multiple_of(PAGE_SIZE));
        self.inner.note_kernels();
        if self.is_managed()
            && let Some(house) = house::started()
        {
            house.ask(Thread, move |house| house.space.hand_back(at, len))??;
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
        let Some(id) = self.inner.file() else { return Ok(()) };
        let (at, len) = (self.start(), self.inner.len());
        // Before the file is given, so that no other thread has the manager map it afterwards.
        self.inner.note_kernels();
        if let Some(house) = house::started() {
            house.ask(Thread, move |house| house.space.give_file(id))??;
        }
        let Some(spare) = self.spare.take() else { return Ok(()) };
        self.stores = true;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        let (fd, offset) = (spare.as_raw_fd(), self.offset as libc::off_t);
        // SAFETY: replaces this mapping, which is the kernel's and borrowed alone, by one of the same bytes.
        let mapped = unsafe { libc::mmap(at as *mut _, len, prot, flags, fd, offset) };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Makes it `len` bytes long, more than 0.
    ///
    /// # Errors
    /// Those of mremap(2). OutOfMemory: there is no room behind it; or the budget does not have so much.
    pub fn remap(&mut self, len: usize, moving: Moving) -> io::Result<()> {
        let end = len.checked_next_multiple_of(PAGE_SIZE).ok_or(io::ErrorKind::InvalidInput)?;
        if end < self.inner.len() {
            self.write_back(end);
        }
        Ok(self.inner.remap(Thread, len, moving)?)
    }

    /// Writes what was stored from a byte of the mapping on to the file, so that it is there when the pages
    /// are unmapped. An error is reported by the next flush of the file.
    fn write_back(&self, from: usize) {
        let Some(id) = self.inner.file().filter(|_| self.stores && self.is_managed()) else { return };
        // The manager does this itself when the last mapping of a file goes.
        if from == 0 && !self.inner.shares_file() {
            return;
        }
        let bytes = self.offset + from as u64..self.offset + self.inner.len() as u64;
        let write = move |house: &'static House| {
            if let Some(object) = house.manager.find(id) {
                let _ = house.manager.write_back(&object, bytes);
            }
        };
        if let Some(house) = house::started() {
            let _ = house.ask(Thread, write);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.write_back(0);
    }
}

/// Why the manager maps no such file.
fn never_managed(part: &Part, opened: &Opened) -> Option<&'static str> {
    if !opened.is_regular {
        Some("it is no regular file")
    } else if part.usage == Use::Exec {
        Some("the manager maps nothing to be executed")
    } else if is_in_memory(part.fd) {
        Some("the file lives in memory (tmpfs)")
    } else {
        None
    }
}

/// How the manager is to open a file. `for_both`: the descriptor permits stores.
fn openings(usage: Use, for_both: bool, trust: bool) -> &'static [Opening] {
    match usage {
        Use::Write => Opening::least(Mode::Write, trust),
        _ if !for_both => &[Opening::Loads],
        Use::Read if trust => &[Opening::Stores],
        // So that it may be mapped for stores as well, by this mapping or by another one.
        _ => &[Opening::StoresAlone, Opening::Loads],
    }
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
    Ok(files::resize(Thread, file.as_raw_fd(), len)?)
}
