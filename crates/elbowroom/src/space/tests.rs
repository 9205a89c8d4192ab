//! The reverse maps of objects beside what the layouts of all spaces have.

use super::change::Pages;
use super::*;
use crate::config::PINNED_BOUND;
use crate::object::{ALL_PAGES, FileObject, MappedRange, Standing, Which};
use crate::{AccessError, Config, Manager, Prot, Sharing, Soft};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};

const SEEDS: Range<u64> = 0..4;
const STEPS: usize = 600;
const FILES: usize = 2;
/// Of a file.
const PAGES: usize = 32;
/// Where mappings are made, in pages: few, so that they meet and merge.
const PLACES: u64 = 96;
const MOST_SPACES: usize = 5;

fn manager() -> Manager<Soft> {
    Manager::<Soft>::start_on(Config::with_memory(16 << 20)).unwrap()
}

fn file(manager: &Manager<Soft>) -> (tempfile::NamedTempFile, Arc<FileObject>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len((PAGES * PAGE_SIZE) as u64).unwrap();
    let object = manager.open(file.path(), true).unwrap();
    (file, object)
}

fn request(place: Place, object: Option<Arc<FileObject>>, sharing: Sharing, pages: usize) -> MapRequest {
    MapRequest {
        place,
        len: pages * PAGE_SIZE,
        prot: Prot::READ.union(Prot::WRITE),
        may_write: true,
        sharing,
        object,
        offset: 0,
        populate: false,
        locked: false,
        no_reserve: false,
        group: None,
    }
}

fn sorted(mut mappings: Vec<MappedRange>) -> Vec<MappedRange> {
    mappings.sort_by_key(|mapping| mapping.range.start);
    mappings
}

/// All mappings of the object, by a look at every VMA of every space.
fn scan(spaces: &[Space<Soft>], object: &Arc<FileObject>) -> Vec<MappedRange> {
    let mut found = Vec::new();
    for space in spaces {
        let layout = space.mm.read();
        let vmas = space.mm.overlapping(&space.everything(), &layout);
        for vma in vmas {
            if vma.spec.object.as_ref().is_some_and(|o| Arc::ptr_eq(o, object)) {
                let private = vma.spec.is_private();
                let (range, first_page) = (vma.range.clone(), vma.first_page);
                found.push(MappedRange { range, first_page, private, standing: Standing::Mapped });
            }
        }
    }
    sorted(found)
}

/// One call of the mmap family, most of which may fail.
fn change(spaces: &mut Vec<Space<Soft>>, files: &[Arc<FileObject>], random: &mut fastrand::Rng) {
    let number = random.usize(..spaces.len());
    let space = &spaces[number];
    let at = |page: u64| space.base() + (1 << 30) + page as usize * PAGE_SIZE;
    let addr = at(random.u64(..PLACES));
    let pages = 1 + random.u64(..PAGES as u64 / 2) as usize;
    match random.u64(..12) {
        0..4 => {
            let object = random.u64(..4);
            let object = files.get(object as usize).cloned();
            let sharing = if random.u64(..2) > 0 { Sharing::Private } else { Sharing::Shared };
            let offset = random.u64(..PAGES as u64) * PAGE_SIZE as u64;
            let _ = space.map(MapRequest { offset, ..request(Place::Fixed(addr), object, sharing, pages) });
        }
        4..6 => _ = space.unmap(addr, pages * PAGE_SIZE),
        6 => _ = space.protect(addr, pages * PAGE_SIZE, Prot::READ),
        7 => _ = space.protect(addr, pages * PAGE_SIZE, Prot::READ.union(Prot::WRITE)),
        8..10 => {
            let to = at(random.u64(..PLACES));
            let new = 1 + random.u64(..PAGES as u64) as usize;
            let how = match random.u64(..5) {
                0 => Remap::InPlace,
                1 => Remap::MayMove,
                2 => Remap::FixedDontUnmap(to),
                _ => Remap::Fixed(to),
            };
            // None: a second mapping of the same pages.
            let old = random.u64(..8).min(1) as usize * pages;
            let new = if random.u64(..2) > 0 { old.max(1) } else { new };
            let _ = space.remap(addr, old * PAGE_SIZE, new * PAGE_SIZE, how);
        }
        10 => {
            let cpu = space.cpu();
            (0..pages).for_each(|page| _ = cpu.write_u64(addr + page * PAGE_SIZE, 1));
        }
        _ if spaces.len() < MOST_SPACES => {
            let child = space.fork().unwrap();
            spaces.push(child);
        }
        _ => _ = spaces.swap_remove(number),
    }
}

#[test]
fn the_reverse_map_has_what_a_scan_finds() {
    for seed in SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        let manager = manager();
        let files = [(); FILES].map(|()| file(&manager));
        let objects = files.each_ref().map(|(_, object)| object.clone());
        let mut spaces = vec![manager.create_space().unwrap()];
        let mut most = 0;
        for step in 0..STEPS {
            if spaces.is_empty() {
                spaces.push(manager.create_space().unwrap());
            }
            change(&mut spaces, &objects, &mut random);
            let memory = spaces.iter().flat_map(|space| space.mm.objects());
            for object in memory.chain(objects.iter().cloned()) {
                let listed = sorted(object.rmap.overlapping(&ALL_PAGES, Which::All));
                most = most.max(listed.len());
                assert_eq!(listed, scan(&spaces, &object), "seed {seed}, step {step}");
            }
        }
        assert!(most > 10, "seed {seed}: there is too little to be wrong: {most}");
        drop(spaces);
        for object in objects {
            assert_eq!(object.rmap.overlapping(&ALL_PAGES, Which::All), [], "seed {seed}");
        }
    }
}

#[test]
fn a_mapping_is_listed_while_it_is_being_changed() {
    let manager = manager();
    let (_file, object) = file(&manager);
    let space = manager.create_space().unwrap();
    let map = request(Place::Anywhere, Some(object.clone()), Sharing::Private, 8);
    let addr = space.map(map).unwrap();
    let listed = || {
        let all = sorted(object.rmap.overlapping(&ALL_PAGES, Which::Private)).into_iter();
        all.map(|m| (m.first_page, m.range.len() / PAGE_SIZE, m.standing)).collect::<Vec<_>>()
    };
    let range = addr + 2 * PAGE_SIZE..addr + 5 * PAGE_SIZE;
    let change = space.begin(range, |_| Ok(Pages::Leave)).unwrap();
    let apart = [(0, 2, Standing::Mapped), (2, 3, Standing::InChange), (5, 3, Standing::Mapped)];
    assert_eq!(listed(), apart);
    space.undo(change);
    assert_eq!(listed(), [(0, 8, Standing::Mapped)]);
}

/// A space with a private mapping of the file, each page of which it has a copy of.
fn copies(manager: &Manager<Soft>, object: &Arc<FileObject>) -> (Arc<Space<Soft>>, usize) {
    let space = manager.create_space().unwrap();
    let map = request(Place::Anywhere, Some(object.clone()), Sharing::Private, PAGES);
    let addr = space.map(map).unwrap();
    let cpu = space.cpu();
    (0..PAGES).for_each(|page| cpu.write_u64(addr + page * PAGE_SIZE, 1).unwrap());
    (Arc::new(space), addr)
}

/// What a truncation looks for is at the mappings of its file only.
#[test]
fn a_truncation_waits_for_no_change_of_other_mappings() {
    let manager = manager();
    let (file, object) = file(&manager);
    let (space, addr) = copies(&manager, &object);
    let other = space.map(request(Place::Anywhere, None, Sharing::Private, 1)).unwrap();
    let change = space.begin(other..other + PAGE_SIZE, |_| Ok(Pages::Stay)).unwrap();
    let began = Instant::now();
    file.as_file().set_len(PAGE_SIZE as u64).unwrap();
    manager.resized(&object, PAGE_SIZE as u64..u64::MAX);
    assert!(began.elapsed() < PINNED_BOUND, "{:?}", began.elapsed());
    space.undo(change);
    let cpu = space.cpu();
    assert_eq!(cpu.read_u64(addr), Ok(1));
    assert_eq!(cpu.read_u64(addr + PAGE_SIZE), Err(AccessError::Bus(addr + PAGE_SIZE)));
}

/// Its copies could be on their way to somewhere else.
#[test]
fn a_truncation_waits_for_a_change_of_a_mapping_with_copies() {
    const LONG: Duration = Duration::from_millis(300);
    let manager = manager();
    let (file, object) = file(&manager);
    let (space, addr) = copies(&manager, &object);
    let change = space.begin(addr..addr + PAGES * PAGE_SIZE, |_| Ok(Pages::Leave)).unwrap();
    file.as_file().set_len(0).unwrap();
    let for_changer = space.clone();
    let changer = thread::spawn("changer", move || {
        thread::sleep(LONG);
        for_changer.undo(change);
    });
    let began = Instant::now();
    manager.resized(&object, 0..u64::MAX);
    assert!(began.elapsed() > LONG / 2, "{:?}", began.elapsed());
    changer.unwrap().join().unwrap();
    file.as_file().set_len((PAGES * PAGE_SIZE) as u64).unwrap();
    manager.resized(&object, 0..0);
    let cpu = space.cpu();
    (0..PAGES).for_each(|page| assert_eq!(cpu.read_u64(addr + page * PAGE_SIZE), Ok(0), "page {page}"));
}
