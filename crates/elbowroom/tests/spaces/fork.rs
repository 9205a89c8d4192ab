//! fork: what the child has.

use super::there;
use crate::support::*;
use elbowroom::{Advice, Config, Cpu, Errno, Intent, Prot, Sharing};

/// What [`Machine::mark`] stores, in any space.
fn mark(cpu: &Cpu, addr: usize, pages: std::ops::Range<usize>, seed: u64) {
    pages.for_each(|page| cpu.set_word(addr + page * PAGE, stamp(page) ^ seed));
}

#[track_caller]
fn check(cpu: &Cpu, addr: usize, pages: std::ops::Range<usize>, seed: u64) {
    for page in pages {
        assert_eq!(cpu.word(addr + page * PAGE), stamp(page) ^ seed, "page {page} at {addr:#x}");
    }
}

#[test]
fn both_have_their_own_from_then_on() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let dir = scratch();
    let path = stamped(dir.path(), "forked", 40);
    let object = m.manager().open(&path, true).unwrap();
    let parent = m.space();
    let (anon, file) = (m.map_anon(40, Sharing::Private), m.map_file(&object, 40, Sharing::Private));
    m.mark(anon, 0..30, 1);
    m.mark(file, 0..20, 1);
    let child = parent.fork().unwrap();
    let cpu = parent.cpu();
    let of_child = |addr| there(addr, parent, &child);
    assert_eq!(parent.areas(anon..anon + 1).len(), child.areas(of_child(anon)..of_child(anon) + 1).len());
    // Each stores to some that the other does not, in both orders.
    for addr in [anon, file] {
        mark(&cpu, addr, 0..10, 2);
        mark(&cpu, of_child(addr), 5..15, 3);
        mark(&cpu, of_child(addr), 30..33, 3);
        mark(&cpu, addr, 12..14, 4);
        check(&cpu, addr, 0..10, 2);
        check(&cpu, addr, 10..12, 1);
        check(&cpu, addr, 12..14, 4);
        check(&cpu, addr, 14..20, 1);
        check(&cpu, of_child(addr), 0..5, 1);
        check(&cpu, of_child(addr), 5..15, 3);
        check(&cpu, of_child(addr), 15..20, 1);
        check(&cpu, of_child(addr), 30..33, 3);
    }
    let (zeros, files) = ([30, 31, 35].map(|p| anon + p * PAGE), [30, 31, 35].map(|p| file + p * PAGE));
    assert_eq!(zeros.map(|addr| cpu.word(addr)), [0; 3]);
    assert_eq!(files.map(|addr| cpu.word(addr)), [30, 31, 35].map(stamp));
    assert_eq!(cpu.word(of_child(file) + 35 * PAGE), stamp(35));
    m.manager().flush_all().unwrap();
    assert_eq!(m.manager().stats().written_bytes, 0);
    // Whoever stays keeps what it had.
    drop(child);
    check(&cpu, anon, 0..10, 2);
    check(&cpu, file, 14..20, 1);
    mark(&cpu, anon, 0..40, 5);
    check(&cpu, anon, 0..40, 5);
}

#[test]
fn what_is_shared_stays_shared() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let dir = scratch();
    let path = stamped(dir.path(), "shared", 40);
    let object = m.manager().open(&path, true).unwrap();
    let (anon, file) = (m.map_anon(40, Sharing::Shared), m.map_file(&object, 40, Sharing::Shared));
    m.mark(anon, 0..10, 1);
    let child = m.space().fork().unwrap();
    let grandchild = child.fork().unwrap();
    let cpu = grandchild.cpu();
    let all = [m.space(), &child, &grandchild];
    for (seed, space) in all.into_iter().enumerate() {
        for addr in [anon, file] {
            mark(&cpu, there(addr, m.space(), space), 5..25, seed as u64);
            for other in all {
                check(&cpu, there(addr, m.space(), other), 5..25, seed as u64);
            }
        }
    }
    child.sync(there(file, m.space(), &child), 40 * PAGE, true, false).unwrap();
    assert_eq!(file_word(&path, 24 * PAGE), stamp(24) ^ 2);
    drop(child);
    m.space().unmap(anon, 40 * PAGE).unwrap();
    check(&cpu, there(anon, m.space(), &grandchild), 5..25, 2);
}

#[test]
fn generations_go_in_any_order() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    for first_to_go in 0..4 {
        let ancestor = m.manager().create_space().unwrap();
        let cpu = ancestor.cpu();
        let addr = ancestor.map(request(None, 30, Sharing::Private)).unwrap();
        mark(&cpu, addr, 0..30, 0);
        let at = addr - ancestor.base();
        let mut line = vec![ancestor];
        for generation in 1..4 {
            // Each shares some with its ancestors.
            let child = line[generation - 1].fork().unwrap();
            mark(&cpu, child.base() + at, 10 * (generation - 1)..10 * generation, generation as u64);
            line.push(child);
        }
        let expected = |generation: usize, page: usize| {
            // The last generation, up to this one, that stored there.
            let writer = page / 10 + 1;
            if writer <= generation { writer as u64 } else { 0 }
        };
        let mut left: Vec<_> = line.into_iter().enumerate().collect();
        while !left.is_empty() {
            for (generation, space) in &left {
                for page in 0..30 {
                    check(&cpu, space.base() + at, page..page + 1, expected(*generation, page));
                }
            }
            left.remove(first_to_go % left.len());
        }
    }
}

#[test]
fn a_child_gets_what_it_was_promised() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let parent = m.space();
    let addr = m.map_anon(40, Sharing::Private);
    m.mark(addr, 0..40, 1);
    parent.advise(addr, 10 * PAGE, Advice::WipeOnFork).unwrap();
    parent.advise(addr + 10 * PAGE, 10 * PAGE, Advice::DontFork).unwrap();
    parent.lock(addr + 20 * PAGE, 10 * PAGE, false).unwrap();
    parent.protect(addr + 30 * PAGE, 10 * PAGE, Prot::READ).unwrap();
    let child = parent.fork().unwrap();
    let (cpu, here) = (child.cpu(), there(addr, parent, &child));
    (0..10).for_each(|page| assert_eq!(cpu.word(here + page * PAGE), 0));
    (10..20).for_each(|page| cpu.load_fails(here + page * PAGE, Failure::NotMapped));
    check(&cpu, here, 20..40, 1);
    child.advise(here + 20 * PAGE, 10 * PAGE, Advice::DontNeed).unwrap();
    assert_eq!(cpu.word(here + 25 * PAGE), 0, "locks are not inherited");
    assert_eq!(parent.advise(addr + 20 * PAGE, PAGE, Advice::DontNeed), Err(Errno::INVAL));
    cpu.store_fails(here + 30 * PAGE, Failure::Denied);
    child.protect(here + 30 * PAGE, 10 * PAGE, RW).unwrap();
    mark(&cpu, here, 30..40, 2);
    check(&cpu, addr, 0..40, 1);
    cpu.store_fails(addr + 30 * PAGE, Failure::Denied);
    // Undone, it is as if it had not been said.
    parent.advise(addr, 10 * PAGE, Advice::KeepOnFork).unwrap();
    parent.advise(addr + 10 * PAGE, 10 * PAGE, Advice::DoFork).unwrap();
    let second = parent.fork().unwrap();
    check(&cpu, there(addr, parent, &second), 0..40, 1);
    // The first child wipes it for its children, too.
    mark(&cpu, here, 0..10, 3);
    let grandchild = child.fork().unwrap();
    assert_eq!(cpu.word(there(addr, parent, &grandchild)), 0);
}

#[test]
fn many_children_share_what_nobody_stores_to() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    // A third of the budget: 50 copies of it could not be.
    let pages = BUDGET as usize / PAGE / 3;
    let addr = m.map_anon(pages, Sharing::Private);
    m.mark(addr, 0..pages, 1);
    let children: Vec<_> = (0..50).map(|_| m.space().fork().unwrap()).collect();
    let cpu = m.space().cpu();
    for (number, child) in children.iter().enumerate() {
        let here = there(addr, m.space(), child);
        for page in (number..pages).step_by(31) {
            assert_eq!(cpu.word(here + page * PAGE), stamp(page) ^ 1);
        }
        cpu.set_word(here, number as u64);
    }
    for (number, child) in children.iter().enumerate() {
        assert_eq!(cpu.word(there(addr, m.space(), child)), number as u64);
    }
    m.check_marks(addr, 0..pages, 1);
    assert!(m.manager().stats().peak_bytes <= BUDGET);
}

#[test]
fn a_pinned_page_cannot_be_shared() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let addr = m.map_anon(10, Sharing::Private);
    m.mark(addr, 0..10, 1);
    let cpu = m.space().cpu();
    let pin = cpu.pin(addr + 5 * PAGE, 8, Intent::Write).unwrap();
    assert_eq!(m.space().fork().err(), Some(Errno::AGAIN));
    m.check_marks(addr, 0..10, 1);
    m.mark(addr, 0..5, 2);
    drop(pin);
    let child = m.space().fork().unwrap();
    check(&cpu, there(addr, m.space(), &child), 0..5, 2);
    check(&cpu, there(addr, m.space(), &child), 5..10, 1);
}

/// Huge folios belong to one space: what a child gets of one is shared page by page.
#[test]
fn of_huge_memory_each_has_its_own_pages() {
    let m = SoftMachine::start(Config::with_memory(64 << 20)).unwrap();
    let parent = m.space();
    let pages = 1024;
    let addr = m.map_anon(pages, Sharing::Private);
    m.mark(addr, 0..pages, 1);
    assert_eq!(m.manager().stats().huge_faults, 2);
    let child = parent.fork().unwrap();
    let cpu = parent.cpu();
    let in_child = there(addr, parent, &child);
    mark(&cpu, addr, 100..300, 2);
    mark(&cpu, in_child, 200..400, 3);
    let grandchild = child.fork().unwrap();
    let in_grandchild = there(addr, parent, &grandchild);
    mark(&cpu, in_child, 350..360, 4);
    check(&cpu, addr, 0..100, 1);
    check(&cpu, addr, 100..300, 2);
    check(&cpu, addr, 300..pages, 1);
    for (space, changed) in [(in_child, 4), (in_grandchild, 3)] {
        check(&cpu, space, 0..200, 1);
        check(&cpu, space, 200..350, 3);
        check(&cpu, space, 350..360, changed);
        check(&cpu, space, 400..pages, 1);
    }
    drop(child);
    drop(grandchild);
    mark(&cpu, addr, 0..pages, 5);
    check(&cpu, addr, 0..pages, 5);
}
