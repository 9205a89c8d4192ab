//! Limits of swap: `test_memcg_swap_max` of the kernel's tests, and what charges must come to whatever
//! becomes of the pages.

use super::{Cached, UNIT, anonymous, limits, stats, units};
use crate::Advice;
use crate::config::CLUSTER_PAGES;
use crate::group::{GroupId, Limits};
use crate::{Config, Hooks, Manager, MapRequest, Soft, Space};
use elbowroom_machine::{Errno, PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Arc, LockClass, Mutex, thread};

/// What a manager has reported.
type Said = Arc<Mutex<Vec<String>>>;

/// Where the swap of a manager is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    Pool,
    File,
    PoolAndFile,
}

const ALL: [Where; 3] = [Where::Pool, Where::File, Where::PoolAndFile];

fn config(units: u64, swap: u64, to: Where) -> Config {
    let mut config = Config { swap: swap * UNIT, ..Config::with_memory(units * UNIT + (2 << 20)) };
    config.bounds.memory_wait = Duration::from_millis(300);
    config.hooks = Hooks { report: Some(Arc::new(|_| ())), ..Hooks::default() };
    if to != Where::Pool {
        config.swap_dir = Some(std::env::temp_dir());
        config.ablation.tuning.pool_percent = if to == Where::File { 0 } else { 5 };
    }
    config
}

/// Keeps what a manager with this configuration reports.
fn keep_reports(config: &mut Config) -> Said {
    let said = Said::new(Mutex::uncounted(LockClass::Pressure, Vec::new()));
    let lines = said.clone();
    config.hooks.report = Some(Arc::new(move |line| lines.lock().push(line.to_owned())));
    said
}

/// How many units of a mapping can be stored to, before an access fails.
fn stored(space: &Space<Soft>, start: usize, of: u64) -> f64 {
    let (cpu, pages) = (space.cpu(), (of * UNIT) as usize / PAGE_SIZE);
    let failed = (0..pages).find(|page| cpu.write_u64(start + page * PAGE_SIZE, *page as u64 + 1).is_err());
    units((failed.unwrap_or(pages) * PAGE_SIZE) as u64)
}

fn map(manager: &Manager<Soft>, group: GroupId, of: u64) -> (Space<Soft>, usize) {
    let space = manager.groups().create_space(group).unwrap();
    let start = space.map(MapRequest::private_memory((of * UNIT) as usize)).unwrap();
    (space, start)
}

fn all_is_there(space: &Space<Soft>, start: usize, of: u64) {
    let cpu = space.cpu();
    for page in 0..(of * UNIT) as usize / PAGE_SIZE {
        assert_eq!(cpu.read_u64(start + page * PAGE_SIZE), Ok(page as u64 + 1), "page {page}");
    }
}

/// Waits until nothing is in swap: what was being written when its mapping ended gives its charge back then.
fn is_soon_empty(manager: &Manager<Soft>) {
    let since = Instant::now();
    while stats(manager, GroupId::ROOT).swap.bytes > 0 {
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", stats(manager, GroupId::ROOT).swap);
        thread::sleep(Duration::from_millis(1));
    }
}

/// The kernel's `test_memcg_swap_max`: with 30 in memory and 30 in swap a group can have 50, and it cannot
/// have 100.
#[test]
fn a_group_has_at_most_its_max_and_its_swap_max() {
    for to in ALL {
        let mut config = config(160, 512, to);
        let reports = keep_reports(&mut config);
        let manager = Manager::<Soft>::start_on(config).unwrap();
        let groups = manager.groups();
        let both = limits(|limits| (limits.max, limits.swap_max) = (30 * UNIT, 30 * UNIT));
        let group = groups.create(GroupId::ROOT, &both).unwrap();
        let (space, start) = map(&manager, group, 100);
        assert_eq!(stored(&space, start, 50), 50.0);
        // What is being written is in both.
        let (since, mut seen) = (Instant::now(), stats(&manager, group));
        while units(seen.usage_bytes + seen.swap.bytes) > 51.5 && since.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(1));
            seen = stats(&manager, group);
        }
        let (used, swap) = (units(seen.usage_bytes), units(seen.swap.bytes));
        assert!(used <= 30.0 && swap <= 30.0 && (used + swap - 50.0).abs() <= 1.5, "{to:?} {seen:?}");
        assert!((20.0..=30.0).contains(&units(seen.swap.peak_bytes)), "{to:?} {seen:?}");
        assert_eq!((seen.swap.max, seen.failed), (0, 0), "{to:?}");
        all_is_there(&space, start, 50);
        let had = stored(&space, start, 100);
        assert!((had - 60.0).abs() <= 1.8, "{to:?}: {had}");
        let seen = stats(&manager, group);
        assert!(units(seen.swap.peak_bytes) <= 30.0 && units(seen.usage_bytes) <= 30.0, "{to:?} {seen:?}");
        assert!(seen.swap.max > 0 && seen.failed > 0 && seen.swap.memory_max == 0, "{to:?} {seen:?}");
        let said = std::mem::take(&mut *reports.lock());
        assert!(
            said.len() == 1 && said[0].contains(&format!("({group}), may use {} MiB", (30 * UNIT) >> 20)),
            "{said:?}"
        );
        assert!(
            said[0].contains(&format!("{group} has all of the {} MiB in swap", (30 * UNIT) >> 20)),
            "{said:?}"
        );
        // Others do not suffer. The group's pages are not lost: with more room they can be had again.
        let other = anonymous(&manager, GroupId::ROOT, 100);
        groups.set_limits(group, &limits(|limits| limits.max = 31 * UNIT)).unwrap();
        all_is_there(&space, start, 50);
        drop((space, other));
        is_soon_empty(&manager);
    }
}

/// With no swap at all the group's anonymous memory stays, and the pages of its files go. Other groups, and
/// groups above, swap as before.
#[test]
fn nothing_goes_out_of_a_group_whose_swap_max_is_0() {
    for to in ALL {
        let manager = Manager::<Soft>::start_on(config(100, 512, to)).unwrap();
        let groups = manager.groups();
        let above = groups.create(GroupId::ROOT, &limits(|limits| limits.swap_max = 0)).unwrap();
        let group = groups.create(above, &limits(|limits| limits.max = 30 * UNIT)).unwrap();
        let cache = Cached::new(&manager, group, 40);
        cache.read();
        let (space, start) = map(&manager, group, 40);
        assert_eq!(stored(&space, start, 20), 20.0);
        let seen = stats(&manager, group);
        assert!(seen.file.stolen > 0 && seen.anonymous.stolen == 0 && seen.swap.bytes == 0, "{seen:?}");
        // Advice is refused as reclaim is.
        space.advise(start, (20 * UNIT) as usize, Advice::PageOut).unwrap();
        // Memory becomes short in the root: it takes from others.
        let other = anonymous(&manager, GroupId::ROOT, 150);
        let seen = stats(&manager, group);
        assert_eq!((seen.anonymous.stolen, seen.swap.bytes, seen.swap.peak_bytes), (0, 0, 0), "{to:?}");
        assert!(stats(&manager, above).swap.max > 0);
        assert!(units(stats(&manager, GroupId::ROOT).swap.bytes) > 60.0);
        let had = stored(&space, start, 40);
        assert!((28.0..=30.0).contains(&had), "{to:?}: {had}");
        // With a limit that permits it, its pages go out.
        groups.set_limits(above, &limits(|limits| limits.swap_max = 50 * UNIT)).unwrap();
        assert_eq!(stored(&space, start, 40), 40.0, "{to:?}");
        assert!(units(stats(&manager, above).swap.bytes) >= 10.0, "{to:?}");
        drop((space, other));
        is_soon_empty(&manager);
    }
}

/// Where the whole budget is full, and not the group, the line says why its pages stay.
#[test]
fn a_full_budget_names_the_group_whose_swap_is_full() {
    let mut config = config(60, 512, Where::Pool);
    let reports = keep_reports(&mut config);
    let manager = Manager::<Soft>::start_on(config).unwrap();
    let group = manager.groups().create(GroupId::ROOT, &limits(|limits| limits.swap_max = 0)).unwrap();
    let (space, start) = map(&manager, group, 100);
    assert!(stored(&space, start, 100) < 100.0);
    let said = std::mem::take(&mut *reports.lock());
    let why = format!("Pages of memory {group} stay in memory: its swap is at its swap-max");
    assert!(said.len() == 1 && said[0].ends_with(&why), "{said:?}");
}

/// A limit of memory and swap together. What is in swap comes in at the limit as below it, and pages of files
/// make room for new memory.
#[test]
fn a_group_has_at_most_its_memory_swap_max() {
    for to in ALL {
        let mut config = config(160, 512, to);
        let reports = keep_reports(&mut config);
        let manager = Manager::<Soft>::start_on(config).unwrap();
        let groups = manager.groups();
        let both = limits(|limits| (limits.max, limits.memory_swap_max) = (30 * UNIT, 45 * UNIT));
        let group = groups.create(GroupId::ROOT, &both).unwrap();
        let cache = Cached::new(&manager, group, 20);
        cache.read();
        let (space, start) = map(&manager, group, 60);
        let had = stored(&space, start, 60);
        // Pages of files that are being read, or that have to stay for a while, are few.
        assert!((43.0..=45.0).contains(&had), "{to:?}: {had}");
        let seen = stats(&manager, group);
        let sum = units(seen.usage_bytes + seen.swap.bytes);
        // The last access has waited: nothing is being written any more.
        assert!((43.0..=45.0).contains(&sum) && units(seen.usage_bytes) <= 30.0, "{to:?} {seen:?}");
        assert!(seen.swap.memory_max > 0 && seen.failed > 0 && seen.swap.max == 0, "{to:?} {seen:?}");
        let said = std::mem::take(&mut *reports.lock());
        let what = format!("({group}), may have {} MiB in memory and swap together", (45 * UNIT) >> 20);
        assert!(said.len() == 1 && said[0].contains(&what), "{said:?}");
        for _ in 0..2 {
            all_is_there(&space, start, 43);
        }
        let seen = stats(&manager, group);
        // What is being written, and what comes in just now, is in both.
        assert!(seen.anonymous.refaults > 1000 && units(seen.usage_bytes + seen.swap.bytes) <= 48.0);
        // A lower limit is reached only by pages of files. There are none left.
        assert_eq!(
            groups.set_limits(group, &limits(|limits| limits.memory_swap_max = 20 * UNIT)),
            Err(Errno::BUSY)
        );
        all_is_there(&space, start, 43);
        groups.set_limits(group, &Limits::default()).unwrap();
        assert_eq!(stored(&space, start, 60), 60.0);
        cache.read();
        let less = limits(|limits| limits.memory_swap_max = 65 * UNIT);
        groups.set_limits(group, &less).unwrap();
        let seen = stats(&manager, group);
        assert!(units(seen.usage_bytes + seen.swap.bytes) <= 65.0, "{to:?} {seen:?}");
        drop(space);
        is_soon_empty(&manager);
    }
}

/// A group is removed while its pages are in swap: they count as the parent's until they are gone.
#[test]
fn swap_of_a_removed_group_counts_above() {
    for to in ALL {
        let manager = Manager::<Soft>::start_on(config(160, 512, to)).unwrap();
        let groups = manager.groups();
        let above = groups.create(GroupId::ROOT, &limits(|limits| limits.swap_max = 40 * UNIT)).unwrap();
        let group = groups.create(above, &limits(|limits| limits.max = 10 * UNIT)).unwrap();
        let (space, start) = anonymous(&manager, group, 40);
        let before = units(stats(&manager, group).swap.bytes);
        groups.remove(group).unwrap();
        assert!(before >= 30.0 && units(stats(&manager, above).swap.bytes) >= before, "{to:?}");
        all_is_there(&space, start, 40);
        space.advise(start, (40 * UNIT) as usize, Advice::PageOut).unwrap();
        assert!(units(stats(&manager, above).swap.bytes) <= 40.0);
        all_is_there(&space, start, 40);
        space.advise(start, (40 * UNIT) as usize, Advice::PageOut).unwrap();
        space.unmap(start, (20 * UNIT) as usize).unwrap();
        assert!(units(stats(&manager, above).swap.bytes) <= 20.0);
        drop(space);
        is_soon_empty(&manager);
    }
}

/// A page that is in swap and in several spaces is charged once, until the last of them has it no more.
#[test]
fn a_slot_that_spaces_share_is_charged_once() {
    for to in ALL {
        let manager = Manager::<Soft>::start_on(config(160, 512, to)).unwrap();
        let groups = manager.groups();
        let group = groups.create(GroupId::ROOT, &limits(|limits| limits.max = 10 * UNIT)).unwrap();
        let (space, start) = anonymous(&manager, group, 40);
        let children = [(); 3].map(|()| space.fork().unwrap());
        let seen = stats(&manager, group);
        assert!(units(seen.usage_bytes + seen.swap.bytes) <= 41.0, "{to:?} {seen:?}");
        let there = |child: &Space<Soft>| start - space.base() + child.base();
        all_is_there(&children[0], there(&children[0]), 40);
        space.unmap(start, (40 * UNIT) as usize).unwrap();
        children.iter().for_each(|child| all_is_there(child, there(child), 40));
        drop((children, space));
        is_soon_empty(&manager);
    }
}

/// The file fails now and then, or has room for half: what cannot go there is in memory, and charged there.
#[test]
fn what_the_file_does_not_take_is_not_charged() {
    for (inject, swap) in
        [("write:eio:every=3", 512), ("write:enospc:after=40", 512), ("read:eio:every=2000", 40)]
    {
        for to in [Where::File, Where::PoolAndFile] {
            let config = Config { inject: Some(inject.to_owned()), ..config(64, swap, to) };
            let manager = Manager::<Soft>::start_on(config).unwrap();
            let groups = manager.groups();
            let group = groups.create(GroupId::ROOT, &limits(|limits| limits.max = 20 * UNIT)).unwrap();
            let (space, start) = map(&manager, group, 60);
            stored(&space, start, 60);
            space.advise(start, (60 * UNIT) as usize, Advice::PageOut).unwrap();
            // What is being written is charged before it has a slot.
            let (root, most) =
                (stats(&manager, GroupId::ROOT).swap, swap * UNIT + (CLUSTER_PAGES << PAGE_SHIFT));
            assert!(root.peak_bytes > 0 && root.peak_bytes <= most, "{inject} {to:?} {root:?}");
            let cpu = space.cpu();
            // Where memory and swap are full, each access that fails has waited first.
            let mut failures = 0;
            for page in 0..(20 * UNIT) as usize / PAGE_SIZE {
                if failures == 5 {
                    break;
                }
                let seen = cpu.read_u64(start + page * PAGE_SIZE);
                failures += usize::from(seen.is_err());
                assert!(seen.is_err() || seen == Ok(page as u64 + 1) || seen == Ok(0), "{seen:?}");
            }
            drop(cpu);
            drop(space);
            is_soon_empty(&manager);
        }
    }
}

/// Limits change while threads load, store, put pages out, drop them and fork. No bytes are lost, no limit is
/// exceeded, and in the end nothing is charged.
#[test]
fn limits_of_swap_change_under_load() {
    for to in ALL {
        let mut config = config(96, 512, to);
        config.bounds.memory_wait = Duration::from_secs(30);
        let manager = Manager::<Soft>::start_on(config).unwrap();
        let groups = manager.groups();
        let above = groups.create(GroupId::ROOT, &limits(|limits| limits.max = 60 * UNIT)).unwrap();
        let both = limits(|limits| (limits.max, limits.swap_max) = (40 * UNIT, 60 * UNIT));
        let group = groups.create(above, &both).unwrap();
        let (space, start) = anonymous(&manager, group, 50);
        let pages = (50 * UNIT) as usize / PAGE_SIZE;
        let last: Arc<Vec<AtomicU64>> = Arc::new((1..=pages as u64).map(AtomicU64::new).collect());
        let (stop, space) = (Arc::new(AtomicBool::new(false)), Arc::new(space));
        let workers: Vec<_> = (0..3)
            .map(|seed| {
                let (stop, space, last) = (stop.clone(), space.clone(), last.clone());
                let work = move || {
                    let mut rng = fastrand::Rng::with_seed(seed);
                    while !stop.load(Ordering::Relaxed) {
                        // Each thread has pages of its own.
                        let page = rng.usize(..pages / 3) * 3 + seed as usize;
                        let addr = start + page * PAGE_SIZE;
                        match rng.u8(..100) {
                            0 => space.advise(addr, 8 * PAGE_SIZE, Advice::PageOut).unwrap_or(()),
                            1 => {
                                space.advise(addr, PAGE_SIZE, Advice::DontNeed).unwrap();
                                last[page].store(0, Ordering::Relaxed);
                            }
                            2 if seed == 0 && rng.u8(..) < 50 => drop(space.fork()),
                            at if at < 40 => {
                                let value = rng.u64(..);
                                space.cpu().write_u64(addr, value).unwrap();
                                last[page].store(value, Ordering::Relaxed);
                            }
                            _ => {
                                let expected = last[page].load(Ordering::Relaxed);
                                assert_eq!(space.cpu().read_u64(addr), Ok(expected), "page {page}");
                            }
                        }
                    }
                };
                thread::spawn("worker", work).unwrap()
            })
            .collect();
        let (since, mut rng) = (Instant::now(), fastrand::Rng::with_seed(7));
        while since.elapsed() < Duration::from_secs(2) {
            let (max, swap) = (rng.u64(20..40), rng.u64(31..60));
            // A lower limit brings nothing in, and a thread may have looked at the limit before it changed.
            let before = stats(&manager, group);
            let before = before.limits.swap_max.max(before.swap.bytes);
            let both = limits(|limits| {
                (limits.max, limits.swap_max) = (max * UNIT, swap * UNIT);
                limits.memory_swap_max = if rng.bool() { u64::MAX } else { 56 * UNIT };
            });
            let _ = groups.set_limits(group, &both);
            for _ in 0..20 {
                let seen = stats(&manager, group);
                assert!(seen.swap.bytes <= before.max(swap * UNIT), "{to:?} {seen:?}");
                thread::sleep(Duration::from_millis(1));
            }
        }
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        groups.set_limits(group, &Limits::default()).unwrap();
        let cpu = space.cpu();
        for (page, last) in last.iter().enumerate() {
            assert_eq!(
                cpu.read_u64(start + page * PAGE_SIZE),
                Ok(last.load(Ordering::Relaxed)),
                "page {page}"
            );
        }
        assert!(stats(&manager, group).anonymous.refaults > 1000);
        drop((cpu, space));
        is_soon_empty(&manager);
    }
}
