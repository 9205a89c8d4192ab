//! The writer: store, erase, replace, marks. It makes the tree higher or lower as its contents require.

use super::node::{BITS, Node, Tag, allocated, span, value_of};
use super::{MAX_ORDER, Mark, XArray};
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::epoch::{Guard, Slot, pin};

/// The right to change an [`XArray`]; there is one at a time. Readers may run at the same time.
///
/// Holds an epoch pinned: do not wait or sleep while it lives.
pub struct Writer<'a, T: Send + Sync + 'static> {
    array: &'a XArray<T>,
    guard: Guard,
}

/// Some of the indices have a value already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occupied;

/// The arguments of a store.
struct New<T> {
    index: u64,
    order: u32,
    value: Arc<T>,
}

impl<'a, T: Send + Sync + 'static> Writer<'a, T> {
    pub(super) fn new(array: &'a XArray<T>) -> Self {
        let busy = array.upkeep.writing.swap(true, Ordering::Acquire);
        assert!(!busy, "an xarray has two writers: the cache lock is not held");
        Self { array, guard: pin() }
    }

    /// The writer's own guard, for lookups.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Stores `value` at the 2^`order` indices from `index`. Linux: `__filemap_add_folio`.
    ///
    /// # Errors
    /// [`Occupied`] if there is a value or a word at any of them; then nothing changes.
    ///
    /// # Panics
    /// If `order` is larger than [`MAX_ORDER`], or `index` is no multiple of 2^`order`.
    pub fn store(&self, index: u64, order: u8, value: Arc<T>) -> Result<(), Occupied> {
        assert!(order <= MAX_ORDER && index.trailing_zeros() >= u32::from(order), "{index}, order {order}");
        let new = New { index, order: u32::from(order), value };
        let stored = self.insert(self.grow(index, new.order), new);
        self.settle();
        stored
    }

    fn insert(&self, node: &Node<T>, new: New<T>) -> Result<(), Occupied> {
        let slot = node.slot_of(new.index);
        if node.value_at(slot, &self.guard).is_some() {
            return Err(Occupied);
        }
        let Some(order) = new.order.checked_sub(node.shift) else {
            // If the child is new, it is empty, and nothing below can fail.
            let child = self.child_or_new(node, slot);
            self.insert(child, new)?;
            node.summarize(slot, child, &[Tag::Present]);
            return Ok(());
        };
        let slots = span(slot, order);
        if node.used() & slots != 0 {
            return Err(Occupied);
        }
        self.allocated(node.put(slot, order, new.value, &self.guard));
        Ok(())
    }

    /// Removes the value that covers `index`, with its marks. Linux: `page_cache_delete`.
    pub fn erase(&self, index: u64) -> Option<Arc<T>> {
        let value = self.remove(self.root_over(index)?, index);
        self.settle();
        value
    }

    fn remove(&self, node: &Node<T>, index: u64) -> Option<Arc<T>> {
        let slot = node.slot_of(index);
        if let Some(held) = node.value_at(slot, &self.guard) {
            let value = held.cell.load_arc(&self.guard);
            self.freed(node.take(&held, &self.guard));
            for tag in Tag::ALL {
                node.clear(tag, 1 << held.head);
            }
            return value;
        }
        let child = node.child(slot, &self.guard)?;
        let value = self.remove(child, index)?;
        self.tidy(node, slot, child);
        Some(value)
    }

    /// Replaces the value that covers `index` by `value`, and returns the old one; the marks stay. Linux:
    /// `replace_page_cache_folio`.
    ///
    /// # Errors
    /// `value` itself, if there is nothing to replace.
    pub fn replace(&self, index: u64, value: Arc<T>) -> Result<Arc<T>, Arc<T>> {
        let Some((_, held)) = self.array.held(index, &self.guard, value_of) else { return Err(value) };
        match held.cell.swap(Slot::Full(value), &self.guard) {
            Slot::Full(old) => Ok(old),
            _ => unreachable!("only the writer empties a cell"),
        }
    }

    /// Replaces the content of a single index (a value of order 0, a word or nothing) by `new`, and returns
    /// the old content; a reader finds either. A value's marks stay if another value takes its place.
    /// Linux: `__xa_store`, `__xa_cmpxchg` under the lock.
    ///
    /// # Errors
    /// [`Occupied`] if a value of a larger order covers the index; then nothing changes.
    ///
    /// # Panics
    /// If `new` is a word of more than 63 bits.
    pub fn exchange(&self, index: u64, new: Slot<Arc<T>>) -> Result<Slot<Arc<T>>, Occupied> {
        let root = match new {
            Slot::Empty => match self.root_over(index) {
                Some(root) => root,
                None => return Ok(Slot::Empty),
            },
            _ => self.grow(index, 0),
        };
        let old = self.exchange_below(root, index, new);
        self.settle();
        old
    }

    fn exchange_below(
        &self,
        node: &Node<T>,
        index: u64,
        new: Slot<Arc<T>>,
    ) -> Result<Slot<Arc<T>>, Occupied> {
        let slot = node.slot_of(index);
        let held = node.value_at(slot, &self.guard);
        if held.is_some_and(|held| node.shift + held.order > 0) {
            return Err(Occupied);
        }
        if node.shift == 0 {
            return Ok(node.exchange(slot, new, &self.guard));
        }
        let child = match node.child(slot, &self.guard) {
            None if matches!(new, Slot::Empty) => return Ok(Slot::Empty),
            _ => self.child_or_new(node, slot),
        };
        let old = self.exchange_below(child, index, new);
        self.tidy(node, slot, child);
        old
    }

    /// Sets the mark of the value that covers `index`; returns whether there is such a value, and it did
    /// not have the mark. Linux: `xa_set_mark`.
    pub fn set_mark(&self, index: u64, mark: Mark) -> bool {
        self.mark(index, mark, |node, tag, bit| node.set(tag, bit))
    }

    /// Clears the mark of the value that covers `index`; returns whether there is such a value, and it had
    /// the mark. Linux: `xa_clear_mark`.
    pub fn clear_mark(&self, index: u64, mark: Mark) -> bool {
        self.mark(index, mark, |node, tag, bit| node.clear(tag, bit))
    }

    fn mark(&self, index: u64, mark: Mark, change: fn(&Node<T>, Tag, u64) -> bool) -> bool {
        let tag = mark.into();
        let changed = self.root_over(index).is_some_and(|root| self.mark_below(root, index, tag, change));
        if changed {
            self.publish_summary();
        }
        changed
    }

    fn mark_below(
        &self,
        node: &Node<T>,
        index: u64,
        tag: Tag,
        change: fn(&Node<T>, Tag, u64) -> bool,
    ) -> bool {
        let slot = node.slot_of(index);
        if let Some(held) = node.value_at(slot, &self.guard) {
            return change(node, tag, 1 << held.head);
        }
        let Some(child) = node.child(slot, &self.guard) else { return false };
        let changed = self.mark_below(child, index, tag, change);
        if changed {
            node.summarize(slot, child, &[tag]);
        }
        changed
    }

    pub(super) fn array(&self) -> &XArray<T> {
        self.array
    }

    fn root(&self) -> Option<&Node<T>> {
        self.array.top.root.load(&self.guard)
    }

    pub(super) fn root_over(&self, index: u64) -> Option<&Node<T>> {
        self.array.root_over(index, &self.guard)
    }

    /// Makes the tree high enough for a value of `order` at `index`; returns the root.
    fn grow(&self, index: u64, order: u32) -> &Node<T> {
        let lowest = u64::BITS - index.leading_zeros();
        let shift = lowest.saturating_sub(1).max(order) / BITS * BITS;
        let mut root = self.root().unwrap_or_else(|| {
            self.set_root(Node::new(shift));
            self.root().expect("it has just been stored")
        });
        while root.shift < shift {
            let higher = Node::new(root.shift + BITS);
            if let Some(cell) = higher.child_cell(0) {
                cell.store(self.array.top.root.load_arc(&self.guard), &self.guard);
            }
            higher.summarize(0, root, &Tag::ALL);
            self.set_root(higher);
            root = self.root().expect("it has just been stored");
        }
        root
    }

    fn set_root(&self, root: Node<T>) {
        self.array.top.root.store(Some(Arc::new(root)), &self.guard);
        self.allocated(allocated::<Node<T>>());
    }

    /// Ends a change: makes the tree as low as possible, and publishes the summary of its tags.
    ///
    /// A root that is removed keeps its child, so that readers that are in the root still find all values.
    fn settle(&self) {
        while let Some(root) = self.root() {
            let heir = match root.used() {
                0 => None,
                1 => match root.child_cell(0).and_then(|cell| cell.load_arc(&self.guard)) {
                    None => break,
                    heir => heir,
                },
                _ => break,
            };
            self.array.top.root.store(heir, &self.guard);
            self.freed(allocated::<Node<T>>());
        }
        self.publish_summary();
    }

    pub(super) fn publish_summary(&self) {
        let has = |tag: &&Tag| self.root().is_some_and(|root| root.tag(**tag) != 0);
        let summary = Tag::ALL.iter().filter(has).fold(0, |word, &tag| word | 1 << tag as u32);
        // Stored only if it changes, so that the cache line stays in the readers' caches.
        if self.array.top.summary.load(Ordering::Relaxed) != summary {
            self.array.top.summary.store(summary, Ordering::Release);
        }
    }

    /// The child of `slot`, in which there is no value; makes the child if there is none.
    fn child_or_new<'g>(&'g self, node: &'g Node<T>, slot: usize) -> &'g Node<T> {
        if let Some(child) = node.child(slot, &self.guard) {
            return child;
        }
        self.put_child(node, slot, Node::new(node.shift - BITS));
        node.child(slot, &self.guard).expect("it has just been stored")
    }

    pub(super) fn put_child(&self, node: &Node<T>, slot: usize, child: Node<T>) {
        let cell = node.child_cell(slot).expect("a value smaller than a slot is in a child");
        cell.store(Some(Arc::new(child)), &self.guard);
        self.allocated(allocated::<Node<T>>());
    }

    /// After a change below `slot`: updates the slot's bits, and removes a child that has become empty.
    fn tidy(&self, node: &Node<T>, slot: usize, child: &Node<T>) {
        node.summarize(slot, child, &Tag::ALL);
        if child.is_empty()
            && let Some(cell) = node.child_cell(slot)
        {
            cell.store(None, &self.guard);
            self.freed(allocated::<Node<T>>());
        }
    }

    pub(super) fn allocated(&self, bytes: u64) {
        let total = &self.array.upkeep.bytes;
        total.store(total.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    pub(super) fn freed(&self, bytes: u64) {
        let total = &self.array.upkeep.bytes;
        total.store(total.load(Ordering::Relaxed) - bytes, Ordering::Relaxed);
    }
}

impl<T: Send + Sync + 'static> Drop for Writer<'_, T> {
    fn drop(&mut self) {
        self.array.upkeep.writing.store(false, Ordering::Release);
    }
}
