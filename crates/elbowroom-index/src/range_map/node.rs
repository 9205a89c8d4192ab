//! The nodes of a range map: leaves, whose entries never change, and inner nodes, in which only the
//! children change.
//!
//! ```text
//! inner, covers lo..ends[len-1]        leaf, covers lo..ends[len-1]
//! ends      10      50      90         ends      10      30      50
//! children  |       |       |          values    Some(a) None    Some(b)
//! gaps      0       20      0
//! ```
//! A node does not store where it begins: the descent computes that. Unused slots end at `u64::MAX`, which
//! no key reaches, so a search goes over the whole array and has no branch that depends on the data.

use super::writer::Retired;
use elbowroom_sync::atomic::{AtomicU64, Ordering};
use elbowroom_sync::epoch::{ArcCell, Guard};
use elbowroom_sync::{Arc, Lines};
use std::array;
use std::ops::Range;

/// Whether nodes are small: for tests, so that a few stores cause splits, and for model checkers, which
/// have to track each slot.
const SMALL: bool = cfg!(any(test, loom, shuttle));

/// Entries of a leaf. A leaf is copied by each store, so it is small.
pub(super) const LEAF: usize = if SMALL { 4 } else { 16 };
/// Children of an inner node. Inner nodes are read by all and copied seldom, so they are larger.
pub(super) const FANOUT: usize = if SMALL { 4 } else { 32 };
/// The most levels of inner nodes. Nodes are at least about a quarter full, so this cannot be reached: it
/// would take 8^10 leaves.
pub(super) const HEIGHT: usize = if SMALL { 12 } else { 10 };

/// The fewest items of a node: a node with fewer is merged with a neighbour when it is next rewritten.
pub(super) const fn least(capacity: usize) -> usize {
    capacity / 4 + 1
}

/// How many items a node gets when items are distributed over new nodes.
pub(super) const fn target(capacity: usize) -> usize {
    capacity - capacity / 4
}

/// How many of `ends` are at or below `key`: the index of the item that covers it.
#[inline]
fn slot_of<const N: usize>(ends: &[u64; N], key: u64) -> usize {
    const { assert!(N.is_power_of_two()) };
    let mut slot = 0;
    let mut half = N / 2;
    while half > 0 {
        slot += if ends[(slot + half - 1) & (N - 1)] <= key { half } else { 0 };
        half /= 2;
    }
    slot & (N - 1)
}

/// Adjacent ranges and their values; None is a gap. No two gaps of one leaf touch, but a gap may continue
/// in the next leaf.
#[repr(C)]
pub(super) struct Leaf<V> {
    pub(super) ends: [u64; LEAF],
    pub(super) values: [Option<V>; LEAF],
    pub(super) len: usize,
    /// For how many keys the gap at the end of the leaf continues behind the leaf. Only writers read and
    /// write this.
    run_on: AtomicU64,
}

impl<V: Copy> Leaf<V> {
    pub(super) fn empty() -> Self {
        Self { ends: [u64::MAX; LEAF], values: [None; LEAF], len: 0, run_on: AtomicU64::new(0) }
    }

    /// A leaf of `entries`, at least one and at most [`LEAF`]; a gap at their end continues for `run_on`
    /// keys.
    pub(super) fn of(entries: &[(u64, Option<V>)], run_on: u64) -> Self {
        let mut leaf = Self::empty();
        entries.iter().for_each(|&(end, value)| leaf.push(end, value));
        leaf.set_run_on(if leaf.ends_in_gap() { run_on } else { 0 });
        leaf
    }

    #[inline]
    pub(super) fn push(&mut self, end: u64, value: Option<V>) {
        self.ends[self.len] = end;
        self.values[self.len] = value;
        self.len += 1;
    }

    /// The entry that covers `key`, which must lie in this leaf.
    #[inline]
    pub(super) fn slot_of(&self, key: u64) -> usize {
        slot_of(&self.ends, key)
    }

    /// The range of entry `slot` of a leaf that begins at `lo`.
    #[inline]
    pub(super) fn range(&self, lo: u64, slot: usize) -> Range<u64> {
        let start = if slot == 0 { lo } else { self.ends[slot - 1] };
        start..self.ends[slot]
    }

    pub(super) fn entries(&self) -> impl DoubleEndedIterator<Item = (u64, Option<V>)> {
        (0..self.len).map(|slot| (self.ends[slot], self.values[slot]))
    }

    #[inline]
    pub(super) fn ends_in_gap(&self) -> bool {
        self.values[self.len - 1].is_none()
    }

    #[inline]
    pub(super) fn run_on(&self) -> u64 {
        self.run_on.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_run_on(&self, run_on: u64) {
        self.run_on.store(run_on, Ordering::Relaxed);
    }

    /// The length of the gap at the start of a leaf that begins at `lo`, with its part behind the leaf; 0
    /// for none.
    #[inline]
    pub(super) fn lead(&self, lo: u64) -> u64 {
        match self.values[0] {
            Some(_) => 0,
            None => self.ends[0] - lo + if self.len == 1 { self.run_on() } else { 0 },
        }
    }

    /// The gaps of a leaf that begins at `lo`; the last one includes its part behind the leaf.
    #[inline]
    pub(super) fn gaps(&self, lo: u64) -> impl DoubleEndedIterator<Item = Range<u64>> {
        (0..self.len).filter(|&slot| self.values[slot].is_none()).map(move |slot| {
            let gap = self.range(lo, slot);
            gap.start..gap.end + if slot + 1 == self.len { self.run_on() } else { 0 }
        })
    }

    /// The length of the largest of [`gaps`](Self::gaps); 0 for none.
    #[inline]
    pub(super) fn largest_gap(&self, lo: u64) -> u64 {
        self.gaps(lo).fold(0, |largest, gap| largest.max(gap.end - gap.start))
    }
}

/// The children of one inner node: all leaves, or all inner nodes.
pub(super) enum Children<V> {
    Leaves([ArcCell<Leaf<V>>; FANOUT]),
    Inners([ArcCell<Inner<V>>; FANOUT]),
}

/// A child with the data that its parent has about it.
pub(super) struct Branch<V> {
    /// Where it ends, exclusive.
    pub(super) end: u64,
    /// The largest gap that begins in it.
    pub(super) gap: u64,
    pub(super) node: Node<V>,
}

/// A shared node.
pub(super) enum Node<V> {
    Leaf(Arc<Leaf<V>>),
    Inner(Arc<Inner<V>>),
}

/// A node borrowed under a guard.
pub(super) enum NodeRef<'g, V> {
    Leaf(&'g Leaf<V>),
    Inner(&'g Inner<V>),
}

/// An inner node. The child in a slot may be replaced, but the range that the slot covers never changes.
///
/// The keys that readers search, the children that they follow, and the gaps that only writers use are each
/// on cache lines of their own: nearly every store writes gaps and a child.
#[repr(C)]
pub(super) struct Inner<V> {
    pub(super) ends: Lines<[u64; FANOUT]>,
    pub(super) children: Lines<Children<V>>,
    /// For each child, the largest gap that begins in its subtree. Only writers read and write them.
    gaps: Lines<[AtomicU64; FANOUT]>,
    pub(super) len: usize,
}

impl<V: Copy + Send + Sync + 'static> Inner<V> {
    /// A node above `branches`: at least one, at most [`FANOUT`], all leaves or all inner nodes.
    pub(super) fn of(branches: Vec<Branch<V>>) -> Self {
        let len = branches.len();
        let mut ends = [u64::MAX; FANOUT];
        let mut gaps = [0; FANOUT];
        for (slot, branch) in branches.iter().enumerate() {
            (ends[slot], gaps[slot]) = (branch.end, branch.gap);
        }
        let over_leaves = matches!(branches[0].node, Node::Leaf(_));
        let mut nodes = branches.into_iter().map(|branch| branch.node);
        let children = if over_leaves {
            Children::Leaves(array::from_fn(|_| match nodes.next() {
                Some(Node::Leaf(leaf)) => ArcCell::new(leaf),
                _ => ArcCell::empty(),
            }))
        } else {
            Children::Inners(array::from_fn(|_| match nodes.next() {
                Some(Node::Inner(inner)) => ArcCell::new(inner),
                _ => ArcCell::empty(),
            }))
        };
        Self { ends: Lines(ends), children: Lines(children), gaps: Lines(gaps.map(AtomicU64::new)), len }
    }

    /// The child that covers `key`, which must lie in this node.
    #[inline]
    pub(super) fn slot_of(&self, key: u64) -> usize {
        slot_of(&self.ends, key)
    }

    /// Where child `slot` begins, if the node itself begins at `lo`.
    #[inline]
    pub(super) fn start(&self, lo: u64, slot: usize) -> u64 {
        if slot == 0 { lo } else { self.ends[slot - 1] }
    }

    #[inline]
    pub(super) fn child<'g>(&'g self, slot: usize, guard: &'g Guard) -> NodeRef<'g, V> {
        match &*self.children {
            Children::Leaves(cells) => NodeRef::Leaf(cells[slot].load(guard).expect(FILLED)),
            Children::Inners(cells) => NodeRef::Inner(cells[slot].load(guard).expect(FILLED)),
        }
    }

    /// Handles on the children in `slots`, for another node over them.
    pub(super) fn branches(&self, slots: Range<usize>, guard: &Guard) -> impl Iterator<Item = Branch<V>> {
        slots.map(|slot| {
            let node = match &*self.children {
                Children::Leaves(cells) => Node::Leaf(cells[slot].load_arc(guard).expect(FILLED)),
                Children::Inners(cells) => Node::Inner(cells[slot].load_arc(guard).expect(FILLED)),
            };
            Branch { end: self.ends[slot], gap: self.gap(slot), node }
        })
    }

    /// Replaces the child in `slot` by another of the same kind that covers the same range: this store
    /// makes a change visible to readers. The old child goes to `retired`.
    #[inline]
    pub(super) fn replace(&self, slot: usize, node: Node<V>, retired: &mut Retired<V>, guard: &Guard) {
        match (&*self.children, node) {
            (Children::Leaves(cells), Node::Leaf(leaf)) => {
                cells[slot].store_reusing(leaf, &mut retired.leaves, guard)
            }
            (Children::Inners(cells), Node::Inner(inner)) => {
                cells[slot].store_reusing(inner, &mut retired.inners, guard)
            }
            _ => unreachable!("all children of a node are of a kind"),
        }
    }

    /// The largest gap that begins below child `slot`.
    #[inline]
    pub(super) fn gap(&self, slot: usize) -> u64 {
        self.gaps[slot].load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_gap(&self, slot: usize, gap: u64) {
        self.gaps[slot].store(gap, Ordering::Relaxed);
    }

    /// The largest gap that begins below this node.
    pub(super) fn largest_gap(&self) -> u64 {
        (0..self.len).fold(0, |largest, slot| largest.max(self.gap(slot)))
    }
}

/// The message of `expect` for children: slots below `len` are never empty.
pub(super) const FILLED: &str = "every slot in use holds a child";
