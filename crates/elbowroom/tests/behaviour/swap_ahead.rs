//! What comes with a page that is out, and what of it swap still has when it goes out again.

use super::swap::{half_noise, noise, with_disk};
use crate::support::*;
use elbowroom::{Advice, Sharing};
use elbowroom_sync::{thread, time::Duration};

on_every_machine! {
    what_is_in_pieces_in_the_file_comes_with_few_waits
    neighbours_in_pieces_come_while_they_are_used
    what_is_compressed_comes_with_few_faults
    what_was_only_read_is_not_compressed_again
}

/// Pages that went out at different times are not together in the file. Who reads them in order has them all
/// the same, and waits for few.
fn what_is_in_pieces_in_the_file_comes_with_few_waits<M: Machine>() {
    let dir = scratch();
    let Some(m) = M::start(with_disk(dir.path())) else { return };
    let (pages, port) = (2 * BUDGET as usize / PAGE, m.port());
    let addr = m.map_anon(pages, Sharing::Private);
    let again = |page: usize| page.is_multiple_of(5);
    (0..pages).for_each(|page| port.store(addr + page * PAGE, &noise(page)));
    // In no order, so that they come and go alone.
    for page in (0..pages).map(|nth| nth * 4099 % pages).filter(|page| again(*page)) {
        port.store(addr + page * PAGE, &noise(pages + page));
    }
    let before = m.manager().stats();
    for page in 0..pages {
        let mut found = [0; PAGE];
        port.load(addr + page * PAGE, &mut found);
        assert!(found == noise(if again(page) { pages + page } else { page }), "page {page}");
        if page.is_multiple_of(16) {
            // The rest of the run comes meanwhile.
            thread::sleep(Duration::from_millis(3));
        }
    }
    let after = m.manager().stats();
    let (waits, came) = (after.pgmajfault - before.pgmajfault, after.pswpin - before.pswpin);
    assert!(came > pages as u64 / 2 && waits < came / 4, "{waits} waits for {came} of {pages} pages");
    m.space().unmap(addr, pages * PAGE).unwrap();
    let stats = m.manager().stats();
    assert_eq!((stats.swap_used_bytes, stats.swap_file_bytes, stats.swap_errors), (0, 0, 0));
}

/// Neighbours that are not together in the file come along once they are used, and do not once they are not.
fn neighbours_in_pieces_come_while_they_are_used<M: Machine>() {
    const RUN: usize = 16;
    let dir = scratch();
    let Some(m) = M::start(with_disk(dir.path())) else { return };
    let (pages, port) = (4 * BUDGET as usize / PAGE, m.port());
    let addr = m.map_anon(pages, Sharing::Private);
    // In no order, so that none is beside its neighbour.
    let at_random = |nth: usize| nth * 2741 % pages;
    (0..pages).map(at_random).for_each(|page| port.store(addr + page * PAGE, &noise(page)));
    // Pages that came for each that was wanted and not there.
    let came_for = |wanted: &mut dyn Iterator<Item = usize>| {
        let before = m.manager().stats();
        wanted.for_each(|page| port.load(addr + page * PAGE, &mut [0; 8]));
        let after = m.manager().stats();
        (after.pswpin - before.pswpin) as f64 / (after.pgmajfault - before.pgmajfault) as f64
    };
    // Run by run in no order, and within each in none.
    let by_runs = |nth: usize| nth / RUN * 1021 % (pages / RUN) * RUN + nth * 7 % RUN;
    let learning = came_for(&mut (0..2 * pages).map(by_runs));
    let used = came_for(&mut (0..pages).map(by_runs));
    let unlearning = came_for(&mut (0..pages).map(at_random));
    let unused = came_for(&mut (0..pages).map(at_random));
    assert!(used > 4.0 && unused < 2.0, "{learning}, then {used}; {unlearning}, then {unused}");
}

/// A quarter of the budget, which compresses, and is all out, by advice.
fn put_out<M: Machine>(m: &M) -> (usize, usize) {
    let pages = BUDGET as usize / PAGE / 4;
    let addr = m.map_anon(pages, Sharing::Private);
    (0..pages).for_each(|page| m.port().store(addr + page * PAGE, &half_noise(page)));
    put_out_again(m, addr, pages);
    (addr, pages)
}

fn put_out_again<M: Machine>(m: &M, addr: usize, pages: usize) {
    // What a handler has locked still is passed by; it may have lost its processor to us.
    let all = (pages * PAGE) as u64;
    let is_out = || {
        m.space().advise(addr, pages * PAGE, Advice::PageOut).unwrap();
        let is_out = m.manager().stats().swap_used_bytes == all;
        if !is_out {
            thread::sleep(Duration::from_millis(1));
        }
        is_out
    };
    assert!((0..100).any(|_| is_out()), "{} of {all} bytes are out", m.manager().stats().swap_used_bytes);
}

/// Who goes through compressed memory in order faults once for several runs.
fn what_is_compressed_comes_with_few_faults<M: Machine>() {
    let dir = scratch();
    let Some(m) = M::start(with_disk(dir.path())) else { return };
    let (addr, pages) = put_out(&m);
    let before = m.manager().stats();
    for page in 0..pages {
        let mut found = [0; PAGE];
        m.port().load(addr + page * PAGE, &mut found);
        assert!(found == half_noise(page), "page {page}");
    }
    let after = m.manager().stats();
    let (faults, came) = (after.pgfault - before.pgfault, after.pswpin - before.pswpin);
    // One for each run of 16 would be more: the first are shorter.
    assert!(came == pages as u64 && faults < came / 16, "{faults} faults for {came} pages");
}

/// What came from the pool and was only read goes out as it is; what was stored to is what was stored.
fn what_was_only_read_is_not_compressed_again<M: Machine>() {
    let dir = scratch();
    let Some(m) = M::start(with_disk(dir.path())) else { return };
    let (addr, pages) = put_out(&m);
    let changed = |page: usize| page.is_multiple_of(3).then_some(page * 8 % PAGE);
    for round in 0..3 {
        for page in 0..pages {
            let (mut found, mut expected) = ([0; PAGE], half_noise(page));
            m.port().load(addr + page * PAGE, &mut found);
            if let Some(at) = changed(page).filter(|_| round > 1) {
                expected[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            }
            assert!(found == expected, "page {page} in round {round}");
        }
        let mut stored = 0;
        for (page, at) in (0..pages).filter_map(|page| Some((page, changed(page).filter(|_| round == 1)?))) {
            m.port().store(addr + page * PAGE + at, &u64::MAX.to_le_bytes());
            stored += 1;
        }
        let before = m.manager().stats();
        assert_eq!(before.swap_used_bytes, 0, "all of it is in memory");
        put_out_again(&m, addr, pages);
        let clean = m.manager().stats().swap_clean_outs - before.swap_clean_outs;
        assert_eq!(clean, pages as u64 - stored, "round {round}");
    }
    m.space().unmap(addr, pages * PAGE).unwrap();
    let stats = m.manager().stats();
    assert_eq!((stats.swap_used_bytes, stats.swap_compressed_bytes, stats.swap_errors), (0, 0, 0));
}
