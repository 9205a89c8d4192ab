//! Mappings as slices, and as pointers.

use crate::advice::{Advice, UncheckedAdvice};
use crate::held::Held;
use crate::if_safe::MapIfSafeError;
use crate::options::{MmapAsRawDesc, MmapOptions};
use elbowroom_house::held::Moving;
use elbowroom_machine::PAGE_SIZE;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::slice;

/// The bytes of a mapping that the program has asked for: a mapping begins at a page, and has one byte at
/// least.
#[derive(Debug)]
pub(crate) struct View {
    held: Held,
    /// Bytes of the mapping before the first one.
    before: usize,
    len: usize,
}

impl View {
    pub(crate) fn new(held: Held, before: usize, len: usize) -> Self {
        Self { held, before, len }
    }

    #[inline]
    fn ptr(&self) -> *mut u8 {
        // The kernel or the manager has made the mapping: no Rust object is there.
        std::ptr::with_exposed_provenance_mut(self.held.start() + self.before)
    }

    /// Checks that a range is one of the view's.
    fn check(&self, offset: usize, len: usize) -> io::Result<()> {
        if offset > self.len || len > self.len - offset {
            let text = format!("{len} bytes from {offset} on are not in a mapping of {} bytes", self.len);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(())
    }

    fn flush(&self, offset: usize, len: usize, wait: bool) -> io::Result<()> {
        self.check(offset, len)?;
        self.held.flush(self.before + offset, len, wait)
    }

    fn advise(&self, advice: Advice, offset: usize, len: usize) -> io::Result<()> {
        self.check(offset, len)?;
        self.held.advise(self.before + offset, len, advice.managers()?, advice as i32)
    }

    fn advise_unchecked(&self, advice: UncheckedAdvice, offset: usize, len: usize) -> io::Result<()> {
        self.check(offset, len)?;
        self.held.advise(self.before + offset, len, advice.managers(), advice as i32)
    }

    /// Locks the bytes, or unlocks them. A mapping of no bytes may be one of nothing in the file.
    fn lock(&self, locked: bool) -> io::Result<()> {
        if self.len == 0 { Ok(()) } else { self.held.lock(locked) }
    }

    fn remap(&mut self, len: usize, options: RemapOptions) -> io::Result<()> {
        if isize::try_from(len).is_err() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "memory map length overflows isize"));
        }
        self.held.remap((self.before + len).max(1), options.moving())?;
        self.len = len;
        Ok(())
    }
}

/// How [`Mmap::remap`] may change the length of a mapping.
#[derive(Debug, Clone, Copy, Default)]
pub struct RemapOptions {
    may_move: bool,
}

impl RemapOptions {
    fn moving(self) -> Moving {
        if self.may_move { Moving::May } else { Moving::Not }
    }
}

impl RemapOptions {
    /// The mapping stays at its address.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the mapping may go to another address. If not, it is an error if something is mapped behind
    /// it.
    #[must_use]
    pub fn may_move(mut self, may_move: bool) -> Self {
        self.may_move = may_move;
        self
    }
}

/// A mapping to be loaded from: a slice of bytes. It is unmapped when it is dropped, in whatever thread. The
/// file may be closed before.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use elbowroom::Mmap;
///
/// let file = std::fs::File::open("Cargo.toml")?;
/// // SAFETY: nothing changes the file meanwhile.
/// let map = unsafe { Mmap::map(&file)? };
/// assert_eq!(map[..], std::fs::read("Cargo.toml")?[..]);
/// # Ok(())
/// # }
/// ```
pub struct Mmap {
    view: View,
}

/// A mapping to be loaded from and stored to: a mutable slice of bytes. It is unmapped when it is dropped, in
/// whatever thread; what was stored to a file is in the file then.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use elbowroom::MmapMut;
///
/// let file = tempfile::tempfile()?;
/// file.set_len(4096)?;
/// // SAFETY: nothing else changes the file meanwhile.
/// let mut map = unsafe { MmapMut::map_mut(&file)? };
/// map[..5].copy_from_slice(b"hello");
/// map.flush()?;
/// # Ok(())
/// # }
/// ```
pub struct MmapMut {
    view: View,
}

/// A mapping that is only reached through pointers, so that nothing is taken for granted of its bytes: for
/// memory that other processes change.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use elbowroom::MmapRaw;
///
/// let file = tempfile::tempfile()?;
/// file.set_len(4096)?;
/// let map = MmapRaw::map_raw(&file)?;
/// // SAFETY: the first byte is in the mapping, and in the file.
/// unsafe { map.as_mut_ptr().write_volatile(7) };
/// map.flush()?;
/// # Ok(())
/// # }
/// ```
pub struct MmapRaw {
    view: View,
}

/// What all three kinds of mappings have.
macro_rules! mapping {
    ($name:ident, $text:literal) => {
        impl $name {
            pub(crate) fn of(view: View) -> Self {
                Self { view }
            }

            /// Tells how the mapping will be accessed.
            ///
            /// # Errors
            /// Those of madvise(2).
            pub fn advise(&self, advice: Advice) -> io::Result<()> {
                self.view.advise(advice, 0, self.view.len)
            }

            /// Tells how the pages that have one of `len` bytes from `offset` on will be accessed.
            ///
            /// # Errors
            /// As for [`advise`](Self::advise). InvalidInput: the range is not in the mapping.
            pub fn advise_range(&self, advice: Advice, offset: usize, len: usize) -> io::Result<()> {
                self.view.advise(advice, offset, len)
            }

            /// Acts on advice that changes bytes.
            ///
            /// # Safety
            /// No slice of the mapping is in use, or its user can bear that the bytes change.
            ///
            /// # Errors
            /// Those of madvise(2).
            pub unsafe fn unchecked_advise(&self, advice: UncheckedAdvice) -> io::Result<()> {
                self.view.advise_unchecked(advice, 0, self.view.len)
            }

            /// Acts on advice that changes bytes, for the pages that have one of `len` bytes from `offset`
            /// on.
            ///
            /// # Safety
            /// As for [`unchecked_advise`](Self::unchecked_advise).
            ///
            /// # Errors
            /// As for [`unchecked_advise`](Self::unchecked_advise). InvalidInput: the range is not in the
            /// mapping.
            pub unsafe fn unchecked_advise_range(
                &self,
                advice: UncheckedAdvice,
                offset: usize,
                len: usize,
            ) -> io::Result<()> {
                self.view.advise_unchecked(advice, offset, len)
            }

            /// Brings all pages in, and refuses advice that would take them away. The budget comes first:
            /// pages of a locked mapping go out where memory is short. So this is no place for secrets that
            /// must not be in a swap file.
            ///
            /// # Errors
            /// Those of mlock(2).
            pub fn lock(&self) -> io::Result<()> {
                self.view.lock(true)
            }

            /// Undoes [`lock`](Self::lock).
            ///
            /// # Errors
            /// Those of munlock(2).
            pub fn unlock(&self) -> io::Result<()> {
                self.view.lock(false)
            }

            /// Makes the mapping `new_len` bytes long.
            ///
            /// # Safety
            /// An access to bytes beyond the end of the file is SIGBUS. No pointer into the mapping is used
            /// afterwards, if it may move.
            ///
            /// # Errors
            /// Those of mremap(2). OutOfMemory: there is no room behind it, or the budget has too little.
            pub unsafe fn remap(&mut self, new_len: usize, options: RemapOptions) -> io::Result<()> {
                self.view.remap(new_len, options)
            }

            /// Whether the manager serves the mapping now, within a budget. Otherwise the kernel does, beside
            /// it: a mapping of a file can go to the kernel at any time (docs/library.md).
            pub fn is_managed(&self) -> bool {
                self.view.held.is_managed()
            }

            /// Why the kernel has served the mapping from the beginning; `None`: it has not.
            pub fn unmanaged_reason(&self) -> Option<&str> {
                self.view.held.reason()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct($text)
                    .field("ptr", &self.view.ptr().cast_const())
                    .field("len", &self.view.len)
                    .finish()
            }
        }
    };
}

mapping!(Mmap, "Mmap");
mapping!(MmapMut, "MmapMut");
mapping!(MmapRaw, "MmapRaw");

/// What the kinds of mappings have that can be stored to.
macro_rules! stored {
    ($name:ident) => {
        impl $name {
            /// Writes what was stored to the file, and waits until it is durable.
            ///
            /// # Errors
            /// The first error of a write of the file since the last call.
            pub fn flush(&self) -> io::Result<()> {
                self.view.flush(0, self.view.len, true)
            }

            /// Has what was stored written to the file soon, within a second, without waiting for it.
            ///
            /// # Errors
            /// Those of msync(2).
            pub fn flush_async(&self) -> io::Result<()> {
                self.view.flush(0, self.view.len, false)
            }

            /// As [`flush`](Self::flush), for `len` bytes from `offset` on, and what else is in their pages.
            ///
            /// # Errors
            /// As there. InvalidInput: the range is not in the mapping.
            pub fn flush_range(&self, offset: usize, len: usize) -> io::Result<()> {
                self.view.flush(offset, len, true)
            }

            /// As [`flush_async`](Self::flush_async), for `len` bytes from `offset` on.
            ///
            /// # Errors
            /// As there. InvalidInput: the range is not in the mapping.
            pub fn flush_async_range(&self, offset: usize, len: usize) -> io::Result<()> {
                self.view.flush(offset, len, false)
            }
        }
    };
}

stored!(MmapMut);
stored!(MmapRaw);

impl Mmap {
    /// Maps a file: `MmapOptions::new().map(file)`.
    ///
    /// # Safety
    /// See [`MmapOptions`](MmapOptions#safety).
    ///
    /// # Errors
    /// As for [`MmapOptions::map`].
    pub unsafe fn map<T: MmapAsRawDesc>(file: T) -> io::Result<Mmap> {
        // SAFETY: the caller's promise.
        unsafe { MmapOptions::new().map(file) }
    }

    /// Maps a file that nobody can change: `MmapOptions::new().map_if_safe(file)`.
    ///
    /// # Errors
    /// As for [`MmapOptions::map_if_safe`].
    pub fn map_if_safe<T: MmapAsRawDesc>(file: T) -> Result<Mmap, MapIfSafeError> {
        MmapOptions::new().map_if_safe(file)
    }

    /// Makes it a mapping to store to. If other processes may use the file, the kernel serves it from then
    /// on.
    ///
    /// # Errors
    /// PermissionDenied: the file was not open for writing.
    pub fn make_mut(mut self) -> io::Result<MmapMut> {
        self.view.held.protect(true)?;
        Ok(MmapMut { view: self.view })
    }
}

impl MmapMut {
    /// Maps a file to store to: `MmapOptions::new().map_mut(file)`.
    ///
    /// # Safety
    /// See [`MmapOptions`](MmapOptions#safety).
    ///
    /// # Errors
    /// As for [`MmapOptions::map_mut`].
    pub unsafe fn map_mut<T: MmapAsRawDesc>(file: T) -> io::Result<MmapMut> {
        // SAFETY: the caller's promise.
        unsafe { MmapOptions::new().map_mut(file) }
    }

    /// Maps anonymous memory: `MmapOptions::new().len(length).map_anon()`.
    ///
    /// # Errors
    /// As for [`MmapOptions::map_anon`].
    pub fn map_anon(length: usize) -> io::Result<MmapMut> {
        MmapOptions::new().len(length).map_anon()
    }

    /// Makes it a mapping that can only be loaded from.
    ///
    /// # Errors
    /// Those of mprotect(2).
    pub fn make_read_only(mut self) -> io::Result<Mmap> {
        self.view.held.protect(false)?;
        Ok(Mmap { view: self.view })
    }

    /// Makes it a mapping that can be loaded from and executed. The kernel serves it from then on, and, if it
    /// is of a file, all other mappings of that file.
    ///
    /// # Errors
    /// Those of mprotect(2), and of a write of the file.
    pub fn make_exec(mut self) -> io::Result<Mmap> {
        self.view.held.protect_exec()?;
        Ok(Mmap { view: self.view })
    }
}

impl MmapRaw {
    /// Maps a file: `MmapOptions::new().map_raw(file)`.
    ///
    /// # Errors
    /// As for [`MmapOptions::map_mut`].
    pub fn map_raw<T: MmapAsRawDesc>(file: T) -> io::Result<MmapRaw> {
        MmapOptions::new().map_raw(file)
    }

    /// The first byte. An access beyond the end of the file is SIGBUS.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.view.ptr()
    }

    /// The first byte, to be stored to if the mapping permits it; else a store is SIGSEGV.
    #[inline]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.view.ptr()
    }

    /// How many bytes it has.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "memmap2 has none")]
    pub fn len(&self) -> usize {
        self.view.len
    }
}

impl From<Mmap> for MmapRaw {
    fn from(map: Mmap) -> Self {
        Self { view: map.view }
    }
}

impl From<MmapMut> for MmapRaw {
    fn from(map: MmapMut) -> Self {
        Self { view: map.view }
    }
}

impl Deref for Mmap {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are mapped as long as the value lives, and can be loaded; that nobody changes
        // those of a file is the promise of the mapping's maker. At most `isize::MAX` bytes, and never at 0.
        unsafe { slice::from_raw_parts(self.view.ptr(), self.view.len) }
    }
}

impl Deref for MmapMut {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: as for `Mmap`; stores need the value alone.
        unsafe { slice::from_raw_parts(self.view.ptr(), self.view.len) }
    }
}

impl DerefMut for MmapMut {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `Mmap`; the bytes can be stored to, and the value is borrowed alone.
        unsafe { slice::from_raw_parts_mut(self.view.ptr(), self.view.len) }
    }
}

impl AsRef<[u8]> for Mmap {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsRef<[u8]> for MmapMut {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for MmapMut {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

// An empty view may begin anywhere in a page; the pointer is never null.
const _: () = assert!(PAGE_SIZE > 1);
