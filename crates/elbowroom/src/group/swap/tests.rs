//! What is charged to the swap of groups.

use super::*;
use crate::config::MAX_GROUPS;
use crate::group::{DirtyLimits, Frames, Groups, Limits, OverLimit};
use elbowroom_machine::soft::{SoftConfig, SoftMmu};
use elbowroom_machine::{Errno, PAGE_SIZE};
use elbowroom_sync::{LockClass, LockStats, Mutex, thread};

const PAGE: u64 = PAGE_SIZE as u64;
const ROOT: GroupId = GroupId::ROOT;

fn groups() -> Groups {
    Groups::new(DirtyLimits::NONE, 0, &LockStats::new())
}

fn swap_max(pages: u64) -> Limits {
    Limits { swap_max: pages * PAGE, ..Limits::default() }
}

/// Charges pages one by one, until one is refused: by which group.
fn fill(groups: &Groups, group: GroupId, pages: u64) -> (Vec<SwapGroup>, Option<GroupId>) {
    let mut had = Vec::new();
    for _ in 0..pages {
        match groups.charge_swap(group, 1) {
            Ok(charged) => had.push(charged),
            Err(full) => return (had, Some(full)),
        }
    }
    (had, None)
}

fn give_back(groups: &Groups, charged: Vec<SwapGroup>) {
    charged.into_iter().for_each(|group| groups.uncharge_swap(group, 1));
}

#[test]
fn no_group_has_more_in_swap_than_its_limit_and_those_above_it() {
    let groups = groups();
    let above = groups.create(ROOT, &swap_max(10)).unwrap();
    let (one, two) = (groups.create(above, &swap_max(8)), groups.create(above, &Limits::default()));
    let (one, two) = (one.unwrap(), two.unwrap());
    let (first, full) = fill(&groups, one, 100);
    assert_eq!((first.len(), full, groups.full_swap(one)), (8, Some(one), Some(one)));
    assert_eq!(groups.charge_swap(two, 3), Err(above), "all pages, or none");
    let (mut second, full) = fill(&groups, two, 100);
    assert_eq!((second.len(), full, groups.full_swap(two)), (2, Some(above), Some(above)));
    assert_eq!([above, one, two, ROOT].map(|group| groups.swap_pages(group)), [10, 8, 2, 10]);
    groups.check_swap(first.iter().chain(&second).copied());
    let stats = [above, one].map(|group| groups.stats(group).unwrap().swap);
    assert_eq!(
        stats.map(|swap| (swap.bytes, swap.peak_bytes)),
        [(10 * PAGE, 10 * PAGE), (8 * PAGE, 8 * PAGE)]
    );
    assert_eq!(stats.map(|swap| swap.max), [3, 1], "a group's events are those of the groups above, too");
    // Of a limit below what is in swap nothing comes of itself, but no page goes out any more.
    groups.change_limits(above, |_| swap_max(4)).unwrap();
    assert_eq!((groups.swap_pages(above), groups.charge_swap(two, 1)), (10, Err(above)));
    give_back(&groups, first);
    let (more, full) = fill(&groups, two, 100);
    assert_eq!((more.len(), full), (2, Some(above)));
    second.extend(more);
    groups.check_swap(second.iter().copied());
    give_back(&groups, second);
    groups.check_swap(std::iter::empty());
    assert_eq!(groups.charge_swap(ROOT, 1000).map(|group| groups.uncharge_swap(group, 1000)), Ok(()));
}

/// A removed group keeps its place as long as it has pages in swap, and what goes out of it later is charged
/// to the group above.
#[test]
fn swap_of_a_removed_group_is_charged_above_and_keeps_its_place() {
    let groups = groups();
    let above = groups.create(ROOT, &swap_max(5)).unwrap();
    let below = groups.create(above, &Limits::default()).unwrap();
    let rest: Vec<_> = (3..MAX_GROUPS).map(|_| groups.create(ROOT, &Limits::default()).unwrap()).collect();
    let mut charged = fill(&groups, below, 2).0;
    groups.remove(below).unwrap();
    let (more, full) = fill(&groups, below, 100);
    assert_eq!((more.len(), full), (3, Some(above)));
    charged.extend(more);
    assert_eq!(groups.create(ROOT, &swap_max(1)), Err(Errno::NOSPC), "two of its pages are in swap");
    groups.check_swap(charged.iter().copied());
    give_back(&groups, charged);
    let new = groups.create(rest[0], &swap_max(1)).unwrap();
    assert_eq!((new.index(), new == below), (below.index(), false));
    assert_eq!(groups.stats(new).unwrap().swap.peak_bytes, 0);
    // The name of the group that had the place is not valid any more, so the root pays.
    let orphan = groups.charge_swap(below, 1).unwrap();
    assert_eq!((orphan.index(), groups.swap_pages(new)), (0, 0));
    groups.uncharge_swap(orphan, 1);
    groups.check_swap(std::iter::empty());
}

/// Threads let pages go out and come in while limits change, and while groups are made and removed.
#[test]
fn swap_adds_up_whatever_threads_do() {
    let groups = groups();
    let above = groups.create(ROOT, &swap_max(300)).unwrap();
    let six: Vec<_> = (0..6).map(|_| groups.create(above, &swap_max(120)).unwrap()).collect();
    let names = Mutex::uncounted(LockClass::Inbox, six);
    let (groups, names, rest) = (&groups, &names, &Mutex::uncounted(LockClass::Inbox, Vec::new()));
    thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                let mut had: Vec<SwapGroup> = Vec::new();
                for _ in 0..20_000 {
                    let group = names.lock()[rng.usize(..6)];
                    if rng.u8(..) < 140 {
                        let pages = rng.u64(1..5);
                        let charged = groups.charge_swap(group, pages);
                        had.extend(charged.into_iter().flat_map(|group| vec![group; pages as usize]));
                    } else if !had.is_empty() {
                        groups.uncharge_swap(had.swap_remove(rng.usize(..had.len())), 1);
                    }
                    assert!(groups.swap_pages(above) <= 300);
                }
                rest.lock().extend(had);
            });
        }
        let mut rng = fastrand::Rng::with_seed(9);
        for _ in 0..300 {
            let at = rng.usize(..6);
            let old = names.lock()[at];
            let other = names.lock()[(at + 1) % 6];
            let parent = *rng.choice([&above, &other]).unwrap();
            let _ = groups.change_limits(other, |_| swap_max(rng.u64(..150)));
            if groups.remove(old).is_ok() {
                let new = groups.create(parent, &swap_max(rng.u64(1..200)));
                let new = new.or_else(|_| groups.create(above, &swap_max(50))).unwrap();
                names.lock()[at] = new;
            }
        }
    });
    let rest = std::mem::take(&mut *rest.lock());
    groups.check_swap(rest.iter().copied());
    assert!(!rest.is_empty());
    give_back(groups, rest);
    groups.check_swap(std::iter::empty());
}

/// A limit of memory and swap together: what goes out leaves no room for new memory, and what comes in needs
/// none.
#[test]
fn memory_and_swap_together_stay_within_their_limit() {
    let mmu = SoftMmu::new(SoftConfig::new(2048), &LockStats::new()).unwrap();
    while mmu.grow().unwrap() {}
    let groups = groups();
    let above = groups.create(ROOT, &Limits { memory_swap_max: 100 * PAGE, ..Limits::default() }).unwrap();
    let group = groups.create(above, &Limits { max: 60 * PAGE, ..Limits::default() }).unwrap();
    let fill = |payer: Payer| -> (Vec<Frames>, OverLimit) {
        let mut had = Vec::new();
        loop {
            match groups.alloc(&mmu, payer, 0) {
                Ok(frames) => had.push(frames),
                Err(over) => return (had, over),
            }
        }
    };
    let (mut had, over) = fill(group.into());
    assert_eq!((had.len(), over), (60, OverLimit::Group(group)));
    // Pages go out: charged to swap first, then freed.
    let mut out = Vec::new();
    for frames in had.drain(10..) {
        out.push(groups.charge_swap(group, 1).unwrap());
        groups.free(&mmu, frames);
    }
    let (more, over) = fill(group.into());
    assert_eq!((more.len(), over), (40, OverLimit::MemorySwap(above)), "50 are in swap, 10 are in memory");
    had.extend(more);
    assert_eq!((groups.beyond_memory_swap(above), groups.alloc(&mmu, group, 2).is_err()), (0, true));
    // A page goes out at the limit. Its frame is not new memory.
    out.push(groups.charge_swap(group, 1).unwrap());
    groups.free(&mmu, had.pop().unwrap());
    assert_eq!((fill(group.into()).0.len(), groups.beyond_memory_swap(above)), (0, 0));
    // Pages come in, and have their frames before they leave swap.
    for slot in out.drain(..5) {
        had.push(groups.alloc(&mmu, Payer::swap_in(group), 0).unwrap());
        assert_eq!(groups.beyond_memory_swap(above), 1);
        groups.uncharge_swap(slot, 1);
    }
    assert_eq!(fill(group.into()).0.len(), 0, "there is nothing left in a stock");
    assert_eq!(had.len() + out.len(), 100);
    // `max` holds for what comes in, too.
    let (more, over) = fill(Payer::swap_in(group));
    assert_eq!((had.len() + more.len(), over), (60, OverLimit::Group(group)));
    had.into_iter().chain(more).for_each(|frames| groups.free(&mmu, frames));
    give_back(&groups, out);
    groups.check_swap(std::iter::empty());
    assert_eq!(groups.with_charges(), None);
}
