//! Truncation of a file that is mapped privately, while its mappings are cut, moved, made and forked: no copy
//! of what was cut off is left anywhere.

use elbowroom::{AccessError, Cpu, Errno, FileObject, Prot, Remap, Sharing, Soft, Space};
use elbowroom_shuttle::{Files, Keep, PAGE, World, check, encode};
use elbowroom_sync::Arc;
use shuttle::rand::{Rng, thread_rng};

const FRAMES: u64 = 48;
const PAGES: usize = 4;
const PLACES: usize = 2;
const CHANGES: usize = 3;

/// Stored to the copies before the file is cut.
const STAMP: usize = 8;
/// Stored to whatever is there meanwhile.
const OTHER: usize = 16;

fn may_fail<T: std::fmt::Debug>(result: Result<T, Errno>) {
    if let Err(error) = result {
        assert!([Errno::FAULT, Errno::INVAL, Errno::NOMEM].contains(&error), "{error:?}");
    }
}

/// Cuts a mapping in two or moves a part of one, anywhere.
fn change(space: &Space<Soft>, places: [usize; PLACES]) {
    let place = || places[thread_rng().gen_range(0..PLACES)];
    let (from, to) = (place(), place());
    let first = thread_rng().gen_range(0..PAGES);
    let pages = thread_rng().gen_range(1..=PAGES - first);
    let (addr, len) = (from + first * PAGE, pages * PAGE);
    match thread_rng().gen_range(0..4) {
        0 => space.unmap(addr, PAGE).unwrap(),
        1 => may_fail(space.protect(addr, len, Prot::READ)),
        _ => may_fail(space.remap(addr, len, len, Remap::Fixed(to + first * PAGE))),
    }
}

/// Stores anywhere: makes copies of pages that are in the file.
fn store(cpu: &Cpu, places: [usize; PLACES]) {
    for place in places {
        let page = thread_rng().gen_range(0..PAGES);
        match cpu.write_u64(place + page * PAGE + OTHER, 1) {
            Ok(()) | Err(AccessError::NotMapped(_) | AccessError::Denied(_) | AccessError::Bus(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Checks that pages of what was cut off are zeros now, wherever they are mapped.
fn look(cpu: &Cpu, places: [usize; PLACES], offset: usize) {
    for place in places {
        for page in 1..PAGES {
            match cpu.read_u64(place.wrapping_add(offset) + page * PAGE + STAMP) {
                Ok(word) => assert_eq!(word, 0, "page {page} is from before the truncation"),
                Err(AccessError::NotMapped(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A world in which the first place has the file, with copies of all its pages.
fn world(files: &Files) -> (World, Arc<FileObject>, [usize; PLACES]) {
    files.resize(PAGES);
    let world = World::new(FRAMES);
    let file = world.open(files, true);
    let places: [usize; PLACES] = std::array::from_fn(|place| world.at(place * 1024));
    world.map_file(places[0], PAGES, Prot::READ | Prot::WRITE, Sharing::Private, &file);
    let cpu = Keep::new(world.space.cpu());
    for page in 0..PAGES {
        cpu.write_u64(places[0] + page * PAGE + STAMP, encode(1, page, STAMP)).unwrap();
    }
    drop(cpu);
    (world, file, places)
}

/// Cuts the file to one page, and lets it grow again.
fn truncate(world: &World, files: &Files, file: &Arc<FileObject>) {
    for pages in [1, PAGES] {
        files.resize(pages);
        world.manager().resized(file, (PAGE as u64)..u64::MAX);
    }
}

fn beside_changes(files: &Files) {
    let (world, file, places) = world(files);
    let changer = world.spawn("changer", move |space, _| (0..CHANGES).for_each(|_| change(space, places)));
    let storer = world.spawn("storer", move |_, cpu| store(cpu, places));
    let mapper = {
        let (file, addr) = (file.clone(), world.at(2048));
        world.spawn("mapper", move |space, cpu| {
            // Elsewhere, so that nothing is replaced.
            let request = elbowroom_shuttle::request(addr, PAGES, Sharing::Private, &file);
            assert_eq!(space.map(request), Ok(addr));
            store(cpu, [addr; PLACES]);
            space.unmap(addr, PAGES * PAGE).unwrap();
        })
    };
    truncate(&world, files, &file);
    [changer, storer, mapper].into_iter().for_each(|thread| thread.join().unwrap());
    look(&Keep::new(world.space.cpu()), places, 0);
}

/// The child gets the copies, and its parent drops them.
fn beside_fork(files: &Files) {
    let (world, file, places) = world(files);
    let (send, child) = std::sync::mpsc::channel();
    let forker = world.spawn("forker", move |space, _| {
        let forked = Keep::new(space.fork().unwrap());
        space.unmap(places[0], PAGES * PAGE).unwrap();
        send.send(forked).unwrap();
    });
    truncate(&world, files, &file);
    forker.join().unwrap();
    let child = child.try_recv().unwrap();
    let offset = child.base().wrapping_sub(world.space.base());
    look(&Keep::new(child.cpu()), places, offset);
}

#[test]
fn no_copy_outlives_a_truncation_beside_changes() {
    let files = Arc::new(Files::new(PAGES));
    check("truncate", 1, move || beside_changes(&files));
}

#[test]
fn no_copy_outlives_a_truncation_beside_a_fork() {
    let files = Arc::new(Files::new(PAGES));
    check("truncate, fork", 2, move || beside_fork(&files));
}
