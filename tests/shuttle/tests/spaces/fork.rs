//! Stores of parent and child against fork: neither sees the other's after it, and the child has what the
//! parent had.

use elbowroom::{Prot, Sharing, Soft, Space};
use elbowroom_shuttle::{Keep, PAGE, World, check};
use elbowroom_sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const FRAMES: u64 = 32;
const PAGES: usize = 2;
const STORES: u64 = 6;
const WRITERS: usize = 3;
const FORKS: u64 = 4;

/// Above what the parent stores.
const CHILD: u64 = 1 << 32;

fn scenario() {
    let world = World::new(FRAMES);
    let base = world.at(0);
    let shared = world.at(100);
    world.map(base, PAGES, Prot::READ | Prot::WRITE, Sharing::Private);
    world.map(shared, 1, Prot::READ | Prot::WRITE, Sharing::Shared);
    // The number of the last store to each page that was made for certain.
    let stored: Arc<[AtomicU64; PAGES]> = Arc::default();
    let notes = stored.clone();
    let writer = world.spawn("parent", move |_, cpu| {
        for value in 1..=STORES {
            for page in 0..PAGES {
                let addr = base + page * PAGE;
                cpu.write_u64(addr, value).unwrap();
                notes[page].store(value, Ordering::Relaxed);
                assert_eq!(cpu.read_u64(addr), Ok(value), "the parent reads what it has stored");
            }
            cpu.write_u64(shared, value).unwrap();
        }
    });
    let cpu = Keep::new(world.space.cpu());
    let before: Vec<u64> = stored.iter().map(|value| value.load(Ordering::Relaxed)).collect();
    let child = Arc::new(Keep::new(world.space.fork().unwrap()));
    let after: Vec<u64> = stored.iter().map(|value| value.load(Ordering::Relaxed)).collect();
    let offset = child.base().wrapping_sub(world.space.base());
    let inherited: Vec<u64> = (0..PAGES)
        .map(|page| {
            let value = cpu.read_u64((base + page * PAGE).wrapping_add(offset)).unwrap();
            // The store under way may be in it.
            assert!((before[page]..=after[page] + 1).contains(&value), "{value} of {before:?}..{after:?}");
            value
        })
        .collect();
    let writer_in_child = {
        let (there, child) = (base.wrapping_add(offset), child.clone());
        let grandchild_base = there;
        world.spawn("child", move |_, cpu| {
            for (page, &inherited) in inherited.iter().enumerate() {
                let addr = grandchild_base + page * PAGE;
                assert_eq!(cpu.read_u64(addr), Ok(inherited), "a store of the parent is in the child");
                cpu.write_u64(addr, CHILD + page as u64).unwrap();
                assert_eq!(cpu.read_u64(addr), Ok(CHILD + page as u64));
            }
            assert!(cpu.read_u64(shared.wrapping_add(offset)).unwrap() <= STORES);
            drop(child);
        })
    };
    for page in 0..PAGES {
        assert!(cpu.read_u64(base + page * PAGE).unwrap() <= STORES, "a store of the child is in the parent");
    }
    writer.join().unwrap();
    writer_in_child.join().unwrap();
    for page in 0..PAGES {
        assert_eq!(cpu.read_u64(base + page * PAGE), Ok(STORES));
        assert_eq!(cpu.read_u64((base + page * PAGE).wrapping_add(offset)), Ok(CHILD + page as u64));
    }
    assert_eq!(cpu.read_u64(shared.wrapping_add(offset)), Ok(STORES), "shared memory is the same");
    drop(cpu);
}

/// Forks while several threads store to words of their own in the same pages, which they have from the fork
/// before: copying a page for one of them must not lose what the others store meanwhile.
fn crowd() {
    let world = World::new(FRAMES);
    let base = world.at(0);
    world.map(base, PAGES, Prot::READ | Prot::WRITE, Sharing::Private);
    let word = |page: usize, number: usize| page * PAGE + 8 * number;
    let cpu = Keep::new(world.space.cpu());
    let look = |space: &Space<Soft>| -> Vec<u64> {
        let there = base.wrapping_sub(world.space.base()).wrapping_add(space.base());
        let words = (0..PAGES).flat_map(|page| (0..WRITERS).map(move |number| word(page, number)));
        words.map(|word| cpu.read_u64(there.wrapping_add(word)).unwrap()).collect()
    };
    let mut children = Vec::new();
    for turn in 1..=FORKS {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                world.spawn("writer", move |_, cpu| {
                    for page in 0..PAGES {
                        let addr = base + word(page, number);
                        cpu.write_u64(addr, turn).unwrap();
                        assert_eq!(cpu.read_u64(addr), Ok(turn), "page {page}: a store was lost");
                    }
                })
            })
            .collect();
        let child = Keep::new(world.space.fork().unwrap());
        let words = look(&child);
        assert!(words.iter().all(|&word| word == turn || word + 1 == turn), "{words:?} in turn {turn}");
        children.push((child, words));
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(look(&world.space), [turn; PAGES * WRITERS], "a store was lost");
    }
    for (child, words) in &children {
        assert_eq!(look(child), *words, "a store of the parent is in the child");
    }
}

#[test]
fn threads_that_store_to_one_page_lose_nothing_to_forks() {
    check("fork, crowd", 1, crowd);
}

#[test]
fn parent_and_child_do_not_see_each_others_stores() {
    check("fork", 1, scenario);
}
