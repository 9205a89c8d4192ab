//! Anonymous memory that is larger than the budget.

use crate::support::*;
use elbowroom::{Advice, Config, Remap, Sharing};
use elbowroom_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};

on_every_machine! {
    four_budgets_of_memory_keep_their_bytes
    what_is_out_moves_goes_and_is_replaced
    copies_of_a_files_pages_go_out_and_end_with_it
    threads_that_share_more_than_the_budget_see_their_own_stores
    who_reads_gets_on_beside_who_pages_out
    what_has_just_come_is_not_paged_out_at_once
    without_room_nothing_is_lost
    what_does_not_compress_goes_to_the_file
    what_was_only_read_is_not_written_again
    an_encrypted_file_says_nothing
    the_oldest_of_the_pool_go_to_the_file
    a_page_that_cannot_be_read_again_is_an_error_for_that_page
    a_full_disk_loses_nothing
    what_fits_into_the_pool_needs_no_disk
    a_page_that_is_wrong_in_the_pool_is_an_error_for_that_page
    a_page_that_is_wrong_in_the_file_is_an_error_for_that_page
    a_disk_that_fails_now_and_then_keeps_what_leaves_the_pool
}

/// A budget of which all that [`Machine::mark`] makes can be out: pages with two words compress well.
fn with_swap(times: u64) -> Config {
    Config { swap: times * BUDGET, ..Config::with_memory(BUDGET) }
}

/// Pages of `times` budgets.
const fn budgets(times: usize) -> usize {
    times * BUDGET as usize / PAGE
}

/// What was unmapped has no slot and no frame of the pool.
fn nothing_is_out<M: Machine>(m: &M) {
    nothing_is_left(m);
    assert_eq!(m.manager().stats().swap_errors, 0);
}

/// The same, though something may have failed.
fn nothing_is_left<M: Machine>(m: &M) {
    let stats = m.manager().stats();
    assert_eq!((stats.swap_used_bytes, stats.swap_pool_bytes, stats.swap_compressed_bytes), (0, 0, 0));
    assert!(stats.peak_bytes <= BUDGET, "{} bytes", stats.peak_bytes);
}

fn four_budgets_of_memory_keep_their_bytes<M: Machine>() {
    let Some(m) = M::start(with_swap(8)) else { return };
    let pages = budgets(4);
    let addr = m.map_anon(pages, Sharing::Private);
    m.mark(addr, 0..pages, 1);
    let stats = m.manager().stats();
    assert!(stats.swap_used_bytes > 2 * BUDGET, "{stats:?}");
    m.check_marks(addr, 0..pages, 1);
    // Every third once more, some of them zeros, which need no room.
    let port = m.port();
    for page in (0..pages).step_by(3) {
        port.store(addr + page * PAGE, &[0; PAGE]);
    }
    for page in 0..pages {
        let expected = if page % 3 == 0 { 0 } else { stamp(page) ^ 1 };
        assert_eq!(port.word(addr + page * PAGE), expected, "page {page}");
    }
    let stats = m.manager().stats();
    assert!(stats.pswpin > 0 && stats.pswpout > stats.pswpin, "{stats:?}");
    m.space().unmap(addr, pages * PAGE).unwrap();
    nothing_is_out(&m);
}

fn what_is_out_moves_goes_and_is_replaced<M: Machine>() {
    let Some(m) = M::start(with_swap(8)) else { return };
    let pages = budgets(2);
    let addr = m.map_anon(pages, Sharing::Private);
    m.mark(addr, 0..pages, 7);
    // All of it, some in memory and some out, as it comes.
    let moved = m.space().remap(addr, pages * PAGE, (pages + 100) * PAGE, Remap::MayMove).unwrap();
    m.check_zero(moved + pages * PAGE, 100);
    m.check_marks(moved, 0..pages, 7);
    let part = pages / 4;
    m.space().advise(moved + part * PAGE, part * PAGE, Advice::DontNeed).unwrap();
    m.check_zero(moved + part * PAGE, part);
    m.check_marks(moved, 0..part, 7);
    m.check_marks(moved + 2 * part * PAGE, 2 * part..pages, 7);
    // What is mapped in its place has none of it.
    m.space().unmap(moved, part * PAGE).unwrap();
    m.mark(moved, part..2 * part, 9);
    m.check_marks(moved + part * PAGE, part..2 * part, 9);
    m.check_marks(moved + 2 * part * PAGE, 2 * part..pages, 7);
    m.space().unmap(moved, (pages + 100) * PAGE).unwrap();
    nothing_is_out(&m);
}

fn copies_of_a_files_pages_go_out_and_end_with_it<M: Machine>() {
    let Some(m) = M::start(with_swap(8)) else { return };
    let dir = scratch();
    let pages = budgets(2);
    let path = stamped(dir.path(), "copied", pages);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, pages, Sharing::Private);
    // Two of three pages are copies.
    for page in (0..pages).filter(|page| page % 3 > 0) {
        m.set_word(addr + page * PAGE, page as u64);
    }
    let check = |pages: std::ops::Range<usize>| {
        for page in pages {
            let expected = if page % 3 > 0 { page as u64 } else { stamp(page) };
            assert_eq!(m.word(addr + page * PAGE), expected, "page {page}");
        }
    };
    check(0..pages);
    assert!(m.manager().stats().pswpout > 0);
    m.resize(&object, &path, (pages / 2 * PAGE) as u64);
    check(0..pages / 2);
    m.resize(&object, &path, (pages * PAGE) as u64);
    m.check_zero(addr + pages / 2 * PAGE, pages - pages / 2);
    m.space().unmap(addr, pages * PAGE).unwrap();
    nothing_is_out(&m);
}

fn threads_that_share_more_than_the_budget_see_their_own_stores<M: Machine>() {
    const THREADS: usize = 4;
    let Some(m) = M::start(with_swap(8)) else { return };
    let pages = budgets(2) / THREADS * THREADS;
    let addr = m.map_anon(pages, Sharing::Private);
    std::thread::scope(|scope| {
        for own in 0..THREADS {
            let m = &m;
            scope.spawn(move || {
                let port = m.port();
                let until = Instant::now() + Duration::from_secs(2);
                let mut round = 0;
                while Instant::now() < until || round < 2 {
                    // Neighbours belong to different threads, so huge folios and blocks have pages of all.
                    for page in (own..pages).step_by(THREADS) {
                        let at = addr + page * PAGE;
                        assert_eq!(port.word(at), if round == 0 { 0 } else { stamp(page) ^ (round - 1) });
                        port.set_word(at, stamp(page) ^ round);
                    }
                    round += 1;
                }
            });
        }
    });
    m.space().unmap(addr, pages * PAGE).unwrap();
    nothing_is_out(&m);
}

/// What nothing makes smaller.
pub(super) fn noise(page: usize) -> [u8; PAGE] {
    let mut word = stamp(page) | 1;
    let mut bytes = [0; PAGE];
    for chunk in bytes.chunks_mut(8) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The same, with a swap file.
pub fn with_disk(dir: &std::path::Path) -> Config {
    Config { swap_dir: Some(dir.into()), ..with_swap(8) }
}

/// The same, with faults, and a flusher that looks often.
fn with_file(dir: &std::path::Path, inject: Option<&str>) -> Config {
    let writeback_interval = Duration::from_millis(20);
    Config { inject: inject.map(str::to_owned), writeback_interval, ..with_disk(dir) }
}

/// Stores noise to pages, of which some are zeros and some compress.
fn store_all<M: Machine>(m: &M, addr: usize, pages: usize) {
    let port = m.port();
    for page in 0..pages {
        let at = addr + page * PAGE;
        match page % 8 {
            6 => port.set_word(at, page as u64),
            7 => port.store(at, &[page as u8; PAGE]),
            _ => port.store(at, &noise(page)),
        }
    }
}

/// Whether a page has what [`store_all`] stored.
fn is_right<M: Machine>(m: &M, addr: usize, page: usize) -> bool {
    let mut found = [0; PAGE];
    m.port().load(addr + page * PAGE, &mut found);
    let mut expected = noise(page);
    match page % 8 {
        6 => {
            expected = [0; PAGE];
            expected[..8].copy_from_slice(&(page as u64).to_le_bytes());
        }
        7 => expected = [page as u8; PAGE],
        _ => {}
    }
    found == expected
}

fn what_does_not_compress_goes_to_the_file<M: Machine>() {
    let dir = scratch();
    let Some(m) = M::start(with_file(dir.path(), None)) else { return };
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the file has no name");
    let pages = budgets(3);
    let addr = m.map_anon(pages, Sharing::Private);
    store_all(&m, addr, pages);
    let stats = m.manager().stats();
    assert!(stats.swap_file_bytes > BUDGET && stats.swap_pool_bytes > 0, "{stats:?}");
    for turn in 0..2 {
        for page in 0..pages {
            let page = if turn == 0 { page } else { page * 4099 % pages };
            assert!(is_right(&m, addr, page), "page {page} in turn {turn}");
        }
    }
    // Moved, and dropped in part.
    let moved = m.space().remap(addr, pages * PAGE, 2 * pages * PAGE, Remap::MayMove).unwrap();
    m.space().advise(moved, pages / 2 * PAGE, Advice::DontNeed).unwrap();
    m.check_zero(moved, pages / 2);
    assert!((pages / 2..pages).all(|page| is_right(&m, moved, page)));
    m.space().unmap(moved, 2 * pages * PAGE).unwrap();
    nothing_is_out(&m);
    assert_eq!(m.manager().stats().swap_file_bytes, 0);
}

/// Pages that come in from the file and are only read go out without being written; one word that is stored
/// anywhere in a page is there when it comes in again.
fn what_was_only_read_is_not_written_again<M: Machine>() {
    let dir = scratch();
    let Some(m) = M::start(with_file(dir.path(), None)) else { return };
    let (pages, port) = (budgets(2), m.port());
    let addr = m.map_anon(pages, Sharing::Private);
    (0..pages).for_each(|page| port.store(addr + page * PAGE, &noise(page)));
    let check = |changed: &dyn Fn(usize) -> Option<usize>| {
        for turn in 0..2 * pages {
            // In order, and then here and there.
            let page = if turn < pages { turn } else { turn * 4099 % pages };
            let (mut found, mut expected) = ([0; PAGE], noise(page));
            port.load(addr + page * PAGE, &mut found);
            if let Some(at) = changed(page) {
                expected[at..at + 8].copy_from_slice(&(page as u64).to_le_bytes());
            }
            assert!(found == expected, "page {page}");
        }
    };
    check(&|_| None);
    let before = m.manager().stats();
    check(&|_| None);
    let after = m.manager().stats();
    let (clean, out) = (after.swap_clean_outs - before.swap_clean_outs, after.pswpout - before.pswpout);
    assert!(out > pages as u64 / 2 && clean > out / 4 * 3, "{clean} of {out} were clean");
    // Each third has a word stored to it, at its start, its end or between.
    let changed = |page: usize| page.is_multiple_of(3).then_some(page * 8 % PAGE);
    for page in (0..pages).rev() {
        if let Some(at) = changed(page) {
            port.store(addr + page * PAGE + at, &(page as u64).to_le_bytes());
        }
    }
    check(&changed);
    m.space().unmap(addr, pages * PAGE).unwrap();
    nothing_is_out(&m);
    assert_eq!(m.manager().stats().swap_file_bytes, 0);
}

/// Whether the swap file in the directory, which has no name, has these bytes anywhere.
fn file_has(dir: &std::path::Path, bytes: &[u8]) -> bool {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let path = entry.ok()?.path();
        std::fs::read_link(&path).ok().filter(|link| link.starts_with(dir)).map(|_| path)
    });
    let files: Vec<_> = links.map(|path| std::fs::read(path).unwrap()).collect();
    assert!(!files.is_empty() && files.iter().any(|file| !file.is_empty()), "there is a file");
    files.iter().any(|file| file.windows(bytes.len()).any(|found| found == bytes))
}

/// What is in the file cannot be read there, and comes back; what could not be written is as it was.
fn an_encrypted_file_says_nothing<M: Machine>() {
    const SECRET: &[u8; 16] = b"nobody reads it.";
    let secret = |page: usize| {
        let mut bytes = noise(page);
        bytes[page * 16 % PAGE..][..16].copy_from_slice(SECRET);
        bytes
    };
    for (swap_encrypt, inject) in [(false, None), (true, None), (true, Some("write:eio:every=3"))] {
        let dir = scratch();
        let config = Config { swap_encrypt, ..with_file(dir.path(), inject) };
        let Some(m) = M::start(config) else { return };
        let (pages, port) = (budgets(2), m.port());
        let addr = m.map_anon(pages, Sharing::Private);
        (0..pages).for_each(|page| port.store(addr + page * PAGE, &secret(page)));
        for page in (0..pages).chain((0..pages).map(|page| page * 4099 % pages)) {
            let mut found = [0; PAGE];
            port.load(addr + page * PAGE, &mut found);
            assert!(found == secret(page), "page {page}");
        }
        assert!(m.manager().stats().swap_file_bytes > BUDGET / 2);
        assert_eq!(file_has(dir.path(), SECRET), !swap_encrypt);
    }
}

/// What compresses a little: the pool is full of it before all is out.
pub fn half_noise(page: usize) -> [u8; PAGE] {
    let mut bytes = noise(page);
    bytes[PAGE / 2..].fill(0);
    bytes
}

/// The pool does not keep what is old: it goes to the file while threads read and change all of it, and comes
/// back from there. What is unmapped meanwhile, or replaced, leaves nothing.
fn the_oldest_of_the_pool_go_to_the_file<M: Machine>() {
    const THREADS: usize = 3;
    let dir = scratch();
    let config =
        Config { swap: 8 * BUDGET, swap_dir: Some(dir.path().into()), ..Config::with_memory(BUDGET) };
    let Some(m) = M::start(config) else { return };
    let pages = budgets(3) / THREADS * THREADS;
    let addr = m.map_anon(pages, Sharing::Private);
    std::thread::scope(|scope| {
        for own in 0..THREADS {
            let m = &m;
            scope.spawn(move || {
                let port = m.port();
                let mine = own * pages / THREADS..(own + 1) * pages / THREADS;
                mine.clone().for_each(|page| port.store(addr + page * PAGE, &half_noise(page)));
                // In order, and then some at random, of which every other one is changed.
                for turn in 0..2 * mine.len() {
                    let step = if turn < mine.len() { turn } else { turn * 7919 % mine.len() };
                    let (page, mut found) = (mine.start + step, [0; PAGE]);
                    port.load(addr + page * PAGE, &mut found);
                    assert!(found == half_noise(page), "page {page}");
                    if turn % 2 == 0 {
                        port.store(addr + page * PAGE, &half_noise(page));
                    }
                    if turn % 1000 == 999 {
                        let again = mine.start + step..mine.end.min(mine.start + step + 40);
                        let (at, len) = (addr + again.start * PAGE, again.len() * PAGE);
                        m.space().advise(at, len, Advice::DontNeed).unwrap();
                        again.for_each(|page| port.store(addr + page * PAGE, &half_noise(page)));
                    }
                }
            });
        }
    });
    let stats = m.manager().stats();
    assert!(stats.zswpwb > 1000 && stats.pswpin > 1000, "{stats:?}");
    m.space().unmap(addr, pages * PAGE).unwrap();
    soon_nothing_is_left(&m);
    nothing_is_out(&m);
}

/// The flusher may have some of what was unmapped in its hands.
pub fn soon_nothing_is_left<M: Machine>(m: &M) {
    let since = Instant::now();
    let left = || {
        let stats = m.manager().stats();
        stats.swap_file_bytes + stats.swap_pool_bytes
    };
    while left() > 0 {
        assert!(since.elapsed() < Duration::from_secs(20), "{} bytes are left", left());
        thread::sleep(Duration::from_millis(1));
    }
    nothing_is_left(m);
}

/// Each tenth read of the swap file fails. Of several pages that were to come in together each is read alone
/// then. The access to a page that was read alone fails, and succeeds when it is made again.
fn a_page_that_cannot_be_read_again_is_an_error_for_that_page<M: Machine>() {
    let dir = scratch();
    let Some(m) = M::start(with_file(dir.path(), Some("read:eio:every=10"))) else { return };
    let pages = budgets(2);
    let addr = m.map_anon(pages, Sharing::Private);
    store_all(&m, addr, pages);
    let mut failed = 0;
    for page in (0..pages).chain((0..pages).map(|page| page * 4099 % pages)) {
        let mut tries = 0;
        while !m.port().can_load(addr + page * PAGE) {
            (failed, tries) = (failed + 1, tries + 1);
            assert!(tries < 500, "page {page} never comes back");
            // It may be tried again after the flusher's next round.
            thread::sleep(Duration::from_millis(30));
        }
        assert!(is_right(&m, addr, page), "page {page}");
    }
    assert!(failed > 0 && m.manager().stats().swap_errors > 0);
}

/// No write to the swap file succeeds: what compresses goes out, the rest stays.
fn a_full_disk_loses_nothing<M: Machine>() {
    let dir = scratch();
    let Some(m) = M::start(with_file(dir.path(), Some("write:enospc"))) else { return };
    let pages = budgets(1) / 2;
    let addr = m.map_anon(pages, Sharing::Private);
    store_all(&m, addr, pages);
    let more = budgets(1);
    let other = m.map_anon(more, Sharing::Private);
    m.mark(other, 0..more, 3);
    m.check_marks(other, 0..more, 3);
    assert!((0..pages).all(|page| is_right(&m, addr, page)));
    soon_nothing_is_in_the_file(&m);
}

/// What is tried to be written just now is taken for the file's.
fn soon_nothing_is_in_the_file<M: Machine>(m: &M) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let stats = m.manager().stats();
        if stats.swap_file_bytes == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "{stats:?}");
        std::thread::yield_now();
    }
}

/// Threads page all of it out again and again, which must not keep one that goes through it in order waiting:
/// neither for the index, nor by taking away what it has waited for before it is woken.
fn who_reads_gets_on_beside_who_pages_out<M: Machine>() {
    let Some(m) = M::start(with_swap(8)) else { return };
    let pages = budgets(1) / 2;
    let addr = m.map_anon(pages, Sharing::Private);
    m.mark(addr, 0..pages, 3);
    let over = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    m.space().advise(addr, pages * PAGE, Advice::PageOut).unwrap();
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let begun = Instant::now();
        let mut passes = 0;
        while passes < 4 || m.manager().stats().pswpin < 2 * pages as u64 {
            m.check_marks(addr, 0..pages, 3);
            passes += 1;
            assert!(begun.elapsed() < Duration::from_secs(20), "{passes} passes, {rounds:?} rounds");
        }
        over.store(true, Ordering::Relaxed);
    });
    m.space().unmap(addr, pages * PAGE).unwrap();
    nothing_is_out(&m);
}

/// Who has waited for a page has a millisecond to use it.
fn what_has_just_come_is_not_paged_out_at_once<M: Machine>() {
    let Some(m) = M::start(with_swap(8)) else { return };
    let addr = m.map_anon(1, Sharing::Private);
    for round in 1..10 {
        let touched = Instant::now();
        m.set_word(addr, round);
        m.space().advise(addr, PAGE, Advice::PageOut).unwrap();
        assert_eq!(m.manager().stats().pswpout, round, "it goes in the end");
        assert!(touched.elapsed() >= Duration::from_millis(1), "{:?}", touched.elapsed());
    }
    m.space().unmap(addr, PAGE).unwrap();
    nothing_is_out(&m);
}

/// Bytes that nothing makes smaller, as much as the budget has, and no file to put them.
fn without_room_nothing_is_lost<M: Machine>() {
    let Some(m) = M::start(with_swap(4)) else { return };
    let pages = budgets(1) / 4 * 3;
    let addr = m.map_anon(pages, Sharing::Private);
    let port = m.port();
    (0..pages).for_each(|page| port.store(addr + page * PAGE, &noise(page)));
    // What compresses goes out beside it.
    let more = budgets(1);
    let other = m.map_anon(more, Sharing::Private);
    m.mark(other, 0..more, 3);
    m.check_marks(other, 0..more, 3);
    let mut found = [0; PAGE];
    for page in 0..pages {
        port.load(addr + page * PAGE, &mut found);
        assert!(found == noise(page), "page {page}");
    }
}

fn store_half_noise<M: Machine>(m: &M, addr: usize, pages: usize) {
    let port = m.port();
    (0..pages).for_each(|page| port.store(addr + page * PAGE, &half_noise(page)));
}

fn is_half_noise<M: Machine>(m: &M, addr: usize, page: usize) -> bool {
    let mut found = [0; PAGE];
    m.port().load(addr + page * PAGE, &mut found);
    found == half_noise(page)
}

/// Those pages that cannot be had; all others are right.
fn those_that_fail<M: Machine>(m: &M, addr: usize, pages: usize) -> Vec<usize> {
    let fails = |&page: &usize| {
        let fails = !m.port().can_load(addr + page * PAGE);
        assert!(fails || is_half_noise(m, addr, page), "page {page}");
        fails
    };
    (0..pages).filter(fails).collect()
}

/// Some of the first pages are wrong in the pool, which they leave before all others: they would go to the
/// file. They stay errors, however often one asks; those that went to the file with them are right.
fn a_page_that_is_wrong_in_the_pool_is_an_error_for_that_page<M: Machine>() {
    const WRONG: usize = 60;
    let dir = scratch();
    let faults = format!("keep:corrupt:every=20:times={WRONG}");
    let Some(m) = M::start(with_file(dir.path(), Some(&faults))) else { return };
    let pages = budgets(3);
    let addr = m.map_anon(pages, Sharing::Private);
    store_half_noise(&m, addr, pages);
    // The flusher may not have had its turn yet.
    let since = Instant::now();
    while m.manager().stats().zswpwb < 100 {
        assert!(since.elapsed() < Duration::from_secs(20), "{:?}", m.manager().stats());
        thread::sleep(Duration::from_millis(1));
    }
    let stats = m.manager().stats();
    assert_eq!(stats.swap_errors, 0, "{stats:?}");
    let failed = those_that_fail(&m, addr, pages);
    assert!((1..=WRONG).contains(&failed.len()), "{failed:?}");
    assert_eq!(those_that_fail(&m, addr, pages), failed, "what was wrong stays so, and nothing else is");
    assert!(m.manager().stats().swap_errors >= 2 * failed.len() as u64);
    // Stores to a part of them fail, too. Who wants none of their bytes can have zeros.
    let (given_up, kept) = failed.split_at(failed.len() / 2);
    for page in &failed {
        assert!(!m.port().try_set_word(addr + page * PAGE, 1), "page {page}");
    }
    for page in given_up {
        m.space().advise(addr + page * PAGE, PAGE, Advice::DontNeed).unwrap();
        m.check_zero(addr + page * PAGE, 1);
        m.port().store(addr + page * PAGE, &half_noise(*page));
    }
    // They are errors where they move to.
    let moved = m.space().remap(addr, pages * PAGE, 2 * pages * PAGE, Remap::MayMove).unwrap();
    assert_eq!(those_that_fail(&m, moved, pages), kept);
    m.space().unmap(moved, 2 * pages * PAGE).unwrap();
    soon_nothing_is_left(&m);
}

/// The swap file's descriptor in this process: it is the only file of its directory.
fn swap_file_in(dir: &std::path::Path) -> std::fs::File {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let own = |path: &std::path::PathBuf| std::fs::read_link(path).is_ok_and(|at| at.starts_with(dir));
    let path = descriptors.map(|entry| entry.path()).find(own).expect("the swap file is open");
    std::fs::File::options().read(true).write(true).open(path).unwrap()
}

/// Something writes to the swap file. What it has changed is an error, also if the page is one of several
/// that are read at once; a new page can take its place.
fn a_page_that_is_wrong_in_the_file_is_an_error_for_that_page<M: Machine>() {
    use std::os::unix::fs::FileExt;
    let dir = scratch();
    let Some(m) = M::start(with_file(dir.path(), None)) else { return };
    let pages = budgets(2);
    let addr = m.map_anon(pages, Sharing::Private);
    store_all(&m, addr, pages);
    let file = swap_file_in(dir.path());
    let in_file = file.metadata().unwrap().len() as usize / PAGE;
    assert!(in_file > 1000, "{in_file} pages");
    // Each 40th page has one bit that is another one.
    for page in (0..in_file).step_by(40) {
        let (at, mut byte) = ((page * PAGE + page % PAGE) as u64, [0]);
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    }
    file.sync_all().unwrap();
    let check = || {
        let fails = |&page: &usize| {
            let fails = !m.port().can_load(addr + page * PAGE);
            assert!(fails || is_right(&m, addr, page), "page {page}");
            fails
        };
        (0..pages).filter(fails).collect::<Vec<_>>()
    };
    let failed = check();
    assert!((1..=in_file.div_ceil(40)).contains(&failed.len()), "{} of {in_file}", failed.len());
    assert_eq!(check(), failed, "what was wrong stays so, and nothing else is");
    for page in failed {
        m.space().advise(addr + page * PAGE, PAGE, Advice::DontNeed).unwrap();
        m.check_zero(addr + page * PAGE, 1);
    }
    m.space().unmap(addr, pages * PAGE).unwrap();
    soon_nothing_is_left(&m);
}

/// Writes of what leaves the pool fail again and again, by errors of two kinds: it stays where it is, leaves
/// later, and is right all the time.
fn a_disk_that_fails_now_and_then_keeps_what_leaves_the_pool<M: Machine>() {
    let dir = scratch();
    let faults = "write:eio:every=3,write:enospc:after=20:times=20";
    let Some(m) = M::start(with_file(dir.path(), Some(faults))) else { return };
    let pages = budgets(3);
    let addr = m.map_anon(pages, Sharing::Private);
    store_half_noise(&m, addr, pages);
    for turn in 0..2 * pages {
        let page = if turn < pages { turn } else { turn * 4099 % pages };
        assert!(is_half_noise(&m, addr, page), "page {page}");
        if turn % 2 == 0 {
            m.port().store(addr + page * PAGE, &half_noise(page));
        }
    }
    let stats = m.manager().stats();
    // The flusher pauses after each that fails.
    assert!(stats.zswpwb > 0 && stats.swap_errors > 20, "{stats:?}");
    m.space().unmap(addr, pages * PAGE).unwrap();
    soon_nothing_is_left(&m);
    assert_eq!(m.manager().stats().swap_file_bytes, 0);
}

/// The disk is full from the first write on, and all that is stored fits into memory and the pool. It is had
/// in an order in which the pool would rather be small.
fn what_fits_into_the_pool_needs_no_disk<M: Machine>() {
    let dir = scratch();
    let Some(m) = M::start(with_file(dir.path(), Some("write:enospc"))) else { return };
    let pages = budgets(1);
    let addr = m.map_anon(pages, Sharing::Private);
    store_half_noise(&m, addr, pages);
    for turn in 0..6 * pages {
        let page = turn * 4099 % pages;
        assert!(is_half_noise(&m, addr, page), "page {page} in turn {turn}");
        m.port().store(addr + page * PAGE, &half_noise(page));
    }
    assert!(m.manager().stats().swap_pool_bytes > 0);
    soon_nothing_is_in_the_file(&m);
}
