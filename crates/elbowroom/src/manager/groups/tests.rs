//! What groups promise, by the meaning of the kernel's own tests (tools/testing/selftests/cgroup,
//! test_memcontrol.c), on the soft MMU. Sizes are a fourth of theirs, but for protection.

mod swap;

use crate::group::{GroupId, GroupStats, Limits};
use crate::{Advice, Bounds, Config, HighStuck, Hooks, Manager, MapRequest, Prot, Sharing, Soft, Space};
use elbowroom_machine::{Errno, PAGE_SIZE};
use elbowroom_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Arc, thread};

/// The kernel's tests have megabytes.
const UNIT: u64 = 1 << 18;
/// So many units are one of the kernel's.
const FULL: u64 = 4;

fn manager(units: u64, swap: u64) -> Manager<Soft> {
    Manager::start_on(Config { swap: swap * UNIT, ..Config::with_memory(units * UNIT + (2 << 20)) }).unwrap()
}

fn limits(of: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    of(&mut limits);
    limits
}

fn units(bytes: u64) -> f64 {
    bytes as f64 / UNIT as f64
}

/// A file whose pages a space of the group reads, and the mapping.
struct Cached {
    space: Space<Soft>,
    start: usize,
    pages: usize,
    _file: tempfile::NamedTempFile,
}

impl Cached {
    fn new(manager: &Manager<Soft>, group: GroupId, units: u64) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(units * UNIT).unwrap();
        let space = manager.groups().create_space(group).unwrap();
        let object = Some(manager.open(file.path(), false).unwrap());
        let pages = (units * UNIT) as usize / PAGE_SIZE;
        let memory = MapRequest::private_memory(pages * PAGE_SIZE);
        let (prot, sharing) = (Prot::READ, Sharing::Shared);
        let start = space.map(MapRequest { prot, may_write: false, sharing, object, ..memory }).unwrap();
        Self { space, start, pages, _file: file }
    }

    /// In strides, so that single pages are read.
    fn read(&self) {
        let cpu = self.space.cpu();
        let pages = (0..self.pages).map(|turn| turn * 4099 % self.pages);
        pages.for_each(|page| _ = cpu.read_u64(self.start + page * PAGE_SIZE).unwrap());
    }
}

/// Stores to anonymous memory of a new space of the group.
fn anonymous(manager: &Manager<Soft>, group: GroupId, units: u64) -> (Space<Soft>, usize) {
    let space = manager.groups().create_space(group).unwrap();
    let len = (units * UNIT) as usize;
    let start = space.map(MapRequest::private_memory(len)).unwrap();
    let cpu = space.cpu();
    (0..len / PAGE_SIZE).for_each(|page| cpu.write_u64(start + page * PAGE_SIZE, page as u64 + 1).unwrap());
    (space, start)
}

fn stats(manager: &Manager<Soft>, group: GroupId) -> GroupStats {
    manager.groups().stats(group).unwrap()
}

/// The kernel's `test_memcg_protection`. `protect`: sets what a group asks for.
fn protection(protect: impl Fn(&mut Limits, u64)) -> [GroupStats; 5] {
    let manager = manager(FULL * 400, 0);
    let groups = manager.groups();
    let with = |parent, asks: u64| {
        groups.create(parent, &limits(|limits| protect(limits, asks * FULL * UNIT))).unwrap()
    };
    let above = groups.create(GroupId::ROOT, &limits(|limits| limits.max = FULL * 200 * UNIT)).unwrap();
    let middle = with(above, 50);
    let children = [75, 25, 0, 500].map(|asks| with(middle, asks));
    let caches: Vec<_> = children[..3].iter().map(|group| Cached::new(&manager, *group, FULL * 50)).collect();
    caches.iter().for_each(Cached::read);
    let sibling = groups.create(above, &Limits::default()).unwrap();
    let _pressure = anonymous(&manager, sibling, FULL * 150);
    let full = |bytes: u64| units(bytes) / FULL as f64;
    let used = |group| full(stats(&manager, group).usage_bytes);
    let all = [middle, children[0], children[1], children[2], children[3]];
    assert!(used(above) <= 200.0);
    for (group, expected) in all.into_iter().zip([50.0, 29.0, 21.0, 0.0, 0.0]) {
        // Within 2 %, as the kernel's tests count it, or 2 % of what their parent has. The kernel's tests
        // allow 10 % and more of these.
        let error = 0.02 * (used(group) + expected).max(50.0);
        assert!((used(group) - expected).abs() <= error, "{group}: {} instead of {expected}", used(group));
    }
    let all = all.map(|group| stats(&manager, group));
    // On request a group is reclaimed from below its own protection.
    let freed = groups.reclaim(children[0], FULL * 19 * UNIT).unwrap();
    assert!(full(freed) >= 19.0 && used(children[0]) < 12.0, "{} freed, {}", full(freed), used(children[0]));
    all
}

#[test]
fn min_is_divided_among_children_by_what_they_use() {
    let all = protection(|limits, asks| limits.min = asks);
    assert!(all.iter().all(|stats| stats.low == 0));
}

#[test]
fn low_is_divided_as_min_is() {
    let all = protection(|limits, asks| limits.low = asks);
    assert_eq!(all[4].low, 0, "nothing was in it");
}

/// Protection that nothing else than protected memory is left of does not hold, if it is `low`; `min` does.
#[test]
fn low_gives_way_where_min_does_not() {
    for by_min in [false, true] {
        let config = Config {
            bounds: Bounds { memory_wait: Duration::from_millis(300), ..Bounds::default() },
            ..Config::with_memory(18 << 20)
        };
        let manager = Manager::<Soft>::start_on(Config {
            hooks: Hooks { report: Some(Arc::new(|_| ())), ..Hooks::default() },
            ..config
        })
        .unwrap();
        let groups = manager.groups();
        let above = groups.create(GroupId::ROOT, &limits(|limits| limits.max = 20 * UNIT)).unwrap();
        let protect =
            |limits: &mut Limits| if by_min { limits.min = 30 * UNIT } else { limits.low = 30 * UNIT };
        let kept_group = groups.create(above, &limits(protect)).unwrap();
        let cache = Cached::new(&manager, kept_group, 18);
        cache.read();
        let other = groups.create(above, &Limits::default()).unwrap();
        let cached = Cached::new(&manager, other, 6);
        cached.read();
        let (kept, other) = (stats(&manager, kept_group), stats(&manager, other));
        // Pages that are being read, or that another thread looks at, cannot be had for a moment.
        let least = if by_min { 17.9 } else { 12.0 };
        assert!(units(kept.usage_bytes) > least && units(other.usage_bytes) < 8.0, "{kept:?} {other:?}");
        assert!(!by_min || kept.low == 0);
        let (pressure, mut failed) = (groups.create_space(above).unwrap(), false);
        let start = pressure.map(MapRequest::private_memory((8 * UNIT) as usize)).unwrap();
        let cpu = pressure.cpu();
        for page in 0..(8 * UNIT) as usize / PAGE_SIZE {
            if cpu.write_u64(start + page * PAGE_SIZE, 1).is_err() {
                failed = true;
                break;
            }
        }
        let end = stats(&manager, kept_group);
        assert_eq!((end.low > 0, failed), (!by_min, by_min));
    }
}

/// Of one process: its own groups are protected from each other, but not at the price of its end.
#[test]
fn memory_that_is_full_of_what_min_protects_is_given_at_last() {
    let hooks = Hooks { report: Some(Arc::new(|_| ())), ..Hooks::default() };
    let manager =
        Manager::<Soft>::start_on(Config { hooks, swap: 64 << 20, ..Config::with_memory(16 << 20) }).unwrap();
    let group = manager.groups().create(GroupId::ROOT, &limits(|limits| limits.min = 64 << 20)).unwrap();
    let (space, start) = anonymous(&manager, group, 96);
    let cpu = space.cpu();
    for page in 0..(96 * UNIT) as usize / PAGE_SIZE {
        assert_eq!(cpu.read_u64(start + page * PAGE_SIZE), Ok(page as u64 + 1));
    }
}

/// The kernel's `test_memcg_high_sync`: what is populated at once, and is more than `high`, stays near it.
#[test]
fn high_counts_on_one_large_populate_and_max_does_not() {
    let manager = manager(128, 256);
    let groups = manager.groups();
    let group = groups.create(GroupId::ROOT, &limits(|limits| limits.high = 30 * UNIT)).unwrap();
    let space = groups.create_space(group).unwrap();
    let memory = MapRequest::private_memory((60 * UNIT) as usize);
    let start = space.map(MapRequest { populate: true, ..memory }).unwrap();
    let seen = stats(&manager, group);
    assert!(seen.high > 0 && seen.max == 0 && seen.failed == 0);
    assert!(units(seen.usage_bytes) < 34.0, "{}", units(seen.usage_bytes));
    assert!(seen.anonymous.stolen > 0 && seen.anonymous.scanned >= seen.anonymous.stolen);
    assert_eq!(space.cpu().read_u64(start), Ok(0));
}

/// A group that cannot get below its `high` is slowed down by nothing.
#[test]
fn nobody_sleeps_for_what_cannot_be_reclaimed() {
    let manager = manager(128, 0);
    let group = manager.groups().create(GroupId::ROOT, &limits(|limits| limits.high = 4 * UNIT)).unwrap();
    let since = Instant::now();
    let _all = anonymous(&manager, group, 40);
    let seen = stats(&manager, group);
    assert!(seen.high_stuck > 100 && seen.high_waits == 0, "{seen:?}");
    assert!(since.elapsed() < Duration::from_secs(5));
}

/// The program is told of a group that stays over its `high`, once, and not of one that can be reclaimed.
#[test]
fn a_group_that_stays_over_its_high_is_told() {
    // How often, of which group, its usage and its high.
    static TOLD: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
    let tell = |stuck: HighStuck| {
        let HighStuck { group, usage_bytes, high_bytes } = stuck;
        let values = TOLD[1..].iter().zip([group as u64, usage_bytes, high_bytes]);
        values.for_each(|(to, value)| to.store(value, Ordering::SeqCst));
        TOLD[0].fetch_add(1, Ordering::SeqCst);
    };
    let told = || TOLD.each_ref().map(|word| word.load(Ordering::SeqCst));
    let hooks = Hooks { on_high_stuck: Some(Arc::new(tell)), ..Hooks::default() };
    let config = Config::with_memory(128 * UNIT + (2 << 20));
    let manager = Manager::<Soft>::start_on(Config { hooks, ..config }).unwrap();
    let groups = manager.groups();
    let over = || groups.create(GroupId::ROOT, &limits(|limits| limits.high = 4 * UNIT)).unwrap();
    let (file, memory) = (over(), over());
    let cached = Cached::new(&manager, file, 16);
    cached.read();
    assert!(stats(&manager, file).high > 0);
    let _all = anonymous(&manager, memory, 20);
    let since = Instant::now();
    while told()[0] == 0 {
        assert!(since.elapsed() < Duration::from_secs(5), "nothing was told");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(since.elapsed() < Duration::from_millis(1500), "{:?}", since.elapsed());
    // More accesses, and two more looks of the watchdog.
    let _more = anonymous(&manager, memory, 1);
    thread::sleep(Duration::from_millis(2500));
    let [times, group, usage, high] = told();
    assert_eq!((times, group, high), (1, memory.number() as u64, 4 * UNIT));
    assert!(usage > 10 * UNIT, "{usage}");
}

/// The kernel's `test_memcg_max`; and all that is stored comes back.
#[test]
fn a_group_has_at_most_its_max_and_keeps_its_bytes() {
    let manager = manager(128, 512);
    let groups = manager.groups();
    let group = groups.create(GroupId::ROOT, &limits(|limits| limits.max = 30 * UNIT)).unwrap();
    let (space, start) = anonymous(&manager, group, 100);
    let seen = stats(&manager, group);
    assert!(seen.max > 0 && units(seen.usage_bytes) <= 30.0, "{seen:?}");
    let cpu = space.cpu();
    for page in 0..(100 * UNIT) as usize / PAGE_SIZE {
        assert_eq!(cpu.read_u64(start + page * PAGE_SIZE), Ok(page as u64 + 1));
    }
    assert!(stats(&manager, group).anonymous.refaults > 0);
    assert!(units(stats(&manager, group).usage_bytes) <= 30.0);
}

/// A group that is full does not read around random faults, however much memory the other groups leave: what
/// is read beside the page takes the place of pages of its own.
#[test]
fn a_full_group_reads_single_pages_though_memory_is_free() {
    let manager = manager(512, 0);
    let group = manager.groups().create(GroupId::ROOT, &limits(|limits| limits.max = 16 * UNIT)).unwrap();
    let cached = Cached::new(&manager, group, 128);
    cached.read();
    let read = manager.stats().read_bytes;
    // The file once, and what was read around the first faults, while the group had room. Its pages come
    // in another order than they lie, so a page that was read around a fault is gone when its turn comes.
    let around = 64 * UNIT;
    assert!((128 * UNIT..=128 * UNIT + around).contains(&read), "{} units", units(read));
}

/// Without swap the access that has no page left fails after its time, and no other group's does.
#[test]
fn an_access_fails_where_nothing_of_the_group_can_be_reclaimed() {
    let config = Config {
        bounds: Bounds { memory_wait: Duration::from_millis(300), ..Bounds::default() },
        ..Config::with_memory(32 << 20)
    };
    let manager = Manager::<Soft>::start_on(Config {
        hooks: Hooks { report: Some(Arc::new(|_| ())), ..Hooks::default() },
        ..config
    })
    .unwrap();
    let groups = manager.groups();
    let group = groups.create(GroupId::ROOT, &limits(|limits| limits.max = 2 * UNIT)).unwrap();
    let space = groups.create_space(group).unwrap();
    let start = space.map(MapRequest::private_memory((4 * UNIT) as usize)).unwrap();
    let cpu = space.cpu();
    let pages = (4 * UNIT) as usize / PAGE_SIZE;
    let failed = (0..pages).find(|page| cpu.write_u64(start + page * PAGE_SIZE, 1).is_err());
    assert_eq!(failed, Some(pages / 2), "all that is within the limit is there");
    assert!(stats(&manager, group).failed > 0);
    let _other = anonymous(&manager, GroupId::ROOT, 20);
}

/// `max` is lowered to a fourth while threads load and store. Nothing is lost, and the group is there soon.
#[test]
fn max_can_be_lowered_under_load() {
    let manager = manager(128, 512);
    let groups = manager.groups();
    let group = groups.create(GroupId::ROOT, &limits(|limits| limits.max = 60 * UNIT)).unwrap();
    let (space, start) = anonymous(&manager, group, 50);
    let (stop, space) = (Arc::new(AtomicBool::new(false)), Arc::new(space));
    let workers: Vec<_> = (0..2)
        .map(|seed| {
            let (stop, space) = (stop.clone(), space.clone());
            let work = move || {
                let (cpu, mut rng) = (space.cpu(), fastrand::Rng::with_seed(seed));
                while !stop.load(Ordering::Relaxed) {
                    let page = rng.usize(..(50 * UNIT) as usize / PAGE_SIZE);
                    assert_eq!(cpu.read_u64(start + page * PAGE_SIZE), Ok(page as u64 + 1));
                }
            };
            thread::spawn("worker", work).unwrap()
        })
        .collect();
    let since = Instant::now();
    groups.set_limits(group, &limits(|limits| limits.max = 15 * UNIT)).unwrap();
    assert!(since.elapsed() < Duration::from_secs(2) && units(stats(&manager, group).usage_bytes) <= 15.0);
    thread::sleep(Duration::from_millis(200));
    assert!(units(stats(&manager, group).usage_bytes) <= 15.0);
    stop.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}

/// A fault waits for memory of a group that is removed: it gets a page of the group above.
#[test]
fn groups_are_removed_while_faults_wait_in_them() {
    let manager = manager(64, 0);
    let groups = manager.groups();
    for _ in 0..20 {
        let group = groups.create(GroupId::ROOT, &limits(|limits| limits.max = 2 * UNIT)).unwrap();
        let (space, start) = anonymous(&manager, group, 2);
        let more = space.map(MapRequest::private_memory(PAGE_SIZE)).unwrap();
        let space = Arc::new(space);
        let waits = {
            let space = space.clone();
            thread::spawn("waits", move || space.cpu().write_u64(more, 7).unwrap()).unwrap()
        };
        while stats(&manager, group).max == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        groups.remove(group).unwrap();
        waits.join().unwrap();
        assert_eq!((space.cpu().read_u64(more), space.cpu().read_u64(start)), (Ok(7), Ok(1)));
    }
    assert!(units(stats(&manager, GroupId::ROOT).usage_bytes) < 64.0);
}

/// New memory is the new group's after a move. Pages that were there stay the old group's until they go.
#[test]
fn a_space_and_its_mappings_move_to_another_group() {
    let manager = manager(100, 0);
    let groups = manager.groups();
    let [old, new] = [(); 2].map(|()| groups.create(GroupId::ROOT, &Limits::default()).unwrap());
    let used = |group| units(stats(&manager, group).usage_bytes);
    let (space, start) = anonymous(&manager, old, 16);
    let half = (8 * UNIT) as usize;
    assert!(used(old) >= 16.0 && used(new) == 0.0);
    groups.move_mappings(&space, start + half, half, new).unwrap();
    assert!(used(old) >= 16.0 && used(new) == 0.0, "nothing was allocated since");
    space.advise(start, 2 * half, Advice::DontNeed).unwrap();
    let cpu = space.cpu();
    (0..2 * half / PAGE_SIZE).for_each(|page| cpu.write_u64(start + page * PAGE_SIZE, 7).unwrap());
    assert!((8.0..8.5).contains(&used(old)) && (8.0..8.5).contains(&used(new)));
    // Mappings that are made without a group are the space's, and so is a child.
    assert_eq!(groups.group_of(&space), old);
    groups.move_space(&space, new).unwrap();
    let more = space.map(MapRequest::private_memory(half)).unwrap();
    (0..half / PAGE_SIZE).for_each(|page| cpu.write_u64(more + page * PAGE_SIZE, 7).unwrap());
    assert!((8.0..8.5).contains(&used(old)) && (16.0..16.5).contains(&used(new)));
    assert_eq!(groups.group_of(&space.fork().unwrap()), new);
    // Errors change nothing.
    groups.remove(old).unwrap();
    assert_eq!(groups.move_space(&space, old), Err(Errno::NOENT));
    assert_eq!(groups.move_mappings(&space, start, half, old), Err(Errno::NOENT));
    assert_eq!(groups.move_mappings(&space, start + 1, half, new), Err(Errno::INVAL));
    space.unmap(start + half, PAGE_SIZE).unwrap();
    assert_eq!(groups.move_mappings(&space, start, 2 * half, GroupId::ROOT), Err(Errno::NOMEM));
    assert_eq!(groups.move_mappings(&space, start, 0, new), Ok(()));
    assert_eq!(groups.group_of(&space), new);
}

/// Threads that store to a file are slowed down at the limit of their group, and only there.
#[test]
fn a_group_has_at_most_so_many_dirty_pages() {
    let manager = manager(100, 0);
    let groups = manager.groups();
    let few = groups.create(GroupId::ROOT, &limits(|limits| limits.dirty = UNIT)).unwrap();
    let by_max = groups.create(GroupId::ROOT, &limits(|limits| limits.max = 4 * UNIT)).unwrap();
    let free = groups.create(GroupId::ROOT, &Limits::default()).unwrap();
    let most = |group| {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(16 * UNIT).unwrap();
        let space = groups.create_space(group).unwrap();
        let object = Some(manager.open(file.path(), true).unwrap());
        let memory = MapRequest::private_memory((16 * UNIT) as usize);
        let start = space.map(MapRequest { sharing: Sharing::Shared, object, ..memory }).unwrap();
        let (cpu, pages) = (space.cpu(), (16 * UNIT) as usize / PAGE_SIZE);
        let dirty = (0..pages).map(|page| {
            cpu.write_u64(start + page * PAGE_SIZE, 7).unwrap();
            manager.core().groups.of(group).dirty_pages()
        });
        units((dirty.max().unwrap() * PAGE_SIZE) as u64)
    };
    // A store that is under way, and pages that are made dirty with it, come on top.
    assert!(most(few) <= 1.5, "{}", most(few));
    assert!(most(by_max) <= 3.5);
    assert!(most(free) > 4.0, "else the limits above have not made the difference");
}

/// The innermost choice counts, a group that a request names before it, and another thread, another manager
/// and what is mapped later have none.
#[test]
fn a_thread_chooses_the_group_of_its_mappings() {
    let (manager, other) = (manager(100, 0), manager(100, 0));
    let groups = manager.groups();
    let [outer, inner, named] = [(); 3].map(|()| groups.create(GroupId::ROOT, &Limits::default()).unwrap());
    let space = manager.create_space().unwrap();
    let touched = |space: &Space<Soft>, group: Option<GroupId>| {
        let request = MapRequest { group, ..MapRequest::private_memory(UNIT as usize) };
        let start = space.map(request).unwrap();
        let cpu = space.cpu();
        (0..UNIT as usize).step_by(PAGE_SIZE).for_each(|at| cpu.write_u64(start + at, 1).unwrap());
    };
    let used = |group| units(stats(&manager, group).usage_bytes).round() as u64;
    let within = groups.within(outer, || {
        touched(&space, None);
        let nested = groups.within(inner, || {
            touched(&space, None);
            touched(&space, Some(named));
            thread::scope(|scope| _ = scope.spawn(|| touched(&space, None)));
            touched(&other.create_space().unwrap(), None);
        });
        nested.unwrap();
        touched(&space, None);
        7
    });
    assert_eq!(within, Ok(7));
    touched(&space, None);
    assert_eq!([outer, inner, named].map(used), [2, 1, 1]);
    groups.remove(inner).unwrap();
    let mut called = false;
    assert_eq!(groups.within(inner, || called = true), Err(Errno::NOENT));
    assert!(!called);
}

/// All of a group's memory is in the batches of threads that do nothing any more, and so in no list.
#[test]
fn pages_in_the_batches_of_idle_threads_are_reclaimed() {
    const THREADS: usize = 8;
    let bound = Duration::from_secs(3);
    let config = Config {
        swap: 100 * UNIT,
        bounds: Bounds { memory_wait: bound, ..Bounds::default() },
        ..Config::with_memory(100 * UNIT)
    };
    let manager = Manager::<Soft>::start_on(config).unwrap();
    let groups = manager.groups();
    let group = groups.create(GroupId::ROOT, &limits(|limits| limits.max = 4 * UNIT)).unwrap();
    let space = groups.create_space(group).unwrap();
    // Single pages, so that a batch is listed only when it has 31 of them.
    let touch = |pages: usize| {
        let cpu = space.cpu();
        let starts = (0..pages).map(|_| space.map(MapRequest::private_memory(PAGE_SIZE)).unwrap());
        starts.map(|start| cpu.write_u64(start, start as u64).map(|()| start)).collect::<Result<Vec<_>, _>>()
    };
    let (touched, over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let starts = touch(30).unwrap();
                touched.fetch_add(1, Ordering::Release);
                while !over.load(Ordering::Acquire) {
                    thread::sleep(Duration::from_millis(1));
                }
                let cpu = space.cpu();
                assert!(starts.into_iter().all(|start| cpu.read_u64(start) == Ok(start as u64)));
            });
        }
        while touched.load(Ordering::Acquire) < THREADS as u64 {
            thread::sleep(Duration::from_millis(1));
        }
        let began = Instant::now();
        let more = touch(60);
        over.store(true, Ordering::Release);
        assert!(more.is_ok() && began.elapsed() < bound, "{more:?} after {:?}", began.elapsed());
    });
}
