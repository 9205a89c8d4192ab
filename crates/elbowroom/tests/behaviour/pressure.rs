//! The time that threads lose because memory lacks.

use super::swap::{noise, with_disk};
use crate::support::*;
use elbowroom::{Advice, Bounds, Config, Hooks, PressureUse, Sharing, StallExtent, Trigger};
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Arc, thread};

on_every_machine! {
    threads_that_wait_for_a_slow_disk_stall_as_long_as_they_wait
    one_thread_that_reads_stalls_alone
    a_read_that_fails_ends_its_stall
    what_comes_back_from_swap_is_a_stall_of_its_mapping
    writers_that_are_throttled_stall
    a_fault_without_memory_stalls_until_it_fails
    a_trigger_tells_that_threads_stall
    accesses_without_waits_are_no_stalls
}

const THREADS: usize = 4;
const READS: usize = 6;

/// How often a test measures times before it fails.
const TURNS: usize = 10;

/// Distance of pages that are read, in pages.
const STRIDE: usize = 16;

fn slow(what: &str) -> Config {
    Config { inject: Some(what.to_owned()), ..Config::with_memory(BUDGET) }
}

/// The figures when no thread stalls. A handler may note the end of a stall a moment after it has woken the
/// thread, so this waits first. Checks that no stall goes on without a thread.
fn figures_at_end<M: Machine>(m: &M) -> PressureUse {
    let [before, after] = [(); 2].map(|()| {
        thread::sleep(Duration::from_millis(20));
        m.manager().pressure().figures()
    });
    assert_eq!((before.some.total_us, before.kinds), (after.some.total_us, after.kinds), "a stall goes on");
    after
}

/// Measures stall times and the times that threads have waited, until they differ by at most a twentieth: on
/// a busy machine a thread that was woken may wait for a processor as well, which is no stall.
fn about<const N: usize>(mut measure: impl FnMut(usize) -> [(u64, Duration); N]) {
    let mut seen = Vec::new();
    for turn in 0..TURNS {
        let times = measure(turn).map(|(stalled_us, waited)| (stalled_us, waited.as_micros() as u64));
        assert!(times.iter().all(|(stalled, waited)| stalled <= waited), "{times:?}");
        if times.iter().all(|(stalled, waited)| *stalled >= waited / 20 * 19) {
            return;
        }
        seen.push(times);
    }
    panic!("stall times and waits, in us: {seen:?}");
}

/// Threads read pages far from each other, all at once. The sum of their waits is the stall time of file
/// reads, the time from the first read to the last is `some`, and more than a quarter of it is `full`.
fn threads_that_wait_for_a_slow_disk_stall_as_long_as_they_wait<M: Machine>() {
    let dir = scratch();
    let pages = TURNS * THREADS * READS * STRIDE;
    let path = stamped(dir.path(), "data", pages);
    let Some(m) = M::start(slow("read:slow=60ms")) else { return };
    let object = m.manager().open(&path, false).unwrap();
    let addr = m.map_file(&object, pages, Sharing::Private);
    m.space().advise(addr, pages * PAGE, Advice::Random).unwrap();
    let read_all = |first: usize| {
        let port = m.port();
        let read = |nth: usize| {
            let (page, begun) = ((first + nth) * STRIDE, Instant::now());
            assert_eq!(port.word(addr + page * PAGE), stamp(page));
            begun.elapsed()
        };
        (0..READS).map(read).sum::<Duration>()
    };
    about(|turn| {
        let (before, begun) = (figures_at_end(&m), Instant::now());
        let waited = std::thread::scope(|scope| {
            let first = |nth| (turn * THREADS + nth) * READS;
            let spawn = |nth| scope.spawn(move || read_all(first(nth)));
            let readers: Vec<_> = (0..THREADS).map(spawn).collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).sum()
        });
        let (took, after) = (begun.elapsed(), figures_at_end(&m));
        let read_us = after.kinds.file_read_us - before.kinds.file_read_us;
        let some_us = after.some.total_us - before.some.total_us;
        assert!(read_us >= 60_000 * (THREADS * READS) as u64, "{after:?}");
        [(read_us, waited), (some_us, took)]
    });
    let seen = figures_at_end(&m);
    let (some, full) = (seen.some.total_us, seen.full.total_us);
    assert!(full <= some && full > some / 4, "{seen:?}");
    assert_eq!((seen.kinds.swap_in_us, seen.kinds.frames_us, seen.kinds.dirty_us), (0, 0, 0));
    let [source] = seen.sources[..] else { panic!("{seen:?}") };
    let id = object.id();
    assert_eq!((source.device, source.inode, source.address, source.over_us), (id.device, id.inode, 0, 0));
    assert!(source.stall_us.abs_diff(seen.kinds.file_read_us) < 1_000, "{seen:?}");
    assert!(seen.some.avg10 > seen.some.avg60 && seen.some.avg60 > seen.some.avg300, "{seen:?}");
}

/// The manager knows of no other thread, so all of the stall is `full`.
fn one_thread_that_reads_stalls_alone<M: Machine>() {
    let dir = scratch();
    let path = stamped(dir.path(), "data", TURNS * STRIDE);
    let Some(m) = M::start(slow("read:slow=60ms")) else { return };
    let object = m.manager().open(&path, false).unwrap();
    let addr = m.map_file(&object, TURNS * STRIDE, Sharing::Private);
    m.space().advise(addr, TURNS * STRIDE * PAGE, Advice::Random).unwrap();
    about(|turn| {
        let (before, begun) = (figures_at_end(&m).some.total_us, Instant::now());
        assert_eq!(m.word(addr + turn * STRIDE * PAGE), stamp(turn * STRIDE));
        let (waited, after) = (begun.elapsed(), figures_at_end(&m));
        assert_eq!(after.some, after.full);
        [(after.some.total_us - before, waited)]
    });
}

fn a_read_that_fails_ends_its_stall<M: Machine>() {
    let dir = scratch();
    let path = stamped(dir.path(), "data", 2);
    let Some(m) = M::start(slow("read:slow=30ms,read:eio")) else { return };
    let object = m.manager().open(&path, false).unwrap();
    let addr = m.map_file(&object, 2, Sharing::Private);
    assert!(!m.port().can_load(addr));
    let seen = figures_at_end(&m);
    assert!(seen.kinds.file_read_us >= 29_000, "{seen:?}");
}

fn what_comes_back_from_swap_is_a_stall_of_its_mapping<M: Machine>() {
    let dir = scratch();
    let mut config = Config { inject: Some("read:slow=60ms".to_owned()), ..with_disk(dir.path()) };
    config.ablation.tuning.pool_percent = 0;
    let Some(m) = M::start(config) else { return };
    let (pages, port) = (64, m.port());
    let addr = m.map_anon(pages, Sharing::Private);
    (0..pages).for_each(|page| port.store(addr + page * PAGE, &noise(page)));
    about(|_| {
        m.space().advise(addr, pages * PAGE, Advice::PageOut).unwrap();
        let (before, begun) = (figures_at_end(&m).kinds.swap_in_us, Instant::now());
        let mut found = [0; PAGE];
        port.load(addr + 9 * PAGE, &mut found);
        let waited = begun.elapsed();
        assert!(found == noise(9));
        let after = figures_at_end(&m);
        assert!(after.kinds.swap_in_us >= before + 60_000, "{after:?}");
        [(after.kinds.swap_in_us - before, waited)]
    });
    let seen = figures_at_end(&m);
    assert_eq!((seen.sources[0].address, seen.sources[0].inode), (addr, 0), "{seen:?}");
}

fn writers_that_are_throttled_stall<M: Machine>() {
    let dir = scratch();
    let pages = 1024;
    let path = stamped(dir.path(), "data", pages);
    let Some(m) = M::start(Config { dirty: Some(64 << 12), ..slow("write:slow=20ms") }) else { return };
    let object = m.manager().open(&path, true).unwrap();
    let (addr, port) = (m.map_file(&object, pages, Sharing::Shared), m.port());
    let begun = Instant::now();
    (0..pages).for_each(|page| port.set_word(addr + page * PAGE, 7));
    let took = begun.elapsed();
    let throttled = m.manager().stats().throttled_writers;
    let seen = figures_at_end(&m);
    assert!(throttled > 0 && seen.kinds.dirty_us > 1_000, "{throttled}: {seen:?}");
    assert!(seen.kinds.dirty_us <= took.as_micros() as u64, "{took:?}: {seen:?}");
}

fn a_fault_without_memory_stalls_until_it_fails<M: Machine>() {
    const BOUND: Duration = Duration::from_millis(100);
    let config =
        Config { bounds: Bounds { memory_wait: BOUND, ..Bounds::default() }, ..Config::with_memory(BUDGET) };
    let Some(m) =
        M::start(Config { hooks: Hooks { report: Some(Arc::new(|_| ())), ..Hooks::default() }, ..config })
    else {
        return;
    };
    let (pages, port) = (2 * BUDGET as usize / PAGE, m.port());
    let addr = m.map_anon(pages, Sharing::Private);
    let failed = (0..pages).find(|page| !port.try_set_word(addr + page * PAGE, 7));
    assert!(failed.is_some(), "there is more memory than the budget");
    let seen = figures_at_end(&m);
    assert!(seen.kinds.frames_us >= BOUND.as_micros() as u64 / 10 * 9, "{seen:?}");
    assert_eq!(seen.kinds.file_read_us, 0);
}

fn a_trigger_tells_that_threads_stall<M: Machine>() {
    let dir = scratch();
    let pages = READS * STRIDE;
    let path = stamped(dir.path(), "data", pages);
    let Some(m) = M::start(slow("read:slow=60ms")) else { return };
    let object = m.manager().open(&path, false).unwrap();
    let addr = m.map_file(&object, pages, Sharing::Private);
    m.space().advise(addr, pages * PAGE, Advice::Random).unwrap();
    let (stall, window) = (Duration::from_millis(30), Duration::from_millis(150));
    let mut watch =
        m.manager().pressure().watch(Trigger { extent: StallExtent::Some, stall, window }).unwrap();
    assert!(!watch.wait(Duration::from_millis(20)), "no thread stalls");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let port = m.port();
            let words = (0..pages).step_by(STRIDE).map(|page| (port.word(addr + page * PAGE), stamp(page)));
            words.for_each(|(word, expected)| assert_eq!(word, expected));
        });
        let begun = Instant::now();
        let events = (0..2).filter(|_| watch.wait(Duration::from_secs(10))).count();
        let after = begun.elapsed();
        // The stalls take 360 ms in all.
        assert!(events == 2 && after >= stall + window, "{events} events in {after:?}");
    });
}

/// First touches of memory and accesses to present pages wait for nothing, and so are no stalls.
fn accesses_without_waits_are_no_stalls<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let (pages, port) = (256, m.port());
    let addr = m.map_anon(pages, Sharing::Private);
    for _ in 0..2 {
        (0..pages).for_each(|page| port.set_word(addr + page * PAGE, 7));
    }
    let PressureUse { elapsed_us, some, full, kinds, sources } = figures_at_end(&m);
    assert!(elapsed_us > 0 && sources.is_empty(), "{sources:?}");
    assert_eq!((some, full, kinds), Default::default());
}
