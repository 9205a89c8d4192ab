//! Pages between their homes and windows: moved, copied, dropped and brought back.

use super::{Access, HostMmu, Mover, UnmapError, Wake};
use crate::pageset::Membership;
use crate::peek::{is_resident, unshare};
use crate::pins::{Entry, Pins, hold};
use crate::uffd::Protection;
use crate::{Extent, PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::thread;
use rustix::io::Errno;
use rustix::mm::{self, Advice};
use std::ops::Range;

/// How often a request that finds a page pinned or locked is tried again at once. The caller holds locks,
/// so it must release them before it waits longer.
const BUSY_TRIES: u32 = 32;

/// How many attempts are made to write-protect pages that were moved in, or else to move them home.
const PROTECT_TRIES: u32 = 64;

impl HostMmu {
    /// Maps those of `pages` that are at home, so that page 0 of the extent is, or would be, at `base`;
    /// wakes the threads that wait for them, if told to.
    ///
    /// # Errors
    /// The kernel's. Some of the pages may be mapped then; the extent knows which.
    ///
    /// # Panics
    /// If pages of the extent are away at another base: a page that is moved into a window is nowhere else.
    pub fn map(
        &self,
        extent: &mut Extent,
        base: usize,
        pages: Range<usize>,
        access: Access,
        wake: Wake,
    ) -> Result<(), Errno> {
        assert!(extent.is_home() || extent.place(base).is_some(), "an extent is in two places");
        let mut rest = pages;
        while let Some(run) = extent.first_run(base, rest.clone(), Membership::Out) {
            let window = base + (run.start << PAGE_SHIFT)..base + (run.end << PAGE_SHIFT);
            self.layout.allow_after_all(&self.uffd, window.clone())?;
            let short = run.len() <= self.batches.copy_max_pages;
            if short || self.mover == Mover::Copy || access == Access::ReadTracked {
                self.copy_in(extent, base, run.clone(), access, wake)?;
            } else {
                self.move_in(extent, base, run.clone(), access)?;
                if wake == Wake::Now {
                    self.wake(window);
                }
            }
            rest.start = run.end;
        }
        Ok(())
    }

    /// Moves pages into a window. They arrive writable, and are then write-protected if `access` says so,
    /// also those that arrived before an error.
    fn move_in(
        &self,
        extent: &mut Extent,
        base: usize,
        run: Range<usize>,
        access: Access,
    ) -> Result<(), Errno> {
        let start = run.start;
        let (end, mut moved) = self.move_some_in(extent, base, run);
        if access == Access::ReadOnly && start < end {
            self.way.give();
            moved = moved.and(self.protect_or_take_back(extent, base, start..end));
        }
        moved
    }

    /// Write-protects pages that have been moved in, or moves them home again: a store that does not fault
    /// would not mark the page dirty, and would be lost.
    fn protect_or_take_back(&self, extent: &mut Extent, base: usize, run: Range<usize>) -> Result<(), Errno> {
        let window = base + (run.start << PAGE_SHIFT)..base + (run.end << PAGE_SHIFT);
        let mut result = Ok(());
        for _ in 0..PROTECT_TRIES {
            result = self.retry(|| self.uffd.write_protect(window.clone()));
            // `take_home` takes only the pages that are still in the window: those that an earlier turn has
            // taken home must not count as lost.
            if result.is_ok() || self.take_home(extent, base, run.clone()).is_ok() {
                break;
            }
        }
        result
    }

    /// Moves pages into a window as far as that can be done. Returns the index after the last page that was
    /// moved, and the error that stopped it.
    fn move_some_in(
        &self,
        extent: &mut Extent,
        base: usize,
        run: Range<usize>,
    ) -> (usize, Result<(), Errno>) {
        let mut at = run.start;
        let mut tries = 0;
        let mut own = 0;
        let mut most = run.len();
        while at < run.end {
            let (dst, src) = (base + (at << PAGE_SHIFT), extent.home + (at << PAGE_SHIFT));
            let len = most.min(run.end - at) << PAGE_SHIFT;
            // SAFETY: (1) the pages are at home and the extent is ours (`&mut`); (2) the manager maps the
            // extent's bytes there.
            let (moved, result) = unsafe { self.uffd.move_pages(dst, src, len, Wake::Later) };
            extent.note_mapped(base, at..at + (moved >> PAGE_SHIFT));
            at += moved >> PAGE_SHIFT;
            if moved == 0 && result == Err(Errno::BUSY) && self.unshare_once(&mut own, src..src + len) {
                continue;
            }
            if moved == 0
                && let Err(e) = result
                && let Err(e) = fewer(e, &mut most, len).or_else(|e| again(e, &mut tries))
            {
                return (at, Err(e));
            }
        }
        (at, Ok(()))
    }

    fn copy_in(
        &self,
        extent: &mut Extent,
        base: usize,
        run: Range<usize>,
        access: Access,
        wake: Wake,
    ) -> Result<(), Errno> {
        let protection =
            if access == Access::Write { Protection::Writable } else { Protection::WriteProtected };
        let mut at = run.start;
        let mut tries = 0;
        let mut most = run.len();
        while at < run.end {
            let (dst, src) = (base + (at << PAGE_SHIFT), extent.home + (at << PAGE_SHIFT));
            let len = most.min(run.end - at) << PAGE_SHIFT;
            // SAFETY: (1) the pages are at home, where only we use them; (2) the manager maps the extent's
            // bytes there.
            let (copied, result) = unsafe { self.uffd.copy(dst, src, len, protection, wake) };
            if copied > 0 {
                self.pins.iter().for_each(Pins::note_fresh);
                extent.note_mapped(base, at..at + (copied >> PAGE_SHIFT));
                match self.spare_home(extent) {
                    Some(empty) => extent.home = empty,
                    None => self.empty_later(src, copied),
                }
                at += copied >> PAGE_SHIFT;
            } else if let Err(e) = result {
                fewer(e, &mut most, len).or_else(|e| again(e, &mut tries))?;
            }
        }
        Ok(())
    }

    /// Exchanges the home of a single page that was just copied into a window for an empty one, if there is
    /// one. That spares emptying the page's home and filling the empty one.
    fn spare_home(&self, extent: &Extent) -> Option<usize> {
        if extent.order == 0 { self.arena.exchange(extent.home) } else { None }
    }

    /// Empties the homes of pages that were just copied into a window; long runs at once, short ones later,
    /// together with others.
    fn empty_later(&self, home: usize, len: usize) {
        if len > self.batches.copy_max_pages * PAGE_SIZE {
            // SAFETY: the pages' bytes are in the window now; their homes are ours to empty.
            let _ = unsafe { mm::madvise(home as *mut _, len, Advice::LinuxDontNeed) };
            return;
        }
        let mut to_empty = self.to_empty.lock();
        to_empty.extend((home..home + len).step_by(PAGE_SIZE));
        if to_empty.len() >= self.batches.empty_batch {
            self.empty_homes(&mut to_empty);
        }
    }

    fn empty_homes(&self, to_empty: &mut Vec<usize>) {
        // SAFETY: each is the home of a page that is away, which only the MMU touches, and it does so under
        // this lock.
        unsafe { self.batch.drop_pages(to_empty) };
        to_empty.clear();
    }

    /// Empties the homes that wait for it: before a page may come home, its home must be empty.
    fn empty_all_homes(&self) {
        let mut to_empty = self.to_empty.lock();
        if !to_empty.is_empty() {
            self.empty_homes(&mut to_empty);
        }
    }

    /// Takes the pages of extents of one page each home, all clean (so that their bytes do not change
    /// meanwhile), with one TLB shootdown for all. Afterwards the extents tell which are home; the caller
    /// takes the others home by [`HostMmu::unmap`].
    ///
    /// # Panics
    /// If an extent has several pages.
    pub fn unmap_clean(&self, extents: &mut [Extent]) {
        if extents.is_empty() {
            return;
        }
        self.empty_all_homes();
        let mut gone = Vec::with_capacity(extents.len());
        for extent in extents.iter_mut() {
            let Some(base) = base_of(extent) else { continue };
            assert_eq!(extent.order, 0, "unmap_clean is for single pages");
            let window = base..base + PAGE_SIZE;
            if self.layout.allow_after_all(&self.uffd, window).is_ok() && self.copy_home(extent, base) {
                gone.push(base);
                extent.places.clear();
            }
        }
        // SAFETY: the bytes are home; the window's copies are ours to drop.
        unsafe { self.batch.drop_pages(&gone) };
    }

    /// Frees extents of one clean page each that are away: the pages are dropped where they are, with one
    /// TLB shootdown for all. With [`Mover::Move`] their homes stay empty until another page needs an empty
    /// one, or free frames run short.
    ///
    /// # Panics
    /// If an extent has several pages, or one at home, or is of another MMU.
    pub fn discard_clean(&self, extents: Vec<Extent>) {
        assert!(
            extents.iter().all(|e| e.order == 0 && !e.is_home()),
            "discard_clean is for single pages away"
        );
        if extents.is_empty() {
            return;
        }
        // The homes are passed on as empty below, but some may still wait to be emptied.
        self.empty_all_homes();
        let windows: Vec<_> = extents.iter().filter_map(base_of).collect();
        // SAFETY: the pages are clean, and their owner gives them up.
        unsafe { self.batch.drop_pages(&windows) };
        match self.mover {
            Mover::Move => self.arena.add_unbacked(extents.into_iter().map(|extent| extent.home)),
            // The kernel fills their homes when they are touched.
            Mover::Copy => extents.into_iter().for_each(|mut extent| {
                extent.places.clear();
                self.arena.free(extent);
            }),
        }
    }

    /// Fills the empty home of a single page with its bytes; `false`: that failed, and [`HostMmu::unmap`]
    /// finds out why.
    fn copy_home(&self, extent: &Extent, base: usize) -> bool {
        match self.mover {
            Mover::Move => {
                // The program may have dropped the page by a system call that the manager did not see. Then
                // the kernel's load of it in UFFDIO_COPY would fault, and wait for a handler.
                if !is_resident(base) {
                    return false;
                }
                // SAFETY: (1) the page is present in the window and write-protected, so nobody writes it; (2)
                // only the extent's owner uses its home.
                let (copied, _) = unsafe {
                    self.uffd.copy(extent.home, base, PAGE_SIZE, Protection::Writable, Wake::Later)
                };
                copied == PAGE_SIZE
            }
            Mover::Copy => {
                // SAFETY: as above, and the home is memory that the kernel fills when it is touched.
                unsafe { self.peek.copy(base, extent.home, PAGE_SIZE) }.is_ok()
            }
        }
    }

    /// Takes all pages of the extent home. Accesses to them in the window fault from now on.
    ///
    /// # Errors
    /// [`UnmapError`]. After `Busy` the extent knows which pages are still away.
    pub fn unmap(&self, extent: &mut Extent) -> Result<(), UnmapError> {
        if let Some(base) = base_of(extent) {
            self.empty_all_homes();
            self.take_home(extent, base, 0..extent.pages())?;
        }
        if std::mem::take(&mut extent.lost) { Err(UnmapError::Lost) } else { Ok(()) }
    }

    /// [`HostMmu::unmap`], if the extent's place is the one with page 0 at `base`; else does nothing.
    ///
    /// # Errors
    /// As for [`HostMmu::unmap`].
    pub fn unmap_at(&self, extent: &mut Extent, base: usize) -> Result<(), UnmapError> {
        if base_of(extent) == Some(base) { self.unmap(extent) } else { Ok(()) }
    }

    /// Takes those of `within` home that are mapped.
    fn take_home(&self, extent: &mut Extent, base: usize, within: Range<usize>) -> Result<(), UnmapError> {
        while let Some(run) = extent.first_run(base, within.clone(), Membership::In) {
            let window = base + (run.start << PAGE_SHIFT)..base + (run.end << PAGE_SHIFT);
            self.layout.allow_after_all(&self.uffd, window).map_err(|_| UnmapError::Busy)?;
            match self.mover {
                Mover::Move => self.move_out(extent, base, run)?,
                Mover::Copy => self.copy_out(extent, base, run)?,
            }
        }
        Ok(())
    }

    fn move_out(&self, extent: &mut Extent, base: usize, run: Range<usize>) -> Result<(), UnmapError> {
        let mut at = run.start;
        let mut tries = 0;
        let mut own = 0;
        let mut most = run.len();
        while at < run.end {
            let (dst, src) = (extent.home + (at << PAGE_SHIFT), base + (at << PAGE_SHIFT));
            let len = most.min(run.end - at) << PAGE_SHIFT;
            // SAFETY: (1) the pages in the window are the extent's, whose owner takes them back; (2) nobody
            // touches their homes while they are away.
            let (moved, result) = unsafe { self.uffd.move_pages(dst, src, len, Wake::Later) };
            extent.note_home(base, at..at + (moved >> PAGE_SHIFT));
            at += moved >> PAGE_SHIFT;
            match result {
                Err(Errno::BUSY) if moved == 0 && self.unshare_once(&mut own, src..src + len) => {}
                Err(e) if moved == 0 && fewer(e, &mut most, len).is_ok() => {}
                Err(Errno::NOENT | Errno::INVAL) if moved == 0 => {
                    if !self.refill(dst) {
                        return Err(UnmapError::Busy);
                    }
                    extent.note_home(base, at..at + 1);
                    extent.lost = true;
                    at += 1;
                }
                Err(e) if moved == 0 => again(e, &mut tries).map_err(|_| UnmapError::Busy)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Unshares pages that a fork may have left shared with another process, unless this call chain has
    /// done so already (all below `own` are done). Tells whether it did.
    fn unshare_once(&self, own: &mut usize, pages: Range<usize>) -> bool {
        if !self.has_forked.load(Ordering::Relaxed) || pages.start < *own {
            return false;
        }
        *own = pages.end;
        unshare(pages);
        true
    }

    /// Gives an empty home a page of zeros; tells whether it has memory now.
    pub(super) fn refill(&self, home: usize) -> bool {
        static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
        let from = ZEROS.as_ptr() as usize;
        let filled = self.retry(|| {
            // SAFETY: (1) the source is a constant; (2) the home is empty and the caller's.
            unsafe { self.uffd.copy(home, from, PAGE_SIZE, Protection::Writable, Wake::Later).1 }
        });
        // If it is not empty after all, the kernel refuses and nothing is needed.
        matches!(filled, Ok(()) | Err(Errno::EXIST))
    }

    fn copy_out(&self, extent: &mut Extent, base: usize, run: Range<usize>) -> Result<(), UnmapError> {
        let (home, window) = (extent.home + (run.start << PAGE_SHIFT), base + (run.start << PAGE_SHIFT));
        let len = run.len() << PAGE_SHIFT;
        let before = self.transfers().map(|pins| pins.entries(window..window + len));
        let mut pinned = Vec::new();
        match self.retry(|| self.uffd.write_protect(window..window + len)) {
            Ok(()) => {
                for at in (0..len).step_by(PAGE_SIZE) {
                    // SAFETY: (1) stores to the page wait, since it is write-protected; (2) the homes are
                    // ours, and apart from it.
                    if unsafe { self.peek.copy(window + at, home + at, PAGE_SIZE) }.is_err() {
                        // The program has dropped the page by a system call that the manager did not see.
                        // Its home has whatever bytes were there before. SAFETY: the home is ours.
                        unsafe { std::ptr::write_bytes((home + at) as *mut u8, 0, PAGE_SIZE) };
                        extent.lost = true;
                    }
                }
                pinned = self.drop_copied(window..window + len, home, before);
            }
            Err(Errno::NOENT) => extent.lost = true,
            Err(_) => return Err(UnmapError::Busy),
        }
        let mut at = run.start;
        for page in pinned.iter().map(|page| (page - base) >> PAGE_SHIFT) {
            extent.note_home(base, at..page);
            at = page + 1;
        }
        extent.note_home(base, at..run.end);
        self.wake(window..window + len);
        if pinned.is_empty() { Ok(()) } else { Err(UnmapError::Busy) }
    }

    /// The record of pages that a device may still read or write; `None` if there can be none.
    fn transfers(&self) -> Option<&Pins> {
        self.pins.as_ref().filter(|pins| pins.may_be())
    }

    /// Drops write-protected pages of a window whose bytes were copied home, except those that a device may
    /// still read or write: these get the protection again that they had `before`, and their addresses are
    /// returned. `before` is `None` if no transfer was known of then: one may have begun since, so all
    /// pages are taken to have been writable.
    fn drop_copied(&self, window: Range<usize>, home: usize, before: Option<Vec<Entry>>) -> Vec<usize> {
        let drop = |pages: Range<usize>| {
            // SAFETY: the bytes are home; the window's copies are ours to drop.
            let _ = unsafe { mm::madvise(pages.start as *mut _, pages.len(), Advice::LinuxDontNeed) };
        };
        let Some(pins) = self.transfers() else {
            drop(window);
            return Vec::new();
        };
        let now = pins.entries(window.clone());
        // pagemap does not show the protection (before Linux 5.14), so it is unknown which pages were
        // writable.
        if now.iter().any(|page| page.is_there() && !page.is_protected()) {
            drop(window);
            return Vec::new();
        }
        let before = before.unwrap_or_else(|| vec![Entry::UNKNOWN; now.len()]);
        let mut left = Vec::new();
        let mut start = window.start;
        for same in before.chunk_by(|one, other| one.is_protected() == other.is_protected()) {
            let pages = start..start + (same.len() << PAGE_SHIFT);
            start = pages.end;
            if same[0].is_protected() {
                drop(pages);
                continue;
            }
            let copy_again = |page| {
                let to = home + (page - window.start);
                // A page that is gone has not changed since it was copied. SAFETY: as in `copy_out`.
                let _ = unsafe { self.peek.copy(page, to, PAGE_SIZE) };
            };
            // SAFETY: the bytes are home; the window's copies are ours to drop.
            left.extend(unsafe { pins.drop_unpinned(pages, copy_again) });
        }
        left.retain(|page| {
            let range = *page..*page + PAGE_SIZE;
            self.retry(|| self.uffd.write_unprotect(range.clone(), Wake::Later)).is_err() || hold(*page)
        });
        left
    }

    /// Shows the bytes of a page to `f`, wherever it is; `None`: the program has dropped it from its window.
    /// The page is clean, so that it is write-protected where it is mapped.
    ///
    /// # Panics
    /// If the extent has no such page.
    pub fn with_page<T>(&self, extent: &Extent, page: usize, f: impl FnOnce(&[u8]) -> T) -> Option<T> {
        if let Some(bytes) = extent.page_at_home(page) {
            return Some(f(bytes));
        }
        let mut bytes = [0_u8; PAGE_SIZE];
        let window = base_of(extent)? + (page << PAGE_SHIFT);
        // SAFETY: (1) the page is in the window, and write-protected; (2) the bytes are this call's.
        unsafe { self.peek.copy(window, bytes.as_mut_ptr() as usize, PAGE_SIZE) }.ok()?;
        Some(f(&bytes))
    }

    /// Removes the write protection from the present pages of `range`, and wakes the threads that wait
    /// there, if told to. The pages are dirty from now on.
    pub fn make_writable(&self, range: Range<usize>, wake: Wake) -> Result<(), Errno> {
        self.layout.allow_after_all(&self.uffd, range.clone())?;
        self.retry(|| self.uffd.write_unprotect(range.clone(), wake))
    }

    /// Wakes the threads that wait for a page of `range`; they fault again if it is not there.
    pub fn wake(&self, range: Range<usize>) {
        // It can only fail for a range outside all windows, where no thread waits.
        let _ = self.uffd.wake(range);
    }

    fn retry(&self, mut request: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
        let mut tries = 0;
        loop {
            match request() {
                Ok(()) => return Ok(()),
                Err(e) => again(e, &mut tries)?,
            }
        }
    }
}

/// The base of the extent's only place: the address where page 0 is, or would be. `None`: it is not mapped.
fn base_of(extent: &Extent) -> Option<usize> {
    extent.places.first().map(|place| place.base)
}

/// Halves the number of pages `most` that a request takes, if that can help: a request must lie in one VMA,
/// and a window has several where one of its pages was once denied. Else passes the error on.
fn fewer(error: Errno, most: &mut usize, len: usize) -> Result<(), Errno> {
    let pages = len >> PAGE_SHIFT;
    if !matches!(error, Errno::NOENT | Errno::INVAL) || pages == 1 {
        return Err(error);
    }
    *most = pages / 2;
    Ok(())
}

/// Passes on an error that a retry does not help, or that came too often; else yields the processor for a
/// retry.
fn again(error: Errno, tries: &mut u32) -> Result<(), Errno> {
    if !matches!(error, Errno::AGAIN | Errno::BUSY | Errno::INTR) || *tries == BUSY_TRIES {
        return Err(error);
    }
    *tries += 1;
    thread::yield_now();
    Ok(())
}
