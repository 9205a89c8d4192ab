//! The worker's mappings in the kernel. The only unsafe code of the worker: calls of libc's mmap family, and
//! accesses by pointer.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use elbowroom_lab::PAGE_BYTES;

/// What may be done to a mapping's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    Read,
    ReadWrite,
}

impl Rights {
    fn protection(self) -> i32 {
        match self {
            Self::Read => libc::PROT_READ,
            Self::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

/// A mapping made with libc's `mmap` and undone with its `munmap`.
///
/// # Invariants
/// `start` is the start of a mapping of `len_bytes` bytes that nobody else unmaps. Of these, the first
/// `open_bytes` may be read, and written if `rights` says so; only `&mut self` makes them fewer.
pub struct Mapping {
    start: NonNull<u8>,
    len_bytes: usize,
    open_bytes: usize,
    rights: Rights,
}

// SAFETY: the mapping belongs to the process, not to a thread; all access through a shared reference is by
// volatile or atomic loads and by relaxed atomic stores.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a part of a file, shared.
    pub fn of_file(file: &File, bytes: Range<u64>, rights: Rights) -> io::Result<Self> {
        let offset = i64::try_from(bytes.start).map_err(io::Error::other)?;
        Self::map(bytes.end - bytes.start, rights, libc::MAP_SHARED, file.as_raw_fd(), offset)
    }

    /// Maps anonymous memory, private and writable.
    pub fn anonymous(len_bytes: u64) -> io::Result<Self> {
        Self::map(len_bytes, Rights::ReadWrite, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    fn map(len_bytes: u64, rights: Rights, flags: i32, fd: i32, offset: i64) -> io::Result<Self> {
        let len_bytes = usize::try_from(len_bytes).map_err(io::Error::other)?;
        let protection = rights.protection();
        // SAFETY: without MAP_FIXED the new mapping replaces no other, so nothing that exists is affected.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, flags, fd, offset) };
        match NonNull::new(start.cast::<u8>()) {
            Some(begin) if start != libc::MAP_FAILED => {
                Ok(Self { start: begin, len_bytes, open_bytes: len_bytes, rights })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// How many bytes are mapped.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes as u64
    }

    /// Tells the kernel that the mapping will be read at random.
    pub fn advise_random(&self) -> io::Result<()> {
        // SAFETY: the range is the mapping's own, and MADV_RANDOM changes no content.
        let result = unsafe { libc::madvise(self.start.as_ptr().cast(), self.len_bytes, libc::MADV_RANDOM) };
        succeeded(result)
    }

    /// Tells the kernel that a part of the mapping, whole pages, will be read soon.
    ///
    /// # Panics
    /// If it is not of the mapping.
    pub fn advise_willneed(&self, part: Range<u64>) -> io::Result<()> {
        assert!(part.start <= part.end && part.end <= self.len_bytes as u64);
        // SAFETY: in bounds by the check above, and MADV_WILLNEED changes no content.
        let result = unsafe {
            let start = self.start.add(part.start as usize).as_ptr().cast();
            libc::madvise(start, (part.end - part.start) as usize, libc::MADV_WILLNEED)
        };
        succeeded(result)
    }

    /// Fills parts of the mapping, one after the other, with what a file has from a place on.
    ///
    /// # Errors
    /// If the file cannot be read, or ends before.
    ///
    /// # Panics
    /// If a part is not of the mapping, or the mapping is read-only.
    pub fn fill(&self, parts: &[Range<u64>], file: &File, at: u64) -> io::Result<()> {
        assert!(self.rights == Rights::ReadWrite);
        let vector = |part: &Range<u64>| {
            assert!(part.start <= part.end && part.end <= self.open_bytes as u64);
            // SAFETY: in bounds by the check above.
            let start = unsafe { self.start.add(part.start as usize) };
            libc::iovec { iov_base: start.as_ptr().cast(), iov_len: (part.end - part.start) as usize }
        };
        let vectors: Vec<libc::iovec> = parts.iter().map(vector).collect();
        let wanted: usize = vectors.iter().map(|vector| vector.iov_len).sum();
        let at = i64::try_from(at).map_err(io::Error::other)?;
        // SAFETY: all parts are in bounds and writable by the checks above; the kernel may store to them, as
        // all access that could be at the same time is atomic or volatile.
        let got =
            unsafe { libc::preadv(file.as_raw_fd(), vectors.as_ptr(), vectors.len() as libc::c_int, at) };
        match usize::try_from(got) {
            Ok(got) if got == wanted => Ok(()),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Writes what was stored to the file.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the range is the mapping's own, and msync changes no content.
        let result = unsafe { libc::msync(self.start.as_ptr().cast(), self.len_bytes, libc::MS_SYNC) };
        succeeded(result)
    }

    /// Takes all rights from the bytes from `from` on, whole pages.
    ///
    /// # Panics
    /// If that is not a page of the mapping.
    pub fn close_from(&mut self, from: u64) -> io::Result<()> {
        assert!(from.is_multiple_of(PAGE_BYTES) && from < self.len_bytes as u64);
        self.open_bytes = self.open_bytes.min(from as usize);
        // SAFETY: in bounds by the check above. Nobody reaches these bytes any more: `open_bytes` ends before
        // them, and `&mut self` says that nobody has a reference.
        let result = unsafe {
            let start = self.start.add(from as usize).as_ptr().cast();
            libc::mprotect(start, self.len_bytes - from as usize, libc::PROT_NONE)
        };
        succeeded(result)
    }

    /// Stores a byte.
    ///
    /// # Panics
    /// If it is not one of the mapping's, or the mapping is read-only.
    #[inline]
    pub fn store_byte(&self, offset: u64, value: u8) {
        assert!(offset < self.open_bytes as u64 && self.rights == Rights::ReadWrite);
        // SAFETY: in bounds and writable by the check above and the invariant; all access that could be at
        // the same time is atomic or volatile.
        let byte = unsafe { AtomicU8::from_ptr(self.start.add(offset as usize).as_ptr()) };
        byte.store(value, Ordering::Relaxed);
    }

    /// Stores eight bytes.
    ///
    /// # Panics
    /// If they are not aligned or not of the mapping, or it is read-only.
    #[inline]
    pub fn store_word(&self, offset: u64, value: u64) {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.open_bytes as u64);
        assert!(self.rights == Rights::ReadWrite);
        // SAFETY: in bounds, aligned and writable by the checks above and the invariant; all access that
        // could be at the same time is atomic or volatile.
        let word = unsafe { AtomicU64::from_ptr(self.start.add(offset as usize).as_ptr().cast()) };
        word.store(value.to_le(), Ordering::Relaxed);
    }

    /// Eight bytes, as a little-endian number.
    ///
    /// # Panics
    /// If they are not aligned or not of the mapping.
    #[inline]
    pub fn word_at(&self, offset: u64) -> u64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.open_bytes as u64);
        // SAFETY: in bounds and aligned by the check above; readable by the invariant. Volatile, because the
        // load is what the workload is about, and because a file may be changed by others.
        let value = unsafe { self.start.add(offset as usize).cast::<u64>().read_volatile() };
        u64::from_le(value)
    }

    /// The first eight bytes of a page.
    ///
    /// # Panics
    /// If the mapping has no such page.
    #[inline]
    pub fn stamp_at(&self, page: u64) -> u64 {
        assert!(page < self.open_bytes as u64 / PAGE_BYTES);
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

fn succeeded(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The worker's view of the board: words that the lab reads while they change.
pub struct SharedWords(Mapping);

impl SharedWords {
    /// Maps a whole file, shared and writable.
    pub fn of_file(file: &File) -> io::Result<Self> {
        Mapping::of_file(file, 0..file.metadata()?.len(), Rights::ReadWrite).map(Self)
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
