//! madvise and mincore.

use crate::support::*;
use elbowroom::{Advice, Config, Errno, MapRequest, Prot, Remap, Sharing};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};

on_every_machine! {
    dont_need_drops_what_is_the_spaces_own
    what_may_be_freed_takes_no_swap
    remove_zeroes_memory_for_all_its_mappings
    remove_punches_a_hole_into_a_file
    populating_brings_pages_in
    page_out_takes_a_files_pages_out
    advice_that_is_refused
    residence_is_told
}

fn resident<M: Machine>(m: &M, addr: usize, pages: usize) -> Vec<bool> {
    let mut out = vec![0xFE; pages];
    m.space().resident(addr, &mut out).unwrap();
    out.iter().map(|byte| byte & 1 == 1).collect()
}

/// These pages are resident. With swap, private memory comes in runs: neighbours may be, too.
fn are_resident<M: Machine>(m: &M, addr: usize, expected: &[bool], sharing: Sharing) {
    let found = resident(m, addr, expected.len());
    let more = sharing == Sharing::Private && std::env::var_os("ELBOWROOM_TEST_SWAP").is_some();
    let all = found.iter().zip(expected).all(|(found, expected)| *found || !expected);
    assert!(found == expected || more && all, "{found:?}");
}

fn dont_need_drops_what_is_the_spaces_own<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "dont-need", 20);
    let object = m.manager().open(&path, true).unwrap();
    for (file, sharing) in EVERY_KIND {
        let addr = m.map(request(file.then_some(&object), 20, sharing));
        m.mark(addr, 0..20, 5);
        m.space().advise(addr + 4 * PAGE, 8 * PAGE, Advice::DontNeed).unwrap();
        match (file, sharing) {
            (false, Sharing::Private) => m.check_zero(addr + 4 * PAGE, 8),
            (true, Sharing::Private) => m.check_marks(addr + 4 * PAGE, 4..12, 0),
            (_, Sharing::Shared) => m.check_marks(addr + 4 * PAGE, 4..12, 5),
        }
        m.check_marks(addr, 0..4, 5);
        m.check_marks(addr + 12 * PAGE, 12..20, 5);
        m.mark(addr, 0..20, 0);
        m.check_marks(addr, 0..20, 0);
        m.space().unmap(addr, 20 * PAGE).unwrap();
    }
}

/// Memory that may be freed is, where it is short: nothing of it is written anywhere. What is stored
/// afterwards stays.
fn what_may_be_freed_takes_no_swap<M: Machine>() {
    let Some(m) = M::start(Config { swap: 4 * BUDGET, ..Config::with_memory(BUDGET) }) else { return };
    let pages = 2 * BUDGET as usize / PAGE;
    let addr = m.map_anon(pages, Sharing::Private);
    let kept = pages / 8;
    let out = || m.manager().stats().swap_used_bytes / PAGE as u64;
    m.mark(addr, 0..pages, 3);
    assert!(out() > kept as u64);
    m.space().advise(addr + kept * PAGE, (pages - kept) * PAGE, Advice::Free).unwrap();
    assert!(out() <= kept as u64, "{} pages are out", out());
    // It was short, so all of it is gone.
    m.check_zero(addr + kept * PAGE, pages - kept);
    m.check_marks(addr, 0..kept, 3);
    m.mark(addr, kept..pages, 4);
    m.check_marks(addr + kept * PAGE, kept..pages, 4);
    // With plenty of memory it stays.
    m.space().advise(addr, pages * PAGE, Advice::DontNeed).unwrap();
    m.mark(addr, 0..64, 5);
    m.space().advise(addr, 64 * PAGE, Advice::Free).unwrap();
    m.check_marks(addr, 0..64, 5);
    m.space().unmap(addr, pages * PAGE).unwrap();
    assert_eq!(out(), 0);
}

fn remove_zeroes_memory_for_all_its_mappings<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let one = m.map_anon(20, Sharing::Shared);
    let two = m.space().remap(one, 0, 20 * PAGE, Remap::MayMove).unwrap();
    m.mark(one, 0..20, 5);
    m.check_marks(two, 0..10, 5);
    m.space().advise(two + 3 * PAGE, 10 * PAGE, Advice::Remove).unwrap();
    for addr in [one, two] {
        m.check_marks(addr, 0..3, 5);
        m.check_zero(addr + 3 * PAGE, 10);
        m.check_marks(addr + 13 * PAGE, 13..20, 5);
    }
    m.mark(one, 5..6, 7);
    m.check_marks(two + 5 * PAGE, 5..6, 7);
}

fn remove_punches_a_hole_into_a_file<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "hole", 20);
    let object = m.manager().open(&path, true).unwrap();
    let (shared, private) =
        (m.map_file(&object, 20, Sharing::Shared), m.map_file(&object, 20, Sharing::Private));
    m.mark(shared, 0..20, 5);
    m.mark(private, 4..6, 6);
    match m.space().advise(shared + 3 * PAGE, 10 * PAGE, Advice::Remove) {
        Err(Errno::OPNOTSUPP) => return skipped("this file system has no holes"),
        removed => removed.unwrap(),
    }
    m.check_marks(shared, 0..3, 5);
    m.check_zero(shared + 3 * PAGE, 10);
    m.check_marks(shared + 13 * PAGE, 13..20, 5);
    m.check_zero(private + 3 * PAGE, 1);
    m.check_marks(private + 4 * PAGE, 4..6, 6);
    m.manager().flush_all().unwrap();
    let words = [2, 3, 12, 13].map(|page| file_word(&path, page * PAGE));
    assert_eq!(words, [stamp(2) ^ 5, 0, 0, stamp(13) ^ 5]);
}

fn populating_brings_pages_in<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "populated", 20);
    let object = m.manager().open(&path, true).unwrap();
    for sharing in [Sharing::Private, Sharing::Shared] {
        let addr = m.map(MapRequest { populate: true, ..request(None, 20, sharing) });
        assert_eq!(resident(&m, addr, 20), [true; 20]);
        let addr = m.map_anon(20, sharing);
        assert_eq!(resident(&m, addr, 20), [false; 20]);
        m.space().advise(addr + 2 * PAGE, 3 * PAGE, Advice::PopulateRead).unwrap();
        m.space().advise(addr + 7 * PAGE, 3 * PAGE, Advice::PopulateWrite).unwrap();
        let expected: Vec<_> = (0..20).map(|p| (2..5).contains(&p) || (7..10).contains(&p)).collect();
        are_resident(&m, addr, &expected, sharing);
        m.check_zero(addr, 20);
    }
    // Writing makes copies, reading does not; the file is read for both.
    let private = m.map_file(&object, 20, Sharing::Private);
    m.space().advise(private, 10 * PAGE, Advice::PopulateWrite).unwrap();
    m.space().advise(private + 10 * PAGE, 10 * PAGE, Advice::PopulateRead).unwrap();
    assert_eq!(resident(&m, private, 20), [true; 20]);
    let shared = m.map(MapRequest { populate: true, ..request(Some(&object), 20, Sharing::Shared) });
    m.mark(shared, 0..20, 3);
    m.check_marks(private, 0..10, 0);
    m.check_marks(private + 10 * PAGE, 10..20, 3);
    // Reading ahead is done by and by.
    let path = stamped(dir.path(), "later", 20);
    let object = m.manager().open(&path, true).unwrap();
    let later = m.map(MapRequest { populate: true, ..request(Some(&object), 20, Sharing::Shared) });
    let until = Instant::now() + Duration::from_secs(20);
    while resident(&m, later, 20).contains(&false) {
        assert!(Instant::now() < until, "nothing was read");
        thread::sleep(Duration::from_millis(1));
    }
    m.check_marks(later, 0..20, 0);
}

fn page_out_takes_a_files_pages_out<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "out", 20);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, 20, Sharing::Shared);
    m.mark(addr, 0..20, 4);
    m.space().advise(addr, 20 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(resident(&m, addr, 20), [false; 20]);
    assert_eq!(file_word(&path, 19 * PAGE), stamp(19) ^ 4);
    m.check_marks(addr, 0..20, 4);
    // What only looks at pages leaves their bytes alone.
    for advice in [
        Advice::Cold,
        Advice::Random,
        Advice::Sequential,
        Advice::Normal,
        Advice::WillNeed,
        Advice::DontFork,
        Advice::DoFork,
    ] {
        m.mark(addr, 0..10, 5);
        m.space().advise(addr + PAGE, 7 * PAGE, advice).unwrap();
        m.check_marks(addr, 0..10, 5);
        m.check_marks(addr + 10 * PAGE, 10..20, 4);
    }
}

fn advice_that_is_refused<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "refused", 4);
    let object = m.manager().open(&path, true).unwrap();
    let anon = m.map_anon(10, Sharing::Private);
    m.mark(anon, 0..10, 1);
    let advise = |addr, pages: usize, advice| m.space().advise(addr, pages * PAGE, advice);
    assert_eq!(advise(anon + 1, 1, Advice::DontNeed), Err(Errno::INVAL));
    assert_eq!(m.space().advise(anon, usize::MAX, Advice::DontNeed), Err(Errno::INVAL));
    assert_eq!(m.space().advise(anon, usize::MAX - 2 * PAGE, Advice::DontNeed), Err(Errno::INVAL));
    assert_eq!(advise(anon, 0, Advice::DontNeed), Ok(()));
    assert_eq!(advise(anon, 1, Advice::Remove), Err(Errno::INVAL));
    m.check_marks(anon, 0..10, 1);
    let file = m.map_file(&object, 4, Sharing::Private);
    assert_eq!(advise(file, 1, Advice::Free), Err(Errno::INVAL));
    assert_eq!(advise(file, 1, Advice::WipeOnFork), Err(Errno::INVAL));
    assert_eq!(advise(file, 1, Advice::Remove), Err(Errno::ACCESS));
    // Around a hole the rest is done.
    m.space().unmap(anon + 4 * PAGE, PAGE).unwrap();
    assert_eq!(advise(anon + 2 * PAGE, 5, Advice::DontNeed), Err(Errno::NOMEM));
    m.check_marks(anon, 0..2, 1);
    m.check_zero(anon + 2 * PAGE, 2);
    m.check_zero(anon + 5 * PAGE, 2);
    m.check_marks(anon + 7 * PAGE, 7..10, 1);
    m.space().protect(anon, PAGE, Prot::READ).unwrap();
    assert_eq!(advise(anon, 1, Advice::PopulateWrite), Err(Errno::INVAL));
    assert_eq!(advise(anon + 3 * PAGE, 2, Advice::PopulateRead), Err(Errno::NOMEM));
    // Beyond the end of the file.
    let beyond = m.map(request(Some(&object), 6, Sharing::Shared));
    assert_eq!(advise(beyond, 6, Advice::PopulateRead), Err(Errno::FAULT));
}

fn residence_is_told<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let addr = m.map_anon(10, Sharing::Private);
    m.mark(addr, 3..6, 1);
    let expected: Vec<_> = (0..10).map(|p| (3..6).contains(&p)).collect();
    are_resident(&m, addr, &expected, Sharing::Private);
    m.space().unmap(addr + 8 * PAGE, PAGE).unwrap();
    assert_eq!(m.space().resident(addr, &mut [0; 10]), Err(Errno::NOMEM));
    assert_eq!(m.space().resident(addr + 1, &mut [0; 1]), Err(Errno::INVAL));
    assert_eq!(m.space().resident(addr, &mut []), Ok(()));
    assert_eq!(m.space().resident(m.base() + (1 << 47), &mut [0; 1]), Err(Errno::NOMEM));
}
