//! An owned run of arena frames, and the places where its pages are mapped.
//!
//! # Invariants
//! 1. The frames of two live extents are disjoint: the arena hands a run out once until it is given back.
//! 2. A page that is mapped in no place is at home: present in the arena at `home + index * PAGE_SIZE`, and
//!    only the extent's owner reads or writes it there.
//! 3. A page that is mapped in a place is away: it is at that place's `base + index * PAGE_SIZE`. With the
//!    host MMU it is in one place, and its home is empty, or waits to be emptied: an access by the manager
//!    to the home would itself fault. With the soft MMU its bytes stay in the arena, where all spaces that
//!    map it use them by atomic accesses, through any number of places. So every access to bytes by the
//!    owner checks that all pages are at home. With the host MMU the home of a single page may change while
//!    it is away.
//! 4. Outside of a call of the MMU, each place in the list has a page.
//!
//! The list is in the extent, and not beside it, because whether `bytes` is sound depends on it being empty.

use crate::{Membership, PAGE_SHIFT, PAGE_SIZE, PageSet};
use smallvec::SmallVec;
use std::ops::Range;

/// Where pages of an extent are mapped.
#[derive(Debug)]
pub struct MappedAt {
    /// The address of page 0, mapped or not; it wraps.
    pub(crate) base: usize,
    /// The pages that are mapped.
    pub(crate) pages: PageSet,
}

impl MappedAt {
    /// The address of page 0, or where it would be. It wraps: page 0 may lie before address 0.
    pub fn base(&self) -> usize {
        self.base
    }

    /// The pages that are mapped there.
    pub fn pages(&self) -> &PageSet {
        &self.pages
    }

    /// Whether one of the pages is mapped at the address, a multiple of [`crate::PAGE_SIZE`].
    pub fn has(&self, addr: usize) -> bool {
        let page = addr.wrapping_sub(self.base) >> PAGE_SHIFT;
        page < self.pages.capacity() && self.pages.contains(page)
    }

    /// The addresses of all pages, mapped or not; the end wraps.
    pub(crate) fn range(&self, order: u8) -> Range<usize> {
        self.base..self.base.wrapping_add(1 << (PAGE_SHIFT + u32::from(order)))
    }
}

/// 2^order frames, naturally aligned in the arena, and where their pages are mapped. How many places it may
/// have at a time is the MMU's to say: [`Mmu::PLACES`](crate::Mmu::PLACES). Linux: the length of the list is
/// a folio's `_mapcount`.
#[derive(Debug)]
pub struct Extent {
    pub(crate) home: usize,
    pub(crate) order: u8,
    /// Hardly ever more than one place.
    pub(crate) places: SmallVec<[MappedAt; 1]>,
    /// The frames are all zeros, as the kernel gave them. Only [`Extent::clear`] reads this; writing to the
    /// extent does not reset it.
    zeroed: bool,
    /// An unmapping found a page lost, but failed for another page. The unmapping that takes the rest home
    /// reports the loss.
    pub(crate) lost: bool,
}

impl Extent {
    /// An extent whose frames are all at home at `home`, and in no other extent.
    pub(crate) fn new(home: usize, order: u8, zeroed: bool) -> Self {
        Self { home, order, places: SmallVec::new(), zeroed, lost: false }
    }

    /// Fills the extent with zeros; does nothing if its frames were never used and so are zeros already.
    /// Call it before anything else is done with the extent, or not at all.
    ///
    /// # Panics
    /// If a page is away.
    pub fn clear(&mut self) {
        if !std::mem::take(&mut self.zeroed) {
            self.bytes_mut().fill(0);
        }
        debug_assert!(self.bytes().iter().all(|byte| *byte == 0), "something was done with the extent");
    }

    /// Splits the extent into extents of 2^`order` pages each. Pages that are away stay mapped where they
    /// are.
    ///
    /// # Panics
    /// If the extent is smaller than that.
    pub fn split(self, order: u8) -> Vec<Extent> {
        assert!(order <= self.order, "an extent is split into larger ones");
        let len = 1 << order;
        let part = |first: usize| {
            let mut part = Extent::new(self.home + (first << PAGE_SHIFT), order, self.zeroed);
            for place in &self.places {
                let mut rest = first..first + len;
                while let Some(run) = place.pages.first_run(rest.clone(), Membership::In) {
                    let base = place.base.wrapping_add(first << PAGE_SHIFT);
                    part.place_at(base).insert(run.start - first..run.end - first);
                    rest.start = run.end;
                }
            }
            part
        };
        (0..self.pages()).step_by(len).map(part).collect()
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
        self.places.is_empty()
    }

    /// Whether bytes of the extent were lost in a window, and no unmapping has reported that yet: the bytes
    /// at home are wrong.
    pub fn is_damaged(&self) -> bool {
        self.lost
    }

    /// Has the next unmapping of the extent report [`UnmapError::Lost`](crate::UnmapError::Lost).
    pub fn note_damaged(&mut self) {
        self.lost = true;
    }

    /// Where its pages are mapped.
    pub fn places(&self) -> &[MappedAt] {
        &self.places
    }

    /// The place with page 0 at `base`, if any page is mapped there.
    pub fn place(&self, base: usize) -> Option<&MappedAt> {
        self.places.iter().find(|place| place.base == base)
    }

    /// Whether page `page` is mapped in the place with page 0 at `base`.
    pub fn is_mapped(&self, base: usize, page: usize) -> bool {
        self.place(base).is_some_and(|place| place.pages.contains(page))
    }

    /// The pages of the place at `base`, which is made if there is none; to be followed by
    /// [`Extent::forget_empty_places`].
    pub(crate) fn place_at(&mut self, base: usize) -> &mut PageSet {
        let at = self.places.iter().position(|place| place.base == base).unwrap_or_else(|| {
            self.places.push(MappedAt { base, pages: PageSet::new(self.order) });
            self.places.len() - 1
        });
        &mut self.places[at].pages
    }

    /// The first run of pages inside `within` that are mapped, or are not mapped, in the place at `base`.
    pub(crate) fn first_run(
        &self,
        base: usize,
        within: Range<usize>,
        member: Membership,
    ) -> Option<Range<usize>> {
        match self.place(base) {
            Some(place) => place.pages.first_run(within, member),
            None => (member == Membership::Out && !within.is_empty()).then_some(within),
        }
    }

    /// Notes that pages are mapped in the place at `base`.
    pub(crate) fn note_mapped(&mut self, base: usize, pages: Range<usize>) {
        if !pages.is_empty() {
            self.place_at(base).insert(pages);
        }
    }

    /// Notes that pages are no longer mapped in the place at `base`.
    pub(crate) fn note_home(&mut self, base: usize, pages: Range<usize>) {
        if let Some(place) = self.places.iter_mut().find(|place| place.base == base) {
            place.pages.remove(pages);
        }
        self.forget_empty_places();
    }

    /// Removes the places from the list that have no page any more.
    pub(crate) fn forget_empty_places(&mut self) {
        self.places.retain(|place| !place.pages.is_empty());
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

    /// The bytes of a page that is at home; `None`: it is away.
    ///
    /// # Panics
    /// If there is no such page.
    pub(crate) fn page_at_home(&self, page: usize) -> Option<&[u8]> {
        assert!(page < self.pages(), "no such page");
        if self.places.iter().any(|place| place.pages.contains(page)) {
            return None;
        }
        let at = self.home + (page << PAGE_SHIFT);
        // SAFETY: (1) the page is at home, so by invariant 2 it is mapped, readable memory of the arena that
        // only this extent's owner uses; (2) writes need `&mut self`, so none happens while the slice lives.
        Some(unsafe { std::slice::from_raw_parts(at as *const u8, PAGE_SIZE) })
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
