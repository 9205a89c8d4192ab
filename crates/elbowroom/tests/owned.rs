//! Mappings that are values: they end when they are dropped, and keep to their own bytes.

// The name that the manager has in the workspace.
extern crate elbowroom_manager as elbowroom;

use elbowroom::{
    AccessError, Advice, Config, Errno, Host, Manager, MapRequest, Mapping, Place, Platform, Prot, Sharing,
    Soft, Space,
};
use std::io::Write;
use std::sync::Arc;

const PAGE: usize = 4096;

fn soft() -> (Manager<Soft>, Arc<Space<Soft>>) {
    let manager = Manager::<Soft>::start_on(Config::with_memory(16 << 20)).unwrap();
    let space = Arc::new(manager.create_space().unwrap());
    (manager, space)
}

fn areas<P: Platform>(mapping: &Mapping<P>) -> usize {
    mapping.space().areas(mapping.range()).len()
}

#[test]
fn a_dropped_mapping_is_unmapped_and_keeps_its_space() {
    let (_manager, space) = soft();
    let cpu = space.cpu();
    let mapping = Mapping::new(&space, MapRequest::memory(3 * PAGE - 5)).unwrap();
    drop(space);
    assert_eq!((mapping.len(), mapping.range().len(), areas(&mapping)), (3 * PAGE - 5, 3 * PAGE, 1));
    mapping.write(&cpu, 2 * PAGE, b"here").unwrap();
    let (addr, space) = (mapping.addr(), mapping.space().clone());
    // In another thread.
    std::thread::spawn(move || drop(mapping)).join().unwrap();
    assert_eq!(cpu.read_u64(addr), Err(AccessError::NotMapped(addr)));
    assert!(space.areas(addr..addr + 3 * PAGE).is_empty());
}

#[test]
fn a_mapping_reaches_its_own_bytes_only() {
    let (_manager, space) = soft();
    let cpu = space.cpu();
    let behind = Mapping::new(&space, MapRequest::memory(PAGE)).unwrap();
    let before = Place::FixedNoReplace(behind.addr() - 2 * PAGE);
    let mapping = Mapping::new(&space, MapRequest { place: before, ..MapRequest::memory(2 * PAGE) }).unwrap();
    behind.write(&cpu, 0, &[7]).unwrap();
    let invalid = AccessError::Invalid(mapping.addr());
    for offset in [2 * PAGE - 3, 2 * PAGE, usize::MAX - 2, usize::MAX] {
        assert_eq!(mapping.write(&cpu, offset, &[1; 4]), Err(invalid), "at {offset}");
        assert_eq!(mapping.read(&cpu, offset, &mut [1; 4]), Err(invalid), "at {offset}");
    }
    #[allow(clippy::reversed_empty_ranges, reason = "a caller may pass one")]
    let wrong = [0..2 * PAGE + 1, PAGE..3 * PAGE, 5..2, usize::MAX..usize::MAX];
    for range in wrong {
        assert_eq!(mapping.sync(range.clone()), Err(Errno::INVAL), "{range:?}");
        assert_eq!(mapping.advise(range.clone(), Advice::DontNeed), Err(Errno::INVAL), "{range:?}");
    }
    mapping.advise(0..2 * PAGE, Advice::DontNeed).unwrap();
    mapping.advise(2 * PAGE..2 * PAGE, Advice::DontNeed).unwrap();
    let mut byte = [0];
    behind.read(&cpu, 0, &mut byte).unwrap();
    assert_eq!(byte, [7]);
    let over = MapRequest { place: Place::Fixed(behind.addr()), ..MapRequest::memory(PAGE) };
    assert_eq!(Mapping::new(&space, over).err(), Some(Errno::INVAL));
}

#[test]
fn a_mapping_grows_shrinks_and_loses_rights() {
    let (_manager, space) = soft();
    let cpu = space.cpu();
    // At the end of the space, so that it must move.
    let mut mapping = Mapping::new(&space, MapRequest::memory(PAGE)).unwrap();
    let before = mapping.addr();
    mapping.write(&cpu, 10, b"stays").unwrap();
    mapping.remap(100 * PAGE).unwrap();
    assert_ne!(mapping.addr(), before);
    mapping.write(&cpu, 100 * PAGE - 1, &[1]).unwrap();
    assert_eq!((mapping.resident_pages().unwrap(), areas(&mapping)), (2, 1));
    assert_eq!(mapping.remap(0).err(), Some(Errno::INVAL));
    mapping.remap(20).unwrap();
    let mut bytes = [0; 5];
    mapping.read(&cpu, 10, &mut bytes).unwrap();
    assert_eq!(&bytes, b"stays");
    mapping.protect(Prot::READ).unwrap();
    assert!(matches!(mapping.write(&cpu, 0, &[1]), Err(AccessError::Denied(_))));
    let range = mapping.leak();
    assert_eq!(space.areas(range.clone()).len(), 1);
    space.unmap(range.start, range.len()).unwrap();
}

#[test]
fn a_file_is_mapped_and_synced_with_real_pointers() {
    // The manager comes first: its windows stay registered until the process ends.
    let (manager, space) = match Manager::<Host>::start(Config::with_memory(16 << 20)) {
        Ok((manager, space)) => (manager, Arc::new(space)),
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.write_all(&[3; 2 * PAGE]).unwrap();
    let object = manager.open(file.path(), true).unwrap();
    let loads = Mapping::new(&space, MapRequest::of_file(object.clone(), 0, 2 * PAGE)).unwrap();
    assert_eq!(loads.protect(Prot::READ | Prot::WRITE), Err(Errno::ACCESS));
    let request = MapRequest {
        prot: Prot::READ | Prot::WRITE,
        may_write: true,
        sharing: Sharing::Shared,
        ..MapRequest::of_file(object, 0, 2 * PAGE)
    };
    let stores = Mapping::new(&space, request).unwrap();
    stores.advise(0..PAGE, Advice::PopulateWrite).unwrap();
    stores.sync(PAGE - 1..PAGE + 1).unwrap();
    assert_eq!(areas(&stores), 1);
    drop(stores);
    assert_eq!((areas(&loads), std::fs::read(file.path()).unwrap()), (1, vec![3; 2 * PAGE]));
}
