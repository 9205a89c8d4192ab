//! Stores against mprotect: none lands after it has returned, and none fails while nothing forbids it.

use elbowroom::{AccessError, Cpu, Prot, Sharing};
use elbowroom_shuttle::{Keep, PAGE, Witness, World, check};
use elbowroom_sync::Arc;

const FRAMES: u64 = 24;
const TURNS: usize = 3;
const STORES: u64 = 8;
const PAGES: usize = 2;

/// The generations of a witness here are the times in which the memory cannot be stored to for certain; so
/// between the end of the last one and the beginning of the next, it can be or not. Two witnesses:
/// `forbidden` from the return of the protecting call to the next call, `allowed` the other way round.
#[derive(Default)]
struct Times {
    forbidden: Witness,
    allowed: Witness,
}

/// Whether one generation lasted from before to after: it had begun and not ended at both looks.
fn lasted(before: (u64, u64), after: (u64, u64)) -> bool {
    before == after && before.0 > before.1
}

fn look(witness: &Witness) -> (u64, u64) {
    (witness.begun(), witness.ended())
}

fn write(cpu: &Cpu, addr: usize, times: &Times) {
    for value in 1..=STORES {
        let before = (look(&times.forbidden), look(&times.allowed));
        let stored = cpu.write_u64(addr, value);
        let after = (look(&times.forbidden), look(&times.allowed));
        match stored {
            Ok(()) => assert!(!lasted(before.0, after.0), "a store was made while it was forbidden"),
            Err(AccessError::Denied(_)) => {
                assert!(!lasted(before.1, after.1), "a store failed while it was allowed");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn scenario(sharing: Sharing, lowered: Prot) {
    let world = World::new(FRAMES);
    let base = world.at(0);
    let times = Arc::new(Times::default());
    world.map(base, PAGES, Prot::READ | Prot::WRITE, sharing);
    times.allowed.open();
    let writers: Vec<_> = (0..2)
        .map(|number| {
            let times = times.clone();
            world.spawn("writer", move |_, cpu| write(cpu, base + number % PAGES * PAGE + 8 * number, &times))
        })
        .collect();
    let cpu = Keep::new(world.space.cpu());
    for _ in 0..TURNS {
        times.allowed.close();
        world.space.protect(base, PAGES * PAGE, lowered).unwrap();
        times.forbidden.open();
        for number in 0..2 {
            let addr = base + number % PAGES * PAGE + 8 * number;
            let twice = [cpu.read_u64(addr), cpu.read_u64(addr)];
            if lowered.is_empty() {
                assert_eq!(twice, [Err(AccessError::Denied(addr)); 2]);
            } else {
                assert!(twice[0].is_ok() && twice[0] == twice[1], "a store landed late: {twice:?}");
            }
        }
        times.forbidden.close();
        world.space.protect(base, PAGES * PAGE, Prot::READ | Prot::WRITE).unwrap();
        times.allowed.open();
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    // The last store that did not fail is there, and what is there was stored.
    for number in 0..2 {
        assert!(cpu.read_u64(base + number % PAGES * PAGE + 8 * number).unwrap() <= STORES);
    }
}

#[test]
fn no_store_lands_after_private_memory_was_made_read_only() {
    check("protect, private, read-only", 1, || scenario(Sharing::Private, Prot::READ));
}

#[test]
fn no_store_lands_after_shared_memory_was_made_inaccessible() {
    check("protect, shared, none", 1, || scenario(Sharing::Shared, Prot::empty()));
}
