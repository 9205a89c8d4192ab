//! Reads: starting them, and what their completion does.

use super::Handler;
use super::step::ReadError;
use crate::config::MAX_FOLIO_PAGES;
use crate::object::FileObject;
use crate::page::{Flag, Folio};
use elbowroom_machine::PAGE_SHIFT;
use elbowroom_store::{Read, ReadDone};
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::Ordering;
use std::ops::Range;

impl Handler {
    /// Inserts a folio with page `index`, of 2^`order` pages or fewer, and starts reading it.
    pub(super) fn start_read(
        &mut self,
        object: &Arc<FileObject>,
        index: u64,
        order: u8,
        flags: &[Flag],
    ) -> Result<Arc<Folio>, ReadError> {
        let core = self.core.clone();
        let order = object.free_order(index, order, object.size_pages());
        let populated = core.mmu.populated_frames();
        let extent = core.frames(order, &mut self.ready).ok_or(ReadError::NoMemory)?;
        if core.mmu.populated_frames() != populated {
            self.load.forgive();
        }
        let order = extent.order();
        let folio = Arc::new(Folio::new(object.serial, index >> order << order, order, &core.locks));
        flags.iter().for_each(|&flag| {
            folio.state.set(flag);
        });
        if let Err(e) = object.insert(&folio) {
            core.mmu.free(extent);
            return Err(ReadError::Insert(e));
        }
        let folios = core.folios.fetch_add(1, Ordering::Relaxed) + 1;
        core.folios_peak.fetch_max(folios, Ordering::Relaxed);
        let token = self.free_tokens.pop().unwrap_or_else(|| {
            self.reads.push(None);
            self.reads.len() - 1
        });
        self.reads[token] = Some((object.clone(), folio.clone()));
        self.reactor.read(Read {
            file: object.file(),
            offset: folio.index << PAGE_SHIFT,
            len: extent.len_bytes(),
            buf: extent,
            token: token as u64,
        });
        Ok(folio)
    }

    /// Starts reading those of `pages` that are not in the cache, in reads of at most `cap` pages. Tells whether any was started. Stops
    /// where memory does.
    pub(super) fn prefetch(&mut self, object: &Arc<FileObject>, pages: Range<u64>, cap: u64) -> bool {
        let end = pages.end.min(object.size_pages());
        let mut index = pages.start;
        let mut started = false;
        while index < end {
            if let Some(folio) = object.lookup(index) {
                index = folio.range().end;
                continue;
            }
            let order = cap.clamp(1, MAX_FOLIO_PAGES).min((end - index).next_power_of_two()).ilog2() as u8;
            match self.start_read(object, index, order, &[Flag::Readahead]) {
                Ok(folio) => index = folio.range().end,
                Err(_) => return started,
            }
            started = true;
        }
        started
    }

    /// Takes over the frames of a finished read.
    pub(super) fn complete(&mut self, read: ReadDone) {
        let core = self.core.clone();
        let token = read.token as usize;
        let Some((object, folio)) = self.reads[token].take() else { return };
        self.free_tokens.push(token);
        let mut extent = read.buf;
        let waited_from = self.ready.len();
        match read.result {
            Ok(len) => {
                core.counters.reads.add(1);
                core.counters.read_bytes.add(len as u64);
                if len < extent.len_bytes() {
                    // The end of the file: what is beyond it reads as zeros, and no bytes of the frames' last user show.
                    extent.bytes_mut()[len..].fill(0);
                    let _ = object.refresh_size();
                }
                folio.body().extent = Some(extent);
                folio.state.set(Flag::Uptodate);
                core.waits.unlock(&folio, &mut self.ready);
                core.enqueue(object, folio);
            }
            Err(_) => {
                core.counters.read_errors.add(1);
                object.note_unreadable();
                object.remove(&folio);
                core.folios.fetch_sub(1, Ordering::Relaxed);
                core.mmu.free(extent);
                core.waits.unlock(&folio, &mut self.ready);
                // Of several pages perhaps only one is bad: each fault reads its own alone, and fails with it.
                for fault in &mut self.ready[waited_from..] {
                    fault.failed = fault.alone || folio.order == 0;
                    fault.alone = true;
                }
            }
        }
    }
}
