//! Stores that change more than one leaf, or the number of leaves.
//!
//! ```text
//!            X              the lowest node over both ends of the range
//!      a   L    m   R   z       L and R lie on the way to its first and its last leaf
//! ```
//! The nodes between L and R are dropped. The contents of the two outer leaves, and on each level the nodes
//! before L's and behind R's, are distributed over new nodes, up to X. If there are too few items on a
//! level, those of a neighbour are included. If the result is a single child of X, one slot of X is
//! replaced; otherwise X is made anew, too, and so on upwards. Nothing that readers can reach changes
//! before this one replacement.

use super::RangeMap;
use super::build::{Fill, grow_root, inners, leaves};
use super::node::{Branch, FANOUT, Inner, LEAF, Node, NodeRef, least, target};
use super::writer::{Path, Retired, Writer};
use elbowroom_sync::Arc;
use elbowroom_sync::epoch::Guard;
use std::ops::Range;
use std::ptr;

/// The children that are replaced on a level: from child `first` of the left path's node to child `last` of
/// the right path's node.
#[derive(Clone, Copy)]
struct Span {
    first: usize,
    last: usize,
}

impl<V: Copy + Send + Sync + 'static> Writer<V> {
    /// Stores `value` in `range`, over any number of leaves: the general form of the store.
    #[cold]
    pub(super) fn store_across(&mut self, range: Range<u64>, value: Option<V>, guard: &Guard) {
        let Self { map, retired } = self;
        let removed = map.overlapping(range.clone(), guard).count();
        let cut = |key: u64| map.get(key, guard).is_some_and(|(at, _)| at.start < key && key < at.end);
        let cut_inside = usize::from(cut(range.start)) + usize::from(cut(range.end));
        let left = Path::to(map, range.start, guard);
        let right = Path::to(map, range.end - 1, guard);
        let outer = Outer { left: &left, right: &right, guard };
        let (lo, span, branches) = outer.rewrite(&range, value, |key| map.lead_at(key, guard));
        outer.switch(map, retired, span, branches);
        map.run_on_to(lo, map.lead_at(lo, guard), guard);
        map.add_len(cut_inside + usize::from(value.is_some()), removed);
    }
}

/// The paths from the root to the first and to the last leaf of a range.
#[derive(Clone, Copy)]
struct Outer<'p, 'g, V> {
    left: &'p Path<'g, V>,
    right: &'p Path<'g, V>,
    guard: &'g Guard,
}

impl<V: Copy + Send + Sync + 'static> Outer<'_, '_, V> {
    /// Replaces the leaves in `span` by `branches`, level by level, up to the level on which the
    /// replacement of one child is enough.
    fn switch(
        self,
        map: &RangeMap<V>,
        retired: &mut Retired<V>,
        mut span: Span,
        mut branches: Vec<Branch<V>>,
    ) {
        let Self { left, right, guard } = self;
        for depth in (0..left.height).rev() {
            let ((x, _), (y, _)) = (left.step(depth), right.step(depth));
            if ptr::eq(x, y) && span.first == span.last && branches.len() == 1 {
                let branch = branches.remove(0);
                // No neighbour was included here: this is the child that both paths go through.
                x.replace(span.first, branch.node, retired, guard);
                return left.set_gap(depth, branch.gap);
            }
            let mut list: Vec<_> = x.branches(0..span.first, guard).collect();
            list.append(&mut branches);
            list.extend(y.branches(span.last + 1..y.len, guard));
            if depth == 0 {
                let root = root_over(list, guard);
                return map.0.root.store_reusing(root, &mut retired.inners, guard);
            }
            span = Span { first: left.step(depth - 1).1, last: right.step(depth - 1).1 };
            let enough = widen(&mut list, &mut span, left.step(depth - 1).0, right.step(depth - 1).0, guard);
            branches = inners(list, enough);
        }
    }

    /// Makes the new leaves: with the entries that the two outer leaves keep, and the new entry. Returns
    /// where they begin, and which leaves they replace. `lead_at` tells the length of the gap at the start
    /// of a leaf.
    fn rewrite(
        &self,
        range: &Range<u64>,
        value: Option<V>,
        lead_at: impl Fn(u64) -> u64,
    ) -> (u64, Span, Vec<Branch<V>>) {
        let (left, right) = (&self.left.found, &self.right.found);
        let slot = left.leaf.slot_of(range.start);
        let before = left.leaf.entries().take(slot);
        let cut = (range.start > left.leaf.range(left.lo, slot).start)
            .then_some((range.start, left.leaf.values[slot]));
        let behind = right.leaf.entries().filter(|&(end, _)| end > range.end);
        let kept = slot + usize::from(cut.is_some());
        let mut entries: Vec<_> = before.chain(cut).chain([(range.end, value)]).chain(behind).collect();
        let fill = match entries.len() - kept {
            ..=2 => Fill::Lower,
            _ if kept < 2 => Fill::Upper,
            _ => Fill::Even,
        };
        let (lo, span, enough) = self.take_in_neighbour(&mut entries);
        // After the cut, or across the border of two leaves, two gaps may touch: they become one.
        entries.dedup_by(|behind, before| {
            let one = before.1.is_none() && behind.1.is_none();
            before.0 = if one { behind.0 } else { before.0 };
            one
        });
        let run_on = lead_at(entries.last().map_or(u64::MAX, |entry| entry.0));
        (lo, span, leaves(lo, &entries, run_on, fill, enough))
    }

    /// Adds the entries of a neighbouring leaf if `entries` are too few. Returns where the entries begin
    /// then, which leaves they come from, and how many of them one leaf may hold.
    fn take_in_neighbour(&self, entries: &mut Vec<(u64, Option<V>)>) -> (u64, Span, usize) {
        let bottom = self.left.height - 1;
        let ((x, first), (y, last)) = (self.left.step(bottom), self.right.step(bottom));
        let lo = self.left.found.lo;
        if entries.len() >= least(LEAF) {
            return (lo, Span { first, last }, LEAF);
        }
        if first > 0
            && let NodeRef::Leaf(leaf) = x.child(first - 1, self.guard)
        {
            entries.splice(0..0, leaf.entries());
            return (self.left.start_of(bottom, first - 1), Span { first: first - 1, last }, target(LEAF));
        }
        if last + 1 < y.len
            && let NodeRef::Leaf(leaf) = y.child(last + 1, self.guard)
        {
            entries.extend(leaf.entries());
            return (lo, Span { first, last: last + 1 }, target(LEAF));
        }
        (lo, Span { first, last }, LEAF)
    }
}

/// Adds the children of a neighbouring node to `list` if that is too short, and returns how many of them
/// one node may hold.
fn widen<V: Copy + Send + Sync + 'static>(
    list: &mut Vec<Branch<V>>,
    span: &mut Span,
    x: &Inner<V>,
    y: &Inner<V>,
    guard: &Guard,
) -> usize {
    if list.len() >= least(FANOUT) {
        return FANOUT;
    }
    if span.first > 0
        && let NodeRef::Inner(before) = x.child(span.first - 1, guard)
    {
        span.first -= 1;
        list.splice(0..0, before.branches(0..before.len, guard));
    } else if span.last + 1 < y.len
        && let NodeRef::Inner(behind) = y.child(span.last + 1, guard)
    {
        span.last += 1;
        list.extend(behind.branches(0..behind.len, guard));
    }
    target(FANOUT)
}

/// A root over `list`, with as few levels as possible.
fn root_over<V: Copy + Send + Sync + 'static>(mut list: Vec<Branch<V>>, guard: &Guard) -> Arc<Inner<V>> {
    while let [Branch { node: Node::Inner(only), .. }] = list.as_slice() {
        if only.len > 1 || matches!(only.child(0, guard), NodeRef::Leaf(_)) {
            return only.clone();
        }
        list = only.branches(0..1, guard).collect();
    }
    grow_root(list)
}
