//! Accesses beside changes of the layout.

use crate::support::*;
use elbowroom::{Ablation, AccessError, Advice, Config, MapRequest, Place, Prot, Remap, Sharing};
use elbowroom_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use std::ops::Range;

const PAGES: usize = 48;

/// Reads and writes pages that others move and protect: an access fails, or finds the page's own number.
/// Counts how many succeeded.
fn use_pages(m: &SoftMachine, places: [usize; 2], stop: &AtomicBool, good: &AtomicU64) {
    let cpu = m.space().cpu();
    for i in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let page = i * 7 % PAGES;
        let at = places[i % 2] + page * PAGE;
        let read = cpu.read_u64(at);
        let written = cpu.write_u64(at + 8, stamp(page));
        for (error, what) in [(read.err(), "load"), (written.err(), "store")] {
            match error {
                None => drop(good.fetch_add(1, Ordering::Relaxed)),
                Some(AccessError::NotMapped(_) | AccessError::Denied(_)) => {}
                Some(other) => panic!("{what}: {other}"),
            }
        }
        if let Ok(word) = read {
            assert_eq!(word, stamp(page), "page {page} at {at:#x}");
        }
    }
}

fn change(m: &SoftMachine, places: [usize; 2], round: usize) {
    let part = |range: Range<usize>| (range.start * PAGE, range.len() * PAGE);
    let (from, to) = (places[round % 2], places[1 - round % 2]);
    let (at, len) = part(round % 10..round % 10 + 20);
    m.space().protect(from + at, len, Prot::READ).unwrap();
    m.space().protect(from + at + 3 * PAGE, len / 2, Prot::empty()).unwrap();
    m.space().protect(from, PAGES * PAGE, RW).unwrap();
    m.space().lock(from + at, PAGE, true).unwrap();
    m.space().unlock(from, PAGES * PAGE).unwrap();
    m.space().advise(from + at, len, Advice::Cold).unwrap();
    assert_eq!(m.space().remap(from, PAGES * PAGE, PAGES * PAGE, Remap::Fixed(to)), Ok(to));
}

#[test]
fn pages_keep_their_numbers_while_they_move() {
    pages_keep_their_numbers("");
}

/// It may be slower, but not wrong.
#[test]
fn pages_keep_their_numbers_with_all_improvements_off() {
    pages_keep_their_numbers(&Ablation::names().join(","));
}

fn pages_keep_their_numbers(off: &str) {
    let ablation = Ablation::without(off).unwrap();
    let m = SoftMachine::start(Config { ablation, ..Config::with_memory(BUDGET) }).unwrap();
    let dir = scratch();
    let path = stamped(dir.path(), "moving", PAGES);
    let object = m.manager().open(&path, true).unwrap();
    for (file, sharing) in EVERY_KIND {
        let one = m.map(request(file.then_some(&object), PAGES, sharing));
        let two = m.map_anon(PAGES, Sharing::Private);
        m.space().unmap(two, PAGES * PAGE).unwrap();
        m.mark(one, 0..PAGES, 0);
        let stop = AtomicBool::new(false);
        let good = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| use_pages(&m, [one, two], &stop, &good));
            }
            let _end = StopAtTheEnd(&stop);
            // They may come late. An even number of rounds, so that the pages are where they were at first.
            let until = Instant::now() + Duration::from_secs(60);
            for pair in 0.. {
                let enough = good.load(Ordering::Relaxed) > 0 || Instant::now() > until;
                if pair >= 75 && enough {
                    break;
                }
                (2 * pair..2 * pair + 2).for_each(|round| change(&m, [one, two], round));
            }
        });
        assert!(good.load(Ordering::Relaxed) > 0);
        m.check_marks(one, 0..PAGES, 0);
        assert_eq!(m.space().areas(one..one + PAGES * PAGE).len(), 1, "split, and joined again");
        m.space().unmap(one, PAGES * PAGE).unwrap();
    }
}

/// Several threads map and unmap beside each other, each its own; pages never show what another thread
/// stored.
#[test]
fn threads_map_beside_each_other() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let room = m.map_anon(64, Sharing::Private);
    m.space().unmap(room, 64 * PAGE).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let m = &m;
            scope.spawn(move || {
                let cpu = m.space().cpu();
                let mine = room + thread * 16 * PAGE;
                for round in 0..300 {
                    let at = mine + round % 4 * PAGE;
                    let place = if round % 3 == 0 { Place::Fixed(at) } else { Place::FixedNoReplace(at) };
                    let sharing = if round % 5 == 0 { Sharing::Shared } else { Sharing::Private };
                    let addr = m.space().map(MapRequest { place, ..request(None, 12, sharing) }).unwrap();
                    assert_eq!(addr, at);
                    for page in 0..12 {
                        let word = addr + page * PAGE;
                        assert_eq!(cpu.read_u64(word), Ok(0));
                        cpu.write_u64(word, (thread * 1000 + round) as u64).unwrap();
                    }
                    m.space().unmap(addr + 5 * PAGE, PAGE).unwrap();
                    assert!(cpu.read_u64(addr + 5 * PAGE).is_err());
                    let sum: u64 = [0, 4, 6, 11].iter().map(|p| cpu.word(addr + p * PAGE)).sum();
                    assert_eq!(sum, 4 * (thread * 1000 + round) as u64);
                    m.space().unmap(addr, 12 * PAGE).unwrap();
                }
            });
        }
    });
    assert_eq!(m.space().areas(room..room + 64 * PAGE), []);
}
