//! Reclaim of a file's folios, against readers and a writer of its mapping, with far less memory than the
//! file has: always the right bytes.

use elbowroom::{Cpu, Prot, Sharing};
use elbowroom_shuttle::{Files, Keep, PAGE, World, check, encode};
use elbowroom_sync::Arc;
use shuttle::rand::{Rng, thread_rng};
use std::sync::atomic::{AtomicU64, Ordering};

const FRAMES: u64 = 24;
const PAGES: usize = 96;
const LOADS: usize = 24;
const STORES: u64 = 8;

const STAMP: usize = 8;
const COUNT: usize = 16;

/// Pages that are stored to.
const STORED: usize = 3;

fn page_of(number: usize) -> usize {
    number * 29
}

fn read(cpu: &Cpu, base: usize) {
    let mut next = thread_rng().gen_range(0..PAGES);
    for _ in 0..LOADS {
        // Now and then a run, so that there are larger folios.
        next =
            if thread_rng().gen_ratio(1, 2) { (next + 1) % PAGES } else { thread_rng().gen_range(0..PAGES) };
        let seen = cpu.read_u64(base + next * PAGE + STAMP);
        assert_eq!(seen, Ok(encode(0, next, STAMP)), "page {next}");
    }
}

/// What a page that is stored to must be: between the last store that had ended when the load began and the
/// last that had begun when it ended.
fn read_count(cpu: &Cpu, addr: usize, done: &AtomicU64) {
    let least = done.load(Ordering::Relaxed);
    let seen = cpu.read_u64(addr).unwrap();
    let most = done.load(Ordering::Relaxed) + 1;
    assert!((least..=most).contains(&seen), "{seen} of {least}..={most}");
}

fn scenario(files: &Files, sharing: Sharing) {
    for number in 0..STORED {
        files.store((page_of(number) * PAGE + COUNT) as u64, 0);
    }
    let world = World::new(FRAMES);
    let file = world.open(files, true);
    let base = world.at(0);
    world.map_file(base, PAGES, Prot::READ | Prot::WRITE, sharing, &file);
    let done: Arc<[AtomicU64; STORED]> = Arc::default();
    let (for_writer, for_reader) = (done.clone(), done.clone());
    let readers: Vec<_> = (0..2).map(|_| world.spawn("reader", move |_, cpu| read(cpu, base))).collect();
    let writer = world.spawn("writer", move |_, cpu| {
        for value in 1..=STORES {
            let number = value as usize % STORED;
            let count = value.div_ceil(STORED as u64);
            cpu.write_u64(base + page_of(number) * PAGE + COUNT, count).unwrap();
            for_writer[number].store(count, Ordering::Relaxed);
        }
    });
    let counts = world.spawn("counts", move |_, cpu| {
        for look in 0..STORES as usize {
            let number = look % STORED;
            read_count(cpu, base + page_of(number) * PAGE + COUNT, &for_reader[number]);
        }
    });
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    writer.join().unwrap();
    counts.join().unwrap();
    let cpu = Keep::new(world.space.cpu());
    for number in 0..STORED {
        let last = done[number].load(Ordering::Relaxed);
        assert_eq!(cpu.read_u64(base + page_of(number) * PAGE + COUNT), Ok(last), "a store was lost");
    }
    drop(cpu);
    assert!(world.manager().stats().evicted_pages > 0, "there is memory enough");
    world.space.unmap(base, PAGES * PAGE).unwrap();
}

#[test]
fn a_shared_file_larger_than_memory_has_the_right_bytes() {
    let files = Arc::new(Files::new(PAGES));
    check("reclaim, shared", 2, move || scenario(&files, Sharing::Shared));
}

#[test]
fn a_private_file_larger_than_memory_has_the_right_bytes() {
    let files = Arc::new(Files::new(PAGES));
    check("reclaim, private", 2, move || scenario(&files, Sharing::Private));
}
