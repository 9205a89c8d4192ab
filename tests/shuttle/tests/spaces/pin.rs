//! Pins against unmapping: the bytes stay the pinned page's until the pin goes, and unmapping waits for that,
//! or says that it is busy.

use elbowroom::{AccessError, Cpu, Errno, Intent, Prot, Sharing};
use elbowroom_shuttle::{Keep, PAGE, World, check, encode};
use elbowroom_sync::atomic::{AtomicU8, Ordering};
use elbowroom_sync::{Arc, thread};
use std::sync::atomic::AtomicU64;

/// Half as many are the pins there may be, and each processor keeps some in stock.
const FRAMES: u64 = 256;
const TURNS: u64 = 3;
const PINS: usize = 6;

/// What a pinned word is, looked at byte by byte: others may run in between.
fn bytes(pin: &[AtomicU8]) -> [u8; 8] {
    std::array::from_fn(|i| pin[i].load(Ordering::Acquire))
}

/// Pins the page for a while, again and again. Under the pin, the page is one generation's.
fn pin(cpu: &Cpu, addr: usize, unmapped: &AtomicU64) {
    for _ in 0..PINS {
        let pinned = match cpu.pin(addr, 8, Intent::Read) {
            Ok(pinned) => pinned,
            Err(AccessError::NotMapped(_)) => continue,
            Err(error) => panic!("{error}"),
        };
        let before = unmapped.load(Ordering::Relaxed);
        let first = bytes(&pinned);
        thread::yield_now();
        let second = bytes(&pinned);
        let after = unmapped.load(Ordering::Relaxed);
        assert_eq!(before, after, "a page was unmapped under a pin");
        // Of the generation that had not ended when the pin was there; the mapper's store may come at any
        // moment.
        let right = encode(before + 1, 0, 0).to_ne_bytes();
        for i in 0..8 {
            assert!(first[i] == second[i] || first[i] == 0, "{first:x?} became {second:x?}");
            assert!(second[i] == right[i] || second[i] == 0, "{second:x?} in generation {}", before + 1);
        }
    }
}

fn scenario() {
    let world = World::new(FRAMES);
    let addr = world.at(0);
    // How many generations are unmapped for certain.
    let unmapped = Arc::new(AtomicU64::new(0));
    let pinners: Vec<_> = (0..2)
        .map(|_| {
            let unmapped = unmapped.clone();
            world.spawn("pinner", move |_, cpu| pin(cpu, addr, &unmapped))
        })
        .collect();
    let cpu = Keep::new(world.space.cpu());
    for generation in 1..=TURNS {
        world.map(addr, 1, Prot::READ | Prot::WRITE, Sharing::Private);
        cpu.write_u64(addr, encode(generation, 0, 0)).unwrap();
        while world.space.unmap(addr, PAGE) == Err(Errno::BUSY) {
            // It is there as before.
            assert_eq!(cpu.read_u64(addr), Ok(encode(generation, 0, 0)));
        }
        unmapped.store(generation, Ordering::Relaxed);
        // The frame may be somebody else's now.
        let other = world.at(8);
        world.map(other, 1, Prot::READ | Prot::WRITE, Sharing::Private);
        cpu.write_u64(other, !0).unwrap();
        world.space.unmap(other, PAGE).unwrap();
    }
    pinners.into_iter().for_each(|pinner| pinner.join().unwrap());
}

/// A pin that is kept: unmapping gives up after its bound, and changes nothing.
fn kept() {
    let world = World::new(FRAMES);
    let addr = world.at(0);
    world.map(addr, 2, Prot::READ | Prot::WRITE, Sharing::Private);
    let cpu = Keep::new(world.space.cpu());
    for page in 0..2 {
        cpu.write_u64(addr + page * PAGE, encode(1, page, 0)).unwrap();
    }
    let pinned = Keep::new(cpu.pin(addr + PAGE, 8, Intent::Write).unwrap());
    let unmapper = world.spawn("unmapper", move |space, cpu| {
        assert_eq!(space.unmap(addr, 2 * PAGE), Err(Errno::BUSY));
        for page in 0..2 {
            assert_eq!(cpu.read_u64(addr + page * PAGE), Ok(encode(1, page, 0)), "nothing is changed");
        }
    });
    unmapper.join().unwrap();
    assert_eq!(bytes(&pinned), encode(1, 1, 0).to_ne_bytes());
    drop(pinned);
    world.space.unmap(addr, 2 * PAGE).unwrap();
}

#[test]
fn a_pinned_page_is_not_unmapped() {
    check("pin", 1, scenario);
}

#[test]
fn a_page_that_stays_pinned_is_busy() {
    check("pin, kept", 100, kept);
}
