//! Which blocks are ours, how large they are, and since when.
//!
//! An array of words, found by a hash of the address: open addressing. The table remembers how far an entry
//! has ever been from its first place, so that an address without an entry is known after a few words. A
//! word describes a whole block, so an entry comes and goes in one step. Beside it is the time from which
//! on the block was as new, which only the owner of the block needs. No two threads look an address up at
//! once, unless the program frees a block twice. So an entry that was found stays until the owner of the
//! block takes it out.
//!
//! Synchronization: lock-free. A thread that got a block from the thread that entered it sees the entry, by
//! the synchronization that passed the address on. Relaxed accesses would do for that; acquire and release
//! are for the block's own bytes, when an address is used again.

use elbowroom_sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// log2 of the bytes of a page.
const PAGE_SHIFT: u32 = 12;

/// Bits of a word for the pages of a block: up to a terabyte.
const LEN_BITS: u32 = 28;

/// A place that was never used.
const EMPTY: u64 = 0;
/// A place whose entry has gone: further entries may lie behind it.
const GONE: u64 = 1;
/// A place whose entry cannot be found at the moment, and which no other entry takes.
const HELD: u64 = 2;

/// A block: where it begins, and its bytes, both multiples of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    pub at: usize,
    pub len: usize,
}

impl Block {
    /// The word of a block; `None`: it is too large, or no block of whole pages.
    pub fn word(self) -> Option<u64> {
        let (page, pages) = (self.at >> PAGE_SHIFT, self.len >> PAGE_SHIFT);
        let whole = (self.at | self.len) & ((1 << PAGE_SHIFT) - 1) == 0;
        let fits = page > 0 && page < 1 << (64 - LEN_BITS) && pages > 0 && pages < 1 << LEN_BITS;
        (whole && fits).then_some((page as u64) << LEN_BITS | pages as u64)
    }

    /// The block of a word, if it has one.
    pub fn of_word(word: u64) -> Option<Block> {
        let block = Block {
            at: ((word >> LEN_BITS) as usize) << PAGE_SHIFT,
            len: ((word & ((1 << LEN_BITS) - 1)) as usize) << PAGE_SHIFT,
        };
        (block.at > 0).then_some(block)
    }
}

/// An entry that cannot be found: the block's owner moves the block, changes its size, or takes it out. The
/// entry goes when this is dropped, unless it was put back.
pub struct Held<'a> {
    place: &'a AtomicU64,
    block: Block,
    since: u64,
}

impl Held<'_> {
    /// The block, as it was.
    pub fn block(&self) -> Block {
        self.block
    }

    /// The time that [`Table::insert`] was given.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Puts the entry back, with so many bytes.
    ///
    /// # Panics
    /// If a block cannot have so many.
    pub fn put_back(self, len: usize) {
        let word = Block { len, ..self.block }.word().expect("it is as large as a mapping may be");
        self.place.store(word, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.place.store(GONE, Ordering::Release);
    }
}

/// The table, over an array of zeros.
pub struct Table<W: AsRef<[AtomicU64]>> {
    words: W,
    /// For the word at the same index: the time at which its block was as new.
    since: W,
    /// The farthest that an entry ever was from its first place.
    reach: AtomicUsize,
}

impl<W: AsRef<[AtomicU64]>> Table<W> {
    /// A table over `words` and `since`, all of them 0, of the same length, a power of two.
    #[cfg(not(loom))]
    pub const fn new(words: W, since: W) -> Self {
        Self { words, since, reach: AtomicUsize::new(0) }
    }

    #[cfg(loom)]
    pub fn new(words: W, since: W) -> Self {
        Self { words, since, reach: AtomicUsize::new(0) }
    }

    /// The places where the entry of an address may be, the likeliest first.
    fn places(&self, at: usize) -> impl Iterator<Item = (&AtomicU64, &AtomicU64)> {
        let (words, since) = (self.words.as_ref(), self.since.as_ref());
        let hash = (at as u64 >> PAGE_SHIFT).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let first = (hash >> 32) as usize;
        let place = move |probe| (first + probe) & (words.len() - 1);
        (0..words.len()).map(move |probe| (&words[place(probe)], &since[place(probe)]))
    }

    /// Puts a block in that is as new at the time `now`; `false`: the table is full.
    pub fn insert(&self, block: Block, now: u64) -> bool {
        let Some(word) = block.word() else { return false };
        self.places(block.at).enumerate().any(|(distance, (place, since))| {
            let there = place.load(Ordering::Relaxed);
            if there != EMPTY && there != GONE {
                return false;
            }
            // Before the entry is there: a thread that looks the block up gets its address only after this
            // call.
            if self.reach.load(Ordering::Relaxed) < distance {
                self.reach.fetch_max(distance, Ordering::Relaxed);
            }
            let done = place.compare_exchange(there, word, Ordering::Release, Ordering::Relaxed).is_ok();
            if done {
                // No thread reads this before the block is given to the program.
                since.store(now, Ordering::Relaxed);
            }
            done
        })
    }

    fn find(&self, at: usize) -> Option<(&AtomicU64, u64, &AtomicU64)> {
        for (place, since) in self.places(at).take(self.reach.load(Ordering::Relaxed) + 1) {
            let word = place.load(Ordering::Acquire);
            if word == EMPTY {
                return None;
            }
            if Block::of_word(word).is_some_and(|block| block.at == at) {
                return Some((place, word, since));
            }
        }
        None
    }

    /// The bytes of the block at an address, if one is there.
    pub fn size_of(&self, at: usize) -> Option<usize> {
        Block::of_word(self.find(at)?.1).map(|block| block.len)
    }

    /// Holds the entry of the block at an address, if one is there.
    pub fn hold(&self, at: usize) -> Option<Held<'_>> {
        let (place, word, since) = self.find(at)?;
        let since = since.load(Ordering::Relaxed);
        let held = place.compare_exchange(word, HELD, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        Block::of_word(word).filter(|_| held).map(|block| Held { place, block, since })
    }

    /// Takes the block at an address out; tells since when it was as new.
    pub fn remove(&self, at: usize) -> Option<(Block, u64)> {
        self.hold(at).map(|held| (held.block(), held.since()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const PAGE: usize = 1 << PAGE_SHIFT;

    fn table(words: usize) -> Table<Vec<AtomicU64>> {
        let zeros = || (0..words).map(|_| AtomicU64::new(EMPTY)).collect();
        Table::new(zeros(), zeros())
    }

    #[test]
    fn words_have_all_blocks_of_whole_pages() {
        for (at, len) in [(PAGE, PAGE), ((1 << 47) - PAGE, 1 << 39), (0x7f12_3456_7000, 300 * PAGE)] {
            let block = Block { at, len };
            assert_eq!(block.word().and_then(Block::of_word), Some(block));
        }
        for (at, len) in [(0, PAGE), (PAGE, 0), (PAGE + 16, PAGE), (PAGE, PAGE + 1), (PAGE, 1 << 41)] {
            assert_eq!(Block { at, len }.word(), None, "{at:#x} {len:#x}");
        }
        assert!([EMPTY, GONE, HELD].into_iter().all(|word| Block::of_word(word).is_none()));
    }

    /// Beside a map, nearly full, with many that have gone.
    #[test]
    fn it_has_what_was_put_in_and_not_taken_out() {
        let (table, mut model, mut seed) = (table(256), BTreeMap::new(), 1_u64);
        let mut refused = 0;
        for _ in 0..200_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = ((seed >> 33) as usize % 600 + 1) * 513 * PAGE;
            let len = ((seed >> 20) as usize % 1000 + 1) * PAGE;
            assert_eq!(table.size_of(at), model.get(&at).copied());
            if model.contains_key(&at) {
                let len = model.remove(&at).unwrap();
                assert_eq!(table.remove(at), Some((Block { at, len }, at as u64)));
                assert_eq!(table.remove(at), None, "freed twice");
                continue;
            }
            if table.insert(Block { at, len }, at as u64) {
                let held = table.hold(at).unwrap();
                assert_eq!((held.block().len, table.size_of(at), table.remove(at)), (len, None, None));
                held.put_back(len + PAGE);
                let len = len + PAGE;
                model.insert(at, len);
            } else {
                refused += 1;
            }
        }
        assert!(refused == 0 || model.len() > 100, "{refused}, {}", model.len());
        assert!(refused > 0, "it is never full");
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use elbowroom_sync::Arc;

    /// Two threads put blocks in and take them out whose places are the same; each finds its own all the
    /// time.
    #[test]
    fn entries_that_share_places_do_not_hide_each_other() {
        loom::model(|| {
            let zeros = || (0..2).map(|_| AtomicU64::new(EMPTY)).collect();
            let table: Arc<Table<Vec<AtomicU64>>> = Arc::new(Table::new(zeros(), zeros()));
            let turns = |table: &Table<Vec<AtomicU64>>, first: usize| {
                for turn in 0..2 {
                    let block = Block { at: (first + turn) << PAGE_SHIFT, len: 1 << PAGE_SHIFT };
                    assert!(table.insert(block, first as u64));
                    assert_eq!(table.size_of(block.at), Some(block.len));
                    assert_eq!(table.remove(block.at), Some((block, first as u64)));
                    assert_eq!(table.size_of(block.at), None);
                }
            };
            let other = table.clone();
            let thread = loom::thread::spawn(move || turns(&other, 10));
            turns(&table, 20);
            thread.join().unwrap();
        });
    }
}
