//! Bugs of the past, each as a test that tells its story. All end by themselves: what might hang runs under a
//! bound.

use super::{fork, there};
use crate::support::*;
use elbowroom::{
    AccessError, Advice, Config, Errno, Intent, Manager, MapRequest, Place, Prot, Remap, Sharing, Soft, Space,
};
use elbowroom_sync::atomic::{AtomicBool, Ordering};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};
use std::ops::Range;

/// After this, what must end is taken to hang. Longer than any bound of the manager's on a pin.
const HANG: Duration = Duration::from_secs(20);

/// How long a race is looked for.
const RACE: Duration = Duration::from_millis(1500);

/// How long it takes, surely, until a verb that was started waits for a pin.
const UNTIL_IT_WAITS: Duration = Duration::from_millis(200);

/// A soft machine whose flusher looks at everything all the time.
fn busy_machine() -> Sound<SoftMachine> {
    let config = Config { writeback_interval: Duration::from_millis(1), ..Config::with_memory(BUDGET) };
    Sound::new(SoftMachine::start(config).unwrap())
}

/// Stores each page's stamp for `seed` to its first word.
fn store(space: &Space<Soft>, addr: usize, pages: Range<usize>, seed: u64) {
    let cpu = space.cpu();
    pages.for_each(|page| cpu.set_word(addr + page * PAGE, stamp(page) ^ seed));
}

/// Calls `round` with 0, 1, … for as long as a race is looked for.
fn look_for_a_race(mut round: impl FnMut(u64)) {
    let until = Instant::now() + RACE;
    (0..).take_while(|_| Instant::now() < until).for_each(&mut round);
}

/// A fault found a folio that was shared by fork, and waited for its turn. Meanwhile another thread's store
/// gave the space a copy in its place; the fault copied the old folio once more, and what was stored in
/// between was lost.
#[test]
fn a_fault_does_not_use_a_folio_that_gave_way_to_a_copy() {
    ends_within(HANG, || {
        const PAGES: usize = 512;
        const THREADS: usize = 8;
        let m = busy_machine();
        let addr = m.map_anon(PAGES, Sharing::Private);
        let at = |page: usize, thread: usize| addr + page * PAGE + 64 + thread * 8;
        look_for_a_race(|round| {
            store(m.space(), addr, 0..PAGES, round);
            let children = [(); 2].map(|()| fork(m.space()));
            // All go the same way: whoever is ahead and loses the processor is overtaken.
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let m = &m;
                    scope.spawn(move || {
                        let cpu = m.space().cpu();
                        (0..PAGES).for_each(|page| cpu.set_word(at(page, thread), round));
                    });
                }
            });
            let cpu = m.space().cpu();
            for page in 0..PAGES {
                let words: [u64; THREADS] = std::array::from_fn(|thread| cpu.word(at(page, thread)));
                assert_eq!(words, [round; THREADS], "round {round}, page {page}: a store is lost");
            }
            for child in &children {
                for page in 0..PAGES {
                    let word = cpu.word(there(at(page, 0), m.space(), child));
                    assert!(word < round.max(1), "round {round}, page {page}: the child has {word}");
                }
            }
        });
    });
}

/// The same with folios that were dropped: by MADV_DONTNEED, by munmap, and with the child that had them,
/// too. Their frames are others' at once.
#[test]
fn a_fault_does_not_use_a_folio_that_was_dropped() {
    ends_within(HANG, || {
        const PAGES: usize = 64;
        let m = busy_machine();
        let (addr, other) = (m.map_anon(PAGES, Sharing::Private), m.map_anon(PAGES, Sharing::Private));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (m, stop) = (&m, &stop);
                scope.spawn(move || {
                    let cpu = m.space().cpu();
                    for i in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                        let (page, at) = (i * 7 % PAGES, addr + i * 7 % PAGES * PAGE + thread * 8);
                        match cpu.write_u64(at, stamp(page)).and_then(|()| cpu.read_u64(at)) {
                            Ok(word) => assert!(word == stamp(page) || word == 0, "page {page}: {word:#x}"),
                            Err(error) => assert_eq!(error, AccessError::NotMapped(at)),
                        }
                    }
                });
            }
            let _end = StopAtTheEnd(&stop);
            look_for_a_race(|round| {
                let child = fork(m.space());
                let len = PAGES / 2 * PAGE;
                m.space().advise(addr, len, Advice::DontNeed).unwrap();
                m.space().unmap(addr + len, len).unwrap();
                // Frames that became free are somebody else's now.
                store(m.space(), other, 0..PAGES, round);
                drop(child);
                let place = Place::FixedNoReplace(addr + len);
                m.map(MapRequest { place, ..request(None, PAGES / 2, Sharing::Private) });
                let cpu = m.space().cpu();
                for page in 0..PAGES {
                    let word = cpu.word(other + page * PAGE);
                    assert_eq!(word, stamp(page) ^ round, "round {round}, page {page} of others");
                }
                m.space().advise(other, PAGES * PAGE, Advice::DontNeed).unwrap();
            });
        });
        every_frame_is_left(&m);
    });
}

/// Checks that most of the budget can be had after all else was dropped.
fn every_frame_is_left(m: &SoftMachine) {
    let everything = m.base() + (1 << 20);
    m.space().unmap(everything, (1 << 46) - (1 << 20)).unwrap();
    m.space().unmap(m.base() + (1 << 46), (1 << 46) - (1 << 20)).unwrap();
    let pages = BUDGET as usize / PAGE * 3 / 4;
    let addr = m.map_anon(pages, Sharing::Private);
    m.mark(addr, 0..pages, 3);
    m.check_marks(addr, 0..pages, 3);
    assert_eq!(m.manager().stats().memory_waits, 0, "frames are lost");
}

/// fork listed the pages of its parent and then took each; one that was dropped or copied between was shared
/// although it was nobody's any more. And a fault of the parent that had found a page before a cut of the
/// file dropped it stored to what was only the child's by then.
#[test]
fn a_child_gets_no_page_that_was_dropped_meanwhile() {
    ends_within(HANG, || {
        const PAGES: usize = 64;
        let m = busy_machine();
        let dir = scratch();
        let path = stamped(dir.path(), "dropped", PAGES);
        let object = m.manager().open(&path, true).unwrap();
        let (anon, file) =
            (m.map_anon(PAGES, Sharing::Private), m.map_file(&object, PAGES, Sharing::Private));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // One drops pages, and cuts the file; two store, in different bits.
            scope.spawn(|| {
                for page in (0..).map(|i| i * 5 % PAGES).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    m.space().advise(anon + page * PAGE, PAGE, Advice::DontNeed).unwrap();
                    m.resize(&object, &path, (page * PAGE) as u64);
                    m.resize(&object, &path, (PAGES * PAGE) as u64);
                }
            });
            for thread in 0..2 {
                let (m, stop) = (&m, &stop);
                scope.spawn(move || {
                    let cpu = m.space().cpu();
                    for i in (1..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                        let at = [anon, file][i % 2] + i * 3 % PAGES * PAGE;
                        match cpu.write_u64(at, ((i << 8) | (thread << 7) | (i * 3 % PAGES)) as u64) {
                            Ok(()) => {}
                            Err(error) => assert_eq!(error, AccessError::Bus(at)),
                        }
                    }
                });
            }
            let _end = StopAtTheEnd(&stop);
            let cpu = m.space().cpu();
            look_for_a_race(|round| {
                let child = fork(m.space());
                for (addr, page) in [anon, file].iter().flat_map(|&addr| (0..PAGES).map(move |p| (addr, p))) {
                    let at = there(addr, m.space(), &child) + page * PAGE;
                    let first = cpu.read_u64(at);
                    let again = cpu.read_u64(at);
                    for read in [first, again] {
                        match read {
                            // Zero, the file's, or what a thread has stored to this page.
                            Ok(0) => {}
                            Ok(word) => assert!(
                                word == stamp(page) || (word & 0x7F) as usize == page,
                                "round {round}, page {page} at {addr:#x}: {word:#x}"
                            ),
                            Err(error) => assert_eq!(error, AccessError::Bus(at)),
                        }
                    }
                    if let (Ok(first), Ok(again)) = (first, again) {
                        // Only a cut changes it, to zero, or to the file's that was not read before.
                        assert!(
                            again == first || again == 0,
                            "round {round}, page {page} at {addr:#x}: {first:#x} and then {again:#x}"
                        );
                    }
                }
            });
        });
        every_frame_is_left(&m);
    });
}

/// While protect changes the only mapping that is left of shared memory, that mapping is in no index: whoever
/// unmapped the other one then took the memory for unused, and freed it. The pin makes protect wait in its
/// middle.
#[test]
fn shared_memory_lives_while_its_only_mapping_is_changed() {
    type Verb = fn(&SoftMachine, usize, usize) -> usize;
    let verbs: [(&str, Verb); 2] = [
        ("protect", |m, addr, len| {
            m.space().protect(addr, len, Prot::READ).unwrap();
            addr
        }),
        ("remap", |m, addr, len| m.space().remap(addr, len, len + PAGE, Remap::MayMove).unwrap()),
    ];
    for (name, verb) in verbs {
        ends_within(HANG, move || {
            const PAGES: usize = 16;
            const LEN: usize = PAGES * PAGE;
            let m = busy_machine();
            let one = m.map_anon(PAGES, Sharing::Shared);
            // Something behind it, so that it must move to grow.
            let two = m.space().remap(one, 0, LEN, Remap::MayMove).unwrap();
            let behind = Place::Hint(one + LEN);
            m.map(MapRequest { place: behind, ..request(None, 1, Sharing::Private) });
            m.mark(one, 0..PAGES, 4);
            let cpu = m.space().cpu();
            let pin = cpu.pin(one + LEN - PAGE, 8, Intent::Read).unwrap();
            let now = std::thread::scope(|scope| {
                let changed = scope.spawn(|| verb(&m, one, LEN));
                thread::sleep(UNTIL_IT_WAITS);
                let unmapped = scope.spawn(|| m.space().unmap(two, LEN).unwrap());
                thread::sleep(UNTIL_IT_WAITS);
                drop(pin);
                unmapped.join().unwrap();
                changed.join().unwrap()
            });
            println!("{name} has ended");
            m.check_marks(now, 0..PAGES, 4);
        });
    }
}

/// The parent unmaps shared memory right after its fork was told what it maps, and before the child has
/// mapped it.
#[test]
fn shared_memory_lives_from_parent_to_child() {
    ends_within(HANG, || {
        let m = busy_machine();
        // Many mappings, so that what fork does with them takes its time.
        let room = m.map_anon(400, Sharing::Private);
        (0..200).for_each(|i| m.space().unmap(room + 2 * i * PAGE, PAGE).unwrap());
        look_for_a_race(|round| {
            let addr = m.map_anon(1, Sharing::Shared);
            m.set_word(addr, 9);
            let child = std::thread::scope(|scope| {
                let forked = scope.spawn(|| fork(m.space()));
                thread::sleep(Duration::from_micros(round * 7 % 200));
                m.space().unmap(addr, PAGE).unwrap();
                forked.join().unwrap()
            });
            let here = there(addr, m.space(), &child);
            match child.cpu().read_u64(here) {
                Ok(word) => assert_eq!(word, 9, "round {round}"),
                Err(error) => assert_eq!(error, AccessError::NotMapped(here)),
            }
        });
    });
}

/// While protect changes the only mapping of a deleted file, the flusher closed the file for good. The loads
/// afterwards failed.
#[test]
fn a_deleted_file_stays_open_while_its_only_mapping_is_changed() {
    ends_within(HANG, || {
        const PAGES: usize = 64;
        let m = busy_machine();
        let (addr, _) = map_deleted(&m, PAGES);
        let cpu = m.space().cpu();
        look_for_a_race(|round| {
            m.space().protect(addr, PAGES * PAGE, Prot::empty()).unwrap();
            m.space().protect(addr, PAGES * PAGE, Prot::READ).unwrap();
            let page = round as usize % PAGES;
            assert_eq!(cpu.read_u64(addr + page * PAGE), Ok(stamp(page)), "round {round}");
        });
    });
}

/// Maps a file of which nothing but the mapping is left; its directory is returned to live as long.
fn map_deleted(m: &SoftMachine, pages: usize) -> (usize, tempfile::TempDir) {
    let dir = scratch();
    let path = stamped(dir.path(), "deleted", pages);
    let object = m.manager().open(&path, false).unwrap();
    let read_only =
        MapRequest { prot: Prot::READ, may_write: false, ..request(Some(&object), pages, Sharing::Shared) };
    let addr = m.map(read_only);
    std::fs::remove_file(path).unwrap();
    (addr, dir)
}

/// Two mappings of a file whose pages are all in one folio, which can be mapped at one place at a time.
fn map_one_folio_twice(m: &SoftMachine) -> (usize, usize) {
    let dir = scratch();
    let path = stamped(dir.path(), "folio", 4);
    let object = m.manager().open(&path, true).unwrap();
    let maps = [(); 2].map(|()| m.map_file(&object, 4, Sharing::Shared));
    maps.into_iter().for_each(|addr| m.check_marks(addr, 0..4, 0));
    (maps[0], maps[1])
}

/// An access that needed both mappings of a folio at once faulted at one, which took the page from the other,
/// for ever.
#[test]
fn a_copy_between_two_mappings_of_a_folio_ends() {
    ends_within(HANG, || {
        let m = busy_machine();
        let (one, two) = map_one_folio_twice(&m);
        let cpu = m.space().cpu();
        cpu.copy(one, two + 2 * PAGE, 100).unwrap();
        assert_eq!(cpu.read_u64(one + 2 * PAGE + 8), Ok(stamp(0)));
        cpu.copy(two + PAGE - 50, one + 3 * PAGE - 50, 100).unwrap();
        assert_eq!(cpu.read_u64(two + 3 * PAGE + 8), Ok(stamp(1)));
    });
}

/// The same with a word that lies across two pages: a ring buffer that is mapped twice in a row.
#[test]
fn a_word_across_the_seam_of_a_ring_is_loaded_and_stored() {
    ends_within(HANG, || {
        let m = busy_machine();
        let page = m.map_anon(1, Sharing::Shared);
        let ring = m.map_anon(2, Sharing::Private);
        for at in [ring, ring + PAGE] {
            assert_eq!(m.space().remap(page, 0, PAGE, Remap::Fixed(at)), Ok(at));
        }
        let cpu = m.space().cpu();
        cpu.write(ring, b"efgh").unwrap();
        cpu.write(ring + PAGE - 4, b"abcd").unwrap();
        let word = cpu.read_u64(ring + PAGE - 4).unwrap();
        assert_eq!(&word.to_ne_bytes(), b"abcdefgh");
        cpu.write_u64(ring + PAGE - 4, u64::from_ne_bytes(*b"ABCDEFGH")).unwrap();
        let mut bytes = [0; 4];
        cpu.read(ring + PAGE, &mut bytes).unwrap();
        assert_eq!(&bytes, b"EFGH");
    });
}

/// An access that needed a handler waited for its answer for ever once the handlers had ended with their
/// manager.
#[test]
fn accesses_fail_after_the_manager() {
    type Access = fn(&elbowroom::Cpu, usize) -> Result<(), AccessError>;
    let accesses: [Access; 4] = [
        |cpu, at| cpu.read_u64(at).map(|_| ()),
        |cpu, at| cpu.write_u64(at, 1),
        |cpu, at| cpu.fill(at, 2 * PAGE, 1),
        |cpu, at| cpu.pin(at, 8, Intent::Write).map(|_| ()),
    ];
    for sharing in [Sharing::Shared, Sharing::Private] {
        for access in accesses {
            let manager = Manager::<Soft>::start_on(Config::with_memory(BUDGET)).unwrap();
            let space = manager.create_space().unwrap();
            let dir = scratch();
            let path = stamped(dir.path(), "late", 8);
            let object = manager.open(&path, true).unwrap();
            let addr = space.map(request(Some(&object), 8, sharing)).unwrap();
            drop(manager);
            let cpu = space.cpu();
            let failed = ends_within(HANG, move || access(&cpu, addr));
            assert_eq!(failed, Err(AccessError::Stopped(addr)));
        }
    }
}

/// An access that was already waiting when the manager was dropped ends, too.
#[test]
fn accesses_end_with_the_manager() {
    let manager = Manager::<Soft>::start_on(Config::with_memory(BUDGET)).unwrap();
    let space = manager.create_space().unwrap();
    let dir = scratch();
    let pages = 4 * BUDGET as usize / PAGE;
    let path = stamped(dir.path(), "until-then", pages);
    let object = manager.open(&path, true).unwrap();
    let addr = space.map(request(Some(&object), pages, Sharing::Shared)).unwrap();
    let cpus = [(); 4].map(|()| space.cpu());
    let dropped = thread::spawn("manager", move || {
        thread::sleep(Duration::from_millis(50));
        drop(manager);
    });
    ends_within(HANG, move || {
        std::thread::scope(|scope| {
            for (thread, cpu) in cpus.into_iter().enumerate() {
                scope.spawn(move || {
                    for page in (0..).map(|i: usize| (i * 7919 + thread * 1000) % pages) {
                        let at = addr + page * PAGE;
                        match cpu.read_u64(at) {
                            Ok(word) => assert_eq!(word, stamp(page)),
                            Err(error) => return assert_eq!(error, AccessError::Stopped(at)),
                        }
                    }
                });
            }
        });
    });
    dropped.unwrap().join().unwrap();
}

/// munmap of what is pinned gives up after its bound, and puts everything back: also the only mappings of
/// shared memory and of a deleted file, which somebody could have taken for unused meanwhile.
#[test]
fn a_pin_that_is_held_for_long_keeps_all_of_the_range_mapped() {
    ends_within(2 * HANG, || {
        let m = busy_machine();
        let room = m.map_anon(12, Sharing::Private);
        let at = |page: usize| room + page * PAGE;
        let (shared, deleted) = (m.map_anon(4, Sharing::Shared), map_deleted(&m, 4).0);
        assert_eq!(m.space().remap(shared, 4 * PAGE, 4 * PAGE, Remap::Fixed(at(2))), Ok(at(2)));
        let other = m.space().remap(at(2), 0, 4 * PAGE, Remap::MayMove).unwrap();
        assert_eq!(m.space().remap(deleted, 4 * PAGE, 4 * PAGE, Remap::Fixed(at(6))), Ok(at(6)));
        m.mark(room, 0..6, 1);
        m.mark(room, 10..12, 1);
        let check = || {
            m.check_marks(room, 0..6, 1);
            m.check_marks(at(6), 0..4, 0);
            m.check_marks(at(10), 10..12, 1);
        };
        check();
        let areas = m.space().areas(room..at(12));
        let cpu = m.space().cpu();
        let pin = cpu.pin(at(11), 8, Intent::Write).unwrap();
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| m.space().unmap(room, 12 * PAGE));
            thread::sleep(UNTIL_IT_WAITS);
            m.space().unmap(other, 4 * PAGE).unwrap();
            assert_eq!(refused.join().unwrap(), Err(Errno::BUSY));
        });
        assert_eq!(m.space().areas(room..at(12)), areas);
        check();
        drop(pin);
        m.space().unmap(room, 12 * PAGE).unwrap();
        assert_eq!(m.space().areas(room..at(12)), []);
    });
}

/// A store to a page that a child has pinned waited for the pin, without a bound: for ever, if it was the
/// storing thread's own.
#[test]
fn a_store_to_a_page_that_a_child_has_pinned_ends() {
    ends_within(HANG, || {
        let m = busy_machine();
        let addr = m.map_anon(1, Sharing::Private);
        m.set_word(addr, 1);
        let child = fork(m.space());
        let here = there(addr, m.space(), &child);
        let cpu = m.space().cpu();
        let pin = cpu.pin(here, 8, Intent::Read).unwrap();
        let stored = cpu.write_u64(addr, 2);
        assert!(matches!(stored, Ok(()) | Err(AccessError::Pinned(_))), "{stored:?}");
        assert_eq!(pin[0].load(Ordering::Relaxed), 1, "what is pinned is the child's");
        drop(pin);
        cpu.write_u64(addr, 3).unwrap();
        assert_eq!((cpu.word(addr), cpu.word(here)), (3, 1));
    });
}

/// A load through another mapping of a folio that is pinned waited for the pin, in the same way.
#[test]
fn a_load_of_another_page_of_a_pinned_folio_ends() {
    ends_within(HANG, || {
        let m = busy_machine();
        let (one, two) = map_one_folio_twice(&m);
        let cpu = m.space().cpu();
        let pin = cpu.pin(one, 8, Intent::Read).unwrap();
        let loaded = cpu.read_u64(two + 3 * PAGE);
        assert!(matches!(loaded, Ok(_) | Err(AccessError::Pinned(_))), "{loaded:?}");
        drop(pin);
        assert_eq!(cpu.read_u64(two + 3 * PAGE), Ok(stamp(3)));
    });
}
