//! The policies on caches of a few hundred pages, driven as reclaim drives them.

use super::{Chance, Policy, TwoLists};
use crate::ablation::Ablation;
use crate::group::Kind;
use crate::lru::{List, Next, Sizes};
use std::collections::{HashMap, VecDeque};

/// How many pages fit in the cache.
const ROOM: usize = 512;

/// A page that is in memory.
#[derive(Clone, Copy)]
struct Page {
    list: List,
    counts_as: u32,
    touched: bool,
    was_active: bool,
}

/// A cache of single clean pages of a file.
struct Cache<P> {
    policy: P,
    pages: HashMap<u64, Page>,
    /// The inactive, standby and active list, by [`List`].
    lists: [VecDeque<u64>; 3],
    /// How many evictions there had been when each page was evicted.
    evicted: HashMap<u64, u64>,
    evictions: u64,
    hits: u64,
}

impl<P: Policy> Cache<P> {
    fn new(policy: P) -> Self {
        let lists = Default::default();
        Self { policy, pages: HashMap::new(), lists, evicted: HashMap::new(), evictions: 0, hits: 0 }
    }

    fn size(&self, list: List) -> usize {
        let pages = self.pages.values().filter(|page| page.list == list);
        pages.map(|page| page.counts_as as usize).sum()
    }

    fn put(&mut self, number: u64, list: List, page: Page) {
        self.pages.insert(number, Page { list, ..page });
        self.lists[list as usize].push_back(number);
    }

    fn pop(&mut self, list: List) -> Option<(u64, Page)> {
        let number = self.lists[list as usize].pop_front()?;
        Some((number, self.pages.remove(&number).expect("it is in a list")))
    }

    fn evict(&mut self, number: u64) {
        self.evictions += 1;
        self.evicted.insert(number, self.evictions);
    }

    /// Evicts pages until one is freed.
    fn reclaim(&mut self) {
        let before = self.pages.len();
        while self.pages.len() == before {
            while self.size(List::Active) > self.policy.active_share(ROOM) {
                let (number, page) = self.pop(List::Active).expect("it has pages");
                let list = if page.touched { List::Active } else { List::Inactive };
                self.put(number, list, Page { touched: false, ..page });
            }
            let sizes = Sizes {
                inactive: self.size(List::Inactive),
                standby: self.size(List::Standby),
                active: self.size(List::Active),
            };
            let next = self.policy.next(sizes, ROOM, false);
            let list = if next == Next::Age { List::Inactive } else { List::Standby };
            let Some((number, page)) = self.pop(list) else { panic!("nothing can be evicted of {sizes:?}") };
            let single = Page { counts_as: 1, touched: false, ..page };
            if list == List::Inactive {
                match self.policy.chance(page.was_active) {
                    Chance::Skipped => self.evict(number),
                    Chance::CountsAs(counts_as) => {
                        self.put(number, List::Standby, Page { counts_as, ..single });
                    }
                }
                continue;
            }
            if !page.was_active {
                self.policy.note_chance(page.touched);
            }
            if page.touched {
                self.put(number, List::Active, Page { was_active: true, ..single });
            } else {
                self.evict(number);
            }
        }
    }

    fn access(&mut self, number: u64) {
        if let Some(page) = self.pages.get_mut(&number) {
            self.hits += 1;
            // A page in its window is accessed without a fault, so the access is not seen; one on standby
            // is home, so it is.
            page.touched |= page.list == List::Standby;
            return;
        }
        while self.pages.len() >= ROOM {
            self.reclaim();
        }
        let distance = self.evicted.remove(&number).map(|at| self.evictions - at);
        let active = self.size(List::Active);
        let activate = distance.is_some_and(|distance| {
            self.policy.activates(Refaulted { kind: Kind::File, distance, pages: 1 }, active, ROOM)
        });
        let list = if activate { List::Active } else { List::Inactive };
        self.put(number, list, Page { list, counts_as: 1, touched: false, was_active: activate });
    }
}

/// The share of hits, in percent, of the second half of the accesses.
fn hit_percent(ablation: &Ablation, accesses: &[u64]) -> u64 {
    let mut cache = Cache::new(TwoLists::new(ablation));
    let (warm, measured) = accesses.split_at(accesses.len() / 2);
    warm.iter().for_each(|page| cache.access(*page));
    cache.hits = 0;
    measured.iter().for_each(|page| cache.access(*page));
    assert!(cache.pages.len() <= ROOM);
    cache.hits * 100 / measured.len() as u64
}

#[test]
fn what_fits_stays_beside_a_few_others() {
    let turn = |turn: u64| {
        if turn.is_multiple_of(50) { 100_000 + turn } else { turn * 7919 % (ROOM as u64 * 3 / 4) }
    };
    let accesses: Vec<u64> = (0..80_000).map(turn).collect();
    let percent = hit_percent(&Ablation::default(), &accesses);
    assert!((95..=98).contains(&percent), "{percent} percent, and 98 are possible");
}

#[test]
fn what_cannot_be_taken_is_not_asked_for_again() {
    let policy = TwoLists::new(&Ablation::default());
    let sizes = |inactive, standby| Sizes { inactive, standby, active: 0 };
    let next = |sizes, barren| policy.next(sizes, ROOM, barren);
    assert_eq!(next(sizes(100, 1), false), Next::Age);
    assert_eq!(next(sizes(100, 1), true), Next::Evict(0));
    assert_eq!(next(sizes(0, 1), false), Next::Evict(0));
    assert_eq!(next(sizes(100, ROOM / 16 + 3), false), Next::Evict(3), "more than its share");
}

/// A set of a third of memory is used all the time, while a scan reads other pages once each.
#[test]
fn a_scan_leaves_what_is_used() {
    let used = |turn: u64| turn * 7919 % (ROOM as u64 / 3);
    let accesses: Vec<u64> =
        (0..40_000).flat_map(|turn| [used(turn), used(turn + 1), 100_000 + turn]).collect();
    let percent = hit_percent(&Ablation::default(), &accesses);
    assert!((64..=66).contains(&percent), "{percent} percent, and 67 are possible");
}

/// A plain LRU list keeps nothing of a cycle over twice the memory; the policy keeps a part.
#[test]
fn a_cycle_longer_than_memory_keeps_a_part() {
    let accesses: Vec<u64> = (0..60).flat_map(|_| 0..2 * ROOM as u64).collect();
    let percent = hit_percent(&Ablation::default(), &accesses);
    assert!(percent >= 20, "{percent} percent, and 50 are possible");
    let mut without = Ablation::default();
    without.tuning.bimodal_one_in = u64::MAX;
    let percent = hit_percent(&without, &accesses);
    assert!(percent <= 2, "{percent} percent without bimodal insertion");
}

/// Random accesses to single pages of far more than memory: hardly any second chance is taken, so most are
/// skipped, which costs no hits.
#[test]
fn chances_that_nobody_takes_are_skipped() {
    let mut random = fastrand::Rng::with_seed(3);
    let accesses: Vec<u64> = (0..60_000).map(|_| random.u64(0..50 * ROOM as u64)).collect();
    let policy = TwoLists::new(&Ablation::default());
    let mut cache = Cache::new(policy);
    accesses.iter().for_each(|page| cache.access(*page));
    let skipped = (0..160).filter(|_| cache.policy.chance(false) == Chance::Skipped).count();
    assert_eq!(skipped, 150, "one in sixteen has its chance");
    assert_eq!(cache.policy.chance(true), Chance::CountsAs(1), "it was active once");
    let with = hit_percent(&Ablation { skipped_chances: false, ..Ablation::default() }, &accesses);
    assert!(hit_percent(&Ablation::default(), &accesses).abs_diff(with) <= 1);
}
