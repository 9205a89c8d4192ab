//! Budget and swap are full: accesses fail after a bound, and no byte is lost.

use crate::support::*;
use elbowroom::{Bounds, Config, Hooks, Sharing};
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::{AtomicBool, Ordering};
use elbowroom_sync::time::{Duration, Instant};

on_every_machine! {
    loads_of_what_is_out_fail_while_memory_is_full
    who_fails_together_goes_on_together
    a_copy_for_which_there_is_no_memory_fails
    no_access_fails_before_the_first_one_was_reported
}

/// How long an access waits for memory in these tests: longer than a look of the flusher, or what failed
/// would always be tried again.
const BOUND: Duration = Duration::from_millis(400);

/// Longer than any wait that has a bound.
const LONG: Duration = Duration::from_secs(60);

const PAGES: usize = BUDGET as usize / PAGE;

/// A manager with as much swap as memory.
fn config(report: impl Fn(&str) + Send + Sync + 'static) -> Config {
    Config {
        swap: BUDGET,
        bounds: Bounds { memory_wait: BOUND, ..Bounds::default() },
        writeback_interval: Duration::from_millis(50),
        hooks: Hooks { report: Some(Arc::new(report)), ..Hooks::default() },
        ..Config::with_memory(BUDGET)
    }
}

/// A manager whose budget and swap are full, the address of its memory, and how many pages of it were marked.
fn full<M: Machine>(seed: u64) -> Option<(M, usize, usize)> {
    let m = M::start(config(|line| assert!(line.contains("memory is full"), "{line}")))?;
    let pages = 4 * PAGES;
    let addr = m.map_anon(pages, Sharing::Private);
    let marked = {
        let port = m.port();
        let store = |page: usize| {
            let at = addr + page * PAGE;
            port.try_set_word(at, stamp(page) ^ seed) && port.try_set_word(at + PAGE - 8, stamp(page) ^ seed)
        };
        (0..pages).find(|page| !store(*page)).expect("memory is full in the end")
    };
    assert!((PAGES..3 * PAGES).contains(&marked), "{marked} pages");
    Some((m, addr, marked))
}

/// The first pages of the memory that are out.
fn out<M: Machine>(m: &M, addr: usize, pages: usize, most: usize) -> Vec<usize> {
    let mut resident = vec![0; pages];
    m.space().resident(addr, &mut resident).unwrap();
    let out: Vec<_> = (0..pages).filter(|page| resident[*page] == 0).take(most).collect();
    assert_eq!(out.len(), most, "most pages are out");
    out
}

/// Waits until a page can be had again.
fn comes_back<M: Machine>(m: &M, addr: usize) {
    let since = Instant::now();
    while !m.port().can_load(addr) {
        assert!(since.elapsed() < LONG, "it never comes back");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn loads_of_what_is_out_fail_while_memory_is_full<M: Machine>() {
    let Some((m, addr, marked)) = full::<M>(5) else { return };
    let some = out(&m, addr, marked, 3);
    for &page in &some {
        let began = Instant::now();
        m.port().load_fails(addr + page * PAGE, Failure::Bus);
        assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    }
    // A fault is counted a moment after its access has failed.
    let since = Instant::now();
    while m.manager().stats().faults_denied < 4 {
        assert!(since.elapsed() < LONG, "{:?}", m.manager().stats());
        std::thread::yield_now();
    }
    assert_eq!(m.manager().stats().overdue_faults, 0);
    // What is in memory can be used.
    let resident = (0..marked).rev().find(|page| !some.contains(page) && is_resident(&m, addr, *page));
    assert_eq!(m.word(addr + resident.unwrap() * PAGE), stamp(resident.unwrap()) ^ 5);
    // Once there is room all else is as it was.
    let gone = marked / 2;
    m.space().unmap(addr + gone * PAGE, (marked - gone) * PAGE).unwrap();
    for page in some.into_iter().filter(|page| *page < gone) {
        comes_back(&m, addr + page * PAGE);
    }
    m.check_marks(addr, 0..gone, 5);
}

fn is_resident<M: Machine>(m: &M, addr: usize, page: usize) -> bool {
    let mut resident = [0];
    m.space().resident(addr + page * PAGE, &mut resident).unwrap();
    resident[0] == 1
}

/// Sixteen threads, of which pairs want the same page.
fn who_fails_together_goes_on_together<M: Machine>() {
    const THREADS: usize = 16;
    let Some((m, addr, marked)) = full::<M>(6) else { return };
    let some = out(&m, addr, marked / 2, THREADS / 2);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (m, page) = (&m, some[thread / 2]);
            scope.spawn(move || m.port().load_fails(addr + page * PAGE, Failure::Bus));
        }
    });
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    let gone = marked / 2;
    m.space().unmap(addr + gone * PAGE, (marked - gone) * PAGE).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (m, page) = (&m, some[thread / 2]);
            scope.spawn(move || comes_back(m, addr + page * PAGE));
        }
    });
    m.check_marks(addr, 0..gone, 6);
}

/// The store to a page of a file that is mapped privately needs a frame. Loads see the file's page still.
fn a_copy_for_which_there_is_no_memory_fails<M: Machine>() {
    let Some((m, addr, marked)) = full::<M>(7) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "copied", 1);
    let object = m.manager().open(&path, true).unwrap();
    let file = m.map_file(&object, 1, Sharing::Private);
    assert!(!m.port().try_set_word(file, 1));
    m.space().unmap(addr, marked / 2 * PAGE).unwrap();
    let since = Instant::now();
    while !m.port().try_set_word(file, 1) {
        assert!(since.elapsed() < LONG, "it never comes back");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(m.word(file), 1);
    m.check_marks(addr + marked / 2 * PAGE, marked / 2..marked, 7);
}

/// The end of an access may end the process, and a report with it.
fn no_access_fails_before_the_first_one_was_reported<M: Machine>() {
    const THREADS: usize = 8;
    let reported = Arc::new(AtomicBool::new(false));
    let report = {
        let reported = reported.clone();
        move |_: &str| {
            std::thread::sleep(BOUND);
            reported.store(true, Ordering::Release);
        }
    };
    let Some(m) = M::start(Config { handlers: 4, ..config(report) }) else { return };
    let addr = m.map_anon(4 * PAGES, Sharing::Private);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (m, reported) = (&m, &reported);
            scope.spawn(move || {
                let mut pages = (thread..4 * PAGES).step_by(THREADS);
                let port = m.port();
                let failed = pages.find(|page| !port.try_set_word(addr + page * PAGE, stamp(*page)));
                assert!(failed.is_some() && reported.load(Ordering::Acquire), "{failed:?}");
            });
        }
    });
}
