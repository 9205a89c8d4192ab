//! Freed blocks that are kept for the next allocation of their size. Linux's libc has the same for blocks
//! of up to 32 MiB, by raising its threshold for mappings.
//!
//! Synchronization: lock-free. A word describes a whole block, so a block comes and goes in one step.

use crate::table::Block;
use elbowroom_sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The size of the largest block that is kept, in bytes.
const LARGEST: usize = 32 << 20;

/// Blocks that are kept.
pub struct Cache<W: AsRef<[AtomicU64]>> {
    words: W,
    bytes: AtomicUsize,
    most: AtomicUsize,
}

impl<W: AsRef<[AtomicU64]>> Cache<W> {
    /// An empty cache over `words`, all of them 0.
    pub const fn new(words: W) -> Self {
        Self { words, bytes: AtomicUsize::new(0), most: AtomicUsize::new(0) }
    }

    /// Keeps up to so many bytes from now on.
    pub fn set_most(&self, bytes: usize) {
        self.most.store(bytes, Ordering::Relaxed);
    }

    /// Keeps a block; `false`: there is no room for it.
    pub fn put(&self, block: Block) -> bool {
        let Some(word) = block.word() else { return false };
        let before = self.bytes.fetch_add(block.len, Ordering::Relaxed);
        let room = block.len <= LARGEST && before + block.len <= self.most.load(Ordering::Relaxed);
        let kept = room
            && self.words.as_ref().iter().any(|place| {
                place.load(Ordering::Relaxed) == 0
                    && place.compare_exchange(0, word, Ordering::Release, Ordering::Relaxed).is_ok()
            });
        if !kept {
            self.bytes.fetch_sub(block.len, Ordering::Relaxed);
        }
        kept
    }

    /// Whether the block at an address is kept.
    pub fn has(&self, at: usize) -> bool {
        let words = self.words.as_ref().iter().map(|place| place.load(Ordering::Relaxed));
        words.filter_map(Block::of_word).any(|block| block.at == at)
    }

    /// Takes a block of at least `len` bytes, and hardly more: the smallest.
    pub fn take(&self, len: usize) -> Option<Block> {
        if self.bytes.load(Ordering::Relaxed) < len {
            return None;
        }
        loop {
            let fits = |block: &Block| block.len >= len && block.len - len <= len / 4;
            let words = self.words.as_ref().iter().map(|place| (place, place.load(Ordering::Relaxed)));
            let blocks = words.filter_map(|(place, word)| Some((place, word, Block::of_word(word)?)));
            let (place, word, block) =
                blocks.filter(|(_, _, block)| fits(block)).min_by_key(|(_, _, block)| block.len)?;
            if place.compare_exchange(word, 0, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                self.bytes.fetch_sub(block.len, Ordering::Relaxed);
                return Some(block);
            }
        }
    }

    /// Takes all blocks.
    pub fn take_all(&self) -> impl Iterator<Item = Block> {
        let words = self.words.as_ref().iter().map(|place| place.swap(0, Ordering::Acquire));
        words.filter_map(Block::of_word).inspect(|block| {
            self.bytes.fetch_sub(block.len, Ordering::Relaxed);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn cache(words: usize, most: usize) -> Cache<Vec<AtomicU64>> {
        let cache = Cache::new((0..words).map(|_| AtomicU64::new(0)).collect());
        cache.set_most(most);
        cache
    }

    #[test]
    fn the_smallest_that_fits_is_taken_and_no_much_larger_one() {
        let cache = cache(4, 1000 * PAGE);
        let block = |at: usize, pages: usize| Block { at: at * PAGE, len: pages * PAGE };
        for kept in [block(1000, 100), block(2000, 110), block(3000, 200)] {
            assert!(cache.put(kept));
        }
        assert!(cache.has(2000 * PAGE) && !cache.has(2001 * PAGE));
        assert_eq!(cache.take(105 * PAGE), Some(block(2000, 110)));
        assert!(!cache.has(2000 * PAGE));
        assert_eq!(cache.take(120 * PAGE), None, "200 pages are too many");
        assert_eq!(cache.take(99 * PAGE), Some(block(1000, 100)));
        assert_eq!(cache.take(99 * PAGE), None);
        assert_eq!(cache.take_all().collect::<Vec<_>>(), [block(3000, 200)]);
        assert_eq!((cache.take(200 * PAGE), cache.bytes.load(Ordering::Relaxed)), (None, 0));
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let cache = cache(2, 100 * PAGE);
        let block = |at: usize, pages: usize| Block { at: at * PAGE, len: pages * PAGE };
        assert!(cache.put(block(1000, 60)) && !cache.put(block(2000, 60)) && cache.put(block(3000, 20)));
        assert!(!cache.put(block(4000, 10)), "no place");
        assert!(!Cache { most: AtomicUsize::new(usize::MAX), ..cache }.put(block(5000, 10_000)), "too large");
    }
}
