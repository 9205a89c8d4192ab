//! Writing one folio.

use super::Writeback;
use super::end::{Tail, zero_beyond};
use crate::config::PINNED_BOUND;
use crate::object::FileObject;
use crate::page::{Flag, Folio, LockedFolio};
use crate::platform::Platform;
use crate::stats::Event;
use crate::trace::Happened;
use elbowroom_machine::{Errno, Extent, Membership, Mmu, PAGE_SHIFT, PAGE_SIZE, PageSet, UnmapError};
use elbowroom_store::FileId;
use elbowroom_sync::Arc;
use elbowroom_sync::time::Instant;
use std::ops::Range;

impl<P: Platform> Writeback<P> {
    /// Takes a locked folio home to be written; `false`: nothing of it is to be written (any more). EBUSY: an
    /// obstacle.
    pub(super) fn take_to_write(
        &self,
        object: &Arc<FileObject>,
        folio: &mut LockedFolio<'_>,
    ) -> Result<bool, Errno> {
        if folio.state.test(Flag::Dead) {
            return Ok(false);
        }
        let bytes = folio.range().start << PAGE_SHIFT..folio.range().end << PAGE_SHIFT;
        if object.writers.overlap(&bytes) {
            return Err(Errno::BUSY);
        }
        if folio.body().dirty.is_empty() {
            object.index_clean(folio);
            return Ok(false);
        }
        match self.mmu.unmap(folio.body_mut().extent()) {
            Ok(()) => {
                self.settle_guesses(folio);
                Ok(true)
            }
            Err(UnmapError::Busy) => Err(Errno::BUSY),
            Err(UnmapError::Lost) => {
                // The next msync, fsync or close reports it; accesses get what the disk has.
                self.lose(folio);
                Ok(false)
            }
        }
    }

    /// Drops what lies beyond the end of the file from a locked folio whose pages are all home.
    pub(super) fn cut_at_end(&self, object: &Arc<FileObject>, folio: &mut LockedFolio<'_>, tail: Tail) {
        self.settle_locked(object, folio, tail);
        let size = object.size();
        if folio.range().end << PAGE_SHIFT > size {
            // Pages beyond the end of the file have no place in it, and what is beyond it in its last page
            // is zero. The kernel writes it so, too.
            zero_beyond(folio, size);
            let end = size.div_ceil(PAGE_SIZE as u64).clamp(folio.index, folio.range().end) - folio.index;
            self.forget_dirty(object, folio, end as usize..folio.pages() as usize);
        }
    }

    /// The dirty pages of a locked folio were written, but for those that `failed`. Tells how many that are.
    pub(super) fn end_write(
        &self,
        object: &FileObject,
        folio: &mut LockedFolio<'_>,
        failed: PageSet,
    ) -> usize {
        let body = folio.body_mut();
        let written = body.dirty.count() - failed.count();
        let clean = failed.is_empty();
        body.dirty.retain(failed);
        self.groups.of(folio.group).remove_dirty(written);
        if clean {
            folio.state.clear(Flag::WriteFailed);
            object.index_clean(folio);
        } else {
            folio.state.set(Flag::WriteFailed);
        }
        written
    }

    /// Writes the pages `dirty`, and leaves those in it that could not be written. Returns the first error,
    /// after all were tried: what stops one page, a full disk perhaps, need not stop the next one.
    pub(super) fn write_runs(
        &self,
        object: &FileObject,
        folio: &Folio,
        extent: &Extent,
        dirty: &mut PageSet,
    ) -> Result<(), Errno> {
        let mut first = Ok(());
        let mut pages = 0..extent.pages();
        while let Some(run) = dirty.first_run(pages.clone(), Membership::In) {
            pages.start = run.end;
            let whole = self.write_run(object, folio, extent, &run);
            first = first.and(whole);
            if whole.is_ok() {
                dirty.remove(run);
            } else {
                self.write_apart(object, folio, extent, run, dirty);
            }
        }
        first
    }

    /// Writes neighbouring pages one by one, after they could not be written at once, and takes those out
    /// of `dirty` that were. A run of a single page has been tried already.
    pub(super) fn write_apart(
        &self,
        object: &FileObject,
        folio: &Folio,
        extent: &Extent,
        run: Range<usize>,
        dirty: &mut PageSet,
    ) {
        if run.len() == 1 {
            return;
        }
        // A device that takes long to fail is not asked for each page.
        let deadline = Instant::now() + PINNED_BOUND;
        for page in run.take_while(|_| Instant::now() < deadline) {
            if self.write_run(object, folio, extent, &(page..page + 1)).is_ok() {
                dirty.remove(page..page + 1);
            }
        }
    }

    /// Writes neighbouring pages, up to the end of the file.
    fn write_run(
        &self,
        object: &FileObject,
        folio: &Folio,
        extent: &Extent,
        run: &Range<usize>,
    ) -> Result<(), Errno> {
        let wanted = object.bytes_of(folio.index + run.start as u64..folio.index + run.end as u64);
        let start = run.start << PAGE_SHIFT;
        let len = (wanted.end - wanted.start) as usize;
        if len > 0 {
            let file = object.file().ok_or(Errno::BADF)?;
            let begun_ns = self.begin_transfer();
            let written = file.write(extent, start..start + len, wanted.start);
            self.note_transfer(object.id(), written.is_ok(), begun_ns, [wanted.start, len as u64]);
            written?;
        }
        Ok(())
    }

    /// When a transfer begins, for [`Self::note_transfer`].
    pub(super) fn begin_transfer(&self) -> u64 {
        self.trace.as_ref().map_or(0, |trace| trace.now())
    }

    /// Counts a transfer to a file that has just ended, and traces it. An error is counted by the caller
    /// that reports it.
    pub(super) fn note_transfer(&self, file: FileId, done: bool, begun_ns: u64, offset_and_bytes: [u64; 2]) {
        self.trace_transfer(file, done, begun_ns, offset_and_bytes);
        if done {
            self.counters.add(Event::Writes, 1);
            self.counters.add(Event::WrittenBytes, offset_and_bytes[1]);
        }
    }

    /// [`Self::note_transfer`] for a transfer to the swap file.
    pub(super) fn note_swap_transfer(&self, file: FileId, done: bool, begun_ns: u64, place: [u64; 2]) {
        self.trace_transfer(file, done, begun_ns, place);
        if done {
            self.counters.add(Event::SwapWrittenBytes, place[1]);
        }
    }

    fn trace_transfer(&self, file: FileId, done: bool, begun_ns: u64, offset_and_bytes: [u64; 2]) {
        if let Some(trace) = &self.trace {
            let what = if done { Happened::Write } else { Happened::WriteError };
            trace.transfer(what, begun_ns, offset_and_bytes, file.inode);
        }
    }

    /// A page of a locked folio is no longer where it was mapped: it was unmapped behind our back, and what
    /// was stored in it is lost. Writes what is left of the folio, if it can be written, and drops the
    /// folio: the next fault reads it again. The next msync, fsync or close of the file reports EIO.
    pub(crate) fn lose(&self, folio: &mut LockedFolio<'_>) {
        let mut lost = PageSet::new(folio.order);
        if let Some(extent) = &folio.body().extent {
            // Lost pages are zero. One whose stores were all zeros cannot be told from them, and counts as
            // lost.
            for (page, bytes) in extent.bytes().chunks(PAGE_SIZE).enumerate() {
                if bytes.iter().all(|&byte| byte == 0) {
                    lost.insert(page..page + 1);
                }
            }
        }
        self.save_and_discard(folio, &lost);
    }

    /// Writes the dirty pages of a locked folio, which are all home, but for those that are `lost`, as far
    /// as that can be done; then drops the folio. If anything was lost, the next msync, fsync or close of
    /// the file reports EIO.
    pub(super) fn save_and_discard(&self, folio: &mut LockedFolio<'_>, lost: &PageSet) {
        let (Some(object), true) = (folio.object(), folio.body().extent.is_some()) else {
            return self.discard(folio);
        };
        self.settle_guesses(folio);
        let mut save = folio.body().dirty.pages().clone();
        for page in 0..folio.pages() as usize {
            let start = (folio.index + page as u64) << PAGE_SHIFT;
            // A write(2) that is under way has newer bytes.
            if lost.contains(page) || object.writers.overlap(&(start..start + PAGE_SIZE as u64)) {
                save.remove(page..page + 1);
            }
        }
        let mut failed = save.clone();
        // The size is looked up as for any other write.
        if !save.is_empty() && object.refresh_size().is_ok() {
            folio.during(Flag::Writeback, |folio| {
                let (head, body) = folio.parts();
                // What fails now is lost, too.
                let _ = self.write_runs(&object, head, body.extent(), &mut failed);
            });
        }
        for page in (0..folio.pages() as usize).filter(|&page| save.contains(page) && !failed.contains(page))
        {
            folio.body_mut().dirty.remove(page..page + 1);
        }
        self.groups.of(folio.group).remove_dirty(save.count() - failed.count());
        self.discard(folio);
    }
}
