//! The queues of folios that reclaim walks. Plain data under the `lru` lock.
//!
//! ```text
//!   new --> inactive --(taken out of its window)--> standby --(clean, untouched)--> free
//!              ^                                       |
//!              |            touched again since        |
//!   active <---+---------------------------------------+
//!      |       ^
//!      +-------+ too many active, and not touched since the last look
//! ```
//! Moves are lazy, as in a clock: a fault only sets a flag, and reclaim moves the folio when it meets it.

mod chances;
mod shadow;

pub(crate) use chances::Chances;
pub(crate) use shadow::Shadows;

use crate::object::FileObject;
use crate::page::{Flag, Folio};
use elbowroom_sync::Arc;
use std::collections::VecDeque;

/// A folio in a queue, with the object whose cache it is in.
pub(crate) struct Entry {
    pub(crate) object: Arc<FileObject>,
    pub(crate) folio: Arc<Folio>,
}

/// A queue that knows how many pages it has.
#[derive(Default)]
pub(crate) struct Queue {
    entries: VecDeque<Entry>,
    pages: usize,
}

impl Queue {
    pub(crate) fn push(&mut self, entry: Entry) {
        self.pages += entry.folio.pages() as usize;
        self.entries.push_back(entry);
    }

    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.pages -= entry.folio.pages() as usize;
        Some(entry)
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Drops the entries of folios that left their cache without reclaim.
    fn purge(&mut self) {
        self.entries.retain(|entry| !entry.folio.state.test(Flag::Dead));
        self.pages = self.entries.iter().map(|entry| entry.folio.pages() as usize).sum();
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether more than half of the folios are single pages, at least.
    pub(crate) fn is_mostly_single(&self) -> bool {
        self.pages < self.entries.len() * 3 / 2
    }
}

/// The three queues.
#[derive(Default)]
pub(crate) struct Lru {
    pub(crate) inactive: Queue,
    pub(crate) standby: Queue,
    pub(crate) active: Queue,
}

impl Lru {
    /// Drops the entries of folios that left their cache without reclaim: they keep the folio, its object and the object's
    /// descriptors alive.
    pub(crate) fn purge(&mut self) {
        [&mut self.inactive, &mut self.standby, &mut self.active].into_iter().for_each(Queue::purge);
    }
}
