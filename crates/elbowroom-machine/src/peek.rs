//! Reading from a window without a fault of our own.
//!
//! A page that the MMU has mapped into a window may be gone: a system call that nobody saw (a raw madvise, or
//! process_madvise by another process) drops it, and whoever touches it then waits for a handler. A handler
//! that touches it waits for itself. So handlers do not: the kernel reads for them, by a way on which it does
//! not wait for a userfaultfd. /proc/self/mem is one: it looks pages up without leave to wait, so a missing
//! one of a registered range is EIO.

use crate::PAGE_SIZE;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, pread, retry_on_intr};
use std::ffi::c_long;

#[cfg(target_arch = "x86_64")]
const SYS_MINCORE: c_long = 27;
#[cfg(not(target_arch = "x86_64"))]
const SYS_MINCORE: c_long = 232;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

/// A way to read from windows.
pub(crate) struct Peek(Option<OwnedFd>);

impl Peek {
    /// Opens /proc/self/mem. Where that cannot be had (no /proc, or a process that may not be dumped), pages
    /// are read by pointers, if the kernel says just before that they are there: then a page that is dropped
    /// in between hangs its reader.
    pub(crate) fn new() -> Self {
        Self(open("/proc/self/mem", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok())
    }

    /// Copies bytes of one page.
    ///
    /// # Errors
    /// The page is not there. Some bytes may be copied then.
    ///
    /// # Safety
    /// (1) Nobody stores to the bytes at `from`, and they are in a window; (2) those at `to` are the caller's
    /// alone.
    pub(crate) unsafe fn copy(&self, from: usize, to: usize, len: usize) -> Result<(), Errno> {
        let Some(mem) = &self.0 else {
            if !is_resident(from) {
                return Err(Errno::IO);
            }
            // SAFETY: (1) and (2); the page is there.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
            return Ok(());
        };
        // SAFETY: (2); the bytes were initialized by the kernel, if by nobody else.
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
