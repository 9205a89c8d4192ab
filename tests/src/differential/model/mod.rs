//! A plain model of Linux's rules: an array of pages, each with its attributes and its bytes.
//!
//! It is written to be read: each file has the rules of a few calls, in the order in which Linux 6.18 checks
//! them, with what is left changed when a call fails half-way. Only 6.18 has been compared with it. It knows
//! no resource limits (`RLIMIT_AS`, `RLIMIT_MEMLOCK`, `max_map_count`, overcommit), no huge pages and no
//! sealed mappings.
//!
//! The range is pages `0..n` of the model's space. What is placed anywhere goes to pages `2n..3n`, as if that
//! were where the kernel's search looks first.
//!
//! * [`map`](self): mmap and munmap
//! * `protect`: mprotect
//! * `remap`: mremap
//! * `advise`: madvise
//! * `ranges`: msync, mincore, mlock, munlock
//! * `access`: faults, loads, stores, populating, and truncation

mod access;
mod advise;
mod map;
mod protect;
mod ranges;
mod remap;

use std::ops::Range;

use crate::differential::engine::{Area, Backing, Descriptor, Engine, Errno, Fault, PAGE, initial_file};

/// Where the model's space begins. Any aligned address would do.
const BASE: u64 = 1 << 40;
/// The end of addresses. Linux: `TASK_SIZE` on x86-64 with four levels of page tables.
const TASK_SIZE: u64 = (1 << 47) - PAGE;

/// The bytes of a page; nothing is zeros.
type Bytes = Option<Box<[u8; PAGE as usize]>>;

/// Whether pages are locked in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lock {
    No,
    /// `VM_LOCKED`.
    Yes,
    /// `VM_LOCKED | VM_LOCKONFAULT`.
    OnFault,
}

/// What all pages of a VMA have in common. Linux: `vm_flags` and `vm_file`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Attributes {
    /// `VM_READ`, `VM_WRITE` as `PROT_READ`, `PROT_WRITE`.
    prot: i32,
    /// `VM_MAYSHARE`: made with `MAP_SHARED`.
    shared: bool,
    /// Which `struct file`.
    file: Descriptor,
    lock: Lock,
    /// `MADV_NORMAL`, `MADV_RANDOM` or `MADV_SEQUENTIAL`.
    reading: i32,
    /// `VM_DONTCOPY`.
    not_on_fork: bool,
    /// `VM_WIPEONFORK`.
    wipe_on_fork: bool,
    /// `VM_NORESERVE`.
    no_reserve: bool,
}

impl Attributes {
    /// `VM_MAYWRITE`: whether mprotect may give write permission. A shared mapping of a file that is not open
    /// for writing lacks it.
    fn may_write(&self) -> bool {
        !(self.shared && self.file == Descriptor::ReadOnly)
    }

    /// `VM_SHARED`: stores would reach the object. Linux clears it together with `VM_MAYWRITE`.
    fn writes_through(&self) -> bool {
        self.shared && self.may_write()
    }
}

/// One mapped page.
#[derive(Debug, Clone)]
struct Page {
    attributes: Attributes,
    backing: Backing,
    /// A private mapping's own bytes, once it has been written to.
    copy: Option<Bytes>,
}

impl Page {
    /// Linux: `vma_is_anonymous`; shared anonymous memory is a file of shmem.
    fn is_anonymous(&self) -> bool {
        self.backing == Backing::Anonymous
    }

    fn same_vma(&self, before: &Page) -> bool {
        self.attributes == before.attributes && before.backing.after(1) == self.backing
    }
}

/// The model as an engine.
pub struct Model {
    /// Pages of the range, a third of the space.
    range: u64,
    pages: Vec<Option<Page>>,
    /// The file's pages; its size is their number.
    file: Vec<Bytes>,
    /// Shared anonymous objects.
    objects: Vec<Vec<Bytes>>,
}

/// A length rounded up to whole pages; it wraps as Linux's `PAGE_ALIGN` does.
fn align(len: u64) -> u64 {
    len.wrapping_add(PAGE - 1) & !(PAGE - 1)
}

fn is_aligned(addr: u64) -> bool {
    addr.is_multiple_of(PAGE)
}

impl Model {
    /// An empty space whose range has so many pages, and a new file.
    pub fn new(pages: u64) -> Self {
        let page = |bytes: &[u8]| Some(Box::new(bytes.try_into().expect("chunks are pages")));
        Self {
            range: pages,
            pages: vec![None; 3 * pages as usize],
            file: initial_file().chunks(PAGE as usize).map(page).collect(),
            objects: Vec::new(),
        }
    }

    /// The page at an address; nothing where nothing is mapped.
    fn at(&self, addr: u64) -> Option<&Page> {
        self.pages.get(Self::index(addr)?)?.as_ref()
    }

    /// The number of an address's page, which may be beyond the model's space.
    fn index(addr: u64) -> Option<usize> {
        Some((addr.checked_sub(BASE)? / PAGE) as usize)
    }

    /// The model's pages between two addresses.
    fn within(&self, start: u64, end: u64) -> Range<usize> {
        let clip =
            |addr: u64| (addr.saturating_sub(BASE).div_ceil(PAGE)).min(self.pages.len() as u64) as usize;
        clip(start)..clip(end).max(clip(start))
    }

    fn address(index: usize) -> u64 {
        BASE + index as u64 * PAGE
    }

    fn is_free(&self, start: u64, end: u64) -> bool {
        self.pages[self.within(start, end)].iter().all(Option::is_none)
    }

    /// The mapped pages from an address up to the first hole or `end`, and whether that is `end`.
    fn up_to_hole(&self, start: u64, end: u64) -> (Range<usize>, bool) {
        let range = self.within(start, end);
        let first = range.start;
        if Self::address(first) != start {
            return (first..first, start == end);
        }
        let hole = range.clone().find(|&index| self.pages[index].is_none()).unwrap_or(range.end);
        (first..hole, Self::address(hole) == end)
    }

    /// The pages of the VMA that a mapped page is in.
    fn vma(&self, index: usize) -> Range<usize> {
        let same = |index: usize| match (&self.pages[index - 1], &self.pages[index]) {
            (Some(before), Some(page)) => page.same_vma(before),
            _ => false,
        };
        let mut range = index..index + 1;
        while range.start > 0 && same(range.start) {
            range.start -= 1;
        }
        while range.end < self.pages.len() && same(range.end) {
            range.end += 1;
        }
        range
    }

    /// The VMAs between two addresses, cut to what lies between them.
    fn vmas(&self, start: u64, end: u64) -> Vec<Range<usize>> {
        let range = self.within(start, end);
        let mut found: Vec<Range<usize>> = Vec::new();
        let mut index = range.start;
        while index < range.end {
            if self.pages[index].is_none() {
                index += 1;
                continue;
            }
            let vma_end = self.vma(index).end.min(range.end);
            found.push(index..vma_end);
            index = vma_end;
        }
        found
    }

    /// Whether every page between two addresses is mapped.
    fn is_covered(&self, start: u64, end: u64) -> bool {
        self.up_to_hole(start, end).1
    }

    /// A mapped page, by its number.
    fn page(&self, index: usize) -> &Page {
        self.pages[index].as_ref().expect("a walk of mapped pages")
    }

    fn page_mut(&mut self, index: usize) -> &mut Page {
        self.pages[index].as_mut().expect("a walk of mapped pages")
    }

    fn area(&self, vma: Range<usize>) -> Area {
        let first = self.page(vma.start);
        Area {
            pages: vma.start as u64..vma.end as u64,
            prot: first.attributes.prot,
            shared: first.attributes.shared,
            backing: first.backing,
        }
    }
}

impl Engine for Model {
    fn name(&self) -> &'static str {
        "model"
    }

    fn base(&self) -> u64 {
        BASE
    }

    fn pages(&self) -> u64 {
        self.range
    }

    fn beyond(&self) -> u64 {
        1 << 56
    }

    fn map(
        &mut self,
        addr: u64,
        len: u64,
        prot: i32,
        flags: i32,
        file: Descriptor,
        offset: u64,
    ) -> Result<u64, Errno> {
        self.do_map(addr, len, prot, flags, file, offset)
    }

    fn unmap(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        self.do_unmap(addr, len)
    }

    fn protect(&mut self, addr: u64, len: u64, prot: i32) -> Result<(), Errno> {
        self.do_protect(addr, len, prot)
    }

    fn remap(&mut self, addr: u64, old: u64, new: u64, flags: i32, to: u64) -> Result<u64, Errno> {
        self.do_remap(addr, old, new, flags, to)
    }

    fn advise(&mut self, addr: u64, len: u64, advice: i32) -> Result<(), Errno> {
        self.do_advise(addr, len, advice)
    }

    fn sync(&mut self, addr: u64, len: u64, flags: i32) -> Result<(), Errno> {
        self.do_sync(addr, len, flags)
    }

    fn resident(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        self.do_resident(addr, len)
    }

    fn lock(&mut self, addr: u64, len: u64, flags: i32) -> Result<(), Errno> {
        self.do_lock(addr, len, flags)
    }

    fn unlock(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        self.do_unlock(addr, len)
    }

    fn truncate(&mut self, pages: u64) -> Result<(), Errno> {
        self.do_truncate(pages);
        Ok(())
    }

    fn load(&mut self, addr: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.do_load(addr, bytes)
    }

    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.do_store(addr, bytes)
    }

    fn layout(&mut self, range: Range<u64>) -> Vec<Area> {
        let vmas = self.vmas(Self::address(range.start as usize), Self::address(range.end as usize));
        vmas.into_iter().map(|part| self.area(self.vma(part.start))).collect()
    }

    fn file(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; self.file.len() * PAGE as usize];
        for (target, page) in bytes.chunks_mut(PAGE as usize).zip(&self.file) {
            if let Some(page) = page {
                target.copy_from_slice(&page[..]);
            }
        }
        bytes
    }
}
