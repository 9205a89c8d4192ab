//! Dropping many scattered pages with one TLB shootdown.
//!
//! process_madvise(2) on our own process takes a list of ranges; since Linux 6.13 it may drop pages, since
//! 6.16 it does so with one flush for the list. Where it is refused, pages are dropped one by one.

use crate::PAGE_SIZE;
use crate::uffd::put_in_place;
use elbowroom_sync::atomic::{AtomicBool, Ordering};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{self, Advice};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::ffi::{c_int, c_long};

/// The most ranges in one call.
const MOST: usize = 64;

const MADV_DONTNEED: c_int = 4;
const SYS_PROCESS_MADVISE: c_long = 440;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

#[repr(C)]
#[derive(Clone, Copy)]
struct IoVec {
    base: usize,
    len: usize,
}

pub(crate) struct Batch {
    process: Option<OwnedFd>,
    refused: AtomicBool,
}

impl Batch {
    pub(crate) fn new() -> Self {
        let process = pidfd_open(getpid(), PidfdFlags::empty()).ok();
        Self { process, refused: AtomicBool::new(false) }
    }

    /// In the child of a fork, in a file table in which the number of the parent's descriptor is free: puts
    /// a pidfd of this process in its place. Where the kernel refuses, pages are dropped one by one.
    pub(crate) fn renew(&self) {
        if let Some(process) = &self.process
            && let Ok(own) = pidfd_open(getpid(), PidfdFlags::empty())
        {
            let _ = put_in_place(own, process.as_fd());
        }
    }

    /// Drops the pages at these addresses.
    ///
    /// # Safety
    /// They are pages of our own mappings whose bytes are not needed any more.
    pub(crate) unsafe fn drop_pages(&self, pages: &[usize]) {
        for part in pages.chunks(MOST) {
            // SAFETY: the caller's promise is ours.
            if !unsafe { self.drop_together(part) } {
                for &page in part {
                    // SAFETY: as above.
                    let _ = unsafe { mm::madvise(page as *mut _, PAGE_SIZE, Advice::LinuxDontNeed) };
                }
            }
        }
    }

    /// Tells whether all of them were dropped.
    ///
    /// # Safety
    /// As for [`Batch::drop_pages`].
    unsafe fn drop_together(&self, pages: &[usize]) -> bool {
        let (Some(process), false) = (&self.process, self.refused.load(Ordering::Relaxed)) else {
            return false;
        };
        if pages.len() < 2 {
            return pages.is_empty();
        }
        let mut ranges = [IoVec { base: 0, len: PAGE_SIZE }; MOST];
        for (range, &page) in ranges.iter_mut().zip(pages) {
            range.base = page;
        }
        let (pidfd, flags): (c_long, c_long) = (process.as_raw_fd().into(), 0);
        // SAFETY: (1) the arguments are those of process_madvise(2), and the list is as long as said; (2)
        // dropping the pages is the caller's promise.
        let dropped = unsafe {
            syscall(
                SYS_PROCESS_MADVISE,
                pidfd,
                ranges.as_ptr(),
                pages.len(),
                c_long::from(MADV_DONTNEED),
                flags,
            )
        };
        let error = (dropped < 0).then(std::io::Error::last_os_error);
        let error = error.as_ref().and_then(Errno::from_io_error);
        // Other errors concern this list only: the program may have unmapped one of the pages behind our
        // back.
        if matches!(error, Some(Errno::PERM | Errno::NOSYS | Errno::INVAL)) {
            self.refused.store(true, Ordering::Relaxed);
        }
        dropped == (pages.len() * PAGE_SIZE) as c_long
    }
}
