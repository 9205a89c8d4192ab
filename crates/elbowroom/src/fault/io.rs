//! Reads: starting them, and what their completion does.

use super::Pass;
use super::ahead::Ahead;
use super::load::Load;
use super::out_run::{Bytes, OutRun};
use crate::config::{MAX_FOLIO_ORDER, MAX_FOLIO_PAGES, UNDER_WAY_SHARE};
use crate::core::Arrived;
use crate::group::{Charge, Frames};
use crate::learned::Chunk;
use crate::object::{FileObject, InsertError};
use crate::page::{Flag, Folio, LockedFolio, Owner, Reading};
use crate::platform::Platform;
use crate::stats::Event;
use crate::trace::Happened;
use crate::vma::Mm;
use elbowroom_machine::PAGE_SHIFT;
use elbowroom_store::{Reactor, Read, ReadDone};
use elbowroom_sync::Arc;
use elbowroom_sync::epoch::Slot;
use std::ops::Range;

/// A handler's I/O.
pub(super) struct Io {
    pub(super) reactor: Box<dyn Reactor>,
    pub(super) load: Load,
    /// What is to be read that no thread waits for.
    pub(super) ahead: Ahead,
    /// Reads whose folios have been inserted in an index, to be queued as soon as the handler holds no lock
    /// and no VMA.
    begun: Vec<Read>,
    /// Reads under way, by token.
    reads: Vec<Option<UnderWay>>,
    free_tokens: Vec<usize>,
    /// How many bytes the reads under way are to read.
    under_way: usize,
}

/// A read under way.
struct UnderWay {
    folio: Reading,
    charge: Charge,
    /// When the read was begun, for the trace; 0 without a trace.
    begun_ns: u64,
    /// How many bytes are to be read.
    len: usize,
    /// The swap slots whose bytes are read; the read has a count of each. Empty: the read is of a mapped
    /// file.
    slots: Vec<u64>,
}

impl Io {
    pub(super) fn new(reactor: Box<dyn Reactor>) -> Self {
        Self {
            reactor,
            load: Load::new(),
            ahead: Ahead::default(),
            begun: Vec::new(),
            reads: Vec::new(),
            free_tokens: Vec::new(),
            under_way: 0,
        }
    }

    /// A token for a read into the folio.
    fn token(&mut self, read: UnderWay) -> u64 {
        self.under_way += read.len;
        let token = self.free_tokens.pop().unwrap_or_else(|| {
            self.reads.push(None);
            self.reads.len() - 1
        });
        self.reads[token] = Some(read);
        token as u64
    }

    /// Whether more is to be read ahead now. Not while the reads under way have one part in
    /// [`UNDER_WAY_SHARE`] of so many frames: the device is busy, and what comes would push out what came.
    pub(super) fn has_to_read(&self, frames: usize) -> bool {
        !self.ahead.is_empty() && self.under_way >> PAGE_SHIFT <= frames / UNDER_WAY_SHARE
    }

    /// What a finished read of the swap file has brought. `Err` gives the read back: it was of a mapped
    /// file.
    pub(super) fn arrived(&mut self, read: ReadDone) -> Result<Arrived, ReadDone> {
        let is_of_swap = |read: &UnderWay| !read.slots.is_empty();
        if !self.reads[read.token as usize].as_ref().is_some_and(is_of_swap) {
            return Err(read);
        }
        let Some(UnderWay { folio, charge, len, slots, .. }) = self.take(read.token) else {
            return Err(read);
        };
        let (bytes, whole) = (read.result.unwrap_or(0), read.result == Ok(len));
        Ok(Arrived { folio, frames: charge.with(read.buf), slots, bytes, whole })
    }

    /// The entry of a finished read, whose token becomes free.
    fn take(&mut self, token: u64) -> Option<UnderWay> {
        let read = self.reads[token as usize].take()?;
        self.free_tokens.push(token as usize);
        self.under_way -= read.len;
        Some(read)
    }
}

/// What is read together of pages that no thread waits for.
pub(super) enum Parts<'a> {
    /// So many pages at most.
    UpTo(u64),
    /// The parts of a chunk.
    Of(&'a Chunk),
}

impl Parts<'_> {
    /// log2 of the pages of the read at page `index`, where all up to `end` are to be read.
    fn order(&self, index: u64, end: u64) -> u8 {
        match self {
            Self::UpTo(most) => {
                (*most).clamp(1, MAX_FOLIO_PAGES).min((end - index).next_power_of_two()).ilog2() as u8
            }
            Self::Of(chunk) => chunk.part_order(index, MAX_FOLIO_ORDER),
        }
    }

    /// The flag of the folios.
    fn flag(&self) -> Flag {
        match self {
            Self::UpTo(_) => Flag::Readahead,
            Self::Of(_) => Flag::Chunk,
        }
    }
}

impl<P: Platform> Pass<'_, P> {
    /// Inserts a folio of the size of `frames` that has page `index` into the cache, and has it read into
    /// the frames at the end of the step.
    pub(super) fn start_read(
        &mut self,
        object: &Arc<FileObject>,
        index: u64,
        frames: Frames,
        flags: &[Flag],
    ) -> Result<Arc<Folio>, InsertError> {
        let core = self.core;
        let Some(file) = object.file() else {
            core.free(frames);
            return Err(InsertError::Closed);
        };
        let order = frames.order();
        let folio = Folio::new(Owner::file(object), frames.group(), index >> order << order, order);
        let locked = LockedFolio::new(folio, &core.waits, self.ready);
        flags.iter().for_each(|&flag| {
            locked.state.set(flag);
        });
        let folio = locked.arc().clone();
        // Before other threads can find the folio: those that find it must see that its lock waits for a
        // device.
        let reading = locked.begin_read();
        if let Err(e) = object.insert(&folio) {
            drop(reading.end(&core.waits, self.ready));
            core.free(frames);
            return Err(e);
        }
        core.groups.folios.add();
        let (extent, charge) = frames.lend();
        let io = self.io.as_deref_mut().expect("only handlers start reads");
        let begun_ns = core.trace.as_ref().map_or(0, |trace| trace.now());
        let len = extent.len_bytes();
        let token = io.token(UnderWay { folio: reading, charge, begun_ns, len, slots: Vec::new() });
        io.begun.push(Read { file, offset: folio.index << PAGE_SHIFT, len, buf: extent, token });
        Ok(folio)
    }

    /// Puts a folio in the place of pages that are out, and has it read from the swap file at the end of
    /// the step. `None`: the pages, or their bytes, are no longer where `run` says. `sparse`: the folio is
    /// to be mapped page by page.
    pub(super) fn start_swap_in(
        &mut self,
        mm: &Mm,
        run: OutRun,
        frames: Frames,
        sparse: bool,
    ) -> Option<Arc<Folio>> {
        let core = self.core;
        let order = frames.order();
        let folio = Folio::new(Owner::Anon, frames.group(), run.first, order);
        let locked = LockedFolio::new(folio, &core.waits, self.ready);
        let folio = locked.arc().clone();
        if sparse {
            folio.state.set(Flag::Sparse);
        }
        // Before other threads can find the folio: those that find it must see that its lock waits for a
        // device.
        let reading = locked.begin_read();
        // With the slots' numbers the read takes over the space's counts of them, so their bytes stay where
        // they are.
        let ours = mm.anon.swap_in(run.first, &run.slots, &folio);
        let there = ours && run.is_where_it_was(&core.swap);
        let place = match &run.bytes {
            Bytes::File(spots) if there => {
                let (first, last) = (spots[0].position(), spots[spots.len() - 1].position());
                let len = ((last - first + 1) as usize) << PAGE_SHIFT;
                core.swap.place(first).map(|(file, offset)| (file, offset, len))
            }
            _ => None,
        };
        let Some((file, offset, len)) = place else {
            if ours {
                put_back(mm, run.first, &folio, &run.slots);
            }
            drop(reading.end(&core.waits, self.ready));
            core.free(frames);
            return None;
        };
        core.groups.folios.add();
        let (extent, charge) = frames.lend();
        let io = self.io.as_deref_mut().expect("only handlers start reads");
        let begun_ns = core.trace.as_ref().map_or(0, |trace| trace.now());
        let token = io.token(UnderWay { folio: reading, charge, begun_ns, len, slots: run.slots });
        io.begun.push(Read { file, offset, len, buf: extent, token });
        Some(folio)
    }

    /// Ends a read of the swap file: gives the folio its frames, or, if not all could be read, takes it out
    /// again.
    pub(super) fn swapped_in(&mut self, arrived: Arrived) {
        let core = self.core;
        let Arrived { folio, mut frames, slots, bytes, whole } = arrived;
        core.counters.add(Event::SwapReadBytes, bytes as u64);
        let mut folio = folio.end(&core.waits, self.ready);
        let came = if whole { core.swap.arrive(&slots, frames.bytes_mut()).ok() } else { None };
        if let Some(came) = came {
            folio.body_mut().extent = Some(frames);
            folio.state.set(Flag::Uptodate);
            core.slots_came_in((&slots, &came), false, &mut folio);
            return core.list_own(folio.into_folio());
        }
        core.counters.add(Event::SwapErrors, 1);
        // A locked folio is not moved, so the space that has it is there.
        let first = folio.body().rmap.pages()[0];
        if let Some(mm) = core.spaces.of((first as usize) << PAGE_SHIFT) {
            put_back(&mm, first, folio.arc(), &slots);
        }
        core.groups.folios.remove();
        core.free(frames);
        let waited_from = self.ready.len();
        drop(folio.into_folio());
        // Perhaps only one of several pages is bad: from now on each fault reads its own page alone, and
        // fails only if that is bad.
        self.ready.change_from(waited_from, |fault| {
            fault.failed = fault.alone || slots.len() == 1;
            fault.alone = true;
        });
    }

    /// Queues the reads that were begun. Not to be called with a VMA or in an epoch section: the reactor
    /// may start a thread, or, if it cannot, read in this one.
    pub(super) fn begin_reads(&mut self) {
        if let Some(io) = self.io.as_deref_mut() {
            io.begun.drain(..).for_each(|read| io.reactor.read(read));
        }
    }

    /// Starts reading those of `pages` that are not in the cache. Tells whether any read was started. Stops
    /// when no frames can be had.
    pub(super) fn prefetch(&mut self, object: &Arc<FileObject>, pages: Range<u64>, parts: &Parts) -> bool {
        let end = pages.end.min(object.size_pages());
        let mut index = pages.start;
        let mut started = false;
        while index < end {
            if let Some(folio) = object.lookup(index) {
                index = folio.range().end;
                continue;
            }
            let order = object.free_order(index, parts.order(index, end), object.size_pages());
            let Ok(extent) = self.core.frames(object.group.get(), order, self.ready) else { break };
            match self.start_read(object, index, extent, &[parts.flag()]) {
                Ok(folio) => {
                    index = folio.range().end;
                    if let Parts::Of(_) = parts {
                        self.core.patterns().files.note_read(object.serial, folio.pages());
                    }
                }
                Err(_) => break,
            }
            started = true;
        }
        self.begin_reads();
        started
    }

    /// Takes over the frames of a finished read.
    pub(super) fn complete(&mut self, read: ReadDone) {
        let core = self.core;
        let Some(io) = self.io.as_deref_mut() else { return };
        let read = match io.arrived(read) {
            Ok(arrived) => return self.swapped_in(arrived),
            Err(read) => read,
        };
        let Some(UnderWay { folio, charge, begun_ns, .. }) = io.take(read.token) else { return };
        let mut frames = charge.with(read.buf);
        let mut folio = folio.end(&core.waits, self.ready);
        let Some(object) = folio.object() else {
            // The object is gone, so no thread can find the folio any more.
            folio.body_mut().extent = Some(frames);
            return core.free_folio(folio);
        };
        if let Some(trace) = &core.trace {
            let (what, bytes) = match read.result {
                Ok(bytes) => (Happened::Read, bytes),
                Err(_) => (Happened::ReadError, frames.len_bytes()),
            };
            trace.transfer(what, begun_ns, [folio.index << PAGE_SHIFT, bytes as u64], object.id().inode);
        }
        match read.result {
            Ok(len) => {
                core.counters.add(Event::Reads, 1);
                core.counters.add(Event::ReadBytes, len as u64);
                if len < frames.len_bytes() {
                    // The file ends here: what is beyond its end must read as zeros, not as bytes of the
                    // frames' last user.
                    frames.bytes_mut()[len..].fill(0);
                    let _ = object.refresh_size();
                }
                folio.body_mut().extent = Some(frames);
                folio.state.set(Flag::Uptodate);
                core.add_to_list(&object, folio.into_folio());
            }
            Err(_) => {
                core.counters.add(Event::ReadErrors, 1);
                object.note_unreadable();
                object.remove(&folio);
                core.groups.folios.remove();
                core.free(frames);
                let waited_from = self.ready.len();
                let folio = folio.into_folio();
                // Perhaps only one of several pages is bad: from now on each fault reads its own page
                // alone, and fails only if that is bad.
                self.ready.change_from(waited_from, |fault| {
                    fault.failed = fault.alone || folio.order == 0;
                    fault.alone = true;
                });
            }
        }
    }
}

/// Puts the numbers of swap slots back in the place of a locked folio whose bytes could not be had, and
/// marks the folio dead.
pub(super) fn put_back(mm: &Mm, first: u64, folio: &Arc<Folio>, slots: &[u64]) {
    let back = match slots {
        [slot] => mm.anon.swap_out(first, folio, *slot),
        slots => mm.anon.split_out(first, folio, slots.iter().map(|slot| Slot::Word(*slot)).collect()),
    };
    assert!(back, "what is at a page changes only under its folio's lock");
    folio.state.set(Flag::Dead);
}
