//! Helpers for system calls: a descriptor that is closed without libc, which errors are retried, and how
//! ranges are split.

use elbowroom_machine::{Errno, PAGE_SIZE};
use elbowroom_sync::thread;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

/// How often a system call that was interrupted or found no resources (EINTR, EAGAIN) is repeated without
/// progress.
pub(crate) const RETRIES_MAX: u32 = 100;

/// An open descriptor of our own. Unlike `OwnedFd`, which calls libc's `close` when it is dropped, it is
/// closed by the system call itself: the library that this code runs in may interpose libc's `close` for
/// the program's descriptors, which are in another file table and have the same numbers.
#[derive(Debug)]
pub(crate) struct Descriptor(ManuallyDrop<OwnedFd>);

impl Descriptor {
    /// The descriptor's path in /proc, for the calling thread. It is under thread-self, because the
    /// thread's file table may differ from that of the process's main thread.
    pub(crate) fn proc_path(&self) -> String {
        format!("/proc/thread-self/fd/{}", self.0.as_raw_fd())
    }
}

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // Closing the last descriptor of a file on a network file system waits for the server.
        elbowroom_sync::may_block();
        // SAFETY: (1) the inner descriptor is taken once, here, and not used after; (2) it is owned, so its
        // number is open and nothing else closes it.
        unsafe { rustix::io::close(ManuallyDrop::take(&mut self.0).into_raw_fd()) };
    }
}

/// Where the next system call of a request ends: at `len`, or halfway if it is the first one and the
/// injected fault is `short`.
pub(crate) fn first_end(done: usize, len: usize, short: bool) -> usize {
    if short && done == 0 { len.div_ceil(2) } else { len }
}

/// Whether an error of an aligned operation with O_DIRECT means that the file system does not support it.
pub(crate) fn refuses_direct(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::OPNOTSUPP)
}

/// Whether a system call should just be made again.
pub(crate) fn is_transient(error: Errno) -> bool {
    matches!(error, Errno::INTR | Errno::AGAIN)
}

/// Repeats a system call that was interrupted, a bounded number of times.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..RETRIES_MAX {
        match call() {
            Err(error) if is_transient(error) => thread::yield_now(),
            result => return result,
        }
    }
    call()
}

/// EINVAL if a range of `len` bytes at `offset` ends beyond what a file can have (and io_uring would take an
/// offset of -1 for the file position).
pub(crate) fn check_span(offset: u64, len: usize) -> Result<(), Errno> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

/// The range widened to whole pages, as start and length: the kernel drops no page that a range covers in
/// part.
pub(crate) fn whole_pages(offset: u64, len: u64) -> (u64, u64) {
    let page = PAGE_SIZE as u64;
    let start = offset & !(page - 1);
    if len == 0 { (start, 0) } else { (start, (offset + len).next_multiple_of(page) - start) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_descriptor_is_closed() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(Descriptor::from(writer));
        assert_eq!(rustix::io::read(&reader, &mut [0; 8]), Ok(0), "no writer is left");
    }

    #[test]
    fn pages_are_dropped_whole() {
        assert_eq!(whole_pages(0, 0), (0, 0));
        assert_eq!(whole_pages(4095, 2), (0, 8192));
        assert_eq!(whole_pages(4096, 4096), (4096, 4096));
        assert_eq!(whole_pages(8192, 1), (8192, 4096));
    }

    #[test]
    fn spans_end_where_files_can() {
        assert_eq!(check_span(i64::MAX as u64 - 4096, 4096), Ok(()));
        assert_eq!(check_span(i64::MAX as u64 - 4095, 4096), Err(Errno::INVAL));
        assert_eq!(check_span(u64::MAX, 1), Err(Errno::INVAL));
    }

    #[test]
    fn retries_are_bounded() {
        let mut calls = 0;
        let result: Result<(), Errno> = retry(|| {
            calls += 1;
            Err(Errno::INTR)
        });
        assert_eq!((result, calls), (Err(Errno::INTR), RETRIES_MAX + 1));
        let mut left = 3;
        let result = retry(|| {
            left -= 1;
            if left > 0 { Err(Errno::AGAIN) } else { Ok(7) }
        });
        assert_eq!(result, Ok(7));
    }
}
