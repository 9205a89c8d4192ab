//! Spaces that come and go.

use crate::support::*;
use elbowroom::{AccessError, Config, Manager, Sharing, Soft};
use elbowroom_sync::atomic::{AtomicBool, Ordering};
use elbowroom_sync::time::{Duration, Instant};

#[test]
fn dropped_spaces_leave_nothing_behind() {
    let dir = scratch();
    let path = stamped(dir.path(), "again", 200);
    let manager = Manager::<Soft>::start_on(Config::with_memory(BUDGET)).unwrap();
    let object = manager.open(&path, true).unwrap();
    let frames = BUDGET as usize / PAGE;
    // Each round takes more than half of the budget; together, many times the budget.
    for round in 0..24_u64 {
        let space = manager.create_space().unwrap();
        let cpu = space.cpu();
        let private = space.map(request(None, frames / 4, Sharing::Private)).unwrap();
        let shared = space.map(request(None, frames / 8, Sharing::Shared)).unwrap();
        let copies = space.map(request(Some(&object), 200, Sharing::Private)).unwrap();
        let touch = |base: usize, pages: usize, number: u64| {
            for page in 0..pages {
                cpu.set_word(base + page * PAGE + 16, number);
                assert_eq!(cpu.word(base + page * PAGE + 16), number);
            }
        };
        assert_eq!((cpu.word(private), cpu.word(shared), cpu.word(copies)), (0, 0, stamp(0)));
        touch(private, frames / 4, round);
        touch(shared, frames / 8, round);
        touch(copies, 200, round);
        let child = space.fork().unwrap();
        let there = |addr: usize| addr - space.base() + child.base();
        touch(there(private), frames / 8, !round);
        touch(there(shared), frames / 8, !round);
        assert_eq!(cpu.word(private + 16), round);
        assert_eq!(cpu.word(shared + 16), !round);
        if round % 2 == 0 { drop((space, child)) } else { drop((child, space)) }
    }
    let stats = manager.stats();
    assert!(stats.memory_waits == 0 && stats.peak_bytes <= BUDGET, "{stats:?}");
}

/// A thread reads and writes; the space goes, and its number may become another's.
#[test]
fn a_space_may_go_while_it_is_used() {
    let manager = Manager::<Soft>::start_on(Config::with_memory(BUDGET)).unwrap();
    for round in 1..=60_u64 {
        let space = manager.create_space().unwrap();
        let addr = space.map(request(None, 8, Sharing::Private)).unwrap();
        let ready = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let cpus: Vec<_> = (0..2).map(|_| space.cpu()).collect();
            for cpu in cpus {
                let ready = &ready;
                scope.spawn(move || {
                    let until = Instant::now() + Duration::from_secs(20);
                    for i in 0.. {
                        let at = addr + i % 8 * PAGE;
                        let done = cpu.write_u64(at, round).and_then(|()| cpu.read_u64(at));
                        ready.store(true, Ordering::Release);
                        match done {
                            Ok(word) => assert_eq!(word, round),
                            Err(error) => return assert_eq!(error, AccessError::NotMapped(at)),
                        }
                        assert!(Instant::now() < until, "the space is there for ever");
                    }
                });
            }
            while !ready.load(Ordering::Acquire) {
                elbowroom_sync::thread::yield_now();
            }
            drop(space);
        });
        // Whoever has the number now has an empty space.
        let next = manager.create_space().unwrap();
        assert_eq!(next.cpu().read_u64(next.base() + (addr & ((1 << 48) - 1))).map_err(|_| ()), Err(()));
    }
}
