//! Tables, and the memory that they live in.
//!
//! # Invariants
//! 1. The nodes of a pool that were ever made stay where they are, with their values, until the pool is
//!    dropped. A table that is not needed any more is used again, as a table of the same kind. So a walker
//!    that follows a link that it read a moment ago reads a valid table, though perhaps one that is now
//!    attached elsewhere, and the generations of entries never start again.
//! 2. An [`EntryRef`] names an entry of a leaf of the pool that it is used with.

use super::pte::Entry;
use crate::arena::reserve;
use elbowroom_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use elbowroom_sync::{LockClass, LockStats, Mutex};
use rustix::io::Errno;
use rustix::mm;
use std::marker::PhantomData;

/// Entries in a table.
pub(super) const ENTRIES: usize = 512;

/// log2 of [`ENTRIES`].
pub(super) const ENTRIES_SHIFT: u32 = 9;

/// A reference from a table (or the list of spaces) to a table: one word, with a generation that grows
/// whenever a table is attached.
///
/// ```text
/// bit 63      62 32        31 0
///    | present | generation | node |
/// ```
#[derive(Debug, Default)]
#[repr(transparent)]
pub(super) struct Link(AtomicU64);

const PRESENT: u64 = 1 << 63;
const GENERATION_ONE: u64 = 1 << 32;

/// A value of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LinkWord(u64);

impl LinkWord {
    /// The node that the link refers to, if any.
    #[inline]
    pub(super) fn node(self) -> Option<u32> {
        (self.0 & PRESENT != 0).then_some(self.0 as u32)
    }
}

impl Link {
    /// Acquire: a thread that sees the link sees the table that it refers to.
    #[inline]
    pub(super) fn load(&self) -> LinkWord {
        LinkWord(self.0.load(Ordering::Acquire))
    }

    /// Whether the link still has the value `seen`. Called after an acquiring load of the table's contents.
    #[inline]
    pub(super) fn is_still(&self, seen: LinkWord) -> bool {
        self.0.load(Ordering::Relaxed) == seen.0
    }

    /// Refers to `node`. The caller has the structure lock, which serializes all changes of links.
    pub(super) fn attach(&self, node: u32) {
        let generation = (self.0.load(Ordering::Relaxed) | PRESENT).wrapping_add(GENERATION_ONE);
        self.0.store(generation >> 32 << 32 | PRESENT | u64::from(node), Ordering::Release);
    }

    /// Refers to nothing. The caller has the structure lock.
    pub(super) fn detach(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) & !PRESENT, Ordering::Release);
    }
}

/// A table of tables.
#[repr(C, align(64))]
pub(super) struct Upper {
    pub(super) links: [Link; ENTRIES],
}

impl Upper {
    pub(super) fn new() -> Self {
        Self { links: std::array::from_fn(|_| Link::default()) }
    }
}

/// A table of pages.
#[repr(C, align(64))]
pub(super) struct Leaf {
    pub(super) entries: [Entry; ENTRIES],
    pub(super) state: Mutex<LeafState>,
}

/// What the lock of a leaf guards, besides installing and clearing its entries.
pub(super) struct LeafState {
    /// Which 2 MiB of which space the leaf maps: their address, shifted by `LEAF_SHIFT`; [`UNUSED`] if it
    /// is not attached.
    pub(super) owner: usize,
    /// Entries that are not empty.
    pub(super) used: u32,
    /// Whether the leaf is in the list of idle leaves.
    pub(super) idle: bool,
}

/// The owner of a leaf that is not attached.
pub(super) const UNUSED: usize = usize::MAX;

impl Leaf {
    pub(super) fn new(locks: &LockStats) -> Self {
        let state = LeafState { owner: UNUSED, used: 0, idle: false };
        Self {
            entries: std::array::from_fn(|_| Entry::default()),
            state: locks.mutex(LockClass::PageTable, state),
        }
    }
}

/// Names an entry of a leaf: its distance from the pool's beginning, in bytes. Only [`Pool::entry_ref`]
/// makes valid ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryRef(usize);

impl EntryRef {
    /// Names no entry, and is never looked up.
    pub(super) const NONE: EntryRef = EntryRef(usize::MAX);
}

/// Reserved addresses for a bounded number of nodes; memory is populated as nodes are made.
pub(super) struct Pool<T> {
    base: usize,
    most: usize,
    made: AtomicUsize,
    _nodes: PhantomData<T>,
}

impl<T> Pool<T> {
    /// Reserves address space for `most` nodes.
    pub(super) fn new(most: usize) -> Result<Self, Errno> {
        assert!(align_of::<T>() <= crate::PAGE_SIZE && most > 0);
        let base = reserve(most.checked_mul(size_of::<T>()).ok_or(Errno::NOMEM)?)?;
        Ok(Self { base, most, made: AtomicUsize::new(0), _nodes: PhantomData })
    }

    /// How many nodes were made.
    pub(super) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// A new node; `None` if there are as many as there may be. The caller has the structure lock.
    pub(super) fn make(&self, node: impl FnOnce() -> T) -> Option<u32> {
        let made = self.made.load(Ordering::Relaxed);
        if made == self.most {
            return None;
        }
        let at = (self.base + made * size_of::<T>()) as *mut T;
        // SAFETY: (1) the place is inside the reservation, aligned, and unused: the structure lock makes
        // this thread the only one that makes nodes, and readers use only nodes below `made`.
        unsafe { at.write(node()) };
        self.made.store(made + 1, Ordering::Release);
        Some(made as u32)
    }

    /// A node; `None` if it was never made.
    #[inline]
    pub(super) fn get(&self, node: u32) -> Option<&T> {
        if node as usize >= self.made.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: (1) the node was made, and is not dropped before the pool (invariant 1); (2) it is only
        // used by shared references.
        Some(unsafe { &*((self.base + node as usize * size_of::<T>()) as *const T) })
    }
}

impl Pool<Leaf> {
    /// The name of an entry.
    #[inline]
    pub(super) fn entry_ref(&self, entry: &Entry) -> EntryRef {
        let at = std::ptr::from_ref(entry) as usize;
        let offset = at.wrapping_sub(self.base);
        debug_assert!(offset < self.made() * size_of::<Leaf>(), "an entry of another pool");
        EntryRef(offset)
    }

    /// The entry of that name.
    #[inline]
    pub(super) fn entry(&self, entry: EntryRef) -> &Entry {
        debug_assert!(entry.0 < self.made() * size_of::<Leaf>(), "no entry's name");
        // SAFETY: (1) by invariant 2 it is an entry of a leaf of ours; (2) by invariant 1 that is still
        // there.
        unsafe { &*((self.base + entry.0) as *const Entry) }
    }
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        for node in 0..self.made() {
            // SAFETY: (1) the node was made, and is dropped only here; (2) nobody has a reference: they
            // borrow the pool.
            unsafe { std::ptr::drop_in_place((self.base + node * size_of::<T>()) as *mut T) };
        }
        // SAFETY: the reservation is ours and unused now.
        let _ = unsafe { mm::munmap(self.base as *mut _, self.most * size_of::<T>()) };
    }
}
