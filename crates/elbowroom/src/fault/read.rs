//! What is read of a file: at a fault whose page is not in the cache, and ahead of a thread that reads in
//! order.

use super::outcome::{Outcome, Reason};
use super::step::bus;
use super::{Faults, Pass};
use crate::config::{CHUNK_SHARE, FIRST_PART_ORDER, MAX_FOLIO_PAGES};
use crate::learned::{Chunk, Reached};
use crate::object::{FileObject, InsertError};
use crate::page::{Flag, Folio, Parked};
use crate::platform::Platform;
use crate::stats::Event;
use crate::vma::{Pattern, VmaGuard};
use elbowroom_sync::Arc;

/// Reads of fewer pages are not cut at the end of a chunk: to look it up would cost more than the pages.
const LARGE_PAGES: u64 = 32;

impl<P: Platform> Pass<'_, P> {
    /// Makes the folio for a page that is not in the cache and starts reading it.
    pub(super) fn read_at_fault(
        &mut self,
        vma: &VmaGuard<'_>,
        object: &Arc<FileObject>,
        index: u64,
        fault: &mut Parked,
    ) -> Outcome {
        if self.io.is_none() {
            return Outcome::Wait(Reason::Handler);
        }
        let (core, thread) = (self.core, fault.event.thread);
        let waited_for_it =
            fault.major && fault.waited_for.as_ref().is_some_and(|f| f.range().contains(&index));
        if waited_for_it && !fault.alone {
            core.counters.add(Event::RetryIoMiss, 1);
        }
        let known = if fault.alone { Err(0) } else { to_read(core, vma, object, (thread, index)) };
        let order = match &known {
            _ if fault.alone => 0,
            Ok(chunk) => chunk.part_order(index, FIRST_PART_ORDER),
            Err(came_before) => {
                let room = core.read_room(object.group.get(), object.size_pages());
                let pages = core.streams.lock().plan(thread, object.serial, index, vma.spec.pattern, room);
                // Threads that go through a part of a file together are one stream.
                let together = (came_before * core.tuning().read_growth).min(room.most);
                let pages = pages.max(together).min(MAX_FOLIO_PAGES);
                up_to_the_end(core, vma, object, index, pages).ilog2() as u8
            }
        };
        let order = object.free_order(index, order, object.size_pages());
        let extent = match self.take_frames(object.group.get(), order) {
            Ok(extent) => extent,
            Err(step) => return step,
        };
        match self.start_read(object, index, extent, &[]) {
            Ok(folio) => {
                if let (Ok(chunk), Some(io)) = (known, self.io.as_deref_mut()) {
                    core.counters.add(Event::ChunkReads, u64::from(chunk.pages.end > index + 1));
                    io.ahead.chunk(object.clone(), chunk.from(folio.range().end));
                }
                core.streams.lock().note(thread, object.serial, folio.index, folio.pages());
                Outcome::Wait(Reason::Folio(folio))
            }
            Err(InsertError::Exists) => Outcome::Again,
            Err(InsertError::Closed) => core.refuse(fault.event.addr, bus(vma), || true),
        }
    }

    /// Has the next part of a sequential stream read ahead, at the end of the step, while the thread works
    /// on this part.
    pub(super) fn read_on(
        &mut self,
        vma: &VmaGuard<'_>,
        object: &Arc<FileObject>,
        folio: &Folio,
        fault: &Parked,
    ) {
        let core = self.core;
        // Only handlers start reads.
        if self.io.is_none() || !folio.state.clear(Flag::Readahead) && !fault.major {
            return;
        }
        // If many faults wait for reads, the device is busy, and frames are better used for those reads.
        if core.groups.waiting() > core.tuning().read_on_max_waiting {
            return;
        }
        let thread = fault.event.thread;
        let next = core.streams.lock().read_on(
            thread,
            object.serial,
            folio.range().end,
            core.read_cap(object.group.get()) / core.tuning().ahead_share,
        );
        let Some((start, pages)) = next else { return };
        let known =
            if learns(core, vma) { core.patterns().files.end(object.serial, start, pages) } else { None };
        let end = (start + pages).min(known.unwrap_or(u64::MAX));
        if start < end.min(object.size_pages()).min(vma.pages().end) {
            self.ahead = Some((object.clone(), start..end));
        }
    }
}

/// Notes an access that has mapped pages of a folio of a file.
pub(super) fn note_access<P: Platform>(
    core: &Faults<P>,
    vma: &VmaGuard<'_>,
    object: &FileObject,
    (fault, folio): (&Parked, &Folio),
    is_first: bool,
) {
    if learns(core, vma) {
        let (thread, index) = (fault.event.thread, vma.page_at(fault.event.addr));
        let of_chunk = folio.state.test(Flag::Chunk);
        let access = Reached { thread, index, folio: folio.range(), is_first, of_chunk };
        core.patterns().files.touched(object.serial, &access, |page| is_mapped(object, page));
    }
}

/// Whether it is noted which parts of the mapping's file are read whole.
fn learns<P: Platform>(core: &Faults<P>, vma: &VmaGuard<'_>) -> bool {
    core.config.ablation.learned_chunks && vma.spec.pattern == Pattern::Detect
}

/// What to read at page `index` of a file, as far as the accesses before tell
/// ([`Learned::to_read`](crate::learned::Learned::to_read)).
fn to_read<P: Platform>(
    core: &Faults<P>,
    vma: &VmaGuard<'_>,
    object: &FileObject,
    (thread, index): (u32, u64),
) -> Result<Chunk, u64> {
    if !learns(core, vma) {
        return Err(0);
    }
    let (most, mapped) = (core.read_cap(object.group.get()) / CHUNK_SHARE, |page| is_mapped(object, page));
    let mut chunk = core.patterns().files.to_read(thread, (object.serial, index), most, mapped)?;
    chunk.pages.end = chunk.pages.end.min(object.size_pages()).min(vma.pages().end);
    if chunk.pages.end > index { Ok(chunk) } else { Err(0) }
}

/// How many of so many pages from page `index` of a file on are in the chunk that accesses have gone through
/// up to there, if that is known; at least 1.
fn up_to_the_end<P: Platform>(
    core: &Faults<P>,
    vma: &VmaGuard<'_>,
    object: &FileObject,
    index: u64,
    pages: u64,
) -> u64 {
    if pages < LARGE_PAGES || !learns(core, vma) {
        return pages;
    }
    let end = core.patterns().files.usual_end(object.serial, index);
    end.filter(|end| *end > index).map_or(pages, |end| pages.min(end - index))
}

/// Whether a page is in the cache and was accessed: further accesses may cause no fault.
fn is_mapped(object: &FileObject, page: u64) -> bool {
    object.lookup(page).is_some_and(|folio| folio.state.test(Flag::Used))
}
