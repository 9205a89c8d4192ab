//! Splitting a value into smaller ones.

use super::node::{BITS, Held, Node, SLOTS, Tag};
use super::writer::Writer;
use elbowroom_sync::Arc;
use elbowroom_sync::epoch::Slot;

/// The parts into which a value is split.
struct Parts<T> {
    order: u32,
    /// The bitmaps in which the whole has its bit.
    tags: Vec<Tag>,
    /// The contents of the parts, in order.
    values: std::vec::IntoIter<Slot<Arc<T>>>,
}

impl<T: Send + Sync + 'static> Writer<'_, T> {
    /// Splits the value that covers `index` into values of `order`. `value` makes each of them, from its
    /// first index, in order. They get the marks of the whole, which is returned. `None`, and nothing
    /// changes, if there is no value at `index` or it is not larger. Linux: `xas_split`.
    ///
    /// Readers see it as one atomic change: lookups find the whole at all its indices, and then the parts
    /// at all of them.
    ///
    /// # Panics
    /// If `value` changes this array.
    pub fn split(&self, index: u64, order: u8, mut value: impl FnMut(u64) -> Arc<T>) -> Option<Arc<T>> {
        self.split_into(index, order, |first| Slot::Full(value(first)))
    }

    /// [`Writer::split`] into single indices, each of which gets a value, a word or nothing; a word has no
    /// marks.
    ///
    /// # Panics
    /// If `part` changes this array, or gives a word of more than 63 bits.
    pub fn split_to_slots(&self, index: u64, part: impl FnMut(u64) -> Slot<Arc<T>>) -> Option<Arc<T>> {
        self.split_into(index, 0, part)
    }

    fn split_into(&self, index: u64, order: u8, part: impl FnMut(u64) -> Slot<Arc<T>>) -> Option<Arc<T>> {
        let before = self.array().entry(index, self.guard())?;
        if before.order <= order {
            return None;
        }
        // Made before anything changes, since `part` may panic.
        let values: Vec<_> = before.indices().step_by(1 << order).map(part).collect();
        if values.iter().all(|value| matches!(value, Slot::Empty)) {
            return self.erase(index);
        }
        let mut parts = Parts { order: u32::from(order), tags: Vec::new(), values: values.into_iter() };
        let whole = self.split_below(self.root_over(index)?, index, &mut parts);
        self.publish_summary();
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

    /// Stores the parts first, then removes the whole: readers look for the whole first.
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
        // The bits at `head` were the whole's: now they must be those of the part in its place.
        match node.child(held.head, self.guard()) {
            Some(child) => node.summarize(held.head, child, &Tag::ALL),
            None if node.value_at(held.head, self.guard()).is_none() => {
                let marks = Tag::ALL.into_iter().filter(|tag| *tag != Tag::Word);
                marks.for_each(|tag| _ = node.clear(tag, 1 << held.head));
            }
            None => {}
        }
        whole
    }

    /// Fills the slots of the node, which is the one that covers `index`, with parts.
    fn fill(&self, node: &Node<T>, slots: std::ops::Range<usize>, index: u64, parts: &mut Parts<T>) {
        let order = parts.order.checked_sub(node.shift);
        for slot in slots.step_by(1 << order.unwrap_or(0)) {
            let Some(order) = order else {
                let child = Node::new(node.shift - BITS);
                self.fill(&child, 0..SLOTS, node.index_of(slot, index), parts);
                if child.is_empty() {
                    continue;
                }
                let has = Tag::ALL.map(|tag| child.tag(tag) != 0);
                self.put_child(node, slot, child);
                let tags = Tag::ALL.into_iter().zip(has).filter(|(_, has)| *has);
                tags.for_each(|(tag, _)| _ = node.set(tag, 1 << slot));
                continue;
            };
            match parts.values.next().expect("there is something for each part") {
                Slot::Full(value) => {
                    self.allocated(node.put(slot, order, value, self.guard()));
                    parts.tags.iter().for_each(|&tag| _ = node.set(tag, 1 << slot));
                }
                Slot::Word(word) => node.put_word(slot, word, self.guard()),
                Slot::Empty => {}
            }
        }
    }
}
