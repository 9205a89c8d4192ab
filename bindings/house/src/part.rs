//! What is asked for when something is mapped.

use elbowroom::{Place, Sharing};
use libc::c_int;
use std::os::fd::RawFd;

/// What stores to a mapping do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They are not permitted.
    Read,
    /// They reach the file.
    Write,
    /// They stay in the mapping.
    Copy,
}

impl Mode {
    /// How the pages are shared.
    pub fn sharing(self) -> Sharing {
        if self == Mode::Copy { Sharing::Private } else { Sharing::Shared }
    }
}

/// How the manager opens a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// For loads, as long as no other process uses it for stores.
    LoadsAlone,
    /// For loads, whoever uses it: what others write is seen late.
    Loads,
    /// For loads and stores, as long as no other process uses it.
    StoresAlone,
    /// For loads and stores, whoever uses it: what others write is seen late, or lost.
    Stores,
}

impl Opening {
    /// What a mapping needs. `trust`: the file is managed also if other processes may change it.
    pub fn least(mode: Mode, trust: bool) -> &'static [Self] {
        match (mode, trust) {
            (Mode::Write, true) => &[Opening::Stores],
            (Mode::Write, false) => &[Opening::StoresAlone],
            (Mode::Read | Mode::Copy, true) => &[Opening::Loads],
            (Mode::Read | Mode::Copy, false) => &[Opening::LoadsAlone],
        }
    }

    /// Whether it permits stores.
    pub fn has_stores(self) -> bool {
        matches!(self, Opening::StoresAlone | Opening::Stores)
    }
}

/// What else is asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wishes {
    /// Bring the pages in now, as far as that can be done.
    pub populate: bool,
    /// Promise no memory and swap for it.
    pub no_reserve: bool,
}

/// What to map of an open file.
#[derive(Debug, Clone, Copy)]
pub struct FilePart {
    /// The descriptor, in the calling thread's table.
    pub fd: RawFd,
    /// Where in the file, in bytes; a multiple of the page size.
    pub offset: u64,
    /// Bytes, more than 0.
    pub len: usize,
    /// What stores do.
    pub mode: Mode,
    /// What the mapping permits in the beginning, as mmap(2) has it. The manager permits loads, and stores.
    pub prot: c_int,
    /// How the manager tries to open the file, best first.
    pub openings: &'static [Opening],
    /// If the manager cannot manage the file, the kernel maps it.
    pub or_kernel: bool,
    /// Where the mapping goes.
    pub place: Place,
    /// What else is asked for.
    pub wishes: Wishes,
}

impl FilePart {
    /// A part that permits what its mode needs, anywhere, by the manager or by the kernel. `trust`: as for
    /// [`Opening::least`].
    pub fn new(fd: RawFd, offset: u64, len: usize, mode: Mode, trust: bool) -> Self {
        let prot = if mode == Mode::Read { libc::PROT_READ } else { libc::PROT_READ | libc::PROT_WRITE };
        let (openings, place) = (Opening::least(mode, trust), Place::Anywhere);
        Self { fd, offset, len, mode, prot, openings, or_kernel: true, place, wishes: Wishes::default() }
    }
}
