//! Many threads that fault over a store of which every nth request fails, with less memory than they use.

use crate::support::*;
use elbowroom::{Config, RecordConfig, Sharing, Stats};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};

on_every_machine! {
    every_nth_request_fails
}

/// More pages than there are frames.
const PAGES: usize = 6000;
const THREADS: usize = 8;
/// Accesses of a thread.
const ACCESSES: usize = 3000;
/// Of so many reads, and of so many writes, one fails.
const READS: u64 = 5;
const WRITES: u64 = 7;
/// A storm that has not ended after this hangs.
const LONG: Duration = Duration::from_secs(100);

/// What one thread has seen.
#[derive(Default)]
struct Seen {
    /// Its pages: the word that was stored last, or 0.
    words: Vec<u64>,
    failed: u64,
    done: u64,
}

/// One thread: its own pages are those whose number leaves `own` when divided by [`THREADS`].
fn storm(port: &impl Port, addr: usize, own: usize) -> Seen {
    let mut random = fastrand::Rng::with_seed(own as u64);
    let mut seen = Seen { words: vec![0; PAGES.div_ceil(THREADS)], ..Seen::default() };
    for turn in 1..=ACCESSES as u64 {
        let number = random.usize(..PAGES / THREADS);
        let page = number * THREADS + own;
        let at = addr + page * PAGE + 8;
        let ok = if random.u8(..3) == 0 {
            let stored = port.try_set_word(at, turn);
            if stored {
                seen.words[number] = turn;
            }
            stored
        } else {
            let word = port.try_word(at);
            let expected = if seen.words[number] == 0 { stamp(page) } else { seen.words[number] };
            assert!(word.is_none_or(|word| word == expected), "page {page}: {word:?}, not {expected}");
            word.is_some()
        };
        seen.failed += u64::from(!ok);
        seen.done += 1;
    }
    seen
}

fn every_nth_request_fails<M: Machine + Send + 'static>() {
    ends_within(LONG, || {
        let config = Config {
            inject: Some(format!("read:eio:file=storm:every={READS},write:eio:file=storm:every={WRITES}")),
            // Denials of real pointers last until the flusher's next look.
            writeback_interval: Duration::from_millis(20),
            records: RecordConfig { trace_bytes: 64 << 20, ..RecordConfig::default() },
            ..Config::with_memory(BUDGET)
        };
        let Some(m) = M::start(config) else { return };
        let dir = scratch();
        let path = stamped(dir.path(), "storm", PAGES);
        let object = m.manager().open(&path, true).unwrap();
        let addr = m.map_file(&object, PAGES, Sharing::Shared);
        let seen: Vec<Seen> = std::thread::scope(|scope| {
            let m = &m;
            let start = |own| scope.spawn(move || storm(&m.port(), addr, own));
            let threads: Vec<_> = (0..THREADS).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        // An error of a write-back stays until it is told; what it concerned is tried again.
        let until = Instant::now() + LONG;
        while m.space().sync(addr, PAGES * PAGE, true, false).is_err() {
            assert!(Instant::now() < until, "it is never written");
            thread::sleep(Duration::from_millis(1));
        }
        for page in 0..PAGES {
            let word = seen[page % THREADS].words[page / THREADS];
            let expected = if word == 0 { stamp(page) } else { word };
            assert_eq!(file_word(&path, page * PAGE + 8), expected, "page {page}");
        }
        let failed = seen.iter().map(|seen| seen.failed).sum::<u64>();
        let done = seen.iter().map(|seen| seen.done).sum::<u64>();
        assert_eq!(done, (THREADS * ACCESSES) as u64);
        let trace = m.manager().trace().expect("it is kept");
        let stats = m.manager().stats();
        check(&stats, failed, done);
        // The base of a soft space is its number.
        if m.base() != 0 {
            assert_eq!(stats.faults_denied, failed, "one for each access that failed: {stats:?}");
        }
        assert_eq!(trace.lost(), 0);
        assert!(trace.kept() >= stats.pgfault, "each fault is in it");
    });
}

/// The counters, against each other and against what the threads have seen.
fn check(stats: &Stats, failed: u64, done: u64) {
    assert!(failed > 0 && failed < done / 2, "{failed} of {done} failed");
    // Every nth request fails; a few that the manager gives up, or that are of other kinds, are not counted.
    let nth = |ok: u64, errors: u64, n: u64| (ok + errors) / n;
    let (reads, read_errors) = (stats.reads, stats.read_errors);
    assert!(read_errors.abs_diff(nth(reads, read_errors, READS)) <= 1, "{read_errors} of {reads}: {stats:?}");
    assert!(stats.write_errors > 0 && stats.evicted_pages > 0, "{stats:?}");
    assert_eq!((stats.lost_dirty_pages, stats.overdue_faults), (0, 0), "{stats:?}");
    // Each access that failed had a fault that was denied; with real pointers, the denial serves others, too.
    assert!(stats.faults_denied > 0 && stats.faults_denied <= failed, "{failed} accesses failed: {stats:?}");
    let latency = &stats.latency;
    assert_eq!(latency.minor.count + latency.major.count, stats.pgfault, "{stats:?}");
    assert_eq!(latency.major.count, stats.pgmajfault, "{stats:?}");
    assert!(
        stats.pgmajfault > 0 && stats.pgmajfault <= stats.pgfault && stats.faults_spurious <= stats.pgfault
    );
}
