//! The search for free ranges.
//!
//! Every inner node knows the largest gap that begins below each child, so the search skips all children
//! that have no room. Linux: `mas_empty_area_rev`, with the alignment of `vm_unmapped_area`. That asks for
//! a gap of `len + align - 1` keys, while this finds every range that fits. So it may also visit gaps that
//! are long enough but have no aligned start; these are all shorter than `len + align - 1`.
//!
//! A gap may extend over several leaves. The leaf in which it begins counts its full length, and each later
//! leaf the rest from its own start on. So a store changes the gaps that its own leaf counts and, if it
//! changes the gap at the leaf's start, those of the leaf before.

use super::node::{Inner, NodeRef};
use super::writer::Writer;
use elbowroom_sync::epoch::Guard;
use std::ops::Range;

/// The conditions of a search.
struct Wanted {
    len: u64,
    align: u64,
    phase: u64,
    within: Range<u64>,
}

impl<V: Copy + Send + Sync + 'static> Writer<V> {
    /// The highest start of a free range of `len` keys inside `within` that is `phase` modulo `align`; None
    /// if there is none, or if `len` is 0. Takes logarithmic time, plus the visits of gaps that are long
    /// enough but have no aligned start.
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

    /// The highest start that fits in the free range `gap`.
    fn highest_in(&self, gap: Range<u64>) -> Option<u64> {
        let (lo, hi) = (gap.start.max(self.within.start), gap.end.min(self.within.end));
        let top = hi.checked_sub(self.len)?;
        let past = top % self.align;
        let back = if past >= self.phase { past - self.phase } else { self.align - (self.phase - past) };
        top.checked_sub(back).filter(|&start| start >= lo)
    }

    /// The highest start that fits in the subtree of `inner`, which begins at `lo`.
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
