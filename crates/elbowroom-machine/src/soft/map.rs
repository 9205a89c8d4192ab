//! Mapping, unmapping and protecting.

use super::pte::{Entry, Intent, Progress};
use super::tree::{LEAF_SHIFT, LockedLeaf, Tree, entry_index};
use super::{DRAIN_TRIES, Shared, SoftMmu};
use crate::{Access, Errno, Extent, PAGE_SHIFT, PAGE_SIZE, PageSet, UnmapError, Wake, surrounding_pages};
use elbowroom_sync::atomic::{Ordering, fence};
use elbowroom_sync::thread;
use std::ops::Range;

/// A place in the page tables, with the lock of the table that it is in: neighbours are visited under one
/// lock.
struct Cursor<'a> {
    tree: &'a Tree,
    held: Option<LockedLeaf<'a>>,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(tree: &'a Tree) -> Self {
        Self { tree, held: None, at: usize::MAX }
    }

    /// Whether the leaf of `addr` is the one that is held; if not, none is held any more.
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

    /// The same, with a leaf made if need be.
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

/// Where page `page` of an extent is, or would be.
fn address_of(base: usize, page: usize) -> usize {
    base.wrapping_add(page << PAGE_SHIFT)
}

/// Whether the pages whose rights must go have no pins any more: waits for that, but not for long.
fn drained<'a>(mut entries: impl Iterator<Item = &'a Entry>) -> bool {
    let mut tries = 0;
    entries.all(|entry| {
        while entry.load().pins() > 0 {
            if tries == DRAIN_TRIES {
                return false;
            }
            tries += 1;
            // A store that is under way needs a few instructions, unless its thread does not run.
            if tries % 2 == 0 { thread::yield_now() } else { std::hint::spin_loop() }
        }
        true
    })
}

/// A page whose mapping was taken away while it was pinned.
struct Leaving<'a> {
    extent: usize,
    page: usize,
    entry: &'a Entry,
}

impl SoftMmu {
    /// Maps those of `pages` that are at home, so that page 0 of the extent is, or would be, at `base`.
    /// Nobody is woken: nobody waits here.
    ///
    /// # Errors
    /// ENOENT: not in a space that exists. EEXIST: another page is mapped there. ENOMEM: no room for a page
    /// table. EINVAL: `base` is not the address of a page. Some of the pages may be mapped then; the extent
    /// knows which.
    ///
    /// # Panics
    /// If pages of the extent are away at another base, or it is not of this arena.
    pub fn map(
        &self,
        extent: &mut Extent,
        base: usize,
        pages: Range<usize>,
        access: Access,
        _wake: Wake,
    ) -> Result<(), Errno> {
        let mut cursor = Cursor::new(&self.shared.tree);
        self.shared.map(&mut cursor, extent, base, pages, access)
    }

    /// Maps extents of one page each, one after the other from `addr` on: a batch of pages that came in
    /// together. Each page table is locked once.
    ///
    /// # Errors
    /// As for [`SoftMmu::map`]: the extents before the one that failed are mapped.
    ///
    /// # Panics
    /// If an extent is not at home, or has several pages.
    pub fn map_pages(&self, extents: &mut [Extent], addr: usize, access: Access) -> Result<(), Errno> {
        let mut cursor = Cursor::new(&self.shared.tree);
        extents.iter_mut().enumerate().try_for_each(|(i, extent)| {
            assert!(extent.order == 0 && extent.is_home(), "map_pages is for single pages at home");
            self.shared.map(&mut cursor, extent, address_of(addr, i), 0..1, access)
        })
    }

    /// Takes all pages of the extent home. Whoever touches them in the space from now on faults, no read
    /// returns bytes that it read from now on, and all stores are in the extent.
    ///
    /// # Errors
    /// [`UnmapError::Busy`]: some are pinned, and still away; the rest are home. Never [`UnmapError::Lost`].
    pub fn unmap(&self, extent: &mut Extent) -> Result<(), UnmapError> {
        self.shared.unmap(std::slice::from_mut(extent))
    }

    /// Takes many extents home, as [`SoftMmu::unmap`] does one. Neighbours are visited under one lock.
    ///
    /// # Errors
    /// As for [`SoftMmu::unmap`]; the extents tell which are home.
    pub fn unmap_pages(&self, extents: &mut [Extent]) -> Result<(), UnmapError> {
        self.shared.unmap(extents)
    }

    /// Takes home what is away of extents of one page each. The extents tell afterwards which are home.
    ///
    /// # Panics
    /// If an extent has several pages.
    pub fn unmap_clean(&self, extents: &mut [Extent]) {
        assert!(extents.iter().all(|e| e.order == 0), "unmap_clean is for single pages");
        // Those that are pinned are still away, as the extents tell.
        let _ = self.shared.unmap(extents);
    }

    /// Lets stores to the mapped pages of `range` through. The pages are dirty from now on.
    ///
    /// # Errors
    /// None; the host MMU has some.
    pub fn make_writable(&self, range: Range<usize>, _wake: Wake) -> Result<(), Errno> {
        self.shared.in_range(range, |_, entry| entry.make_writable());
        Ok(())
    }

    /// Takes the right to store to the mapped pages of `range` away: a store that has not ended when this
    /// returns becomes a fault.
    ///
    /// # Errors
    /// [`UnmapError::Busy`]: some are pinned, for whatever, and as they were; the rest are protected.
    pub fn write_protect(&self, range: Range<usize>) -> Result<(), UnmapError> {
        let mut pinned = Vec::new();
        self.shared.in_range(range.clone(), |addr, entry| {
            if let Some((seen, Progress::Pinned)) = entry.begin_protect() {
                pinned.push((addr, entry, seen));
            }
        });
        let mut busy = false;
        if !pinned.is_empty() {
            drained(pinned.iter().map(|&(_, entry, _)| entry));
            let mut cursor = Cursor::new(&self.shared.tree);
            for (addr, entry, seen) in pinned {
                // If its table is gone, so is the page.
                let same = cursor.find(addr).is_some_and(|(now, _)| std::ptr::eq(now, entry));
                busy |= same && entry.end_protect(seen) == Progress::Pinned;
            }
        }
        fence(Ordering::SeqCst);
        self.shared.notifier.publish([range].into_iter());
        if busy { Err(UnmapError::Busy) } else { Ok(()) }
    }

    /// The pages of the extent that were accessed since they were mapped, or since this was last asked.
    pub fn take_accessed(&self, extent: &mut Extent) -> PageSet {
        self.shared.marked(extent, Entry::take_accessed)
    }

    /// The pages of the extent that were stored to since they were mapped.
    pub fn dirty(&self, extent: &Extent) -> PageSet {
        self.shared.marked(extent, |entry| entry.load().is_dirty())
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
        assert!(extent.is_home() || extent.base == base, "an extent is in two places");
        assert!(within.end <= extent.pages(), "pages beyond the extent");
        let first = self.frames.arena().frame_of(extent);
        if !base.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::INVAL);
        }
        extent.base = base;
        let rights = if access == Access::Write { Intent::Write } else { Intent::Read };
        for page in within {
            if extent.away.contains(page) {
                continue;
            }
            let (entry, used) = cursor.make(address_of(base, page))?;
            entry.install(first + page as u32, rights, &self.epoch).map_err(|_| Errno::EXIST)?;
            *used += 1;
            extent.away.insert(page..page + 1);
        }
        Ok(())
    }

    fn unmap(&self, extents: &mut [Extent]) -> Result<(), UnmapError> {
        if extents.iter().all(Extent::is_home) {
            return Ok(());
        }
        let mut leaving = Vec::new();
        let mut cursor = Cursor::new(&self.tree);
        for (index, extent) in extents.iter_mut().enumerate().filter(|(_, e)| !e.is_home()) {
            let first = self.frames.arena().frame_of(extent);
            for page in 0..extent.pages() {
                if !extent.away.contains(page) {
                    continue;
                }
                let (entry, used) =
                    cursor.find(address_of(extent.base, page)).expect("an away page is mapped");
                match entry.begin_clear(first + page as u32) {
                    Progress::Done => {
                        *used -= 1;
                        extent.away.remove(page..page + 1);
                    }
                    Progress::Pinned => leaving.push(Leaving { extent: index, page, entry }),
                }
            }
        }
        drop(cursor);
        let result = if leaving.is_empty() { Ok(()) } else { self.end_unmap(extents, &leaving) };
        // Before the frames are used again, and before we look for subscribers: see the module's and the
        // notifier's documentation.
        fence(Ordering::SeqCst);
        // Those that were home before are named, too: that does no harm.
        self.notifier.publish(extents.iter().map(|e| e.base..e.base.wrapping_add(e.len_bytes())));
        result
    }

    /// Waits a moment for the pins, with no lock held; then ends or undoes.
    fn end_unmap(&self, extents: &mut [Extent], leaving: &[Leaving<'_>]) -> Result<(), UnmapError> {
        drained(leaving.iter().map(|l| l.entry));
        let mut result = Ok(());
        let mut cursor = Cursor::new(&self.tree);
        for page in leaving {
            let extent = &mut extents[page.extent];
            let found = cursor.find(address_of(extent.base, page.page));
            let (entry, used) = found.expect("a leaving page keeps its table");
            match entry.end_clear() {
                Progress::Done => {
                    *used -= 1;
                    extent.away.remove(page.page..page.page + 1);
                }
                Progress::Pinned => result = Err(UnmapError::Busy),
            }
        }
        result
    }

    /// Visits the entries of the pages of `range`, as far as there are tables.
    fn in_range<'a>(&'a self, range: Range<usize>, mut visit: impl FnMut(usize, &'a Entry)) {
        let pages = surrounding_pages(range.start, range.len());
        let mut cursor = Cursor::new(&self.tree);
        let mut addr = pages.start;
        while addr < pages.end {
            if let Some((entry, _)) = cursor.find(addr) {
                visit(addr, entry);
                addr += PAGE_SIZE;
            } else {
                // To the next table.
                addr = ((addr >> LEAF_SHIFT) + 1).saturating_mul(1 << LEAF_SHIFT);
            }
        }
    }

    /// The pages of the extent that are away and whose entry has the mark.
    fn marked(&self, extent: &Extent, mark: impl Fn(&Entry) -> bool) -> PageSet {
        let mut set = PageSet::new(extent.order);
        let mut cursor = Cursor::new(&self.tree);
        for page in (0..extent.pages()).filter(|&page| extent.away.contains(page)) {
            let (entry, _) = cursor.find(address_of(extent.base, page)).expect("an away page is mapped");
            if mark(entry) {
                set.insert(page..page + 1);
            }
        }
        set
    }
}
