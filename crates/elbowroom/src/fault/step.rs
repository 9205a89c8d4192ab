//! One look at a fault: from the address to a mapped page, or to what it must wait for.

use super::Faults;
use super::needs::Need;
use super::outcome::{Outcome, Reason, Wakeup};
use super::read::note_access;
use super::repeats::Repeated;
use super::{NO_THREAD, Pass};
use crate::config::{
    ALIAS_MOVES, DELAY, OPTIMISTIC_LOOKUPS, UPTODATE_LOOKS, UPTODATE_TRIES, UPTODATE_YIELDS,
};
use crate::group::Pause;
use crate::object::FileObject;
use crate::page::{Flag, Folio, LockedFolio, Owner, Parked};
use crate::pause::{Cause, pause};
use crate::platform::Platform;
use crate::stats::Event;
use crate::vma::{Enter, LayoutShared, LayoutState, Mm, Prot, VmaGuard};
use elbowroom_machine::{Access, Denial, Errno, Extent, Mmu, PAGE_SHIFT, PAGE_SIZE, UnmapError, Wake};
use elbowroom_sync::Mutant;
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::epoch::pin;
use elbowroom_sync::thread::look_around;
use elbowroom_sync::{Arc, LayoutHeld};
use std::ops::{Deref, Range};

/// In tests of the tests: a fault sleeps in its epoch section, for which threads that change the layout
/// wait.
const MUTANT_SLEEP_IN_SECTION: Mutant = Mutant::new("sleep_in_section");

impl<'a, P: Platform> Pass<'a, P> {
    /// One look at a fault. Nothing in it may block.
    pub(super) fn look(&mut self, fault: &mut Parked) -> Outcome {
        let core = self.core;
        let addr = fault.event.addr;
        // Taken outside of the epoch section, since the lock may have to be waited for.
        let mm = if core.looks_locked(fault) { core.spaces.of(addr) } else { None };
        let layout = mm.as_ref().map(|mm| core.layout_of_look(mm));
        // One epoch section for all that is looked up below: beginning one costs more than nesting in it.
        let epoch = pin();
        let Some(mm) = core.spaces.at(addr, &epoch) else { return Outcome::FOREIGN };
        if MUTANT_SLEEP_IN_SECTION.planted() {
            pause(Cause::Contended, DELAY);
        }
        let Ok(vma) = core.enter(mm, addr) else {
            // What follows may wait, which is not allowed in an epoch section.
            drop((epoch, layout));
            return not_entered(fault);
        };
        if !fault.major {
            fault.group = vma.spec.group;
        }
        if let Some(denial) = forbidden(vma.spec.prot, fault.event.write) {
            if fault.event.write
                && let Some(object) = &vma.spec.object
            {
                object.make_strict();
            }
            return core.refuse(addr, denial, || true);
        }
        if vma.spec.is_private() {
            return self.private_step(mm, &vma, fault);
        }
        match &vma.spec.object {
            Some(object) => self.object_step(mm, &vma, object, fault),
            // A shared mapping always has an object.
            None => core.refuse(addr, Denial::Bus, || true),
        }
    }

    /// A fault that the object's own page serves.
    pub(super) fn object_step(
        &mut self,
        mm: &Mm,
        vma: &VmaGuard<'_>,
        object: &Arc<FileObject>,
        fault: &mut Parked,
    ) -> Outcome {
        let core = self.core;
        let (addr, index) = (fault.event.addr, vma.page_at(fault.event.addr));
        let mut folio = match self.object_folio(vma, object, fault) {
            Ok(folio) => folio,
            Err(step) => return step,
        };
        let is_first = !folio.state.test(Flag::Used);
        let step = if folio.state.test(Flag::Dead) || index >= object.size_pages() {
            Outcome::Again
        } else {
            core.map_folio(mm, vma, object, &mut folio, fault)
        };
        debug_assert!(vma.range.contains(&addr), "the VMA is locked");
        let folio = folio.into_folio();
        if step.is_mapped_now() && !object.is_memory() {
            if !fault.major {
                core.streams.lock().reached(fault.event.thread, object.serial, folio.range());
            }
            note_access(core, vma, object, (fault, &folio), is_first);
        }
        if step.is_mapped_now() && !fault.event.write && !object.is_memory() {
            self.read_on(vma, object, &folio, fault);
        }
        step
    }

    /// The object's folio for the fault, locked; or what to do instead.
    pub(super) fn object_folio(
        &mut self,
        vma: &VmaGuard<'_>,
        object: &Arc<FileObject>,
        fault: &mut Parked,
    ) -> Result<LockedFolio<'a>, Outcome> {
        let core = self.core;
        let (addr, index) = (fault.event.addr, vma.page_at(fault.event.addr));
        if index >= object.size_pages() {
            // The file may have grown without our knowing.
            return Err(if self.got.asked_size {
                core.beyond_the_end(vma, object, index, addr)
            } else {
                self.needs(Need::Size(object.clone()))
            });
        }
        let Some(folio) = object.lookup(index) else {
            if std::mem::take(&mut fault.failed) {
                // Not denied if another fault has the page in the cache, or being read, by now. If the
                // denial fails, the next look reads the page again.
                let step = core.refuse(addr, bus(vma), || object.lookup(index).is_none());
                // Noted after the denial, so that the thread that undoes denials after a while finds this
                // one.
                object.note_denied(index);
                object.note_unreadable();
                return Err(step);
            }
            return Err(if object.is_memory() {
                self.new_memory(object, index)
            } else {
                self.read_at_fault(vma, object, index, fault)
            });
        };
        // Whatever failed before, the page is there now, or is being read.
        fault.failed = false;
        self.lock_folio(folio)
    }

    /// Locks the folio. If the folio is uptodate, the thread that has its lock is mapping or unmapping it,
    /// as a rule, and is done in some microseconds: that is waited for here, with the VMA's lock held.
    /// Linux: `filemap_fault`, where it waits for the lock of an uptodate folio without dropping the VMA's.
    pub(super) fn lock_folio(&self, folio: Arc<Folio>) -> Result<LockedFolio<'a>, Outcome> {
        let core = self.core;
        let mut folio = match LockedFolio::try_lock(folio, &core.waits, self.ready) {
            Ok(locked) => return Ok(locked),
            Err(folio) => folio,
        };
        if !core.config.ablation.uptodate_wait || !is_brief(&folio) {
            return Err(Outcome::Wait(Reason::Folio(folio)));
        }
        let free = |folio: &Folio| look_around(UPTODATE_LOOKS, UPTODATE_YIELDS, || !folio.state.is_locked());
        let wait = core.waits.begin_wait(&folio);
        // More than once, since another thread may take the lock first.
        for _ in 0..UPTODATE_TRIES {
            if !is_brief(&folio) || !free(&folio) {
                break;
            }
            folio = match LockedFolio::try_lock(folio, &core.waits, self.ready) {
                Ok(locked) => {
                    core.waits.end_wait(wait);
                    core.counters.add(Event::UptodateWaits, 1);
                    return Ok(locked);
                }
                Err(folio) => folio,
            };
        }
        Err(Outcome::Wait(Reason::Folio(folio)))
    }

    /// Puts a page of zeros into the cache of shared memory at a page that was never touched.
    fn new_memory(&mut self, object: &Arc<FileObject>, index: u64) -> Outcome {
        let core = self.core;
        let folio = match self.zero_folio(Owner::file(object), object.group.get(), index) {
            Ok(folio) => folio,
            Err(step) => return step,
        };
        if object.insert(folio.arc()).is_err() {
            core.free_folio(folio);
        }
        Outcome::Again
    }
}

/// When an access beyond the end of a file follows one at the page before, so many following pages are denied
/// with it.
const DENIED_AHEAD: usize = 63;

/// How an access to a page that cannot be had must fail; a store that the mapping does not permit fails for
/// that reason first.
pub(super) fn bus(vma: &VmaGuard<'_>) -> Denial {
    if vma.spec.prot.contains(Prot::WRITE) { Denial::Bus } else { Denial::BusReadOnly }
}

/// Whether the owner of the folio's lock will probably have it for a moment only: the folio is uptodate,
/// and no I/O is under way.
fn is_brief(folio: &Folio) -> bool {
    let busy = [Flag::Reading, Flag::Writeback, Flag::Abandoned];
    folio.state.test(Flag::Uptodate) && !busy.iter().any(|flag| folio.state.test(*flag))
}

/// What a fault does next whose lookup did not get a VMA: a few more lookups without a lock, then one with
/// the layout lock.
fn not_entered(fault: &mut Parked) -> Outcome {
    fault.looks.missed += 1;
    if fault.looks.missed < OPTIMISTIC_LOOKUPS {
        elbowroom_sync::thread::yield_now();
        return Outcome::Again;
    }
    fault.looks.missed = 0;
    Outcome::Fallback
}

/// How an access that the mapping does not permit must fail.
fn forbidden(prot: Prot, write: bool) -> Option<Denial> {
    if prot.is_empty() {
        Some(Denial::NoAccess)
    } else if write && !prot.contains(Prot::WRITE) {
        Some(Denial::NoWrite)
    } else {
        None
    }
}

impl<P: Platform> Faults<P> {
    /// Whether looks take the layout lock because an improvement is switched off: per-VMA locks, or (after
    /// a wait for I/O) the retry under the per-VMA lock.
    fn looks_locked(&self, fault: &Parked) -> bool {
        let on = &self.config.ablation;
        !on.vma_locks || !on.retry_under_vma_lock && fault.waited_for.is_some()
    }

    /// Takes the layout lock for a look, counted: waits for it before the look; the look holds it to its
    /// end.
    pub(crate) fn layout_of_look<'m>(&self, mm: &'m Mm) -> LayoutShared<'m> {
        self.counters.add(Event::LayoutLockFaults, 1);
        mm.read()
    }

    /// The VMA that covers `addr`, locked for reading; the result is counted. Waits for nothing.
    pub(crate) fn enter<'m>(&self, mm: &'m Mm, addr: usize) -> Result<VmaGuard<'m>, Enter> {
        let counters = &self.counters;
        let found = mm.enter(addr);
        match &found {
            Ok(_) => counters.add(Event::VmaLockSuccess, 1),
            Err(Enter::Miss) => counters.add(Event::VmaLockMiss, 1),
            Err(Enter::Locked) => counters.add(Event::VmaLockAbort, 1),
            Err(Enter::Changed) => counters.add(Event::VmaLockRetry, 1),
        }
        found
    }

    /// One look with the layout lock, for a fault whose lookups did not get a VMA. Waits for the lock.
    pub(super) fn look_with_layout(&self, fault: &Parked) -> Outcome {
        let addr = fault.event.addr;
        let Some(mm) = self.spaces.of(addr) else { return Outcome::FOREIGN };
        let step = self.look_closely(&mm, addr, &mm.read());
        step.unwrap_or_else(|| match fault.event.thread {
            // No thread of the program waits at the page: a verb only tries to populate it.
            NO_THREAD => Outcome::denied(Denial::NotMapped),
            _ => self.not_mapped(&mm, fault),
        })
    }

    /// What a fault is to do whose lookups got no VMA. The caller holds the layout lock. `None`: nothing is
    /// mapped there.
    pub(crate) fn look_closely(
        &self,
        mm: &Mm,
        addr: usize,
        layout: &(impl LayoutHeld + Deref<Target = LayoutState>),
    ) -> Option<Outcome> {
        if !mm.overlapping(&(addr..addr + PAGE_SIZE), layout).is_empty() {
            // A VMA is there after all: the next look finds it.
            Some(Outcome::Again)
        } else if layout.changing.iter().any(|r| r.contains(&addr)) {
            Some(Outcome::Wait(Reason::Change))
        } else if !self.mmu.covers(addr, PAGE_SIZE) {
            Some(Outcome::FOREIGN)
        } else {
            None
        }
    }

    /// Nothing is mapped at the address: the page is unmapped for real, so that the kernel itself delivers
    /// SIGSEGV. With late events only at the thread's second fault there: the first event may be old, and
    /// its access served long ago.
    fn not_mapped(&self, mm: &Mm, fault: &Parked) -> Outcome {
        let (addr, thread) = (fault.event.addr, fault.event.thread);
        let mut layout = mm.write();
        if let Some(step) = self.look_closely(mm, addr, &layout) {
            return step;
        }
        if P::Mmu::LATE_EVENTS && !layout.misses.confirm(thread, addr, fault.since) {
            return Outcome::served(Wakeup::Now);
        }
        let page = addr..addr + PAGE_SIZE;
        let punched = self.mmu.punch(page.clone());
        if punched == Ok(true) {
            mm.take(&mut layout, &page);
        }
        match punched {
            Ok(_) => Outcome::denied(Denial::NotMapped),
            // Denied with the layout lock still held: a mapping that comes there afterwards finds the
            // denial and undoes it.
            Err(_) => self.refuse(addr, Denial::NoAccess, || true),
        }
    }

    /// Queues a fault in its space until the change of the layout at its address ends. If that has ended
    /// already, the fault is made ready at once.
    pub(crate) fn stall(&self, mut fault: Parked) {
        let Some(mm) = self.spaces.of(fault.event.addr) else { return self.dispatch(vec![fault]) };
        let mut layout = mm.write();
        if layout.changing.iter().any(|r| r.contains(&fault.event.addr)) {
            fault.stalls(&self.locks);
            layout.stalled.push(fault);
        } else {
            drop(layout);
            self.dispatch(vec![fault]);
        }
    }

    /// Makes the access fail, unless `wanted`, asked when every other handler can see the denial, says that
    /// it should not after all.
    pub(super) fn refuse(&self, addr: usize, denial: Denial, wanted: impl Fn() -> bool) -> Outcome {
        match self.mmu.deny(addr, denial, wanted) {
            Ok(true) => Outcome::denied(denial),
            Ok(false) => Outcome::Again,
            // No memory for the kernel's bookkeeping: try again until there is.
            Err(_) => Outcome::Wait(Reason::Pinned),
        }
    }

    /// Makes an access beyond the end of the file fail with SIGBUS, after unmapping the folio that is left
    /// at that page, if any.
    fn beyond_the_end(&self, vma: &VmaGuard<'_>, object: &FileObject, index: u64, addr: usize) -> Outcome {
        if let Some(folio) = object.lookup(index) {
            let mut folio = match LockedFolio::try_lock(folio, &self.waits, self.handlers()) {
                Ok(locked) => locked,
                Err(folio) => return Outcome::Wait(Reason::Folio(folio)),
            };
            let unmapped = match folio.body_mut().extent.as_mut() {
                Some(extent) => self.mmu.unmap(extent),
                None => Ok(()),
            };
            drop(folio);
            if unmapped == Err(UnmapError::Busy) {
                return Outcome::Wait(Reason::Pinned);
            }
        }
        object.note_denied(index);
        let outcome = self.refuse(addr, bus(vma), || index >= object.size_pages());
        // A program that handles each SIGBUS and goes on to the next page gets one signal, not one fault
        // through the manager, for each of these pages.
        let before = (addr & !(PAGE_SIZE - 1)).wrapping_sub(PAGE_SIZE);
        if !vma.spec.is_private() && self.mmu.denies(before..before + PAGE_SIZE) {
            for (nth, index) in (index..vma.pages().end).enumerate().skip(1).take(DENIED_AHEAD) {
                let wanted = || index >= object.size_pages() && object.lookup(index).is_none();
                if !wanted() || self.mmu.deny(addr + nth * PAGE_SIZE, bus(vma), wanted) != Ok(true) {
                    break;
                }
            }
        }
        outcome
    }

    /// Maps the fault's page, and those other pages of its locked folio that may be mapped with it.
    fn map_folio(
        &self,
        mm: &Mm,
        vma: &VmaGuard<'_>,
        object: &FileObject,
        folio: &mut LockedFolio<'_>,
        fault: &Parked,
    ) -> Outcome {
        let base = vma.address_of(folio.index);
        let page = (vma.page_at(fault.event.addr) - folio.index) as usize;
        // If the improvement (`completed`) is off, a store to an unmapped page maps it as a load does, and
        // faults again.
        let loads_first = !self.config.ablation.completed && !object.is_memory();
        let write = fault.event.write && (!loads_first || folio.body_mut().extent().is_mapped(base, page));
        // The folio is unmapped first if it is to be mapped in another place, or if pages of it were lost:
        // then the file is to be read anew, and the pages at home must not be mapped.
        let moves = self.has_no_place_for(folio.body_mut().extent(), base);
        if moves {
            self.counters.add(Event::FolioMoves, 1);
            if folio.note_moved(self.alias_looks.load(Ordering::Relaxed)) > ALIAS_MOVES {
                object.note_bouncing();
            }
        }
        if moves || folio.body_mut().extent().is_damaged() {
            match self.mmu.unmap(folio.body_mut().extent()) {
                Ok(()) => {}
                Err(UnmapError::Busy) => return Outcome::Wait(Reason::Pinned),
                Err(UnmapError::Lost) => return self.give_up_lost(folio),
            }
        }
        if folio.body_mut().extent().is_mapped(base, page) {
            match self.repeated(fault) {
                Repeated::No => {}
                // A system call that we did not see has dropped the page.
                Repeated::Gone => match self.mmu.unmap(folio.body_mut().extent()) {
                    Ok(()) => return Outcome::Again,
                    Err(UnmapError::Busy) => return Outcome::Wait(Reason::Pinned),
                    Err(UnmapError::Lost) => return self.give_up_lost(folio),
                },
                Repeated::ForEver => return self.end_repeats(vma, fault),
            }
        }
        let first = write && !object.is_memory() && self.mark_dirty(object, folio, page);
        let stored = if first && !loads_first {
            self.guess_stores(vma, object, folio, page, fault.event.thread)
        } else {
            page..page + 1
        };
        let pause = if first { self.balance(folio.group, fault.event, stored.len()) } else { None };
        let wake = if pause.is_some() { Wake::Later } else { Wake::Now };
        let (head, body) = folio.parts();
        let extent = body.extent();
        let was_home = extent.is_home();
        let present = extent.is_mapped(base, page);
        let mapped = if present {
            if write { self.mmu.make_writable(pages_at(base, stored), wake) } else { Ok(()) }
        } else {
            let (pages, access) =
                if write { (stored, Access::Write) } else { self.around(mm, vma, head, object, page) };
            let alone = pages.len() == 1;
            match self.mmu.map(extent, base, pages, access, wake) {
                // Perhaps only a neighbour cannot be mapped, since the program has unmapped its address
                // behind our back.
                Err(Errno::NOENT | Errno::INVAL | Errno::EXIST) if !alone => {
                    self.map_alone(extent, base, page, access, wake)
                }
                mapped => mapped,
            }
        };
        if folio.state.set(Flag::Used) && was_home {
            folio.state.set(Flag::Referenced);
            self.counters.add(Event::ChancesTaken, 1);
            self.counters.add(Event::ChancePagesTaken, folio.pages());
        }
        self.mapped(mapped, pause, present && !write)
    }

    /// Reports a fault that comes again and again though its page is there, and makes its access fail.
    #[cold]
    pub(super) fn end_repeats(&self, vma: &VmaGuard<'_>, fault: &Parked) -> Outcome {
        self.report_overdue(fault, "a page that is there");
        let step = self.refuse(fault.event.addr, bus(vma), || true);
        let page = fault.event.addr & !(PAGE_SIZE - 1);
        self.note_refused(page..page + PAGE_SIZE);
        step
    }

    /// Gives up a locked folio of which pages are no longer where they were mapped, so that it is read
    /// anew. `Wait`: it has dirty pages, which must be written back first, and cannot be here.
    pub(super) fn give_up_lost(&self, folio: &mut LockedFolio<'_>) -> Outcome {
        if self.discard_lost(folio) { Outcome::Again } else { Outcome::Wait(Reason::Pinned) }
    }

    /// Maps one page, unless it is mapped already, and wakes the threads that wait for it.
    fn map_alone(
        &self,
        extent: &mut Extent,
        base: usize,
        page: usize,
        access: Access,
        wake: Wake,
    ) -> Result<(), Errno> {
        if !extent.is_mapped(base, page) {
            return self.mmu.map(extent, base, page..page + 1, access, wake);
        }
        if wake == Wake::Now {
            self.mmu.wake(page_at(base, page));
        }
        Ok(())
    }

    /// The outcome of a look by the MMU's answer. `spurious`: the page was mapped before, with the right
    /// that was needed.
    pub(super) fn mapped(&self, mapped: Result<(), Errno>, pause: Option<Pause>, spurious: bool) -> Outcome {
        if let (Ok(()), Some(pause)) = (mapped, pause) {
            return Outcome::served(Wakeup::Throttled(pause));
        }
        match mapped {
            Ok(()) if spurious => {
                self.counters.add(Event::FaultsSpurious, 1);
                Outcome::served(Wakeup::Now)
            }
            Ok(()) => Outcome::served(Wakeup::None),
            // The program has mapped or unmapped something there behind our back: the address is not ours
            // any more.
            Err(Errno::NOENT | Errno::INVAL | Errno::EXIST) => Outcome::FOREIGN,
            // The kernel has no memory for a page table: reclaim must free frames first.
            Err(Errno::NOMEM) => Outcome::Wait(Reason::Tables),
            Err(_) => Outcome::Wait(Reason::Pinned),
        }
    }

    /// Which of the `visible` pages to map with [`Access::ReadTracked`] for a fault at `page`: few, since
    /// each is copied.
    pub(super) fn tracked_around(&self, page: usize, visible: &Range<usize>) -> Range<usize> {
        surroundings(page, self.tuning().tracked_around_pages, visible)
    }

    /// Which pages of the folio to map for a load from `page`, and how.
    fn around(
        &self,
        mm: &Mm,
        vma: &VmaGuard<'_>,
        folio: &Folio,
        object: &FileObject,
        page: usize,
    ) -> (Range<usize>, Access) {
        let mapped = vma.pages();
        // The file may have been truncated since `page` was found to be inside. The thread that truncates
        // it unmaps the page when the folio is unlocked.
        let end =
            folio.range().end.min(mapped.end).min(object.size_pages()).max(folio.index + page as u64 + 1);
        let visible = (folio.index.max(mapped.start) - folio.index) as usize..(end - folio.index) as usize;
        if object.is_memory() && vma.spec.prot.contains(Prot::WRITE) {
            // Shared memory is never written back, so no store need be seen: the page is made writable at
            // once.
            return (page..page + 1, Access::Write);
        }
        let visible = if vma.spec.is_private() {
            // Not where the space has a copy of its own.
            let at = (vma.address_of(folio.index) >> PAGE_SHIFT) as u64;
            let free =
                mm.anon.gap_around(at + page as u64, at + visible.start as u64..at + visible.end as u64);
            (free.start - at) as usize..(free.end - at) as usize
        } else {
            visible
        };
        // Stores must be seen: those to a shared mapping make the page dirty, those to a private one make a
        // copy.
        let tracked = vma.spec.prot.contains(Prot::WRITE);
        if tracked || object.is_strict() {
            (self.tracked_around(page, &visible), Access::ReadTracked)
        } else {
            (surroundings(page, P::Mmu::AROUND, &visible), Access::ReadOnly)
        }
    }
}

/// The `visible` ones of the block of `most` pages that has `page`. `most` is a power of two, and the block
/// aligned to it.
fn surroundings(page: usize, most: usize, visible: &Range<usize>) -> Range<usize> {
    let start = page & !(most - 1);
    start.max(visible.start)..(start + most).min(visible.end)
}

pub(super) fn page_at(base: usize, page: usize) -> Range<usize> {
    pages_at(base, page..page + 1)
}

fn pages_at(base: usize, pages: Range<usize>) -> Range<usize> {
    let addr = base.wrapping_add(pages.start << PAGE_SHIFT);
    addr..addr + (pages.len() << PAGE_SHIFT)
}
