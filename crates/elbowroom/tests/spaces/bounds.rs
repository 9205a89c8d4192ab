//! What runs out: memory, spaces, mappings. Slow: one waits for a bound in time, and two make half a million
//! mappings and more.

use crate::support::*;
use elbowroom::{AccessError, Config, Errno, Intent, Manager, MapRequest, Place, Prot, Sharing, Soft};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};
use std::ops::Range;

/// The most mappings of a space.
const MAX_VMAS: usize = 1 << 20;

/// Memory that nothing can be freed of runs out: that is an error after a while, and no more than that.
#[test]
fn memory_that_runs_out_is_an_error() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let pages = 2 * BUDGET as usize / PAGE;
    let addr = m.map_anon(pages, Sharing::Private);
    let cpu = m.space().cpu();
    let started = Instant::now();
    let refused = (0..pages).find_map(|page| {
        let at = addr + page * PAGE;
        cpu.write_u64(at, stamp(page)).err().map(|error| (page, error))
    });
    let (page, error) = refused.expect("twice the budget cannot be had");
    assert_eq!(error, AccessError::Bus(addr + page * PAGE));
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    assert!(page > BUDGET as usize / PAGE / 2, "{page}");
    for before in 0..page {
        assert_eq!(cpu.word(addr + before * PAGE), stamp(before));
    }
    // What is freed can be had again.
    m.space().unmap(addr, 100 * PAGE).unwrap();
    cpu.write_u64(addr + page * PAGE, 1).unwrap();
    assert!(m.manager().stats().peak_bytes <= BUDGET);
}

/// More swap than half of the budget can describe is refused.
#[test]
fn more_swap_than_the_budget_can_describe_is_refused() {
    let mut config = Config::with_memory(BUDGET);
    let most = config.most_swap();
    assert!((20 * BUDGET..100 * BUDGET).contains(&most), "{most}");
    config.swap = most;
    Manager::<Soft>::start_on(config.clone()).unwrap();
    config.swap += 1;
    let error = Manager::<Soft>::start_on(config).err().expect("too much swap").to_string();
    assert!(error.contains(&most.to_string()), "{error}");
}

/// Where no file can be made there is no manager, rather than one that cannot do what was asked.
#[test]
fn a_swap_file_that_cannot_be_made_is_an_error() {
    let swap_dir = Some("/nowhere/at/all".into());
    let config = Config { swap: BUDGET, swap_dir, ..Config::with_memory(BUDGET) };
    let error = Manager::<Soft>::start_on(config).err().expect("no such directory").to_string();
    assert!(error.contains("/nowhere/at/all") && error.contains("directory"), "{error}");
}

#[test]
fn there_is_a_bound_on_spaces() {
    let manager = Manager::<Soft>::start_on(Config::with_memory(BUDGET)).unwrap();
    for _ in 0..2 {
        let mut spaces = Vec::new();
        let refusal = loop {
            match manager.create_space() {
                Ok(space) => spaces.push(space),
                Err(errno) => break errno,
            }
            assert!(spaces.len() <= 1 << 16, "they are bounded");
        };
        assert_eq!(refusal, Errno::NOMEM);
        assert_eq!(spaces[0].fork().err(), Some(Errno::NOMEM));
        let mut bases: Vec<_> = spaces.iter().map(|space| space.base()).collect();
        bases.sort_unstable();
        bases.dedup();
        assert_eq!(bases.len(), spaces.len());
        // One that goes makes room for one.
        drop(spaces.swap_remove(spaces.len() / 2));
        spaces.push(manager.create_space().unwrap());
        assert!(manager.create_space().is_err());
    }
}

/// For what makes a million mappings, on a machine that does other things, too.
const LONG: Duration = Duration::from_secs(150);

/// Makes mappings of a page each, which cannot be joined, of those with these numbers from `room` on; stops
/// at the first that is refused.
fn map_single(m: &SoftMachine, room: usize, numbers: Range<usize>) -> Result<(), Errno> {
    let mut places = numbers.map(|number| Place::FixedNoReplace(room + 2 * number * PAGE));
    places.try_for_each(|place| {
        m.space().map(MapRequest { place, ..request(None, 1, Sharing::Private) }).map(|_| ())
    })
}

/// Addresses for `count` such mappings, and where they begin.
fn room_for(m: &SoftMachine, count: usize) -> usize {
    let room = m.map_anon(2 * count, Sharing::Private);
    m.space().unmap(room, 2 * count * PAGE).unwrap();
    room
}

/// munmap asked for room for as many mappings again as it was to take away: it refused what was more than
/// half of the bound.
#[test]
fn much_can_be_unmapped_at_once() {
    ends_within(LONG, || {
        let m = Sound::new(SoftMachine::start(Config::with_memory(BUDGET)).unwrap());
        let count = MAX_VMAS / 2 + 100;
        let room = room_for(&m, count);
        map_single(&m, room, 0..count).unwrap();
        assert_eq!(m.space().unmap(room, 2 * count * PAGE), Ok(()));
        assert_eq!(m.space().areas(room..room + 2 * count * PAGE), []);
    });
}

/// A verb that had asked for room found it taken by others when it put back what it had taken out, and
/// panicked with the layout locked. The pin makes it wait in its middle.
#[test]
fn the_last_room_for_mappings_is_not_given_twice() {
    ends_within(LONG, || {
        let m = Sound::new(SoftMachine::start(Config::with_memory(BUDGET)).unwrap());
        let addr = m.map_anon(3, Sharing::Private);
        m.mark(addr, 0..3, 1);
        let room = room_for(&m, MAX_VMAS);
        map_single(&m, room, 0..MAX_VMAS - 100).unwrap();
        let cpu = m.space().cpu();
        let pin = cpu.pin(addr + PAGE, 8, Intent::Read).unwrap();
        let (subscription, pinned) = (m.manager().subscribe(), addr + PAGE..addr + 2 * PAGE);
        let since = subscription.begin();
        std::thread::scope(|scope| {
            // One mapping becomes three.
            let protected = scope.spawn(|| m.space().protect(addr + PAGE, PAGE, Prot::READ));
            // It says that it takes the page away, and then finds that it cannot: in its middle.
            let until = Instant::now() + LONG;
            while !subscription.retry(since, &pinned) {
                assert!(Instant::now() < until, "protect does not begin");
                thread::yield_now();
            }
            assert_eq!(map_single(&m, room, MAX_VMAS - 100..MAX_VMAS), Err(Errno::NOMEM));
            drop(pin);
            assert_eq!(protected.join().expect("no panic"), Ok(()));
        });
        m.check_marks(addr, 0..3, 1);
        m.port().store_fails(addr + PAGE, Failure::Denied);
        // What makes no more mappings than it takes is still possible.
        m.space().protect(addr + PAGE, PAGE, RW).unwrap();
        m.space().unmap(room, 2 * MAX_VMAS * PAGE).unwrap();
        m.mark(addr, 0..3, 2);
    });
}
