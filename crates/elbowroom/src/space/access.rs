//! Coherence with reads, writes and size changes through descriptors.

use crate::config::{DELAY, PINNED_BOUND};
use crate::core::Core;
use crate::object::{FileObject, WriteTicket};
use crate::page::{Flag, Folio};
use crate::platform::Platform;
use crate::stats::Event;
use crate::vma::Mm;
use crate::writeback::Obstacle;
use elbowroom_machine::{Errno, Mmu, PAGE_SHIFT, PAGE_SIZE, UnmapError};
use elbowroom_sync::atomic::{Ordering, fence};
use elbowroom_sync::time::Instant;
use elbowroom_sync::{Arc, thread};
use std::ops::Range;

impl<P: Platform> Core<P> {
    /// Announces a write(2) to the bytes `range`.
    pub(crate) fn write_begin(&self, object: &Arc<FileObject>, range: Range<u64>) -> WriteTicket {
        self.check_foreign(object);
        let pages = range.start >> PAGE_SHIFT..range.end.div_ceil(PAGE_SIZE as u64);
        let number = object.writers.begin(range);
        // A write-back that began before would put the old bytes over the new ones: it must end first. One that begins now
        // sees the announcement.
        for folio in object.dirty_in(pages) {
            self.waits.lock(&folio);
            self.unlock(&folio);
        }
        WriteTicket { object: object.clone(), number }
    }

    /// Takes the bytes that a write(2) has put into the file into the cached pages, and lets write-back have them again.
    pub(crate) fn write_end(&self, ticket: WriteTicket, written: Range<u64>) {
        if !written.is_empty() {
            self.reread(&ticket.object, written);
        }
        self.take_size(&ticket.object);
        ticket.object.writers.end(ticket.number);
    }

    /// Looks the size up after a change of our own. What was beyond the end may be inside now, so the file's denials are undone: whether the size
    /// grew just now cannot be told from the size that was known, because the flusher may have looked meanwhile.
    fn take_size(&self, object: &Arc<FileObject>) {
        // A file that cannot be asked keeps the size it had.
        let _ = object.note_own_change();
        self.allow_again(object, Obstacle::Wait);
    }

    /// The size was changed, and the bytes `changed` perhaps: they are read anew, stores to whole pages of them are forgotten, pages
    /// beyond the end are dropped, and the rest of the last page is zeroed.
    pub(crate) fn resized(&self, object: &Arc<FileObject>, changed: Range<u64>) {
        self.take_size(object);
        let size = object.size();
        let whole = changed.start.div_ceil(PAGE_SIZE as u64)..changed.end >> PAGE_SHIFT;
        let end = size.div_ceil(PAGE_SIZE as u64);
        let deadline = Instant::now() + PINNED_BOUND;
        for folio in object.folios_in(whole.start.min(size >> PAGE_SHIFT)..u64::MAX >> PAGE_SHIFT) {
            self.with_home(object, &folio, deadline, |core, folio| {
                let inside = |pages: &Range<u64>| {
                    let clip = |page: u64| page.clamp(folio.index, folio.range().end) - folio.index;
                    clip(pages.start) as usize..clip(pages.end) as usize
                };
                core.forget_dirty(object, folio, inside(&whole));
                core.forget_dirty(object, folio, inside(&(end..u64::MAX)));
                if folio.index >= end {
                    core.discard(object, folio);
                    return;
                }
                let from = size.saturating_sub(folio.index << PAGE_SHIFT) as usize;
                let mut body = folio.body();
                let extent = body.extent();
                let len = extent.len_bytes();
                extent.bytes_mut()[from.min(len)..].fill(0);
            });
        }
        self.drop_copies_beyond(object, end);
        let changed = changed.start..changed.end.min(size);
        if !changed.is_empty() {
            self.reread(object, changed);
        }
    }

    /// Drops the copies that private mappings have of pages from `end` on: what was truncated is gone for them, too. A copy that stays pinned stays.
    /// Linux: `unmap_mapping_range` with `even_cows`.
    fn drop_copies_beyond(&self, object: &Arc<FileObject>, end: u64) {
        // A copy that is being made sees the new size, or is found here.
        fence(Ordering::SeqCst);
        let deadline = Instant::now() + PINNED_BOUND;
        // Until there is none left: mremap may move some between being listed and being locked, and fork share some with a child that was looked at before its
        // parent.
        loop {
            let (mut found, mut busy) = (0, 0);
            for mm in self.spaces.all() {
                let copies = mm.copies_of(object, end, &self.still_layout(&mm));
                found += copies.len();
                busy += copies.iter().filter(|&&page| !self.drop_copy(&mm, page, object, end)).count();
            }
            if found == 0 || busy > 0 && Instant::now() > deadline {
                return;
            }
            if busy > 0 {
                thread::sleep(DELAY);
            }
        }
    }

    /// Drops one copy, if it is one of a page from `end` on still. `false`: it is pinned, or its mapping is being changed.
    fn drop_copy(&self, mm: &Mm, page: u64, object: &Arc<FileObject>, end: u64) -> bool {
        let Some(folio) = self.lock_own(mm, page) else { return true };
        // The VMA says whose copy it is; while it is entered, it does not change.
        let addr = (page as usize) << PAGE_SHIFT;
        let done = match mm.enter(addr) {
            Ok(vma) => {
                let maps = vma.spec.object.as_ref().is_some_and(|o| Arc::ptr_eq(o, object));
                let beyond = maps && vma.page_at(addr) >= end;
                let home = !beyond || self.mmu.unmap(folio.body().extent()) != Err(UnmapError::Busy);
                if beyond && home {
                    self.take_own(mm, page, &folio);
                }
                home
            }
            Err(_) => false,
        };
        self.unlock(&folio);
        done
    }

    /// Drops the dirty marks of pages whose stores have no place in the file any more. The caller has the folio's lock.
    fn forget_dirty(&self, object: &FileObject, folio: &Folio, pages: Range<usize>) {
        if pages.is_empty() {
            return;
        }
        let (gone, clean) = {
            let mut body = folio.body();
            let gone = body.dirty.count_in(pages.clone());
            body.dirty.remove(pages);
            (gone, body.dirty.is_empty())
        };
        self.dirty_pages.fetch_sub(gone, Ordering::AcqRel);
        if gone > 0 && clean {
            object.index_clean(folio);
        }
    }

    /// Reads bytes that changed in the file into the cached pages that have them.
    fn reread(&self, object: &Arc<FileObject>, bytes: Range<u64>) {
        let pages = bytes.start >> PAGE_SHIFT..bytes.end.div_ceil(PAGE_SIZE as u64);
        let Some(file) = object.file() else {
            // Closed meanwhile: who opens it again reads what it has then.
            return self.drop_clean(object, pages);
        };
        let deadline = Instant::now() + PINNED_BOUND;
        for folio in object.folios_in(pages) {
            self.with_home(object, &folio, deadline, |core, folio| {
                let start = folio.index << PAGE_SHIFT;
                let end = folio.range().end << PAGE_SHIFT;
                let part = bytes.start.max(start)..bytes.end.min(end);
                let Some(mut extent) = folio.body().extent.take() else { return };
                let buffer =
                    &mut extent.bytes_mut()[(part.start - start) as usize..(part.end - start) as usize];
                let result = file.read_buffered(buffer, part.start);
                if let Ok(n) = result {
                    buffer[n..].fill(0);
                }
                folio.body().extent = Some(extent);
                if result.is_err() {
                    // The file's bytes are not to be had now: read the page again when somebody wants it.
                    core.counters.add(Event::ReadErrors, 1);
                    core.discard(object, folio);
                }
            });
        }
    }

    /// Runs `f` with the folio locked and all its pages at home. The pages stay home until somebody touches them. If a page stays pinned, `f` is not
    /// run, and whoever asks for the file's errors is told EBUSY: the mapping and the file may differ.
    fn with_home(
        &self,
        object: &Arc<FileObject>,
        folio: &Arc<Folio>,
        deadline: Instant,
        f: impl Fn(&Core<P>, &Folio),
    ) {
        loop {
            self.waits.lock(folio);
            let mut result = Ok(());
            if !folio.state.test(Flag::Dead) {
                result = self.mmu.unmap(folio.body().extent());
                match result {
                    Ok(()) => f(self, folio),
                    Err(UnmapError::Lost) => {
                        self.discard(object, folio);
                    }
                    Err(UnmapError::Busy) => {}
                }
            }
            self.unlock(folio);
            if result != Err(UnmapError::Busy) {
                return;
            }
            // Pinned by direct I/O of the program into this very page, which ends; or by a pin of a soft space, which may not.
            if Instant::now() > deadline {
                return object.record_error(Errno::BUSY);
            }
            thread::sleep(DELAY);
        }
    }

    /// Writes back what a read(2) of the bytes would otherwise miss.
    pub(crate) fn before_read(&self, object: &Arc<FileObject>, bytes: Range<u64>) -> Result<(), Errno> {
        let pages = bytes.start >> PAGE_SHIFT..bytes.end.div_ceil(PAGE_SIZE as u64);
        self.write_back(object, pages, Obstacle::Wait)
    }
}
