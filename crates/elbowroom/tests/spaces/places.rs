//! A folio in several places at once: two mappings of a file, and a parent with a child.

use super::{fork, there};
use crate::support::*;
use elbowroom::{Config, Prot, Sharing};

const PAGES: usize = 64;

/// Lets two threads load all pages of a range each, many times.
fn load_both(m: &SoftMachine, ranges: [usize; 2], rounds: usize) {
    std::thread::scope(|scope| {
        for addr in ranges {
            scope.spawn(move || {
                let cpu = m.space().cpu();
                for page in (0..PAGES).cycle().take(PAGES * rounds) {
                    assert_eq!(cpu.word(addr + page * PAGE), stamp(page));
                }
            });
        }
    });
}

#[test]
fn two_mappings_of_a_file_are_read_without_faults_once_they_are_warm() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let dir = scratch();
    let object = m.manager().open(&stamped(dir.path(), "twice", PAGES), true).unwrap();
    let both = [Sharing::Shared, Sharing::Private].map(|sharing| m.map_file(&object, PAGES, sharing));
    load_both(&m, both, 1);
    let warm = m.manager().stats();
    load_both(&m, both, 100);
    let stats = m.manager().stats();
    assert_eq!((stats.pgfault, stats.pgmajfault), (warm.pgfault, warm.pgmajfault));
    assert_eq!(stats.folio_moves, 0);
    assert!(warm.retry_mmap_drop > 0 && stats.retry_mmap_drop == warm.retry_mmap_drop, "{stats:?}");
}

/// What is stored through one is seen through the other at once, and reaches the file, also if it is stored
/// after a write-back that has taken the page out of both.
#[test]
fn stores_through_two_mappings_of_a_page_are_written_back() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let dir = scratch();
    let path = stamped(dir.path(), "stored", PAGES);
    let object = m.manager().open(&path, true).unwrap();
    let both = [(); 2].map(|()| m.map_file(&object, PAGES, Sharing::Shared));
    for round in 0..20 {
        let (to, other) = (both[round % 2], both[1 - round % 2]);
        for page in 0..PAGES {
            assert_eq!(m.word(other + page * PAGE + 8), m.word(to + page * PAGE + 8));
            m.set_word(to + page * PAGE + 8, stamp(page) ^ round as u64);
            assert_eq!(m.word(other + page * PAGE + 8), stamp(page) ^ round as u64);
        }
        m.manager().flush_all().unwrap();
        assert_eq!(m.manager().dirty_pages(), 0);
        (0..PAGES).for_each(|page| {
            assert_eq!(file_word(&path, page * PAGE + 8), stamp(page) ^ round as u64);
        });
    }
}

/// One place is left when its mapping goes or may do less; the others stay.
#[test]
fn each_mapping_ends_by_itself() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let dir = scratch();
    let object = m.manager().open(&stamped(dir.path(), "ends", PAGES), true).unwrap();
    let [one, two, three] = [(); 3].map(|()| m.map_file(&object, PAGES, Sharing::Shared));
    for addr in [one, two, three] {
        m.set_word(addr, 1);
        m.check_marks(addr + PAGE, 0..0, 0);
        (1..PAGES).for_each(|page| assert_eq!(m.word(addr + page * PAGE), stamp(page)));
    }
    let warm = m.manager().stats().pgfault;
    m.space().unmap(two, PAGES * PAGE).unwrap();
    m.space().protect(three, PAGES * PAGE, Prot::READ).unwrap();
    m.port().load_fails(two, Failure::NotMapped);
    m.port().store_fails(three, Failure::Denied);
    m.set_word(one, 2);
    (1..PAGES).for_each(|page| assert_eq!(m.word(one + page * PAGE), stamp(page)));
    assert_eq!(m.manager().stats().pgfault, warm, "the first mapping had no fault");
    assert_eq!(m.word(three), 2);
}

#[test]
fn parent_and_child_read_what_they_share_without_faults() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let addr = m.map_anon(PAGES, Sharing::Private);
    (0..PAGES).for_each(|page| m.set_word(addr + page * PAGE, stamp(page)));
    let child = fork(m.space());
    let both = [addr, there(addr, m.space(), &child)];
    load_both(&m, both, 1);
    let warm = m.manager().stats().pgfault;
    load_both(&m, both, 50);
    assert_eq!(m.manager().stats().pgfault, warm);
    // A store makes a copy for who stores; the other has what there was, where it was.
    m.set_word(addr, 7);
    let after = m.manager().stats().pgfault;
    assert_eq!((m.word(addr), m.word(both[1])), (7, stamp(0)));
    assert_eq!(m.manager().stats().pgfault, after);
}
