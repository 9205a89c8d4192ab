//! Mappings: VMAs, and the list of them that faults search.
//!
//! A [`Vma`] never changes: whoever changes a mapping publishes a new list with new VMAs in it, detaches the old ones, and waits until
//! nobody uses them ([`Vma::detach`]). Readers find a VMA under RCU and enter it optimistically ([`Vma::enter`]): entering fails
//! once it is detached, and the reader looks again. Linux: `lock_vma_under_rcu`, `vma_mark_detached`.
//!
//! The list is a sorted array behind an RCU cell; the range map takes its place behind [`VmaList`]'s methods.

mod gaps;
mod plan;

pub(crate) use gaps::Gaps;
pub(crate) use plan::carve;

use crate::object::FileObject;
use elbowroom_machine::{PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::atomic::{AtomicU32, Ordering};
use elbowroom_sync::{Arc, RcuCell, thread};
use std::ops::Range;

bitflags::bitflags! {
    /// What a program may do with a mapping.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Prot: u8 {
        /// Load.
        const READ = 1;
        /// Store.
        const WRITE = 2;
    }
}

/// Whether stores reach the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// They do.
    Shared,
    /// They do not; managed only while there can be none.
    Private,
}

/// What the program said about its accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Nothing: streams are detected.
    Detect,
    /// MADV_RANDOM.
    Random,
    /// MADV_SEQUENTIAL.
    Sequential,
}

/// What all pages of a mapping have in common.
#[derive(Clone)]
pub(crate) struct VmaSpec {
    pub(crate) object: Arc<FileObject>,
    pub(crate) prot: Prot,
    /// Whether it may get the right to write.
    pub(crate) may_write: bool,
    pub(crate) sharing: Sharing,
    pub(crate) pattern: Pattern,
}

/// A mapping of a part of a file at a range of addresses.
pub(crate) struct Vma {
    /// Page-aligned addresses, not empty.
    pub(crate) range: Range<usize>,
    /// The file's page at `range.start`.
    pub(crate) first_page: u64,
    pub(crate) spec: VmaSpec,
    /// Readers inside, and [`DETACHED`].
    users: AtomicU32,
}

const DETACHED: u32 = 1 << 31;

impl Drop for Vma {
    fn drop(&mut self) {
        self.spec.object.unmapped();
    }
}

/// The right to rely on a VMA: it is not detached while this lives.
pub(crate) struct VmaGuard(Arc<Vma>);

impl std::ops::Deref for VmaGuard {
    type Target = Vma;
    fn deref(&self) -> &Vma {
        &self.0
    }
}

impl Drop for VmaGuard {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Release);
    }
}

impl Vma {
    pub(crate) fn new(range: Range<usize>, first_page: u64, spec: VmaSpec) -> Arc<Self> {
        debug_assert!(range.start < range.end && (range.start | range.end).is_multiple_of(PAGE_SIZE));
        spec.object.mapped();
        Arc::new(Self { range, first_page, spec, users: AtomicU32::new(0) })
    }

    /// The file's page at `addr`, which is in the range.
    pub(crate) fn page_at(&self, addr: usize) -> u64 {
        self.first_page + ((addr - self.range.start) >> PAGE_SHIFT) as u64
    }

    /// The file's pages that it maps.
    pub(crate) fn pages(&self) -> Range<u64> {
        self.first_page..self.page_at(self.range.end)
    }

    /// Whether `next` is what Linux would have merged with it: the next addresses, the next pages, all else equal.
    pub(crate) fn continues_as(&self, next: &Vma) -> bool {
        let (a, b) = (&self.spec, &next.spec);
        self.range.end == next.range.start
            && self.page_at(self.range.end) == next.first_page
            && Arc::ptr_eq(&a.object, &b.object)
            && (a.prot, a.may_write, a.sharing) == (b.prot, b.may_write, b.sharing)
    }

    /// Where the file's page `index` is, or would be if the mapping reached as far (wrapping: it may lie before address 0).
    pub(crate) fn address_of(&self, index: u64) -> usize {
        let distance = (index as usize).wrapping_sub(self.first_page as usize) << PAGE_SHIFT;
        self.range.start.wrapping_add(distance)
    }

    /// Enters it for reading; `None` once it is detached. Never waits.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<VmaGuard> {
        if self.users.fetch_add(1, Ordering::Acquire) & DETACHED != 0 {
            self.users.fetch_sub(1, Ordering::Release);
            return None;
        }
        Some(VmaGuard(self.clone()))
    }

    /// Lets nobody in any more and waits until everybody has left. Readers stay for one request to the kernel at most, and wait
    /// for nothing.
    pub(crate) fn detach(&self) {
        self.users.fetch_or(DETACHED, Ordering::AcqRel);
        while self.users.load(Ordering::Acquire) != DETACHED {
            thread::yield_now();
        }
    }
}

/// All mappings of a space, by address.
pub(crate) struct VmaList {
    sorted: RcuCell<Vec<Arc<Vma>>>,
}

impl VmaList {
    pub(crate) fn new() -> Self {
        Self { sorted: RcuCell::new(Vec::new()) }
    }

    /// The VMA that covers `addr`. Waits for nothing.
    pub(crate) fn find(&self, addr: usize) -> Option<Arc<Vma>> {
        self.sorted.read(|sorted| {
            let after = sorted.partition_point(|v| v.range.start <= addr);
            let vma = sorted.get(after.checked_sub(1)?)?;
            vma.range.contains(&addr).then(|| vma.clone())
        })
    }

    /// The VMAs that map the object.
    pub(crate) fn of_object(&self, object: &Arc<FileObject>) -> Vec<Arc<Vma>> {
        let maps = |vma: &&Arc<Vma>| Arc::ptr_eq(&vma.spec.object, object);
        self.sorted.read(|sorted| sorted.iter().filter(maps).cloned().collect())
    }

    /// The VMAs that overlap `range`, in order.
    pub(crate) fn overlapping(&self, range: &Range<usize>) -> Vec<Arc<Vma>> {
        self.sorted.read(|sorted| {
            let first = sorted.partition_point(|v| v.range.end <= range.start);
            sorted[first..].iter().take_while(|v| v.range.start < range.end).cloned().collect()
        })
    }

    /// Publishes a list without `gone` and with `new`. The caller has the layout lock.
    pub(crate) fn replace(&self, gone: &[Arc<Vma>], new: Vec<Arc<Vma>>) {
        let mut sorted: Vec<_> = self
            .sorted
            .load()
            .iter()
            .filter(|v| !gone.iter().any(|g| Arc::ptr_eq(g, v)))
            .cloned()
            .chain(new)
            .collect();
        sorted.sort_unstable_by_key(|v| v.range.start);
        debug_assert!(sorted.windows(2).all(|p| p[0].range.end <= p[1].range.start), "mappings overlap");
        self.sorted.store(sorted);
    }
}
