//! Loads and stores against mremap: bytes move whole, and no store is lost.

use elbowroom::{AccessError, Cpu, Prot, Remap, Sharing};
use elbowroom_shuttle::{Keep, PAGE, World, check, encode};
use elbowroom_sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const FRAMES: u64 = 24;
const PAGES: usize = 2;
const MOVES: usize = 4;
const ACCESSES: usize = 8;

/// Never stored to, but for the start; counted up.
const STAMP: usize = 8;
const COUNT: usize = 16;

/// One of the two places, the other page each time.
fn place(places: [usize; 2], access: usize) -> (usize, usize) {
    let page = access / 2 % PAGES;
    (places[access % 2] + page * PAGE, page)
}

fn read(cpu: &Cpu, places: [usize; 2]) {
    for access in 0..ACCESSES {
        let (addr, page) = place(places, access);
        match cpu.read_u64(addr + STAMP) {
            Ok(word) => assert_eq!(word, encode(1, page, STAMP), "page {page}"),
            Err(AccessError::NotMapped(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Adds to a counter wherever it is now.
fn count(cpu: &Cpu, places: [usize; 2], counted: &[AtomicU64; PAGES]) {
    for access in 0..ACCESSES {
        let (addr, page) = place(places, access);
        let Ok(seen) = cpu.read_u64(addr + COUNT) else { continue };
        if let Ok(Ok(_)) = cpu.compare_exchange_u64(addr + COUNT, seen, seen + 1) {
            counted[page].fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn scenario(sharing: Sharing) {
    let world = World::new(FRAMES);
    // In one table, and in different ones.
    let places = [world.at(0), world.at(1024)];
    world.map(places[0], PAGES, Prot::READ | Prot::WRITE, sharing);
    let cpu = Keep::new(world.space.cpu());
    for page in 0..PAGES {
        cpu.write_u64(places[0] + page * PAGE + STAMP, encode(1, page, STAMP)).unwrap();
    }
    let counted: Arc<[AtomicU64; PAGES]> = Arc::default();
    let counts = counted.clone();
    let reader = world.spawn("reader", move |_, cpu| read(cpu, places));
    let counter = world.spawn("counter", move |_, cpu| count(cpu, places, &counts));
    for turn in 0..MOVES {
        let (from, to) = (places[turn % 2], places[(turn + 1) % 2]);
        assert_eq!(world.space.remap(from, PAGES * PAGE, PAGES * PAGE, Remap::Fixed(to)), Ok(to));
        for page in 0..PAGES {
            assert_eq!(cpu.read_u64(to + page * PAGE + STAMP), Ok(encode(1, page, STAMP)), "page {page}");
            let old = cpu.read_u64(from + page * PAGE + STAMP);
            assert_eq!(old, Err(AccessError::NotMapped(from + page * PAGE + STAMP)), "page {page}");
        }
    }
    reader.join().unwrap();
    counter.join().unwrap();
    for page in 0..PAGES {
        let count = counted[page].load(Ordering::Relaxed);
        assert_eq!(cpu.read_u64(places[MOVES % 2] + page * PAGE + COUNT), Ok(count), "a store was lost");
    }
}

#[test]
fn private_memory_moves_whole() {
    check("remap, private", 1, || scenario(Sharing::Private));
}

#[test]
fn shared_memory_moves_whole() {
    check("remap, shared", 1, || scenario(Sharing::Shared));
}
