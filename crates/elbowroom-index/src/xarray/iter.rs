//! Walks over a range of indices.

use super::XArray;
use super::node::{Held, Node, Tag, value_of};
use elbowroom_sync::Arc;
use elbowroom_sync::epoch::{Guard, Slot, SlotCell};
use std::ops::{Bound, RangeBounds, RangeInclusive};

/// A value with the indices that it covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<V> {
    /// The first index of the value.
    pub index: u64,
    /// log2 of how many indices the value covers.
    pub order: u8,
    /// The value.
    pub value: V,
}

impl<V> Entry<V> {
    /// The entry of `held`, which covers `index`.
    pub(super) fn new<T>(node: &Node<T>, held: Held<'_, T, V>, index: u64) -> Self {
        let order = node.shift + held.order;
        Self { index: index >> order << order, order: order as u8, value: held.value }
    }

    /// The last index of the value.
    pub fn last(&self) -> u64 {
        self.index | ((1 << self.order) - 1)
    }

    /// The indices of the value.
    pub fn indices(&self) -> RangeInclusive<u64> {
        self.index..=self.last()
    }
}

/// The first and the last index of `range`, unless it is empty.
pub(super) fn bounds(range: &impl RangeBounds<u64>) -> Option<(u64, u64)> {
    let first = match range.start_bound() {
        Bound::Included(&first) => first,
        Bound::Excluded(&before) => before.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let last = match range.end_bound() {
        Bound::Included(&last) => last,
        Bound::Excluded(&end) => end.checked_sub(1)?,
        Bound::Unbounded => u64::MAX,
    };
    (first <= last).then_some((first, last))
}

/// A function that loads a value from a cell.
type Get<'g, T, V> = fn(&'g SlotCell<T>, &'g Guard) -> Option<V>;

/// The values of a range, in order. Each step finds the next value at that time: if a value changes during
/// the walk, the walk may see the old or the new one; a value that does not change is found exactly once.
///
/// A walk by mark may also find a value without the mark, if it was stored during the step in the place of
/// one that had it.
pub struct Iter<'g, T, V = &'g T> {
    array: &'g XArray<T>,
    guard: &'g Guard,
    tag: Tag,
    get: Get<'g, T, V>,
    /// The first and the last index that are still to be visited.
    rest: Option<(u64, u64)>,
    /// The leaf of the last value, with the leaf's first index. It may be used even if it has left the
    /// tree, since it was empty then.
    leaf: Option<(&'g Node<T>, u64)>,
}

impl<'g, T: Send + Sync + 'static> Iter<'g, T> {
    pub(super) fn new(
        array: &'g XArray<T>,
        range: impl RangeBounds<u64>,
        tag: Tag,
        guard: &'g Guard,
    ) -> Self {
        Self { array, guard, tag, get: value_of, rest: bounds(&range), leaf: None }
    }

    /// The same walk, with values that are valid without the guard.
    pub fn arcs(self) -> Iter<'g, T, Arc<T>> {
        let Self { array, guard, tag, rest, leaf, .. } = self;
        Iter { array, guard, tag, get: |cell, guard| cell.load_arc(guard), rest, leaf }
    }
}

impl<'g, T: Send + Sync + 'static, V> Iter<'g, T, V> {
    /// The next value in the same leaf as the last one; if there is none, sets `rest` to the indices behind
    /// that leaf.
    fn next_in_leaf(&mut self) -> Option<(&'g Node<T>, Entry<V>)> {
        let (leaf, first) = self.leaf.take()?;
        let (from, last) = self.rest?;
        if leaf.index_of(0, from) != first {
            return None;
        }
        let leaf_last = leaf.last_index(first);
        let found = self.seek(leaf, from, last.min(leaf_last));
        if found.is_none() {
            self.rest = (leaf_last < last).then(|| (leaf_last + 1, last));
        }
        found
    }

    fn next_from_root(&self) -> Option<(&'g Node<T>, Entry<V>)> {
        let (from, last) = self.rest?;
        self.seek(self.array.root_over(from, self.guard)?, from, last)
    }

    /// The first value in the subtree of `node` that covers an index between `from`, which is one of the
    /// node's, and `last`; and the node it is in.
    fn seek(&self, node: &'g Node<T>, from: u64, last: u64) -> Option<(&'g Node<T>, Entry<V>)> {
        let mut slot = node.slot_of(from);
        let mut at = from;
        // Each turn advances by at least one slot.
        loop {
            let mut passed = slot;
            if let Some((held, tagged)) = node.get_tagged(slot, self.tag, self.guard, self.get) {
                if tagged {
                    return Some((node, Entry::new(node, held, at)));
                }
                passed = held.head + (1 << held.order) - 1;
            } else if let Some(child) = node.child(slot, self.guard)
                && let Some(found) = self.seek(child, at, last)
            {
                return Some(found);
            }
            let ahead = node.tag(self.tag) & (u64::MAX << passed << 1);
            if ahead == 0 {
                return None;
            }
            slot = ahead.trailing_zeros() as usize;
            at = node.index_of(slot, from);
            if at > last {
                return None;
            }
        }
    }
}

impl<T: Send + Sync + 'static, V> Iterator for Iter<'_, T, V> {
    type Item = Entry<V>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.next_in_leaf().or_else(|| self.next_from_root());
        let (_, last) = self.rest.take()?;
        let (node, entry) = found?;
        self.rest = (entry.last() < last).then(|| (entry.last() + 1, last));
        self.leaf = (node.shift == 0).then(|| (node, node.index_of(0, entry.index)));
        Some(entry)
    }
}

/// The words of a range, in order, with their indices. If an index changes during the walk, the walk may
/// see the old or the new content.
pub struct Words<'g, T> {
    array: &'g XArray<T>,
    guard: &'g Guard,
    rest: Option<(u64, u64)>,
}

impl<'g, T: Send + Sync + 'static> Words<'g, T> {
    pub(super) fn new(array: &'g XArray<T>, range: impl RangeBounds<u64>, guard: &'g Guard) -> Self {
        Self { array, guard, rest: bounds(&range) }
    }

    /// The first word in `node` at an index between `from`, which is one of the node's, and `last`.
    fn seek(&self, node: &Node<T>, from: u64, last: u64) -> Option<(u64, u64)> {
        let mut ahead = node.tag(Tag::Word) & (u64::MAX << node.slot_of(from));
        while ahead != 0 {
            let slot = ahead.trailing_zeros() as usize;
            ahead &= ahead - 1;
            let at = node.index_of(slot, from).max(from);
            if at > last {
                return None;
            }
            let found = match (node.single_cell(slot), node.child(slot, self.guard)) {
                (Some(cell), _) => match cell.load(self.guard) {
                    Slot::Word(word) => Some((at, word)),
                    _ => None,
                },
                (None, Some(child)) => self.seek(child, at, last),
                (None, None) => None,
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

impl<T: Send + Sync + 'static> Iterator for Words<'_, T> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let (from, last) = self.rest.take()?;
        let found = self.seek(self.array.root_over(from, self.guard)?, from, last)?;
        self.rest = (found.0 < last).then(|| (found.0 + 1, last));
        Some(found)
    }
}
