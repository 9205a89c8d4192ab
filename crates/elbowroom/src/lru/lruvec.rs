//! The folios that reclaim chooses from, and their order. Linux: `struct lruvec`.
//!
//! A folio is in one list, or in none: while a thread that has taken a folio looks at it, the folio is in
//! no list, so no other thread can take it. A folio that dies leaves its list at once, and is not listed
//! again by a thread that took it before: it is marked dead before it is removed, and a folio is listed
//! only if, under the lock, it is not marked dead. [`Folio::listed`] is the number of the folio's last
//! entry, guarded by the same lock.
//!
//! Synchronization: one mutex, under which no other lock is taken, and atomic copies of the lists' sizes,
//! written under it and read without it.

use super::additions::Addition;
use super::list::Lists;
use crate::division::Divided;
use crate::outside::Outside;
use crate::page::{Flag, Folio};
use elbowroom_sync::Mutant;
use elbowroom_sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use elbowroom_sync::{Arc, LockStats, LruMutex, LruUse};

/// In tests of the tests: a dead folio stays in its list.
const MUTANT_LEAVE_LISTED: Mutant = Mutant::new("leave_listed");

/// How many folios of the active list are looked at, at most, to bring the list within its share.
const BALANCE_LOOKS: usize = 16;

/// One of the lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    /// Folios that are next to have their second chance.
    Inactive,
    /// Folios that have their second chance: they are mapped nowhere, and become active if they are
    /// touched.
    Standby,
    /// Folios that were used again.
    Active,
}

impl List {
    const COUNT: usize = 3;
}

/// What the folios of the lists count as, in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) inactive: usize,
    pub(crate) standby: usize,
    pub(crate) active: usize,
}

/// How much is taken at a time, to be looked at together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batch {
    /// From the inactive list no further folio is taken once those taken have so many pages.
    pub(crate) pages: usize,
    /// The most folios, from the standby list as well.
    pub(crate) folios: usize,
    /// How many pages are to be freed: from the standby list no further folio is taken once those taken have
    /// so many.
    pub(crate) wanted: usize,
}

/// From which list reclaim takes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// The inactive list: folios are to have their second chance.
    Age,
    /// The standby list: its folios have had their second chance. About so many pages of it may go, at least
    /// one folio.
    Evict(usize),
}

/// The folios that reclaim has taken to look at next. They are in no list.
pub(crate) enum Taken {
    /// Folios that are to have their second chance.
    Inactive(Vec<Arc<Folio>>),
    /// Folios that have had their second chance.
    Standby(Vec<Arc<Folio>>),
}

type Folios = Lists<Arc<Folio>, { List::COUNT }>;

/// The lists of the folios of one group and kind.
pub(crate) struct Lruvec {
    lists: LruMutex<Folios>,
    /// What the folios of the inactive and the standby list count as, for reclaim, which reads it without
    /// the lock.
    idle_pages: AtomicUsize,
    /// What the folios of the active list count as, for threads that read it without the lock.
    active_pages: AtomicUsize,
    /// Pages that were evicted from the lists: the clock of the shadows, and how many are still out.
    evicted: Outside,
    /// How much less than their part reclaim asked the lists for. Written without the lock.
    account: AtomicI64,
    /// How large folios of the lists are used. Written without the lock. A group that gets the place of a
    /// removed one has the division of that one until it has looked at its own folios twice.
    divided: Divided,
}

impl Lruvec {
    pub(crate) fn new(frames: usize, locks: &LockStats) -> Self {
        Self {
            lists: locks.lru_mutex(Lists::default()),
            idle_pages: AtomicUsize::new(0),
            active_pages: AtomicUsize::new(0),
            evicted: Outside::new(frames),
            account: AtomicI64::new(0),
            divided: Divided::default(),
        }
    }

    /// How much less than their part reclaim asked the lists for.
    pub(crate) fn account(&self) -> &AtomicI64 {
        &self.account
    }

    /// How large folios of the lists are used.
    pub(crate) fn divided(&self) -> &Divided {
        &self.divided
    }

    #[track_caller]
    fn change<R>(&self, lru_use: LruUse, change: impl FnOnce(&mut Folios) -> R) -> R {
        let mut lists = self.lists.lock(lru_use);
        let result = change(&mut lists);
        let Sizes { inactive, standby, active } = sizes(&lists);
        self.idle_pages.store(inactive + standby, Ordering::Relaxed);
        // Written only if it changes: most changes are of the other lists, and many threads read this cache
        // line.
        if self.active_pages.load(Ordering::Relaxed) != active {
            self.active_pages.store(active, Ordering::Relaxed);
        }
        result
    }

    /// Lists folios that are in no list, unless they are dead.
    #[track_caller]
    pub(super) fn add(&self, additions: impl Iterator<Item = Addition>) {
        self.change(LruUse::Add, |lists| {
            additions.for_each(|Addition { folio, list, pages }| push(lists, folio, list, pages));
        });
    }

    /// Takes dead folios out of the lists that they are in.
    #[track_caller]
    pub(crate) fn remove<'f>(&self, folios: impl IntoIterator<Item = &'f Folio>) {
        self.change(LruUse::Remove, |lists| {
            for folio in folios {
                debug_assert!(folio.state.test(Flag::Dead), "it could be listed again at once");
                if is_listed(lists, folio) && !MUTANT_LEAVE_LISTED.planted() {
                    lists.remove(folio.listed.load(Ordering::Relaxed));
                }
            }
        });
    }

    /// Brings the active list nearer to its share, in pages, and takes folios from the list that `next`
    /// chooses. `next` also gets the number of pages that stay active because they were used since the last
    /// look.
    #[track_caller]
    pub(crate) fn take(
        &self,
        active_share: usize,
        batch: Batch,
        next: impl FnOnce(Sizes, usize) -> Next,
    ) -> Option<Taken> {
        self.change(LruUse::Isolate, |lists| {
            let rotated = balance(lists, active_share);
            let (list, most) = match next(sizes(lists), rotated) {
                Next::Age => (List::Inactive, batch.pages),
                Next::Evict(pages) => (List::Standby, pages.min(batch.wanted).max(1)),
            };
            let (mut folios, mut pages) = (Vec::new(), 0);
            while pages < most
                && folios.len() < batch.folios
                && let Some((folio, its_pages)) = lists.pop(list as usize)
            {
                pages += its_pages as usize;
                folios.push(folio);
            }
            (!folios.is_empty()).then(|| match list {
                List::Standby => Taken::Standby(folios),
                _ => Taken::Inactive(folios),
            })
        })
    }

    /// Makes the oldest folios of the active list inactive, at least so many pages, whether they were used
    /// or not; `false`: the list is empty.
    #[track_caller]
    pub(crate) fn deactivate(&self, pages: usize) -> bool {
        self.change(LruUse::Deactivate, |lists| {
            let mut moved = 0;
            while moved < pages {
                let Some((folio, its_pages)) = lists.pop(List::Active as usize) else { break };
                moved += its_pages as usize;
                folio.state.clear(Flag::Referenced);
                make_inactive(lists, folio, its_pages);
            }
            moved > 0
        })
    }

    /// Runs `f` with the lock of the lists.
    #[track_caller]
    pub(crate) fn locked<R>(&self, lru_use: LruUse, f: impl FnOnce() -> R) -> R {
        let _lists = self.lists.lock(lru_use);
        f()
    }

    /// The pages that the folios of the active list count as. Takes no lock.
    pub(crate) fn active_pages(&self) -> usize {
        self.active_pages.load(Ordering::Relaxed)
    }

    /// The pages that the folios of the inactive and the standby list count as: those that were not touched
    /// for some time. Takes no lock.
    pub(crate) fn idle_pages(&self) -> usize {
        self.idle_pages.load(Ordering::Relaxed)
    }

    /// The pages that all folios count as. Takes no lock.
    pub(crate) fn listed_pages(&self) -> usize {
        self.idle_pages() + self.active_pages()
    }

    /// The pages that were evicted.
    pub(super) fn evicted(&self) -> &Outside {
        &self.evicted
    }

    /// How many folios are in the lists.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let lists = self.lists.lock(LruUse::End);
        (0..List::COUNT).map(|list| lists.len(list)).sum()
    }

    /// Takes all folios out of all lists.
    pub(crate) fn take_all(&self) -> Vec<Arc<Folio>> {
        let all = [List::Inactive, List::Standby, List::Active];
        self.change(LruUse::End, |lists| {
            let mut taken = Vec::new();
            for list in all {
                taken.extend(std::iter::from_fn(|| lists.pop(list as usize)).map(|entry| entry.0));
            }
            taken
        })
    }
}

fn sizes(lists: &Folios) -> Sizes {
    let pages = |list| lists.pages(list as usize);
    Sizes { inactive: pages(List::Inactive), standby: pages(List::Standby), active: pages(List::Active) }
}

fn push(lists: &mut Folios, folio: Arc<Folio>, list: List, pages: u32) {
    if folio.state.test(Flag::Dead) {
        return;
    }
    debug_assert!(!is_listed(lists, &folio), "it is in a list already");
    let (folio, number) = lists.push(list as usize, folio, pages);
    folio.listed.store(number, Ordering::Relaxed);
}

/// Whether a folio is in a list: whether the entry with the number in [`Folio::listed`] is still its own. A
/// folio that is taken out of a list keeps the number, since reclaim takes many folios at once and writes
/// to none of them while it has the lock.
fn is_listed(lists: &Folios, folio: &Folio) -> bool {
    let entry = lists.get(folio.listed.load(Ordering::Relaxed));
    entry.is_some_and(|other| std::ptr::eq(&raw const **other, folio))
}

fn make_inactive(lists: &mut Folios, folio: Arc<Folio>, pages: u32) {
    folio.state.clear(Flag::Active);
    push(lists, folio, List::Inactive, pages);
}

/// Makes the oldest folios of the active list inactive while the list has more than its share. Folios that
/// were used since the last look stay active; returns how many pages these are.
fn balance(lists: &mut Folios, share: usize) -> usize {
    let mut rotated = 0;
    for _ in 0..BALANCE_LOOKS {
        if lists.pages(List::Active as usize) <= share {
            break;
        }
        let Some((folio, pages)) = lists.pop(List::Active as usize) else { break };
        if folio.state.clear(Flag::Referenced) {
            rotated += pages as usize;
            push(lists, folio, List::Active, pages);
        } else {
            make_inactive(lists, folio, pages);
        }
    }
    rotated
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::object::{ObjectTable, WhenUnmapped};
    use crate::page::Owner;

    const ALL: Batch = Batch { pages: usize::MAX, folios: 64, wanted: usize::MAX };

    fn add(lru: &Lruvec, folio: Arc<Folio>, list: List) {
        let pages = folio.pages() as u32;
        lru.add([Addition { folio, list, pages }].into_iter());
    }

    /// A function that makes folios of one object, and empty lists.
    fn world() -> (impl Fn(u64) -> Arc<Folio>, Lruvec) {
        let locks = LockStats::new();
        let object = ObjectTable::new(None, WhenUnmapped::Keep, &locks).memory(0);
        (
            move |index| Arc::new(Folio::new(Owner::file(&object), object.group.get(), index, 0)),
            Lruvec::new(1 << 10, &locks),
        )
    }

    fn indexes(taken: Option<Taken>) -> Vec<u64> {
        match taken {
            None => Vec::new(),
            Some(Taken::Standby(folios) | Taken::Inactive(folios)) => {
                folios.iter().map(|folio| folio.index).collect()
            }
        }
    }

    #[test]
    fn what_dies_is_in_no_list_whoever_has_it() {
        let (folio, lru) = world();
        let folios: Vec<_> = (0..6).map(folio).collect();
        folios.iter().for_each(|folio| add(&lru, folio.clone(), List::Inactive));
        // Two of the folios are taken by reclaim, and one of these two dies meanwhile.
        let few = Batch { folios: 2, ..ALL };
        let Some(Taken::Inactive(taken)) = lru.take(usize::MAX, few, |_, _| Next::Age) else {
            panic!("nothing is taken")
        };
        for dead in [1, 3, 5] {
            folios[dead].state.set(Flag::Dead);
            lru.remove([&*folios[dead]]);
        }
        lru.remove([1, 3, 5].map(|dead| &*folios[dead]));
        taken.into_iter().for_each(|folio| add(&lru, folio, List::Inactive));
        assert_eq!((lru.len(), lru.idle_pages()), (3, 3));
        assert_eq!(indexes(lru.take(usize::MAX, ALL, |_, _| Next::Age)), [2, 4, 0]);
        assert!(folios.iter().all(|folio| Arc::strong_count(folio) == 1), "the lists keep none");
    }

    #[test]
    fn what_is_taken_is_of_the_list_that_is_chosen() {
        let (folio, lru) = world();
        (0..2).for_each(|index| add(&lru, folio(index), List::Standby));
        (10..12).for_each(|index| add(&lru, folio(index), List::Inactive));
        for index in 20..24 {
            let folio = folio(index);
            // This folio was used since the last look, so it stays active.
            if index == 20 {
                folio.state.set(Flag::Referenced);
            }
            add(&lru, folio, List::Active);
        }
        let take = |batch, next| {
            let mut seen = None;
            let taken = lru.take(2, batch, |sizes, _| {
                seen = Some(sizes);
                next
            });
            (indexes(taken), seen.unwrap())
        };
        let sizes = |inactive, standby, active| Sizes { inactive, standby, active };
        assert_eq!(
            take(ALL, Next::Evict(1)),
            (vec![0], sizes(4, 2, 2)),
            "the active list has its share first"
        );
        let one = Batch { pages: 1, ..ALL };
        assert_eq!(take(one, Next::Age), (vec![10], sizes(4, 1, 2)));
        assert_eq!(take(ALL, Next::Evict(0)).0, [1]);
        assert_eq!(take(ALL, Next::Evict(9)), (vec![], sizes(3, 0, 2)));
        assert_eq!(take(ALL, Next::Age).0, [11, 21, 22]);
        assert_eq!(take(ALL, Next::Age), (vec![], sizes(0, 0, 2)));
        assert!(lru.deactivate(1));
        assert_eq!((lru.active_pages(), take(ALL, Next::Age).0), (1, vec![23]));
        let sample = |index| Addition { folio: folio(index), list: List::Standby, pages: 16 };
        lru.add([sample(30), sample(31), sample(32)].into_iter());
        assert_eq!(lru.idle_pages(), 48);
        let few = Batch { wanted: 17, ..ALL };
        assert_eq!(take(few, Next::Evict(100)).0, [30, 31], "no more than is wanted");
        assert_eq!((lru.take_all().len(), lru.len(), lru.deactivate(1)), (2, 0, false));
    }
}
