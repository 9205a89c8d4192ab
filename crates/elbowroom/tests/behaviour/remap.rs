//! mremap.

use crate::support::*;
use elbowroom::{Config, Errno, Prot, Remap, Sharing};

on_every_machine! {
    it_shrinks_and_grows_in_place
    it_moves_with_its_bytes
    it_moves_to_a_fixed_place
    the_old_range_may_stay_mapped
    several_mappings_move_together
    what_cannot_be_remapped
}

/// What is mapped in a test: whether of a file, and how.
const KINDS: [(bool, Sharing); 4] =
    [(false, Sharing::Private), (false, Sharing::Shared), (true, Sharing::Private), (true, Sharing::Shared)];

/// Maps `pages` pages of a file of 64, or of memory, and marks all but the last of them.
fn mapped<M: Machine>(m: &M, dir: &std::path::Path, file: bool, sharing: Sharing, pages: usize) -> usize {
    let path = stamped(dir, "remapped", 64);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map(request(file.then_some(&object), pages, sharing));
    m.mark(addr, 0..pages - 1, 6);
    addr
}

fn it_shrinks_and_grows_in_place<M: Machine>() {
    let dir = scratch();
    for (file, sharing) in KINDS {
        let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
        let addr = mapped(&m, dir.path(), file, sharing, 20);
        assert_eq!(m.space().remap(addr, 20 * PAGE, 12 * PAGE, Remap::InPlace), Ok(addr));
        assert_eq!(m.space().remap(addr, 12 * PAGE, 12 * PAGE, Remap::InPlace), Ok(addr));
        assert_eq!(m.space().areas(addr..addr + 20 * PAGE).len(), 1);
        assert_eq!(m.space().remap(addr, 12 * PAGE, 16 * PAGE - 5, Remap::InPlace), Ok(addr));
        let areas = m.space().areas(addr..addr + 20 * PAGE);
        assert_eq!(areas.iter().map(|a| a.range.clone()).collect::<Vec<_>>(), [addr..addr + 16 * PAGE]);
        m.check_marks(addr, 0..12, 6);
        match (file, sharing) {
            // What shrinking dropped was the space's own.
            (false, Sharing::Private) => m.check_zero(addr + 12 * PAGE, 4),
            (true, Sharing::Private) => m.check_marks(addr + 12 * PAGE, 12..16, 0),
            (_, Sharing::Shared) => m.check_marks(addr + 12 * PAGE, 12..16, 6),
        }
        m.mark(addr, 0..16, 7);
        m.check_marks(addr, 0..16, 7);
    }
}

fn it_moves_with_its_bytes<M: Machine>() {
    let dir = scratch();
    for (file, sharing) in KINDS {
        let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
        let addr = mapped(&m, dir.path(), file, sharing, 20);
        // Something else is right behind it.
        let behind = elbowroom::Place::Hint(addr + 20 * PAGE);
        let other =
            m.map(elbowroom::MapRequest { place: behind, prot: Prot::READ, ..request(None, 1, sharing) });
        if other == addr + 20 * PAGE {
            assert_eq!(m.space().remap(addr, 20 * PAGE, 30 * PAGE, Remap::InPlace), Err(Errno::NOMEM));
        }
        // A part of it cannot grow where it is either.
        assert_eq!(m.space().remap(addr + PAGE, PAGE, 3 * PAGE, Remap::InPlace), Err(Errno::NOMEM));
        let moved = m.space().remap(addr + 5 * PAGE, 10 * PAGE, 30 * PAGE, Remap::MayMove).unwrap();
        assert!(moved >= addr + 20 * PAGE || moved + 30 * PAGE <= addr + 5 * PAGE + 10 * PAGE);
        m.check_marks(addr, 0..5, 6);
        m.check_marks(addr + 15 * PAGE, 15..19, 6);
        m.check_marks(moved, 5..15, 6);
        match (file, sharing) {
            (false, Sharing::Private) => m.check_zero(moved + 10 * PAGE, 20),
            // The memory ends where it did when it was made.
            (false, Sharing::Shared) => {
                m.check_marks(moved + 10 * PAGE, 15..19, 6);
                m.port().load_fails(moved + 15 * PAGE, Failure::Bus);
            }
            (true, Sharing::Private) => m.check_marks(moved + 10 * PAGE, 15..35, 0),
            (true, Sharing::Shared) => {
                m.check_marks(moved + 10 * PAGE, 15..19, 6);
                m.check_marks(moved + 14 * PAGE, 19..35, 0);
            }
        }
        m.mark(moved, 0..10, 8);
        m.check_marks(moved, 0..10, 8);
        m.port().load_fails(addr + 5 * PAGE, Failure::NotMapped);
    }
}

fn it_moves_to_a_fixed_place<M: Machine>() {
    let dir = scratch();
    for (file, sharing) in KINDS {
        for up in [true, false] {
            let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
            let room = m.map_anon(100, Sharing::Private);
            m.mark(room, 0..100, 1);
            let addr = mapped(&m, dir.path(), file, sharing, 20);
            let to = if up == (room > addr) { room + 40 * PAGE } else { room + 50 * PAGE };
            // Longer or shorter than it was.
            let pages = if up { 25 } else { 15 };
            assert_eq!(m.space().remap(addr, 20 * PAGE, pages * PAGE, Remap::Fixed(to)), Ok(to));
            m.check_marks(to, 0..pages.min(19), 6);
            m.check_marks(room, 0..40, 1);
            let after = (to - room) / PAGE + pages;
            m.check_marks(room + after * PAGE, after..100, 1);
            if pages == 25 && (file || sharing == Sharing::Private) {
                match file {
                    false => m.check_zero(to + 20 * PAGE, 5),
                    true => m.check_marks(to + 20 * PAGE, 20..25, 0),
                }
            }
            assert_eq!(m.space().areas(addr..addr + 20 * PAGE), []);
        }
    }
}

fn the_old_range_may_stay_mapped<M: Machine>() {
    let dir = scratch();
    for (file, sharing) in KINDS {
        for fixed in [false, true] {
            let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
            let room = m.map_anon(40, Sharing::Private);
            let addr = mapped(&m, dir.path(), file, sharing, 20);
            let how = match fixed {
                true => Remap::FixedDontUnmap(room + 10 * PAGE),
                // What it says as a place is taken.
                false => Remap::DontUnmap(room + 10 * PAGE),
            };
            let moved = m.space().remap(addr, 20 * PAGE, 20 * PAGE, how).unwrap();
            assert_eq!(moved == room + 10 * PAGE, fixed);
            m.check_marks(moved, 0..19, 6);
            match (file, sharing) {
                (false, Sharing::Private) => m.check_zero(addr, 20),
                (true, Sharing::Private) => m.check_marks(addr, 0..20, 0),
                (_, Sharing::Shared) => m.check_marks(addr, 0..19, 6),
            }
            m.mark(addr, 0..19, 9);
            m.check_marks(addr, 0..19, 9);
            m.check_marks(moved, 0..19, if sharing == Sharing::Shared { 9 } else { 6 });
            let same = m.space().remap(addr, 20 * PAGE, 10 * PAGE, Remap::DontUnmap(room));
            assert_eq!(same, Err(Errno::INVAL), "two lengths");
        }
    }
}

fn several_mappings_move_together<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let room = m.map_anon(40, Sharing::Private);
    let addr = m.map_anon(20, Sharing::Private);
    m.mark(addr, 0..20, 2);
    m.space().protect(addr + 5 * PAGE, 5 * PAGE, Prot::READ).unwrap();
    m.space().unmap(addr + 12 * PAGE, 3 * PAGE).unwrap();
    let to = room + 10 * PAGE;
    assert_eq!(m.space().remap(addr, 20 * PAGE, 20 * PAGE, Remap::Fixed(to)), Ok(to));
    m.check_marks(to, 0..12, 2);
    m.check_marks(to + 15 * PAGE, 15..20, 2);
    m.port().store_fails(to + 5 * PAGE, Failure::Denied);
    m.set_word(to + 4 * PAGE, 5);
    assert_eq!(m.space().areas(addr..addr + 20 * PAGE), []);
    // With two lengths it must be one mapping.
    assert_eq!(m.space().remap(to, 20 * PAGE, 21 * PAGE, Remap::MayMove), Err(Errno::FAULT));
}

fn what_cannot_be_remapped<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let addr = m.map_anon(10, Sharing::Private);
    let remap = |addr, old, new, how| m.space().remap(addr, old, new, how);
    assert_eq!(remap(addr + 1, PAGE, PAGE, Remap::MayMove), Err(Errno::INVAL));
    assert_eq!(remap(addr, PAGE, 0, Remap::MayMove), Err(Errno::INVAL));
    assert_eq!(remap(addr, 0, PAGE, Remap::MayMove), Err(Errno::INVAL));
    assert_eq!(remap(addr, 11 * PAGE, 12 * PAGE, Remap::MayMove), Err(Errno::FAULT));
    assert_eq!(remap(addr + 100 * PAGE, PAGE, 2 * PAGE, Remap::MayMove), Err(Errno::FAULT));
    assert_eq!(remap(addr, 4 * PAGE, 4 * PAGE, Remap::Fixed(addr + PAGE)), Err(Errno::INVAL));
    assert_eq!(remap(addr, 4 * PAGE, 4 * PAGE, Remap::Fixed(addr + 4 * PAGE + 1)), Err(Errno::INVAL));
    assert_eq!(remap(addr, PAGE, 1 << 48, Remap::MayMove), Err(Errno::INVAL));
    m.check_zero(addr, 10);
}
