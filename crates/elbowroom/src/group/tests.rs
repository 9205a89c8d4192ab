//! The tree of groups, and what is charged in it.

use super::tree::State;
use super::*;
use crate::config::MAX_GROUPS;
use crate::process_tree::LimitKey;
use elbowroom_machine::soft::{SoftConfig, SoftMmu};
use elbowroom_machine::{Access, Errno, PAGE_SIZE, Wake};
use elbowroom_sync::time::Duration;
use elbowroom_sync::{Barrier, LockStats, thread};

const PAGE: u64 = PAGE_SIZE as u64;

fn world() -> (Groups, SoftMmu) {
    let mmu = SoftMmu::new(SoftConfig::new(2048), &LockStats::new()).unwrap();
    while mmu.grow().unwrap() {}
    (Groups::new(DirtyLimits::NONE, 0, &LockStats::new()), mmu)
}

const OTHER: GroupId = GroupId::OTHER;

fn with_another() -> (Groups, SoftMmu) {
    (Groups::new(DirtyLimits::NONE, 1, &LockStats::new()), world().1)
}

fn max(pages: u64) -> Limits {
    Limits { max: pages * PAGE, ..Limits::default() }
}

/// Checks for each group that what is charged in its subtree, and its stocks, is what it uses.
fn adds_up(groups: &Groups) {
    for (index, _) in groups.places().filter(|(index, _)| *index != 0) {
        let id = groups.id(index);
        let within = groups.places().filter(|(other, _)| groups.is_within(*other, index));
        let charged = within.map(|(other, _)| groups.at(other).charged_pages()).fold(0, u64::wrapping_add);
        let used = groups.at(index).usage.pages();
        assert_eq!(used, charged + groups.stocked_pages(id), "{id}");
    }
}

#[test]
fn no_group_uses_more_than_its_limits_and_those_above_it() {
    let (groups, mmu) = world();
    let root = GroupId::ROOT;
    let above = groups.create(root, &max(100)).unwrap();
    let (one, two) =
        (groups.create(above, &max(80)).unwrap(), groups.create(above, &max(u64::MAX / PAGE)).unwrap());
    let take = |group, pages: usize| -> (Vec<Frames>, Option<OverLimit>) {
        let mut had = Vec::new();
        while had.len() < pages {
            match groups.alloc(&mmu, group, 0) {
                Ok(frames) => had.push(frames),
                Err(over) => return (had, Some(over)),
            }
        }
        (had, None)
    };
    let (first, over) = take(one, 1000);
    assert_eq!((first.len(), over), (80, Some(OverLimit::Group(one))));
    let (second, over) = take(two, 1000);
    assert_eq!(
        (second.len(), over),
        (20, Some(OverLimit::Group(above))),
        "the stocks of others are taken back"
    );
    adds_up(&groups);
    assert_eq!(
        groups.alloc(&mmu, two, 5).err(),
        Some(OverLimit::Group(above)),
        "32 at once are too many, too"
    );
    for frames in first {
        groups.free(&mmu, frames);
    }
    let (third, over) = take(two, 1000);
    assert_eq!((third.len(), over), (80, Some(OverLimit::Group(above))));
    // With a limit below what is used, nothing can be charged, and frames can still be freed.
    groups.change_limits(above, |_| max(10)).unwrap();
    assert_eq!(groups.beyond_max(above), 90);
    assert_eq!(take(one, 1).1, Some(OverLimit::Group(above)));
    second.into_iter().chain(third).for_each(|frames| groups.free(&mmu, frames));
    adds_up(&groups);
    assert_eq!((take_and_free(&groups, &mmu, two, 1000), groups.with_charges()), (10, None));
    assert_eq!(groups.change_limits(root, |_| max(1)), Err(Errno::INVAL));
}

fn take_and_free(groups: &Groups, mmu: &SoftMmu, group: GroupId, most: usize) -> usize {
    let had: Vec<_> = (0..most).map_while(|_| groups.alloc(mmu, group, 0).ok()).collect();
    let count = had.len();
    had.into_iter().for_each(|frames| groups.free(mmu, frames));
    count
}

#[test]
fn what_a_removed_group_has_is_charged_above_and_so_is_what_it_gets() {
    let (groups, mmu) = world();
    let above = groups.create(GroupId::ROOT, &max(20)).unwrap();
    let below = groups.create(above, &max(10)).unwrap();
    assert_eq!(groups.remove(above), Err(Errno::BUSY), "a group is below it");
    let mut had: Vec<_> = (0..10).map(|_| groups.alloc(&mmu, below, 0).unwrap()).collect();
    groups.remove(below).unwrap();
    assert_eq!(groups.remove(below), Err(Errno::NOENT));
    assert_eq!(groups.create(below, &max(1)), Err(Errno::NOENT));
    had.extend((0..10).map(|_| groups.alloc(&mmu, below, 0).unwrap()));
    assert_eq!(had.last().map(Frames::group), Some(above));
    assert_eq!(groups.alloc(&mmu, below, 0).err(), Some(OverLimit::Group(above)));
    adds_up(&groups);
    let stats = groups.stats(above).unwrap();
    assert_eq!([stats.usage_bytes, stats.peak_bytes], [20 * PAGE; 2]);
    groups.remove(above).unwrap();
    had.push(groups.alloc(&mmu, below, 0).unwrap());
    assert_eq!(had.last().map(Frames::group), Some(GroupId::ROOT));
    had.into_iter().for_each(|frames| groups.free(&mmu, frames));
    adds_up(&groups);
    assert_eq!(groups.with_charges(), None);
}

/// The places of removed groups are used again, but only when nothing is left of the group.
#[test]
fn groups_come_and_go_in_a_table_of_fixed_size() {
    let (groups, mmu) = world();
    let all: Vec<_> = (1..MAX_GROUPS).map(|_| groups.create(GroupId::ROOT, &max(5)).unwrap()).collect();
    assert_eq!(groups.create(GroupId::ROOT, &max(5)), Err(Errno::NOSPC));
    let (used, empty) = (all[3], all[4]);
    let frames = groups.alloc(&mmu, used, 1).unwrap();
    groups.count(used, GroupEvent::Low, 3);
    groups.count(empty, GroupEvent::Low, 4);
    [used, empty].into_iter().for_each(|group| groups.remove(group).unwrap());
    let new = groups.create(all[0], &max(7)).unwrap();
    assert_eq!((new.index(), new == empty), (empty.index(), false));
    assert_eq!(groups.create(GroupId::ROOT, &max(5)), Err(Errno::NOSPC), "the other one has pages");
    assert_eq!(groups.stats(empty), Err(Errno::NOENT));
    assert_eq!(groups.stats(new).unwrap().low, 0);
    assert_eq!(groups.stats(GroupId::ROOT).unwrap().low, 7, "nothing that was counted is lost");
    // The name of the group that had the place before is not valid any more, so the root pays.
    let orphan = groups.alloc(&mmu, empty, 0).unwrap();
    assert_eq!(orphan.group(), GroupId::ROOT);
    groups.free(&mmu, orphan);
    groups.free(&mmu, frames);
    assert_eq!(groups.create(GroupId::ROOT, &max(5)).map(GroupId::index), Ok(used.index()));
    adds_up(&groups);
}

/// Threads allocate and free while groups are made and removed. At the end the sums are right, and nothing
/// is left.
#[test]
fn sums_are_right_whatever_threads_do() {
    let (groups, mmu) = world();
    let above = groups.create(GroupId::ROOT, &max(300)).unwrap();
    let names = Mutex::uncounted(LockClass::Inbox, Vec::new());
    for _ in 0..6 {
        let name = groups.create(above, &max(120)).unwrap();
        names.lock().push(name);
    }
    let (groups, mmu, names) = (&groups, &mmu, &names);
    thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                let mut had = Vec::new();
                for _ in 0..20_000 {
                    let group = names.lock()[rng.usize(..6)];
                    if rng.u8(..) < 140 {
                        had.extend(groups.alloc(mmu, group, rng.u8(..4)).ok());
                    } else if !had.is_empty() {
                        groups.free(mmu, had.swap_remove(rng.usize(..had.len())));
                    }
                    assert!(groups.at(above.index()).usage.pages() <= 300);
                }
                had.into_iter().for_each(|frames| groups.free(mmu, frames));
            });
        }
        let mut rng = fastrand::Rng::with_seed(9);
        for _ in 0..300 {
            let at = rng.usize(..6);
            let old = names.lock()[at];
            let other = names.lock()[(at + 1) % 6];
            let parent = rng.choice([above, other]).unwrap();
            if groups.remove(old).is_ok() {
                let new = groups.create(parent, &max(rng.u64(1..200)));
                let new = new.or_else(|_| groups.create(above, &max(50))).unwrap();
                names.lock()[at] = new;
            }
        }
    });
    adds_up(groups);
    assert_eq!(groups.with_charges(), None);
    groups.drain(GroupId::ROOT.index());
    let left: Vec<_> = groups.places().map(|(index, _)| groups.at(index).usage.pages()).collect();
    assert!(left.iter().all(|pages| *pages == 0), "{left:?}");
    assert!(groups.places().any(|(_, place)| place.state == State::Removed));
}

/// A random tree, with removed groups and places that have had other groups.
#[test]
fn the_statistics_of_all_groups_are_those_of_each() {
    let (groups, mmu) = world();
    let mut rng = fastrand::Rng::with_seed(4);
    let (mut ids, mut had) = (vec![GroupId::ROOT], Vec::new());
    for turn in 0..3000 {
        let group = ids[rng.usize(..ids.len())];
        match turn % 4 {
            0 => ids.extend(groups.create(group, &max(rng.u64(100..200))).ok()),
            1 => had.extend(groups.alloc(&mmu, group, 0).ok()),
            2 => groups.count(group, GroupEvent::Stolen(Kind::ALL[rng.usize(..2)]), rng.u64(..9)),
            _ if rng.bool() && groups.remove(group).is_ok() => ids.retain(|other| *other != group),
            _ => groups.count(group, GroupEvent::FaultsMajor, 1),
        }
    }
    let all = groups.all_stats();
    assert!(all.len() == ids.len() && all.len() < groups.ids().count());
    let depth = |id: &GroupId| groups.of(*id).place().depth;
    assert!(all.iter().any(|(id, _)| depth(id) > 3));
    for (id, stats) in &all {
        assert_eq!(groups.stats(*id).as_ref(), Ok(stats), "{id}");
    }
    assert_eq!(all[0].1.usage_bytes, had.len() as u64 * PAGE);
    had.into_iter().for_each(|frames| groups.free(&mmu, frames));
}

/// Prints what the statistics of 1,000 groups cost. The command is in docs/performance.md.
#[test]
fn measure_statistics_of_all_groups() {
    const THREADS: usize = 16;
    let (groups, mmu) = world();
    let (mut ids, mut rng) = (vec![GroupId::ROOT], fastrand::Rng::with_seed(4));
    while ids.len() < 1000 {
        let parent = ids[rng.usize(..ids.len())];
        ids.push(groups.create(parent, &Limits::default()).unwrap());
    }
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                // No thread ends before all have counted: each has rows of its own.
                barrier.wait();
                for id in &ids {
                    groups.count(*id, GroupEvent::FaultsMinor, 1);
                    groups.count(*id, GroupEvent::Scanned(Kind::File), 1);
                    groups.free(&mmu, groups.alloc(&mmu, *id, 0).unwrap());
                }
                barrier.wait();
            });
        }
    });
    let timed = |mut f: Box<dyn FnMut() + '_>| {
        let mut times: Vec<_> = (0..101)
            .map(|_| {
                let since = Instant::now();
                f();
                since.elapsed()
            })
            .collect();
        times.sort_unstable();
        [times[0], times[50], times[95]]
    };
    let at_once = timed(Box::new(|| assert_eq!(groups.all_stats()[0].1.pgfault, 16_000)));
    let one = timed(Box::new(|| assert_eq!(groups.stats(GroupId::ROOT).unwrap().pgfault, 16_000)));
    println!("1,000 groups, {THREADS} threads; fastest, median and 95th percentile of 101");
    println!("all groups at once {at_once:?}; the root alone {one:?}");
}

#[test]
fn what_is_charged_to_a_group_is_given_back_to_it() {
    let (groups, mmu) = with_another();
    let charged = || [GroupId::ROOT, OTHER].map(|group| groups.of(group).charged_pages());
    let (one, nine) = (groups.alloc(&mmu, GroupId::ROOT, 0), groups.alloc(&mmu, OTHER, 9));
    assert_eq!(charged(), [1, 512]);
    let mut small = nine.unwrap().split(0);
    assert_eq!((small.len(), charged()), (512, [1, 512]));
    small.drain(2..).for_each(|frames| groups.free(&mmu, frames));
    assert_eq!(charged(), [1, 2]);
    let (extent, charge) = small.pop().unwrap().lend();
    let lent = groups.lend_to_root(extent);
    assert_eq!(charged(), [2, 2]);
    let back = groups.take_from_root(lent, charge);
    assert_eq!(charged(), [1, 2]);
    let moved = groups.charge_to_root(back);
    assert_eq!(charged(), [2, 1]);
    groups.free(&mmu, moved);
    let left = groups.discard_clean(&mmu, small);
    assert_eq!((left.len(), charged()), (0, [1, 0]));
    groups.free(&mmu, one.unwrap());
    assert_eq!((charged(), groups.with_charges()), ([0, 0], None));
}

/// A pinned page keeps its charge, and so do the pages that were to be discarded together with it.
#[test]
fn what_cannot_be_discarded_stays_charged() {
    let (groups, mmu) = with_another();
    let start = SoftMmu::space_range(mmu.create_space().unwrap()).start;
    let mut both: Vec<_> = (0..2).filter_map(|_| groups.alloc(&mmu, OTHER, 0).ok()).collect();
    for (frames, addr) in both.iter_mut().zip((start..).step_by(elbowroom_machine::PAGE_SIZE)) {
        mmu.map(frames, addr, 0..1, Access::Write, Wake::Now).unwrap();
    }
    let cpu = mmu.cpu();
    let pin = cpu.pin(start, 8, elbowroom_machine::soft::Intent::Read).unwrap();
    let both = groups.discard_clean(&mmu, both);
    assert_eq!((both.len(), groups.of(OTHER).charged_pages()), (2, 2));
    drop(pin);
    for mut frames in both {
        mmu.unmap(&mut frames).unwrap();
        groups.free(&mmu, frames);
    }
    assert_eq!(groups.with_charges(), None);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "4 pages of GroupId { index: 1, life: 0 } were forgotten")]
fn frames_cannot_be_forgotten() {
    let (groups, mmu) = with_another();
    drop(groups.alloc(&mmu, OTHER, 2));
}

/// Each thread changes another limit of one group; a change of the whole that was read before would undo
/// the others.
#[test]
fn limits_that_change_at_the_same_time_are_all_kept() {
    let (groups, _mmu) = world();
    let group = groups.create(GroupId::ROOT, &Limits::default()).unwrap();
    thread::scope(|scope| {
        for key in LimitKey::ALL {
            let groups = &groups;
            scope.spawn(move || {
                for value in (0..200).map(|turn| turn * PAGE_SIZE as u64) {
                    groups.change_limits(group, |limits| limits.with(key, value)).unwrap();
                    let now = groups.limits(group);
                    assert_eq!(now.with(key, value), now, "{}", key.name());
                }
            });
        }
    });
}

/// A refusal has twice as much freed ahead as was allocated in 10 ms at the rate since the last look: a part
/// of `max` at most, not what `low` protects, and nothing in a group that was not refused any.
#[test]
fn what_is_freed_ahead_follows_the_rate() {
    let (groups, _mmu) = world();
    let most = 128 * 100;
    let group = groups.create(GroupId::ROOT, &max(most)).unwrap();
    let payer = Payer { group, purpose: Purpose::New };
    let take = |pages: u64| (0..pages).filter(|_| groups.charge(payer, 1).is_ok()).count() as u64;
    let look = |ms| {
        let near = groups.near_max.take(&groups, Duration::from_millis(ms))?;
        Some((near, groups.near_max.beyond(&groups, near)))
    };
    assert_eq!(take(most), most);
    assert_eq!(look(0), None, "all of it fits");
    assert_eq!(take(1), 0);
    assert_eq!(look(1000), Some((group, 200)), "all was allocated in a second: 1/128 of `max`, twice");
    assert_eq!(look(1001), None, "once for each refusal");
    let again = |pages| {
        groups.uncharge_pages(group, pages);
        groups.drain(group.index());
        assert_eq!((take(pages), take(1)), (pages, 0));
    };
    again(500);
    // At most the last 100 ms of a pause count: 500 pages in them are 50 in 10 ms.
    assert_eq!(look(9000), Some((group, 100)));
    again(1);
    assert_eq!(look(9000), Some((group, 100)), "nothing is measured within a millisecond");
    groups.change_limits(group, |limits| Limits { low: (most - 5) * PAGE_SIZE as u64, ..limits }).unwrap();
    again(1);
    assert_eq!(look(9000), Some((group, 5)));
    again(1);
    assert_eq!(look(9900), Some((group, 0)), "3 pages in 900 ms");
    groups.change_limits(group, |_| max(most)).unwrap();
    again(310);
    assert_eq!(look(10_000), Some((group, 0)), "62 pages in 20 ms are less than a batch");
    // A thread's stock is free memory of the group.
    groups.uncharge_pages(group, 30);
    assert_eq!(groups.near_max.beyond(&groups, group), 0);
    assert_eq!(groups.of(group).usage.pages(), most - 30);
}
