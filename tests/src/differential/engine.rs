//! What is compared: one view of an address space with Linux's system calls, absolute addresses and Linux's
//! constants.
//!
//! An engine is one thread's view of one range of some space. Two engines may share a space if their ranges
//! are disjoint and a page that nobody maps lies between them (otherwise their VMAs could merge, and
//! `MREMAP_DONTUNMAP` unlocks whole VMAs). Each has a file of its own: [`FILE_PAGES`] pages that hold
//! [`initial_file`].

use std::ops::Range;
use std::sync::OnceLock;

pub use rustix::io::Errno;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// Pages of an engine's file when it is made.
pub const FILE_PAGES: u64 = 64;

/// The bytes of a new engine's file: no two pages are the same, and no byte is zero, so that it differs from
/// fresh memory.
pub fn initial_file() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let byte = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 | 1;
        (0..FILE_PAGES * PAGE).map(byte).collect()
    })
}

/// The descriptor that a mapping call is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Descriptor {
    /// -1, as with `MAP_ANONYMOUS`; without that flag it is EBADF.
    None,
    /// The engine's file, opened `O_RDWR`.
    ReadWrite,
    /// The same file, opened `O_RDONLY`.
    ReadOnly,
    /// The same file, opened `O_WRONLY`.
    WriteOnly,
}

/// How an access failed: what a program's signal handler would see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SIGSEGV with `SEGV_MAPERR`: nothing is mapped there.
    Unmapped,
    /// SIGSEGV with `SEGV_ACCERR`: the mapping does not permit it.
    Denied,
    /// SIGBUS with `BUS_ADRERR`: beyond the end of what is mapped.
    Bus,
}

/// What the pages of an area show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// Private anonymous memory.
    Anonymous,
    /// The engine's file from this page on.
    File {
        /// In pages.
        offset: u64,
    },
    /// Shared anonymous memory: an object of its own for each successful call that made one.
    SharedAnonymous {
        /// How many of this engine's objects were made before it.
        object: u64,
        /// In pages.
        offset: u64,
    },
}

impl Backing {
    /// The backing of the page `pages` later.
    pub fn after(self, pages: u64) -> Self {
        match self {
            Self::Anonymous => Self::Anonymous,
            Self::File { offset } => Self::File { offset: offset + pages },
            Self::SharedAnonymous { object, offset } => {
                Self::SharedAnonymous { object, offset: offset + pages }
            }
        }
    }
}

/// A run of pages with the same attributes, as a line of /proc/self/maps shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    /// Relative to the engine's base.
    pub pages: Range<u64>,
    /// `PROT_READ` and `PROT_WRITE`.
    pub prot: i32,
    /// Whether it was made with `MAP_SHARED` (`s` in /proc/self/maps).
    pub shared: bool,
    /// What its first page shows.
    pub backing: Backing,
}

impl Area {
    fn continues(&self, before: &Area) -> bool {
        before.pages.end == self.pages.start
            && before.prot == self.prot
            && before.shared == self.shared
            && before.backing.after(before.pages.end - before.pages.start) == self.backing
    }
}

/// The layout in which neighbours of equal attributes and continuous backing are one area.
///
/// This hides whether an engine has merged VMAs that could be one. The kernel often has not: anonymous memory
/// keeps the `anon_vma` and the page offset of where it was first touched, so a moved area cannot merge;
/// `VM_ACCOUNT` stays behind where a private mapping was once writable; two descriptors of one file are two
/// `struct file`; and advice, `mlock` and `MAP_NORESERVE` are attributes that /proc/self/maps does not show.
/// It also hides which descriptor a mapping came from.
pub fn canonical(areas: Vec<Area>) -> Vec<Area> {
    let mut merged: Vec<Area> = Vec::with_capacity(areas.len());
    for area in areas {
        match merged.last_mut() {
            Some(last) if area.continues(last) => last.pages.end = area.pages.end,
            _ => merged.push(area),
        }
    }
    merged
}

/// The areas cut to a range of pages.
pub fn clipped(areas: Vec<Area>, range: &Range<u64>) -> Vec<Area> {
    let cut = |area: Area| {
        let pages = area.pages.start.max(range.start)..area.pages.end.min(range.end);
        let backing = area.backing.after(pages.start.saturating_sub(area.pages.start));
        (pages.start < pages.end).then_some(Area { pages, backing, ..area })
    };
    areas.into_iter().filter_map(cut).collect()
}

/// A view of an address space.
///
/// Each call takes what the system call takes (`libc`'s constants, absolute addresses, lengths in bytes,
/// wrong ones too), and has its results. Calls touch nothing outside the range `base()..base() + pages() *
/// PAGE` except what a placement that the caller left open needs; the driver moves that into the range at
/// once.
pub trait Engine {
    /// A name for reports.
    fn name(&self) -> &'static str;
    /// The address of the range's first page.
    fn base(&self) -> u64;
    /// The range's size in pages. The pages around it are never mapped.
    fn pages(&self) -> u64;
    /// A page-aligned address beyond the end of the space: `> TASK_SIZE`.
    fn beyond(&self) -> u64;

    /// mmap(2).
    fn map(
        &mut self,
        addr: u64,
        len: u64,
        prot: i32,
        flags: i32,
        file: Descriptor,
        offset: u64,
    ) -> Result<u64, Errno>;
    /// munmap(2).
    fn unmap(&mut self, addr: u64, len: u64) -> Result<(), Errno>;
    /// mprotect(2).
    fn protect(&mut self, addr: u64, len: u64, prot: i32) -> Result<(), Errno>;
    /// mremap(2).
    fn remap(&mut self, addr: u64, old: u64, new: u64, flags: i32, to: u64) -> Result<u64, Errno>;
    /// madvise(2).
    fn advise(&mut self, addr: u64, len: u64, advice: i32) -> Result<(), Errno>;
    /// msync(2).
    fn sync(&mut self, addr: u64, len: u64, flags: i32) -> Result<(), Errno>;
    /// mincore(2), without its bytes.
    fn resident(&mut self, addr: u64, len: u64) -> Result<(), Errno>;
    /// mlock2(2).
    fn lock(&mut self, addr: u64, len: u64, flags: i32) -> Result<(), Errno>;
    /// munlock(2).
    fn unlock(&mut self, addr: u64, len: u64) -> Result<(), Errno>;
    /// ftruncate(2) of the engine's file, in pages.
    fn truncate(&mut self, pages: u64) -> Result<(), Errno>;

    /// Loads bytes that lie in one page.
    fn load(&mut self, addr: u64, bytes: &mut [u8]) -> Result<(), Fault>;
    /// Stores bytes that lie in one page.
    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// The engine's own VMAs that touch these pages of the range, whole (not cut, not merged), in order.
    fn layout(&mut self, range: Range<u64>) -> Vec<Area>;
    /// The file's bytes as read(2) sees them.
    fn file(&mut self) -> Vec<u8>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(pages: Range<u64>, backing: Backing) -> Area {
        Area { pages, prot: 1, shared: false, backing }
    }

    #[test]
    fn neighbours_merge_only_if_their_backing_continues() {
        let file = |offset| Backing::File { offset };
        let merged = canonical(vec![area(0..2, file(5)), area(2..3, file(7)), area(3..4, file(9))]);
        assert_eq!(merged, [area(0..3, file(5)), area(3..4, file(9))]);
        let apart = vec![area(0..2, Backing::Anonymous), area(3..4, Backing::Anonymous)];
        assert_eq!(canonical(apart.clone()), apart);
    }

    #[test]
    fn cutting_moves_the_offset() {
        let cut = clipped(vec![area(0..8, Backing::File { offset: 3 })], &(2..5));
        assert_eq!(cut, [area(2..5, Backing::File { offset: 5 })]);
    }
}
