//! As `slot`, for a model checker: each content of a cell is a version, words too, so that a word that is
//! used after its grace period is also found.

use super::{ArcCell, Guard, Slot};
use crate::Arc;

/// An optional `Arc`, as in an [`ArcCell`], or a word of 63 bits.
pub struct SlotCell<T>(ArcCell<Slot<Arc<T>>>);

impl<T: Send + Sync + 'static> SlotCell<T> {
    /// A cell that holds nothing.
    pub fn empty() -> Self {
        Self(ArcCell::empty())
    }

    /// The present contents of the cell; a reference is valid as long as both the guard and the cell are.
    pub fn load<'g>(&'g self, guard: &'g Guard) -> Slot<&'g T> {
        match self.0.load(guard) {
            None | Some(Slot::Empty) => Slot::Empty,
            Some(Slot::Full(value)) => Slot::Full(value),
            Some(Slot::Word(word)) => Slot::Word(*word),
        }
    }

    /// Another handle on the value as it is now, valid without a guard.
    pub fn load_arc(&self, guard: &Guard) -> Option<Arc<T>> {
        match self.0.load(guard) {
            Some(Slot::Full(value)) => Some(value.clone()),
            _ => None,
        }
    }

    /// Publishes `new`, and returns the old contents.
    ///
    /// # Panics
    /// If `new` is a word of more than 63 bits.
    pub fn swap(&self, new: Slot<Arc<T>>, guard: &Guard) -> Slot<Arc<T>> {
        let new = match new {
            Slot::Empty => None,
            Slot::Word(word) => {
                assert!(word < 1 << 63, "a slot's word has 63 bits");
                Some(Arc::new(Slot::Word(word)))
            }
            full => Some(Arc::new(full)),
        };
        match self.0.swap(new, guard).as_deref() {
            None | Some(Slot::Empty) => Slot::Empty,
            Some(Slot::Full(value)) => Slot::Full(value.clone()),
            Some(Slot::Word(word)) => Slot::Word(*word),
        }
    }
}

impl<T: Send + Sync + 'static> Default for SlotCell<T> {
    fn default() -> Self {
        Self::empty()
    }
}
