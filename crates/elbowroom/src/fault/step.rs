//! One look at a fault: from the address to a mapped page, or to what it must wait for.

use super::Faults;
use super::needs::Need;
use super::outcome::{Outcome, Reason, Wakeup};
use super::repeats::Repeated;
use super::{NO_THREAD, Pass};
use crate::config::{
    ALIAS_MOVES, DELAY, OPTIMISTIC_LOOKUPS, UPTODATE_LOOKS, UPTODATE_TRIES, UPTODATE_YIELDS,
};
use crate::group::Pause;
use crate::object::{FileObject, InsertError};
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

/// In tests of the tests: a fault sleeps while all who change the layout wait for it.
const MUTANT_SLEEP_IN_SECTION: Mutant = Mutant::new("sleep_in_section");

impl<'a, P: Platform> Pass<'a, P> {
    /// One look at a fault. Nothing in it may block.
    pub(super) fn look(&mut self, fault: &mut Parked) -> Outcome {
        let core = self.core;
        let addr = fault.event.addr;
        // Outside of the section, since it may wait.
        let mm = if core.looks_locked(fault) { core.spaces.of(addr) } else { None };
        let layout = mm.as_ref().map(|mm| core.layout_of_look(mm));
        // One for all that is looked up below: making one costs more than having one.
        let epoch = pin();
        let Some(mm) = core.spaces.at(addr, &epoch) else { return Outcome::FOREIGN };
        if MUTANT_SLEEP_IN_SECTION.planted() {
            pause(Cause::Contended, DELAY);
        }
        let Ok(vma) = core.enter(mm, addr) else {
            // What follows may wait, which is not for a guard.
            drop((epoch, layout));
            return not_entered(fault);
        };
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
            // There is no shared mapping of nothing.
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
        let step = if folio.state.test(Flag::Dead) || index >= object.size_pages() {
            Outcome::Again
        } else {
            core.map_folio(mm, vma, object, &mut folio, fault)
        };
        debug_assert!(vma.range.contains(&addr), "the VMA is locked");
        let folio = folio.into_folio();
        if step.is_mapped_now() && !fault.major && !object.is_memory() {
            core.streams.lock().reached(fault.event.thread, object.serial, folio.range());
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
            // It may have grown without our knowing.
            return Err(if self.got.asked_size {
                core.beyond_the_end(vma, object, index, addr)
            } else {
                self.needs(Need::Size(object.clone()))
            });
        }
        let Some(folio) = object.lookup(index) else {
            if std::mem::take(&mut fault.failed) {
                // Not if somebody else can read it by now; and if the denial fails, the next look reads it
                // again.
                let step = core.refuse(addr, bus(vma), || object.lookup(index).is_none());
                // Afterwards, so that whoever lets accesses be tried again finds this one.
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

    /// The folio's lock. Who has the lock of a folio that has its bytes maps or unmaps it, as a rule, and is
    /// done in some microseconds: that is waited for here, with the VMA's lock. Linux: `filemap_fault`, where
    /// it waits for the lock of an uptodate folio without dropping the VMA's.
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
        // More than once, since others may be as quick.
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

    /// A page of zeros for a page of memory that nobody has touched.
    fn new_memory(&mut self, object: &Arc<FileObject>, index: u64) -> Outcome {
        let core = self.core;
        let folio = match self.zero_folio(Owner::file(object), object.group, index) {
            Ok(folio) => folio,
            Err(step) => return step,
        };
        if object.insert(folio.arc()).is_err() {
            core.free_folio(folio);
        }
        Outcome::Again
    }

    /// Makes the folio for a page that is not in the cache and starts reading it.
    fn read_at_fault(
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
        let pages = if fault.alone {
            1
        } else {
            let room = core.read_room(object.size_pages());
            core.streams.lock().plan(thread, object.serial, index, vma.spec.pattern, room)
        };
        let order = object.free_order(index, pages.ilog2() as u8, object.size_pages());
        let extent = match self.take_frames(object.group, order) {
            Ok(extent) => extent,
            Err(step) => return step,
        };
        match self.start_read(object, index, extent, &[]) {
            Ok(folio) => {
                core.streams.lock().note(thread, object.serial, folio.index, folio.pages());
                Outcome::Wait(Reason::Folio(folio))
            }
            Err(InsertError::Exists) => Outcome::Again,
            Err(InsertError::Closed) => core.refuse(fault.event.addr, bus(vma), || true),
        }
    }

    /// Has the next part of a sequential stream read while its thread works on this one.
    fn read_on(&mut self, vma: &VmaGuard<'_>, object: &Arc<FileObject>, folio: &Folio, fault: &Parked) {
        let core = self.core;
        // Only a handler can.
        if self.io.is_none() || !folio.state.clear(Flag::Readahead) && !fault.major {
            return;
        }
        // With many waiting faults the device is busy, and memory is better used for what they wait for.
        if core.groups.waiting() > core.tuning().read_on_max_waiting {
            return;
        }
        let thread = fault.event.thread;
        let next = core.streams.lock().read_on(
            thread,
            object.serial,
            folio.range().end,
            core.read_cap() / core.tuning().ahead_share,
        );
        if let Some((start, pages)) = next
            && start < object.size_pages().min(vma.pages().end)
        {
            self.ahead = Some((object.clone(), start..start + pages));
        }
    }
}

/// How an access to a page that cannot be had must fail; a store that the mapping does not permit fails for
/// that reason first.
pub(super) fn bus(vma: &VmaGuard<'_>) -> Denial {
    if vma.spec.prot.contains(Prot::WRITE) { Denial::Bus } else { Denial::BusReadOnly }
}

/// Whether whoever has the lock of a folio will have it for a moment only.
fn is_brief(folio: &Folio) -> bool {
    let busy = [Flag::Reading, Flag::Writeback, Flag::Abandoned];
    folio.state.test(Flag::Uptodate) && !busy.iter().any(|flag| folio.state.test(*flag))
}

/// What an access that did not get into its VMA does next.
fn not_entered(fault: &mut Parked) -> Outcome {
    fault.lookups += 1;
    if fault.lookups < OPTIMISTIC_LOOKUPS {
        elbowroom_sync::thread::yield_now();
        return Outcome::Again;
    }
    fault.lookups = 0;
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
    /// Whether a look takes the layout lock, since an improvement is off: the one of per-VMA locks, or, after
    /// a wait for I/O, the one of the retry under them.
    fn looks_locked(&self, fault: &Parked) -> bool {
        let on = &self.config.ablation;
        !on.vma_locks || !on.retry_under_vma_lock && fault.waited_for.is_some()
    }

    /// The layout lock, for looks that take it: it is waited for before a look, and held to its end.
    pub(crate) fn layout_of_look<'m>(&self, mm: &'m Mm) -> LayoutShared<'m> {
        self.counters.add(Event::LayoutLockFaults, 1);
        mm.read()
    }

    /// The VMA that covers `addr`, to rely on; counted. Waits for nothing.
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

    /// One look of an access that did not get into its VMA, with the layout lock, which is waited for.
    pub(super) fn look_with_layout(&self, fault: &Parked) -> Outcome {
        let addr = fault.event.addr;
        let Some(mm) = self.spaces.of(addr) else { return Outcome::FOREIGN };
        let step = self.look_closely(&mm, addr, &mm.read());
        step.unwrap_or_else(|| match fault.event.thread {
            // Nobody waits there: a verb only asked.
            NO_THREAD => Outcome::denied(Denial::NotMapped),
            _ => self.not_mapped(&mm, fault),
        })
    }

    /// What an access that found no VMA is to do, for whoever holds the layout lock; `None`: nothing is
    /// mapped there.
    pub(crate) fn look_closely(
        &self,
        mm: &Mm,
        addr: usize,
        layout: &(impl LayoutHeld + Deref<Target = LayoutState>),
    ) -> Option<Outcome> {
        if !mm.overlapping(&(addr..addr + PAGE_SIZE), layout).is_empty() {
            // It is there after all: the next look finds it.
            Some(Outcome::Again)
        } else if layout.changing.iter().any(|r| r.contains(&addr)) {
            Some(Outcome::Wait(Reason::Change))
        } else if !self.mmu.covers(addr, PAGE_SIZE) {
            Some(Outcome::FOREIGN)
        } else {
            None
        }
    }

    /// Nothing is mapped there: the kernel says so itself, where the access is the kernel's; at the second
    /// time, since the thread of the first event may have gone on long ago.
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
            // Still with the lock: what is mapped there afterwards finds the denial.
            Err(_) => self.refuse(addr, Denial::NoAccess, || true),
        }
    }

    /// Queues a fault until the change of the layout that it met ends; lets it look again if that has
    /// happened.
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

    /// Makes the access fail, unless `wanted` says, once every other handler can see the denial, that it
    /// should not after all.
    pub(super) fn refuse(&self, addr: usize, denial: Denial, wanted: impl Fn() -> bool) -> Outcome {
        match self.mmu.deny(addr, denial, wanted) {
            Ok(true) => Outcome::denied(denial),
            Ok(false) => Outcome::Again,
            // No memory for the kernel's bookkeeping: try again until there is.
            Err(_) => Outcome::Wait(Reason::Pinned),
        }
    }

    /// SIGBUS, once nothing of ours is left at the address.
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
        self.refuse(addr, bus(vma), || index >= object.size_pages())
    }

    /// Maps the page, and what of its locked folio may come with it.
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
        // With the improvement off a store brings its page as a load does, and faults again.
        let loads_first = !self.config.ablation.completed && !object.is_memory();
        let write = fault.event.write && (!loads_first || folio.body_mut().extent().is_mapped(base, page));
        // Where pages were lost, the file's are to be read anew, not those mapped that are home.
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
                // A system call that nobody saw has dropped it.
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
                // Something is in the way of a neighbour, perhaps: the program unmapped it behind our back.
                Err(Errno::NOENT | Errno::INVAL | Errno::EXIST) if !alone => {
                    self.map_alone(extent, base, page, access, wake)
                }
                mapped => mapped,
            }
        };
        if folio.state.set(Flag::Used) && was_home {
            folio.state.set(Flag::Referenced);
        }
        self.mapped(mapped, pause, present && !write)
    }

    /// A fault that was answered again and again, and comes again, though its page is there.
    #[cold]
    pub(super) fn end_repeats(&self, vma: &VmaGuard<'_>, fault: &Parked) -> Outcome {
        self.report_overdue(fault, "a page that is there");
        let step = self.refuse(fault.event.addr, bus(vma), || true);
        let page = fault.event.addr & !(PAGE_SIZE - 1);
        self.note_refused(page..page + PAGE_SIZE);
        step
    }

    /// Pages of a locked folio are no longer where they were mapped, and its dirty pages cannot be written
    /// here.
    pub(super) fn give_up_lost(&self, folio: &mut LockedFolio<'_>) -> Outcome {
        if self.discard_lost(folio) { Outcome::Again } else { Outcome::Wait(Reason::Pinned) }
    }

    /// Maps one page, unless that has happened, and lets whoever waits for it go on.
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

    /// What the MMU's answer means.
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
            // The way is blocked by what the program mapped behind our back: the address is not ours any
            // more.
            Err(Errno::NOENT | Errno::INVAL | Errno::EXIST) => Outcome::FOREIGN,
            // There are page tables for what is mapped when all else is gone.
            Err(Errno::NOMEM) => Outcome::Wait(Reason::Tables),
            Err(_) => Outcome::Wait(Reason::Pinned),
        }
    }

    /// Which of the `visible` pages to map with [`Access::ReadTracked`] for a fault at `page`: each is
    /// copied.
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
        // The file may have been cut since it was looked whether the page is inside; whoever cuts it comes
        // for the page when the folio is unlocked.
        let end =
            folio.range().end.min(mapped.end).min(object.size_pages()).max(folio.index + page as u64 + 1);
        let visible = (folio.index.max(mapped.start) - folio.index) as usize..(end - folio.index) as usize;
        if object.is_memory() && vma.spec.prot.contains(Prot::WRITE) {
            // Nothing is ever written back: a page may as well be writable at once.
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

/// The `most` pages, a power of two and aligned to it, of which `page` is one, as far as they are `visible`.
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
