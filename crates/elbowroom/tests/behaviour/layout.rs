//! The layout: places, partial unmapping, rights.

use crate::support::*;
use elbowroom::{Config, Errno, MapRequest, Place, Prot, Sharing};
use std::ops::Range;

on_every_machine! {
    a_part_can_be_unmapped
    rights_can_go_and_come_back
    rights_are_told_apart
    hints_and_fixed_places
    places_that_cannot_be
    neighbours_that_are_alike_become_one
}

fn ranges<M: Machine>(m: &M, within: Range<usize>) -> Vec<Range<usize>> {
    m.space().areas(within).into_iter().map(|area| area.range).collect()
}

fn a_part_can_be_unmapped<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "cut", 20);
    let object = m.manager().open(&path, true).unwrap();
    for (file, sharing) in EVERY_KIND {
        let addr = m.map(request(file.then_some(&object), 20, sharing));
        m.mark(addr, 0..20, 9);
        let at = |page: usize| addr + page * PAGE;
        m.space().unmap(at(5), 3 * PAGE).unwrap();
        m.space().unmap(at(0), PAGE).unwrap();
        m.space().unmap(at(18), 2 * PAGE).unwrap();
        // A hole, and a part of what is left, at once.
        m.space().unmap(at(6), 4 * PAGE).unwrap();
        assert_eq!(ranges(&m, at(0)..at(20)), [at(1)..at(5), at(10)..at(18)]);
        m.check_marks(at(1), 1..5, 9);
        m.check_marks(at(10), 10..18, 9);
        let port = m.port();
        for page in [0, 5, 7, 9, 18, 19] {
            port.load_fails(at(page), Failure::NotMapped);
            port.store_fails(at(page) + 100, Failure::NotMapped);
        }
        m.space().unmap(addr, 20 * PAGE).unwrap();
        m.space().unmap(addr, 20 * PAGE).unwrap();
        assert_eq!(ranges(&m, at(0)..at(20)), []);
    }
}

fn rights_can_go_and_come_back<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "rights", 20);
    let object = m.manager().open(&path, true).unwrap();
    for (file, sharing) in EVERY_KIND {
        let addr = m.map(request(file.then_some(&object), 20, sharing));
        m.mark(addr, 0..20, 9);
        let part = addr + 5 * PAGE;
        for prot in [Prot::READ, Prot::empty()] {
            m.space().protect(part, 10 * PAGE, prot).unwrap();
            let port = m.port();
            port.store_fails(part, Failure::Denied);
            port.store_fails(part + 10 * PAGE - 1, Failure::Denied);
            if prot.is_empty() {
                port.load_fails(part + 5 * PAGE, Failure::Denied);
            } else {
                m.check_marks(addr, 0..20, 9);
            }
            m.set_word(part - 8, 4711);
            m.set_word(part + 10 * PAGE, 4712);
            m.space().protect(part, 10 * PAGE, RW).unwrap();
            assert_eq!((m.word(part - 8), m.word(part + 10 * PAGE)), (4711, 4712));
            m.mark(addr, 4..5, 9);
            m.mark(addr, 15..16, 9);
            m.check_marks(addr, 0..20, 9);
        }
        m.mark(addr, 0..20, 0);
        m.check_marks(addr, 0..20, 0);
        assert_eq!(ranges(&m, addr..addr + 20 * PAGE), [addr..addr + 20 * PAGE]);
        m.space().unmap(addr, 20 * PAGE).unwrap();
    }
}

fn rights_are_told_apart<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "read-only", 8);
    let object = m.manager().open(&path, false).unwrap();
    let read_only = |prot, sharing| MapRequest {
        prot,
        may_write: sharing == Sharing::Private,
        ..request(Some(&object), 8, sharing)
    };
    assert_eq!(m.space().map(read_only(RW, Sharing::Shared)), Err(Errno::ACCESS));
    let addr = m.map(read_only(Prot::READ, Sharing::Shared));
    assert_eq!(m.space().protect(addr, 8 * PAGE, RW), Err(Errno::ACCESS));
    m.check_marks(addr, 0..8, 0);
    m.port().store_fails(addr, Failure::Denied);
    let copy = m.map(read_only(Prot::READ, Sharing::Private));
    m.port().store_fails(copy + PAGE, Failure::Denied);
    m.space().protect(copy, 8 * PAGE, RW).unwrap();
    m.mark(copy, 1..8, 3);
    m.check_marks(copy + PAGE, 1..8, 3);
    m.check_marks(addr, 0..8, 0);
    // Up to the hole it is done.
    m.space().unmap(copy + 4 * PAGE, PAGE).unwrap();
    assert_eq!(m.space().protect(copy, 8 * PAGE, Prot::READ), Err(Errno::NOMEM));
    m.port().store_fails(copy + 3 * PAGE, Failure::Denied);
    m.set_word(copy + 5 * PAGE, 1);
    assert_eq!(m.space().protect(copy + 1, PAGE, Prot::READ), Err(Errno::INVAL));
}

fn hints_and_fixed_places<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let addr = m.map_anon(64, Sharing::Private);
    m.mark(addr, 0..64, 1);
    let at = |page: usize| addr + page * PAGE;
    let placed = |place, pages| MapRequest { place, ..request(None, pages, Sharing::Private) };
    m.space().unmap(at(20), 10 * PAGE).unwrap();
    // A hint that is free, rounded down; one that is not.
    assert_eq!(m.map(placed(Place::Hint(at(22) + 5), 2)), at(22));
    m.check_zero(at(22), 2);
    let other = m.map(placed(Place::Hint(at(23)), 2));
    assert_ne!(other, at(23));
    m.check_zero(other, 2);
    m.space().unmap(other, 2 * PAGE).unwrap();
    assert_eq!(m.space().map(placed(Place::FixedNoReplace(at(21)), 2)), Err(Errno::EXIST));
    assert_eq!(m.space().check(Place::FixedNoReplace(at(21)), 2 * PAGE), Err(Errno::EXIST));
    assert_eq!(m.space().check(Place::FixedNoReplace(at(24)), 6 * PAGE), Ok(()));
    assert_eq!(m.map(placed(Place::FixedNoReplace(at(24)), 6)), at(24));
    // A fixed place is taken from whatever is there.
    assert_eq!(m.map(placed(Place::Fixed(at(10)), 13)), at(10));
    m.check_marks(at(0), 0..10, 1);
    m.check_zero(at(10), 20 - 10);
    m.check_zero(at(20), 3);
    m.check_zero(at(23), 7);
    m.check_marks(at(30), 30..64, 1);
}

fn places_that_cannot_be<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let addr = m.map_anon(4, Sharing::Private);
    let ask = |place, len, offset| {
        m.space().map(MapRequest { place, len, offset, ..request(None, 1, Sharing::Private) })
    };
    assert_eq!(ask(Place::Anywhere, 0, 0), Err(Errno::INVAL));
    assert_eq!(ask(Place::Anywhere, PAGE, 5), Err(Errno::INVAL));
    assert_eq!(ask(Place::Anywhere, usize::MAX, 0), Err(Errno::NOMEM));
    assert_eq!(ask(Place::Anywhere, 1 << 47, 0), Err(Errno::NOMEM));
    assert_eq!(ask(Place::Fixed(addr + 1), PAGE, 0), Err(Errno::INVAL));
    assert_eq!(ask(Place::Fixed(m.base() + (1 << 47) - PAGE), PAGE, 0), Err(Errno::NOMEM));
    assert_eq!(ask(Place::Fixed(usize::MAX & !(PAGE - 1)), PAGE, 0), Err(Errno::NOMEM));
    assert_eq!(m.space().unmap(addr, 0), Err(Errno::INVAL));
    assert_eq!(m.space().unmap(addr + 1, PAGE), Err(Errno::INVAL));
    assert_eq!(m.space().unmap(m.base() + (1 << 47) - 2 * PAGE, 2 * PAGE), Err(Errno::INVAL));
    assert_eq!(m.space().unmap(addr, usize::MAX - addr), Err(Errno::INVAL));
    // One byte is a page.
    let one = ask(Place::Anywhere, 1, 0).unwrap();
    m.check_zero(one, 1);
    assert_eq!(ranges(&m, one..one + 1).len(), 1);
}

fn neighbours_that_are_alike_become_one<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "neighbours", 64);
    let object = m.manager().open(&path, true).unwrap();
    let room = m.map_anon(30, Sharing::Private);
    m.space().unmap(room, 30 * PAGE).unwrap();
    let at = |page: usize| room + page * PAGE;
    let put = |page: usize, pages: usize, offset: Option<usize>, prot: Prot| {
        let object = offset.map(|_| &object);
        let offset = (offset.unwrap_or(0) * PAGE) as u64;
        m.map(MapRequest {
            place: Place::Fixed(at(page)),
            offset,
            prot,
            ..request(object, pages, Sharing::Private)
        });
    };
    let look = || ranges(&m, at(0)..at(30));
    put(0, 2, None, RW);
    put(4, 2, None, RW);
    assert_eq!(look(), [at(0)..at(2), at(4)..at(6)]);
    put(2, 2, None, RW);
    assert_eq!(look(), [at(0)..at(6)], "both sides");
    put(6, 1, None, Prot::READ);
    assert_eq!(look(), [at(0)..at(6), at(6)..at(7)], "other rights");
    m.space().protect(at(6), PAGE, RW).unwrap();
    assert_eq!(look(), [at(0)..at(7)], "the same rights");
    m.space().unmap(at(0), 30 * PAGE).unwrap();
    put(10, 2, Some(10), RW);
    put(12, 2, Some(12), RW);
    assert_eq!(look(), [at(10)..at(14)], "the next pages");
    put(14, 2, Some(15), RW);
    put(8, 2, Some(9), RW);
    assert_eq!(look(), [at(8)..at(10), at(10)..at(14), at(14)..at(16)], "other pages");
    put(8, 2, Some(8), RW);
    assert_eq!(look(), [at(8)..at(14), at(14)..at(16)], "the pages before");
    put(16, 2, None, RW);
    assert_eq!(look(), [at(8)..at(14), at(14)..at(16), at(16)..at(18)], "no file");
    // What became one has each page's own bytes.
    m.check_marks(at(8), 8..14, 0);
    m.check_marks(at(14), 15..17, 0);
    m.check_zero(at(16), 2);
}
