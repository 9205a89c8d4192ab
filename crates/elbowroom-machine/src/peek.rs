//! Reading from a window without a fault of our own.
//!
//! A page that the MMU has mapped into a window may be gone: a system call that the manager does not see (a
//! raw madvise, or process_madvise by another process) drops it, and a thread that touches it then waits
//! for a handler. A handler that touched it would wait for itself. So handlers have the kernel read windows
//! for them, in a way in which it does not wait for a userfaultfd. /proc/self/mem is such a way: it looks
//! pages up without permission to wait, so a read of a missing page in a registered range fails with EIO.

use crate::PAGE_SIZE;
use crate::uffd::put_in_place;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, pread, retry_on_intr};
use std::ffi::{c_long, c_void};
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
const SYS_MINCORE: c_long = 27;
#[cfg(not(target_arch = "x86_64"))]
const SYS_MINCORE: c_long = 232;
#[cfg(target_arch = "x86_64")]
const SYS_PROCESS_VM_READV: c_long = 310;
#[cfg(not(target_arch = "x86_64"))]
const SYS_PROCESS_VM_READV: c_long = 270;

/// The most pages that one call unshares.
const UNSHARED_AT_ONCE: usize = 256;

/// struct iovec.
#[derive(Clone, Copy)]
#[repr(C)]
struct Vector {
    base: *mut c_void,
    len: usize,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

/// A way to read from windows.
pub(crate) struct Peek(Option<OwnedFd>);

impl Peek {
    /// Opens /proc/self/mem. Where it cannot be opened (no /proc, or a process that is not dumpable), pages
    /// are read by pointers, after the kernel has said that they are present: a page that is dropped in
    /// between hangs its reader.
    pub(crate) fn new() -> Self {
        Self(open("/proc/self/mem", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok())
    }

    /// In the child of a fork: opens the child's own memory, under the same descriptor number.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn renew(&self) -> Result<(), Errno> {
        let Some(mem) = &self.0 else { return Ok(()) };
        let own = open("/proc/self/mem", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        put_in_place(own, mem.as_fd())
    }

    /// Copies bytes of one page.
    ///
    /// # Errors
    /// The page is not there. Some bytes may be copied then.
    ///
    /// # Safety
    /// (1) No thread stores to the bytes at `from`, and they are in a window; (2) those at `to` are the
    /// caller's alone.
    pub(crate) unsafe fn copy(&self, from: usize, to: usize, len: usize) -> Result<(), Errno> {
        let Some(mem) = &self.0 else {
            if !is_resident(from) {
                return Err(Errno::IO);
            }
            // SAFETY: (1) and (2); the page is there.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
            return Ok(());
        };
        // SAFETY: (2); the bytes are initialized, by the kernel at least.
        let to = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, len) };
        match retry_on_intr(|| pread(mem, &mut *to, from as u64))? {
            n if n == len => Ok(()),
            _ => Err(Errno::IO),
        }
    }
}

/// Whether a page of a window is in memory, just now. A page that was swapped out is not.
pub(crate) fn is_resident(page: usize) -> bool {
    let mut resident = 0_u8;
    // SAFETY: the arguments are those of mincore(2); the kernel writes one byte, for one page.
    let result = unsafe { syscall(SYS_MINCORE, page, PAGE_SIZE, &raw mut resident) };
    result == 0 && resident & 1 != 0
}

/// Whether a page of a window exists, in memory or in the kernel's own swap. Where /proc/self/pagemap
/// cannot be read, a page that was swapped out counts as missing.
pub(crate) fn is_there(page: usize) -> bool {
    is_resident(page) || PageMap::open().and_then(|map| map.is_full(page)) == Some(true)
}

/// /proc/self/pagemap.
struct PageMap(OwnedFd);

impl PageMap {
    fn open() -> Option<Self> {
        open("/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok().map(Self)
    }

    /// Whether a page is present or swapped out. `None`: it cannot be read.
    fn is_full(&self, page: usize) -> Option<bool> {
        let mut entry = [0_u8; 8];
        let at = (page / PAGE_SIZE * entry.len()) as u64;
        let read = retry_on_intr(|| pread(&self.0, &mut entry, at));
        (read == Ok(entry.len())).then(|| u64::from_ne_bytes(entry) >> 62 != 0)
    }
}

/// After a MOVE from `src` to `dst`: how many bytes at the start of `src..src + len` were moved to `dst`,
/// as /proc/self/pagemap tells; 0 if it cannot be read. No other thread may move pages there meanwhile.
pub(crate) fn moved_without_report(dst: usize, src: usize, len: usize) -> usize {
    let Some(map) = PageMap::open() else { return 0 };
    let is_moved = |at: &usize| map.is_full(src + at) == Some(false) && map.is_full(dst + at) == Some(true);
    (0..len).step_by(PAGE_SIZE).take_while(is_moved).count() * PAGE_SIZE
}

/// Makes pages exclusive to this process that a fork has left shared with another (Linux:
/// PageAnonExclusive); they are copied if the other process still has them. MOVE takes only exclusive
/// pages. Pages that are not in memory stay as they are.
///
/// process_vm_readv(2) pins the pages that it reads, and the kernel makes a page exclusive before it pins
/// it (`gup_must_unshare`), write-protected or not. If a page is dropped by a system call that the manager
/// does not see, after it was found to be resident, the call waits for a handler: see [`Peek`].
pub(crate) fn unshare(range: Range<usize>) {
    let mut bytes = [0_u8; UNSHARED_AT_ONCE];
    let process = rustix::process::getpid().as_raw_nonzero().get() as c_long;
    let pages: Vec<_> = range.step_by(PAGE_SIZE).filter(|page| is_resident(*page)).collect();
    for some in pages.chunks(UNSHARED_AT_ONCE) {
        let mut remote: Vec<_> =
            some.iter().map(|page| Vector { base: *page as *mut c_void, len: 1 }).collect();
        let mut rest = &mut remote[..];
        // A page that cannot be read ends the call; the next call reads those after it.
        while !rest.is_empty() {
            let local = Vector { base: bytes.as_mut_ptr().cast(), len: rest.len() };
            let none = 0 as c_long;
            // SAFETY: the arguments are those of process_vm_readv(2): one vector of as many bytes as there
            // are remote ones; the kernel writes to `bytes` only.
            let read = unsafe {
                syscall(
                    SYS_PROCESS_VM_READV,
                    process,
                    &raw const local,
                    1 as c_long,
                    rest.as_ptr(),
                    rest.len(),
                    none,
                )
            };
            let read = usize::try_from(read).unwrap_or(0);
            rest = &mut rest[(read.max(1))..];
        }
    }
}
