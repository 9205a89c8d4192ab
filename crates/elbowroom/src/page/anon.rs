//! The pages that belong to one space alone: anonymous memory, and copies of a file's pages that were stored
//! to.
//!
//! They are found by their address, as Linux finds them in its page tables; mremap moves them. After a fork
//! two spaces have the same folio until one of them stores to it: `Body::rmap` tells which spaces have it.
//!
//! A folio is one page or, of anonymous memory, a power of two of them up to [`HUGE_PAGES`], naturally
//! aligned in addresses. A page that is out has the number of its swap slot in the place of a folio. The
//! two are exchanged for each other with the folio's lock, so a page is never in both places, and a thread
//! that holds the index's lock always finds it in one of them. So no cache of pages on their way in or out
//! is needed beside the index (Linux: the swap cache). A thread that takes a number out of the index takes
//! over its count of the slot.
//!
//! A folio is taken out, moved, split or replaced only by a thread that holds the folio's lock and has
//! checked, since it locked the folio, that the index has this folio at the page. After that check the
//! thread may rely on the entry until it unlocks the folio. A folio that was looked up and not checked
//! after it was locked may have left the page.

use crate::page::Folio;
use elbowroom_index::XArray;
use elbowroom_index::xarray::Writer;
use elbowroom_sync::atomic::{AtomicUsize, Ordering, fence};
use elbowroom_sync::epoch::{Guard, Slot, pin};
use elbowroom_sync::{Arc, Lines, LockClass, LockStats, Mutex, MutexGuard};
use std::iter;
use std::ops::Range;

/// log2 of [`HUGE_PAGES`].
pub const HUGE_ORDER: u8 = 9;

/// Pages of a huge folio: 2 MiB.
pub const HUGE_PAGES: u64 = 1 << HUGE_ORDER;

/// The index, by page number of the address. A lookup takes no lock. It may miss a page that is being
/// collapsed into a larger folio, or that comes in as part of one; a thread that finds nothing learns from
/// [`AnonPages::insert`] whether there is something. (For a lookup, a split and the exchange of a single
/// page are one step.) A thread that lists a range takes the lock if such a change is under way, and misses
/// nothing. Whether the index is empty is known without the lock, unless such a change is under way:
/// unmapping asks that about untouched memory, while other threads fault pages in.
pub struct AnonPages {
    pages: XArray<Folio>,
    /// Sequence number of the changes that take several steps for a thread that lists pages: odd while one
    /// is under way. Changed under the lock.
    steps: Lines<AtomicUsize>,
    changes: Mutex<()>,
}

/// The right to change the index. The lock is released before the epoch's guard ends, since the end of the
/// guard may drop folios.
struct Changing<'a> {
    _lock: MutexGuard<'a, ()>,
    _epoch: Guard,
}

impl AnonPages {
    /// An empty index.
    pub fn new(locks: &LockStats) -> Self {
        Self { pages: XArray::new(), steps: Lines::default(), changes: locks.mutex(LockClass::Anon, ()) }
    }

    #[track_caller]
    fn lock(&self) -> Changing<'_> {
        Changing { _lock: self.changes.lock(), _epoch: pin() }
    }

    /// The folio at a page. May miss a folio that is just being made of several smaller ones.
    pub fn lookup(&self, page: u64) -> Option<Arc<Folio>> {
        self.pages.load_arc(page, &pin())
    }

    /// What is at a page: a folio, the number of a swap slot, or nothing. May miss a folio that is just
    /// being made of several smaller ones, or of pages that are out.
    pub fn slot(&self, page: u64) -> Slot<Arc<Folio>> {
        let guard = pin();
        loop {
            match self.pages.slot(page, &guard) {
                Slot::Empty => return Slot::Empty,
                Slot::Word(slot) => return Slot::Word(slot),
                // The page may have gone out since.
                Slot::Full(_) => match self.pages.load_arc(page, &guard) {
                    Some(folio) => return Slot::Full(folio),
                    None => continue,
                },
            }
        }
    }

    /// Whether the page is out.
    pub fn is_out(&self, page: u64) -> bool {
        matches!(self.pages.slot(page, &pin()), Slot::Word(_))
    }

    /// The folio at a page. Misses none; may take the lock for that.
    pub fn find(&self, page: u64) -> Option<Arc<Folio>> {
        self.whole(|| self.lookup(page))
    }

    /// Puts a folio into the index, from `page` on; `false` if the index has something at one of its pages.
    pub fn insert(&self, page: u64, folio: &Arc<Folio>) -> bool {
        let _changing = self.lock();
        self.pages.writer().store(page, folio.order, folio.clone()).is_ok()
    }

    /// Replaces the larger folio `old`, which begins at page `first` and whose lock the caller holds, by
    /// the folios `new`, which are all of one order.
    pub fn split(&self, first: u64, old: &Arc<Folio>, new: &[Arc<Folio>]) -> bool {
        let _changing = self.lock();
        let Some(order) = new.first().map(|folio| folio.order).filter(|_| self.has(first, old)) else {
            return false;
        };
        let part = |page: u64| new[((page - first) >> order) as usize].clone();
        self.in_steps(|pages| pages.split(first, order, part).is_some())
    }

    /// Replaces each page of the larger folio `old`, which begins at page `first` and whose lock the caller
    /// holds, by a folio of one page, the number of a swap slot, or nothing.
    pub fn split_out(&self, first: u64, old: &Arc<Folio>, parts: Vec<Slot<Arc<Folio>>>) -> bool {
        let _changing = self.lock();
        if !self.has(first, old) {
            return false;
        }
        let mut parts = parts.into_iter();
        self.in_steps(|pages| {
            pages.split_to_slots(first, |_| parts.next().expect("there is a part for each page")).is_some()
        })
    }

    /// Replaces the smaller folios `old`, which lie side by side from page `first` on and whose locks the
    /// caller holds, by the larger folio `new`; `false` if one of them is not there.
    pub fn collapse(&self, first: u64, old: &[Arc<Folio>], new: &Arc<Folio>) -> bool {
        let _changing = self.lock();
        let mut page = first;
        let there = old.iter().all(|folio| {
            let has = self.has(page, folio);
            page += folio.pages();
            has
        });
        if !there || page != first + new.pages() {
            return false;
        }
        self.in_steps(|pages| {
            let mut page = first;
            for folio in old {
                pages.erase(page);
                page += folio.pages();
            }
            let stored = pages.store(first, new.order, new.clone());
            debug_assert!(stored.is_ok(), "nothing is where the small folios were");
        });
        true
    }

    /// Makes a change of several steps, between which a lookup may miss what is there. A thread that sees
    /// the effect of one of these steps also sees that `steps` has moved. The caller holds the lock.
    fn in_steps<R>(&self, change: impl FnOnce(&Writer<'_, Folio>) -> R) -> R {
        self.steps.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        let result = change(&self.pages.writer());
        self.steps.fetch_add(1, Ordering::Release);
        result
    }

    /// The first page of `folio`, one of whose pages is `page`.
    pub fn first_of(folio: &Folio, page: u64) -> u64 {
        page >> folio.order << folio.order
    }

    /// Whether the index has `folio` at the page. That stays so while the caller holds the folio's lock,
    /// since a thread that changes the entry holds the lock of the folio that is there.
    pub fn has(&self, page: u64, folio: &Arc<Folio>) -> bool {
        self.lookup(page).is_some_and(|there| Arc::ptr_eq(&there, folio))
    }

    /// Calls `look`, and calls it again with the lock if a change of several steps was under way meanwhile:
    /// so its result misses nothing. May take the lock, so not for a caller that holds a lock of a later
    /// class. Linux: `read_seqcount_begin`, `read_seqcount_retry`, with the lock for a second try.
    fn whole<R>(&self, look: impl Fn() -> R) -> R {
        let before = self.steps.load(Ordering::Acquire);
        let seen = look();
        fence(Ordering::Acquire);
        if before.is_multiple_of(2) && self.steps.load(Ordering::Relaxed) == before {
            return seen;
        }
        let _changing = self.lock();
        look()
    }

    /// Puts `new` in the place of `old`, whose lock the caller holds; `false` if `old` is not there.
    pub fn replace(&self, page: u64, old: &Arc<Folio>, new: &Arc<Folio>) -> bool {
        let _changing = self.lock();
        self.has(page, old) && self.pages.writer().replace(page, new.clone()).is_ok()
    }

    /// Takes `folio`, whose lock the caller holds, out of the index; `false` if it is not there.
    pub fn remove(&self, page: u64, folio: &Arc<Folio>) -> bool {
        let _changing = self.lock();
        self.has(page, folio) && self.pages.writer().erase(page).is_some()
    }

    /// Replaces `folio`, which has one page and whose lock the caller holds, by the number of a swap slot;
    /// `false` if the folio is not there.
    pub fn swap_out(&self, page: u64, folio: &Arc<Folio>, slot: u64) -> bool {
        let _changing = self.lock();
        self.has(page, folio) && self.in_steps(|pages| pages.exchange(page, Slot::Word(slot)).is_ok())
    }

    /// Puts `folio`, whose lock the caller has, in the place of the numbers of swap slots from `first` on,
    /// one for each of its pages; `false` if one of them is not there.
    pub fn swap_in(&self, first: u64, slots: &[u64], folio: &Arc<Folio>) -> bool {
        let _changing = self.lock();
        if !(first..).zip(slots).all(|(page, slot)| self.has_out(page, *slot)) {
            return false;
        }
        self.in_steps(|pages| {
            if folio.order == 0 {
                return pages.exchange(first, Slot::Full(folio.clone())).is_ok();
            }
            for (page, _) in (first..).zip(slots) {
                let _ = pages.exchange(page, Slot::Empty);
            }
            let stored = pages.store(first, folio.order, folio.clone());
            debug_assert!(stored.is_ok(), "nothing is where the numbers were");
            true
        })
    }

    fn has_out(&self, page: u64, slot: u64) -> bool {
        matches!(self.pages.slot(page, &pin()), Slot::Word(there) if there == slot)
    }

    /// The numbers of the swap slots of a range of pages, if all of these pages are out. Takes no lock, so
    /// any of the numbers may have left the index since.
    pub fn run_out(&self, pages: Range<u64>) -> Option<Vec<u64>> {
        if !self.pages.has_words() {
            return None;
        }
        let guard = pin();
        let slots: Vec<_> = self.pages.words(pages.clone(), &guard).map(|(_, slot)| slot).collect();
        (slots.len() as u64 == pages.end - pages.start).then_some(slots)
    }

    /// The pages of a range that are out, in order, each with the number of its swap slot. Takes no lock.
    pub fn out_in(&self, pages: Range<u64>) -> Vec<(u64, u64)> {
        if !self.pages.has_words() {
            return Vec::new();
        }
        self.pages.words(pages, &pin()).collect()
    }

    /// Takes the number of a swap slot out of the index; its count of the slot is the caller's then.
    /// `Full`: a folio is there instead.
    pub fn take_out(&self, page: u64) -> Slot<Arc<Folio>> {
        let _changing = self.lock();
        let there = self.slot(page);
        if matches!(there, Slot::Word(_)) {
            let _ = self.pages.writer().exchange(page, Slot::Empty);
        }
        there
    }

    /// Puts the number of a swap slot, and the caller's count of it, where nothing is; `false` if something
    /// is there.
    pub fn put_out(&self, page: u64, slot: u64) -> bool {
        let _changing = self.lock();
        matches!(self.slot(page), Slot::Empty) && self.pages.writer().exchange(page, Slot::Word(slot)).is_ok()
    }

    /// Calls `share` with the number of the swap slot at a page, which stays there meanwhile. `Full`: a
    /// folio is there instead.
    pub fn share_out(&self, page: u64, share: impl FnOnce(u64)) -> Slot<Arc<Folio>> {
        let _changing = self.lock();
        let there = self.slot(page);
        if let Slot::Word(slot) = there {
            share(slot);
        }
        there
    }

    /// Whether the index has nothing.
    pub fn is_empty(&self) -> bool {
        self.whole(|| self.seems_empty_everywhere())
    }

    fn seems_empty_everywhere(&self) -> bool {
        self.pages.is_empty() && !self.pages.has_words()
    }

    /// Whether the index seems to have nothing in a range of pages. Takes no lock, so it may miss what a
    /// change of several steps replaces just then.
    pub fn seems_empty(&self, pages: Range<u64>) -> bool {
        let guard = pin();
        (self.pages.is_empty() || self.pages.range(pages.clone(), &guard).next().is_none())
            && (!self.pages.has_words() || self.pages.words(pages, &guard).next().is_none())
    }

    /// Whether the index has anything in a range of pages.
    pub fn has_any(&self, pages: Range<u64>) -> bool {
        self.whole(|| !self.seems_empty(pages.clone()))
    }

    /// What the index has in a range, as ranges of pages: one for each folio, and one for each page that is
    /// out. The first and the last folio may reach out of the range. In no order. Misses nothing that is
    /// there all the time. Looks at one block of 2 MiB at a time, since a list of all that a large range
    /// has would take megabytes.
    pub fn owned_in(&self, pages: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        self.list(pages, |block, guard, owned| {
            let folios = self.pages.range(block.clone(), guard);
            owned.extend(folios.map(|entry| entry.index..entry.last() + 1));
            owned.extend(self.pages.words(block, guard).map(|(page, _)| page..page + 1));
        })
    }

    /// The folios with pages in a range, each with its first page, which may lie before the range. Misses
    /// none that is there all the time. Looks at one block at a time, as [`AnonPages::owned_in`] does.
    pub fn in_range(&self, pages: Range<u64>) -> impl Iterator<Item = (u64, Arc<Folio>)> {
        let none = self.whole(|| self.pages.is_empty());
        let pages = if none { pages.start..pages.start } else { pages };
        self.list(pages, |block, guard, folios| {
            let found = self.pages.range(block, guard).arcs();
            folios.extend(found.map(|entry| (entry.index, entry.value)));
        })
    }

    /// The first folio with pages in a range, with its first page. May miss a folio that is just being made
    /// of several smaller ones, or of pages that are out. Takes no lock.
    pub fn first_in(&self, pages: Range<u64>) -> Option<(u64, Arc<Folio>)> {
        let guard = pin();
        let found = self.pages.range(pages, &guard).arcs().next();
        found.map(|entry| (entry.index, entry.value))
    }

    /// What `look` finds in a range, one block of 2 MiB at a time. If the lock is needed, it is taken for
    /// one block only: a look at a large range takes milliseconds, and faults in the range and beside it
    /// want the lock, too.
    fn list<V>(
        &self,
        pages: Range<u64>,
        look: impl Fn(Range<u64>, &Guard, &mut Vec<V>),
    ) -> impl Iterator<Item = V> {
        let Range { start: mut rest, end: last } = pages;
        let blocks = iter::from_fn(move || {
            let first = self.whole(|| self.first_at(rest..last))?;
            // No folio is in two blocks.
            rest = (((first >> HUGE_ORDER) + 1) << HUGE_ORDER).min(last);
            Some(self.whole(|| {
                let mut found = Vec::new();
                look(first..rest, &pin(), &mut found);
                found
            }))
        });
        blocks.flatten()
    }

    /// The first page of a range at which the index has something.
    fn first_at(&self, pages: Range<u64>) -> Option<u64> {
        let guard = pin();
        let folio = self.pages.range(pages.clone(), &guard).next().map(|entry| entry.index.max(pages.start));
        let end = folio.unwrap_or(pages.end);
        let has_words = self.pages.has_words();
        let out = has_words.then(|| self.pages.words(pages.start..end, &guard).next()).flatten();
        out.map(|(page, _)| page).or(folio)
    }

    /// The part of `pages` around `page` in which the index has nothing. Only for ranges in which nothing
    /// can be but copies of a file's pages, which are never split or collapsed. Takes no lock.
    pub fn gap_around(&self, page: u64, pages: Range<u64>) -> Range<u64> {
        if self.seems_empty_everywhere() {
            return pages;
        }
        let guard = pin();
        let folios = self.pages.range(pages.clone(), &guard).map(|entry| entry.index);
        let out = self.pages.words(pages.clone(), &guard).map(|(page, _)| page);
        let mut gap = pages;
        narrow(&mut gap, page, folios);
        narrow(&mut gap, page, out);
        gap
    }
}

/// Shrinks a gap around `page` so that none of the pages `there`, which ascend, lies in it.
fn narrow(gap: &mut Range<u64>, page: u64, there: impl Iterator<Item = u64>) {
    for at in there {
        if at < page {
            gap.start = gap.start.max(at + 1);
        } else {
            gap.end = gap.end.min(at);
            break;
        }
    }
}

#[cfg(all(test, not(shuttle), not(loom)))]
mod tests {
    use super::*;
    use crate::page::Owner;

    fn folio(first: u64, order: u8) -> Arc<Folio> {
        Arc::new(Folio::new(Owner::Anon, crate::group::GroupId::ROOT, first, order))
    }

    /// Large and small folios and words, far apart, at both ends of blocks, and across the ends of the range.
    #[test]
    fn lists_have_all_of_every_block() {
        let pages = AnonPages::new(&LockStats::new());
        let folios = [(8, 3), (511, 0), (512, 9), (1024, 0), (1 << 30, 4)];
        for (first, order) in folios {
            assert!(pages.insert(first, &folio(first, order)), "{first}");
        }
        let words = [16, 510, 1025, 2047, 2048, (1 << 30) + 16];
        for word in words {
            assert!(pages.put_out(word, word + 1));
        }
        let listed = |range: Range<u64>| {
            let mut owned: Vec<_> = pages.owned_in(range.clone()).collect();
            owned.sort_by_key(|own| own.start);
            let found = pages.in_range(range);
            (owned, found.map(|(first, folio)| (first, folio.order)).collect::<Vec<_>>())
        };
        let (owned, found) = listed(0..u64::MAX >> 12);
        let mut all: Vec<_> = folios.iter().map(|(first, order)| *first..first + (1 << order)).collect();
        all.extend(words.iter().map(|word| *word..word + 1));
        all.sort_by_key(|own| own.start);
        assert_eq!((owned, found), (all, folios.to_vec()));
        assert_eq!(listed(10..12).1, [(8, 3)], "it begins before the range");
        assert_eq!(listed(10..17).0, [8..16, 16..17]);
        assert_eq!(listed(600..1026).1, [(512, 9), (1024, 0)]);
        assert_eq!(listed(1026..2049).0, [2047..2048, 2048..2049]);
        assert_eq!(listed(2049..1 << 30), (vec![], vec![]));
        let first = |range| pages.first_in(range).map(|(first, _)| first);
        assert_eq!(
            [first(0..9), first(12..16), first(16..511), first(16..512)],
            [Some(8), Some(8), None, Some(511)]
        );
        words.iter().for_each(|word| _ = pages.take_out(*word));
    }
}
