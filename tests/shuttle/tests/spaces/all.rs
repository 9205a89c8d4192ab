//! Everything at once: faults, unmap, map, protect, remap, fork and reclaim on the same few places, with less
//! memory than the file has.
//!
//! Every place has the same file from its first page on, if anything. So whatever the verbs do to each other,
//! a load gives the bytes of the file's page or, in a private mapping, what was stored to just that word; or
//! it fails.

use elbowroom::{AccessError, Cpu, Errno, FileObject, MapRequest, Place, Prot, Remap, Sharing, Soft, Space};
use elbowroom_shuttle::{Files, Keep, PAGE, World, check, encode};
use elbowroom_sync::Arc;
use shuttle::rand::{Rng, thread_rng};

const FRAMES: u64 = 32;
const PAGES: usize = 16;
const PLACES: usize = 3;
const FILE_PAGES: usize = 48;
const VERBS: usize = 4;
const ACCESSES: usize = 12;

const STAMP: usize = 8;

/// Stored to in private mappings, always the same word.
const STORED: usize = 24;

fn request(addr: usize, file: &Arc<FileObject>) -> MapRequest {
    // A part of the file may be private.
    let private = thread_rng().gen_ratio(1, 2);
    MapRequest {
        place: Place::Fixed(addr),
        len: PAGES * PAGE,
        prot: if private { Prot::READ | Prot::WRITE } else { Prot::READ },
        may_write: true,
        sharing: if private { Sharing::Private } else { Sharing::Shared },
        object: Some(file.clone()),
        offset: 0,
        populate: false,
        locked: false,
        no_reserve: false,
        group: None,
    }
}

/// What a verb may say when others change the same mappings.
fn may_fail<T: std::fmt::Debug>(result: Result<T, Errno>, errors: &[Errno]) {
    if let Err(error) = result {
        assert!(errors.contains(&error), "{error:?}");
    }
}

/// One change of a part of the space.
fn change(space: &Space<Soft>, places: [usize; PLACES], file: &Arc<FileObject>) {
    let place = places[thread_rng().gen_range(0..PLACES)];
    let first = thread_rng().gen_range(0..PAGES);
    let pages = thread_rng().gen_range(1..=PAGES - first);
    let (addr, len) = (place + first * PAGE, pages * PAGE);
    match thread_rng().gen_range(0..5) {
        0 => space.unmap(addr, len).unwrap(),
        1 => assert_eq!(space.map(request(place, file)), Ok(place)),
        2 => may_fail(space.protect(addr, len, Prot::empty()), &[Errno::NOMEM]),
        3 => may_fail(space.protect(addr, len, Prot::READ), &[Errno::NOMEM]),
        _ => {
            let to = places[thread_rng().gen_range(0..PLACES)] + first * PAGE;
            let moved = space.remap(addr, len, len, Remap::Fixed(to));
            may_fail(moved, &[Errno::FAULT, Errno::INVAL]);
        }
    }
}

/// One access to any place of a space that is `offset` from the first.
fn access(cpu: &Cpu, places: [usize; PLACES], offset: usize) {
    let place = places[thread_rng().gen_range(0..PLACES)].wrapping_add(offset);
    let page = thread_rng().gen_range(0..PAGES);
    let addr = place + page * PAGE;
    let done = match thread_rng().gen_range(0..3) {
        0 => cpu.write_u64(addr + STORED, encode(1, page, STORED)),
        1 => cpu.read_u64(addr + STORED).map(|word| {
            let right = [encode(0, page, STORED), encode(1, page, STORED)];
            assert!(right.contains(&word), "page {page}: {word:#x}");
        }),
        _ => cpu.read_u64(addr + STAMP).map(|word| assert_eq!(word, encode(0, page, STAMP), "page {page}")),
    };
    match done {
        Ok(()) | Err(AccessError::NotMapped(_) | AccessError::Denied(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

fn scenario(files: &Files) {
    let world = World::new(FRAMES);
    let file = world.open(files, false);
    let places: [usize; PLACES] = std::array::from_fn(|place| world.at(place * 512));
    for place in places {
        world.space.map(request(place, &file)).unwrap();
    }
    let accessors: Vec<_> = (0..2)
        .map(|_| world.spawn("accessor", move |_, cpu| (0..ACCESSES).for_each(|_| access(cpu, places, 0))))
        .collect();
    let changers: Vec<_> = (0..2)
        .map(|_| {
            let file = file.clone();
            world.spawn("changer", move |space, _| (0..VERBS).for_each(|_| change(space, places, &file)))
        })
        .collect();
    {
        let child = Keep::new(world.space.fork().unwrap());
        let cpu = Keep::new(child.cpu());
        let offset = child.base().wrapping_sub(world.space.base());
        (0..ACCESSES).for_each(|_| access(&cpu, places, offset));
    }
    // The rest of the file makes memory short.
    let cpu = Keep::new(world.space.cpu());
    let rest = world.at(4096);
    world.map_file(rest, FILE_PAGES, Prot::READ, Sharing::Shared, &file);
    for page in 0..FILE_PAGES {
        assert_eq!(cpu.read_u64(rest + page * PAGE + STAMP), Ok(encode(0, page, STAMP)), "page {page}");
    }
    accessors.into_iter().chain(changers).for_each(|thread| thread.join().unwrap());
    world.space.unmap(world.at(0), 8192 * PAGE).unwrap();
    assert_eq!(cpu.read_u64(places[0]), Err(AccessError::NotMapped(places[0])));
}

#[test]
fn all_verbs_at_once_show_the_right_bytes() {
    let files = Arc::new(Files::new(FILE_PAGES));
    check("all", 1, move || scenario(&files));
}
