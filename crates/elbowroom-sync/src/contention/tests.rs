//! Tests of the lock statistics: against counts made beside them, with waits that are forced, and of what is
//! made of a snapshot.

use super::*;
use crate::Slots;
use crate::atomic::AtomicBool;
use std::panic::Location;
use std::thread;

fn until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "it never happened");
        thread::yield_now();
    }
}

/// The rows of a lock in some mode.
fn rows_of(all: &LockSnapshot, lock: Awaited, mode: Mode) -> Vec<LockRow> {
    all.rows().iter().filter(|row| (row.lock, row.mode) == (lock, mode)).cloned().collect()
}

const CACHE: Awaited = Awaited::Lock(LockClass::Cache);
const LAYOUT: Awaited = Awaited::Lock(LockClass::Layout);

#[test]
fn numbers_and_names_are_those_of_one_thing_each() {
    let all: Vec<_> = Awaited::all().collect();
    assert_eq!(
        all.iter().map(|what| what.number()).collect::<Vec<_>>(),
        (0..Awaited::COUNT).collect::<Vec<_>>()
    );
    let names: std::collections::BTreeSet<_> = all.iter().map(|what| what.name()).collect();
    assert_eq!(names.len(), Awaited::COUNT);
    let rest: std::collections::BTreeSet<_> =
        all.iter().flat_map(|&what| Mode::ALL.map(|mode| rest_of(what, mode, None))).collect();
    assert_eq!(rest, (0..LOCKS).collect());
    let lru = |lru_use| rest_of(Awaited::Lock(LockClass::Lru), Mode::Write, Some(lru_use));
    assert!(LruUse::ALL.into_iter().map(lru).eq(LOCKS..REST));
    let names: std::collections::BTreeSet<_> = LruUse::ALL.map(LruUse::name).into();
    assert_eq!(names.len(), LruUse::ALL.len());
    const { assert!(REST + SITES < 1 << (64 - HOLD_BITS)) };
}

#[test]
fn acquisitions_are_counted_by_mode_and_call_site() {
    let stats = LockStats::new();
    stats.count_in_detail();
    let (mutex, layout) = (stats.mutex(LockClass::Cache, 0_u64), stats.layout_lock(0_u64));
    let counted = [const { AtomicU64::new(0) }; 4];
    let mut lines = [0; 4];
    thread::scope(|scope| {
        for number in 0..6 {
            let (mutex, layout, counted) = (&mutex, &layout, &counted);
            scope.spawn(move || {
                for turn in 0..3_000 {
                    let which = (number + turn) % 4;
                    match which {
                        0 => *mutex.lock() += 1,
                        1 => *mutex.lock() += 2,
                        2 => *layout.write() += 1,
                        _ => assert!(*layout.read() < 1 << 32),
                    }
                    counted[which].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let all = stats.snapshot();
    let rows = [rows_of(&all, CACHE, Mode::Write), rows_of(&all, LAYOUT, Mode::Write)].concat();
    let rows = [rows, rows_of(&all, LAYOUT, Mode::Read)].concat();
    let mut seen: Vec<_> = rows.iter().map(|row| (row.caller.unwrap().line(), row.acquisitions)).collect();
    seen.sort_unstable();
    // The order of the lines is that of the arms above.
    let wanted: Vec<_> = counted.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    assert_eq!(seen.iter().map(|(_, count)| *count).collect::<Vec<_>>(), wanted);
    for (line, (seen, _)) in lines.iter_mut().zip(&seen) {
        *line = *seen;
    }
    assert!(lines.windows(2).all(|pair| pair[0] < pair[1]), "{lines:?}");
    assert!(rows.iter().all(|row| row.caller.unwrap().file() == file!()), "{rows:?}");
    let sum =
        |lock| all.by_lock().iter().filter(|row| row.lock == lock).map(|row| row.acquisitions).sum::<u64>();
    assert_eq!((sum(CACHE), sum(LAYOUT)), (wanted[0] + wanted[1], wanted[2] + wanted[3]));
    assert_eq!(stats.class(LockClass::Layout).acquisitions, wanted[2] + wanted[3]);
    assert_eq!(all.without_caller(), 0);
}

/// The sums of the waits are those of the snapshot, with call sites that have no room, too.
#[test]
fn sums_of_waits_are_those_of_all_call_sites() {
    let stats = LockStats::new();
    assert_eq!(stats.wait_sums().most(), None);
    let wait = |what, ms| {
        let wait = stats.begin_wait(what, Mode::Write);
        thread::sleep(Duration::from_millis(ms));
        stats.end_wait(wait);
    };
    let lru = Awaited::Lock(LockClass::Lru);
    wait(CACHE, 3);
    wait(lru, 1);
    wait(lru, 6);
    wait(Awaited::FolioIo, 30);
    let rest = CallSite { what: CACHE, mode: Mode::Read, lru_use: None, caller: Location::caller() }.rest();
    let lists = rest_of(lru, Mode::Write, Some(LruUse::ALL[0]));
    for (site, wait_ns) in [(rest, 1_000_000), (lists, 2_000_000)] {
        stats.0.times(site).decades[4].fetch_add(1, Ordering::Relaxed);
        stats.0.times(site).wait_ns.fetch_add(wait_ns, Ordering::Relaxed);
    }
    let (sums, all) = (stats.wait_sums(), stats.snapshot());
    for lock in [CACHE, lru, Awaited::FolioIo, LAYOUT] {
        let rows = all.rows().iter().filter(|row| row.lock == lock).map(|row| row.wait_ns).sum::<u64>();
        assert_eq!(sums.of(lock), rows, "{lock:?}");
    }
    assert!(sums.of(CACHE) >= 4_000_000 && sums.of(lru) >= 9_000_000, "{sums:?}");
    // A wait for a device is no contention.
    assert_eq!(sums.most(), Some((lru, sums.of(lru))));
}

/// One line takes the lock for all uses, with call sites counted and not.
#[test]
fn uses_of_the_lru_lock_are_told_apart_at_one_call_site() {
    for in_detail in [false, true] {
        let stats = LockStats::new();
        if in_detail {
            stats.count_in_detail();
        }
        let lists = stats.lru_mutex(());
        for (times, lru_use) in (1..).zip(LruUse::ALL) {
            (0..times).for_each(|_| drop(lists.lock(lru_use)));
        }
        let all = stats.snapshot();
        let taken =
            |lru_use| all.by_lru_use().iter().find(|row| row.lru_use == Some(lru_use)).unwrap().clone();
        for (times, lru_use) in (1..).zip(LruUse::ALL) {
            let row = taken(lru_use);
            assert_eq!((row.acquisitions, row.holds), (times, if in_detail { times } else { 0 }), "{row:?}");
        }
        let [row] = &all.by_lock()[..] else { panic!("{all:?}") };
        assert_eq!((row.acquisitions, row.lru_use), (45, None));
        assert_eq!(stats.class(LockClass::Lru).acquisitions, 45);
    }
}

/// The decade from 10 to 100 ms.
const TENS_OF_MS: usize = 5;
const TIME: Duration = Duration::from_millis(20);

/// One try at a wait of `TIME`: has something, calls its argument, and lets it go when that returns; the
/// other thread wants it as soon as the flag is set.
fn forced(
    stats: &LockStats,
    lock: Awaited,
    mode: Mode,
    has: impl Fn(&dyn Fn()) + Send + Sync,
    wants: impl Fn() + Send + Sync,
) -> LockRow {
    // A thread may lose its processor before it wants it, or for longer than a decade after: it is tried
    // again then.
    for _ in 0..50 {
        let before = stats.snapshot();
        let (had, wanted) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                until(|| had.load(Ordering::Acquire));
                wanted.store(true, Ordering::Release);
                wants();
            });
            has(&|| {
                had.store(true, Ordering::Release);
                until(|| wanted.load(Ordering::Acquire));
                thread::sleep(TIME);
            });
        });
        let rows = rows_of(&stats.snapshot().since(&before), lock, mode);
        let waited = rows.into_iter().find(|row| row.contended() > 0);
        if let Some(row) = waited.filter(|row| row.decades[TENS_OF_MS] == 1) {
            return row;
        }
    }
    panic!("nobody has waited for {} in 50 tries", lock.name());
}

/// One wait of about `TIME`.
fn assert_waited(row: &LockRow) {
    assert_eq!((row.contended(), row.decades[TENS_OF_MS]), (1, 1), "{row:?}");
    assert!((10_000_000..100_000_000).contains(&row.wait_ns), "{row:?}");
    assert!(row.max_wait_ns >= row.wait_ns && row.average_wait_ns() == row.wait_ns, "{row:?}");
    assert_eq!(row.caller.map(Location::file), Some(file!()), "{row:?}");
}

#[test]
fn a_wait_for_a_mutex_is_in_its_decade() {
    let stats = LockStats::new();
    stats.count_in_detail();
    let lock = stats.mutex(LockClass::Cache, ());
    let has = |meanwhile: &dyn Fn()| {
        let _held = lock.lock();
        meanwhile();
    };
    let row = forced(&stats, CACHE, Mode::Write, has, || drop(lock.lock()));
    assert_waited(&row);
    assert_eq!(row.acquisitions, 1);
    let class = stats.class(LockClass::Cache);
    assert!(class.contended >= 1 && class.contended == class.waits.count(), "{class:?}");
    assert!(class.wait_ns >= row.wait_ns && class.waits.max_ns() >= row.wait_ns, "{class:?}");
}

#[test]
fn a_wait_for_the_layout_is_counted_in_its_mode() {
    let stats = LockStats::new();
    let lock = stats.layout_lock(());
    let writes = |meanwhile: &dyn Fn()| {
        let _held = lock.write();
        meanwhile();
    };
    let reads = |meanwhile: &dyn Fn()| {
        let _held = lock.read();
        meanwhile();
    };
    assert_waited(&forced(&stats, LAYOUT, Mode::Read, writes, || drop(lock.read())));
    assert_waited(&forced(&stats, LAYOUT, Mode::Write, reads, || drop(lock.write())));
    assert_waited(&forced(&stats, LAYOUT, Mode::Write, writes, || drop(lock.write())));
}

#[test]
fn a_wait_that_ends_without_sleep_is_counted_too() {
    let stats = LockStats::new();
    let lock = stats.layout_lock(0_u64);
    let short = || stats.snapshot().by_lock().first().map_or(0, |row| row.decades[0]);
    thread::scope(|scope| {
        let done = AtomicBool::new(false);
        let done = &*Box::leak(Box::new(done));
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    *lock.write() += 1;
                }
            });
        }
        until(|| short() > 0);
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_wait_for_the_readers_of_a_vma_is_counted() {
    let stats = LockStats::new();
    let layout = stats.layout_lock(());
    let slots = Slots::new(&layout, 100);
    let key = std::sync::Mutex::new(slots.insert(&mut layout.write(), 1).unwrap());
    let has = |meanwhile: &dyn Fn()| {
        let _read = slots.try_read(*key.lock().unwrap(), &layout).unwrap();
        meanwhile();
    };
    let wants = || {
        let mut held = layout.write();
        let mut key = key.lock().unwrap();
        assert_eq!(slots.remove(*key, &mut held), Some(1));
        *key = slots.insert(&mut held, 1).unwrap();
    };
    let row = forced(&stats, Awaited::Vma, Mode::Write, has, wants);
    assert_waited(&row);
    assert_eq!(row.acquisitions, 0);
}

#[test]
fn waits_that_others_report_are_counted_where_they_begin() {
    let stats = LockStats::new();
    stats.count_in_detail();
    let waits = [(Awaited::Folio, 1), (Awaited::FolioIo, 2), (Awaited::Change, 3)];
    for (what, times) in waits {
        for _ in 0..times {
            let wait = stats.begin_wait(what, Mode::Write);
            stats.end_wait(wait);
        }
        let _not_waited = stats.begin_wait(what, Mode::Write);
        stats.took(what, Mode::Write);
    }
    let all = stats.snapshot();
    for (what, times) in waits {
        let rows = rows_of(&all, what, Mode::Write);
        // The wait and the taking are in two lines.
        assert_eq!(rows.len(), 2, "{rows:?}");
        assert_eq!(rows.iter().map(LockRow::contended).sum::<u64>(), times);
        assert_eq!(rows.iter().map(|row| row.acquisitions).sum::<u64>(), 1);
    }
}

#[test]
fn callers_and_holds_are_counted_on_demand() {
    let stats = LockStats::new();
    let (lock, layout) = (stats.mutex(LockClass::Cache, ()), stats.layout_lock(()));
    for _ in 0..3000 {
        drop(lock.lock());
        drop(layout.write());
        drop(layout.read());
    }
    let before = stats.snapshot();
    assert!(before.rows().iter().all(|row| row.caller.is_none() && row.holds == 0), "{before:?}");
    assert_eq!((before.rows().len(), before.without_caller()), (3, 9000));
    stats.count_in_detail();
    for _ in 0..10 {
        drop(lock.lock());
    }
    let _read = layout.read();
    {
        let _held = lock.lock();
        thread::sleep(TIME);
    }
    let rows = rows_of(&stats.snapshot().since(&before), CACHE, Mode::Write);
    let [short, long] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((short.holds, long.holds), (10, 1));
    assert!(long.hold_ns >= 20_000_000 && long.max_hold_ns == long.hold_ns, "{long:?}");
    assert_eq!((long.average_hold_ns(), long.contended()), (long.hold_ns, 0));
}

#[test]
fn who_waits_for_a_condition_does_not_hold_the_lock() {
    let stats = LockStats::new();
    stats.count_in_detail();
    let (lock, never) = (stats.mutex(LockClass::Resize, ()), crate::Condvar::new());
    // A thread may lose its processor with the lock held.
    let held_briefly = (0..50).any(|_| {
        let before = stats.snapshot();
        never.wait_timeout(&mut lock.lock(), TIME);
        let row = stats.snapshot().since(&before).rows()[0].clone();
        assert_eq!((row.acquisitions, row.holds), (1, 2), "{row:?}");
        row.hold_ns < TIME.as_nanos() as u64 / 2
    });
    assert!(held_briefly);
}

#[test]
fn a_difference_has_what_came_in_between() {
    let stats = LockStats::new();
    let lock = stats.mutex(LockClass::Cache, ());
    let take = |times| (0..times).for_each(|_| drop(lock.lock()));
    let wait = |time| {
        let wait = stats.begin_wait(Awaited::Folio, Mode::Write);
        thread::sleep(time);
        stats.end_wait(wait);
    };
    take(5);
    wait(TIME);
    let before = stats.snapshot();
    assert_eq!(before.since(&before), LockSnapshot::default());
    assert_eq!(before.since(&LockSnapshot::default()), before);
    take(7);
    wait(Duration::ZERO);
    let after = stats.snapshot();
    let change = after.since(&before);
    assert_eq!(rows_of(&change, CACHE, Mode::Write)[0].acquisitions, 7);
    let [row] = &rows_of(&change, Awaited::Folio, Mode::Write)[..] else { panic!("{change:?}") };
    assert_eq!(row.contended(), 1);
    // The longest wait came before, so all that is known is that this one was not longer than the sum.
    assert!(row.wait_ns < TIME.as_nanos() as u64 && row.max_wait_ns == row.wait_ns, "{row:?}");
    wait(3 * TIME);
    let [row] = &rows_of(&stats.snapshot().since(&after), Awaited::Folio, Mode::Write)[..] else {
        panic!("there is one row")
    };
    assert_eq!((row.contended(), row.max_wait_ns), (1, row.wait_ns), "{row:?}");
}

/// Sixteen call sites; with all locks and modes more than there is room for.
const CALLERS: [fn(&LockStats, Awaited, Mode); 16] = [
    |stats, what, mode| stats.took(what, mode),
    |stats, what, mode| stats.took(what, mode),
    |stats, what, mode| stats.took(what, mode),
    |stats, what, mode| stats.took(what, mode),
    |stats, what, mode| stats.took(what, mode),
    |stats, what, mode| stats.took(what, mode),
    |stats, what, mode| stats.took(what, mode),
    |stats, what, mode| stats.took(what, mode),
    |stats, what, mode| stats.took(what, mode),
    |stats, what, mode| stats.took(what, mode),
    |stats, what, mode| stats.took(what, mode),
    |stats, what, mode| stats.took(what, mode),
    |stats, what, mode| stats.end_wait(stats.begin_wait(what, mode)),
    |stats, what, mode| stats.end_wait(stats.begin_wait(what, mode)),
    |stats, what, mode| stats.end_wait(stats.begin_wait(what, mode)),
    |stats, what, mode| stats.end_wait(stats.begin_wait(what, mode)),
];

#[test]
fn a_full_table_counts_the_rest_by_lock_and_mode() {
    const { assert!(CALLERS.len() * LOCKS > SITES) };
    let stats = LockStats::new();
    stats.count_in_detail();
    thread::scope(|scope| {
        for first in 0..4 {
            let stats = &stats;
            scope.spawn(move || {
                for number in 0..CALLERS.len() {
                    for what in Awaited::all() {
                        for mode in Mode::ALL {
                            CALLERS[(first + number) % CALLERS.len()](stats, what, mode);
                        }
                    }
                }
            });
        }
    });
    let all = stats.snapshot();
    let with_room = all.rows().iter().filter(|row| row.caller.is_some());
    let with_room: u64 = with_room.map(|row| row.acquisitions).sum();
    assert!(all.without_caller() > 0 && all.without_caller() + with_room == 4 * 12 * LOCKS as u64, "{all:?}");
    let sums = all.by_lock();
    assert_eq!(sums.len(), LOCKS);
    for row in sums {
        assert_eq!((row.acquisitions, row.contended()), (4 * 12, 4 * 4), "{row:?}");
    }
    let (places, rest): (Vec<_>, Vec<_>) = all.rows().iter().partition(|row| row.caller.is_some());
    assert!(places.len() <= SITES && rest.len() <= LOCKS);
    // Holds are not measured there: a full table has nobody to count them for.
    assert!(all.rows().iter().all(|row| row.holds == 0));
}

#[test]
fn rows_are_sorted_by_total_wait() {
    let stats = LockStats::new();
    for (what, ms) in [(Awaited::Folio, 1), (Awaited::Change, 9), (CACHE, 0), (Awaited::Vma, 4)] {
        let wait = stats.begin_wait(what, Mode::Write);
        thread::sleep(Duration::from_millis(ms));
        stats.end_wait(wait);
    }
    for rows in [stats.snapshot().rows().to_vec(), stats.snapshot().by_lock()] {
        assert!(
            rows.len() == 4 && rows.windows(2).all(|pair| pair[0].wait_ns >= pair[1].wait_ns),
            "{rows:?}"
        );
    }
}

/// Who watches is told where, and not of what ends on another thread.
#[test]
fn waits_for_locks_are_told() {
    let stats = LockStats::new();
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let to = told.clone();
    stats.watch(move |site, waited| to.lock().unwrap().push((site, waited)));
    stats.watch(|_, _| panic!("only the first one is told"));
    for what in [Awaited::Lock(LockClass::Cache), Awaited::Folio, Awaited::Vma, Awaited::Change] {
        let wait = stats.begin_wait(what, Mode::Write);
        std::thread::sleep(Duration::from_millis(1));
        stats.end_wait(wait);
    }
    let told = told.lock().unwrap();
    assert!(told.iter().all(|(_, waited)| *waited >= Duration::from_millis(1)), "{told:?}");
    let places: Vec<_> = told.iter().map(|(site, _)| stats.call_site(*site).unwrap()).collect();
    assert_eq!(places.iter().map(|place| place.0.name()).collect::<Vec<_>>(), ["cache", "vma"]);
    assert!(places.iter().all(|place| place.1.file() == file!()));
    assert_eq!(stats.call_site(0).map(|place| place.0), None);
}
