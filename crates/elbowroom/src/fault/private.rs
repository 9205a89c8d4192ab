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
use crate::group::{Frames, GroupId, Payer};
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

/// In tests of the tests: a folio that was found and then locked is used without looking whether the space
/// still has it at the page.
const MUTANT_SKIP_IDENTITY_CHECK: Mutant = Mutant::new("skip_identity_check");

/// Pages of a run.
pub(super) const RUN_PAGES: u64 = 1 << RUN_ORDER;

/// From so many wanted neighbours on (log2), those that are not together in the swap file are read, too, in
/// pieces. Where fewer are wanted, hardly any of them would be touched.
const REST_ORDER: u8 = 3;

/// Why a page was not copied.
enum NoCopy {
    /// No frame is at hand.
    Frames(Outcome),
    Unmap(UnmapError),
}

/// The block of 2^`order` pages, aligned to its size, that has `page`, if all of it is in the mapping.
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
                // The folio was dropped, copied or moved between being found and being locked.
                Outcome::Again
            } else if fault.event.write && folio.body().spaces() > 1 {
                self.unshare(mm, vma, &mut folio, fault)
            } else if let Some(step) = self.core.look_at_repeats(vma, &mut folio, page, fault) {
                if vma.spec.object.is_some() && folio.body_mut().extent().is_home() {
                    // The private copy has been dropped by a system call. The file's page is to be seen
                    // again.
                    self.core.take_own(mm, page, folio);
                }
                step
            } else {
                let wanted = self.core.wanted_again(vma, &mut folio, page, fault);
                if let Some(ahead) = ahead {
                    self.map_ahead(mm, vma, ahead, fault);
                }
                match self.core.map_own(vma, &mut folio, wanted, fault) {
                    // The folio is pinned in another space that shares it: this space gets a copy.
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

    /// Brings a page in that is out, perhaps with neighbours. Linux: `do_swap_page`, `alloc_swap_folio`.
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
            core.patterns().anon.around(page, in_pool, core.is_plenty())
        } else {
            Around { order, counted: false }
        };
        let run = self.run_out(mm, vma, (page, slot, source), around.order);
        let frames = match self.take_frames(Payer::swap_in(vma.spec.group), run.order()) {
            Ok(frames) => frames,
            Err(step) => return step,
        };
        core.see_to_supply(0);
        let run = run.around(page, frames.order());
        // If the neighbours are brought to count how many of them are touched, those that are not together
        // in the file are brought as well: otherwise scattered neighbours would never be counted as
        // untouched.
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
            core.patterns().anon.probe(run.first, frames.order(), frames.pages() as u32 - 1);
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
                    core.patterns().anon.probe(first, around.order, own - 1 + rest);
                }
            }
            return reading.map_or(Outcome::Again, |folio| Outcome::Wait(Reason::Folio(folio)));
        }
        let mut folio = match self.load(mm, &run, frames) {
            Ok(folio) => folio,
            Err(NotLoaded::Elsewhere) => return Outcome::Again,
            Err(NotLoaded::Corrupt) if run.slots.len() > 1 => {
                // Perhaps only one of the pages is bad: from now on each fault loads its own page alone,
                // and fails only if that is bad.
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
            // Before the thread is woken: otherwise it would fault at each following run that is not mapped
            // yet.
            let end = self.load_ahead(mm, vma, run.pages().end, page + pages);
            self.note_run(page, &(page..end), fault);
        }
        let step = core.map_whole(vma, &mut folio, fault);
        core.list_own(folio.into_folio());
        step
    }

    /// Fills frames with the bytes of a run, which are in memory, and puts a folio of them in the place of
    /// the run.
    ///
    /// # Errors
    /// Elsewhere: the pages or their bytes are no longer where the run says. Corrupt: the bytes are not
    /// those that went out. Nothing has changed then.
    pub(super) fn load(
        &mut self,
        mm: &Mm,
        run: &OutRun,
        frames: Frames,
    ) -> Result<LockedFolio<'a>, NotLoaded> {
        let core = self.core;
        let mut folio = core.anon_folio(run.first, frames, self.ready);
        // Before loading: with the slots' numbers this thread takes over the space's counts of them, so
        // that no other thread frees them. Threads that find the folio wait for its lock.
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

    /// How many pages of anonymous memory a fault should bring at once, at most `most`: more than one if
    /// the thread goes through memory in order. Linux: `thp_swap_suitable_orders` and mTHP, which know
    /// nothing of streams.
    pub(super) fn run_pages(&self, mm: &Mm, vma: &VmaGuard<'_>, page: u64, most: u64, fault: &Parked) -> u64 {
        let core = self.core;
        if !core.swap.is_on() || vma.spec.object.is_some() || fault.alone {
            return 1;
        }
        let pages = core.patterns().anon.pages(fault.event.thread, page, most, core.is_plenty());
        if pages > 1 {
            return pages;
        }
        // If several threads go through the same memory together, the first of them brings the pages that
        // the others find, and any of them may be the first to go on. So a page right behind a folio that
        // was mapped just now continues its stream.
        let before = page.checked_sub(1).and_then(|before| mm.anon.lookup(before));
        let pages =
            before.filter(|folio| core.since_mapped(folio) < FRESH).map_or(1, |folio| folio.pages() * 2);
        pages.min(most)
    }

    /// Notes which pages were brought for a fault at `page`.
    pub(super) fn note_run(&self, page: u64, pages: &Range<u64>, fault: &Parked) {
        if self.core.swap.is_on() {
            let brought = (pages.start, pages.end - pages.start);
            self.core.patterns().anon.note(fault.event.thread, page, brought);
        }
    }

    /// The run of pages around `page`, at most 2^`order`, that may come in together with it: all of them
    /// are out, and their bytes are all in memory, or all in the swap file one behind the other.
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

    /// Makes the access to a page fail that is out, and whose bytes cannot be had. The denial is undone
    /// later, so that the access may be tried again.
    fn refuse_out(&self, mm: &Mm, vma: &VmaGuard<'_>, page: u64, fault: &Parked) -> Outcome {
        let step = self.core.refuse(fault.event.addr, bus(vma), || mm.anon.is_out(page));
        // After the denial: the flusher, which undoes noted denials, may be in its round just now.
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

    /// Serves a fault on untouched anonymous memory with a folio of zeros.
    fn zero_page(&mut self, mm: &Mm, vma: &VmaGuard<'_>, page: u64, fault: &Parked) -> Outcome {
        if let Some(step) = self.huge_zero_page(mm, vma, page, fault) {
            return step;
        }
        let most = self.run_pages(mm, vma, page, RUN_PAGES, fault).ilog2() as u8;
        let free = |block: &Range<u64>| mm.anon.seems_empty(block.clone());
        let order = (1..=most).rev().find(|order| block_in(vma, page, *order).is_some_and(|b| free(&b)));
        let mut frames = match self.take_frames(vma.spec.group, order.unwrap_or(0)) {
            Ok(frames) => frames,
            Err(step) => return step,
        };
        self.core.see_to_supply(0);
        frames.clear();
        let first = page >> frames.order() << frames.order();
        self.note_run(page, &(first..first + frames.pages() as u64), fault);
        let folio = self.core.anon_folio(first, frames, self.ready);
        self.own(mm, vma, folio, fault)
    }

    /// Serves the first store to a page of a file in a private mapping: with a copy of the page.
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
        // The copy is mapped in the place of this page.
        let (base, page) = (vma.address_of(source.index), (index - source.index) as usize);
        let extent = source.body_mut().extent();
        let gone_here = core.mmu.unmap_at(extent, base);
        match gone_here
            .map_err(NoCopy::Unmap)
            .and_then(|()| self.copy(vma.spec.group, &mut source, page, fault))
        {
            // A thread that truncates the file looks for copies after it has stored the new size. So either
            // it finds this copy, or the new size is seen here.
            Ok(copy) => self.own_if(mm, vma, copy, fault, || {
                fence(Ordering::SeqCst);
                inside()
            }),
            Err(NoCopy::Frames(step)) => step,
            Err(NoCopy::Unmap(UnmapError::Busy)) => Outcome::Wait(Reason::Pinned),
            Err(NoCopy::Unmap(UnmapError::Lost)) => core.give_up_lost(&mut source),
        }
    }

    /// A new folio with a copy of page `page` of `source`, charged to `group`. The source stays mapped, if
    /// its bytes can be read there.
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

    /// Serves a store to a page that other spaces share since a fork: gives this space a copy. The shared
    /// page is mapped read-only everywhere, so it can be copied while it is mapped in other spaces; here it
    /// is unmapped first.
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
        let mut own = match self.copy(vma.spec.group, shared, 0, fault) {
            Ok(own) => own,
            Err(NoCopy::Frames(step)) => return step,
            Err(NoCopy::Unmap(_)) => return Outcome::Wait(Reason::Pinned),
        };
        // No other thread changes what the space has at the page: the shared folio is locked, and it was
        // found to be there after it was locked.
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

    /// [`Pass::own`], but the folio is taken out and freed again if `wanted`, asked once other threads can
    /// find the folio, says no.
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
            // Another thread was faster: the space has something at the page.
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
    /// log2 of how many pages of a locked folio that was in memory already are to be mapped for a fault at
    /// `page`: only those that will probably be used. Reclaim splits a larger folio of which only some
    /// pages are mapped.
    fn wanted_again(&self, vma: &VmaGuard<'_>, folio: &mut LockedFolio<'_>, page: u64, fault: &Parked) -> u8 {
        if vma.spec.object.is_some() || !self.swap.is_on() {
            return folio.order;
        }
        let (first, thread) = (AnonPages::first_of(folio, page), fault.event.thread);
        let at = (page - first) as usize;
        // If the page is mapped, the fault is for the right to store, and says nothing of the neighbours.
        let mapped = folio.body_mut().extent().is_mapped((first as usize) << PAGE_SHIFT, at);
        let is_run = (1..=RUN_ORDER).contains(&folio.order) && folio.state.test(Flag::Used);
        let runs = &self.patterns().anon;
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

    /// Unmaps a locked folio of the space's own if the fault repeats ([`Repeated`]) and its page is not
    /// where it was mapped: a system call that we did not see has dropped it. At home, in the arena, that
    /// page is all zeros then. `None`: the page is not mapped, or the fault is not suspicious yet.
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

    /// Maps the pages of a locked folio of the space's own that lie in the VMA.
    fn map_whole(&self, vma: &VmaGuard<'_>, folio: &mut LockedFolio<'_>, fault: &Parked) -> Outcome {
        self.map_own(vma, folio, folio.order, fault)
    }

    /// Maps those of the 2^`order` pages around the fault's that lie in the VMA, of a locked folio of the
    /// space's own. Of a [`Flag::Sparse`] folio only the fault's page is mapped.
    fn map_own(&self, vma: &VmaGuard<'_>, folio: &mut LockedFolio<'_>, order: u8, fault: &Parked) -> Outcome {
        self.map_at(vma, folio, order, (fault.event.addr, fault.event.write))
    }

    /// [`Faults::map_own`] for an access at `addr`.
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
        let sparse =
            !present && folio.state.test(Flag::Sparse) && self.patterns().anon.touched(first + at as u64);
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
            // Read-only pages must be write-protected from the first moment on: garbage collectors take the
            // right to store away to see each store.
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
            self.counters.add(Event::ChancesTaken, 1);
            self.counters.add(Event::ChancePagesTaken, folio.pages());
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

    /// Takes a folio out of a space, if the space has it at the page, and frees it if no other space has
    /// it. The folio is not mapped there.
    pub(crate) fn take_own(&self, mm: &Mm, page: u64, mut folio: LockedFolio<'_>) {
        let taken = mm.anon.remove(page, folio.arc());
        if taken && folio.body_mut().rmap.remove(page) {
            self.free_own(folio);
        }
    }

    /// If the page is out: takes it from the space and gives up its swap slot. `false`: a folio is there.
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
