//! The search for free ranges.
//!
//! Every inner node knows the largest gap that begins below each child, so the search passes by all children
//! that have no room. Linux: `mas_empty_area_rev`, with the alignment of `vm_unmapped_area`. Unlike that,
//! which asks for `len + align - 1` keys, this finds every range that fits; so besides the way down it looks
//! at the gaps that are long enough but have no fitting start, which only gaps shorter than `len + align - 1`
//! can be.
//!
//! A gap may lie in several leaves. It counts in full where it begins, and its rest once more in each leaf
//! after that. So a store changes what is known in its own leaf and, if it changes the gap at the leaf's
//! start, in the one before.

use super::node::{Inner, NodeRef};
use super::writer::Writer;
use elbowroom_sync::epoch::Guard;
use std::ops::Range;

/// What is searched for.
struct Wanted {
    len: u64,
    align: u64,
    phase: u64,
    within: Range<u64>,
}

impl<V: Copy + Send + Sync + 'static> Writer<V> {
    /// The highest start of a free range of `len` keys inside `within` that is `phase` modulo `align`; None
    /// if there is none, or if `len` is 0. Logarithmic, but for gaps that are long enough and badly aligned.
    ///
    /// # Panics
    /// If `align` is 0.
    pub fn gap_down(
        &self,
        len: u64,
        align: u64,
        phase: u64,
        within: Range<u64>,
        guard: &Guard,
    ) -> Option<u64> {
        let wanted = Wanted::new(len, align, phase, within)?;
        wanted.down(self.map.root(guard), 0, guard)
    }
}

impl Wanted {
    fn new(len: u64, align: u64, phase: u64, within: Range<u64>) -> Option<Self> {
        assert!(align > 0, "an alignment is at least 1");
        let wanted = Self { len, align, phase: phase % align, within };
        (len > 0 && !wanted.within.is_empty()).then_some(wanted)
    }

    /// The highest start in the free range `gap`.
    fn highest_in(&self, gap: Range<u64>) -> Option<u64> {
        let (lo, hi) = (gap.start.max(self.within.start), gap.end.min(self.within.end));
        let top = hi.checked_sub(self.len)?;
        let past = top % self.align;
        let back = if past >= self.phase { past - self.phase } else { self.align - (self.phase - past) };
        top.checked_sub(back).filter(|&start| start >= lo)
    }

    /// The highest start below `inner`, which begins at `lo`.
    fn down<V: Copy + Send + Sync + 'static>(&self, inner: &Inner<V>, lo: u64, guard: &Guard) -> Option<u64> {
        let last = inner.slot_of(self.within.end - 1).min(inner.len - 1);
        (0..=last)
            .rev()
            .take_while(|&slot| inner.ends[slot] > self.within.start)
            .filter(|&slot| inner.gap(slot) >= self.len)
            .find_map(|slot| match inner.child(slot, guard) {
                NodeRef::Inner(child) => self.down(child, inner.start(lo, slot), guard),
                NodeRef::Leaf(leaf) => {
                    leaf.gaps(inner.start(lo, slot)).rev().find_map(|gap| self.highest_in(gap))
                }
            })
    }
}
