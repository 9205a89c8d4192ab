//! Stores ahead: pages that are made writable before a thread stores to them.
//!
//! To know exactly which pages are dirty costs a fault for the first store to each page, some 10 us with
//! real pointers. A thread that stores to one page after the other has the next pages made writable by the
//! same fault, twice as many each time. Pages that it did not store to after all are found by checksum when
//! the folio is written back (`page::Dirty`), and not written. Linux has no such thing: its fault costs
//! half a microsecond, and where the file system has large folios it marks whole ones dirty.

use super::Faults;
use crate::object::FileObject;
use crate::page::{LockedFolio, checksum};
use crate::platform::Platform;
use crate::stats::Event;
use crate::vma::VmaGuard;
use elbowroom_machine::Mmu;
use std::ops::Range;

impl<P: Platform> Faults<P> {
    /// The pages to make writable at the first store of `thread` to `page`: that page, and those behind it
    /// that the thread will probably store to. They are in the same state as `page` (mapped in this place
    /// or not), and count as dirty from now on.
    pub(super) fn guess_stores(
        &self,
        vma: &VmaGuard<'_>,
        object: &FileObject,
        folio: &mut LockedFolio<'_>,
        page: usize,
        thread: u32,
    ) -> Range<usize> {
        let index = folio.index + page as u64;
        // Not more than may become dirty: pages beyond the limit could not be written back in time.
        let room = self.dirty_room(folio.group) as u64;
        let most = self.tuning().stores_ahead_pages.min(room);
        let most = self.streams.lock().store(thread, object.serial, index, most) as usize;
        if most == 0 {
            return page..page + 1;
        }
        let base = vma.address_of(folio.index);
        let end = folio.range().end.min(vma.pages().end).min(object.size_pages());
        let end = (end.saturating_sub(folio.index) as usize).min(page + 1 + most);
        let group = folio.group;
        let body = folio.body_mut();
        let Some(extent) = &body.extent else { return page..page + 1 };
        let present = extent.is_mapped(base, page);
        let mut guessed = page + 1;
        while guessed < end
            && !body.dirty.contains(guessed)
            && extent.is_mapped(base, guessed) == present
            && let Some(sum) = self.mmu.with_page(extent, guessed, checksum)
        {
            body.dirty.guess(guessed, sum);
            guessed += 1;
        }
        let pages = guessed - (page + 1);
        self.groups.of(group).add_dirty(pages);
        self.counters.add(Event::StoresAhead, pages as u64);
        page..guessed
    }
}
