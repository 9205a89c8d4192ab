//! Anonymous memory that goes out and comes back, against stores, mremap, fork, and advice that drops it: no
//! store is lost, and nothing comes back that was dropped.

use elbowroom::{AccessError, Advice, Cpu, Errno, GroupId, Limits, Prot, Remap, Sharing, Soft, Space};
use elbowroom_shuttle::{Keep, PAGE, World, check, encode};
use elbowroom_sync::Arc;
use shuttle::rand::{Rng, thread_rng};
use std::sync::atomic::{AtomicU64, Ordering};

const FRAMES: u64 = 24;
const PAGES: usize = 32;
const WRITERS: usize = 2;
const STORES: usize = 24;
const TURNS: usize = 3;

/// Never stored to, but for the start; then a word for each writer.
const STAMP: usize = 8;
const COUNTS: usize = 16;

/// Pages go to the pool; or, as if nothing compressed, to the swap file; or first to a pool that is too
/// small, and then to the file. Of two handlers each gives the other what it read of the file, or there
/// is one.
fn world() -> World {
    let [to_file, by_pool, share] = [(); 3].map(|()| thread_rng().gen_ratio(1, 2));
    World::configured(FRAMES, |config| {
        config.swap = 1 << 20;
        if to_file {
            config.swap_dir = Some(std::env::temp_dir());
            config.ablation.tuning.pool_percent = if by_pool { 20 } else { 0 };
        }
        if share {
            config.handlers = 2;
            config.ablation.tuning.overload_percent = 0;
            config.ablation.tuning.shared_reads = 1;
        }
    })
}

/// Maps pages that have their stamps.
fn stamped(world: &World, base: usize) {
    world.map(base, PAGES, Prot::READ | Prot::WRITE, Sharing::Private);
    let cpu = Keep::new(world.space.cpu());
    for page in 0..PAGES {
        cpu.write_u64(base + page * PAGE + STAMP, encode(1, page, STAMP)).unwrap();
    }
}

/// The last store of each writer to each page.
type Stored = [[AtomicU64; WRITERS]; PAGES];

/// Stores to pages at random, in one of two places, and reads what it has stored.
fn write(cpu: &Cpu, places: [usize; 2], writer: usize, stored: &Stored) {
    for turn in 0..STORES {
        let page = thread_rng().gen_range(0..PAGES);
        let last = &stored[page][writer];
        for place in places {
            let at = place + page * PAGE;
            match cpu.read_u64(at + COUNTS + 8 * writer) {
                Ok(seen) => assert_eq!(seen, last.load(Ordering::Relaxed), "page {page}"),
                Err(AccessError::NotMapped(_)) => continue,
                Err(error) => panic!("{error}"),
            }
            match cpu.write_u64(at + COUNTS + 8 * writer, turn as u64 + 1) {
                Ok(()) => last.store(turn as u64 + 1, Ordering::Relaxed),
                Err(AccessError::NotMapped(_)) => continue,
                Err(error) => panic!("{error}"),
            }
            break;
        }
    }
}

/// Checks all pages of a space whose base is `offset` away.
fn all_is_there(cpu: &Cpu, base: usize, stored: Option<&Stored>) {
    for page in 0..PAGES {
        let at = base + page * PAGE;
        assert_eq!(cpu.read_u64(at + STAMP), Ok(encode(1, page, STAMP)), "page {page}");
        for (writer, last) in stored.iter().flat_map(|stored| stored[page].iter().enumerate()) {
            let last = last.load(Ordering::Relaxed);
            assert_eq!(cpu.read_u64(at + COUNTS + 8 * writer), Ok(last), "page {page}, writer {writer}");
        }
    }
}

/// Runs the writers beside what `meanwhile` does, and looks whether all is there where `meanwhile` says.
fn beside_writers(places: [usize; 2], world: &World, meanwhile: impl FnOnce(&Cpu) -> usize) {
    let stored: Arc<Stored> = Arc::default();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let stored = stored.clone();
            world.spawn("writer", move |_, cpu| write(cpu, places, writer, &stored))
        })
        .collect();
    let cpu = Keep::new(world.space.cpu());
    let base = meanwhile(&cpu);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    all_is_there(&cpu, base, Some(&stored));
    drop(cpu);
    assert!(world.manager().stats().pswpin > 0, "there is memory enough");
    world.space.unmap(base, PAGES * PAGE).unwrap();
    let stats = world.manager().stats();
    assert_eq!((stats.swap_used_bytes, stats.swap_pool_bytes, stats.swap_errors), (0, 0, 0));
}

fn moves() {
    let world = world();
    // Runs of pages are split where their parts would not be aligned.
    let places = [world.at(0), world.at(if thread_rng().gen_ratio(1, 2) { 1024 } else { 1026 })];
    stamped(&world, places[0]);
    beside_writers(places, &world, |_| {
        for turn in 0..TURNS {
            let (from, to) = (places[turn % 2], places[(turn + 1) % 2]);
            assert_eq!(world.space.remap(from, PAGES * PAGE, PAGES * PAGE, Remap::Fixed(to)), Ok(to));
        }
        places[TURNS % 2]
    });
}

fn forks() {
    let world = world();
    let base = world.at(0);
    stamped(&world, base);
    beside_writers([base; 2], &world, |cpu| {
        for _ in 0..TURNS {
            let child = match world.space.fork() {
                Ok(child) => Keep::new(child),
                Err(error) => {
                    assert_eq!(error, Errno::AGAIN);
                    continue;
                }
            };
            let there = base.wrapping_sub(world.space.base()).wrapping_add(child.base());
            // Its own stores, to pages that both have, in memory or out.
            for page in (0..PAGES).step_by(5) {
                cpu.write_u64(there + page * PAGE + COUNTS, 1000).unwrap();
            }
            all_is_there(cpu, there, None);
            for page in (0..PAGES).step_by(5) {
                assert_eq!(cpu.read_u64(there + page * PAGE + COUNTS), Ok(1000));
            }
        }
        base
    });
}

/// Drops pages, which then begin as zeros: whatever was in them, in memory or out, is gone.
fn drop_pages(space: &Space<Soft>, cpu: &Cpu, base: usize) {
    for turn in 1..=TURNS as u64 {
        for first in [0, PAGES / 2] {
            let (at, pages) = (base + first * PAGE, PAGES / 2);
            space.advise(at, pages * PAGE, Advice::DontNeed).unwrap();
            for page in 0..pages {
                let at = at + page * PAGE + COUNTS;
                assert_eq!(cpu.read_u64(at), Ok(0), "page {page} in turn {turn}");
                cpu.write_u64(at, turn).unwrap();
            }
        }
        for page in 0..PAGES {
            assert_eq!(cpu.read_u64(base + page * PAGE + COUNTS), Ok(turn), "page {page}");
        }
    }
}

fn drops() {
    let world = world();
    let bases = [world.at(0), world.at(1024)];
    let threads = bases.map(|base| {
        stamped(&world, base);
        world.spawn("dropper", move |space, cpu| drop_pages(space, cpu, base))
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(world.manager().stats().pswpin > 0, "there is memory enough");
    bases.into_iter().for_each(|base| world.space.unmap(base, PAGES * PAGE).unwrap());
    let stats = world.manager().stats();
    assert_eq!((stats.swap_used_bytes, stats.swap_pool_bytes, stats.swap_errors), (0, 0, 0));
}

/// Stores words to pages that are zeros else, and zeros in their place.
fn write_and_clear(cpu: &Cpu, base: usize, writer: usize, stored: &Stored) {
    for turn in 0..STORES {
        let page = thread_rng().gen_range(0..PAGES);
        let (at, last) = (base + page * PAGE + COUNTS + 8 * writer, &stored[page][writer]);
        let seen = last.load(Ordering::Relaxed);
        assert_eq!(cpu.read_u64(at), Ok(seen), "page {page}");
        let word = if seen == 0 { turn as u64 + 1 } else { 0 };
        cpu.write_u64(at, word).unwrap();
        last.store(word, Ordering::Relaxed);
    }
}

/// Pages of zeros become nothing, and are stored to at that moment, while spaces come that have them, too.
fn zeros() {
    let world = world();
    let base = world.at(0);
    world.map(base, PAGES, Prot::READ | Prot::WRITE, Sharing::Private);
    let stored: Arc<Stored> = Arc::default();
    let writer = |writer| {
        let stored = stored.clone();
        world.spawn("writer", move |_, cpu| write_and_clear(cpu, base, writer, &stored))
    };
    let writers: Vec<_> = (0..WRITERS).map(writer).collect();
    let cpu = Keep::new(world.space.cpu());
    for turn in 0..TURNS as u64 {
        world.space.advise(base, PAGES * PAGE, Advice::PageOut).unwrap();
        let Ok(child) = world.space.fork() else { continue };
        let child = Keep::new(child);
        let there = base.wrapping_sub(world.space.base()).wrapping_add(child.base());
        for page in (0..PAGES).step_by(5) {
            cpu.write_u64(there + page * PAGE, turn + 1).unwrap();
        }
        child.advise(there, PAGES * PAGE, Advice::PageOut).unwrap();
        for page in 0..PAGES {
            let expected = if page % 5 == 0 { turn + 1 } else { 0 };
            assert_eq!(cpu.read_u64(there + page * PAGE), Ok(expected), "page {page} of a child");
        }
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    for (page, words) in stored.iter().enumerate() {
        for (writer, last) in words.iter().enumerate() {
            let at = base + page * PAGE + COUNTS + 8 * writer;
            assert_eq!(cpu.read_u64(at), Ok(last.load(Ordering::Relaxed)), "page {page}, writer {writer}");
        }
    }
    drop(cpu);
    world.space.unmap(base, PAGES * PAGE).unwrap();
    let stats = world.manager().stats();
    assert_eq!((stats.swap_used_bytes, stats.swap_pool_bytes, stats.swap_errors), (0, 0, 0));
}

/// The limits of a group, for its memory and its swap, change while its pages are stored to and put out;
/// then it is removed while pages of it are in swap. When the manager ends, it checks that each group's swap
/// is what the slots say.
fn limits() {
    let world = world();
    let (base, groups) = (world.at(0), world.manager().groups());
    let random = || {
        // All pages have room, also where the pool has many frames.
        let [max, swap_max] = [14..18, 26..36].map(|pages| thread_rng().gen_range(pages) * PAGE as u64);
        Limits { max, swap_max, ..Limits::default() }
    };
    let above = groups.create(GroupId::ROOT, &Limits::default()).unwrap();
    let group = groups.create(above, &random()).unwrap();
    world.map_of(base, PAGES, group);
    let cpu = Keep::new(world.space.cpu());
    for page in 0..PAGES {
        cpu.write_u64(base + page * PAGE + STAMP, encode(1, page, STAMP)).unwrap();
    }
    drop(cpu);
    beside_writers([base; 2], &world, |_| {
        for _ in 0..TURNS {
            let (before, limits) = (groups.stats(group).unwrap(), random());
            // Pages that are being read cannot be reclaimed, perhaps.
            let _ = groups.set_limits(group, &limits);
            world.space.advise(base, PAGES * PAGE / 2, Advice::PageOut).unwrap();
            // A lower limit brings nothing in, and a thread may have looked at the limit before it changed.
            let most = [before.swap.bytes, before.limits.swap_max, limits.swap_max].into_iter().max();
            let now = groups.stats(group).unwrap().swap.bytes;
            assert!(Some(now) <= most, "{now} of {limits:?}, {before:?} before");
        }
        groups.remove(group).unwrap();
        base
    });
    assert_eq!(groups.stats(above).unwrap().swap.bytes, 0);
}

#[test]
fn limits_change_and_no_store_is_lost() {
    check("swap, limits", 4, limits);
}

#[test]
fn zeros_become_nothing_and_no_store_is_lost() {
    check("swap, zeros", 6, zeros);
}

#[test]
fn what_is_out_moves_with_the_rest() {
    check("swap, remap", 4, moves);
}

#[test]
fn parent_and_child_have_what_was_out() {
    check("swap, fork", 6, forks);
}

#[test]
fn what_was_dropped_does_not_come_back() {
    check("swap, drop", 4, drops);
}
