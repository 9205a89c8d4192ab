//! The reverse map of an object: which mappings have which of its pages. Linux: `i_mmap`
//! (mm/interval_tree.c).
//!
//! A mapping is listed from before a fault can find it until after its pages were taken out for good: one
//! that is being changed is listed, too, as [`Standing::InChange`]. docs/decisions/0020-the-reverse-map.md
//!
//! Synchronization: each shard is a tree under a lock of its own (`file-mapping`), which covers the tree
//! only ([`FileLocking::Narrow`]). A thread that changes it has the space's layout locked for writing, so
//! what is listed of a space stays as it is while its layout lock is held. A thread that looks without that
//! lock gets what was true at the look.

use elbowroom_machine::PAGE_SHIFT;
use elbowroom_sync::{Lines, LockClass, LockStats, Mutex, MutexGuard, OnceLock};
use interavl::IntervalTree;
use std::ops::Range;

/// How many trees the mappings of one object are spread over, by their spaces: so that tasks that map the
/// same file, each in a space of its own, seldom queue behind one lock.
const SHARDS: usize = 16;

/// The number of the space that has an address.
fn space_of(addr: usize) -> usize {
    addr >> 48
}

/// Whether a mapping is in the index of its space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is in the index.
    Mapped,
    /// A change has taken it out, and may put it back, or its pages somewhere else.
    InChange,
}

/// A mapping of the object, or a part of one that is being changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MappedRange {
    /// Its addresses; they tell the space, too.
    pub(crate) range: Range<usize>,
    /// The object's page at their start.
    pub(crate) first_page: u64,
    /// Whether the space may have copies of the object's pages there.
    pub(crate) private: bool,
    pub(crate) standing: Standing,
}

impl MappedRange {
    /// The object's pages that it maps.
    fn pages(&self) -> Range<u64> {
        self.first_page..self.first_page + (self.range.len() >> PAGE_SHIFT) as u64
    }

    /// The numbers of the space's pages where it maps some of `pages`.
    pub(crate) fn page_numbers(&self, pages: &Range<u64>) -> Range<u64> {
        let mapped = self.pages();
        let at = |page: u64| {
            (self.range.start >> PAGE_SHIFT) as u64 + (page.clamp(mapped.start, mapped.end) - mapped.start)
        };
        at(pages.start)..at(pages.end)
    }

    fn edges(&self) -> Range<Edge> {
        let mark = self.range.start as u64 | u64::from(self.standing == Standing::InChange);
        let pages = self.pages();
        (pages.start, mark)..(pages.end, mark)
    }

    fn of(edges: &Range<Edge>, private: bool) -> Self {
        let (first_page, mark) = edges.start;
        let standing = if mark & 1 == 0 { Standing::Mapped } else { Standing::InChange };
        let start = (mark & !1) as usize;
        let range = start..start + ((edges.end.0 - first_page) << PAGE_SHIFT) as usize;
        Self { range, first_page, private, standing }
    }
}

/// An end of an interval: a page of the object, and what tells mappings of the same pages apart, the address
/// of the mapping with [`Standing::InChange`] as its lowest bit. So all intervals differ: a space has at most
/// one mapping at an address, and one that is being changed.
type Edge = (u64, u64);

/// Intervals of pages, with whether the mapping is private.
pub(crate) type Tree = IntervalTree<Edge, bool>;

/// What the locks of a reverse map cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileLocking {
    /// Each lock covers one shard of the tree.
    Narrow,
    /// One lock covers the whole tree, and is kept while the index of VMAs is changed: as `i_mmap_rwsem`
    /// was before the update of the VMA tree went out of its critical section. For measuring
    /// (`Ablation::narrow_file_lock`).
    Wide,
}

/// The tree's lock, if it is to be kept after the tree was changed.
pub(crate) type Kept<'a> = Option<MutexGuard<'a, Tree>>;

/// Which mappings are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// All.
    All,
    /// Those that may have copies of pages.
    Private,
}

/// Adds the mappings of any of `pages` to `found`.
fn find(tree: &Tree, pages: &Range<u64>, which: Which, found: &mut Vec<MappedRange>) {
    if pages.is_empty() {
        return;
    }
    // Beyond the edges of all mappings that end at the first page, and before those of all that begin at
    // the end.
    let query = (pages.start, u64::MAX)..(pages.end, 0);
    let wanted = tree.iter_overlaps(&query).filter(|(_, private)| which == Which::All || **private);
    found.extend(wanted.map(|(edges, &private)| MappedRange::of(edges, private)));
}

/// The mappings of one object.
pub(crate) struct ReverseMap {
    /// Each is made when it is first used, even by a look: its lock orders a look that finds nothing before
    /// a mapping that is listed later.
    shards: [OnceLock<Box<Lines<Mutex<Tree>>>>; SHARDS],
    locks: LockStats,
    locking: FileLocking,
}

impl ReverseMap {
    pub(super) fn new(locks: &LockStats, locking: FileLocking) -> Self {
        Self { shards: [const { OnceLock::new() }; SHARDS], locks: locks.clone(), locking }
    }

    /// Whether the lock is kept while the index of VMAs is changed.
    pub(crate) fn is_wide(&self) -> bool {
        self.locking == FileLocking::Wide
    }

    /// The shard of the space with that number.
    fn shard(&self, space: usize) -> &Mutex<Tree> {
        self.shards[if self.is_wide() { 0 } else { space % SHARDS }]
            .get_or_init(|| Box::new(Lines(self.locks.mutex(LockClass::FileMapping, Tree::default()))))
    }

    /// Replaces the listed mappings `old` by `new` in one step. All are of the space that has `addr`, whose
    /// layout is locked for writing. Returns the lock if it is wide: it is to be kept until the index has
    /// changed, too.
    // Not inlined into the paths on which anonymous memory is mapped and unmapped, which are to be short.
    #[inline(never)]
    pub(crate) fn replace(
        &self,
        addr: usize,
        old: impl IntoIterator<Item = MappedRange>,
        new: impl IntoIterator<Item = MappedRange>,
    ) -> Kept<'_> {
        let mut tree = self.shard(space_of(addr)).lock();
        for mapping in old {
            let was = tree.remove(&mapping.edges());
            debug_assert_eq!(was, Some(mapping.private), "{mapping:x?} is listed");
        }
        for mapping in new {
            debug_assert_eq!(space_of(mapping.range.start), space_of(addr));
            let was = tree.insert(mapping.edges(), mapping.private);
            debug_assert_eq!(was, None, "{mapping:x?} is listed twice");
        }
        self.is_wide().then_some(tree)
    }

    /// The mappings of any of `pages`, space by space, each as it was at some moment of this call.
    pub(crate) fn overlapping(&self, pages: &Range<u64>, which: Which) -> Vec<MappedRange> {
        let mut all = Vec::new();
        let shards = if self.is_wide() { 1 } else { SHARDS };
        (0..shards).for_each(|number| find(&self.shard(number).lock(), pages, which, &mut all));
        all
    }

    /// The mappings of any of `pages` in the space that has `addr`, by their addresses, at one moment.
    pub(crate) fn in_space(&self, addr: usize, pages: &Range<u64>, which: Which) -> Vec<MappedRange> {
        let mut all = Vec::new();
        find(&self.shard(space_of(addr)).lock(), pages, which, &mut all);
        all.retain(|mapping| space_of(mapping.range.start) == space_of(addr));
        all.sort_unstable_by_key(|mapping| mapping.range.start);
        all
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
