//! Shadows: what erased values leave behind, a `u64` for each index.
//!
//! A node that has shadows of its own has a block of them, one a slot; in a node above the leaves a shadow
//! stands for all indices of its slot, which then has no child. When such a slot gets a child, the shadow
//! moves down into all slots of the child.

use super::node::{Node, SLOTS, Tag, allocated, bits};
use super::writer::Writer;
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::{AtomicU64, Ordering};
use elbowroom_sync::epoch::Guard;
use std::array;
use std::ops::RangeBounds;

/// The shadows of one node's slots.
pub(super) struct Shadows {
    /// The slots that have one.
    slots: AtomicU64,
    values: [AtomicU64; SLOTS],
}

impl<T: Send + Sync + 'static> Node<T> {
    /// The shadow of the slot itself, not of what is below.
    pub(super) fn shadow(&self, slot: usize, guard: &Guard) -> Option<u64> {
        let shadows = self.shadows.load(guard)?;
        let held = shadows.slots.load(Ordering::Acquire) & (1 << slot) != 0;
        held.then(|| shadows.values[slot].load(Ordering::Acquire))
    }

    /// Gives the slots of `mask` the shadow; returns how many bytes were allocated for it.
    pub(super) fn set_shadows(&self, mask: u64, shadow: u64, guard: &Guard) -> u64 {
        let mut bytes = 0;
        if self.shadows.load(guard).is_none() {
            let empty = Shadows { slots: AtomicU64::new(0), values: array::from_fn(|_| AtomicU64::new(0)) };
            self.shadows.store(Some(Arc::new(empty)), guard);
            bytes = allocated::<Shadows>();
        }
        let shadows = self.shadows.load(guard).expect("the block has just been looked at");
        bits(mask).for_each(|slot| shadows.values[slot].store(shadow, Ordering::Release));
        shadows.slots.store(shadows.slots.load(Ordering::Acquire) | mask, Ordering::Release);
        self.set(Tag::Shadow, mask);
        bytes
    }

    /// Takes the slot's own shadow away, but leaves its bit alone; returns how many bytes were freed.
    fn clear_shadow(&self, slot: usize, guard: &Guard) -> u64 {
        let Some(shadows) = self.shadows.load(guard) else { return 0 };
        let left = shadows.slots.load(Ordering::Acquire) & !(1 << slot);
        shadows.slots.store(left, Ordering::Release);
        if left != 0 {
            return 0;
        }
        self.shadows.store(None, guard);
        allocated::<Shadows>()
    }
}

impl<T: Send + Sync + 'static> Writer<'_, T> {
    /// Forgets the shadows of the indices in `range`, and frees the nodes that had nothing else.
    pub fn forget_shadows(&self, range: impl RangeBounds<u64>) {
        let Some((first, last)) = super::iter::bounds(&range) else { return };
        if let Some(root) = self.root()
            && root.covers(first)
        {
            self.forget(root, first, last.min(root.last_index(0)));
        }
        self.settle();
    }

    /// Forgets the shadows from `first` to `last`, both of them indices of `node`.
    fn forget(&self, node: &Node<T>, first: u64, last: u64) {
        for slot in bits(node.tag(Tag::Shadow)) {
            let low = node.index_of(slot, first);
            let high = low | ((1 << node.shift) - 1);
            if high < first || low > last {
                continue;
            }
            if first <= low && high <= last && node.shadow(slot, self.guard()).is_some() {
                self.freed(node.clear_shadow(slot, self.guard()));
                node.clear(Tag::Shadow, 1 << slot);
            } else {
                let child = self.child_or_new(node, slot);
                self.forget(child, first.max(low), last.min(high));
                self.tidy(node, slot, child);
            }
        }
    }

    /// Moves the shadow of `slot` itself into all slots of the child that is to be put there.
    pub(super) fn move_shadow(&self, node: &Node<T>, slot: usize, child: &Node<T>) {
        if let Some(shadow) = node.shadow(slot, self.guard()) {
            let all = u64::MAX >> (u64::BITS as usize - SLOTS);
            self.allocated(child.set_shadows(all, shadow, self.guard()));
        }
    }

    /// Takes the shadows away from the slots of `mask`, which have no values, and adds them to `found`, equal
    /// neighbours once.
    pub(super) fn take_shadows(&self, node: &Node<T>, mask: u64, found: &mut Vec<u64>) {
        for slot in bits(node.tag(Tag::Shadow) & mask) {
            if let Some(shadow) = node.shadow(slot, self.guard()) {
                if found.last() != Some(&shadow) {
                    found.push(shadow);
                }
                self.freed(node.clear_shadow(slot, self.guard()));
            } else if let Some(child) = node.child(slot, self.guard()) {
                self.take_shadows(child, u64::MAX, found);
                self.remove_child(node, slot);
            }
        }
        node.clear(Tag::Shadow, mask);
    }

    /// Takes the slot's own shadow away, after it was moved.
    pub(super) fn drop_shadow(&self, node: &Node<T>, slot: usize) {
        self.freed(node.clear_shadow(slot, self.guard()));
    }
}
