//! Checks of the map's structure.

use super::RangeMap;
use super::node::{FANOUT, Inner, LEAF, Leaf, NodeRef};
use elbowroom_sync::epoch::{Guard, pin};

/// The state of the walk. It goes from the last leaf to the first, because a gap counts in the leaf where
/// it begins.
struct Walk {
    /// Where the last entry began.
    at: u64,
    /// The length of the gap that begins there.
    lead: u64,
    values: usize,
}

impl<V: Copy + Send + Sync + 'static> RangeMap<V> {
    /// Checks every rule of the structure: that the entries cover the key space without overlap, that no
    /// two gaps of a leaf touch, that all leaves are equally deep, and that bounds, largest gaps and the
    /// length are right. For tests, while no thread writes. Takes time linear in the size.
    ///
    /// # Panics
    /// If a rule is broken.
    pub fn verify(&self) {
        let guard = pin();
        let mut walk = Walk { at: u64::MAX, lead: 0, values: 0 };
        walk.inner(self.root(&guard), 0, u64::MAX, &guard);
        assert_eq!((walk.at, walk.values), (0, self.len()), "start and length");
    }
}

impl Walk {
    /// Walks `inner`, which covers `lo..hi`. Returns its largest gap and its height.
    fn inner<V: Copy + Send + Sync + 'static>(
        &mut self,
        inner: &Inner<V>,
        lo: u64,
        hi: u64,
        guard: &Guard,
    ) -> (u64, usize) {
        assert!((1..=FANOUT).contains(&inner.len), "{} children", inner.len);
        assert_eq!(inner.ends[inner.len - 1], hi, "the last child ends where its parent does");
        assert!(inner.ends[inner.len..].iter().all(|&end| end == u64::MAX), "unused places");
        let mut seen = Vec::new();
        for slot in (0..inner.len).rev() {
            let (start, end) = (inner.start(lo, slot), inner.ends[slot]);
            let (gap, height) = match inner.child(slot, guard) {
                NodeRef::Inner(child) => self.inner(child, start, end, guard),
                NodeRef::Leaf(leaf) => (self.leaf(leaf, start, end), 0),
            };
            assert_eq!(gap, inner.gap(slot), "largest gap below {end:#x}");
            seen.push((gap, height));
        }
        assert!(seen.iter().all(|&(_, height)| height == seen[0].1), "all leaves are equally deep");
        (seen.iter().map(|&(gap, _)| gap).max().unwrap_or(0), seen[0].1 + 1)
    }

    /// Walks `leaf`, which covers `lo..hi`. Returns its largest gap.
    fn leaf<V: Copy>(&mut self, leaf: &Leaf<V>, lo: u64, hi: u64) -> u64 {
        assert!((1..=LEAF).contains(&leaf.len), "{} entries", leaf.len);
        assert!(leaf.ends[leaf.len..].iter().all(|&end| end == u64::MAX), "unused places");
        assert_eq!(leaf.ends[leaf.len - 1], hi, "the last entry ends where its leaf does");
        assert_eq!(hi, self.at, "the next leaf begins where this one ends");
        let mut largest = 0;
        for (slot, (end, value)) in leaf.entries().enumerate().collect::<Vec<_>>().into_iter().rev() {
            let start = leaf.range(lo, slot).start;
            assert!(start < end, "an entry is not empty");
            assert!(end == hi || value.is_some() || self.lead == 0, "two gaps touch at {end:#x}");
            self.lead = if value.is_none() { self.lead + end - start } else { 0 };
            largest = largest.max(self.lead);
            self.values += usize::from(value.is_some());
        }
        self.at = lo;
        largest
    }
}
