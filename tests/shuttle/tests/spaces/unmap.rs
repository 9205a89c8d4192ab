//! Reads and stores against unmapping, and mapping anew at the same place.

use elbowroom::{AccessError, Cpu, Prot, Sharing};
use elbowroom_shuttle::{PAGE, Witness, World, check, encode};
use elbowroom_sync::Arc;

const PAGES: usize = 2;
const FRAMES: u64 = 24;
const GENERATIONS: usize = 3;
const ACCESSES: usize = 6;

/// Where the mapper stores, where the writer does.
const MAPPED: usize = 8;
const WRITTEN: usize = 16;

/// What the writer stores while `generation` is the last that has begun; more than any generation.
const WRITER: u64 = 0x100;

/// Whether a word is of a generation from `after` on (not included) to `until`, or nobody's yet.
fn is_right(word: u64, page: usize, place: usize, after: u64, until: u64) -> bool {
    word == 0 || (after + 1..=until).any(|generation| word == encode(generation, page, place))
}

/// Loads the mapper's words for a while.
fn read(cpu: &Cpu, base: usize, witness: &Witness) {
    for access in 0..ACCESSES {
        let page = access % PAGES;
        let after = witness.ended();
        let seen = cpu.read_u64(base + page * PAGE + MAPPED);
        let until = witness.begun();
        match seen {
            Ok(word) => {
                assert!(after < until, "a load of what is not mapped gave {word:#x}");
                let right = is_right(word, page, MAPPED, after, until);
                assert!(right, "page {page} gave {word:#x} between generations {after} and {until}");
            }
            Err(AccessError::NotMapped(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Stores words that tell which generations they may be found in: from that on which had begun when the store
/// ended, back to that after the one that had ended when it began.
fn write(cpu: &Cpu, base: usize, witness: &Witness) {
    for access in 0..ACCESSES {
        let page = access % PAGES;
        let after = witness.ended();
        let word = encode(WRITER | after, page, WRITTEN);
        match cpu.write_u64(base + page * PAGE + WRITTEN, word) {
            Ok(()) => assert!(after < witness.begun(), "a store to what is not mapped was made"),
            Err(AccessError::NotMapped(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn scenario(sharing: Sharing) {
    let world = World::new(FRAMES);
    let base = world.at(0);
    let witness = Arc::new(Witness::default());
    let (for_reader, for_writer) = (witness.clone(), witness.clone());
    let reader = world.spawn("reader", move |_, cpu| read(cpu, base, &for_reader));
    let writer = world.spawn("writer", move |_, cpu| write(cpu, base, &for_writer));
    let cpu = elbowroom_shuttle::Keep::new(world.space.cpu());
    for _ in 0..GENERATIONS {
        let generation = witness.open();
        world.map(base, PAGES, Prot::READ | Prot::WRITE, sharing);
        for page in 0..PAGES {
            // Nothing of an older mapping is there.
            let fresh = cpu.read_u64(base + page * PAGE + MAPPED);
            assert_eq!(fresh, Ok(0), "generation {generation}, page {page}");
            cpu.write_u64(base + page * PAGE + MAPPED, encode(generation, page, MAPPED)).unwrap();
            let written = cpu.read_u64(base + page * PAGE + WRITTEN).unwrap();
            // A store that began when generation `after` was the last to have ended is in a later one.
            let right =
                written == 0 || (0..generation).any(|after| written == encode(WRITER | after, page, WRITTEN));
            assert!(right, "generation {generation}, page {page}: {written:#x}");
        }
        // Somewhere else, with other bytes, so that frames and table slots go from one to the other.
        let other = world.at(100);
        world.map(other, 1, Prot::READ | Prot::WRITE, Sharing::Private);
        cpu.write_u64(other + MAPPED, encode(0xffff, 0, MAPPED)).unwrap();
        world.space.unmap(base, PAGES * PAGE).unwrap();
        witness.close();
        assert_eq!(cpu.read_u64(other + MAPPED), Ok(encode(0xffff, 0, MAPPED)));
        world.space.unmap(other, PAGE).unwrap();
    }
    reader.join().unwrap();
    writer.join().unwrap();
}

#[test]
fn private_memory_is_read_and_written_while_it_is_unmapped() {
    check("unmap, private", 1, || scenario(Sharing::Private));
}

#[test]
fn shared_memory_is_read_and_written_while_it_is_unmapped() {
    check("unmap, shared", 1, || scenario(Sharing::Shared));
}
