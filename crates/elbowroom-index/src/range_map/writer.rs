//! The writer, and stores inside one leaf.

use super::node::{HEIGHT, Inner, LEAF, Leaf, Node, NodeRef, least};
use super::{Found, RangeMap, build};
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::epoch::{Guard, Limbo};
use std::ops::Range;

/// The only handle that can change a [`RangeMap`]. See [`RangeMap::new`].
///
/// Its methods take a guard from the caller, which often has one anyway: beginning a read-side section
/// costs as much as a store.
pub struct Writer<V: Send + Sync + 'static> {
    pub(super) map: RangeMap<V>,
    pub(super) retired: Retired<V>,
}

/// The nodes that a writer has replaced. They go back to the writer, so that readers never drop them.
pub(super) struct Retired<V: Send + Sync + 'static> {
    pub(super) leaves: Limbo<Leaf<V>>,
    pub(super) inners: Limbo<Inner<V>>,
}

impl<V: Copy + Send + Sync + 'static> Retired<V> {
    pub(super) fn new() -> Self {
        // Only leaves are reused: an inner node keeps its children alive until it is dropped, so it is
        // dropped soon.
        Self { leaves: Limbo::new(SPARE_LEAVES), inners: Limbo::new(0) }
    }

    /// A leaf to write to, with unknown contents and no other owner.
    #[inline]
    fn blank_leaf(&mut self) -> Arc<Leaf<V>> {
        // A leaf that a replaced inner node also holds cannot be reused; it is dropped together with that
        // node.
        let used = self.leaves.reuse().filter(|leaf| Arc::strong_count(leaf) == 1);
        used.unwrap_or_else(|| Arc::new(Leaf::empty()))
    }
}

/// The most leaves that are kept for the next stores.
const SPARE_LEAVES: usize = 64;

/// A path from the root to a leaf: each inner node and the slot of the child that the path goes through.
pub(super) struct Path<'g, V> {
    steps: [(&'g Inner<V>, usize); HEIGHT],
    pub(super) height: usize,
    pub(super) found: Found<'g, V>,
}

impl<'g, V: Copy + Send + Sync + 'static> Path<'g, V> {
    /// The path to the leaf that covers `key`, which is below `u64::MAX`.
    // `always`, because the path is large, and would otherwise be copied when it is returned.
    #[inline(always)]
    pub(super) fn to(map: &'g RangeMap<V>, key: u64, guard: &'g Guard) -> Self {
        let mut inner = map.root(guard);
        let mut steps = [(inner, 0); HEIGHT];
        let mut lo = 0;
        for depth in 0..HEIGHT {
            let slot = inner.slot_of(key);
            steps[depth] = (inner, slot);
            lo = inner.start(lo, slot);
            match inner.child(slot, guard) {
                NodeRef::Inner(child) => inner = child,
                NodeRef::Leaf(leaf) => {
                    let found = Found { leaf, lo, hi: inner.ends[slot] };
                    return Self { steps, height: depth + 1, found };
                }
            }
        }
        unreachable!("the tree is at most {HEIGHT} levels high")
    }

    /// The inner node at `depth` (0 is the root) and the slot taken there.
    #[inline]
    pub(super) fn step(&self, depth: usize) -> (&'g Inner<V>, usize) {
        self.steps[depth]
    }

    /// The leaf's parent and the leaf's slot in it.
    #[inline]
    fn last(&self) -> (&'g Inner<V>, usize) {
        self.steps[self.height - 1]
    }

    /// Where child `slot` of the node at `depth` begins.
    pub(super) fn start_of(&self, depth: usize, slot: usize) -> u64 {
        if slot > 0 {
            return self.steps[depth].0.ends[slot - 1];
        }
        let above = self.steps[..depth].iter().rev().find(|(_, slot)| *slot > 0);
        above.map_or(0, |(inner, slot)| inner.ends[slot - 1])
    }

    /// Notes that the child taken at `depth` now has a largest gap of `gap`, there and above.
    ///
    /// A node's own largest gap is stored in its parent, so for most changes the other children need not be
    /// looked at.
    #[inline]
    pub(super) fn set_gap(&self, depth: usize, gap: u64) {
        let mut gap = gap;
        for depth in (0..=depth).rev() {
            let (inner, slot) = self.steps[depth];
            let old = inner.gap(slot);
            if old == gap {
                return;
            }
            inner.set_gap(slot, gap);
            if depth == 0 {
                return;
            }
            let (parent, slot) = self.steps[depth - 1];
            let largest = parent.gap(slot);
            if gap < largest {
                if old < largest {
                    return;
                }
                gap = inner.largest_gap();
            }
        }
    }
}

impl<V: Copy + Send + Sync + 'static> Writer<V> {
    pub(super) fn new(map: RangeMap<V>) -> Self {
        Self { map, retired: Retired::new() }
    }

    /// Stores `value` in `range`, in the place of all that was there; None makes it a gap. A range that is
    /// cut keeps its value outside of `range`. Readers see one atomic change. An empty range changes
    /// nothing.
    pub fn store(&mut self, range: Range<u64>, value: Option<V>, guard: &Guard) {
        if range.is_empty() {
            return;
        }
        self.collect();
        if !self.store_in_leaf(&range, value, guard) {
            self.store_across(range, value, guard);
        }
    }

    /// Makes `range` a gap. As [`store`](Self::store) of None.
    pub fn erase(&mut self, range: Range<u64>, guard: &Guard) {
        self.store(range, None, guard);
    }

    /// Makes the whole map a gap.
    pub fn clear(&mut self, guard: &Guard) {
        self.map.0.root.store_reusing(build::bare_root(), &mut self.retired.inners, guard);
        self.map.0.len.store(0, Ordering::Relaxed);
    }

    /// Frees the nodes that large changes have replaced, as far as no reader can be in them any more. Each
    /// store does that, too, so this is only needed for a map that has shrunk and gets no more stores.
    pub fn collect(&mut self) {
        self.retired.inners.collect();
    }

    /// Makes a store that stays inside one leaf and makes it neither too full nor too empty; otherwise does
    /// nothing, and returns false.
    #[inline]
    fn store_in_leaf(&mut self, range: &Range<u64>, value: Option<V>, guard: &Guard) -> bool {
        let Self { map, retired } = self;
        let path = Path::to(map, range.start, guard);
        let Found { leaf, lo, hi } = path.found;
        if range.end > hi {
            return false;
        }
        let cut = Cut::new(leaf, lo, range, value);
        if cut.nothing_changes(leaf, value) {
            return true;
        }
        let (parent, slot) = path.last();
        let len = cut.len(leaf);
        let too_empty = len < least(LEAF) && len < leaf.len && parent.len > 1;
        if len > LEAF || too_empty {
            return false;
        }
        let mut new = retired.blank_leaf();
        let written = Arc::get_mut(&mut new).expect("a blank leaf has no other owner");
        cut.apply(leaf, range.start, value, written);
        written.set_run_on(match (written.ends_in_gap(), leaf.ends_in_gap()) {
            (true, true) => leaf.run_on(),
            (true, false) => map.lead_at(hi, guard),
            (false, _) => 0,
        });
        let (gap, lead) = (written.largest_gap(lo), written.lead(lo));
        let lead_changes = lead != leaf.lead(lo);
        parent.replace(slot, Node::Leaf(new), retired, guard);
        path.set_gap(path.height - 1, gap);
        map.add_len(cut.added(leaf, value), cut.removed(leaf));
        if lead_changes {
            map.run_on_to(lo, lead, guard);
        }
        true
    }
}

impl<V: Copy + Send + Sync + 'static> RangeMap<V> {
    /// Adds to the number of ranges, and subtracts from it. There is one writer, so a load and a store are
    /// enough.
    pub(super) fn add_len(&self, added: usize, removed: usize) {
        self.0.len.store(self.len() + added - removed, Ordering::Relaxed);
    }

    /// The length of the gap that begins at `key`, where a leaf begins or the map ends; 0 for none.
    pub(super) fn lead_at(&self, key: u64, guard: &Guard) -> u64 {
        if key == u64::MAX { 0 } else { self.find(key, guard).leaf.lead(key) }
    }

    /// Notes in the leaf that ends at `key` that `lead` keys behind it now are a gap. If all of that leaf
    /// is a gap, the length of its own gap changes, which is noted in the leaf before, and so on.
    pub(super) fn run_on_to(&self, key: u64, lead: u64, guard: &Guard) {
        let (mut key, mut lead) = (key, lead);
        while key > 0 {
            let path = Path::to(self, key - 1, guard);
            let Found { leaf, lo, .. } = path.found;
            if !leaf.ends_in_gap() || leaf.run_on() == lead {
                return;
            }
            leaf.set_run_on(lead);
            path.set_gap(path.height - 1, leaf.largest_gap(lo));
            if leaf.len > 1 {
                return;
            }
            (key, lead) = (lo, leaf.lead(lo));
        }
    }
}

/// What a store does to one leaf: it removes the entries `first..=last`, and puts in their place the rest
/// of the first (if `left`), the new entry, and the rest of the last (if `right`).
struct Cut {
    first: usize,
    last: usize,
    left: bool,
    right: bool,
    /// Where the new entry ends. A new gap is merged with gaps of the leaf that it touches.
    end: u64,
}

impl Cut {
    #[inline]
    fn new<V: Copy>(leaf: &Leaf<V>, lo: u64, range: &Range<u64>, value: Option<V>) -> Self {
        let (mut first, mut last) = (leaf.slot_of(range.start), leaf.slot_of(range.end - 1));
        let mut left = range.start > leaf.range(lo, first).start;
        let mut right = range.end < leaf.ends[last];
        let mut end = range.end;
        if value.is_none() {
            if left {
                left = leaf.values[first].is_some();
            } else if first > 0 && leaf.values[first - 1].is_none() {
                first -= 1;
            }
            if right {
                right = leaf.values[last].is_some();
            } else if last + 1 < leaf.len && leaf.values[last + 1].is_none() {
                last += 1;
            }
            if !right {
                end = leaf.ends[last];
            }
        }
        Self { first, last, left, right, end }
    }

    /// The number of entries of the leaf that [`apply`](Self::apply) writes.
    #[inline]
    fn len<V>(&self, leaf: &Leaf<V>) -> usize {
        self.first + usize::from(self.left) + 1 + usize::from(self.right) + (leaf.len - self.last - 1)
    }

    /// Whether the store makes a gap of a range that is inside a gap already.
    #[inline]
    fn nothing_changes<V>(&self, leaf: &Leaf<V>, value: Option<V>) -> bool {
        value.is_none() && self.first == self.last && leaf.values[self.first].is_none()
    }

    /// Writes the changed entries of `leaf` to `new`.
    #[inline]
    fn apply<V: Copy>(&self, leaf: &Leaf<V>, start: u64, value: Option<V>, new: &mut Leaf<V>) {
        // Whole arrays have a known size, so copying them takes a few instructions; then only the entries
        // that shift are copied again.
        new.ends = leaf.ends;
        new.values = leaf.values;
        new.len = self.first;
        if self.left {
            new.push(start, leaf.values[self.first]);
        }
        new.push(self.end, value);
        if self.right {
            new.push(leaf.ends[self.last], leaf.values[self.last]);
        }
        let rest = self.last + 1..leaf.len;
        let to = new.len..new.len + rest.len();
        if to != rest {
            new.ends[to.clone()].copy_from_slice(&leaf.ends[rest.clone()]);
            new.values[to.clone()].copy_from_slice(&leaf.values[rest]);
            new.ends[to.end..].fill(u64::MAX);
        }
        new.len = to.end;
    }

    /// How many of the removed entries have a value.
    #[inline]
    fn removed<V>(&self, leaf: &Leaf<V>) -> usize {
        leaf.values[self.first..=self.last].iter().flatten().count()
    }

    /// How many of the new entries have a value.
    #[inline]
    fn added<V>(&self, leaf: &Leaf<V>, value: Option<V>) -> usize {
        let left = self.left && leaf.values[self.first].is_some();
        let right = self.right && leaf.values[self.last].is_some();
        usize::from(left) + usize::from(value.is_some()) + usize::from(right)
    }
}
