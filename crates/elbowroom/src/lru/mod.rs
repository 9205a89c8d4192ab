//! The lists of folios that reclaim walks. Plain data under the `lru` lock.
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
use crate::page::{Flag, Folio};
use elbowroom_sync::{Arc, Mutex};
use std::collections::VecDeque;

/// A list that knows how many pages it has.
#[derive(Default)]
pub(crate) struct List {
    /// With the pages that each counts as. `None`: what was there left its cache without reclaim, and was
    /// purged.
    entries: VecDeque<Option<(Arc<Folio>, usize)>>,
    pages: usize,
    /// How many of the entries are `None`.
    gaps: usize,
    /// How many entries were taken from the front so far: what has a place keeps it, counted from the first
    /// one ever.
    popped: u64,
}

impl List {
    pub(crate) fn push(&mut self, folio: Arc<Folio>) {
        let pages = folio.pages() as usize;
        self.push_as(folio, pages);
    }

    /// A folio that counts as so many pages: those for which it stands.
    pub(crate) fn push_as(&mut self, folio: Arc<Folio>, pages: usize) {
        self.pages += pages;
        self.entries.push_back(Some((folio, pages)));
    }

    pub(crate) fn pop(&mut self) -> Option<Arc<Folio>> {
        while let Some(first) = self.entries.pop_front() {
            self.popped += 1;
            match first {
                Some((folio, pages)) => {
                    self.pages -= pages;
                    return Some(folio);
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
    /// entries at most. Returns where to go on: `end`, or more, if nothing is left. The list may have become
    /// shorter since `end` was its end, if another thread purges it, too.
    fn purge(&mut self, from: u64, end: u64, looks: usize, dead: &mut Vec<Arc<Folio>>) -> u64 {
        let from = from.max(self.popped);
        let next = end.min(from + looks as u64).min(self.end()).max(from);
        for at in (from - self.popped) as usize..(next - self.popped) as usize {
            let gone = |entry: &mut (Arc<Folio>, usize)| entry.0.state.test(Flag::Dead);
            if let Some((folio, pages)) = self.entries[at].take_if(gone) {
                self.pages -= pages;
                self.gaps += 1;
                dead.push(folio);
            }
        }
        if next >= self.end() { end.max(next) } else { next }
    }

    /// Closes the gaps when they are the most of it. Touches no folio, and is rare.
    fn compact(&mut self) {
        if self.gaps > self.entries.len() / 2 {
            self.entries.retain(Option::is_some);
            self.gaps = 0;
        }
    }
}

/// The three lists.
#[derive(Default)]
pub(crate) struct Lru {
    pub(crate) inactive: List,
    pub(crate) standby: List,
    pub(crate) active: List,
}

impl Lru {
    fn all(&mut self) -> [&mut List; 3] {
        [&mut self.inactive, &mut self.standby, &mut self.active]
    }

    /// Takes all folios out.
    pub(crate) fn take_all(&mut self) -> Vec<Arc<Folio>> {
        self.all().into_iter().flat_map(|list| std::iter::from_fn(|| list.pop())).collect()
    }
}

/// Drops the entries of folios that left their cache without reclaim: they keep the folio, and what is left
/// of its object, in memory. In pieces: whoever reads or reclaims waits for the lock.
pub(crate) fn purge(lru: &Mutex<Lru>) {
    let mut dead = Vec::with_capacity(PURGE_LOOKS);
    for number in 0..3 {
        let (mut at, end) = (0, lru.lock().all()[number].end());
        while at < end {
            let mut lists = lru.lock();
            let all = lists.all();
            at = all[number].purge(at, end, PURGE_LOOKS, &mut dead);
            if at >= end {
                all[number].compact();
            }
            drop(lists);
            dead.clear();
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::object::{ObjectTable, WhenUnmapped};
    use crate::page::Owner;
    use elbowroom_sync::{LockClass, LockStats};

    /// A purge ends although the list has become shorter than where it was to end.
    #[test]
    fn a_purge_ends_where_the_list_does() {
        let locks = LockStats::new();
        let object = ObjectTable::new(None, WhenUnmapped::Keep, &locks).memory(0);
        let (mut list, mut dead) = (List::default(), Vec::new());
        for index in 0..8 {
            let folio = Arc::new(Folio::new(Owner::file(&object), index, 0));
            if index < 6 {
                folio.state.set(Flag::Dead);
            }
            list.push(folio);
        }
        let end = list.end();
        assert_eq!(list.purge(0, end, 4, &mut dead), 4, "it goes on there");
        // Another thread does all of it meanwhile.
        assert_eq!(list.purge(0, end, 100, &mut dead), end);
        list.compact();
        assert!(list.end() < 4, "{}", list.end());
        assert_eq!(list.purge(4, end, 4, &mut dead), end);
        assert_eq!((list.len(), dead.len()), (2, 6));
    }

    /// Entries leave at the front and come at the back while others are purged; nothing is lost, nor out of
    /// order.
    #[test]
    fn what_is_dead_goes_and_the_rest_keeps_its_order() {
        const ALL: u64 = 4 * PURGE_LOOKS as u64;
        let locks = LockStats::new();
        let object = ObjectTable::new(None, WhenUnmapped::Keep, &locks).memory(0);
        let lru = locks.mutex(LockClass::Lru, Lru::default());
        let folio = |index: u64| Arc::new(Folio::new(Owner::file(&object), index, 0));
        for index in 0..ALL {
            let folio = folio(index);
            if index % 3 != 1 {
                folio.state.set(Flag::Dead);
            }
            lru.lock().active.push(folio);
        }
        let before = Arc::weak_count(&object);
        let mut popped = Vec::new();
        {
            let mut lists = lru.lock();
            let (end, mut dead) = (lists.active.end(), Vec::new());
            let at = lists.active.purge(0, end, PURGE_LOOKS, &mut dead);
            assert_eq!((at, dead.len()), (PURGE_LOOKS as u64, dead.len().max(PURGE_LOOKS / 2)));
            // Behind where the purge is, which then goes on from the front.
            popped.extend((0..PURGE_LOOKS).filter_map(|_| lists.active.pop()).map(|folio| folio.index));
            lists.active.push(folio(ALL));
        }
        purge(&lru);
        assert!(Arc::weak_count(&object) < before, "the entries are dropped");
        let mut lists = lru.lock();
        assert_eq!(lists.active.pages(), lists.active.len());
        popped.extend(std::iter::from_fn(|| lists.active.pop()).map(|folio| folio.index));
        popped.retain(|index| index % 3 == 1);
        let expected: Vec<_> = (0..=ALL).filter(|index| index % 3 == 1).collect();
        assert_eq!(popped, expected);
        assert_eq!((lists.active.pages(), lists.active.len()), (0, 0));
    }
}
