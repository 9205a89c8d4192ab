//! Advice about mappings, with the names of memmap2.

use elbowroom_manager::Advice as Managers;
use libc::c_int;
use std::io;

/// Advice that changes no byte of a mapping: for [`Mmap::advise`](crate::Mmap::advise). The names are those
/// of madvise(2). docs/advice.md has what becomes of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum Advice {
    /// Nothing is known of the accesses to come: streams are detected. The default.
    Normal = libc::MADV_NORMAL,
    /// Accesses are at random places: single pages are read.
    Random = libc::MADV_RANDOM,
    /// Accesses go from the beginning to the end: as much is read ahead as is permitted.
    Sequential = libc::MADV_SEQUENTIAL,
    /// The range will be accessed soon: reading it begins now.
    WillNeed = libc::MADV_WILLNEED,
    /// A forked child does not get the mapping: an access to it there is SIGSEGV.
    DontFork = libc::MADV_DONTFORK,
    /// Undoes [`Advice::DontFork`].
    DoFork = libc::MADV_DOFORK,
    /// Pages with the same bytes may be merged. Only remembered, for the kernel.
    Mergeable = libc::MADV_MERGEABLE,
    /// Undoes [`Advice::Mergeable`].
    Unmergeable = libc::MADV_UNMERGEABLE,
    /// Huge pages are welcome. Only remembered, for the kernel: the manager decides by itself.
    HugePage = libc::MADV_HUGEPAGE,
    /// Huge pages are not wanted. Only remembered, for the kernel.
    NoHugePage = libc::MADV_NOHUGEPAGE,
    /// The range is not in core dumps.
    DontDump = libc::MADV_DONTDUMP,
    /// Undoes [`Advice::DontDump`].
    DoDump = libc::MADV_DODUMP,
    /// Treats the pages as broken memory, for tests of that. Only the kernel can: Unsupported where the
    /// mapping is managed.
    HwPoison = libc::MADV_HWPOISON,
    /// Brings the pages in now, to be loaded from, and waits for that.
    PopulateRead = libc::MADV_POPULATE_READ,
    /// Brings the pages in now, to be stored to, and waits for that.
    PopulateWrite = libc::MADV_POPULATE_WRITE,
}

/// Advice that can change bytes under a slice of a mapping: for
/// [`Mmap::unchecked_advise`](crate::Mmap::unchecked_advise).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum UncheckedAdvice {
    /// Anonymous memory reads as zeros afterwards, a copy of a file's bytes as the file.
    DontNeed = libc::MADV_DONTNEED,
    /// Anonymous memory may read as zeros from now on, until it is stored to again.
    Free = libc::MADV_FREE,
    /// Anonymous memory and the file itself read as zeros afterwards.
    Remove = libc::MADV_REMOVE,
}

/// Whether the kernel of this machine knows an advice.
fn knows(advice: c_int) -> bool {
    // SAFETY: an empty range, of which nothing is changed.
    unsafe { libc::madvise(std::ptr::null_mut(), 0, advice) == 0 }
}

impl Advice {
    /// Whether this machine's kernel has this advice.
    ///
    /// ```
    /// assert!(elbowroom::Advice::Random.is_supported());
    /// ```
    pub fn is_supported(self) -> bool {
        knows(self as c_int)
    }

    /// The manager's name for it.
    pub(crate) fn managers(self) -> io::Result<Managers> {
        Ok(match self {
            Advice::Normal => Managers::Normal,
            Advice::Random => Managers::Random,
            Advice::Sequential => Managers::Sequential,
            Advice::WillNeed => Managers::WillNeed,
            Advice::DontFork => Managers::DontFork,
            Advice::DoFork => Managers::DoFork,
            Advice::Mergeable => Managers::Mergeable,
            Advice::Unmergeable => Managers::Unmergeable,
            Advice::HugePage => Managers::HugePage,
            Advice::NoHugePage => Managers::NoHugePage,
            Advice::DontDump => Managers::DontDump,
            Advice::DoDump => Managers::DoDump,
            Advice::PopulateRead => Managers::PopulateRead,
            Advice::PopulateWrite => Managers::PopulateWrite,
            Advice::HwPoison => {
                let text = "elbowroom cannot imitate broken memory: map with the kernel (memmap2) for that";
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
        })
    }
}

impl UncheckedAdvice {
    /// Whether this machine's kernel has this advice.
    ///
    /// ```
    /// assert!(elbowroom::UncheckedAdvice::DontNeed.is_supported());
    /// ```
    pub fn is_supported(self) -> bool {
        knows(self as c_int)
    }

    /// The manager's name for it.
    pub(crate) fn managers(self) -> Managers {
        match self {
            UncheckedAdvice::DontNeed => Managers::DontNeed,
            UncheckedAdvice::Free => Managers::Free,
            UncheckedAdvice::Remove => Managers::Remove,
        }
    }
}
