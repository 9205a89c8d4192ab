//! What reclaim costs, by group and kind, for the scan balance ([`Costs`]).
//!
//! Threads count costs in counter rows of their own, and nowhere else. The thread that reclaims adds up the
//! counters of the groups that it takes from, and adds what is new since its last look to the costs, under
//! a lock of its own, which no list operation takes. With `Ablation::scan_cost` off, costs are noted as
//! Linux did: each event takes a lock of the lists and adds to their cost, once more for each group above,
//! and a scan takes the lock to copy two numbers.

use super::Reclaim;
use super::policy::{Costs, Counted};
use crate::config::MAX_GROUPS;
use crate::group::{GroupEvent, GroupId, Kind};
use crate::page::Folio;
use crate::platform::Platform;
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{LockClass, LockStats, LruUse, Mutant, Mutex, OnceLock};

/// In tests of the tests: each event adds its cost under the lock of the lists.
const MUTANT_COST_UNDER_LOCK: Mutant = Mutant::new("cost_under_lock");

/// For more groups than this, the counters are added up at most once in [`OFTEN`], since that takes long.
/// Linux: `mem_cgroup_flush_stats_ratelimited`.
const FEW: usize = 16;

/// See [`FEW`].
const OFTEN: Duration = Duration::from_millis(10);

/// The costs of each group together with the groups below it.
pub(super) struct CostTable {
    groups: Vec<OnceLock<Box<Mutex<Held>>>>,
    locks: LockStats,
}

/// The costs of a group, and when they were looked at.
struct Held {
    group: GroupId,
    costs: Costs,
    /// When the counters were added up last.
    looked: Instant,
}

impl Held {
    fn new(group: GroupId) -> Self {
        Self { group, costs: Costs::default(), looked: Instant::now() }
    }
}

impl CostTable {
    pub(super) fn new(locks: &LockStats) -> Self {
        Self { groups: (0..MAX_GROUPS).map(|_| OnceLock::new()).collect(), locks: locks.clone() }
    }

    /// Runs `f` with the costs of a group, under their lock.
    fn with<R>(&self, group: GroupId, f: impl FnOnce(&mut Held) -> R) -> R {
        let new = || Box::new(self.locks.mutex(LockClass::Cost, Held::new(group)));
        let mut held = self.groups[group.index()].get_or_init(new).lock();
        if held.group != group {
            // The index was used by another group before: begin anew.
            *held = Held::new(group);
        }
        f(&mut held)
    }
}

/// The events that make taking from a kind of memory cost something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cost {
    /// Pages were written to be freed. Linux: `nr_pageout`.
    Pageout,
    /// Evicted pages came back so early that they count as in use. Linux: `WORKINGSET_RESTORE`.
    Restore,
    /// Pages that reclaim looked at were in use. Linux: `nr_rotated`.
    Rotation,
}

impl Cost {
    fn event(self, kind: Kind) -> GroupEvent {
        match self {
            Self::Pageout => GroupEvent::Pageouts(kind),
            Self::Restore => GroupEvent::Restores(kind),
            Self::Rotation => GroupEvent::Rotations(kind),
        }
    }

    /// What the lock of the lists is taken for to note it, if it is.
    fn lru_use(self) -> LruUse {
        match self {
            Self::Pageout => LruUse::ShrinkCost,
            Self::Restore => LruUse::RefaultCost,
            Self::Rotation => LruUse::RotationCost,
        }
    }

    fn of(self, pages: u64) -> Counted {
        match self {
            Self::Pageout => Counted { pageouts: pages, ..Counted::default() },
            Self::Restore => Counted { restores: pages, ..Counted::default() },
            Self::Rotation => Counted { rotations: pages, ..Counted::default() },
        }
    }
}

/// Adds a cost of `pages` pages to a folio's group and kind.
pub(super) fn note_folio<P: Platform>(reclaim: &Reclaim<P>, folio: &Folio, cost: Cost, pages: u64) {
    let kind = if folio.is_cached() { Kind::File } else { Kind::Anonymous };
    note(reclaim, (folio.group, kind), cost, pages);
}

/// Adds a cost of `pages` pages to a group and kind.
pub(super) fn note<P: Platform>(
    reclaim: &Reclaim<P>,
    (group, kind): (GroupId, Kind),
    cost: Cost,
    pages: u64,
) {
    if pages == 0 {
        return;
    }
    reclaim.groups.count(group, cost.event(kind), pages);
    if !reclaim.config.ablation.scan_cost || MUTANT_COST_UNDER_LOCK.planted() {
        let mut new = [0; Kind::COUNT];
        new[kind as usize] = cost.of(pages).cost();
        for above in reclaim.groups.with_all_above(group) {
            let lists = Kind::ALL.map(|kind| reclaim.lists.at(above, kind));
            let pages = lists.map(|lruvec| lruvec.listed_pages() as u64).into_iter().sum();
            let note = || reclaim.costs.with(above, |held| held.costs.note(new, pages));
            lists[kind as usize].locked(cost.lru_use(), note);
        }
    }
}

/// What it cost lately to take from `target` and the groups below it. `within`: these groups.
pub(super) fn look<P: Platform>(reclaim: &Reclaim<P>, target: GroupId, within: &[GroupId]) -> Costs {
    if !reclaim.config.ablation.scan_cost {
        let copy = || reclaim.costs.with(target, |held| held.costs);
        return reclaim.lists.at(target, Kind::File).locked(LruUse::ScanStart, copy);
    }
    // For many groups, adding up the counters takes longer than freeing some pages.
    let last = reclaim
        .costs
        .with(target, |held| (within.len() > FEW && held.looked.elapsed() < OFTEN).then_some(held.costs));
    if let Some(costs) = last {
        return costs;
    }
    let counted = Kind::ALL.map(|kind| {
        let sum = |cost: Cost| {
            let of = |group: &GroupId| reclaim.groups.of(*group).counters.get(cost.event(kind));
            within.iter().map(of).fold(0, u64::wrapping_add)
        };
        let [pageouts, restores, rotations] = [Cost::Pageout, Cost::Restore, Cost::Rotation].map(sum);
        Counted { pageouts, restores, rotations }
    });
    let lists = within.iter().flat_map(|group| Kind::ALL.map(|kind| reclaim.lists.at(*group, kind)));
    let pages = lists.map(|lruvec| lruvec.listed_pages() as u64).sum();
    reclaim.costs.with(target, |held| {
        held.costs.look(counted, pages);
        held.looked = Instant::now();
        held.costs
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::group::Limits;
    use crate::{Ablation, Config, Manager, Soft};

    /// How often the locks of lists and of costs were taken.
    fn taken(manager: &Manager<Soft>) -> [u64; 2] {
        let rows = manager.locks().snapshot().by_lock();
        ["lru", "cost"]
            .map(|name| rows.iter().filter(|row| row.lock.name() == name).map(|row| row.acquisitions).sum())
    }

    /// Noting a cost takes no lock; with `scan_cost` off, one for the group and one for each group above,
    /// as in Linux. The counters are the same either way.
    #[test]
    fn costs_are_noted_without_a_lock() {
        let mut all = Vec::new();
        for (off, locks) in [("", 0), ("scan_cost", 3 * 64)] {
            let config = Config::with_memory(32 << 20);
            let ablation = Ablation::without(off).unwrap();
            let manager = Manager::<Soft>::start_on(Config { ablation, ..config }).unwrap();
            let above = manager.groups().create(GroupId::ROOT, &Limits::default()).unwrap();
            let group = manager.groups().create(above, &Limits::default()).unwrap();
            let core = manager.core();
            let before = taken(&manager);
            for turn in 0..64 {
                let cost = [Cost::Pageout, Cost::Restore, Cost::Rotation][turn % 3];
                note(core, (group, Kind::ALL[turn % 2]), cost, 3);
            }
            let after = taken(&manager);
            assert_eq!([after[0] - before[0], after[1] - before[1]], [locks; 2], "{off}");
            let uses = manager.locks().snapshot().by_lru_use();
            let of = |cost: Cost| {
                let row = uses.iter().find(|row| row.lru_use == Some(cost.lru_use()));
                row.map_or(0, |row| row.acquisitions)
            };
            let of_costs = [Cost::Pageout, Cost::Restore, Cost::Rotation].map(of);
            assert_eq!(of_costs, if locks == 0 { [0; 3] } else { [66, 63, 63] }, "{off}");
            // The lists are empty, so the costs decay to 0 at once: the counters are compared instead.
            let within = [above, group];
            assert_eq!(look(core, above, &within), look(core, GroupId::ROOT, &within));
            let counted = |cost: Cost| {
                let count = |kind| core.groups.of(group).counters.get(cost.event(kind));
                Kind::ALL.map(count)
            };
            all.push([Cost::Pageout, Cost::Restore, Cost::Rotation].map(counted));
        }
        assert_eq!(all[0], all[1]);
        assert_eq!(all[0].iter().flatten().sum::<u64>(), 3 * 64);
    }
}
