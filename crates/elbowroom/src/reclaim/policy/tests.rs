//! The policies on caches of a few hundred pages, driven as reclaim drives them.

use super::{Chance, Listed, Policy, Refaulted, TwoLists};
use crate::ablation::Ablation;
use crate::division::{Divided, Division};
use crate::group::Kind;
use crate::lru::{List, Next, Sizes};
use std::collections::{HashMap, VecDeque};

/// How many folios fit in the cache.
const ROOM: usize = 512;

/// A page that is in memory.
#[derive(Clone, Copy)]
struct Page {
    list: List,
    counts_as: u32,
    touched: bool,
    was_active: bool,
}

/// A cache of clean folios of a file, each of as many pages.
struct Cache<P> {
    policy: P,
    divided: Divided,
    each: usize,
    pages: HashMap<u64, Page>,
    /// The inactive, standby and active list, by [`List`].
    lists: [VecDeque<u64>; 3],
    /// How many evictions there had been when each page was evicted.
    evicted: HashMap<u64, u64>,
    evictions: u64,
    hits: u64,
}

impl<P: Policy> Cache<P> {
    fn new(policy: P, each: usize) -> Self {
        let lists = Default::default();
        let (divided, pages, evicted) = (Divided::default(), HashMap::new(), HashMap::new());
        Self { policy, divided, each, pages, lists, evicted, evictions: 0, hits: 0 }
    }

    fn of(&self) -> Listed<'_> {
        Listed { kind: Kind::File, room: ROOM * self.each, divided: &self.divided }
    }

    fn size(&self, list: List) -> usize {
        let pages = self.pages.values().filter(|page| page.list == list);
        pages.map(|page| page.counts_as as usize * self.each).sum()
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
            while self.size(List::Active) > self.policy.active_share(self.of()) {
                let (number, page) = self.pop(List::Active).expect("it has pages");
                let list = if page.touched { List::Active } else { List::Inactive };
                self.put(number, list, Page { touched: false, ..page });
            }
            let sizes = Sizes {
                inactive: self.size(List::Inactive),
                standby: self.size(List::Standby),
                active: self.size(List::Active),
            };
            let next = self.policy.next(sizes, self.of(), false);
            let list = if next == Next::Age { List::Inactive } else { List::Standby };
            let Some((number, page)) = self.pop(list) else { panic!("nothing can be evicted of {sizes:?}") };
            let single = Page { counts_as: 1, touched: false, ..page };
            if list == List::Inactive {
                let alone = self.each == 1;
                match if alone { self.policy.chance(page.was_active) } else { Chance::CountsAs(1) } {
                    Chance::Skipped => self.evict(number),
                    Chance::CountsAs(counts_as) => {
                        self.put(number, List::Standby, Page { counts_as, ..single });
                    }
                }
                continue;
            }
            self.policy.note_file_chance(self.each as u64, page.touched, self.of());
            if !page.was_active && self.each == 1 {
                self.policy.note_chance(page.touched);
            }
            if page.touched {
                self.put(number, List::Active, Page { was_active: true, ..single });
            } else {
                self.evict(number);
            }
        }
    }

    /// Makes the page inactive that has been active for longest, as reclaim does where nothing else is left.
    fn deactivate(&mut self) {
        if let Some((number, page)) = self.pop(List::Active) {
            self.put(number, List::Inactive, page);
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
        let evictions = |at| (self.evictions - at) * self.each as u64;
        let distance = self.evicted.remove(&number).map(evictions);
        let active = self.size(List::Active);
        let activate = distance.is_some_and(|distance| {
            self.policy.activates(Refaulted { distance, pages: self.each }, active, self.of())
        });
        let list = if activate { List::Active } else { List::Inactive };
        self.put(number, list, Page { list, counts_as: 1, touched: false, was_active: activate });
    }
}

/// The share of hits, in percent, of the second half of the accesses to single pages.
fn hit_percent(ablation: &Ablation, accesses: &[u64]) -> u64 {
    hit_percent_of(1, ablation, accesses)
}

/// The same of folios of so many pages.
fn hit_percent_of(each: usize, ablation: &Ablation, accesses: &[u64]) -> u64 {
    hit_percent_with(TwoLists::new(ablation, None), each, accesses)
}

fn hit_percent_with(policy: TwoLists, each: usize, accesses: &[u64]) -> u64 {
    let mut cache = Cache::new(policy, each);
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
    let (policy, divided) = (TwoLists::new(&Ablation::default(), None), Divided::default());
    let sizes = |inactive, standby| Sizes { inactive, standby, active: 0 };
    let of = Listed { kind: Kind::File, room: ROOM, divided: &divided };
    let next = |sizes, barren| policy.next(sizes, of, barren);
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
    let policy = TwoLists::new(&Ablation::default(), None);
    let mut cache = Cache::new(policy, 1);
    accesses.iter().for_each(|page| cache.access(*page));
    let skipped = (0..160).filter(|_| cache.policy.chance(false) == Chance::Skipped).count();
    assert_eq!(skipped, 150, "one in sixteen has its chance");
    assert_eq!(cache.policy.chance(true), Chance::CountsAs(1), "it was active once");
    let with = hit_percent(&Ablation { skipped_chances: false, ..Ablation::default() }, &accesses);
    assert!(hit_percent(&Ablation::default(), &accesses).abs_diff(with) <= 1);
}

fn undivided() -> Ablation {
    Ablation::without("division_pages").unwrap()
}

/// The share of hits, in percent, of the second half of the accesses to an LRU list.
fn lru_percent(accesses: &[u64]) -> u64 {
    let (mut list, mut hits) = (VecDeque::new(), 0);
    for (turn, page) in accesses.iter().enumerate() {
        match list.iter().position(|other| other == page) {
            Some(place) => {
                hits += u64::from(turn >= accesses.len() / 2);
                list.remove(place);
            }
            None if list.len() == ROOM => _ = list.pop_front(),
            None => {}
        }
        list.push_back(*page);
    }
    hits * 100 / (accesses.len() - accesses.len() / 2) as u64
}

/// Accesses to the experts of a model that is four times as large as memory: each token uses 4 of the 32 of
/// each of 12 layers, some more than others, and often those that the token before has used. An expert has 5
/// folios, and each layer 4 more that all tokens use.
fn experts(seed: u64, tokens: usize) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut orders: Vec<Vec<u64>> = (0..12).map(|_| (0..32).collect()).collect();
    orders.iter_mut().for_each(|order| random.shuffle(order));
    let mut used: Vec<Vec<u64>> = orders.iter().map(|order| order[..4].to_vec()).collect();
    let mut accesses = Vec::new();
    for _ in 0..tokens {
        for (layer, (order, used)) in (0..).zip(orders.iter().zip(&mut used)) {
            let mut next: Vec<u64> = used.iter().copied().filter(|_| random.u8(0..10) < 3).collect();
            while next.len() < 4 {
                let expert = order[(random.f64().powi(2) * 32.0) as usize];
                if !next.contains(&expert) {
                    next.push(expert);
                }
            }
            accesses.extend((0..4).map(|part| 100_000 + layer * 4 + part));
            accesses.extend(
                next.iter().flat_map(|expert| (0..5).map(move |part| (layer * 32 + expert) * 5 + part)),
            );
            *used = next;
        }
    }
    accesses
}

/// Of folios that are used again soon nearly as many are kept as an LRU list keeps: more than without a
/// division of its own.
#[test]
fn experts_that_are_used_again_are_kept() {
    let accesses = experts(5, 400);
    let [divided, even] =
        [Ablation::default(), undivided()].map(|ablation| hit_percent_of(32, &ablation, &accesses));
    let lru = lru_percent(&accesses);
    assert!(divided + 1 >= lru && divided >= even + 3, "{divided} percent, {even} undivided, LRU {lru}");
}

/// Of a cycle over four times the memory, all that fits is kept from the second round on, but for a few. The
/// memory is large beside the reads under way, for which some is left.
#[test]
fn a_cycle_of_large_folios_keeps_nearly_all_of_memory() {
    let rounds: Vec<u64> = (0..12).flat_map(|_| 0..4 * ROOM as u64).collect();
    let divided = hit_percent_of(128, &Ablation::default(), &rounds);
    let even = hit_percent_of(128, &undivided(), &rounds);
    assert!(divided >= 23 && even <= 15, "{divided} percent, {even} undivided, and 25 are possible");
}

/// Folios of a cycle that were lost shortly before their turn come back soon. Each would push out the one
/// that was kept for longest, of which the turn comes next, and so on for ever.
#[test]
fn folios_that_are_lost_before_their_turn_take_no_others_with_them() {
    let (mut cache, end) =
        (Cache::new(TwoLists::new(&Ablation::default(), Some(Division::Kept)), 32), 4 * ROOM as u64);
    for round in 0..12 {
        let before = cache.hits;
        for number in 0..end {
            cache.access(number);
            if round == 4 && number == end - 128 {
                (0..64).for_each(|_| cache.deactivate());
            }
        }
        let percent = (cache.hits - before) * 100 / end;
        let least = if round == 5 { 18 } else { 22 };
        assert!(round < 2 || percent >= least, "{percent} percent in round {round}");
    }
}

/// What comes behind a cycle is not worse for what was kept of it.
#[test]
fn what_was_kept_goes_when_it_is_not_used_any_more() {
    let cycle = (0..6).flat_map(|_| 0..4 * ROOM as u64);
    let others = experts(7, 400).into_iter().map(|expert| expert + 1_000_000);
    let accesses: Vec<u64> = cycle.chain(others).collect();
    let percent = hit_percent_of(32, &Ablation::default(), &accesses);
    let alone = hit_percent_of(32, &Ablation::default(), &experts(7, 400));
    assert!(percent + 2 >= alone, "{percent} percent, {alone} without a cycle before");
}

/// A set that fits in memory, used after passes over more than memory, is in memory before long.
#[test]
fn what_fits_comes_in_after_passes_over_more() {
    let passes = (0..8).flat_map(|_| 0..4 * ROOM as u64);
    for each in [1, 32] {
        let set = (0..60).flat_map(|_| 1_000_000..1_000_000 + ROOM as u64 * 8 / 10);
        let accesses: Vec<u64> = passes.clone().chain(set).collect();
        let percent = hit_percent_of(each, &Ablation::default(), &accesses);
        assert!(percent >= 80, "{percent} percent of folios of {each} pages");
    }
}

/// Each way of use has its own division, and none is better for it. The lists choose that one from what they
/// see.
#[test]
fn the_chosen_division_is_the_best_of_the_fixed_ones() {
    let cycle: Vec<u64> = (0..12).flat_map(|_| 0..4 * ROOM as u64).collect();
    let ablation = Ablation::default();
    for (accesses, best) in [(cycle, Division::Kept), (experts(9, 400), Division::Long)] {
        let fixed = |division| hit_percent_with(TwoLists::new(&ablation, Some(division)), 32, &accesses);
        let percents = Division::ALL.map(fixed);
        assert_eq!(percents.into_iter().max(), Some(fixed(best)), "{percents:?}");
        let chosen = hit_percent_of(32, &ablation, &accesses);
        assert!(chosen + 1 >= fixed(best), "{chosen} percent, and fixed {percents:?}");
    }
}

/// Of passes over hardly more than memory all folios come back soon. Divisions that follow the last use find
/// none of them.
#[test]
fn passes_over_hardly_more_than_memory_keep_most_of_it() {
    let ablation = Ablation::default();
    for size in [11, 12, 14].map(|tenths| ROOM as u64 * tenths / 10) {
        let rounds: Vec<u64> = (0..60).flat_map(|_| 0..size).collect();
        let fixed = |division| hit_percent_with(TwoLists::new(&ablation, Some(division)), 32, &rounds);
        let percents = Division::ALL.map(fixed);
        let chosen = hit_percent_of(32, &ablation, &rounds);
        assert!(
            chosen * 100 >= fixed(Division::Kept) * 85,
            "{chosen} percent of {size}, and fixed {percents:?}"
        );
    }
}

/// The division of one group does not follow how another group uses its folios.
#[test]
fn groups_have_divisions_of_their_own() {
    let policy = TwoLists::new(&Ablation::default(), None);
    let [one, other] = [Divided::default(), Divided::default()];
    let of = |divided| Listed { kind: Kind::File, room: 1000, divided };
    let changes = (0..1000).filter(|_| policy.note_file_chance(32, true, of(&one))).count();
    assert_eq!((changes, one.current(), other.current()), (1, Division::Long, Division::Even));
    let shares = |divided| (policy.active_share(of(divided)), policy.standby_share(of(divided)));
    assert_eq!(shares(&one), (300, 500));
    assert!(shares(&other).0 > 300 && shares(&other).1 < 500);
    let anonymous = Listed { kind: Kind::Anonymous, ..of(&one) };
    assert_eq!(policy.active_share(anonymous), shares(&other).0);
}
