//! Files: shared and private mappings, and what of them reaches the file.

use crate::support::*;
use elbowroom::{Advice, Config, Prot, Sharing};
use elbowroom_sync::time::Duration;

on_every_machine! {
    shared_stores_reach_the_file_and_its_other_mappings
    private_stores_stay_private
    stores_to_the_file_show_in_untouched_private_pages
    a_mapping_may_begin_inside_the_file
    a_file_four_times_the_budget_reads_right
    random_reads_read_right_and_keep_what_comes_back
    stores_to_more_than_the_budget_reach_the_file
}

fn shared_stores_reach_the_file_and_its_other_mappings<M: Machine>() {
    // Nothing is written before it is asked for.
    let config = Config { writeback_interval: Duration::from_secs(3600), ..Config::with_memory(BUDGET) };
    let Some(m) = M::start(config) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "shared", 64);
    let object = m.manager().open(&path, true).unwrap();
    let (one, two) = (m.map_file(&object, 64, Sharing::Shared), m.map_file(&object, 64, Sharing::Shared));
    assert_ne!(one, two);
    for round in 0..3 {
        m.mark(one, 0..32, round);
        m.mark(two, 32..64, round);
        m.check_marks(two, 0..64, round);
        m.check_marks(one, 0..64, round);
    }
    m.check_marks(one, 0..64, 2);
    assert!(m.manager().dirty_pages() > 0);
    m.space().sync(one, 64 * PAGE, true, false).unwrap();
    assert_eq!(m.manager().dirty_pages(), 0);
    for page in 0..64 {
        let words = [0, 8, PAGE - 8].map(|at| file_word(&path, page * PAGE + at));
        assert_eq!(words, [stamp(page) ^ 2, stamp(page), stamp(page) ^ 2], "page {page}");
    }
    // What is unmapped while it is dirty is written as well.
    m.set_word(two + 5 * PAGE, 77);
    m.space().unmap(two, 64 * PAGE).unwrap();
    assert_eq!(m.word(one + 5 * PAGE), 77);
    m.space().unmap(one, 64 * PAGE).unwrap();
    m.manager().flush_all().unwrap();
    assert_eq!(file_word(&path, 5 * PAGE), 77);
}

fn private_stores_stay_private<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "private", 64);
    let object = m.manager().open(&path, true).unwrap();
    let shared = m.map_file(&object, 64, Sharing::Shared);
    let (one, two) = (m.map_file(&object, 64, Sharing::Private), m.map_file(&object, 64, Sharing::Private));
    // Some pages were loaded before, some were not.
    m.check_marks(one, 0..20, 0);
    m.mark(one, 10..40, 1);
    m.mark(two, 30..50, 2);
    m.check_marks(one, 0..10, 0);
    m.check_marks(one + 10 * PAGE, 10..40, 1);
    m.check_marks(one + 40 * PAGE, 40..64, 0);
    m.check_marks(two, 0..30, 0);
    m.check_marks(two + 30 * PAGE, 30..50, 2);
    m.check_marks(shared, 0..64, 0);
    // The rest of a copied page is the file's.
    assert_eq!(m.word(one + 12 * PAGE + 2048), stamp(12));
    for addr in [one, two, shared] {
        m.space().sync(addr, 64 * PAGE, true, false).unwrap();
    }
    m.manager().flush_all().unwrap();
    assert_eq!(m.manager().stats().written_bytes, 0);
    for page in 0..64 {
        assert_eq!(file_word(&path, page * PAGE), stamp(page));
    }
}

fn stores_to_the_file_show_in_untouched_private_pages<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "mixed", 32);
    let object = m.manager().open(&path, true).unwrap();
    let (shared, private) =
        (m.map_file(&object, 32, Sharing::Shared), m.map_file(&object, 32, Sharing::Private));
    m.check_marks(private, 0..32, 0);
    m.mark(private, 0..8, 1);
    m.mark(shared, 4..16, 2);
    m.check_marks(private, 0..8, 1);
    m.check_marks(private + 8 * PAGE, 8..16, 2);
    m.check_marks(private + 16 * PAGE, 16..32, 0);
    m.check_marks(shared, 0..4, 0);
    // A write through a descriptor shows in the same pages.
    m.write_file(&object, &path, 6 * PAGE as u64, &[0xAB; 4 * PAGE]);
    for page in 6..10 {
        assert_eq!(m.word(shared + page * PAGE + 64), u64::from_ne_bytes([0xAB; 8]), "page {page}");
    }
    m.check_marks(private, 0..8, 1);
    assert_eq!(m.word(private + 9 * PAGE), u64::from_ne_bytes([0xAB; 8]));
    // Once the copies are dropped, the file shows.
    m.space().advise(private, 32 * PAGE, Advice::DontNeed).unwrap();
    m.check_marks(private, 0..4, 0);
    m.check_marks(private + 4 * PAGE, 4..6, 2);
    assert_eq!(m.word(private + 7 * PAGE), u64::from_ne_bytes([0xAB; 8]));
}

fn a_mapping_may_begin_inside_the_file<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "offset", 700);
    let object = m.manager().open(&path, true).unwrap();
    for (first, sharing) in [(1, Sharing::Shared), (513, Sharing::Private), (3, Sharing::Private)] {
        let pages = 700 - first;
        let addr = m.map(elbowroom::MapRequest {
            offset: (first * PAGE) as u64,
            ..request(Some(&object), pages, sharing)
        });
        m.check_marks(addr, first..700, 0);
        m.mark(addr - first * PAGE, first + 9..first + 11, 5);
        m.check_marks(addr + 9 * PAGE, first + 9..first + 11, 5);
        m.mark(addr - first * PAGE, first + 9..first + 11, 0);
        m.space().unmap(addr, pages * PAGE).unwrap();
    }
}

fn a_file_four_times_the_budget_reads_right<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let pages = 4 * BUDGET as usize / PAGE;
    let path = stamped(dir.path(), "large", pages);
    let object = m.manager().open(&path, false).unwrap();
    let base = m.map(elbowroom::MapRequest {
        prot: Prot::READ,
        may_write: false,
        ..request(Some(&object), pages, Sharing::Shared)
    });
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let m = &m;
            scope.spawn(move || {
                let port = m.port();
                for i in 0..pages {
                    let page = match thread % 3 {
                        0 => i,
                        1 => pages - 1 - i,
                        _ => (i * 7919 + thread * 1000) % pages,
                    };
                    assert_eq!(port.word(base + page * PAGE + 8 * (i % 512)), stamp(page), "page {page}");
                }
            });
        }
    });
    let stats = m.manager().stats();
    assert!(stats.peak_bytes <= BUDGET && stats.evicted_pages > 0, "{stats:?}");
    if ablated(Config::with_memory(BUDGET)).ablation == elbowroom::Ablation::default() {
        assert_eq!((stats.retry_io_miss, stats.layout_lock_faults), (0, 0), "{stats:?}");
    }
}

fn random_reads_read_right_and_keep_what_comes_back<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let pages = 8 * BUDGET as usize / PAGE;
    let path = stamped(dir.path(), "random", pages);
    let object = m.manager().open(&path, false).unwrap();
    let base = m.map(elbowroom::MapRequest {
        prot: Prot::READ,
        may_write: false,
        ..request(Some(&object), pages, Sharing::Shared)
    });
    // Every page once before any comes again, in an order without streams; after each three of a few that
    // come again and again, if there are any.
    let read = |hot: usize| {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let m = &m;
                scope.spawn(move || {
                    let port = m.port();
                    for i in (thread..pages).step_by(4) {
                        let cold = i * 7919 % pages;
                        let again = (0..3).filter(|_| hot > 0).map(|nth| (i * 3 + nth) * 31 % hot);
                        for page in std::iter::once(cold).chain(again) {
                            assert_eq!(
                                port.word(base + page * PAGE + 8 * (i % 512)),
                                stamp(page),
                                "page {page}"
                            );
                        }
                    }
                });
            }
        });
        m.manager().stats()
    };
    let cold = read(0);
    assert!(cold.peak_bytes <= BUDGET && cold.evicted_pages > pages as u64 / 2, "{cold:?}");
    assert!(cold.second_chances * 2 < cold.evicted_pages, "nobody takes chances: {cold:?}");
    let few = BUDGET as usize / PAGE / 4;
    let hot = read(few);
    // All of memory is read about nine times meanwhile.
    let again = (hot.pgmajfault - cold.pgmajfault).saturating_sub(pages as u64);
    assert!(again < 6 * few as u64, "what comes back is kept: {again}, {cold:?}, {hot:?}");
    assert!(hot.peak_bytes <= BUDGET, "{hot:?}");
}

fn stores_to_more_than_the_budget_reach_the_file<M: Machine>() {
    for handlers in [1, 3] {
        let Some(m) = M::start(Config { handlers, ..Config::with_memory(BUDGET) }) else { return };
        store_to_more_than_the_budget(&m);
    }
}

fn store_to_more_than_the_budget<M: Machine>(m: &M) {
    let dir = scratch();
    let pages = 2 * BUDGET as usize / PAGE;
    let path = stamped(dir.path(), "dirty", pages);
    let object = m.manager().open(&path, true).unwrap();
    let base = m.map_file(&object, pages, Sharing::Shared);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || {
                let port = m.port();
                for page in (thread..pages).step_by(3) {
                    let addr = base + page * PAGE;
                    assert_eq!(port.word(addr + 16), stamp(page));
                    port.set_word(addr + 24, page as u64 ^ 0xABCD);
                    assert_eq!(port.word(addr + 24), page as u64 ^ 0xABCD);
                }
            });
        }
    });
    m.space().sync(base, pages * PAGE, true, false).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    for page in 0..pages {
        let word = |at: usize| u64::from_le_bytes(bytes[page * PAGE + at..][..8].try_into().unwrap());
        assert_eq!((word(16), word(24)), (stamp(page), page as u64 ^ 0xABCD), "page {page}");
    }
    let stats = m.manager().stats();
    assert!(stats.peak_bytes <= BUDGET && stats.lost_dirty_pages == 0, "{stats:?}");
}
