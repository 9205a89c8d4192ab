//! Nodes: slots, cells of larger orders, and bitmaps.
//!
//! The one writer changes them while any number of threads read. Readers rely on the order of the writer's
//! stores, as each function describes it: all stores are releases, and all loads by readers are acquires.

use super::Mark;
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::{AtomicU64, Ordering};
use elbowroom_sync::epoch::{ArcCell, Guard, Slot, SlotCell};
use std::array;

/// Bits of the index for each level. Fewer under a model checker, which has to track every slot.
pub(super) const BITS: u32 = if cfg!(any(loom, shuttle)) { 2 } else { 6 };
pub(super) const SLOTS: usize = 1 << BITS;

/// The bits that each relative order has in a node's word of counts.
const COUNT_BITS: u32 = 8;

/// The bitmaps of a node. A slot's bit tells that the value that begins there, or anything below the slot,
/// has this property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    /// There is a value.
    Present,
    /// There is a word, which only single indices have.
    Word,
    Dirty,
    ToWrite,
    Writeback,
}

impl Tag {
    pub(super) const ALL: [Tag; 5] = [Tag::Present, Tag::Word, Tag::Dirty, Tag::ToWrite, Tag::Writeback];
}

impl From<Mark> for Tag {
    fn from(mark: Mark) -> Self {
        match mark {
            Mark::Dirty => Tag::Dirty,
            Mark::ToWrite => Tag::ToWrite,
            Mark::Writeback => Tag::Writeback,
        }
    }
}

/// Cells for the values of relative order 0, or of all larger ones: see `Node::cell`.
pub(super) type Block<T> = [SlotCell<T>; SLOTS];

/// The value of a cell.
#[inline]
pub(super) fn value_of<'g, T: Send + Sync + 'static>(
    cell: &'g SlotCell<T>,
    guard: &'g Guard,
) -> Option<&'g T> {
    if let Slot::Full(value) = cell.load(guard) { Some(value) } else { None }
}

/// The fields that a lookup needs are side by side, most of them in one cache line.
#[repr(C)]
pub(super) struct Node<T> {
    tags: [AtomicU64; Tag::ALL.len()],
    /// The values of relative orders from 1 on.
    wide: ArcCell<Block<T>>,
    /// How many values of each relative order (their order minus `shift`) there are.
    counts: AtomicU64,
    /// log2 of the indices that a slot covers.
    pub(super) shift: u32,
    slots: Slots<T>,
}

enum Slots<T> {
    /// Values of order 0.
    Leaf(Block<T>),
    /// Nodes of the level below, and values of relative order 0.
    Inner { children: [ArcCell<Node<T>>; SLOTS], values: ArcCell<Block<T>> },
}

/// A value that a lookup has found; `V` is a reference or an `Arc`.
pub(super) struct Held<'g, T, V> {
    /// The value's first slot.
    pub(super) head: usize,
    /// The value's relative order: log2 of the number of its slots.
    pub(super) order: u32,
    pub(super) cell: &'g SlotCell<T>,
    pub(super) value: V,
}

/// The bits of the 2^`order` slots from `head`.
pub(super) fn span(head: usize, order: u32) -> u64 {
    u64::MAX >> (u64::BITS - (1 << order)) << head
}

impl<T: Send + Sync + 'static> Node<T> {
    /// An empty node whose slots cover 2^`shift` indices each.
    pub(super) fn new(shift: u32) -> Self {
        let slots = if shift == 0 {
            Slots::Leaf(cells())
        } else {
            Slots::Inner { children: cells(), values: ArcCell::empty() }
        };
        Self {
            shift,
            counts: AtomicU64::new(0),
            tags: array::from_fn(|_| AtomicU64::new(0)),
            wide: ArcCell::empty(),
            slots,
        }
    }

    /// Whether the tree is high enough for `index` if this is its root.
    #[inline]
    pub(super) fn covers(&self, index: u64) -> bool {
        index >> self.shift < SLOTS as u64
    }

    #[inline]
    pub(super) fn slot_of(&self, index: u64) -> usize {
        (index >> self.shift) as usize & (SLOTS - 1)
    }

    /// The first index of `slot` in the node that has `index`.
    pub(super) fn index_of(&self, slot: usize, index: u64) -> u64 {
        let high = (index >> self.shift) & !(SLOTS as u64 - 1);
        (high | slot as u64) << self.shift
    }

    /// The last index of the node that has `index`.
    pub(super) fn last_index(&self, index: u64) -> u64 {
        let unused = u64::BITS.saturating_sub(self.shift + BITS);
        index | (u64::MAX >> unused)
    }

    #[inline]
    pub(super) fn tag(&self, tag: Tag) -> u64 {
        self.tags[tag as usize].load(Ordering::Acquire)
    }

    /// Sets the bits of `mask` in the bitmap; tells whether that changed it.
    pub(super) fn set(&self, tag: Tag, mask: u64) -> bool {
        self.update(tag, self.tag(tag) | mask)
    }

    /// Clears the bits of `mask` in the bitmap; tells whether that changed it.
    pub(super) fn clear(&self, tag: Tag, mask: u64) -> bool {
        self.update(tag, self.tag(tag) & !mask)
    }

    fn update(&self, tag: Tag, word: u64) -> bool {
        let changed = self.tag(tag) != word;
        if changed {
            self.tags[tag as usize].store(word, Ordering::Release);
        }
        changed
    }

    /// The slots that have values or words, themselves or below.
    pub(super) fn used(&self) -> u64 {
        self.tag(Tag::Present) | self.tag(Tag::Word)
    }

    /// Whether it has neither values nor words.
    pub(super) fn is_empty(&self) -> bool {
        self.used() == 0
    }

    #[inline]
    pub(super) fn child<'g>(&'g self, slot: usize, guard: &'g Guard) -> Option<&'g Node<T>> {
        self.child_cell(slot)?.load(guard)
    }

    /// The cell of the child of `slot`; a leaf has none.
    #[inline]
    pub(super) fn child_cell(&self, slot: usize) -> Option<&ArcCell<Node<T>>> {
        match &self.slots {
            Slots::Leaf(_) => None,
            Slots::Inner { children, .. } => Some(&children[slot]),
        }
    }

    /// Whether the node has values, not counting those of order 0 in a leaf.
    #[inline]
    pub(super) fn has_wide(&self) -> bool {
        let singles = if self.shift == 0 { COUNT_BITS } else { 0 };
        self.counts.load(Ordering::Acquire) >> singles != 0
    }

    /// A leaf's value of order 0.
    #[inline]
    pub(super) fn single<'g>(&'g self, slot: usize, guard: &'g Guard) -> Option<&'g T> {
        match &self.slots {
            Slots::Leaf(values) => value_of(&values[slot], guard),
            Slots::Inner { .. } => None,
        }
    }

    /// A leaf's cell of order 0.
    pub(super) fn single_cell(&self, slot: usize) -> Option<&SlotCell<T>> {
        match &self.slots {
            Slots::Leaf(values) => Some(&values[slot]),
            Slots::Inner { .. } => None,
        }
    }

    /// Puts `new` into a leaf's cell of order 0, and returns the cell's old content. The marks stay if both
    /// are values.
    pub(super) fn exchange(&self, slot: usize, new: Slot<Arc<T>>, guard: &Guard) -> Slot<Arc<T>> {
        let cell = self.single_cell(slot).expect("words and single values are in leaves");
        let (full, word) = (matches!(new, Slot::Full(_)), matches!(new, Slot::Word(_)));
        let was_full = self.tag(Tag::Present) & (1 << slot) != 0;
        if full && !was_full {
            // As in `put`: a value is counted before it is in the tree.
            self.count(0, 1);
        }
        let old = cell.swap(new, guard);
        if was_full && !full {
            self.count(0, -1);
            for tag in Tag::ALL {
                self.clear(tag, 1 << slot);
            }
        }
        if full {
            self.set(Tag::Present, 1 << slot);
        }
        if word {
            self.set(Tag::Word, 1 << slot);
        } else {
            self.clear(Tag::Word, 1 << slot);
        }
        old
    }

    /// Puts a word into a leaf's free cell. The slot's other bits may be those of a value that covers it.
    pub(super) fn put_word(&self, slot: usize, word: u64, guard: &Guard) {
        let cell = self.single_cell(slot).expect("words are in leaves");
        cell.swap(Slot::Word(word), guard);
        self.set(Tag::Word, 1 << slot);
    }

    /// The value of this node that covers `slot`.
    pub(super) fn value_at<'g>(&'g self, slot: usize, guard: &'g Guard) -> Option<Held<'g, T, &'g T>> {
        self.get_at(slot, guard, value_of)
    }

    /// As [`Node::value_at`], with `get` to look into a cell.
    ///
    /// The counts are loaded again after each order: a reader that finds the whole gone must see the parts
    /// that replaced it.
    #[inline]
    pub(super) fn get_at<'g, V>(
        &'g self,
        slot: usize,
        guard: &'g Guard,
        get: impl Fn(&'g SlotCell<T>, &'g Guard) -> Option<V>,
    ) -> Option<Held<'g, T, V>> {
        let mut smaller = u64::MAX;
        loop {
            let counts = self.counts.load(Ordering::Acquire) & smaller;
            if counts == 0 {
                return None;
            }
            let order = counts.ilog2() / COUNT_BITS;
            if let Some(cell) = self.cell(order, slot, guard)
                && let Some(value) = get(cell, guard)
            {
                return Some(Held { head: slot >> order << order, order, cell, value });
            }
            smaller = (1 << (COUNT_BITS * order)) - 1;
        }
    }

    /// As [`Node::get_at`], and whether the value that was found has `tag`.
    ///
    /// The bitmap is read before and after the lookup. Before, because the value may be a whole that is
    /// split next, and its first part may lose the bit; after, because it may be a part that was stored
    /// after the first read.
    pub(super) fn get_tagged<'g, V>(
        &'g self,
        slot: usize,
        tag: Tag,
        guard: &'g Guard,
        get: impl Fn(&'g SlotCell<T>, &'g Guard) -> Option<V>,
    ) -> Option<(Held<'g, T, V>, bool)> {
        let before = self.tag(tag);
        let held = self.get_at(slot, guard, get)?;
        let tagged = (before | self.tag(tag)) & (1 << held.head) != 0;
        Some((held, tagged))
    }

    /// The cell of the 2^`order` slots around `slot`, if its block is there. The wide block is laid out as
    /// a binary tree, with the two cells that cover half of the node each first.
    fn cell<'g>(&'g self, order: u32, slot: usize, guard: &'g Guard) -> Option<&'g SlotCell<T>> {
        match &self.slots {
            _ if order > 0 => Some(&self.wide.load(guard)?[(SLOTS >> order) + (slot >> order)]),
            Slots::Leaf(values) => Some(&values[slot]),
            Slots::Inner { values, .. } => Some(&values.load(guard)?[slot]),
        }
    }

    /// The cell of the block for values of `order`; `None` if that block is a part of the node.
    fn block(&self, order: u32) -> Option<&ArcCell<Block<T>>> {
        match &self.slots {
            _ if order > 0 => Some(&self.wide),
            Slots::Leaf(_) => None,
            Slots::Inner { values, .. } => Some(values),
        }
    }

    /// How many values there are whose cells are in the same block as those of `order`.
    fn sharing(&self, order: u32) -> u64 {
        let counts = self.counts.load(Ordering::Acquire);
        if order > 0 { counts >> COUNT_BITS } else { counts & ((1 << COUNT_BITS) - 1) }
    }

    /// Puts a value into the free 2^`order` slots from `head`; returns how many bytes were allocated for
    /// it. The count is increased first, since a reader does not look for a value that is not counted.
    pub(super) fn put(&self, head: usize, order: u32, value: Arc<T>, guard: &Guard) -> u64 {
        let mut bytes = 0;
        if let Some(block) = self.block(order)
            && block.load(guard).is_none()
        {
            block.store(Some(Arc::new(cells())), guard);
            bytes = allocated::<Block<T>>();
        }
        self.count(order, 1);
        let cell = self.cell(order, head, guard).expect("the block has just been looked at");
        cell.swap(Slot::Full(value), guard);
        self.set(Tag::Present, 1 << head);
        bytes
    }

    /// Removes a value from its cell, without clearing its bits; returns how many bytes were freed.
    pub(super) fn take<V>(&self, held: &Held<'_, T, V>, guard: &Guard) -> u64 {
        held.cell.swap(Slot::Empty, guard);
        self.count(held.order, -1);
        match self.block(held.order) {
            Some(block) if self.sharing(held.order) == 0 => {
                block.store(None, guard);
                allocated::<Block<T>>()
            }
            _ => 0,
        }
    }

    /// The bytes of the node's blocks.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) fn block_bytes(&self, guard: &Guard) -> u64 {
        let own = [self.block(0), self.block(1)].into_iter().flatten();
        own.filter(|block| block.load(guard).is_some()).count() as u64 * allocated::<Block<T>>()
    }

    fn count(&self, order: u32, by: i64) {
        let counts = self.counts.load(Ordering::Acquire);
        self.counts.store(counts.wrapping_add_signed(by << (COUNT_BITS * order)), Ordering::Release);
    }

    /// Sets the bits of `slot` in the bitmaps `tags` if its child has any bit there, or else clears them.
    pub(super) fn summarize(&self, slot: usize, child: &Node<T>, tags: &[Tag]) {
        for &tag in tags {
            if child.tag(tag) != 0 {
                self.set(tag, 1 << slot);
            } else {
                self.clear(tag, 1 << slot);
            }
        }
    }
}

/// Empty cells.
fn cells<C: Default>() -> [C; SLOTS] {
    array::from_fn(|_| C::default())
}

/// The bytes of a `V` and the two counts of its `Arc`.
pub(super) const fn allocated<V>() -> u64 {
    (size_of::<V>() + 2 * size_of::<usize>()) as u64
}
