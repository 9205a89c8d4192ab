//! One piece of shared memory at two places, one of which comes and goes: what happens to one mapping does
//! nothing to the other, and as long as one is there no store is lost.

use elbowroom::{AccessError, Cpu, Prot, Remap, Sharing};
use elbowroom_shuttle::{Keep, PAGE, World, check};
use elbowroom_sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const FRAMES: u64 = 24;
const PAGES: usize = 2;
const TURNS: usize = 3;
const ACCESSES: usize = 8;

/// Adds to the counters of the pages through one mapping.
fn count(cpu: &Cpu, base: usize, counted: &[AtomicU64; PAGES]) {
    for access in 0..ACCESSES {
        let page = access % PAGES;
        let addr = base + page * PAGE;
        let made = cpu.read_u64(addr).and_then(|seen| cpu.compare_exchange_u64(addr, seen, seen + 1));
        match made {
            Ok(Ok(_)) => _ = counted[page].fetch_add(1, Ordering::Relaxed),
            // Somebody else was faster, it may not be stored to at this moment, or nothing is there.
            Ok(Err(_)) | Err(AccessError::Denied(_) | AccessError::NotMapped(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn scenario() {
    let world = World::new(FRAMES);
    let (stays, comes) = (world.at(0), world.at(1024));
    world.map(stays, PAGES, Prot::READ | Prot::WRITE, Sharing::Shared);
    let counted: Arc<[AtomicU64; PAGES]> = Arc::default();
    let counters: Vec<_> = [stays, comes]
        .into_iter()
        .map(|base| {
            let counted = counted.clone();
            world.spawn("counter", move |_, cpu| count(cpu, base, &counted))
        })
        .collect();
    let protector = world.spawn("protector", move |space, _| {
        for _ in 0..TURNS {
            space.protect(stays, PAGES * PAGE, Prot::READ).unwrap();
            space.protect(stays, PAGES * PAGE, Prot::READ | Prot::WRITE).unwrap();
        }
    });
    let cpu = Keep::new(world.space.cpu());
    for _ in 0..TURNS {
        // An old length of 0: the same memory once more.
        assert_eq!(world.space.remap(stays, 0, PAGES * PAGE, Remap::Fixed(comes)), Ok(comes));
        for page in 0..PAGES {
            let least = counted[page].load(Ordering::Relaxed);
            let seen = cpu.read_u64(comes + page * PAGE).unwrap();
            assert!(seen >= least, "page {page}: {seen} of {least}");
        }
        world.space.unmap(comes, PAGES * PAGE).unwrap();
        assert_eq!(cpu.read_u64(comes), Err(AccessError::NotMapped(comes)));
    }
    counters.into_iter().for_each(|counter| counter.join().unwrap());
    protector.join().unwrap();
    for (page, count) in counted.iter().enumerate() {
        let count = count.load(Ordering::Relaxed);
        assert_eq!(cpu.read_u64(stays + page * PAGE), Ok(count), "page {page}: a store was lost");
    }
}

#[test]
fn shared_memory_at_two_places_loses_no_store() {
    check("twice", 1, scenario);
}
