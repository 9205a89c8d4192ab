//! Placing pages that the caller has filled: zero-copy receive. Linux: `vm_insert_pages`, and what
//! `TCP_ZEROCOPY_RECEIVE` does with it.
//!
//! A [`Buffer`] is a page that is in no space: the caller receives bytes into it and then inserts it, which
//! only changes where its frame is mapped. The page that was there before comes back in the same buffer, so
//! a stream of messages needs memory only for the messages in flight.
//!
//! Synchronization: like a fault, an insertion finds the VMA under RCU, and holds its read lock so that it
//! is not changed. It takes the layout lock only to tell a hole from a mapping in change. It waits for a
//! folio's lock without the VMA's lock.

use super::Space;
use super::Spaces;
use crate::config::{CHANGE_LOOK, DELAY, OPTIMISTIC_LOOKUPS};
use crate::fault::{Outcome, Reason};
use crate::group::Frames;
use crate::page::{AnonPages, LockedFolio, Ready};
use crate::pause::{Cause, pause};
use crate::platform::Soft;
use crate::stats::Event;
use crate::vma::{Prot, Vma};
use crate::writeback::Patience;
use elbowroom_machine::{Access, Errno, PAGE_SHIFT, PAGE_SIZE, UnmapError, Wake};
use elbowroom_sync::{Arc, thread};

/// How often a request for a buffer waits for pages on their way to the swap file, [`DELAY`] each time.
const RECEIVE_PAUSES: u32 = 1000;

/// A page of the budget that is in no space. Dropping it gives its frame back.
pub struct Buffer {
    core: Arc<Spaces<Soft>>,
    extent: Option<Frames>,
}

impl Buffer {
    /// Whether the buffer has no page: its page was inserted where no page was before, or in the place of
    /// one that other spaces share and keep.
    pub fn is_empty(&self) -> bool {
        self.extent.is_none()
    }

    /// The 4096 bytes of the page; an empty slice if there is no page.
    pub fn bytes(&self) -> &[u8] {
        self.extent.as_ref().map_or(&[], |frames| frames.bytes())
    }

    /// The bytes of the page, to be filled; an empty slice if there is no page.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.extent.as_mut().map_or(&mut [], |frames| frames.bytes_mut())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(extent) = self.extent.take() {
            self.core.free(extent);
        }
    }
}

/// An insertion that did not get to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("only {inserted} pages were inserted: {errno}")]
pub struct PartialInsert {
    /// How many pages are in the space, and stay there; the buffers after them are as they were.
    pub inserted: usize,
    /// Why the next page was not inserted.
    pub errno: Errno,
}

/// Why a look at a page ended before the page was in.
enum Stop {
    /// The insertion must wait first.
    Wait(Reason),
    /// Something changed meanwhile: look again.
    Again,
    Fail(Errno),
}

impl Space<Soft> {
    /// A page of zeros to receive into, charged to the budget.
    ///
    /// # Errors
    /// ENOMEM: the budget is used up, and nothing can be freed now. If pages are on their way to the swap
    /// file, this waits for their frames, at most a second.
    pub fn receive_buffer(&self) -> Result<Buffer, Errno> {
        let core = &self.core;
        let mut pauses = 0;
        let mut extent = loop {
            match core.frames(self.mm.group.get(), 0, core.handlers()) {
                Ok(extent) => break extent,
                Err(_) if core.to_write.own() == 0 || pauses == RECEIVE_PAUSES => return Err(Errno::NOMEM),
                Err(_) => pause(Cause::Frames, DELAY),
            }
            pauses += 1;
        };
        // The frame's old bytes are its last user's.
        extent.bytes_mut().fill(0);
        Ok(Buffer { core: self.core.clone(), extent: Some(extent) })
    }

    /// Puts the pages into private anonymous memory, from `addr` on, in the place of what is there; each
    /// buffer then has the page that its own has replaced, if there was one that no other space shares. An
    /// empty batch only finds and locks the VMA.
    ///
    /// # Errors
    /// EINVAL: the address is not aligned or not in the space, a buffer is empty or of another manager, or
    /// the memory is not private and anonymous. ENOMEM: nothing is mapped there. EACCES: the mapping permits
    /// no access. EBUSY: a page there has been pinned for longer than the bound.
    pub fn insert_pages(&self, addr: usize, pages: &mut [Buffer]) -> Result<(), PartialInsert> {
        let ours = |buffer: &Buffer| !buffer.is_empty() && Arc::ptr_eq(&buffer.core, &self.core);
        let range = self.range(addr, pages.len().max(1) << PAGE_SHIFT);
        if range.is_none() || !pages.iter().all(ours) {
            return Err(PartialInsert { inserted: 0, errno: Errno::INVAL });
        }
        let mut insertion = Insertion { space: self, ready: Ready::default(), inserted: 0 };
        let result = insertion.run(addr, pages);
        self.core.dispatch(insertion.ready.take());
        result.map_err(|errno| PartialInsert { inserted: insertion.inserted, errno })
    }
}

/// One insertion under way.
struct Insertion<'a> {
    space: &'a Space<Soft>,
    /// Faults whose wait has ended meanwhile.
    ready: Ready,
    inserted: usize,
}

impl Insertion<'_> {
    fn run(&mut self, addr: usize, pages: &mut [Buffer]) -> Result<(), Errno> {
        let core = &self.space.core;
        let (mut lookups, mut patience) = (0, Patience::bounded());
        loop {
            let (at, before) = (addr + (self.inserted << PAGE_SHIFT), self.inserted);
            let locked = !core.config.ablation.vma_locks;
            let layout = locked.then(|| core.layout_of_look(&self.space.mm));
            let stop = match core.enter(&self.space.mm, at) {
                Ok(vma) => self.fill(&vma, at, &mut pages[before..]),
                Err(_) => {
                    drop(layout);
                    lookups += 1;
                    core.dispatch(self.ready.take());
                    self.look_closely(at, lookups)?;
                    continue;
                }
            };
            drop(layout);
            lookups = 0;
            if self.inserted > before {
                patience = Patience::bounded();
            }
            match stop {
                Ok(()) if self.inserted == pages.len() => return Ok(()),
                // The remaining pages lie in the next VMA.
                Ok(()) | Err(Stop::Again) => {}
                Err(Stop::Wait(Reason::Folio(folio))) => {
                    core.dispatch(self.ready.take());
                    core.waits.wait(&folio);
                }
                Err(Stop::Wait(_)) => {
                    core.dispatch(self.ready.take());
                    if !patience.wait() {
                        return Err(Errno::BUSY);
                    }
                }
                Err(Stop::Fail(errno)) => return Err(errno),
            }
        }
    }

    /// After a lookup that got no VMA: waits for a change of the layout, if that is the reason, so that the
    /// caller looks again; an error if nothing is mapped there. Changes end without our help, so the
    /// caller's loop ends.
    fn look_closely(&self, at: usize, lookups: u32) -> Result<(), Errno> {
        if !lookups.is_multiple_of(OPTIMISTIC_LOOKUPS) {
            thread::yield_now();
            return Ok(());
        }
        let (core, mm) = (&self.space.core, &self.space.mm);
        core.counters.add(Event::LayoutLockFaults, 1);
        let step = core.look_closely(mm, at, &mm.read());
        match step {
            Some(Outcome::Again) => {}
            Some(Outcome::Wait(Reason::Change)) => {
                let mut layout = mm.write();
                let changes = layout.changing.iter().any(|r| r.contains(&at));
                let gate = changes.then(|| layout.gate());
                drop(layout);
                if let Some(gate) = gate {
                    gate.wait(&core.locks, CHANGE_LOOK);
                }
            }
            _ => return Err(Errno::NOMEM),
        }
        Ok(())
    }

    /// Inserts as many pages as the VMA has room for.
    fn fill(&mut self, vma: &Vma, at: usize, pages: &mut [Buffer]) -> Result<(), Stop> {
        if vma.spec.object.is_some() || !vma.spec.is_private() {
            return Err(Stop::Fail(Errno::INVAL));
        }
        if vma.spec.prot.is_empty() {
            return Err(Stop::Fail(Errno::ACCESS));
        }
        for (buffer, at) in pages.iter_mut().zip((at..vma.range.end).step_by(PAGE_SIZE)) {
            self.insert(vma, at, buffer)?;
            self.inserted += 1;
        }
        Ok(())
    }

    fn insert(&mut self, vma: &Vma, at: usize, buffer: &mut Buffer) -> Result<(), Stop> {
        let (core, page) = (&self.space.core, (at >> PAGE_SHIFT) as u64);
        let Some(old) = self.space.mm.anon.lookup(page) else {
            // A page that is swapped out there is replaced as well.
            core.take_own_out(&self.space.mm, page);
            return self.insert_first(vma, at, buffer);
        };
        let mut old = LockedFolio::try_lock(old, &core.waits, &self.ready)
            .map_err(|folio| Stop::Wait(Reason::Folio(folio)))?;
        if !self.space.mm.anon.has(page, old.arc()) {
            Err(Stop::Again)
        } else if old.order > 0 {
            let first = AnonPages::first_of(&old, page);
            core.split_own(&self.space.mm, first, 0, old);
            Err(Stop::Again)
        } else if self.is_in_the_way(&mut old, at) {
            Err(Stop::Wait(Reason::Pinned))
        } else {
            self.replace(vma, at, old, buffer);
            Ok(())
        }
    }

    /// Unmaps a locked folio, so that its page can be replaced: everywhere if no other space has the folio,
    /// since it gets the new frame then, else only at `at`. `true`: it is pinned there.
    fn is_in_the_way(&self, old: &mut LockedFolio<'_>, at: usize) -> bool {
        let (mmu, alone) = (&self.space.core.mmu, old.body().spaces() == 1);
        let extent = old.body_mut().extent();
        let gone = if alone { mmu.unmap(extent) } else { mmu.unmap_at(extent, at) };
        gone == Err(UnmapError::Busy)
    }

    /// Inserts a buffer's page at a page where the space has none.
    fn insert_first(&self, vma: &Vma, at: usize, buffer: &mut Buffer) -> Result<(), Stop> {
        let core = &self.space.core;
        let Some(mut folio) = self.new_folio(at, buffer) else { return Err(Stop::Fail(Errno::INVAL)) };
        if self.space.mm.anon.insert(folio.index, folio.arc()) {
            self.map(vma, at, &mut folio);
            core.list_own(folio.into_folio());
            return Ok(());
        }
        // A fault has put a page there meanwhile.
        buffer.extent = folio.body_mut().extent.take();
        core.free_folio(folio);
        Err(Stop::Again)
    }

    /// Inserts a buffer's page in the place of `old`, which is locked and, unless other spaces share it,
    /// home.
    fn replace(&self, vma: &Vma, at: usize, mut old: LockedFolio<'_>, buffer: &mut Buffer) {
        if old.body().spaces() == 1 {
            // The folio stays and gets the new frame, so that neither index nor folio has to be made anew.
            std::mem::swap(&mut old.body_mut().extent, &mut buffer.extent);
            self.map(vma, at, &mut old);
        } else if let Some(mut own) = self.new_folio(at, buffer) {
            // Other spaces keep the old page. The VMA is locked for reading and the folio is locked, so no
            // other thread changes what the space has at the page.
            let replaced = self.space.mm.anon.replace(own.index, old.arc(), own.arc());
            assert!(replaced, "what is at a page changes only under its folio's lock");
            old.body_mut().rmap.remove(own.index);
            self.map(vma, at, &mut own);
            self.space.core.list_own(own.into_folio());
        }
    }

    /// A locked folio with the buffer's page.
    fn new_folio(&self, at: usize, buffer: &mut Buffer) -> Option<LockedFolio<'_>> {
        let (extent, page) = (buffer.extent.take()?, (at >> PAGE_SHIFT) as u64);
        Some(self.space.core.anon_folio(page, extent, &self.ready))
    }

    fn map(&self, vma: &Vma, at: usize, folio: &mut LockedFolio<'_>) {
        let access = if vma.spec.prot.contains(Prot::WRITE) { Access::Write } else { Access::ReadOnly };
        // Without memory for a table the page is in the space all the same, and the first access maps it.
        let _ = self.space.core.mmu.map(folio.body_mut().extent(), at, 0..1, access, Wake::Now);
    }
}
