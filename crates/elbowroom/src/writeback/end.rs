//! The end of a file: what is beyond it is in no page, on no disk, and comes back as zeros when the file
//! grows.
//!
//! Bytes beyond the end that share a page with it can be stored to. They are zeroed when the kernel zeroes
//! them: when the page is written, and when the file grows. [`FileObject::settled`] is the offset from
//! which such bytes may exist; [`FileObject::take_cut`] gives the size to which other processes have
//! truncated the file.

use super::Writeback;
use super::{Obstacle, Patience};
use crate::config::SETTLE_ROUNDS;
use crate::object::FileObject;
use crate::page::{Flag, Folio, LockedFolio};
use crate::platform::Platform;
use crate::stats::Event;
use elbowroom_machine::{Errno, PAGE_SHIFT, PAGE_SIZE, PageSet};
use elbowroom_sync::Arc;
use std::ops::Range;

impl<P: Platform> Writeback<P> {
    /// Another process has cut the file to `kept` bytes: forgets what was stored beyond, dirty or not, even
    /// if the file has grown again since.
    pub(crate) fn cut_by_others(&self, object: &Arc<FileObject>, kept: u64) {
        self.drop_beyond(object, kept, &(0..0), Obstacle::Skip);
        let grown = kept..object.size();
        if !grown.is_empty() {
            self.reread(object, grown);
        }
    }

    /// Forgets stores to the pages `whole` and beyond byte `kept`, drops pages beyond, and zeroes the rest of
    /// the page of `kept`.
    pub(crate) fn drop_beyond(
        &self,
        object: &Arc<FileObject>,
        kept: u64,
        whole: &Range<u64>,
        obstacle: Obstacle,
    ) {
        let end = kept.div_ceil(PAGE_SIZE as u64);
        let patience = obstacle.patience();
        for folio in object.folios_in(whole.start.min(kept >> PAGE_SHIFT)..u64::MAX >> PAGE_SHIFT) {
            let forget = |core: &Self, folio: &mut LockedFolio<'_>| {
                let (index, range) = (folio.index, folio.range());
                let inside = |pages: &Range<u64>| {
                    let clip = |page: u64| page.clamp(index, range.end) - index;
                    clip(pages.start) as usize..clip(pages.end) as usize
                };
                core.forget_dirty(object, folio, inside(whole));
                core.forget_dirty(object, folio, inside(&(end..u64::MAX)));
                if index >= end {
                    core.discard(folio);
                } else {
                    zero_beyond(folio, kept);
                }
            };
            if let Err(busy) = self.with_home(&folio, &patience, forget) {
                match obstacle {
                    // The mapping and the file may differ.
                    Obstacle::Wait => object.record_error(busy),
                    // Tried again the next time.
                    Obstacle::Skip => object.note_cut(kept),
                }
            }
        }
    }

    /// After the file has grown: takes from the file the bytes between its former end and the end of that
    /// page, so that what was stored there beyond the end is gone. (The kernel zeroes these bytes when a
    /// file grows.) A page that is not dirty has no such stores.
    ///
    /// The bytes are taken from the file and not just zeroed: of two threads that make it longer at once,
    /// the one that ends later must not undo what the other has written. Nor may it undo what is stored
    /// there after the other's call: so the folio is settled once, under its lock, before either call
    /// returns.
    pub(crate) fn settle(&self, object: &Arc<FileObject>) {
        for _ in 0..SETTLE_ROUNDS {
            let (from, size) = (object.settled(), object.size());
            if size <= from || object.is_memory() {
                return;
            }
            let folio = object.lookup(from >> PAGE_SHIFT).filter(|folio| self.is_dirty_at(folio, from));
            let Some(folio) = folio else { return object.settle(size) };
            let mut is_settled = false;
            let home = self.with_home(&folio, &Patience::bounded(), |core, folio| {
                is_settled = core.settle_locked(object, folio, Tail::OfTheFile);
            });
            if let Err(busy) = home {
                object.record_error(busy);
                return object.settle(size);
            }
            if is_settled {
                return;
            }
            // The folio is gone, or another thread has settled a part: the rest is another folio's.
        }
        // The end has moved all the time: as where a folio stays busy, the error is with the file.
        object.record_error(Errno::BUSY);
        object.settle(object.size());
    }

    fn is_dirty_at(&self, folio: &Arc<Folio>, byte: u64) -> bool {
        let page = ((byte >> PAGE_SHIFT) - folio.index) as usize;
        self.lock(folio).body().dirty.contains(page)
    }

    /// [`Writeback::settle`], for a caller that holds the lock of a folio whose pages are home. `false`:
    /// the former end of the file is in another folio.
    pub(super) fn settle_locked(&self, object: &FileObject, folio: &mut LockedFolio<'_>, tail: Tail) -> bool {
        let (from, size) = (object.settled(), object.size());
        if from >= size {
            return true;
        }
        if !folio.range().contains(&(from >> PAGE_SHIFT)) {
            return false;
        }
        let dirty = folio.body().dirty.contains(((from >> PAGE_SHIFT) - folio.index) as usize);
        if dirty && from % PAGE_SIZE as u64 != 0 {
            let end = size.min(from.next_multiple_of(PAGE_SIZE as u64));
            let mut bytes = vec![0; (end - from) as usize];
            let read = folio
                .during(Flag::Reading, |_| object.file().map(|file| file.read_buffered(&mut bytes, from)));
            if read.is_none_or(|read| read.is_err()) {
                // Bytes that cannot be read were most likely never written.
                bytes.fill(0);
            }
            let at = (from - (folio.index << PAGE_SHIFT)) as usize;
            let ours = &mut folio.body_mut().extent().bytes_mut()[at..at + bytes.len()];
            for (ours, theirs) in ours.iter_mut().zip(bytes) {
                if tail == Tail::OfTheFile || *ours == 0 {
                    *ours = theirs;
                }
            }
        }
        object.settle(size);
        true
    }

    /// Follows what other processes did to the file's size since the last look. For threads that may wait.
    pub(crate) fn follow_others(&self, object: &Arc<FileObject>) {
        if object.writers.any() {
            // The call that writes does this at its end.
            return;
        }
        if let Some(cut) = object.take_cut() {
            self.cut_by_others(object, cut);
        }
        let from = object.settled();
        if object.size() > from {
            if let Some(folio) = object.lookup(from >> PAGE_SHIFT) {
                // A page that is busy now is met again when it is written.
                let _ = self.with_home(&folio, &Patience::none(), |core, folio| {
                    let _ = core.settle_locked(object, folio, Tail::Stored);
                });
            } else {
                object.settle(object.size());
            }
        }
    }

    /// Drops the dirty marks of pages whose stores have no place in the file any more. The caller has the
    /// folio's lock.
    pub(super) fn forget_dirty(&self, object: &FileObject, folio: &mut LockedFolio<'_>, pages: Range<usize>) {
        if pages.is_empty() {
            return;
        }
        let body = folio.body_mut();
        let gone = body.dirty.count_in(pages.clone());
        body.dirty.remove(pages);
        let clean = body.dirty.is_empty();
        self.groups.of(folio.group).remove_dirty(gone);
        if gone > 0 && clean {
            object.index_clean(folio);
        }
    }

    /// Drops what write calls have left of a file in the kernel's page cache.
    pub(crate) fn drop_kernel_cache(&self, object: &FileObject) {
        let bytes = object.kernel_cache.take();
        if !bytes.is_empty()
            && let Some(file) = object.file()
        {
            file.drop_cache(bytes.start, bytes.end - bytes.start);
        }
    }

    /// Reads bytes that changed in the file into the cached pages that have them.
    pub(crate) fn reread(&self, object: &Arc<FileObject>, bytes: Range<u64>) {
        let pages = bytes.start >> PAGE_SHIFT..bytes.end.div_ceil(PAGE_SIZE as u64);
        let Some(file) = object.file() else {
            // Closed meanwhile: after it is opened again, faults read what it has then.
            return self.drop_clean(object, pages);
        };
        let patience = Patience::bounded();
        for folio in object.folios_in(pages) {
            let done = self.with_home(&folio, &patience, |core, folio| {
                let start = folio.index << PAGE_SHIFT;
                let end = folio.range().end << PAGE_SHIFT;
                let part = bytes.start.max(start)..bytes.end.min(end);
                let result = folio.during(Flag::Reading, |folio| {
                    let bytes = folio.body_mut().extent().bytes_mut();
                    let buffer = &mut bytes[(part.start - start) as usize..(part.end - start) as usize];
                    let result = file.read_cached(buffer, part.start);
                    if let Ok(n) = result {
                        buffer[n..].fill(0);
                    }
                    result
                });
                if object.kernel_cache.note(&part) {
                    core.drop_kernel_cache(object);
                }
                if result.is_err() {
                    // The file's bytes cannot be read now: the next fault on the page tries again.
                    core.counters.add(Event::ReadErrors, 1);
                    let pages = part.start >> PAGE_SHIFT..part.end.div_ceil(PAGE_SIZE as u64);
                    let (first, end) = (pages.start - folio.index, pages.end - folio.index);
                    let mut lost = PageSet::new(folio.order);
                    lost.insert(first as usize..end as usize);
                    // The other pages may have stores that are not written yet.
                    core.save_and_discard(folio, &lost);
                }
            });
            if let Err(busy) = done {
                // The mapping and the file may differ.
                object.record_error(busy);
            }
        }
    }
}

/// Which bytes a page gets between the former end of the file and its new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    /// The file's: a call of the program has just made it longer.
    OfTheFile,
    /// Those that were stored, and the file's where they are zero: another process made it longer, at an
    /// unknown time.
    Stored,
}

/// Zeroes what the folio, whose pages are home, has beyond byte `end` of the file.
pub(super) fn zero_beyond(folio: &mut LockedFolio<'_>, end: u64) {
    let from = end.saturating_sub(folio.index << PAGE_SHIFT) as usize;
    let extent = folio.body_mut().extent();
    let len = extent.len_bytes();
    if from < len {
        extent.bytes_mut()[from..].fill(0);
    }
}
