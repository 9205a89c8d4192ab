//! How mappings are asked for.

use crate::budget::{self, Budget};
use crate::held::{Held, Part, Use, Wishes};
use crate::if_safe::{self, MapIfSafeError};
use crate::map::{Mmap, MmapMut, MmapRaw, View};
use elbowroom_house::budget::Budget as Group;
use elbowroom_house::files::Opened;
use elbowroom_house::held;
use elbowroom_machine::PAGE_SIZE;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// log2 of the only size of huge pages that anonymous memory can have: 2 MiB.
const HUGE_BITS: u8 = 21;

/// What can be mapped: a reference to anything with a descriptor, or the number of a descriptor.
pub trait MmapAsRawDesc {
    /// The descriptor. It need only be open until the mapping is made.
    fn as_raw_desc(&self) -> MmapRawDescriptor;
}

/// A descriptor that is to be mapped.
#[derive(Debug, Clone, Copy)]
pub struct MmapRawDescriptor(RawFd);

impl MmapAsRawDesc for RawFd {
    fn as_raw_desc(&self) -> MmapRawDescriptor {
        MmapRawDescriptor(*self)
    }
}

impl<T: AsRawFd> MmapAsRawDesc for &T {
    fn as_raw_desc(&self) -> MmapRawDescriptor {
        MmapRawDescriptor(self.as_raw_fd())
    }
}

/// Who may change a file that is mapped to be stored to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FileSharing {
    /// Anybody. The file is managed while no other process uses it, which only a process with CAP_SYS_ADMIN
    /// can know. Otherwise the kernel maps it, beside the budget. The default.
    #[default]
    Anybody,
    /// Only this process, which is the caller's promise: it is managed in any case. Of two stores of two
    /// processes to one page one may be lost.
    Trust,
}

/// How a mapping is to be made. A builder, with the names of memmap2's, and a budget.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use elbowroom::MmapOptions;
///
/// let file = std::fs::File::open("Cargo.toml")?;
/// // SAFETY: nothing changes the file meanwhile.
/// let map = unsafe { MmapOptions::new().offset(1).len(7).map(&file)? };
/// assert_eq!(&map[..], b"package");
/// # Ok(())
/// # }
/// ```
///
/// # Safety
/// A mapping of a file is a slice, and Rust takes for granted that the bytes of a slice do not change by
/// themselves. They do if this process or another one writes to the file, or cuts it, while it is mapped. So
/// the functions that map files are unsafe: the caller promises that nobody does, or that the program can
/// bear it.
#[derive(Debug, Clone, Default)]
pub struct MmapOptions {
    offset: u64,
    len: Option<usize>,
    huge: Option<u8>,
    sharing: FileSharing,
    populate: bool,
    no_reserve_swap: bool,
    budget: Option<Arc<Group>>,
}

impl MmapOptions {
    /// A whole file, or no bytes of anonymous memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// The mapping begins at this byte of the file, any byte. No effect on anonymous memory.
    pub fn offset(&mut self, offset: u64) -> &mut Self {
        self.offset = offset;
        self
    }

    /// The mapping has so many bytes. The default is the file's bytes from the offset on, and none of
    /// anonymous memory.
    pub fn len(&mut self, len: usize) -> &mut Self {
        self.len = Some(len);
        self
    }

    /// The anonymous memory is for a stack. No effect: Linux treats such memory as any other.
    pub fn stack(&mut self) -> &mut Self {
        self
    }

    /// The anonymous memory is to have huge pages of `1 << page_bits` bytes. 2 MiB (21, the default) are what
    /// there is: an advice then, since the manager uses huge pages where they fit. Other sizes are an error
    /// of [`MmapOptions::map_anon`].
    pub fn huge(&mut self, page_bits: Option<u8>) -> &mut Self {
        self.huge = Some(page_bits.filter(|bits| *bits != 0).unwrap_or(HUGE_BITS));
        self
    }

    /// Brings the pages in at once, as far as the budget has room.
    pub fn populate(&mut self) -> &mut Self {
        self.populate = true;
        self
    }

    /// Does not promise memory and swap for all of the anonymous memory: for large mappings of which little
    /// is stored to. If more is stored than there is room for, an access is SIGBUS.
    pub fn no_reserve_swap(&mut self) -> &mut Self {
        self.no_reserve_swap = true;
        self
    }

    /// No effect on Linux.
    pub fn no_probe_handle(&mut self) -> &mut Self {
        self
    }

    /// The budget of the mapping. The default is that of the innermost [`Budget::within`] of the thread, else
    /// that of the process.
    pub fn budget(&mut self, budget: &Budget) -> &mut Self {
        self.budget = Some(budget.group().clone());
        self
    }

    /// Who may change a file that is mapped to be stored to.
    pub fn sharing(&mut self, sharing: FileSharing) -> &mut Self {
        self.sharing = sharing;
        self
    }

    /// Maps a file, to be loaded from.
    ///
    /// # Safety
    /// See [the type](MmapOptions#safety).
    ///
    /// # Errors
    /// PermissionDenied: the file is not open for reading. InvalidData: the offset is beyond the file's end,
    /// and no length was given. Unsupported: what this machine lacks for a manager, and what to do.
    pub unsafe fn map<T: MmapAsRawDesc>(&self, file: T) -> io::Result<Mmap> {
        self.map_file(&file, Use::Read).map(Mmap::of)
    }

    /// Maps a file, to be loaded from and executed. The kernel maps it, beside the budget: nothing that is
    /// managed is executed.
    ///
    /// # Safety
    /// See [the type](MmapOptions#safety).
    ///
    /// # Errors
    /// As for [`MmapOptions::map`]. PermissionDenied: the file system permits no execution.
    pub unsafe fn map_exec<T: MmapAsRawDesc>(&self, file: T) -> io::Result<Mmap> {
        self.map_file(&file, Use::Exec).map(Mmap::of)
    }

    /// Maps a file, to be loaded from and stored to. Stores are in the file within a second, after
    /// [`MmapMut::flush`], and when the mapping is dropped.
    ///
    /// # Safety
    /// See [the type](MmapOptions#safety).
    ///
    /// # Errors
    /// As for [`MmapOptions::map`]. PermissionDenied: the file is not open for reading and writing.
    pub unsafe fn map_mut<T: MmapAsRawDesc>(&self, file: T) -> io::Result<MmapMut> {
        self.map_file(&file, Use::Write).map(MmapMut::of)
    }

    /// Maps a file, to be loaded from and stored to. Stores stay in this mapping: what is stored needs memory
    /// or swap of the budget.
    ///
    /// # Safety
    /// See [the type](MmapOptions#safety).
    ///
    /// # Errors
    /// As for [`MmapOptions::map`].
    pub unsafe fn map_copy<T: MmapAsRawDesc>(&self, file: T) -> io::Result<MmapMut> {
        self.map_file(&file, Use::Copy).map(MmapMut::of)
    }

    /// As [`MmapOptions::map_copy`], to be loaded from only, until [`Mmap::make_mut`].
    ///
    /// # Safety
    /// See [the type](MmapOptions#safety).
    ///
    /// # Errors
    /// As for [`MmapOptions::map`].
    pub unsafe fn map_copy_read_only<T: MmapAsRawDesc>(&self, file: T) -> io::Result<Mmap> {
        self.map_file(&file, Use::CopyReadOnly).map(Mmap::of)
    }

    /// Maps a file of which it is known that nobody can change or cut it: a memfd with the seals F_SEAL_WRITE
    /// and F_SEAL_SHRINK, or a file with fs-verity.
    ///
    /// # Errors
    /// [`MapIfSafeError`], which becomes an [`io::Error`].
    pub fn map_if_safe<T: MmapAsRawDesc>(&self, file: T) -> Result<Mmap, MapIfSafeError> {
        let len = self.file_len(&file).map_err(MapIfSafeError::of_mapping)?;
        if_safe::check(file.as_raw_desc().0, self.offset, len)?;
        self.map_file(&file, Use::Read).map(Mmap::of).map_err(MapIfSafeError::of_mapping)
    }

    /// Maps anonymous memory, of zeros. It is promised: budget and swap have room for all of it.
    ///
    /// # Errors
    /// OutOfMemory: budget and swap have less room. InvalidData: more than `isize::MAX` bytes. Unsupported:
    /// what this machine lacks for a manager; or huge pages of such a size.
    pub fn map_anon(&self) -> io::Result<MmapMut> {
        let len = checked_len(self.len.unwrap_or(0) as u64)?;
        if let Some(bits) = self.huge
            && bits != HUGE_BITS
        {
            let text = format!("huge pages have 2 MiB (21 bits) here, not 1 << {bits} bytes");
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let held = Held::of_memory(len.max(1), self.huge.is_some(), &self.wishes())?;
        Ok(MmapMut::of(View::new(held, 0, len)))
    }

    /// As [`MmapOptions::map_mut`], for a mapping that is only reached through pointers.
    ///
    /// # Errors
    /// As there.
    pub fn map_raw<T: MmapAsRawDesc>(&self, file: T) -> io::Result<MmapRaw> {
        self.map_file(&file, Use::Write).map(MmapRaw::of)
    }

    /// As [`MmapOptions::map`], for a mapping that is only reached through pointers.
    ///
    /// # Errors
    /// As there.
    pub fn map_raw_read_only<T: MmapAsRawDesc>(&self, file: T) -> io::Result<MmapRaw> {
        self.map_file(&file, Use::Read).map(MmapRaw::of)
    }

    fn wishes(&self) -> Wishes {
        Wishes {
            common: held::Wishes { populate: self.populate, no_reserve: self.no_reserve_swap },
            trust: self.sharing == FileSharing::Trust,
            budget: self.budget.clone().or_else(budget::current),
        }
    }

    fn file_len(&self, file: &impl MmapAsRawDesc) -> io::Result<usize> {
        let len = match self.len {
            Some(len) => len as u64,
            None => Opened::look(file.as_raw_desc().0)?.len.checked_sub(self.offset).ok_or_else(|| {
                let text = "memory map offset is larger than length";
                io::Error::new(io::ErrorKind::InvalidData, text)
            })?,
        };
        checked_len(len)
    }

    fn map_file(&self, file: &impl MmapAsRawDesc, usage: Use) -> io::Result<View> {
        let len = self.file_len(file)?;
        let before = (self.offset % PAGE_SIZE as u64) as usize;
        // No bytes are a mapping of one byte, which nobody can reach, as with memmap2.
        let whole = before.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?.max(1);
        let part = Part { fd: file.as_raw_desc().0, offset: self.offset - before as u64, len: whole, usage };
        if part.offset.checked_add(whole as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(io::Error::from_raw_os_error(libc::EOVERFLOW));
        }
        Ok(View::new(Held::of_file(part, &self.wishes())?, before, len))
    }
}

/// No slice is larger than `isize::MAX`.
fn checked_len(len: u64) -> io::Result<usize> {
    match isize::try_from(len) {
        Ok(len) => Ok(len as usize),
        Err(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "memory map length overflows isize")),
    }
}
