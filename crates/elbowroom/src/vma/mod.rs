//! Mappings: VMAs, and the layouts of spaces.
//!
//! [`Mm`] is a layout: which VMA covers which addresses. Readers find a VMA under RCU, lock it for reading
//! without waiting, and check that it still covers what they looked for ([`Mm::enter`]); a thread that
//! changes the layout has its lock for writing. Linux: `lock_vma_under_rcu`, `mm_struct`. How VMAs are cut
//! and merged is decided by `plan`, plain data.

mod misses;
mod mm;
mod plan;

pub(crate) use mm::{Enter, Layout, LayoutShared, LayoutState, Mm, VmaGuard};
pub(crate) use plan::carve;

use crate::group::GroupId;
use crate::object::{Kept, Mapped, MappedRange, Standing};
use elbowroom_machine::{PAGE_SHIFT, PAGE_SIZE};
use elbowroom_store::Origin;
use elbowroom_sync::Arc;
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

bitflags::bitflags! {
    /// What else the program has said of a mapping. Linux: `vm_flags`. docs/advice.md has what becomes of
    /// each.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct VmaFlags: u16 {
        /// mlock: its pages stay.
        const LOCKED = 1;
        /// MADV_DONTFORK: a child does not get it.
        const DONT_FORK = 2;
        /// MADV_WIPEONFORK: a child gets it empty.
        const WIPE_ON_FORK = 4;
        /// mlock2 with MLOCK_ONFAULT: locked pages come in when they are touched, not before.
        const ON_FAULT = 8;
        /// MADV_DONTDUMP: not in core dumps. Only kept, for the kernel.
        const DONT_DUMP = 16;
        /// MADV_HUGEPAGE. Only kept, for the kernel.
        const HUGE_PAGE = 32;
        /// MADV_NOHUGEPAGE. Only kept, for the kernel.
        const NO_HUGE_PAGE = 64;
        /// MADV_MERGEABLE. Only kept, for the kernel.
        const MERGEABLE = 128;
        /// MAP_NORESERVE. Only kept, for the kernel.
        const NO_RESERVE = 256;
    }
}

/// Whether stores reach the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Stores reach the file.
    Shared,
    /// Stores do not reach the file: each page is copied when it is first stored to.
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
    /// What it maps; `None`: private anonymous memory.
    pub(crate) object: Option<Mapped>,
    /// The program's description that it was mapped through.
    pub(crate) origin: Option<Arc<Origin>>,
    pub(crate) prot: Prot,
    /// Whether it may get the right to write.
    pub(crate) may_write: bool,
    pub(crate) sharing: Sharing,
    pub(crate) pattern: Pattern,
    pub(crate) flags: VmaFlags,
    /// The group that pays for its anonymous memory.
    pub(crate) group: GroupId,
}

impl VmaSpec {
    /// The part of the spec that decides whether neighbours may be merged.
    pub(crate) fn kind(&self) -> plan::Kind {
        let VmaSpec { object, origin, prot, may_write, sharing, pattern, flags, group } = self;
        let object = object.as_ref().map(|object| object.serial);
        plan::Kind {
            object,
            origin: origin.as_ref().map(|origin| origin.serial()),
            prot: *prot,
            may_write: *may_write,
            sharing: *sharing,
            pattern: *pattern,
            flags: *flags,
            group: *group,
        }
    }

    /// Whether the space may have pages of its own there: copies of the file's, or anonymous ones.
    pub(crate) fn is_private(&self) -> bool {
        self.sharing == Sharing::Private
    }
}

/// A mapping of a part of an object at a range of addresses.
pub(crate) struct Vma {
    /// Page-aligned addresses, not empty.
    pub(crate) range: Range<usize>,
    /// The object's page at `range.start`; of private anonymous memory the number of the page itself.
    pub(crate) first_page: u64,
    pub(crate) spec: VmaSpec,
}

impl Vma {
    pub(crate) fn new(range: Range<usize>, first_page: u64, spec: VmaSpec) -> Self {
        debug_assert!(range.start < range.end && (range.start | range.end).is_multiple_of(PAGE_SIZE));
        let first_page = if spec.object.is_some() { first_page } else { (range.start >> PAGE_SHIFT) as u64 };
        Self { range, first_page, spec }
    }

    /// The object's page at `addr`, which is in the range.
    pub(crate) fn page_at(&self, addr: usize) -> u64 {
        self.first_page + ((addr - self.range.start) >> PAGE_SHIFT) as u64
    }

    /// The part of the VMA that decides whether it may be merged with a neighbour.
    fn side(&self) -> plan::Side {
        plan::Side { range: self.range.clone(), first_page: self.first_page, kind: self.spec.kind() }
    }

    /// How the object's reverse map lists it.
    fn listed(&self) -> MappedRange {
        let private = self.spec.is_private();
        let (range, first_page) = (self.range.clone(), self.first_page);
        MappedRange { range, first_page, private, standing: Standing::Mapped }
    }

    /// Takes it out of the object's reverse map. Costs nothing for anonymous memory, which has none.
    #[inline]
    fn unlist(&self) -> Kept<'_> {
        self.spec.object.as_ref()?.rmap.replace(self.range.start, [self.listed()], [])
    }

    /// Whether the lock of the object's reverse map is to be kept while the index is changed.
    fn is_listed_widely(&self) -> bool {
        self.spec.object.as_ref().is_some_and(|object| object.rmap.is_wide())
    }

    /// The object's pages that it maps.
    pub(crate) fn pages(&self) -> Range<u64> {
        self.first_page..self.page_at(self.range.end)
    }

    /// Where the object's page `index` is, or would be if the mapping reached as far (wrapping: it may lie
    /// before address 0).
    pub(crate) fn address_of(&self, index: u64) -> usize {
        let distance = (index as usize).wrapping_sub(self.first_page as usize) << PAGE_SHIFT;
        self.range.start.wrapping_add(distance)
    }
}
