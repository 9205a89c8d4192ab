//! The soft MMU's bounds and edges, one by one.

use elbowroom_machine::soft::{
    Cause, Intent, Invalidation, OwnedPin, PINS_PER_PAGE, SPACE_BYTES, SoftConfig, SoftCpu, SoftFault,
    SoftMmu, Subscription,
};
use elbowroom_machine::{Access, Errno, Extent, FaultEvent, MappedAt, PAGE_SIZE, UnmapError, Wake};
use elbowroom_sync::LockStats;
use elbowroom_sync::atomic::Ordering;

const TABLE_SPAN: usize = 512 * PAGE_SIZE;

fn mmu(config: SoftConfig) -> SoftMmu {
    let mmu = SoftMmu::new(config, &LockStats::new()).unwrap();
    while mmu.grow().unwrap() {}
    mmu
}

fn small() -> SoftConfig {
    SoftConfig { arena_frames: 600, spaces: 2, tables: 20, upper_tables: 20, pins: 100 }
}

fn map(mmu: &SoftMmu, extent: &mut Extent, base: usize, access: Access) -> Result<(), Errno> {
    mmu.map(extent, base, 0..extent.pages(), access, Wake::Now)
}

/// Maps extents of a page each, one after the other from `start` on.
fn map_each(mmu: &SoftMmu, extents: &mut [Extent], start: usize) {
    for (i, extent) in extents.iter_mut().enumerate() {
        map(mmu, extent, start + i * PAGE_SIZE, Access::Write).unwrap();
    }
}

fn filled(mmu: &SoftMmu, order: u8, byte: u8) -> Extent {
    let mut extent = mmu.alloc(order).unwrap();
    extent.bytes_mut().fill(byte);
    extent
}

fn not_mapped(addr: usize) -> SoftFault {
    SoftFault { addr, write: false, done: 0, cause: Cause::NotMapped }
}

/// Checked by the compiler.
const _: () = {
    const fn sent<T: Send>() {}
    const fn shared<T: Send + Sync>() {}
    sent::<SoftCpu>();
    shared::<SoftMmu>();
    shared::<OwnedPin>();
    shared::<Subscription>();
};

#[test]
fn spaces_are_apart_and_bounded() {
    let mmu = mmu(small());
    let (a, b) = (mmu.create_space().unwrap(), mmu.create_space().unwrap());
    assert_eq!((a, b, mmu.create_space()), (1, 2, Err(Errno::NOMEM)));
    let at = |asid| SoftMmu::space_range(asid).start + (5 << 30);
    let (mut x, mut y) = (filled(&mmu, 0, 0xaa), filled(&mmu, 0, 0xbb));
    map(&mmu, &mut x, at(a), Access::Write).unwrap();
    map(&mmu, &mut y, at(b), Access::Write).unwrap();
    let cpu = mmu.cpu();
    assert_eq!(cpu.read_u64(at(a)), Ok(u64::from_ne_bytes([0xaa; 8])));
    assert_eq!(cpu.read_u64(at(b)), Ok(u64::from_ne_bytes([0xbb; 8])));
    assert_eq!(mmu.destroy_space(a), Err(Errno::BUSY));
    assert_eq!(cpu.read_u64(at(a)), Ok(u64::from_ne_bytes([0xaa; 8])));
    mmu.unmap(&mut x).unwrap();
    mmu.destroy_space(a).unwrap();
    assert_eq!(mmu.destroy_space(a), Err(Errno::NOENT));
    assert_eq!(cpu.read_u64(at(a)), Err(not_mapped(at(a))));
    assert_eq!(map(&mmu, &mut x, at(a), Access::Write), Err(Errno::NOENT));
    assert!(mmu.covers(at(b), PAGE_SIZE) && !mmu.covers(at(a), PAGE_SIZE));
    assert_eq!(mmu.create_space(), Ok(a));
    // The new space of that number is empty.
    assert_eq!(cpu.read_u64(at(a)), Err(not_mapped(at(a))));
    assert_eq!(cpu.read_u64(at(b)), Ok(u64::from_ne_bytes([0xbb; 8])));
}

#[test]
fn an_access_does_not_leave_its_space() {
    let mmu = mmu(small());
    let range = SoftMmu::space_range(mmu.create_space().unwrap());
    assert_eq!(range.len(), SPACE_BYTES);
    let (mut first, mut last) = (filled(&mmu, 0, 1), filled(&mmu, 0, 2));
    map(&mmu, &mut first, range.start, Access::ReadOnly).unwrap();
    map(&mmu, &mut last, range.end - PAGE_SIZE, Access::ReadOnly).unwrap();
    let cpu = mmu.cpu();
    let mut out = [0; 64];
    let end = SoftFault { done: 8, ..not_mapped(range.end) };
    assert_eq!(cpu.read(range.end - 8, &mut out), Err(end));
    let begin = range.start - 8;
    assert_eq!(cpu.read(begin, &mut out), Err(not_mapped(begin)));
    for addr in [0, 8, usize::MAX - 7, SPACE_BYTES, 3 << 48, range.end, range.end + SPACE_BYTES / 2] {
        assert_eq!(cpu.read_u64(addr), Err(not_mapped(addr)), "{addr:#x}");
        let mut extent = filled(&mmu, 0, 3);
        let page = addr & !(PAGE_SIZE - 1);
        assert_eq!(map(&mmu, &mut extent, page, Access::Write), Err(Errno::NOENT), "{addr:#x}");
        assert!(extent.is_home() && !mmu.covers(addr, 1));
        mmu.free(extent);
    }
    assert!(mmu.covers(range.start, range.len()));
    assert!(!mmu.covers(range.start, range.len() + 1) && !mmu.covers(range.start, 0));
}

#[test]
fn faults_say_what_is_to_be_served() {
    let mmu = mmu(small());
    let start = SoftMmu::space_range(mmu.create_space().unwrap()).start;
    let cpu = mmu.cpu();
    let fault = cpu.write_u64(start + 24, 7).unwrap_err();
    let event = |present| Some(FaultEvent { addr: start, thread: 9, write: true, present });
    assert_eq!((fault.cause, fault.event(9)), (Cause::NotMapped, event(false)));
    let mut extent = filled(&mmu, 0, 0);
    map(&mmu, &mut extent, start, Access::ReadTracked).unwrap();
    let fault = cpu.write_u64(start + 24, 7).unwrap_err();
    assert_eq!((fault.cause, fault.event(9)), (Cause::ReadOnly, event(true)));
    mmu.make_writable(start..start + PAGE_SIZE, Wake::Now).unwrap();
    cpu.write_u64(start + 24, 7).unwrap();
    assert_eq!(cpu.read_u64(start + 24), Ok(7));
    assert_eq!(cpu.compare_exchange_u64(start + 1, 0, 0).unwrap_err().event(9), None);
    assert_eq!(mmu.unmap(&mut extent), Ok(()));
}

#[test]
fn a_pinned_page_stays_until_the_last_pin_goes() {
    let mmu = mmu(small());
    let start = SoftMmu::space_range(mmu.create_space().unwrap()).start;
    let cpu = mmu.cpu();
    let mut extent = filled(&mmu, 3, 5);
    map(&mmu, &mut extent, start, Access::Write).unwrap();
    let pin = cpu.pin(start + 2 * PAGE_SIZE + 16, 32, Intent::Write).unwrap();
    let other = cpu.pin(start + 2 * PAGE_SIZE, 1, Intent::Read).unwrap().into_owned();
    assert_eq!(mmu.unmap(&mut extent), Err(UnmapError::Busy));
    let left = extent.place(start).unwrap().pages();
    assert_eq!((left.count(), left.contains(2)), (1, true));
    // It is as it was.
    pin[0].store(99, Ordering::Relaxed);
    let mut out = [0];
    cpu.read(start + 2 * PAGE_SIZE + 16, &mut out).unwrap();
    assert_eq!((out, pin.len()), ([99], 32));
    cpu.write(start + 2 * PAGE_SIZE + 17, &[98]).unwrap();
    drop(pin);
    assert_eq!(mmu.unmap(&mut extent), Err(UnmapError::Busy));
    drop(other);
    assert_eq!(mmu.unmap(&mut extent), Ok(()));
    assert_eq!(extent.bytes()[2 * PAGE_SIZE + 15..2 * PAGE_SIZE + 20], [5, 99, 98, 5, 5]);
}

#[test]
fn pins_are_bounded_for_a_page_and_together() {
    let mmu = mmu(SoftConfig { pins: 3000, ..small() });
    let start = SoftMmu::space_range(mmu.create_space().unwrap()).start;
    let (cpu, other) = (mmu.cpu(), mmu.cpu());
    let mut extents = [filled(&mmu, 0, 1), filled(&mmu, 0, 2)];
    map_each(&mmu, &mut extents, start);
    let too_many = |addr| SoftFault { addr, write: false, done: 0, cause: Cause::TooManyPins };
    let mut pins: Vec<_> = (0..PINS_PER_PAGE).map(|_| cpu.pin(start, 1, Intent::Read).unwrap()).collect();
    assert_eq!(cpu.pin(start, 1, Intent::Read).err(), Some(too_many(start)));
    // Stores have room of their own.
    cpu.write_u64(start, 1).unwrap();
    let next = start + PAGE_SIZE;
    while let Ok(pin) = cpu.pin(next, 1, Intent::Read) {
        pins.push(pin);
    }
    assert_eq!(pins.len(), 3000);
    assert_eq!(other.pin(next, 1, Intent::Read).err(), Some(too_many(next)));
    assert_eq!(cpu.pin(next, PAGE_SIZE + 1, Intent::Read).err().map(|f| f.cause), Some(Cause::Invalid));
    let owned: Vec<_> = pins.drain(..).map(|pin| pin.into_owned()).collect();
    drop(owned);
    assert!(other.pin(next, 1, Intent::Read).is_ok());
    drop(pins);
    drop((cpu, other));
    let cpu = mmu.cpu();
    let again: Vec<_> = (0..3000).map(|i| cpu.pin(start + i % 2 * PAGE_SIZE, 1, Intent::Read)).collect();
    assert!(again.iter().all(Result::is_ok), "a pin is lost");
    drop(again);
    assert!(extents.iter_mut().all(|extent| mmu.unmap(extent).is_ok()));
}

#[test]
fn tables_are_bounded_and_used_again() {
    let mmu = mmu(SoftConfig { upper_tables: 30, ..small() });
    let start = SoftMmu::space_range(mmu.create_space().unwrap()).start;
    // One after the other, there are always enough.
    let mut extent = filled(&mmu, 0, 1);
    let cpu = mmu.cpu();
    for i in 0..10_000 {
        let addr = start + i * TABLE_SPAN;
        map(&mmu, &mut extent, addr, Access::Write).unwrap();
        cpu.write_u64(addr, i as u64).unwrap();
        if i > 0 {
            let before = addr - TABLE_SPAN;
            assert_eq!(cpu.read_u64(before), Err(not_mapped(before)));
        }
        mmu.unmap(&mut extent).unwrap();
    }
    assert_eq!(extent.bytes()[..8], 9_999_u64.to_ne_bytes());
    let most = mmu.metadata_bytes();
    assert!(most < 20 * 8300 + 100_000, "{most}");
    // Together, there are not: the map that needs one more says so.
    let mut extents: Vec<_> = (0..30).map(|_| filled(&mmu, 0, 2)).collect();
    let results: Vec<_> = extents
        .iter_mut()
        .enumerate()
        .map(|(i, extent)| map(&mmu, extent, start + i * TABLE_SPAN, Access::Write))
        .collect();
    let wanted: Vec<_> = (0..30).map(|i| if i < 20 { Ok(()) } else { Err(Errno::NOMEM) }).collect();
    assert_eq!(results, wanted);
    mmu.unmap_clean(&mut extents);
    assert_eq!(map(&mmu, &mut extents[29], start + 29 * TABLE_SPAN, Access::Write), Ok(()));
    assert!(mmu.metadata_bytes() <= most + 20 * 8300);
}

#[test]
fn what_is_in_the_way_is_not_replaced() {
    let mmu = mmu(small());
    let start = SoftMmu::space_range(mmu.create_space().unwrap()).start;
    let (mut a, mut b) = (filled(&mmu, 2, 1), filled(&mmu, 0, 2));
    map(&mmu, &mut b, start + 2 * PAGE_SIZE, Access::Write).unwrap();
    assert_eq!(map(&mmu, &mut a, start, Access::Write), Err(Errno::EXIST));
    assert_eq!(a.place(start).map(|place| place.pages().count()), Some(2));
    let mut c = filled(&mmu, 0, 3);
    assert_eq!(map(&mmu, &mut c, start + 5, Access::Write), Err(Errno::INVAL));
    let mut out = vec![0; 3 * PAGE_SIZE];
    mmu.cpu().read(start, &mut out).unwrap();
    assert_eq!((out[0], out[PAGE_SIZE], out[2 * PAGE_SIZE]), (1, 1, 2));
    mmu.unmap(&mut a).unwrap();
    mmu.unmap(&mut b).unwrap();
}

/// The same word in the same entry, 65536 installs later, for another address: whoever remembers it must not
/// take it for his page. A store through one place is seen through the others; each is left by itself; a pin
/// in one keeps only that.
#[test]
fn an_extent_may_be_mapped_in_several_places() {
    let mmu = mmu(small());
    let start = SoftMmu::space_range(mmu.create_space().unwrap()).start;
    let places = [0, 8, 16].map(|page| start + page * PAGE_SIZE);
    let cpu = mmu.cpu();
    let mut extent = filled(&mmu, 1, 1);
    for base in places {
        map(&mmu, &mut extent, base, Access::Write).unwrap();
    }
    cpu.write_u64(places[0] + PAGE_SIZE, 7).unwrap();
    assert!(places.iter().all(|base| cpu.read_u64(base + PAGE_SIZE) == Ok(7)));
    assert_eq!(mmu.unmap_at(&mut extent, places[1]), Ok(()));
    assert_eq!(extent.places().iter().map(MappedAt::base).collect::<Vec<_>>(), [places[0], places[2]]);
    assert_eq!(cpu.read_u64(places[1]).unwrap_err(), not_mapped(places[1]));
    let pin = cpu.pin(places[2], 8, Intent::Read).unwrap();
    assert_eq!(mmu.unmap(&mut extent), Err(UnmapError::Busy));
    assert_eq!(cpu.read_u64(places[0]).unwrap_err(), not_mapped(places[0]));
    assert!(extent.is_mapped(places[2], 0) && !extent.is_mapped(places[2], 1) && !extent.is_home());
    drop(pin);
    assert_eq!((mmu.unmap(&mut extent), extent.is_home()), (Ok(()), true));
    assert_eq!(extent.bytes()[PAGE_SIZE], 7);
    mmu.free(extent);
}

#[test]
fn a_generation_that_comes_round_is_noticed() {
    let mmu = mmu(small());
    let asid = mmu.create_space().unwrap();
    let (old, new) = (SoftMmu::space_range(asid).start, SoftMmu::space_range(asid).start + TABLE_SPAN);
    let (reader, writer, pinner) = (mmu.cpu(), mmu.cpu(), mmu.cpu());
    let mut extent = filled(&mmu, 0, 0xaa);
    map(&mmu, &mut extent, old, Access::Write).unwrap();
    for cpu in [&reader, &writer, &pinner] {
        cpu.write_u64(old, 1).unwrap();
        cpu.read_u64(old).unwrap();
    }
    mmu.unmap(&mut extent).unwrap();
    // Its table becomes free, and is the next to be used.
    mmu.destroy_space(asid).unwrap();
    assert_eq!(mmu.create_space(), Ok(asid));
    let before = mmu.metadata_bytes();
    for _ in 0..65_535 {
        map(&mmu, &mut extent, new, Access::Write).unwrap();
        mmu.unmap(&mut extent).unwrap();
    }
    map(&mmu, &mut extent, new, Access::Write).unwrap();
    mmu.cpu().write_u64(new, 2).unwrap();
    assert_eq!(mmu.metadata_bytes(), before, "another table is used: this test shows nothing");
    assert_eq!(reader.read_u64(old), Err(not_mapped(old)));
    assert_eq!(writer.write_u64(old, 3), Err(SoftFault { write: true, ..not_mapped(old) }));
    assert_eq!(pinner.pin(old, 8, Intent::Read).err(), Some(not_mapped(old)));
    assert_eq!(reader.read_u64(new), Ok(2));
    mmu.unmap(&mut extent).unwrap();
}

#[test]
fn subscribers_hear_of_what_becomes_invalid() {
    let mmu = mmu(small());
    let start = SoftMmu::space_range(mmu.create_space().unwrap()).start;
    let pages = |first: usize, n: usize| start + first * PAGE_SIZE..start + (first + n) * PAGE_SIZE;
    let mut extents: Vec<_> = (0..4).map(|_| filled(&mmu, 0, 1)).collect();
    map_each(&mmu, &mut extents, start);
    let mut sub = mmu.subscribe();
    let cpu = mmu.cpu();
    let position = sub.begin();
    assert!(cpu.read_u64(start + PAGE_SIZE).is_ok());
    assert!(!sub.retry(position, &pages(0, 4)));
    mmu.unmap(&mut extents[1]).unwrap();
    mmu.unmap(&mut extents[3]).unwrap();
    assert!(sub.retry(position, &pages(0, 2)) && !sub.retry(position, &pages(2, 1)));
    assert!(sub.retry(position, &pages(3, 9)) && sub.retry(u64::MAX, &pages(2, 1)));
    let mut told = Vec::new();
    sub.poll(|news| told.push(news));
    assert_eq!(told, [pages(1, 1), pages(3, 1)].map(Invalidation::Range));
    sub.poll(|news| panic!("{news:?} is told twice"));
    for _ in 0..1025 {
        map(&mmu, &mut extents[1], start + PAGE_SIZE, Access::ReadOnly).unwrap();
        mmu.unmap(&mut extents[1]).unwrap();
    }
    assert!(sub.retry(position, &pages(2, 1)), "what is not in the log any more may have been anything");
    told.clear();
    sub.poll(|news| told.push(news));
    assert_eq!(told, [Invalidation::Everything]);
    mmu.unmap_clean(&mut extents);
}

#[test]
#[should_panic(expected = "an extent of another arena")]
fn an_extent_of_another_arena_is_refused() {
    let (one, other) = (mmu(small()), mmu(small()));
    let mut extent = filled(&one, 0, 1);
    let start = SoftMmu::space_range(one.create_space().unwrap()).start;
    assert_eq!(SoftMmu::space_range(other.create_space().unwrap()).start, start);
    map(&one, &mut extent, start, Access::Write).unwrap();
    let _ = other.unmap(&mut extent);
}

#[test]
fn an_extent_that_outlives_the_mmu_keeps_its_memory() {
    let mmu = mmu(small());
    let start = SoftMmu::space_range(mmu.create_space().unwrap()).start;
    let (mut away, home, cpu) = (filled(&mmu, 0, 1), filled(&mmu, 0, 2), mmu.cpu());
    map(&mmu, &mut away, start, Access::Write).unwrap();
    drop(mmu);
    // A processor keeps all of it.
    assert_eq!(cpu.read_u64(start), Ok(u64::from_ne_bytes([1; 8])));
    drop(cpu);
    assert!(home.bytes().iter().all(|&b| b == 2) && !away.is_home());
}
