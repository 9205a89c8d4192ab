//! Compressed pages in frames of the arena. Linux: mm/zsmalloc.c.
//!
//! Frames come from the caller and go back to it, since only the caller knows how to make some free: a
//! caller that stores is told how many frames are missing, and calls again with them.
//!
//! Synchronization: a lock for each size class, of the class `pool`, for as long as some kilobytes are
//! copied. An object is read, and freed, by the owner of its handle, so no two threads free the same one.

use super::classes::{BLOCK_OBJECTS, Classes, LARGEST, SizeClass};
use crate::group::Frames;
use elbowroom_machine::PAGE_SIZE;
use elbowroom_sync::atomic::{AtomicU64, Ordering};
use elbowroom_sync::{Lines, LockClass, LockStats, Mutex};
use std::ops::Range;

/// Where an object is: its class, block, place in the block, and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle(u64);

const LEN_BITS: u32 = 12;
const PLACE_BITS: u32 = BLOCK_OBJECTS.ilog2() + 1;
const CLASS_BITS: u32 = 8;

impl Handle {
    fn new(class: u8, block: usize, place: usize, len: usize) -> Self {
        let fields = [(len as u64, LEN_BITS), (place as u64, PLACE_BITS), (u64::from(class), CLASS_BITS)];
        let low = fields.iter().rev().fold(0, |word, (value, bits)| word << bits | value);
        Self((block as u64) << (LEN_BITS + PLACE_BITS + CLASS_BITS) | low)
    }

    /// The length of the object, in bytes.
    pub fn bytes(self) -> usize {
        self.field(0, LEN_BITS)
    }

    fn place(self) -> usize {
        self.field(LEN_BITS, PLACE_BITS)
    }

    fn class(self) -> usize {
        self.field(LEN_BITS + PLACE_BITS, CLASS_BITS)
    }

    fn block(self) -> usize {
        (self.0 >> (LEN_BITS + PLACE_BITS + CLASS_BITS)) as usize
    }

    fn field(self, from: u32, bits: u32) -> usize {
        (self.0 >> from & ((1 << bits) - 1)) as usize
    }
}

/// Pages that share objects of one size.
struct Block {
    pages: Vec<Frames>,
    /// Places that have an object.
    used: [u64; BLOCK_OBJECTS / 64],
    objects: usize,
    /// Its place in the list of blocks with room.
    roomy_at: Option<usize>,
}

#[derive(Default)]
struct Class {
    /// By number; `None`: the number is free.
    blocks: Vec<Option<Block>>,
    free_numbers: Vec<usize>,
    /// Blocks that have objects and room for more.
    roomy: Vec<usize>,
}

/// The pool.
pub struct Pool {
    sizes: Classes,
    classes: Vec<Lines<Mutex<Class>>>,
    pages: AtomicU64,
    objects: AtomicU64,
    bytes: AtomicU64,
}

impl Pool {
    /// An empty pool.
    pub fn new(locks: &LockStats) -> Self {
        let sizes = Classes::new();
        let class = |_: &SizeClass| Lines(locks.mutex(LockClass::Pool, Class::default()));
        let classes = sizes.all.iter().map(class).collect();
        let zero = || AtomicU64::new(0);
        Self { sizes, classes, pages: zero(), objects: zero(), bytes: zero() }
    }

    /// Pages of frames that it has.
    pub fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// Objects that it has.
    pub fn objects(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }

    /// Bytes of these objects.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Keeps an object. Takes pages of `frames`, one page each, all at home, if it must.
    ///
    /// # Errors
    /// How many pages are missing in `frames`; none was taken.
    ///
    /// # Panics
    /// If the object has no bytes, or more than [`LARGEST`].
    pub fn store(&self, object: &[u8], frames: &mut Vec<Frames>) -> Result<Handle, usize> {
        assert!(
            (1..=LARGEST).contains(&object.len()),
            "objects of {} bytes are not for the pool",
            object.len()
        );
        let number = self.sizes.of(object.len());
        let size = self.sizes.all[usize::from(number)];
        let mut class = self.classes[usize::from(number)].lock();
        let block = match class.roomy.last() {
            Some(block) => *block,
            None if frames.len() < size.pages => return Err(size.pages - frames.len()),
            None => {
                self.pages.fetch_add(size.pages as u64, Ordering::Relaxed);
                class.add(frames.split_off(frames.len() - size.pages))
            }
        };
        let place = class.put(block, size, object);
        drop(class);
        self.objects.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(object.len() as u64, Ordering::Relaxed);
        Ok(Handle::new(number, block, place, object.len()))
    }

    /// Copies an object to the beginning of `to`, and tells its length.
    ///
    /// # Panics
    /// If there is no such object.
    pub fn load(&self, handle: Handle, to: &mut [u8; LARGEST]) -> usize {
        let size = self.sizes.all[handle.class()];
        let class = self.classes[handle.class()].lock();
        let block = class.block(handle.block());
        assert!(block.has(handle.place()), "the object is there until its owner frees it");
        let mut rest = &mut to[..handle.bytes()];
        for (page, bytes) in parts(size.bytes * handle.place(), handle.bytes()) {
            let (part, after) = rest.split_at_mut(bytes.len());
            part.copy_from_slice(&block.pages[page].bytes()[bytes]);
            rest = after;
        }
        handle.bytes()
    }

    /// Takes all frames out: no object will be needed again.
    pub fn take_all(&self) -> Vec<Frames> {
        let blocks = self.classes.iter().flat_map(|class| std::mem::take(&mut *class.lock()).blocks);
        let frames = blocks.flatten().flat_map(|block| block.pages).collect();
        [&self.pages, &self.objects, &self.bytes].iter().for_each(|count| count.store(0, Ordering::Relaxed));
        frames
    }

    /// Frees an object; returns the frames that are not needed any more.
    ///
    /// # Panics
    /// If there is no such object.
    pub fn free(&self, handle: Handle) -> Vec<Frames> {
        let size = self.sizes.all[handle.class()];
        let frames = self.classes[handle.class()].lock().remove(handle.block(), handle.place(), size);
        self.pages.fetch_sub(frames.len() as u64, Ordering::Relaxed);
        self.objects.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(handle.bytes() as u64, Ordering::Relaxed);
        frames
    }
}

impl Class {
    fn block(&self, number: usize) -> &Block {
        self.blocks[number].as_ref().expect("a handle's block is there")
    }

    /// A new block, which has room.
    fn add(&mut self, pages: Vec<Frames>) -> usize {
        let block =
            Block { pages, used: [0; BLOCK_OBJECTS / 64], objects: 0, roomy_at: Some(self.roomy.len()) };
        let number = match self.free_numbers.pop() {
            Some(number) => {
                self.blocks[number] = Some(block);
                number
            }
            None => {
                self.blocks.push(Some(block));
                self.blocks.len() - 1
            }
        };
        self.roomy.push(number);
        number
    }

    /// Puts an object into a block that has room; gives its place.
    fn put(&mut self, number: usize, size: SizeClass, object: &[u8]) -> usize {
        let block = self.blocks[number].as_mut().expect("a roomy block is there");
        let place = block.first_free(size.objects);
        let mut rest = object;
        for (page, bytes) in parts(size.bytes * place, object.len()) {
            let (part, after) = rest.split_at(bytes.len());
            block.pages[page].bytes_mut()[bytes].copy_from_slice(part);
            rest = after;
        }
        block.used[place / 64] |= 1 << (place % 64);
        block.objects += 1;
        if block.objects == size.objects {
            self.is_full(number);
        }
        place
    }

    /// Takes an object out; gives the pages of its block if it was the last.
    fn remove(&mut self, number: usize, place: usize, size: SizeClass) -> Vec<Frames> {
        let block = self.blocks[number].as_mut().expect("a handle's block is there");
        assert!(block.has(place), "an object is freed once");
        block.used[place / 64] &= !(1 << (place % 64));
        block.objects -= 1;
        if block.objects + 1 == size.objects && block.objects > 0 {
            block.roomy_at = Some(self.roomy.len());
            self.roomy.push(number);
        }
        if block.objects > 0 {
            return Vec::new();
        }
        self.is_full(number);
        self.free_numbers.push(number);
        self.blocks[number].take().map_or(Vec::new(), |block| block.pages)
    }

    /// Takes a block out of the list of those with room, if it is there.
    fn is_full(&mut self, number: usize) {
        let block = self.blocks[number].as_mut().expect("a block in the list is there");
        let Some(at) = block.roomy_at.take() else { return };
        self.roomy.swap_remove(at);
        if let Some(&moved) = self.roomy.get(at) {
            self.blocks[moved].as_mut().expect("a block in the list is there").roomy_at = Some(at);
        }
    }
}

impl Block {
    fn has(&self, place: usize) -> bool {
        self.used[place / 64] >> (place % 64) & 1 != 0
    }

    fn first_free(&self, objects: usize) -> usize {
        let word = self.used.iter().position(|word| *word != u64::MAX).unwrap_or(0);
        let place = word * 64 + self.used[word].trailing_ones() as usize;
        assert!(place < objects, "a block in the list has room");
        place
    }
}

/// The parts of a block's bytes by pages: the number of each page, and bytes of it.
fn parts(start: usize, len: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let end = start + len;
    (start / PAGE_SIZE..end.div_ceil(PAGE_SIZE)).map(move |page| {
        let base = page * PAGE_SIZE;
        (page, start.max(base) - base..end.min(base + PAGE_SIZE) - base)
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::group::{DirtyLimits, GroupId, Groups};
    use elbowroom_machine::soft::{SoftConfig, SoftMmu};
    use std::collections::BTreeMap;

    /// Numbers that look random, the same in each run.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self, below: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % below
        }
    }

    fn object(number: u64, len: usize) -> Vec<u8> {
        (0..len as u64).map(|at| (number.wrapping_mul(31) + at * 7) as u8).collect()
    }

    /// Beside a plain map: what was stored is there, whatever comes and goes; in the end no frame is left.
    #[test]
    fn objects_keep_their_bytes_and_empty_blocks_go_back() {
        let locks = LockStats::new();
        let mmu = SoftMmu::new(SoftConfig::new(4096), &locks).unwrap();
        while mmu.grow().unwrap() {}
        let groups = Groups::new(DirtyLimits::NONE, 0, &LockStats::new());
        let pool = Pool::new(&locks);
        let mut numbers = Numbers(1);
        let mut model: BTreeMap<u64, (Handle, Vec<u8>)> = BTreeMap::new();
        let mut most = 0.0_f64;
        for number in 0..60_000 {
            // It grows to some 4,000 objects, and gets small again.
            let grows = number % 20_000 < 12_000;
            if numbers.next(10) < if grows { 7 } else { 1 } {
                let bytes = object(number, 1 + numbers.next(LARGEST as u64) as usize);
                let mut frames = Vec::new();
                let handle = loop {
                    match pool.store(&bytes, &mut frames) {
                        Ok(handle) => break handle,
                        Err(missing) => frames.extend(
                            (0..missing)
                                .map(|_| groups.alloc(&mmu, GroupId::ROOT, 0).expect("enough frames")),
                        ),
                    }
                };
                assert!(frames.is_empty(), "nothing more is asked for than is taken");
                assert_eq!(handle.bytes(), bytes.len());
                model.insert(number, (handle, bytes));
            } else if !model.is_empty() {
                let at = numbers.next(number);
                let key = *model.range(at..).next().or(model.iter().next()).unwrap().0;
                let (handle, bytes) = model.remove(&key).unwrap();
                let mut found = [0; LARGEST];
                let len = pool.load(handle, &mut found);
                assert_eq!(&found[..len], &bytes[..]);
                pool.free(handle).into_iter().for_each(|frames| groups.free(&mmu, frames));
            }
            let bytes: usize = model.values().map(|(_, bytes)| bytes.len()).sum::<usize>();
            if number % 1000 == 0 {
                assert_eq!((pool.objects(), pool.bytes()), (model.len() as u64, bytes as u64));
                assert_eq!(pool.pages(), groups.charged_pages());
                if grows && model.len() > 1000 {
                    most = most.max(pool.pages() as f64 * PAGE_SIZE as f64 / bytes as f64);
                }
            }
        }
        assert!(most > 1.0 && most < 1.4, "{most} bytes of frames for each byte of an object");
        for (handle, bytes) in model.into_values() {
            let mut found = [0; LARGEST];
            let len = pool.load(handle, &mut found);
            assert_eq!(&found[..len], &bytes[..]);
            pool.free(handle).into_iter().for_each(|frames| groups.free(&mmu, frames));
        }
        assert_eq!((pool.pages(), pool.objects(), pool.bytes(), groups.charged_pages()), (0, 0, 0, 0));
    }

    #[test]
    fn who_has_no_frames_is_told_how_many_are_missing() {
        let pool = Pool::new(&LockStats::new());
        let missing = pool.store(&object(1, LARGEST), &mut Vec::new());
        assert_eq!(missing, Err(3), "four objects in three pages");
        assert_eq!(pool.pages(), 0);
    }
}
