//! Which pages of a folio differ from the file, or may.
//!
//! A page is dirty before the first store to it can happen. For a page whose store a fault was taken for,
//! that is known; one that was made writable ahead of its store is a guess: it is dirty exactly if its bytes
//! are no longer what they were. So a guess keeps a checksum of them. Before such a page is written, or
//! dropped, it is settled: one that nobody has stored to is clean, and not written, since what others have
//! written to the file meanwhile would be undone.

use elbowroom_machine::PageSet;
use elbowroom_sync::Mutant;
use std::ops::Range;

/// In tests of the tests: what is guessed to be dirty is taken for clean.
const MUTANT_FORGET_GUESSES: Mutant = Mutant::new("forget_guesses");

/// A page that was made writable ahead of its store, and the checksum that it had.
#[derive(Clone, Copy)]
struct Guess {
    page: u16,
    sum: u64,
}

/// The dirty pages of one folio. Belongs to who has its lock.
pub struct Dirty {
    pages: PageSet,
    /// Hardly any folio has one.
    guesses: Option<Box<Guesses>>,
}

/// In a box of its own, so that folios without one are small.
#[derive(Default)]
struct Guesses(Vec<Guess>);

impl Dirty {
    /// None of 2^`order` pages.
    pub fn new(order: u8) -> Self {
        Self { pages: PageSet::new(order), guesses: None }
    }

    /// The pages, guesses among them.
    pub fn pages(&self) -> &PageSet {
        &self.pages
    }

    /// Whether the page is dirty, or guessed to be.
    pub fn contains(&self, page: usize) -> bool {
        self.pages.contains(page)
    }

    /// Whether no page is, and none is guessed to be.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Whether all that are dirty, if any, are guessed to be.
    pub fn is_all_guesses(&self) -> bool {
        self.pages.count() == self.guesses.as_ref().map_or(0, |guesses| guesses.0.len())
    }

    /// How many pages there are, guesses among them.
    pub fn count(&self) -> usize {
        self.pages.count()
    }

    /// How many of `pages`.
    pub fn count_in(&self, pages: Range<usize>) -> usize {
        self.pages.count_in(pages)
    }

    /// A page that is stored to.
    pub fn insert(&mut self, page: usize) {
        self.pages.insert(page..page + 1);
    }

    /// A page that is not dirty, with checksum `sum`, of which stores are not seen from now on.
    pub fn guess(&mut self, page: usize, sum: u64) {
        debug_assert!(!self.pages.contains(page), "a dirty page is guessed to be");
        self.pages.insert(page..page + 1);
        self.guesses.get_or_insert_default().0.push(Guess { page: page as u16, sum });
    }

    /// The pages are clean, or gone.
    pub fn remove(&mut self, pages: Range<usize>) {
        self.pages.remove(pages.clone());
        self.keep_guesses(|page| !pages.contains(&page));
    }

    /// All are.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.guesses = None;
    }

    /// Only those of `pages` are left, which were all settled.
    pub fn retain(&mut self, pages: PageSet) {
        debug_assert!(self.guesses.is_none(), "guesses are settled before pages are written");
        self.pages = pages;
    }

    /// Takes those guesses out whose bytes have the checksum that they had, as `sum_of` tells it; the others
    /// are known to be dirty from now on. Tells how many were taken out.
    pub fn settle(&mut self, sum_of: impl Fn(usize) -> u64) -> usize {
        let Some(guesses) = self.guesses.take() else { return 0 };
        let mut unchanged = 0;
        for guess in guesses.0 {
            let page = usize::from(guess.page);
            if sum_of(page) == guess.sum || MUTANT_FORGET_GUESSES.planted() {
                self.pages.remove(page..page + 1);
                unchanged += 1;
            }
        }
        unchanged
    }

    fn keep_guesses(&mut self, keep: impl Fn(usize) -> bool) {
        if let Some(guesses) = &mut self.guesses {
            guesses.0.retain(|guess| keep(usize::from(guess.page)));
            if guesses.0.is_empty() {
                self.guesses = None;
            }
        }
    }
}

/// The checksum of a page's bytes: XXH3, of 64 bits. Two contents of a page have the same by chance once in
/// 2^64.
pub fn checksum(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_is_dirty_only_if_its_bytes_have_changed() {
        let mut dirty = Dirty::new(4);
        assert!(dirty.is_all_guesses(), "there are none");
        dirty.guess(3, 30);
        dirty.guess(4, 40);
        dirty.guess(5, 50);
        assert!(dirty.is_all_guesses());
        dirty.insert(9);
        assert!(!dirty.is_all_guesses());
        assert_eq!(dirty.settle(|page| if page == 4 { 41 } else { page as u64 * 10 }), 2);
        assert!(dirty.contains(4) && dirty.contains(9));
        assert_eq!(dirty.count(), 2);
        assert_eq!(dirty.settle(|_| 0), 0, "each is settled once");
    }

    #[test]
    fn what_is_removed_is_no_guess_any_more() {
        let mut dirty = Dirty::new(9);
        dirty.guess(500, 1);
        dirty.remove(400..511);
        assert!(dirty.is_empty() && dirty.is_all_guesses());
        // Stored to later: its bytes may be what they once were.
        dirty.insert(500);
        assert_eq!(dirty.settle(|_| 1), 0);
        assert!(dirty.contains(500));
        dirty.guess(1, 7);
        dirty.clear();
        dirty.insert(1);
        assert_eq!(dirty.settle(|_| 7), 0);
        assert_eq!(dirty.count(), 1);
    }

    #[test]
    fn one_bit_changes_the_checksum() {
        let mut bytes = [0; 4096];
        let sum = checksum(&bytes);
        for bit in [0, 4095 * 8, 17_001] {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(&bytes), sum, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
