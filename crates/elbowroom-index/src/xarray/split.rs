//! Splitting a value into smaller ones.

use super::node::{BITS, Held, Node, SLOTS, Tag};
use super::writer::Writer;
use elbowroom_sync::Arc;

/// What a value is split into.
struct Parts<T> {
    order: u32,
    /// The bitmaps that the whole has its bit in.
    tags: Vec<Tag>,
    /// The values, in order.
    values: std::vec::IntoIter<Arc<T>>,
}

impl<T: Send + Sync + 'static> Writer<'_, T> {
    /// Splits the value that covers `index` into values of `order`, made by `value` from the first index of
    /// each, in order; they get the marks of the whole, which is returned. `None`, and nothing changes, if
    /// there is no value at `index` or it is not larger. Linux: `xas_split`.
    ///
    /// For a reader it happens at one moment: a lookup finds the whole, until at all its indices it finds the
    /// parts.
    ///
    /// # Panics
    /// If `value` changes this array.
    pub fn split(&self, index: u64, order: u8, value: impl FnMut(u64) -> Arc<T>) -> Option<Arc<T>> {
        let before = self.array().entry(index, self.guard())?;
        if before.order <= order {
            return None;
        }
        // Before anything changes: `value` may panic.
        let values: Vec<_> = before.indices().step_by(1 << order).map(value).collect();
        let mut parts = Parts { order: u32::from(order), tags: Vec::new(), values: values.into_iter() };
        let whole = self.split_below(self.root_over(index)?, index, &mut parts);
        assert_eq!(parts.values.len(), 0, "an xarray was changed while a value of it was split");
        whole
    }

    fn split_below(&self, node: &Node<T>, index: u64, parts: &mut Parts<T>) -> Option<Arc<T>> {
        let slot = node.slot_of(index);
        if let Some(held) = node.value_at(slot, self.guard()) {
            return self.split_here(node, &held, index, parts);
        }
        let child = node.child(slot, self.guard())?;
        let whole = self.split_below(child, index, parts)?;
        node.summarize(slot, child, &Tag::ALL);
        Some(whole)
    }

    /// The parts first, then the whole away: readers look for the whole first.
    fn split_here(
        &self,
        node: &Node<T>,
        held: &Held<'_, T, &T>,
        index: u64,
        parts: &mut Parts<T>,
    ) -> Option<Arc<T>> {
        let whole = held.cell.load_arc(self.guard());
        parts.tags = Tag::ALL.into_iter().filter(|&tag| node.tag(tag) & (1 << held.head) != 0).collect();
        self.fill(node, held.head..held.head + (1 << held.order), index, parts);
        self.freed(node.take(held, self.guard()));
        whole
    }

    /// Fills the slots, whose indices are of the node that has `index`, with parts.
    fn fill(&self, node: &Node<T>, slots: std::ops::Range<usize>, index: u64, parts: &mut Parts<T>) {
        let order = parts.order.checked_sub(node.shift);
        for slot in slots.step_by(1 << order.unwrap_or(0)) {
            let first = node.index_of(slot, index);
            if let Some(order) = order {
                let value = parts.values.next().expect("there is a value for each part");
                self.allocated(node.put(slot, order, value, self.guard()));
            } else {
                let child = Node::new(node.shift - BITS);
                self.fill(&child, 0..SLOTS, first, parts);
                self.put_child(node, slot, child);
            }
            for &tag in &parts.tags {
                node.set(tag, 1 << slot);
            }
        }
    }
}
