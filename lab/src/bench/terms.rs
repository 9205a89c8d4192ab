//! On which terms an engine has memory: how much, how large its pages are, and where else the bytes may be.

use std::path::PathBuf;

use rustix::mm::Advice;

use crate::engine::Kind;
use crate::size::Size;

/// The same for all engines that are compared.
pub struct Terms {
    /// The budget of a manager.
    pub memory: Size,
    /// Where anonymous memory may be put; `None`: nowhere.
    pub swap: Option<Swapping>,
    /// Whether the kernel has the same budget: in a control group, and so in a process of its own.
    pub limited: bool,
    /// How large pages are.
    pub pages: Pages,
    /// A manager's memory is that of a group in a group; `None`: of the manager as a whole.
    pub leaf: Option<Leaf>,
}

/// A group in a group, whose limit is the memory that all engines have.
#[derive(Debug, Clone, Copy)]
pub struct Leaf {
    /// The manager's memory beside it: for what went out of the group, compressed.
    pub beside: Size,
}

/// Where anonymous memory may be put.
#[derive(Debug, Clone)]
pub struct Swapping {
    /// How much may be out.
    pub bytes: u64,
    /// Where the file is.
    pub dir: PathBuf,
    /// Whether the kernel gets such a file.
    pub kernel: bool,
}

/// How large pages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Of 4 KiB under a manager: faults of single pages are measured. The kernel's as the machine has them.
    Single,
    /// As the engine's name says: of 4 KiB under the kernel, of 2 MiB under `kernel-huge`, and under a
    /// manager as it likes.
    AsNamed,
}

impl Swapping {
    /// How much may be out.
    pub fn size(&self) -> Size {
        Size::from_bytes(self.bytes)
    }
}

impl Terms {
    /// A budget for managers, and nothing else.
    pub fn of(memory: Size) -> Self {
        Self { memory, swap: None, limited: false, pages: Pages::Single, leaf: None }
    }

    /// What the kernel is told about the pages of each mapping.
    pub fn advice(&self, kind: Kind) -> Option<Advice> {
        match (self.pages, kind) {
            (Pages::Single, _) => None,
            (Pages::AsNamed, Kind::KernelHuge) => Some(Advice::LinuxHugepage),
            (Pages::AsNamed, _) => Some(Advice::LinuxNoHugepage),
        }
    }
}
