//! An owned run of arena frames.
//!
//! # Invariants
//! 1. The frames of two live extents are disjoint: the arena hands a run out once until it is given back.
//! 2. A page that is not in `away` is at home: present in the arena at `home + index * PAGE_SIZE`, and nobody
//!    but the extent's owner reads or writes it there.
//! 3. A page in `away` is present in a window at `base + index * PAGE_SIZE`, and its home is empty, or waits
//!    to be emptied: touching it there would be a fault of our own. So every access to bytes checks that all
//!    pages are at home. Of a single page the home may change while it is away.

use crate::{PAGE_SHIFT, PageSet};

/// 2^order frames, naturally aligned in the arena, each of them at home or away in a window.
#[derive(Debug)]
pub struct Extent {
    pub(crate) home: usize,
    pub(crate) order: u8,
    /// Where page 0 is, or would be, in a window; meaningful while `away` is not empty.
    pub(crate) base: usize,
    pub(crate) away: PageSet,
    /// The frames are as the kernel gave them. Nobody looks at this but [`Extent::clear`], before anything
    /// else is done.
    zeroed: bool,
    /// A page was found lost by an unmapping that failed for another page: whoever takes the rest home is to
    /// be told.
    pub(crate) lost: bool,
}

impl Extent {
    /// An extent whose frames are all at home at `home`, and owned by nobody else.
    pub(crate) fn new(home: usize, order: u8, zeroed: bool) -> Self {
        Self { home, order, base: 0, away: PageSet::new(order), zeroed, lost: false }
    }

    /// Fills it with zeros, which frames that nobody has had before are already. Call it before anything else
    /// is done with the extent, or not at all.
    ///
    /// # Panics
    /// If a page is away.
    pub fn clear(&mut self) {
        if !std::mem::take(&mut self.zeroed) {
            self.bytes_mut().fill(0);
        }
        debug_assert!(self.bytes().iter().all(|byte| *byte == 0), "something was done with the extent");
    }

    /// The extent as extents of one page each, those of pages that are away too: they stay where they are.
    pub fn split(self) -> Vec<Extent> {
        let page = |i: usize| {
            let mut page = Extent::new(self.home + (i << PAGE_SHIFT), 0, false);
            if self.away.contains(i) {
                page.base = self.base.wrapping_add(i << PAGE_SHIFT);
                page.away.insert(0..1);
            }
            page
        };
        (0..self.pages()).map(page).collect()
    }

    /// log2 of the number of pages, 0 to 9.
    pub fn order(&self) -> u8 {
        self.order
    }

    /// How many pages it has: 1 to 512.
    pub fn pages(&self) -> usize {
        1 << self.order
    }

    /// How many bytes it has.
    pub fn len_bytes(&self) -> usize {
        self.pages() << PAGE_SHIFT
    }

    /// Whether all its pages are at home, so that their bytes may be used.
    pub fn is_home(&self) -> bool {
        self.away.is_empty()
    }

    /// Whether bytes of it were lost in a window, and nobody was told yet: what is at home is not what it
    /// should be.
    pub fn is_damaged(&self) -> bool {
        self.lost
    }

    /// The pages that are in a window.
    pub fn away(&self) -> &PageSet {
        &self.away
    }

    /// The window address of its page 0, if any page is away.
    pub fn base(&self) -> Option<usize> {
        (!self.is_home()).then_some(self.base)
    }

    /// The address of its first byte at home, page-aligned, for I/O engines, which own the extent while they
    /// use it.
    ///
    /// # Panics
    /// If a page is away.
    pub fn home_ptr(&self) -> *mut u8 {
        assert!(self.is_home(), "a page of the extent is away");
        self.home as *mut u8
    }

    /// Its bytes.
    ///
    /// # Panics
    /// If a page is away.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: (1) all pages are at home (home_ptr checks), so by invariant 2 the range is mapped,
        // readable memory of the arena that only this extent's owner uses; (2) writes need `&mut self`, so
        // none happens while the slice lives.
        unsafe { std::slice::from_raw_parts(self.home_ptr(), self.len_bytes()) }
    }

    /// Its bytes, to be written.
    ///
    /// # Panics
    /// If a page is away.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.home_ptr(), self.len_bytes()) }
    }
}
