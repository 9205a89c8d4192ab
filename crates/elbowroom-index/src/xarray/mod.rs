//! The page cache's index: an xarray, which maps `u64` indices to values, with readers that take no lock.
//!
//! A value is an `Arc<T>` that covers 2^order aligned indices, order 0 to [`MAX_ORDER`] (a folio), and
//! carries [`Mark`]s.
//!
//! # Shape
//! A radix tree as Linux's lib/xarray.c: 64 slots a node, 6 bits of the index a level, as high as the largest
//! index needs. The nodes of level L hold the values of orders 6 L to 6 L + 5. Where Linux gives a value of
//! several slots a canonical slot and sibling slots, here each order has cells of its own, so that *a cell
//! always stands for the same indices*:
//! ```text
//!   leaf      order 0: |0|1|2|3|...|63|      inline: the slots
//!             order 1: |0  |2  |...|62|  \  one block of 64 cells,
//!             ...                         |  allocated with the first
//!             order 5: |0    ...  |32 |  /   value of order 1 to 5
//!   level 1   child:   |0|1|2|3|...|63|      inline
//!             order 6: |0|1|2|3|...|63|      a block
//!             orders 7, 8, 9                 a block
//! ```
//! So storing, erasing and replacing a value of any order is one atomic store, which readers of all its
//! indices see at once, and no reader can take one value's cell for another's. A lookup tries the orders
//! that a node holds, the largest first, then the child. [`Writer::split`] stores the parts before it
//! removes the whole: a reader that no longer finds the whole finds the part.
//!
//! Each node has a bitmap for values and one for each mark, with a bit at the first slot of each value that
//! has it; in the nodes above, a bit tells that there is such a value below the slot. Walks skip slots
//! without a bit.
//!
//! # Words
//! A single index may have a *word* in the place of a value: 63 bits whose meaning the user defines, such
//! as where a page's bytes are while it has no folio (Linux: value entries). Words have a bitmap of their
//! own and no marks; walks over values pass them by. [`Writer::exchange`] replaces a value by a word, or a
//! word by a value.
//!
//! # Synchronization
//! Readers pin an epoch ([`elbowroom_sync::epoch::pin`]) and never lock, wait or retry: a lookup visits
//! each level once, and at most 6 orders in it. There is one [`Writer`] at a time: callers hold the cache
//! lock. What readers see of each change by the writer:
//!
//! | the writer | a lookup of an index concerned | a walk over it |
//! |---|---|---|
//! | stores | nothing, then the value | may miss it until `store` returns |
//! | erases | the value, then nothing | may find it until `erase` returns |
//! | replaces | the old value, then the new one | the same |
//! | exchanges | the one, then the other, never neither | may miss it until `exchange` returns |
//! | splits | the whole, then the part | the same; no index twice, none missed |
//! | changes marks | | sees the old or the new mark until the call returns |
//! | anything else | the value | finds it once |
//!
//! Nodes and values that leave the tree are dropped after a grace period, when a section of the thread that
//! removed them ends (seldom by another thread): `T`'s `Drop` must take no lock and must not wait.
//!
//! # Memory
//! A node has 608 bytes. A leaf with values of orders 1 to 5 also has a block of 528 bytes for them; a node
//! of level 1 has a block for values of order 6, and another for those of orders 7 to 9. So a full cache
//! costs, for each page, 9.5 bytes in folios of order 0, 18 in orders 1 to 5, and 0.3 in larger ones. Empty
//! nodes and blocks are freed. [`XArray::memory_bytes`] counts.

mod iter;
mod node;
mod split;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod writer;

pub use elbowroom_sync::epoch::Slot;
pub use iter::{Entry, Iter, Words};
pub use writer::{Occupied, Writer};

use elbowroom_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use elbowroom_sync::epoch::{ArcCell, Guard, SlotCell};
use elbowroom_sync::{Arc, Lines};
use node::{Held, Node, Tag, value_of};
use std::ops::RangeBounds;

/// The largest order of a value: 512 indices, 2 MiB of 4 KiB pages.
pub const MAX_ORDER: u8 = 9;

/// Marks of values, by which walks can select them. Linux: `PAGECACHE_TAG_DIRTY` and its like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The value differs from the file.
    Dirty,
    /// The flusher that set the mark will write the value. Values that become dirty later do not get it, so
    /// that the flusher comes to an end.
    ToWrite,
    /// The value is being written.
    Writeback,
}

impl Mark {
    /// All marks.
    pub const ALL: [Mark; 3] = [Mark::Dirty, Mark::ToWrite, Mark::Writeback];
}

/// The index of one page cache. See the module's page.
pub struct XArray<T> {
    top: Lines<Top<T>>,
    upkeep: Lines<Upkeep>,
}

/// The fields with which each lookup begins; stores seldom change them.
struct Top<T> {
    root: ArcCell<Node<T>>,
    /// The set of [`Tag`]s that any slot in the tree has, a bit each.
    summary: AtomicU64,
}

/// The fields that only writers need.
#[derive(Default)]
struct Upkeep {
    /// The bytes of nodes and blocks in the tree.
    bytes: AtomicU64,
    /// Whether there is a writer.
    writing: AtomicBool,
}

impl<T: Send + Sync + 'static> XArray<T> {
    /// An empty index. Allocates nothing.
    pub fn new() -> Self {
        let top = Top { root: ArcCell::empty(), summary: AtomicU64::new(0) };
        Self { top: Lines(top), upkeep: Lines::default() }
    }

    /// The right to change the index. It pins an epoch: do not wait or sleep while it lives.
    ///
    /// # Panics
    /// If there is another writer: callers must hold the cache lock.
    pub fn writer(&self) -> Writer<'_, T> {
        Writer::new(self)
    }

    /// The value that covers `index`. Linux: `xa_load`.
    #[inline]
    pub fn load<'g>(&'g self, index: u64, guard: &'g Guard) -> Option<&'g T> {
        let mut node = self.root_over(index, guard)?;
        loop {
            let slot = node.slot_of(index);
            // Larger orders are tried before smaller ones and children: see `Writer::split`.
            if node.has_wide()
                && let Some(held) = node.value_at(slot, guard)
            {
                return Some(held.value);
            }
            match node.child(slot, guard) {
                Some(child) => node = child,
                None => return node.single(slot, guard),
            }
        }
    }

    /// The content of `index`: the value that covers it, its word, or nothing.
    pub fn slot<'g>(&'g self, index: u64, guard: &'g Guard) -> Slot<&'g T> {
        let Some(mut node) = self.root_over(index, guard) else { return Slot::Empty };
        loop {
            let slot = node.slot_of(index);
            if node.has_wide()
                && let Some(held) = node.value_at(slot, guard)
            {
                return Slot::Full(held.value);
            }
            match (node.child(slot, guard), node.single_cell(slot)) {
                (Some(child), _) => node = child,
                (None, Some(cell)) => return cell.load(guard),
                (None, None) => return Slot::Empty,
            }
        }
    }

    /// As [`XArray::load`], valid without the guard.
    pub fn load_arc(&self, index: u64, guard: &Guard) -> Option<Arc<T>> {
        Some(self.held(index, guard, SlotCell::load_arc)?.1.value)
    }

    /// The value that covers `index`, with its first index and its order.
    pub fn entry<'g>(&'g self, index: u64, guard: &'g Guard) -> Option<Entry<&'g T>> {
        let (node, held) = self.held(index, guard, value_of)?;
        Some(Entry::new(node, held, index))
    }

    /// Whether there is no value. In constant time.
    pub fn is_empty(&self) -> bool {
        !self.any_tag(Tag::Present)
    }

    /// Whether there is a word. In constant time.
    pub fn has_words(&self) -> bool {
        self.any_tag(Tag::Word)
    }

    /// Whether any value has `mark`. In constant time.
    pub fn any(&self, mark: Mark) -> bool {
        self.any_tag(mark.into())
    }

    fn any_tag(&self, tag: Tag) -> bool {
        self.top.summary.load(Ordering::Acquire) & (1 << tag as u32) != 0
    }

    /// The bytes of the nodes and blocks in the tree, without those that wait for their grace period.
    pub fn memory_bytes(&self) -> u64 {
        self.upkeep.bytes.load(Ordering::Relaxed)
    }

    /// The values that cover any index of `range`, in order, each once.
    pub fn range<'g>(&'g self, range: impl RangeBounds<u64>, guard: &'g Guard) -> Iter<'g, T> {
        Iter::new(self, range, Tag::Present, guard)
    }

    /// The words at the indices of `range`, in order.
    pub fn words<'g>(&'g self, range: impl RangeBounds<u64>, guard: &'g Guard) -> Words<'g, T> {
        Words::new(self, range, guard)
    }

    /// The values that have `mark` and cover any index of `range`, in order, each once. Skips subtrees
    /// without the mark.
    pub fn marked<'g>(&'g self, range: impl RangeBounds<u64>, mark: Mark, guard: &'g Guard) -> Iter<'g, T> {
        Iter::new(self, range, mark.into(), guard)
    }

    /// The largest order, at most `order`, of a value that would cover `index`, overlap no other and no
    /// word, and cover no index from `end` on; 0 if there is none. The answer stays true only as long as
    /// the caller holds the cache lock.
    ///
    /// # Panics
    /// If `order` is larger than [`MAX_ORDER`].
    pub fn free_order(&self, index: u64, order: u8, end: u64, guard: &Guard) -> u8 {
        assert!(order <= MAX_ORDER, "order {order}");
        let fits = |order: &u8| {
            let (first, last) = (index >> order << order, index | ((1 << order) - 1));
            let free = || self.range(first..=last, guard).next().is_none();
            last < end && free() && self.words(first..=last, guard).next().is_none()
        };
        // If an order does not fit, no larger one does.
        (1..=order).take_while(fits).last().unwrap_or(0)
    }

    /// The root, if the tree is high enough for `index`.
    #[inline]
    fn root_over<'g>(&'g self, index: u64, guard: &'g Guard) -> Option<&'g Node<T>> {
        self.top.root.load(guard).filter(|root| root.covers(index))
    }

    fn held<'g, V>(
        &'g self,
        index: u64,
        guard: &'g Guard,
        get: impl Fn(&'g SlotCell<T>, &'g Guard) -> Option<V> + Copy,
    ) -> Option<(&'g Node<T>, Held<'g, T, V>)> {
        let mut node = self.root_over(index, guard)?;
        loop {
            let slot = node.slot_of(index);
            if let Some(held) = node.get_at(slot, guard, get) {
                return Some((node, held));
            }
            node = node.child(slot, guard)?;
        }
    }
}

impl<T: Send + Sync + 'static> Default for XArray<T> {
    fn default() -> Self {
        Self::new()
    }
}
