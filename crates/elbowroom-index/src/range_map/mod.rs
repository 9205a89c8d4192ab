//! A map from ranges of `u64` keys to values, for many readers that never wait and one writer at a time.
//!
//! It is used as Linux uses its maple tree (`lib/maple_tree.c`): as the index of a space's mappings, in
//! which every fault looks its VMA up without a lock. It is a B-tree over the whole key space in which gaps
//! are entries too, so that a store that cuts, fills or frees a range inside one leaf only replaces that
//! leaf. For a larger change (a split, a merge, a store over several leaves) the new nodes are built aside,
//! up to the lowest node that contains all of the change, and made visible by one store.
//!
//! # What readers see
//! * Each lookup sees one state of the map: it sees a store as a whole or not at all. A range that is
//!   replaced is never seen as a gap between its old and its new value.
//! * A lookup that begins after a store has returned sees it.
//! * An iteration makes one lookup for each leaf. A key that is covered all the time is never skipped;
//!   ranges that a writer changes meanwhile may be seen in their old or their new form, so that two results
//!   in a row can overlap.
//!
//! # Cost
//! A lookup reads one slot and searches one node a level: n entries need up to 2n slots (the gaps between
//! them count), 16 to a leaf and 32 leaves or nodes to an inner node. A store inside a leaf writes one
//! leaf, one slot of its parent, and the largest gaps in the nodes above; the new leaf uses the memory of
//! one that was replaced before.
//!
//! For values of 8 bytes without a niche a leaf of 16 slots has 416 bytes and an inner node of 32 has 960:
//! 30 bytes a slot when all are full, 40 to 53 after stores in ascending, scattered or descending order. A
//! range takes one slot, and the gap behind it, if there is one, another. With a niche (`NonZero`, a
//! reference) a slot is 8 bytes smaller. In addition, up to some 350 replaced leaves wait for their grace
//! period or for the next stores.
//!
//! # Synchronization
//! | who | holds | may |
//! |---|---|---|
//! | reader | a [`Guard`] | look up and iterate; no lock, no wait, no retry |
//! | writer | the [`Writer`], of which there is one, and a guard | store, erase, search gaps |
//!
//! A map and its one writer are made together. A user that shares the writer between threads puts it under
//! a lock (the layout lock of a space); a store takes no other lock. Replaced nodes go back to the writer
//! after a grace period ([`elbowroom_sync::epoch::Limbo`]), so that readers drop nothing. The nodes that a
//! large change has replaced are freed together, by a later store or by [`Writer::collect`].

mod build;
mod gap;
mod iter;
mod node;
mod splice;
mod verify;
mod writer;

#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "../../tests/range_map.rs"]
mod oracle;

pub use build::NotSorted;
pub use iter::Overlapping;
pub use writer::Writer;

use elbowroom_sync::atomic::{AtomicUsize, Ordering};
use elbowroom_sync::epoch::{ArcCell, Guard};
use elbowroom_sync::{Arc, Lines};
use node::{Inner, Leaf, NodeRef};
use std::ops::Range;

/// A map from half-open ranges of keys below `u64::MAX` to values, for readers. See the [module](self).
///
/// A clone is another handle on the same map. Each handle is on a cache line of its own, so that writes to
/// its neighbours in memory do not slow readers down.
pub struct RangeMap<V: Send + Sync + 'static>(Lines<Arc<Shared<V>>>);

/// The state that readers and the writer share.
struct Shared<V: Send + Sync + 'static> {
    /// Always an inner node, even if it has only one leaf. It is on a cache line that stores inside leaves
    /// do not write.
    root: Lines<ArcCell<Inner<V>>>,
    /// How many entries hold a value. Only the writer changes this.
    len: AtomicUsize,
}

impl<V: Send + Sync + 'static> Clone for RangeMap<V> {
    fn clone(&self) -> Self {
        Self(Lines(Arc::clone(&self.0)))
    }
}

/// A leaf and the keys `lo..hi` that it covers.
struct Found<'g, V> {
    leaf: &'g Leaf<V>,
    lo: u64,
    hi: u64,
}

impl<V: Copy + Send + Sync + 'static> RangeMap<V> {
    /// A map that is one gap, and its writer.
    pub fn new() -> (Self, Writer<V>) {
        Self::with_root(build::bare_root(), 0)
    }

    fn with_root(root: Arc<Inner<V>>, len: usize) -> (Self, Writer<V>) {
        let shared = Shared { root: Lines(ArcCell::new(root)), len: AtomicUsize::new(len) };
        let map = Self(Lines(Arc::new(shared)));
        (map.clone(), Writer::new(map))
    }

    /// The range that covers `key`, and its value; None in a gap.
    #[inline]
    pub fn get(&self, key: u64, guard: &Guard) -> Option<(Range<u64>, V)> {
        if key == u64::MAX {
            return None;
        }
        let found = self.find(key, guard);
        let slot = found.leaf.slot_of(key);
        Some((found.leaf.range(found.lo, slot), found.leaf.values[slot]?))
    }

    /// All ranges that share a key with `range`, in order, and not cut to it.
    #[inline]
    pub fn overlapping<'g>(&'g self, range: Range<u64>, guard: &'g Guard) -> Overlapping<'g, V> {
        Overlapping::new(self, range, guard)
    }

    /// How many ranges hold a value. The two parts of a range that was cut count as two.
    pub fn len(&self) -> usize {
        self.0.len.load(Ordering::Relaxed)
    }

    /// Whether the map is one gap.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn root<'g>(&'g self, guard: &'g Guard) -> &'g Inner<V> {
        self.0.root.load(guard).expect("a map has a root")
    }

    /// The leaf that covers `key`, which is below `u64::MAX`.
    #[inline]
    fn find<'g>(&'g self, key: u64, guard: &'g Guard) -> Found<'g, V> {
        let mut inner = self.root(guard);
        let mut lo = 0;
        loop {
            let slot = inner.slot_of(key);
            lo = inner.start(lo, slot);
            match inner.child(slot, guard) {
                NodeRef::Inner(child) => inner = child,
                NodeRef::Leaf(leaf) => return Found { leaf, lo, hi: inner.ends[slot] },
            }
        }
    }
}
