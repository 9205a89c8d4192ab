//! Faults on pages that belong to one space: anonymous memory, and a file's pages that were stored to in a
//! private mapping.
//!
//! Linux: `do_anonymous_page`, `do_cow_fault` and `do_wp_page` (mm/memory.c). There is no shared page of
//! zeros: a read of untouched anonymous memory gets a frame, as a store does. A page that several spaces have
//! since a fork is copied by the first of them that stores to it, and kept by the last.

use super::Faults;
use super::Pass;
use super::io::put_back;
use super::out_run::{Bytes, OutRun};
use super::outcome::{Outcome, Reason};
use super::repeats::Repeated;
use super::step::bus;
use crate::config::{FRESH, RUN_ORDER};
use crate::group::{Frames, GroupId};
use crate::object::FileObject;
use crate::page::{AnonPages, Flag, LockedFolio, Owner, Parked};
use crate::platform::Platform;
use crate::runs::Around;
use crate::stats::Event;
use crate::swap::{NotLoaded, Source};
use crate::vma::{Mm, Prot, VmaGuard};
use elbowroom_machine::{Access, Extent, Mmu, PAGE_SHIFT, PAGE_SIZE, UnmapError, Wake};
use elbowroom_sync::Arc;
use elbowroom_sync::Mutant;
use elbowroom_sync::atomic::{Ordering, fence};
use elbowroom_sync::epoch::Slot;
use std::ops::Range;

/// In tests of the tests: a folio that was found is used without looking whether it is still there.
const MUTANT_SKIP_IDENTITY_CHECK: Mutant = Mutant::new("skip_identity_check");

/// Pages of a run.
pub(super) const RUN_PAGES: u64 = 1 << RUN_ORDER;

/// Neighbours are read in pieces, too, if they are not together in the file, where so many of them, as log2,
/// are wanted. With fewer hardly any is.
const REST_ORDER: u8 = 3;

/// Why a page was not copied.
enum NoCopy {
    /// No frame is at hand.
    Frames(Outcome),
    Unmap(UnmapError),
}

/// The 2^`order` pages around one, if all of them are in the mapping.
pub(super) fn block_in(vma: &VmaGuard<'_>, page: u64, order: u8) -> Option<Range<u64>> {
    let first = page >> order << order;
    let block = first..first + (1 << order);
    let mapped = (vma.range.start >> PAGE_SHIFT) as u64..(vma.range.end >> PAGE_SHIFT) as u64;
    (mapped.start <= block.start && block.end <= mapped.end).then_some(block)
}

impl<'a, P: Platform> Pass<'a, P> {
    pub(super) fn private_step(&mut self, mm: &Mm, vma: &VmaGuard<'_>, fault: &mut Parked) -> Outcome {
        let page = (fault.event.addr >> PAGE_SHIFT) as u64;
        let there = mm.anon.slot(page);
        if let Slot::Word(slot) = there {
            return self.swap_in(mm, vma, page, slot, fault);
        }
        if let Slot::Full(folio) = there {
            // Whatever failed before, the page is there now, or is being read.
            fault.failed = false;
            let ahead = self.swap_on(mm, vma, page, &folio, fault);
            let mut folio = match self.lock_folio(folio) {
                Ok(locked) => locked,
                Err(step) => return step,
            };
            return if !MUTANT_SKIP_IDENTITY_CHECK.planted() && !mm.anon.has(page, folio.arc()) {
                // It was dropped, copied or moved between being found and being locked.
                Outcome::Again
            } else if fault.event.write && folio.body().spaces() > 1 {
                self.unshare(mm, vma, &mut folio, fault)
            } else if let Some(step) = self.core.look_at_repeats(vma, &mut folio, page, fault) {
                if vma.spec.object.is_some() && folio.body_mut().extent().is_home() {
                    // The file's page is there again.
                    self.core.take_own(mm, page, folio);
                }
                step
            } else {
                let wanted = self.core.wanted_again(vma, &mut folio, page, fault);
                if let Some(ahead) = ahead {
                    self.map_ahead(mm, vma, ahead, fault);
                }
                match self.core.map_own(vma, &mut folio, wanted, fault) {
                    // Pinned in another space that has it: a copy will do.
                    Outcome::Wait(Reason::Pinned) if folio.body().spaces() > 1 => {
                        self.unshare(mm, vma, &mut folio, fault)
                    }
                    step => step,
                }
            };
        }
        match &vma.spec.object {
            None => self.zero_page(mm, vma, page, fault),
            Some(object) if fault.event.write => self.copy_on_write(mm, vma, object, fault),
            Some(object) => self.object_step(mm, vma, object, fault),
        }
    }

    /// A page that is out comes back, perhaps with neighbours. Linux: `do_swap_page`, `alloc_swap_folio`.
    fn swap_in(&mut self, mm: &Mm, vma: &VmaGuard<'_>, page: u64, slot: u64, fault: &mut Parked) -> Outcome {
        let core = self.core;
        let source = core.swap.seems(slot);
        let failed = std::mem::take(&mut fault.failed);
        match source {
            None => return Outcome::Again,
            Some(Source::File(_)) if failed => {
                return self.refuse_out(mm, vma, page, fault);
            }
            Some(Source::File(_)) if self.io.is_none() => return Outcome::Wait(Reason::Handler),
            Some(_) => {}
        }
        let Some(source) = source else { return Outcome::Again };
        let most = if matches!(source, Source::File(_)) {
            RUN_PAGES
        } else {
            core.tuning().swap_run_pages.max(RUN_PAGES)
        };
        let pages = self.run_pages(mm, vma, page, most, fault);
        let order = pages.min(RUN_PAGES).ilog2() as u8;
        let alone = order == 0 && !fault.alone && vma.spec.object.is_none();
        let in_pool = !matches!(source, Source::File(_));
        let around = if alone {
            core.runs().around(page, in_pool, core.is_plenty())
        } else {
            Around { order, counted: false }
        };
        let run = self.run_out(mm, vma, (page, slot, source), around.order);
        let frames = match self.take_frames(mm.group, run.order()) {
            Ok(frames) => frames,
            Err(step) => return step,
        };
        core.see_to_runs();
        let run = run.around(page, frames.order());
        // A look at neighbours is the same whether they are together or not: else what is not would never
        // be found unwanted.
        let wanted = !alone || around.order >= REST_ORDER || around.counted;
        let in_pieces = matches!(source, Source::File(_)) && wanted;
        let brought = match block_in(vma, page, order).filter(|_| in_pieces) {
            _ if alone => page..page + 1,
            Some(block) => block,
            None => run.pages(),
        };
        self.note_run(page, &brought, fault);
        let is_whole = run.order() >= around.order;
        let sparse = around.counted && (frames.order() > 0 || in_pieces);
        if sparse && (is_whole || !in_pieces) {
            core.runs().probe(run.first, frames.order(), frames.pages() as u32 - 1);
        }
        if order == RUN_ORDER && run.first == page {
            self.swap_ahead(mm, vma, run.pages().end);
        }
        if let Source::File(_) = source {
            let own = frames.pages() as u32;
            let reading = self.start_swap_in(mm, run, frames, sparse);
            if reading.is_some() && !is_whole && in_pieces {
                let rest = self.swap_rest(mm, vma, page, around.order, sparse);
                if sparse {
                    let first = page >> around.order << around.order;
                    core.runs().probe(first, around.order, own - 1 + rest);
                }
            }
            return reading.map_or(Outcome::Again, |folio| Outcome::Wait(Reason::Folio(folio)));
        }
        let mut folio = match self.load(mm, &run, frames) {
            Ok(folio) => folio,
            Err(NotLoaded::Elsewhere) => return Outcome::Again,
            Err(NotLoaded::Corrupt) if run.slots.len() > 1 => {
                // Perhaps only one is bad: each fault loads its own alone, and fails with it.
                fault.alone = true;
                return Outcome::Again;
            }
            Err(NotLoaded::Corrupt) => {
                core.counters.add(Event::SwapErrors, 1);
                return self.refuse_out(mm, vma, page, fault);
            }
        };
        if sparse {
            folio.state.set(Flag::Sparse);
        }
        if pages > RUN_PAGES && run.order() == RUN_ORDER && run.first == page {
            // Before the thread is woken: it would fault again at each run that is not there yet.
            let end = self.load_ahead(mm, vma, run.pages().end, page + pages);
            self.note_run(page, &(page..end), fault);
        }
        let step = core.map_whole(vma, &mut folio, fault);
        core.list_own(folio.into_folio());
        step
    }

    /// Fills frames with the pages of a run whose bytes are in memory, and puts them in its place.
    ///
    /// # Errors
    /// Nothing has changed: their bytes are not there any more, or not those that went out.
    pub(super) fn load(
        &mut self,
        mm: &Mm,
        run: &OutRun,
        frames: Frames,
    ) -> Result<LockedFolio<'a>, NotLoaded> {
        let core = self.core;
        let mut folio = core.anon_folio(run.first, frames, self.ready);
        // First this: with the numbers this thread has the counts of the slots, so that nobody else gives
        // them up. Whoever finds the folio waits for its lock.
        if !mm.anon.swap_in(run.first, &run.slots, folio.arc()) {
            core.free_folio(folio);
            return Err(NotLoaded::Elsewhere);
        }
        let parts = folio.body_mut().extent().bytes_mut().chunks_mut(PAGE_SIZE).zip(&run.slots);
        match parts.map(|(part, slot)| core.swap.load(*slot, part)).collect::<Result<Vec<_>, _>>() {
            Ok(came) => {
                core.slots_came_in((&run.slots, &came), true, &mut folio);
                Ok(folio)
            }
            Err(why) => {
                put_back(mm, run.first, folio.arc(), &run.slots);
                core.free_folio(folio);
                Err(why)
            }
        }
    }

    /// How many pages of anonymous memory a fault should bring at once, at most so many: more for who goes
    /// through memory in order. Linux: `thp_swap_suitable_orders` and mTHP, which know nothing of streams.
    pub(super) fn run_pages(&self, mm: &Mm, vma: &VmaGuard<'_>, page: u64, most: u64, fault: &Parked) -> u64 {
        let core = self.core;
        if !core.swap.is_on() || vma.spec.object.is_some() || fault.alone {
            return 1;
        }
        let pages = core.runs().pages(fault.event.thread, page, most, core.is_plenty());
        if pages > 1 {
            return pages;
        }
        // Threads that go through the same memory together find what the first of them brings, and each of
        // them may be the first behind that.
        let before = page.checked_sub(1).and_then(|before| mm.anon.lookup(before));
        let pages =
            before.filter(|folio| core.since_mapped(folio) < FRESH).map_or(1, |folio| folio.pages() * 2);
        pages.min(most)
    }

    /// Notes which pages were brought for a fault at `page`.
    pub(super) fn note_run(&self, page: u64, pages: &Range<u64>, fault: &Parked) {
        if self.core.swap.is_on() {
            let brought = (pages.start, pages.end - pages.start);
            self.core.runs().note(fault.event.thread, page, brought);
        }
    }

    /// The pages around one that is out which may come in with it, at most 2^`order`: all out, and their
    /// bytes where its own are, in the file one behind the other.
    fn run_out(
        &self,
        mm: &Mm,
        vma: &VmaGuard<'_>,
        (page, slot, source): (u64, u64, Source),
        order: u8,
    ) -> OutRun {
        let found = (1..=order).rev().find_map(|order| {
            let block = block_in(vma, page, order)?;
            let slots = mm.anon.run_out(block.clone())?;
            let bytes = Bytes::of(slots.iter().map(|slot| self.core.swap.seems(*slot)))?;
            Some(OutRun { first: block.start, slots, bytes })
        });
        let alone = || match source {
            Source::Memory => Bytes::Memory,
            Source::File(spot) => Bytes::File(vec![spot]),
        };
        found.unwrap_or_else(|| OutRun { first: page, slots: vec![slot], bytes: alone() })
    }

    /// The access to a page that is out, and whose bytes cannot be had, fails. It may be tried again later.
    fn refuse_out(&self, mm: &Mm, vma: &VmaGuard<'_>, page: u64, fault: &Parked) -> Outcome {
        let step = self.core.refuse(fault.event.addr, bus(vma), || mm.anon.is_out(page));
        // Afterwards: the flusher may be in its round just now.
        let addr = fault.event.addr & !(PAGE_SIZE - 1);
        self.core.note_refused(addr..addr + PAGE_SIZE);
        step
    }

    /// A new folio of one page of zeros for a group, uptodate and locked.
    pub(super) fn zero_folio(
        &mut self,
        owner: Owner,
        group: GroupId,
        page: u64,
    ) -> Result<LockedFolio<'a>, Outcome> {
        let mut extent = self.take_frames(group, 0)?;
        extent.clear();
        Ok(self.core.new_folio(owner, page, extent, self.ready))
    }

    /// Untouched anonymous memory.
    fn zero_page(&mut self, mm: &Mm, vma: &VmaGuard<'_>, page: u64, fault: &Parked) -> Outcome {
        if let Some(step) = self.huge_zero_page(mm, vma, page, fault) {
            return step;
        }
        let most = self.run_pages(mm, vma, page, RUN_PAGES, fault).ilog2() as u8;
        let free = |block: &Range<u64>| mm.anon.seems_empty(block.clone());
        let order = (1..=most).rev().find(|order| block_in(vma, page, *order).is_some_and(|b| free(&b)));
        let mut frames = match self.take_frames(mm.group, order.unwrap_or(0)) {
            Ok(frames) => frames,
            Err(step) => return step,
        };
        self.core.see_to_runs();
        frames.clear();
        let first = page >> frames.order() << frames.order();
        self.note_run(page, &(first..first + frames.pages() as u64), fault);
        let folio = self.core.anon_folio(first, frames, self.ready);
        self.own(mm, vma, folio, fault)
    }

    /// The first store to a page of a file.
    fn copy_on_write(
        &mut self,
        mm: &Mm,
        vma: &VmaGuard<'_>,
        object: &Arc<FileObject>,
        fault: &mut Parked,
    ) -> Outcome {
        let (core, index) = (self.core, vma.page_at(fault.event.addr));
        let mut source = match self.object_folio(vma, object, fault) {
            Ok(folio) => folio,
            Err(step) => return step,
        };
        let inside = || index < object.size_pages();
        if source.state.test(Flag::Dead) || !inside() {
            return Outcome::Again;
        }
        // The copy comes in the place of this page.
        let (base, page) = (vma.address_of(source.index), (index - source.index) as usize);
        let extent = source.body_mut().extent();
        let gone_here = core.mmu.unmap_at(extent, base);
        match gone_here.map_err(NoCopy::Unmap).and_then(|()| self.copy(mm.group, &mut source, page, fault)) {
            // Whoever truncates the file looks for copies after the size is stored, so either the copy is
            // found or this sees the size.
            Ok(copy) => self.own_if(mm, vma, copy, fault, || {
                fence(Ordering::SeqCst);
                inside()
            }),
            Err(NoCopy::Frames(step)) => step,
            Err(NoCopy::Unmap(UnmapError::Busy)) => Outcome::Wait(Reason::Pinned),
            Err(NoCopy::Unmap(UnmapError::Lost)) => core.give_up_lost(&mut source),
        }
    }

    /// A page that a group pays for, with the bytes of page `page` of `source`. The source stays where it is,
    /// if that can be.
    fn copy(
        &mut self,
        group: GroupId,
        source: &mut LockedFolio<'_>,
        page: usize,
        fault: &Parked,
    ) -> Result<LockedFolio<'a>, NoCopy> {
        let core = self.core;
        let mut copy = self.take_frames(group, 0).map_err(NoCopy::Frames)?;
        let extent = source.body_mut().extent();
        if extent.is_damaged()
            && let Err(e) = core.mmu.unmap(extent)
        {
            core.free(copy);
            return Err(NoCopy::Unmap(e));
        }
        if !core.mmu.copy_page(extent, page, &mut copy) {
            if let Err(e) = core.mmu.unmap(extent) {
                core.free(copy);
                return Err(NoCopy::Unmap(e));
            }
            copy.bytes_mut().copy_from_slice(&extent.bytes()[page << PAGE_SHIFT..][..PAGE_SIZE]);
        }
        Ok(core.anon_folio((fault.event.addr >> PAGE_SHIFT) as u64, copy, self.ready))
    }

    /// A store to a page that other spaces have, too. Nobody stores to it, so it can be copied wherever it is
    /// mapped, but for here.
    fn unshare(
        &mut self,
        mm: &Mm,
        vma: &VmaGuard<'_>,
        shared: &mut LockedFolio<'_>,
        fault: &Parked,
    ) -> Outcome {
        let core = self.core;
        let extent = shared.body_mut().extent();
        if core.mmu.unmap_at(extent, fault.event.addr).is_err() {
            return Outcome::Wait(Reason::Pinned);
        }
        let mut own = match self.copy(mm.group, shared, 0, fault) {
            Ok(own) => own,
            Err(NoCopy::Frames(step)) => return step,
            Err(NoCopy::Unmap(_)) => return Outcome::Wait(Reason::Pinned),
        };
        // Nobody else changes what is there: the shared folio is locked, and was there after that.
        let replaced = mm.anon.replace((fault.event.addr >> PAGE_SHIFT) as u64, shared.arc(), own.arc());
        assert!(replaced, "what is at a page changes only under its folio's lock");
        shared.body_mut().rmap.remove(own.index);
        let step = core.map_whole(vma, &mut own, fault);
        core.list_own(own.into_folio());
        step
    }

    /// Puts a new folio into the space, maps it, and unlocks it.
    pub(super) fn own(
        &mut self,
        mm: &Mm,
        vma: &VmaGuard<'_>,
        folio: LockedFolio<'_>,
        fault: &Parked,
    ) -> Outcome {
        self.own_if(mm, vma, folio, fault, || true)
    }

    /// The same, unless the folio is not `wanted` any more once others can find it.
    fn own_if(
        &mut self,
        mm: &Mm,
        vma: &VmaGuard<'_>,
        mut folio: LockedFolio<'_>,
        fault: &Parked,
        wanted: impl FnOnce() -> bool,
    ) -> Outcome {
        let core = self.core;
        if !mm.anon.insert(folio.index, folio.arc()) {
            // Another thread was faster.
            core.free_folio(folio);
            return Outcome::Again;
        }
        if wanted() {
            let step = core.map_whole(vma, &mut folio, fault);
            core.list_own(folio.into_folio());
            return step;
        }
        core.take_own(mm, folio.index, folio);
        Outcome::Again
    }
}

impl<P: Platform> Faults<P> {
    /// log2 of how many pages of a locked folio that has been in memory are to be mapped for a fault at
    /// `page`: those that will be used. A larger folio of which only some are is split by reclaim.
    fn wanted_again(&self, vma: &VmaGuard<'_>, folio: &mut LockedFolio<'_>, page: u64, fault: &Parked) -> u8 {
        if vma.spec.object.is_some() || !self.swap.is_on() {
            return folio.order;
        }
        let (first, thread) = (AnonPages::first_of(folio, page), fault.event.thread);
        let at = (page - first) as usize;
        // One that is mapped wants a right, and says nothing of its neighbours.
        let mapped = folio.body_mut().extent().is_mapped((first as usize) << PAGE_SHIFT, at);
        let is_run = (1..=RUN_ORDER).contains(&folio.order) && folio.state.test(Flag::Used);
        let runs = self.runs();
        let order = if mapped || !is_run || folio.state.test(Flag::Sparse) {
            folio.order
        } else {
            let plenty = self.is_plenty();
            let around = runs.around(page, false, plenty);
            if around.counted {
                folio.state.set(Flag::Sparse);
                runs.probe(first, folio.order, folio.pages() as u32 - 1);
            }
            around.order.max(runs.pages(thread, page, folio.pages(), plenty).ilog2() as u8).min(folio.order)
        };
        let block = page >> order << order;
        runs.reached(
            thread,
            page,
            if order == folio.order { (first, folio.pages()) } else { (block, 1 << order) },
        );
        order
    }

    /// Takes a locked folio of the space's own home if its page is not where it was mapped, though the thread
    /// of the fault was woken for it before: a system call that nobody saw has dropped it. Its page at home
    /// is all zeros then.
    fn look_at_repeats(
        &self,
        vma: &VmaGuard<'_>,
        folio: &mut LockedFolio<'_>,
        page: u64,
        fault: &Parked,
    ) -> Option<Outcome> {
        let first = AnonPages::first_of(folio, page);
        let extent = folio.body_mut().extent();
        if !extent.is_mapped((first as usize) << PAGE_SHIFT, (page - first) as usize) {
            return None;
        }
        match self.repeated(fault) {
            Repeated::No => None,
            Repeated::Gone => Some(match self.mmu.unmap(extent) {
                Err(UnmapError::Busy) => Outcome::Wait(Reason::Pinned),
                _ => Outcome::Again,
            }),
            Repeated::ForEver => Some(self.end_repeats(vma, fault)),
        }
    }

    /// Maps a locked folio of the space's own, as far as the mapping has it.
    fn map_whole(&self, vma: &VmaGuard<'_>, folio: &mut LockedFolio<'_>, fault: &Parked) -> Outcome {
        self.map_own(vma, folio, folio.order, fault)
    }

    /// Maps 2^`order` pages of a locked folio of the space's own, around the one of the fault, as far as the
    /// mapping has them; of a [`Flag::Sparse`] one, that page alone.
    fn map_own(&self, vma: &VmaGuard<'_>, folio: &mut LockedFolio<'_>, order: u8, fault: &Parked) -> Outcome {
        self.map_at(vma, folio, order, (fault.event.addr, fault.event.write))
    }

    /// The same for an access to an address.
    pub(super) fn map_at(
        &self,
        vma: &VmaGuard<'_>,
        folio: &mut LockedFolio<'_>,
        order: u8,
        (addr, write): (usize, bool),
    ) -> Outcome {
        let first = AnonPages::first_of(folio, (addr >> PAGE_SHIFT) as u64);
        let base = (first as usize) << PAGE_SHIFT;
        let inside =
            vma.range.start.max(base) - base..vma.range.end.min(base + (PAGE_SIZE << folio.order)) - base;
        let alone = folio.body().spaces() == 1;
        let at = (addr - base) >> PAGE_SHIFT;
        let present = folio.body_mut().extent().is_mapped(base, at);
        let sparse = !present && folio.state.test(Flag::Sparse) && self.runs().touched(first + at as u64);
        let order = if sparse { 0 } else { order };
        if !present {
            self.note_mapped(folio);
        }
        let extent = folio.body_mut().extent();
        if self.has_no_place_for(extent, base) && self.mmu.unmap(extent) == Err(UnmapError::Busy) {
            return Outcome::Wait(Reason::Pinned);
        }
        let was_home = extent.is_home();
        let mapped = if !present {
            let writable = alone && vma.spec.prot.contains(Prot::WRITE);
            let block = at >> order << order;
            let pages =
                block.max(inside.start >> PAGE_SHIFT)..(block + (1 << order)).min(inside.end >> PAGE_SHIFT);
            // Garbage collectors take the right to store away to see each store, from the first one on.
            let (pages, access) = if writable {
                (pages, Access::Write)
            } else {
                (self.tracked_around(at, &pages), Access::ReadTracked)
            };
            self.mmu.map(extent, base, pages, access, Wake::Now)
        } else if write {
            self.mmu.make_writable(base + inside.start..base + inside.end, Wake::Now)
        } else {
            Ok(())
        };
        if folio.state.set(Flag::Used) && was_home {
            folio.state.set(Flag::Referenced);
        }
        self.mapped(mapped, None, present && !write)
    }

    /// Whether the extent must be unmapped before it can be mapped with page 0 at `base`.
    pub(super) fn has_no_place_for(&self, extent: &Extent, base: usize) -> bool {
        extent.places().len() >= <P::Mmu as Mmu>::PLACES && extent.place(base).is_none()
    }

    /// The folio that a space has at a page, locked; waits for the lock. Not for handlers.
    pub(crate) fn lock_own(&self, mm: &Mm, page: u64) -> Option<LockedFolio<'_>> {
        loop {
            let folio = self.waits.lock(&mm.anon.find(page)?, self.handlers());
            if mm.anon.has(page, folio.arc()) {
                return Some(folio);
            }
        }
    }

    /// Takes a folio, which is not mapped there, out of a space, if the space has it at the page, and frees
    /// it if no other has it.
    pub(crate) fn take_own(&self, mm: &Mm, page: u64, mut folio: LockedFolio<'_>) {
        let taken = mm.anon.remove(page, folio.arc());
        if taken && folio.body_mut().rmap.remove(page) {
            self.free_own(folio);
        }
    }

    /// Takes what is out at a page out of a space, if anything is; `false`: a folio is there.
    pub(crate) fn take_own_out(&self, mm: &Mm, page: u64) -> bool {
        match mm.anon.take_out(page) {
            Slot::Word(slot) => {
                self.release_slot(slot);
                true
            }
            Slot::Empty => true,
            Slot::Full(_) => false,
        }
    }
}
