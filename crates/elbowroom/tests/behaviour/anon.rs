//! Anonymous memory, private and shared.

use crate::support::*;
use elbowroom::{Config, Prot, Remap, Sharing};

on_every_machine! {
    memory_begins_as_zeros
    frames_of_the_past_do_not_show
    shared_memory_has_one_copy_of_each_page
    memory_is_kept_under_pressure_of_a_file
}

fn memory_begins_as_zeros<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    for sharing in [Sharing::Private, Sharing::Shared] {
        let addr = m.map_anon(64, sharing);
        m.check_zero(addr, 32);
        m.mark(addr, 10..50, 1);
        m.check_zero(addr, 10);
        m.check_marks(addr + 10 * PAGE, 10..50, 1);
        m.check_zero(addr + 50 * PAGE, 14);
        let untouched = (addr + 12 * PAGE) + 64;
        assert_eq!(m.word(untouched), 0);
    }
}

fn frames_of_the_past_do_not_show<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let pages = 1024;
    for round in 0..6 {
        for sharing in [Sharing::Private, Sharing::Shared] {
            let addr = m.map_anon(pages, sharing);
            m.check_zero(addr, pages);
            let port = m.port();
            (0..pages).for_each(|page| port.store(addr + page * PAGE, &[0xA0 | round; PAGE]));
            m.space().unmap(addr, pages * PAGE).unwrap();
        }
    }
    assert!(m.manager().stats().peak_bytes <= BUDGET);
}

fn shared_memory_has_one_copy_of_each_page<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let one = m.map_anon(32, Sharing::Shared);
    m.mark(one, 0..16, 1);
    // No old length: a second mapping of the same pages.
    let two = m.space().remap(one, 0, 32 * PAGE, Remap::MayMove).unwrap();
    m.check_marks(two, 0..16, 1);
    m.check_zero(two + 16 * PAGE, 16);
    m.mark(two, 8..24, 2);
    m.check_marks(one, 0..8, 1);
    m.check_marks(one + 8 * PAGE, 8..24, 2);
    // The memory lives as long as one of its mappings.
    m.space().unmap(one, 32 * PAGE).unwrap();
    m.check_marks(two + 8 * PAGE, 8..24, 2);
    m.space().protect(two, 32 * PAGE, Prot::READ).unwrap();
    m.check_marks(two + 8 * PAGE, 8..24, 2);
}

fn memory_is_kept_under_pressure_of_a_file<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let pages = 2 * BUDGET as usize / PAGE;
    let path = stamped(dir.path(), "pressure", pages);
    let object = m.manager().open(&path, true).unwrap();
    let (private, shared) = (m.map_anon(500, Sharing::Private), m.map_anon(500, Sharing::Shared));
    let copies = m.map_file(&object, 500, Sharing::Private);
    for (addr, seed) in [(private, 1), (shared, 2), (copies, 3)] {
        m.mark(addr, 0..500, seed);
    }
    let file = m.map_file(&object, pages, Sharing::Shared);
    for _ in 0..2 {
        m.check_marks(file, 0..pages, 0);
        for (addr, seed) in [(private, 1), (shared, 2), (copies, 3)] {
            m.check_marks(addr, 0..500, seed);
        }
    }
    let stats = m.manager().stats();
    assert!(stats.evicted_pages > 0 && stats.peak_bytes <= BUDGET, "{stats:?}");
}
