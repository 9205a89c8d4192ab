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

use crate::config::PURGE_LOOKS;
use crate::object::FileObject;
use crate::page::{Flag, Folio};
use elbowroom_sync::{Arc, Mutex};
use std::collections::VecDeque;

/// A folio in a queue, with the object whose cache it is in.
pub(crate) struct Entry {
    pub(crate) object: Arc<FileObject>,
    pub(crate) folio: Arc<Folio>,
}

/// A queue that knows how many pages it has.
#[derive(Default)]
pub(crate) struct Queue {
    /// With the pages that each counts as. `None`: what was there left its cache without reclaim, and was
    /// purged.
    entries: VecDeque<Option<(Entry, usize)>>,
    pages: usize,
    /// How many of the entries are `None`.
    gaps: usize,
    /// How many entries were taken from the front so far: what has a place keeps it, counted from the first
    /// one ever.
    popped: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, entry: Entry) {
        let pages = entry.folio.pages() as usize;
        self.push_as(entry, pages);
    }

    /// A folio that counts as so many pages: those for which it stands.
    pub(crate) fn push_as(&mut self, entry: Entry, pages: usize) {
        self.pages += pages;
        self.entries.push_back(Some((entry, pages)));
    }

    pub(crate) fn pop(&mut self) -> Option<Entry> {
        while let Some(first) = self.entries.pop_front() {
            self.popped += 1;
            match first {
                Some((entry, pages)) => {
                    self.pages -= pages;
                    return Some(entry);
                }
                None => self.gaps -= 1,
            }
        }
        None
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.gaps
    }

    /// The place behind the last entry.
    fn end(&self) -> u64 {
        self.popped + self.entries.len() as u64
    }

    /// Takes out what has left its cache without reclaim, from the place `from` on up to `end`, of `looks`
    /// entries at most. Returns where to go on.
    fn purge(&mut self, from: u64, end: u64, looks: usize, dead: &mut Vec<Entry>) -> u64 {
        let from = from.max(self.popped);
        let next = end.min(from + looks as u64).min(self.end()).max(from);
        for at in (from - self.popped) as usize..(next - self.popped) as usize {
            let gone = |entry: &mut (Entry, usize)| entry.0.folio.state.test(Flag::Dead);
            if let Some((entry, pages)) = self.entries[at].take_if(gone) {
                self.pages -= pages;
                self.gaps += 1;
                dead.push(entry);
            }
        }
        next
    }

    /// Closes the gaps when they are the most of it. Touches no folio, and is rare.
    fn compact(&mut self) {
        if self.gaps > self.entries.len() / 2 {
            self.entries.retain(Option::is_some);
            self.gaps = 0;
        }
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
    fn all(&mut self) -> [&mut Queue; 3] {
        [&mut self.inactive, &mut self.standby, &mut self.active]
    }
}

/// Drops the entries of folios that left their cache without reclaim: they keep the folio, its object and the
/// object's descriptors alive. In pieces: whoever reads or reclaims waits for the lock; and what is dropped,
/// which may close a file, is dropped without it.
pub(crate) fn purge(lru: &Mutex<Lru>) {
    let mut dead = Vec::with_capacity(PURGE_LOOKS);
    for number in 0..3 {
        let (mut at, end) = (0, lru.lock().all()[number].end());
        while at < end {
            let mut queues = lru.lock();
            let all = queues.all();
            at = all[number].purge(at, end, PURGE_LOOKS, &mut dead);
            if at >= end {
                all[number].compact();
            }
            drop(queues);
            dead.clear();
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::object::{ObjectTable, WhenUnmapped};
    use elbowroom_sync::{LockClass, LockStats};

    /// Entries leave at the front and come at the back while others are purged; nothing is lost, nor out of
    /// order.
    #[test]
    fn what_is_dead_goes_and_the_rest_keeps_its_order() {
        const ALL: u64 = 4 * PURGE_LOOKS as u64;
        let locks = LockStats::new();
        let object = ObjectTable::new(None, WhenUnmapped::Keep, &locks).memory(0);
        let lru = locks.mutex(LockClass::Lru, Lru::default());
        let entry = |index: u64| Entry { object: object.clone(), folio: Arc::new(Folio::new(1, index, 0)) };
        for index in 0..ALL {
            let entry = entry(index);
            if index % 3 != 1 {
                entry.folio.state.set(Flag::Dead);
            }
            lru.lock().active.push(entry);
        }
        let before = Arc::strong_count(&object);
        let mut popped = Vec::new();
        {
            let mut queues = lru.lock();
            let (end, mut dead) = (queues.active.end(), Vec::new());
            let at = queues.active.purge(0, end, PURGE_LOOKS, &mut dead);
            assert_eq!((at, dead.len()), (PURGE_LOOKS as u64, dead.len().max(PURGE_LOOKS / 2)));
            // Behind where the purge is, which then goes on from the front.
            popped
                .extend((0..PURGE_LOOKS).filter_map(|_| queues.active.pop()).map(|entry| entry.folio.index));
            queues.active.push(entry(ALL));
        }
        purge(&lru);
        assert!(Arc::strong_count(&object) < before, "the entries are dropped");
        let mut queues = lru.lock();
        assert_eq!(queues.active.pages(), queues.active.len());
        popped.extend(std::iter::from_fn(|| queues.active.pop()).map(|entry| entry.folio.index));
        popped.retain(|index| index % 3 == 1);
        let expected: Vec<_> = (0..=ALL).filter(|index| index % 3 == 1).collect();
        assert_eq!(popped, expected);
        assert_eq!((queues.active.pages(), queues.active.len()), (0, 0));
    }
}
