//! fork beside threads that store, cut files, and fork, too.

use super::{fork, there};
use crate::support::*;
use elbowroom::{AccessError, Config, Errno, Intent, MapRequest, Place, Prot, Remap, Sharing};
use elbowroom_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};

/// The writer of a page stores a number to its first word, and then to its last; so, at any moment, the last
/// is the first or one less.
#[test]
fn each_page_of_the_child_is_from_one_moment() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    const PAGES: usize = 24;
    let addr = m.map_anon(PAGES, Sharing::Private);
    let stop = AtomicBool::new(false);
    let written = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        for (thread, written) in written.iter().enumerate() {
            let (m, stop) = (&m, &stop);
            scope.spawn(move || {
                let cpu = m.space().cpu();
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    for page in (thread..PAGES).step_by(2) {
                        cpu.write_u64(addr + page * PAGE, number).unwrap();
                        cpu.write_u64(addr + page * PAGE + PAGE - 8, number).unwrap();
                    }
                    written.store(number, Ordering::Release);
                }
            });
        }
        let _end = StopAtTheEnd(&stop);
        let until = Instant::now() + Duration::from_secs(60);
        while written.iter().any(|written| written.load(Ordering::Acquire) == 0) {
            assert!(Instant::now() < until, "nothing is written");
            thread::yield_now();
        }
        let cpu = m.space().cpu();
        let mut before = [0; PAGES];
        for _ in 0..40 {
            let child = fork(m.space());
            let here = there(addr, m.space(), &child);
            let words = |page: usize| [0, PAGE - 8].map(|at| cpu.word(here + page * PAGE + at));
            for (page, before) in before.iter_mut().enumerate() {
                let [first, last] = words(page);
                assert!(first == last || first == last + 1, "page {page}: {first} and {last}");
                assert!(*before <= last, "page {page}: {before} was there before {last}");
                *before = first.min(last);
            }
            // It stays as it is, whatever the parent's threads do.
            for page in 0..PAGES {
                let first = words(page);
                thread::yield_now();
                assert_eq!(words(page), first);
            }
        }
    });
}

/// A fork that fails gives back what it had shared so far, also what the parent has copied meanwhile.
#[test]
fn a_fork_that_fails_leaks_nothing() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let frames = BUDGET as usize / PAGE;
    let pages = frames / 8;
    let addr = m.map_anon(pages, Sharing::Private);
    m.mark(addr, 0..pages, 1);
    // Three times the budget would be lost, if the copied pages were.
    for round in 0..24 {
        let stop = AtomicBool::new(false);
        let pinner = m.space().cpu();
        let pin = pinner.pin(addr + (pages - 1) * PAGE, 8, Intent::Read).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let cpu = m.space().cpu();
                while !stop.load(Ordering::Relaxed) {
                    (0..pages - 1).for_each(|page| cpu.write_u64(addr + page * PAGE + 64, round).unwrap());
                }
            });
            let _end = StopAtTheEnd(&stop);
            assert_eq!(m.space().fork().err(), Some(Errno::AGAIN));
        });
        drop(pin);
        m.check_marks(addr, 0..pages, 1);
    }
    m.space().unmap(addr, pages * PAGE).unwrap();
    let all = m.map_anon(frames * 3 / 4, Sharing::Private);
    m.mark(all, 0..frames * 3 / 4, 2);
    assert_eq!(m.manager().stats().memory_waits, 0);
}

/// What is cut off a file goes, in the parent and in the child, whenever it is forked.
#[test]
fn files_are_cut_while_spaces_fork() {
    ends_within(Duration::from_secs(30), || {
        let m = Sound::new(SoftMachine::start(Config::with_memory(BUDGET)).unwrap());
        let dir = scratch();
        const PAGES: usize = 64;
        let path = stamped(dir.path(), "cut", PAGES);
        let object = m.manager().open(&path, true).unwrap();
        let addr = m.map_file(&object, PAGES, Sharing::Private);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    m.resize(&object, &path, 0);
                    m.resize(&object, &path, (PAGES * PAGE) as u64);
                }
            });
            scope.spawn(|| {
                let cpu = m.space().cpu();
                while !stop.load(Ordering::Relaxed) {
                    for page in 0..PAGES {
                        match cpu.write_u64(addr + page * PAGE, stamp(page)) {
                            Ok(()) | Err(AccessError::Bus(_)) => {}
                            Err(other) => panic!("{other}"),
                        }
                    }
                }
            });
            let _end = StopAtTheEnd(&stop);
            let cpu = m.space().cpu();
            for _ in 0..400 {
                let child = fork(m.space());
                let here = there(addr, m.space(), &child);
                for page in 0..PAGES {
                    is_of_the_file(cpu.read_u64(here + page * PAGE), page, here);
                }
                // Its copies and what it still shares move, and go, beside the cuts.
                for page in (0..PAGES).step_by(3) {
                    let stored = cpu.write_u64(here + page * PAGE, stamp(page));
                    assert!(matches!(stored, Ok(()) | Err(AccessError::Bus(_))), "{stored:?}");
                }
                let place = Remap::DontUnmap(child.base());
                let moved = child.remap(here, PAGES * PAGE, PAGES * PAGE, place).unwrap();
                for page in 0..PAGES {
                    is_of_the_file(cpu.read_u64(moved + page * PAGE), page, moved);
                }
            }
        });
        m.resize(&object, &path, (PAGES * PAGE) as u64);
        m.mark(addr, 0..PAGES, 7);
        m.check_marks(addr, 0..PAGES, 7);
    });
}

/// A page is zero after a cut, or as the file was, or beyond the end.
#[track_caller]
fn is_of_the_file(read: Result<u64, AccessError>, page: usize, base: usize) {
    match read {
        Ok(word) => assert!(word == 0 || word == stamp(page), "page {page}: {word:#x}"),
        Err(error) => assert_eq!(error, AccessError::Bus(base + page * PAGE)),
    }
}

/// Forking, storing and dropping in several threads: nobody sees another's stores.
#[test]
fn children_fork_in_several_threads() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    const PAGES: usize = 16;
    let addr = m.map_anon(PAGES, Sharing::Private);
    m.mark(addr, 0..PAGES, 0);
    std::thread::scope(|scope| {
        for thread in 1..4_u64 {
            let m = &m;
            scope.spawn(move || {
                let cpu = m.space().cpu();
                for round in 0..60 {
                    let child = m.space().fork().unwrap();
                    let here = there(addr, m.space(), &child);
                    let value = |page: usize| stamp(page) ^ (thread << 32 | round);
                    for page in (0..PAGES).step_by(2) {
                        assert_eq!(cpu.word(here + page * PAGE), stamp(page));
                        cpu.set_word(here + page * PAGE, value(page));
                    }
                    let grandchild = child.fork().unwrap();
                    drop(child);
                    let there = there(addr, m.space(), &grandchild);
                    for page in 0..PAGES {
                        let expected = if page % 2 == 0 { value(page) } else { stamp(page) };
                        assert_eq!(cpu.word(there + page * PAGE), expected);
                    }
                }
            });
        }
    });
    m.check_marks(addr, 0..PAGES, 0);
}

/// What is unmapped while a fork goes on, and what is mapped in its place, is not the child's: it would have
/// the new one's bytes with the old one's rights.
#[test]
fn what_takes_the_place_of_a_mapping_is_not_the_childs() {
    const PAGES: usize = 400;
    let m = SoftMachine::start(Config::with_memory(4 * BUDGET)).unwrap();
    // Behind many pages of the space's own, so that it takes a while until its turn comes to be shared.
    let at = m.map_anon(1, Sharing::Private);
    m.space().unmap(at, PAGE).unwrap();
    let many = m.space().map(MapRequest {
        place: Place::Fixed(at - 2 * PAGES * PAGE),
        ..request(None, PAGES, Sharing::Private)
    });
    m.mark(many.unwrap(), 0..PAGES, 1);
    // It is the highest that is free. (A mapping at a fixed place waits for the fork in any case.)
    let map = |prot| assert_eq!(m.map(MapRequest { prot, ..request(None, 1, Sharing::Private) }), at);
    map(Prot::READ);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let cpu = m.space().cpu();
            while !stop.load(Ordering::Relaxed) {
                m.space().unmap(at, PAGE).unwrap();
                map(RW);
                cpu.write_u64(at, 77).unwrap();
                m.space().unmap(at, PAGE).unwrap();
                map(Prot::READ);
            }
        });
        let _end = StopAtTheEnd(&stop);
        for round in 0..200 {
            let child = fork(m.space());
            let (cpu, here) = (child.cpu(), there(at, m.space(), &child));
            if cpu.read_u64(here) == Ok(77) {
                assert_eq!(
                    cpu.write_u64(here, 1),
                    Ok(()),
                    "round {round}: bytes that nobody could store there"
                );
            }
        }
    });
}
