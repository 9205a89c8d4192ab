//! Where the worker's mappings are: in the kernel's address space of this process, or, for the engine `soft`,
//! in a soft space of the library, which is reached by calls.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use elbowroom::{
    Ablation, Advice, Config, Cpu, FileObject, LockUse, Manager, MapRequest, Place, Prot, Sharing, Soft,
    Space,
};
use elbowroom_lab::PAGE_BYTES;

use crate::memory::{Mapping, Rights};

/// Where mappings are made.
pub enum Ground {
    /// By libc's mmap.
    Pointers,
    /// In a soft space.
    Soft(SoftGround),
}

/// Whether it is measured how long locks are held, which is not free.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum HoldTimes {
    Measured,
    Unknown,
}

/// A soft space, and the manager that it is of.
pub struct SoftGround {
    space: Space<Soft>,
    manager: Manager<Soft>,
}

/// A thread's way to the memory of a ground.
pub enum Hand {
    Pointers,
    Calls(Cpu),
}

/// An open file.
pub enum Opened {
    File(File),
    Object(Arc<FileObject>),
}

/// A mapping, unmapped when it is dropped.
pub struct View<'g> {
    memory: Memory<'g>,
    /// The page of the file with which it begins.
    first_page: u64,
}

enum Memory<'g> {
    Pointers(Mapping),
    Soft { ground: &'g SoftGround, addr: usize, len: usize },
}

impl Ground {
    /// A soft space in a budget of its own, without the improvements that are named. With `hold_times` it is
    /// measured how long the manager's locks are held.
    pub fn soft(memory_bytes: u64, off: &str, hold_times: HoldTimes) -> Result<Self> {
        let ablation = Ablation::without(off).map_err(|error| anyhow!(error))?;
        let config = Config { ablation, ..Config::with_memory(memory_bytes) };
        let manager = Manager::<Soft>::start_on(config).context("no manager")?;
        if hold_times == HoldTimes::Measured {
            manager.locks().count_in_detail();
        }
        let space = manager.create_space().context("no soft space")?;
        Ok(Self::Soft(SoftGround { space, manager }))
    }

    /// A thread's way to its memory.
    pub fn hand(&self) -> Hand {
        match self {
            Self::Pointers => Hand::Pointers,
            Self::Soft(soft) => Hand::Calls(soft.space.cpu()),
        }
    }

    /// Opens a file to be mapped.
    pub fn open(&self, path: &Path, rights: Rights) -> Result<Opened> {
        let writable = rights == Rights::ReadWrite;
        let opened = match self {
            Self::Pointers => {
                OpenOptions::new().read(true).write(writable).open(path).map(Opened::File).map_err(Into::into)
            }
            Self::Soft(soft) => {
                soft.manager.open(path, writable).map(Opened::Object).map_err(anyhow::Error::from)
            }
        };
        opened.with_context(|| format!("cannot open {}", path.display()))
    }

    /// Maps a part of a file, shared.
    pub fn map(&self, file: &Opened, bytes: Range<u64>, rights: Rights) -> Result<View<'_>> {
        let first_page = bytes.start / PAGE_BYTES;
        let memory = match (self, file) {
            (Self::Pointers, Opened::File(file)) => {
                Memory::Pointers(Mapping::of_file(file, bytes, rights).context("cannot map a file")?)
            }
            (Self::Soft(soft), Opened::Object(object)) => {
                soft.map(Some(object), bytes, rights).context("cannot map a file")?
            }
            _ => unreachable!("a file is mapped where it was opened"),
        };
        Ok(View { memory, first_page })
    }

    /// Maps anonymous memory, private and writable.
    pub fn map_anonymous(&self, len_bytes: u64) -> Result<View<'_>> {
        let memory = match self {
            Self::Pointers => Mapping::anonymous(len_bytes).map(Memory::Pointers).map_err(Into::into),
            Self::Soft(soft) => soft.map(None, 0..len_bytes, Rights::ReadWrite),
        };
        let memory = memory.with_context(|| format!("cannot map {len_bytes} bytes"))?;
        Ok(View { memory, first_page: 0 })
    }

    /// Has everything that was stored written to the files.
    pub fn flush(&self) -> Result<()> {
        match self {
            Self::Pointers => Ok(()),
            Self::Soft(soft) => soft.manager.flush_all().context("what was stored cannot be written"),
        }
    }

    /// Writes the manager's statistics to a file, with the keys of `elbowroom run --stats`.
    pub fn write_stats(&self, path: &Path) -> Result<()> {
        let Self::Soft(soft) = self else { return Ok(()) };
        let context = "statistics cannot be written";
        let mut stats = serde_json::to_value(soft.manager.stats()).context(context)?;
        stats["locks"] =
            serde_json::to_value(LockUse::from(&soft.manager.locks().snapshot())).context(context)?;
        std::fs::write(path, stats.to_string()).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl SoftGround {
    fn map(&self, object: Option<&Arc<FileObject>>, bytes: Range<u64>, rights: Rights) -> Result<Memory<'_>> {
        let len = usize::try_from(bytes.end - bytes.start)?;
        let writable = rights == Rights::ReadWrite;
        let addr = self.space.map(MapRequest {
            place: Place::Anywhere,
            len,
            prot: if writable { Prot::READ | Prot::WRITE } else { Prot::READ },
            may_write: writable,
            sharing: if object.is_some() { Sharing::Shared } else { Sharing::Private },
            object: object.cloned(),
            offset: bytes.start,
            populate: false,
            locked: false,
            no_reserve: false,
            group: None,
        })?;
        Ok(Memory::Soft { ground: self, addr, len })
    }
}

impl View<'_> {
    /// The first eight bytes of a page, by its number in the file.
    #[inline]
    pub fn stamp_at(&self, hand: &Hand, page: u64) -> Result<u64> {
        let page = page - self.first_page;
        match (&self.memory, hand) {
            (Memory::Pointers(mapping), _) => Ok(mapping.stamp_at(page)),
            (Memory::Soft { addr, len, .. }, Hand::Calls(cpu)) => {
                assert!(page < *len as u64 / PAGE_BYTES, "page {page} is not of the mapping");
                Ok(u64::from_le(cpu.read_u64(addr + (page * PAGE_BYTES) as usize)?))
            }
            (Memory::Soft { .. }, Hand::Pointers) => unreachable!("a hand is of its ground"),
        }
    }

    /// Eight bytes at a place of the file, as a little-endian number.
    #[inline]
    pub fn word_at(&self, hand: &Hand, offset: u64) -> Result<u64> {
        let offset = offset - self.first_page * PAGE_BYTES;
        match (&self.memory, hand) {
            (Memory::Pointers(mapping), _) => Ok(mapping.word_at(offset)),
            (Memory::Soft { addr, len, .. }, Hand::Calls(cpu)) => {
                assert!(offset + 8 <= *len as u64, "word {offset} is not of the mapping");
                Ok(u64::from_le(cpu.read_u64(addr + offset as usize)?))
            }
            (Memory::Soft { .. }, Hand::Pointers) => unreachable!("a hand is of its ground"),
        }
    }

    /// Stores a byte, at an offset of the mapping.
    #[inline]
    pub fn store_byte(&self, hand: &Hand, offset: u64, value: u8) -> Result<()> {
        match (&self.memory, hand) {
            (Memory::Pointers(mapping), _) => {
                mapping.store_byte(offset, value);
                Ok(())
            }
            (Memory::Soft { addr, len, .. }, Hand::Calls(cpu)) => {
                assert!(offset < *len as u64, "byte {offset} is not of the mapping");
                Ok(cpu.write(addr + offset as usize, &[value])?)
            }
            (Memory::Soft { .. }, Hand::Pointers) => unreachable!("a hand is of its ground"),
        }
    }

    /// Stores eight bytes, at an offset of the mapping.
    #[inline]
    pub fn store_word(&self, hand: &Hand, offset: u64, value: u64) -> Result<()> {
        match (&self.memory, hand) {
            (Memory::Pointers(mapping), _) => {
                mapping.store_word(offset, value);
                Ok(())
            }
            (Memory::Soft { addr, len, .. }, Hand::Calls(cpu)) => {
                assert!(offset + 8 <= *len as u64, "word {offset} is not of the mapping");
                Ok(cpu.write_u64(addr + offset as usize, value.to_le())?)
            }
            (Memory::Soft { .. }, Hand::Pointers) => unreachable!("a hand is of its ground"),
        }
    }

    /// Stores a byte into every page.
    pub fn touch_every_page(&self, hand: &Hand) -> Result<()> {
        let len = match &self.memory {
            Memory::Pointers(mapping) => mapping.len_bytes(),
            Memory::Soft { len, .. } => *len as u64,
        };
        (0..len).step_by(PAGE_BYTES as usize).try_for_each(|offset| self.store_byte(hand, offset, 1))
    }

    /// Takes all rights from the bytes from `from` on, whole pages.
    pub fn close_from(&mut self, from: u64) -> Result<()> {
        match &mut self.memory {
            Memory::Pointers(mapping) => mapping.close_from(from).context("cannot protect"),
            Memory::Soft { ground, addr, len } => {
                let from = from as usize;
                ground.space.protect(*addr + from, *len - from, Prot::empty()).context("cannot protect")
            }
        }
    }

    /// Says that it will be accessed at random.
    pub fn advise_random(&self) -> Result<()> {
        match &self.memory {
            Memory::Pointers(mapping) => mapping.advise_random().map_err(Into::into),
            Memory::Soft { ground, addr, len } => {
                ground.space.advise(*addr, *len, Advice::Random).map_err(Into::into)
            }
        }
    }

    /// Says that a part of the file, whole pages, will be read soon.
    pub fn advise_willneed(&self, of_file: Range<u64>) -> Result<()> {
        let first = self.first_page * PAGE_BYTES;
        let part = of_file.start - first..of_file.end - first;
        match &self.memory {
            Memory::Pointers(mapping) => mapping.advise_willneed(part).map_err(Into::into),
            Memory::Soft { ground, addr, .. } => {
                let len = (part.end - part.start) as usize;
                ground.space.advise(*addr + part.start as usize, len, Advice::WillNeed).map_err(Into::into)
            }
        }
    }

    /// Writes what was stored through it to the file, durably.
    pub fn sync(&self) -> Result<()> {
        match &self.memory {
            Memory::Pointers(mapping) => mapping.sync().context("cannot sync"),
            Memory::Soft { ground, addr, len } => {
                ground.space.sync(*addr, *len, true, false).context("cannot sync")
            }
        }
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // A `Mapping` unmaps itself.
        if let Self::Soft { ground, addr, len } = self {
            let unmapped = ground.space.unmap(*addr, *len);
            assert!(unmapped.is_ok(), "a whole mapping cannot be unmapped: {unmapped:?}");
        }
    }
}
