//! Ranges of addresses for kernel engines.
//!
//! They lie far below where the kernel places mappings and above where programs and heaps are, so a placement
//! that is left open never falls into one.
//!
//! Synchronization: the counter is atomic; the set of ranges in use is under a mutex that is held for no
//! call.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::differential::engine::PAGE;

/// Below the text of programs (0x55...) and above what is loaded low.
const RANGES: Range<u64> = 0x2000_0000_0000..0x3000_0000_0000;
/// How far they are apart. The space between two stays unmapped.
const STEP: u64 = 16 << 20;

static IN_USE: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// Where a kernel engine works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    base: u64,
    pages: u64,
}

impl Site {
    /// A range of so many pages. It is not given out again until all others were.
    ///
    /// # Panics
    /// If it is larger than ranges are apart.
    pub fn new(pages: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        assert!(pages * PAGE < STEP / 4, "a range of {pages} pages is too large");
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % ((RANGES.end - RANGES.start) / STEP);
        Self { base: RANGES.start + number * STEP + STEP / 2, pages }
    }

    /// Two ranges with one page between them that nobody maps, for two threads.
    ///
    /// # Panics
    /// As [`Site::new`].
    pub fn pair(pages: u64) -> [Self; 2] {
        let first = Self::new(pages);
        [first, Self { base: first.base + (pages + 1) * PAGE, pages }]
    }

    /// Its first address.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Its size in pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }
}

/// The right to use a site, until it is dropped.
#[derive(Debug)]
pub struct Claim(Site);

impl Claim {
    /// Takes it.
    ///
    /// # Panics
    /// If another claim has it.
    pub fn new(site: Site) -> Self {
        let is_free = IN_USE.lock().unwrap_or_else(PoisonError::into_inner).insert(site.base);
        assert!(is_free, "{site:x?} is in use");
        Self(site)
    }

    /// What was claimed.
    pub fn site(&self) -> Site {
        self.0
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        IN_USE.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0.base);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_apart() {
        let [first, second] = Site::pair(100);
        let third = Site::new(100);
        assert_eq!(second.base() - first.base(), 101 * PAGE);
        assert!(third.base() - second.base() > 100 * PAGE);
    }

    #[test]
    #[should_panic(expected = "is in use")]
    fn a_site_is_claimed_once() {
        let site = Site::new(1);
        let _first = Claim::new(site);
        Claim::new(site);
    }
}
