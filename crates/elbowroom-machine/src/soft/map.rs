//! Mapping and unmapping.

use super::pte::{Entry, Intent, Progress};
use super::tree::{LEAF_SHIFT, LockedLeaf, Tree, entry_index};
use super::{DRAIN_TRIES, Shared, SoftMmu};
use crate::{Access, Errno, Extent, PAGE_SHIFT, PAGE_SIZE, UnmapError, Wake, surrounding_pages};
use elbowroom_sync::Mutant;
use elbowroom_sync::atomic::{Ordering, fence};
use elbowroom_sync::thread;
use smallvec::SmallVec;
use std::ops::Range;

/// In tests of the tests: an unmap forgets all places of an extent but the first.
const MUTANT_FORGET_PLACES: Mutant = Mutant::new("forget_places");

/// A position in the page tables, with the lock of its leaf, so that entries of one leaf are visited under
/// one lock.
struct Cursor<'a> {
    tree: &'a Tree,
    held: Option<LockedLeaf<'a>>,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(tree: &'a Tree) -> Self {
        Self { tree, held: None, at: usize::MAX }
    }

    /// Whether the lock of `addr`'s leaf is held; if not, releases the lock that is held.
    fn has(&mut self, addr: usize) -> bool {
        let same = self.at == addr >> LEAF_SHIFT && self.held.is_some();
        if !same && let Some(held) = self.held.take() {
            held.release(self.tree);
        }
        self.at = addr >> LEAF_SHIFT;
        same
    }

    /// The entry of `addr` and its leaf's count of used entries, if there is a leaf.
    fn find(&mut self, addr: usize) -> Option<(&'a Entry, &mut u32)> {
        if !self.has(addr) {
            self.held = self.tree.lock_leaf(addr);
        }
        let held = self.held.as_mut()?;
        Some((&held.leaf.entries[entry_index(addr)], &mut held.state.used))
    }

    /// [`Cursor::find`], but makes the leaf if there is none.
    fn make(&mut self, addr: usize) -> Result<(&'a Entry, &mut u32), Errno> {
        if !self.has(addr) {
            self.held = Some(self.tree.lock_or_make_leaf(addr)?);
        }
        self.find(addr).ok_or(Errno::NOENT)
    }
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            held.release(self.tree);
        }
    }
}

/// The address at which page `page` of an extent is mapped, or would be.
fn address_of(base: usize, page: usize) -> usize {
    base.wrapping_add(page << PAGE_SHIFT)
}

/// Waits, within a bound, until the pages that are leaving have no pins any more; returns whether that is
/// so.
fn drained<'a>(mut entries: impl Iterator<Item = &'a Entry>) -> bool {
    let mut tries = 0;
    entries.all(|entry| {
        while entry.load().pins() > 0 {
            if tries == DRAIN_TRIES {
                return false;
            }
            tries += 1;
            // A store keeps its pin for a few instructions, unless its thread is not running.
            if tries % 2 == 0 { thread::yield_now() } else { std::hint::spin_loop() }
        }
        true
    })
}

/// A page whose mapping was taken away while it was pinned.
struct Leaving<'a> {
    extent: usize,
    base: usize,
    page: usize,
    entry: &'a Entry,
}

/// Which places to unmap pages from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    /// Only the place with page 0 at this address.
    Base(usize),
}

impl Scope {
    fn has(self, base: usize) -> bool {
        self == Scope::All || self == Scope::Base(base)
    }
}

impl SoftMmu {
    /// Maps those of `pages` that are not mapped there yet, so that page 0 of the extent is, or would be,
    /// at `base`. Other places where they are mapped stay. No thread is woken, since none waits in this
    /// MMU.
    ///
    /// # Errors
    /// ENOENT: the address is in no space that exists. EEXIST: another page is mapped there. ENOMEM: no
    /// room for a page table. EINVAL: `base` is not the address of a page. Some of the pages may be mapped
    /// then; the extent knows which.
    ///
    /// # Panics
    /// If the extent is not of this arena.
    pub fn map(
        &self,
        extent: &mut Extent,
        base: usize,
        pages: Range<usize>,
        access: Access,
        _wake: Wake,
    ) -> Result<(), Errno> {
        let mut cursor = Cursor::new(&self.shared.tree);
        let mapped = self.shared.map(&mut cursor, extent, base, pages, access);
        extent.forget_empty_places();
        mapped
    }

    /// Takes all pages of the extent home. From now on accesses to them fault, and no read returns bytes
    /// that are stored in the frames later; all earlier stores are in the extent.
    ///
    /// # Errors
    /// [`UnmapError::Busy`]: some are pinned, and still away; the rest are home. Never [`UnmapError::Lost`].
    pub fn unmap(&self, extent: &mut Extent) -> Result<(), UnmapError> {
        self.shared.unmap(std::slice::from_mut(extent), Scope::All)
    }

    /// Takes the pages of the extent out of the place with page 0 at `base`, as [`SoftMmu::unmap`] does out
    /// of all.
    ///
    /// # Errors
    /// As for [`SoftMmu::unmap`].
    pub fn unmap_at(&self, extent: &mut Extent, base: usize) -> Result<(), UnmapError> {
        self.shared.unmap(std::slice::from_mut(extent), Scope::Base(base))
    }

    /// Takes the pages of extents of one page each home. Afterwards the extents tell which are home.
    ///
    /// # Panics
    /// If an extent has several pages.
    pub fn unmap_clean(&self, extents: &mut [Extent]) {
        assert!(extents.iter().all(|e| e.order == 0), "unmap_clean is for single pages");
        // The error is ignored: extents whose page is pinned show that it is still away.
        let _ = self.shared.unmap(extents, Scope::All);
    }

    /// Makes the mapped pages of `range` writable.
    ///
    /// # Errors
    /// None; the host MMU has some.
    pub fn make_writable(&self, range: Range<usize>, _wake: Wake) -> Result<(), Errno> {
        self.shared.in_range(range, Entry::make_writable);
        Ok(())
    }
}

impl Shared {
    fn map(
        &self,
        cursor: &mut Cursor<'_>,
        extent: &mut Extent,
        base: usize,
        within: Range<usize>,
        access: Access,
    ) -> Result<(), Errno> {
        assert!(within.end <= extent.pages(), "pages beyond the extent");
        let first = self.frames.arena().frame_of(extent);
        if !base.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::INVAL);
        }
        let rights = if access == Access::Write { Intent::Write } else { Intent::Read };
        let mapped = extent.place_at(base);
        for page in within {
            if mapped.contains(page) {
                continue;
            }
            let (entry, used) = cursor.make(address_of(base, page))?;
            entry.install(first + page as u32, rights, &self.epoch).map_err(|_| Errno::EXIST)?;
            *used += 1;
            mapped.insert_page(page);
        }
        Ok(())
    }

    fn unmap(&self, extents: &mut [Extent], scope: Scope) -> Result<(), UnmapError> {
        if MUTANT_FORGET_PLACES.planted() {
            extents.iter_mut().for_each(|extent| extent.places.truncate(1));
        }
        let has_any = |extent: &Extent| extent.places.iter().any(|place| scope.has(place.base));
        if !extents.iter().any(has_any) {
            return Ok(());
        }
        let mut leaving = Vec::new();
        let mut cursor = Cursor::new(&self.tree);
        for (index, extent) in extents.iter_mut().enumerate() {
            let (first, pages) = (self.frames.arena().frame_of(extent), extent.pages());
            for place in extent.places.iter_mut().filter(|place| scope.has(place.base)) {
                for page in 0..pages {
                    if !place.pages.contains(page) {
                        continue;
                    }
                    let (entry, used) =
                        cursor.find(address_of(place.base, page)).expect("an away page is mapped");
                    match entry.begin_clear(first + page as u32) {
                        Progress::Done => {
                            *used -= 1;
                            place.pages.remove_page(page);
                        }
                        Progress::Pinned => {
                            leaving.push(Leaving { extent: index, base: place.base, page, entry })
                        }
                    }
                }
            }
        }
        drop(cursor);
        let result = if leaving.is_empty() { Ok(()) } else { self.end_unmap(extents, &leaving) };
        // Orders the cleared entries before the next use of the frames (see `soft`'s documentation), and
        // before the look for subscribers (see the notifier's).
        fence(Ordering::SeqCst);
        let of = |extent: &'_ Extent| {
            let places = extent.places.iter().filter(|place| scope.has(place.base));
            places.map(|place| place.range(extent.order)).collect::<SmallVec<[_; 2]>>()
        };
        self.notifier.publish(extents.iter().flat_map(of));
        extents.iter_mut().for_each(Extent::forget_empty_places);
        result
    }

    /// Waits a moment for the pins to be released, with no lock held; then ends the unmapping of pages
    /// without pins, and undoes that of the others.
    fn end_unmap(&self, extents: &mut [Extent], leaving: &[Leaving<'_>]) -> Result<(), UnmapError> {
        drained(leaving.iter().map(|l| l.entry));
        let mut result = Ok(());
        let mut cursor = Cursor::new(&self.tree);
        for page in leaving {
            let found = cursor.find(address_of(page.base, page.page));
            let (entry, used) = found.expect("a leaving page keeps its table");
            match entry.end_clear() {
                Progress::Done => {
                    *used -= 1;
                    extents[page.extent].place_at(page.base).remove_page(page.page);
                }
                Progress::Pinned => result = Err(UnmapError::Busy),
            }
        }
        result
    }

    /// Calls `visit` with the entry of each page of `range` for which there is a table.
    fn in_range(&self, range: Range<usize>, visit: impl Fn(&Entry)) {
        let pages = surrounding_pages(range.start, range.len());
        let mut cursor = Cursor::new(&self.tree);
        let mut addr = pages.start;
        while addr < pages.end {
            if let Some((entry, _)) = cursor.find(addr) {
                visit(entry);
                addr += PAGE_SIZE;
            } else {
                // Skips to the next table.
                addr = ((addr >> LEAF_SHIFT) + 1).saturating_mul(1 << LEAF_SHIFT);
            }
        }
    }
}
