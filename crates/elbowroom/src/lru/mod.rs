//! The queues of folios that reclaim walks. Plain data under the `lru` lock.
//!
//! ```text
//!   new --> inactive --(taken out of its window)--> standby --(clean, untouched)--> free
//!              ^   \--(a clean page, while hardly any on standby is touched)----------> free
//!              |                                       |
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
    /// With the pages that each counts as.
    entries: VecDeque<(Entry, usize)>,
    pages: usize,
}

impl Queue {
    pub(crate) fn push(&mut self, entry: Entry) {
        let pages = entry.folio.pages() as usize;
        self.push_as(entry, pages);
    }

    /// A folio that counts as so many pages: those for which it stands.
    pub(crate) fn push_as(&mut self, entry: Entry, pages: usize) {
        self.pages += pages;
        self.entries.push_back((entry, pages));
    }

    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let (entry, pages) = self.entries.pop_front()?;
        self.pages -= pages;
        Some(entry)
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Drops the entries of folios that left their cache without reclaim.
    fn purge(&mut self) {
        self.entries.retain(|(entry, _)| !entry.folio.state.test(Flag::Dead));
        self.pages = self.entries.iter().map(|(_, pages)| pages).sum();
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
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
