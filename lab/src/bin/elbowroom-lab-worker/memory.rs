//! The worker's mappings. The only unsafe code of the lab, all of it calls of libc's mmap family.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use elbowroom_lab::PAGE_BYTES;

/// A mapping made with libc's `mmap` and undone with its `munmap`.
///
/// # Invariants
/// `start` is the start of a mapping of `len_bytes` bytes that nobody else unmaps and whose protection does
/// not change.
pub struct Mapping {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; all access through a shared reference is by
// volatile or atomic loads and by relaxed atomic stores.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len_bytes` bytes of a file, shared and read-only.
    pub fn of_file(file: &File, len_bytes: u64) -> io::Result<Self> {
        Self::map(len_bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Maps anonymous memory, private and writable.
    pub fn anonymous(len_bytes: u64) -> io::Result<Self> {
        Self::map(len_bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    fn map(len_bytes: u64, protection: i32, flags: i32, fd: i32) -> io::Result<Self> {
        let len_bytes = usize::try_from(len_bytes).map_err(io::Error::other)?;
        // SAFETY: without MAP_FIXED the new mapping replaces no other, so nothing that exists is affected.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, flags, fd, 0) };
        match NonNull::new(start.cast::<u8>()) {
            Some(begin) if start != libc::MAP_FAILED => Ok(Self { start: begin, len_bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Tells the kernel that the mapping will be read at random.
    pub fn advise_random(&self) -> io::Result<()> {
        // SAFETY: the range is the mapping's own, and MADV_RANDOM changes no content.
        let result = unsafe { libc::madvise(self.start.as_ptr().cast(), self.len_bytes, libc::MADV_RANDOM) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The first eight bytes of a page.
    ///
    /// # Panics
    /// If the mapping has no such page.
    #[inline]
    pub fn stamp_at(&self, page: u64) -> u64 {
        assert!(page < self.len_bytes as u64 / PAGE_BYTES);
        // SAFETY: in bounds by the check above and aligned to a page; readable by the invariant. Volatile,
        // because the load is what the workload is about, and because a file may be changed by others.
        let value = unsafe { self.start.add((page * PAGE_BYTES) as usize).cast::<u64>().read_volatile() };
        u64::from_le(value)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping's own, and no reference into it outlives `self`.
        let result = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len_bytes) };
        assert_eq!(result, 0, "munmap of a whole mapping failed: {}", io::Error::last_os_error());
    }
}

/// Anonymous memory of the bystander's own.
pub struct Scratch(Mapping);

impl Scratch {
    /// Maps that many bytes.
    pub fn new(len_bytes: u64) -> io::Result<Self> {
        Mapping::anonymous(len_bytes).map(Self)
    }

    /// Writes one byte into every page.
    pub fn touch_every_page(&mut self) {
        for offset in (0..self.0.len_bytes).step_by(PAGE_BYTES as usize) {
            // SAFETY: in bounds; the mapping is writable and `&mut self` is its only user. Volatile, because
            // the store is what is measured.
            unsafe { self.0.start.add(offset).write_volatile(1) };
        }
    }
}

/// The worker's view of the board: words that the lab reads while they change.
pub struct SharedWords(Mapping);

impl SharedWords {
    /// Maps a whole file, shared and writable.
    pub fn of_file(file: &File) -> io::Result<Self> {
        let len_bytes = file.metadata()?.len();
        Mapping::map(len_bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd())
            .map(Self)
    }

    /// One word.
    ///
    /// # Panics
    /// If the file has no such word.
    #[inline]
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.0.len_bytes / 8);
        // SAFETY: in bounds and aligned to eight bytes; mapped writable for as long as `self` lives; nobody
        // in this process reaches these bytes other than through this function.
        unsafe { AtomicU64::from_ptr(self.0.start.as_ptr().cast::<u64>().add(index)) }
    }
}
