//! The soft MMU against a plain model: long random runs of everything that one thread can do. A run is
//! repeated by its seed.

use elbowroom_machine::soft::{Cause, Intent, OwnedPin, SoftConfig, SoftCpu, SoftFault, SoftMmu};
use elbowroom_machine::{Access, Errno, Extent, MappedAt, PAGE_SIZE, UnmapError, Wake};
use elbowroom_sync::LockStats;
use elbowroom_sync::atomic::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// What a run draws at random, from a seed.
struct Random(fastrand::Rng);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0.usize(..n)
    }
}

/// What the model knows of an extent.
struct Known {
    extent: Extent,
    bytes: Vec<u8>,
    /// By the address of the page; never empty.
    pins: BTreeMap<usize, Vec<OwnedPin>>,
}

/// A mapped page in the model.
#[derive(Clone, Copy)]
struct Mapped {
    slot: usize,
    page: usize,
    writable: bool,
}

const SLOTS: usize = 24;
/// Pages that are used in each space: two groups, so that several tables are.
const PAGES: usize = 48;
const LENGTHS: [usize; 10] = [0, 1, 3, 4, 8, 8, 8, 40, 300, 5000];

struct Model {
    mmu: SoftMmu,
    cpus: Vec<SoftCpu>,
    spaces: Vec<u16>,
    known: Vec<Option<Known>>,
    mapped: BTreeMap<usize, Mapped>,
    random: Random,
}

fn page_of(addr: usize) -> usize {
    addr & !(PAGE_SIZE - 1)
}

fn result_of(busy: bool) -> Result<(), UnmapError> {
    if busy { Err(UnmapError::Busy) } else { Ok(()) }
}

impl Model {
    fn new(seed: u64) -> Self {
        let config = SoftConfig { arena_frames: 100, spaces: 3, tables: 8, upper_tables: 20, pins: 400 };
        let mmu = SoftMmu::new(config, &LockStats::new()).unwrap();
        while mmu.grow().unwrap() {}
        let cpus = (0..2).map(|_| mmu.cpu()).collect();
        let spaces = (0..2).map(|_| mmu.create_space().unwrap()).collect();
        let known = (0..SLOTS).map(|_| None).collect();
        Self {
            mmu,
            cpus,
            spaces,
            known,
            mapped: BTreeMap::new(),
            random: Random(fastrand::Rng::with_seed(seed)),
        }
    }

    fn page(&mut self) -> usize {
        let space = self.spaces[self.random.below(self.spaces.len())];
        let n = self.random.below(PAGES);
        let group = if n < PAGES / 2 { 0x7000_0000 - (10 << 12) } else { 0x12_3450_0000 };
        SoftMmu::space_range(space).start + group + n * PAGE_SIZE
    }

    fn range(&mut self) -> (usize, usize) {
        let len = LENGTHS[self.random.below(LENGTHS.len())];
        let offset = self.random.below(PAGE_SIZE) & [!0, !7][self.random.below(2)];
        (self.page() + offset, len)
    }

    fn cpu(&mut self) -> &SoftCpu {
        &self.cpus[self.random.0.clone().usize(..2)]
    }

    fn some_bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.random.next() as u8).collect()
    }

    fn load(&self, addr: usize, len: usize) -> Vec<u8> {
        let byte = |at: usize| {
            let there = self.mapped[&page_of(at)];
            self.known[there.slot].as_ref().unwrap().bytes[there.page * PAGE_SIZE + at % PAGE_SIZE]
        };
        (addr..addr + len).map(byte).collect()
    }

    fn store(&mut self, addr: usize, data: &[u8]) {
        for (at, &byte) in (addr..).zip(data) {
            let there = self.mapped[&page_of(at)];
            let known = self.known[there.slot].as_mut().unwrap();
            known.bytes[there.page * PAGE_SIZE + at % PAGE_SIZE] = byte;
        }
    }

    /// How an access must end.
    fn outcome(&self, addr: usize, len: usize, write: bool) -> Result<(), SoftFault> {
        let mut at = addr;
        while at < addr + len {
            let cause = match self.mapped.get(&page_of(at)) {
                None => Some(Cause::NotMapped),
                Some(there) if write && !there.writable => Some(Cause::ReadOnly),
                Some(_) => None,
            };
            if let Some(cause) = cause {
                return Err(SoftFault { addr: at, write, done: at - addr, cause });
            }
            at = page_of(at) + PAGE_SIZE;
        }
        Ok(())
    }

    fn step(&mut self) {
        match self.random.below(22) {
            0..2 => self.alloc_or_free(),
            2..6 => self.map_some(),
            6 => self.unmap_one(),
            7 => self.unmap_many(),
            8..10 => self.make_writable(),
            10 => self.pin_or_unpin(),
            11..14 => self.read(),
            14..17 => self.write(),
            17..19 => self.exchange(),
            19..21 => self.fill(),
            _ => self.spaces_come_and_go(),
        }
    }

    fn alloc_or_free(&mut self) {
        let slot = self.random.below(SLOTS);
        match self.known[slot].take() {
            None => {
                let order = [0, 0, 0, 1, 3][self.random.below(5)];
                let Some(mut extent) = self.mmu.alloc(order) else { return };
                let bytes = self.some_bytes(extent.len_bytes());
                extent.bytes_mut().copy_from_slice(&bytes);
                self.known[slot] = Some(Known { extent, bytes, pins: BTreeMap::new() });
            }
            Some(known) if known.extent.is_home() => {
                assert_eq!(known.extent.bytes(), known.bytes);
                self.mmu.free(known.extent);
            }
            known => self.known[slot] = known,
        }
    }

    /// Maps pages in the model, up to the first that is in the way.
    fn place(
        &mut self,
        slot: usize,
        base: usize,
        within: std::ops::Range<usize>,
        access: Access,
    ) -> Result<(), Errno> {
        for page in within {
            let addr = base + page * PAGE_SIZE;
            match self.mapped.get(&addr) {
                Some(there) if there.slot == slot && there.page == page => {}
                Some(_) => return Err(Errno::EXIST),
                None => {
                    let writable = access == Access::Write;
                    self.mapped.insert(addr, Mapped { slot, page, writable });
                }
            }
        }
        Ok(())
    }

    fn access(&mut self) -> Access {
        [Access::ReadOnly, Access::ReadTracked, Access::Write, Access::Write][self.random.below(4)]
    }

    fn map_some(&mut self) {
        let (slot, at, access) = (self.random.below(SLOTS), self.page(), self.access());
        let from = self.random.below(16);
        let Some(known) = self.known[slot].as_mut() else { return };
        let pages = known.extent.pages();
        let within = if from < 8 { from % pages..pages } else { 0..pages };
        if known.extent.is_home() {
            assert_eq!(known.extent.bytes(), known.bytes);
        }
        // In one place more, or again in one of those that it is in.
        let places = known.extent.places();
        let again = places.get(from % (places.len() + 1)).map(MappedAt::base);
        let base = again.unwrap_or(at);
        let result = self.mmu.map(&mut known.extent, base, within.clone(), access, Wake::Now);
        assert_eq!(result, self.place(slot, base, within, access));
        self.check_away(slot);
    }

    fn check_away(&mut self, slot: usize) {
        let known = self.known[slot].as_ref().unwrap();
        let all = 0..known.extent.pages();
        let mut places = BTreeSet::new();
        for (addr, there) in self.mapped.iter().filter(|(_, there)| there.slot == slot) {
            places.insert((addr.wrapping_sub(there.page * PAGE_SIZE), there.page));
        }
        let listed = known.extent.places().iter();
        let listed = listed.flat_map(|place| {
            let mapped = all.clone().filter(|&page| place.pages().contains(page));
            mapped.map(|page| (place.base(), page)).collect::<Vec<_>>()
        });
        assert_eq!(listed.collect::<BTreeSet<_>>(), places);
        assert!(known.extent.places().iter().all(|place| !place.pages().is_empty()));
    }

    /// Takes unpinned pages of a slot off the model; tells whether some are pinned.
    fn take_off(&mut self, slot: usize) -> bool {
        self.take_off_at(slot, None)
    }

    /// The same for the place with page 0 at an address, or for all.
    fn take_off_at(&mut self, slot: usize, at: Option<usize>) -> bool {
        let pins = &self.known[slot].as_ref().unwrap().pins;
        let mut busy = false;
        self.mapped.retain(|addr, there| {
            let base = addr.wrapping_sub(there.page * PAGE_SIZE);
            let stays = there.slot != slot || at.is_some_and(|at| at != base);
            let pinned = !stays && pins.contains_key(addr);
            busy |= pinned;
            stays || pinned
        });
        self.check_away(slot);
        busy
    }

    fn unmap_one(&mut self) {
        let (slot, at) = (self.random.below(SLOTS), self.random.below(PAGE_SIZE));
        let one = self.random.below(4);
        let Some(known) = self.known[slot].as_mut() else { return };
        let one = known.extent.places().get(one).map(MappedAt::base);
        let result = match one {
            Some(base) => self.mmu.unmap_at(&mut known.extent, base),
            None => self.mmu.unmap(&mut known.extent),
        };
        let busy = self.take_off_at(slot, one);
        assert_eq!(result, result_of(busy));
        if self.known[slot].as_ref().unwrap().extent.is_home() {
            let known = self.known[slot].as_mut().unwrap();
            assert_eq!(known.extent.bytes(), known.bytes);
            known.bytes[at] ^= 0x55;
            known.extent.bytes_mut()[at] ^= 0x55;
        }
    }

    /// Takes the extents of some slots home together.
    fn unmap_many(&mut self) {
        let mut slots = Vec::new();
        let (mut extents, mut rest) = (Vec::new(), Vec::new());
        for slot in 0..SLOTS {
            let chosen = self.random.below(3) == 0;
            if let Some(known) = self.known[slot].take_if(|known| chosen && known.extent.order() == 0) {
                slots.push(slot);
                extents.push(known.extent);
                rest.push((known.bytes, known.pins));
            }
        }
        self.mmu.unmap_clean(&mut extents);
        for ((&slot, extent), (bytes, pins)) in slots.iter().zip(extents).zip(rest) {
            self.known[slot] = Some(Known { extent, bytes, pins });
        }
        slots.into_iter().for_each(|slot| {
            self.take_off(slot);
        });
    }

    fn make_writable(&mut self) {
        let start = self.page();
        let range = start..start + self.random.below(12) * PAGE_SIZE;
        self.mmu.make_writable(range.clone(), Wake::Later).unwrap();
        self.mapped.range_mut(range).for_each(|(_, there)| there.writable = true);
    }

    fn pin_or_unpin(&mut self) {
        if self.random.below(2) == 0 {
            let slot = self.random.below(SLOTS);
            if let Some(known) = self.known[slot].as_mut() {
                known.pins.pop_first();
            }
            return;
        }
        let (addr, len) = self.range();
        let len = len.min(PAGE_SIZE - addr % PAGE_SIZE).max(1);
        let intent = [Intent::Read, Intent::Write][self.random.below(2)];
        let write = intent == Intent::Write;
        let wanted = self.outcome(addr, len, write);
        let data = self.some_bytes(len);
        let pinned = match self.cpu().pin(addr, len, intent) {
            Ok(pin) => pin.into_owned(),
            Err(fault) => return assert_eq!(Err(fault), wanted),
        };
        assert_eq!(wanted, Ok(()));
        let now: Vec<u8> = pinned.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        assert_eq!(now, self.load(addr, len));
        if write {
            pinned.iter().zip(&data).for_each(|(byte, &value)| byte.store(value, Ordering::Relaxed));
            self.store(addr, &data);
        }
        let there = self.mapped[&page_of(addr)];
        self.known[there.slot].as_mut().unwrap().pins.entry(page_of(addr)).or_default().push(pinned);
    }

    fn read(&mut self) {
        let (addr, len) = self.range();
        let wanted = self.outcome(addr, len, false);
        let mut out = vec![0; len];
        if len == 8 {
            match self.cpu().read_u64(addr) {
                Ok(word) => out = word.to_ne_bytes().to_vec(),
                Err(fault) => return assert_eq!(Err(fault), wanted),
            }
            assert_eq!(wanted, Ok(()));
        } else {
            assert_eq!(self.cpu().read(addr, &mut out), wanted);
        }
        let done = wanted.map_or_else(|fault| fault.done, |()| len);
        assert_eq!(out[..done], self.load(addr, done));
    }

    fn write(&mut self) {
        let (addr, len) = self.range();
        let wanted = self.outcome(addr, len, true);
        let data = self.some_bytes(len);
        let result = match <[u8; 8]>::try_from(&data[..]) {
            Ok(word) => self.cpu().write_u64(addr, u64::from_ne_bytes(word)),
            Err(_) => self.cpu().write(addr, &data),
        };
        assert_eq!(result, wanted);
        let done = wanted.map_or_else(|fault| fault.done, |()| len);
        self.store(addr, &data[..done]);
    }

    fn exchange(&mut self) {
        let size = [4, 8][self.random.below(2)];
        let (addr, _) = self.range();
        let new = self.random.next();
        if !addr.is_multiple_of(size) {
            let invalid = SoftFault { addr, write: true, done: 0, cause: Cause::Invalid };
            match size {
                4 => assert_eq!(self.cpu().compare_exchange_u32(addr, 0, 0), Err(invalid)),
                _ => assert_eq!(self.cpu().compare_exchange_u64(addr, 0, 0), Err(invalid)),
            }
            return;
        }
        let wanted = self.outcome(addr, size, true);
        let there = if wanted.is_ok() { self.load(addr, size) } else { vec![0; size] };
        let differs = u64::from(self.random.below(3) == 0);
        let (got, known) = match size {
            4 => {
                let now = u32::from_ne_bytes(there.try_into().unwrap());
                let got = self.cpu().compare_exchange_u32(addr, now ^ differs as u32, new as u32);
                (got.map(|r| r.map(u64::from).map_err(u64::from)), u64::from(now))
            }
            _ => {
                let now = u64::from_ne_bytes(there.try_into().unwrap());
                (self.cpu().compare_exchange_u64(addr, now ^ differs, new), now)
            }
        };
        assert_eq!(got, wanted.map(|()| if differs == 0 { Ok(known) } else { Err(known) }));
        if wanted.is_ok() {
            let value = if differs == 0 { new } else { known };
            self.store(addr, &value.to_ne_bytes()[..size]);
        }
    }

    fn fill(&mut self) {
        let ((to, len), byte) = (self.range(), self.random.next() as u8);
        let wanted = self.outcome(to, len, true);
        assert_eq!(self.cpu().fill(to, len, byte), wanted);
        let done = wanted.map_or_else(|fault| fault.done, |()| len);
        self.store(to, &vec![byte; done]);
    }

    fn spaces_come_and_go(&mut self) {
        let at = self.random.below(self.spaces.len());
        let asid = self.spaces[at];
        let used = self.mapped.range(SoftMmu::space_range(asid)).next().is_some();
        if used && self.random.below(8) > 0 {
            return assert_eq!(self.mmu.destroy_space(asid), Err(Errno::BUSY));
        }
        let inside = |base: &usize| base >> 48 == usize::from(asid);
        self.known.iter_mut().flatten().for_each(|known| {
            known.pins.retain(|addr, _| !inside(addr));
            let bases: Vec<_> = known.extent.places().iter().map(MappedAt::base).filter(inside).collect();
            for base in bases {
                assert_eq!(self.mmu.unmap_at(&mut known.extent, base), Ok(()));
            }
            if known.extent.is_home() {
                assert_eq!(known.extent.bytes(), known.bytes);
            }
        });
        self.mapped.retain(|addr, _| !SoftMmu::space_range(asid).contains(addr));
        assert_eq!(self.mmu.destroy_space(asid), Ok(()));
        assert!(!self.mmu.covers(SoftMmu::space_range(asid).start, 1));
        self.spaces[at] = self.mmu.create_space().unwrap();
    }

    fn end(mut self) {
        for slot in 0..SLOTS {
            let Some(known) = self.known[slot].as_mut() else { continue };
            known.pins.clear();
            assert_eq!(self.mmu.unmap(&mut known.extent), Ok(()));
            assert_eq!(known.extent.bytes(), known.bytes);
            self.mmu.free(self.known[slot].take().unwrap().extent);
        }
        assert_eq!(self.mmu.frames_at_hand(), self.mmu.frames());
        let spaces: BTreeSet<u16> = self.spaces.iter().copied().collect();
        spaces.into_iter().for_each(|asid| self.mmu.destroy_space(asid).unwrap());
    }
}

#[test]
fn every_operation_agrees_with_a_plain_model() {
    for seed in 1..=4 {
        let mut model = Model::new(seed);
        (0..40_000).for_each(|_| model.step());
        model.end();
    }
}
