//! Which pages of a folio differ from the file, or may.
//!
//! A page is dirty before the first store to it can happen. A page on which a store faulted is known to be
//! dirty. A page that was made writable ahead of a store is a guess: it is dirty exactly if its bytes have
//! changed since, so a guess keeps a checksum of them. Before such a page is written or dropped, the guess
//! is settled: a page whose bytes are the same is clean and is not written, since that would undo what
//! others have written to the file meanwhile.

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

/// The dirty pages of one folio. Belongs to the thread that holds the folio's lock.
pub struct Dirty {
    pages: PageSet,
    /// Hardly any folio has guesses.
    guesses: Option<Box<Guesses>>,
}

/// In a box of their own, so that folios without guesses are small.
#[derive(Default)]
struct Guesses(Vec<Guess>);

impl Dirty {
    /// The set of a folio of 2^`order` pages, none of which is dirty.
    pub fn new(order: u8) -> Self {
        Self { pages: PageSet::new(order), guesses: None }
    }

    /// The dirty pages, guesses among them.
    pub fn pages(&self) -> &PageSet {
        &self.pages
    }

    /// Whether the page is dirty, or guessed to be.
    pub fn contains(&self, page: usize) -> bool {
        self.pages.contains(page)
    }

    /// Whether no page is dirty, or guessed to be.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Whether no page is known to be dirty: the pages of the set, if any, are guesses.
    pub fn is_all_guesses(&self) -> bool {
        self.pages.count() == self.guesses.as_ref().map_or(0, |guesses| guesses.0.len())
    }

    /// How many pages are dirty, guesses among them.
    pub fn count(&self) -> usize {
        self.pages.count()
    }

    /// How many of `pages` are dirty, guesses among them.
    pub fn count_in(&self, pages: Range<usize>) -> usize {
        self.pages.count_in(pages)
    }

    /// Adds a page that is about to be stored to.
    pub fn insert(&mut self, page: usize) {
        self.pages.insert(page..page + 1);
    }

    /// Adds a clean page with checksum `sum` as a guess: from now on stores to the page do not fault.
    pub fn guess(&mut self, page: usize, sum: u64) {
        debug_assert!(!self.pages.contains(page), "a dirty page is guessed to be");
        self.pages.insert(page..page + 1);
        self.guesses.get_or_insert_default().0.push(Guess { page: page as u16, sum });
    }

    /// Removes pages that are clean now, or gone.
    pub fn remove(&mut self, pages: Range<usize>) {
        self.pages.remove(pages.clone());
        self.keep_guesses(|page| !pages.contains(&page));
    }

    /// Removes all pages.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.guesses = None;
    }

    /// Keeps only `pages` in the set; all guesses were settled before.
    pub fn retain(&mut self, pages: PageSet) {
        debug_assert!(self.guesses.is_none(), "guesses are settled before pages are written");
        self.pages = pages;
    }

    /// Settles all guesses: removes the pages whose checksum, as `sum_of` computes it, is still the same;
    /// the others are known to be dirty from now on. Returns how many were removed.
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
