//! Writes to several places of a file that are under way at the same time, by a ring of their own.
//!
//! A device takes some 50 us for a write, but can work on many at a time. A thread that waits for each
//! write before it begins the next (pages all over a database, made durable by one msync) spends all its
//! time waiting.
//!
//! Synchronization: a ring is used by one thread at a time, but by different ones in turn.
//!
//! # Invariants
//! While the kernel works on a write, the caller is inside [`WriteRing::write`], which borrows the bytes.

use crate::calls::is_transient;
use elbowroom_machine::Errno;
use elbowroom_sync::thread;
use io_uring::{IoUring, opcode, types};
use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The most writes that are under way at a time.
pub const SCATTERED_WRITES: usize = 32;

/// A ring for writes.
pub struct WriteRing {
    ring: IoUring,
    broken: bool,
}

impl WriteRing {
    /// Makes a ring.
    ///
    /// # Errors
    /// What io_uring_setup(2) says: it may be forbidden here.
    pub fn new() -> Result<Self, Errno> {
        let mut builder = IoUring::builder();
        // A forked child must not use the ring.
        builder.dontfork().setup_submit_all();
        let ring = builder.build(SCATTERED_WRITES as u32);
        ring.map(|ring| Self { ring, broken: false }).map_err(|error| errno(&error))
    }

    /// Makes all of `writes`, each of which consists of parts that are contiguous in the file from an
    /// offset on, and waits for them. Tells for each how many bytes were written: 0 if it failed, or there
    /// are more than [`SCATTERED_WRITES`].
    pub(crate) fn write(&mut self, fd: BorrowedFd<'_>, writes: &[(Vec<IoSlice<'_>>, u64)]) -> Vec<usize> {
        let mut written = vec![0; writes.len()];
        let mut left = 0;
        for (number, (parts, offset)) in writes.iter().enumerate().take(SCATTERED_WRITES) {
            // An IoSlice has the layout of an iovec.
            let vector = parts.as_ptr().cast();
            let entry = opcode::Writev::new(types::Fd(fd.as_raw_fd()), vector, parts.len() as u32);
            let entry = entry.offset(*offset).build().user_data(number as u64);
            // SAFETY: the entry's vectors and their bytes, and the descriptor, are borrowed until this
            // returns, which it does only when none of the entries is with the kernel any more.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                left += 1;
            }
        }
        while left > 0 {
            // Entries that the kernel has not taken yet are taken by a later call.
            let entered = if self.broken { Ok(0) } else { self.ring.submit_and_wait(left) };
            for completion in self.ring.completion() {
                left -= 1;
                if let Some(bytes) = written.get_mut(completion.user_data() as usize) {
                    *bytes = usize::try_from(completion.result()).unwrap_or(0);
                }
            }
            if let Err(error) = entered {
                let errno = errno(&error);
                if !is_transient(errno) && errno != Errno::BUSY {
                    // The kernel takes no more entries. For those that it has, the loop polls the
                    // completion queue.
                    self.broken = true;
                    left -= self.ring.submission().len();
                }
            }
            if left > 0 {
                thread::yield_now();
            }
        }
        written
    }

    /// Whether the kernel has refused the ring: then it must not be used any more.
    pub fn is_broken(&self) -> bool {
        self.broken
    }
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn many_places_are_written_at_once_and_failures_are_told() {
        let Ok(mut ring) = WriteRing::new() else { return eprintln!("skipped: no io_uring here") };
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<Vec<u8>> = (0..SCATTERED_WRITES as u8).map(|n| vec![n; 100]).collect();
        for round in 0..3 {
            let at = |number: usize| (number * 1000 + round) as u64;
            let writes: Vec<_> = bytes
                .iter()
                .enumerate()
                .map(|(number, bytes)| {
                    let (first, second) = bytes.split_at(30);
                    (vec![IoSlice::new(first), IoSlice::new(second)], at(number))
                })
                .collect();
            assert_eq!(ring.write(file.as_fd(), &writes), vec![100; SCATTERED_WRITES]);
            for (number, bytes) in bytes.iter().enumerate() {
                let mut found = [0; 100];
                file.read_exact_at(&mut found, at(number)).unwrap();
                assert_eq!(&found[..], &bytes[..]);
            }
        }
        let read_only = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(ring.write(read_only.as_fd(), &[(vec![IoSlice::new(b"x")], 0)]), [0]);
    }
}
