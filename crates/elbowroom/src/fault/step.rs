//! One look at a fault: from the address to a mapped page, or to what it must wait for.

use super::{Handler, Step};
use crate::config::{OPTIMISTIC_LOOKUPS, TRACKED_AROUND_PAGES};
use crate::core::Core;
use crate::object::{FileObject, InsertError};
use crate::page::{Flag, Folio, Parked};
use crate::vma::{Prot, Sharing, VmaGuard};
use elbowroom_machine::{Access, Denial, Errno, PAGE_SHIFT, PAGE_SIZE, UnmapError, Wake};
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::Ordering;
use std::ops::Range;

/// What the VMA lookup found.
enum Lookup {
    Vma(VmaGuard),
    Other(Step),
}

impl Handler {
    pub(super) fn step(&mut self, fault: &mut Parked) -> Step {
        let core = self.core.clone();
        let vma = match core.find_vma(fault) {
            Lookup::Vma(vma) => vma,
            Lookup::Other(step) => return step,
        };
        let addr = fault.event.addr;
        let (object, index) = (&vma.spec.object, vma.page_at(addr));
        if let Some(denial) = forbidden(vma.spec.prot, fault.event.write) {
            object.make_strict();
            return core.refuse(addr, denial, || true);
        }
        if fault.failed {
            return core.refuse(addr, bus(&vma), || true);
        }
        if index >= object.size_pages() {
            // It may have grown without our knowing.
            let known = object.refresh_size().is_ok() && index < object.size_pages();
            return if known { Step::Again } else { core.beyond_the_end(&vma, index, addr) };
        }
        let Some(folio) = object.lookup(index) else {
            return self.read_at_fault(&vma, index, fault);
        };
        if !folio.state.try_lock() {
            return Step::Wait(folio);
        }
        let step = if folio.state.test(Flag::Dead) || index >= object.size_pages() {
            Step::Again
        } else {
            core.map_folio(&vma, &folio, index, fault)
        };
        core.waits.unlock(&folio, &mut self.ready);
        if matches!(step, Step::Done) && !fault.major {
            core.streams.lock().reached(fault.event.thread, object.serial, folio.range());
        }
        if matches!(step, Step::Done) && !fault.event.write {
            self.read_on(&vma, &folio, fault);
        }
        step
    }

    /// Makes the folio for a page that is not in the cache and starts reading it.
    fn read_at_fault(&mut self, vma: &VmaGuard, index: u64, fault: &mut Parked) -> Step {
        let core = self.core.clone();
        let (object, thread) = (&vma.spec.object, fault.event.thread);
        let waited_for_it = fault.major && fault.held.as_ref().is_some_and(|f| f.range().contains(&index));
        if waited_for_it && !fault.alone {
            core.counters.retry_io_miss.add(1);
        }
        let pages = if fault.alone {
            1
        } else {
            core.streams.lock().plan(thread, object.serial, index, vma.spec.pattern, core.read_cap())
        };
        match self.start_read(object, index, pages.ilog2() as u8, &[]) {
            Ok(folio) => {
                core.streams.lock().note(thread, object.serial, folio.index, folio.pages());
                Step::Wait(folio)
            }
            Err(ReadError::NoMemory) => Step::NoMemory,
            Err(ReadError::Insert(InsertError::Exists)) => Step::Again,
            Err(ReadError::Insert(InsertError::Closed)) => core.refuse(fault.event.addr, bus(vma), || true),
        }
    }

    /// Reads the next part of a sequential stream while its thread works on this one.
    fn read_on(&mut self, vma: &VmaGuard, folio: &Folio, fault: &Parked) {
        let core = self.core.clone();
        if !folio.state.clear(Flag::Readahead) && !fault.major {
            return;
        }
        // With many waiting faults the device is busy, and memory is better used for what they wait for.
        if core.waiting.load(Ordering::Relaxed) > crate::config::READ_ON_MAX_WAITING {
            return;
        }
        let (object, thread) = (&vma.spec.object, fault.event.thread);
        let next = core.streams.lock().read_on(thread, object.serial, folio.range().end, core.read_cap() / 2);
        if let Some((start, pages)) = next
            && start < object.size_pages().min(vma.pages().end)
            && self.prefetch(object, start..start + pages, pages)
        {
            core.streams.lock().note(thread, object.serial, start, pages);
        }
    }
}

/// Why a read was not started.
pub(super) enum ReadError {
    NoMemory,
    Insert(InsertError),
}

/// How an access to a page that cannot be had must fail; a store that the mapping does not permit fails for that reason first.
fn bus(vma: &VmaGuard) -> Denial {
    if vma.spec.prot.contains(Prot::WRITE) { Denial::Bus } else { Denial::BusReadOnly }
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

impl Core {
    fn find_vma(&self, fault: &mut Parked) -> Lookup {
        let addr = fault.event.addr;
        if let Some(vma) = self.vmas.find(addr) {
            if let Some(guard) = vma.enter() {
                return Lookup::Vma(guard);
            }
            // It is being replaced: the new list is published before the old VMA is detached, so look again.
            fault.lookups += 1;
            if fault.lookups < OPTIMISTIC_LOOKUPS {
                return Lookup::Other(Step::Again);
            }
        }
        fault.lookups = 0;
        self.counters.layout_lock_faults.add(1);
        let mut layout = self.layout.lock();
        if let Some(guard) = self.vmas.find(addr).and_then(|vma| vma.enter()) {
            return Lookup::Vma(guard);
        }
        if layout.changing.iter().any(|r| r.contains(&addr)) {
            return Lookup::Other(Step::Stalled);
        }
        if !self.mmu.windows().covers(addr, PAGE_SIZE) {
            return Lookup::Other(Step::Foreign);
        }
        // Nothing is mapped there: the kernel says so itself.
        layout.gaps.take_exactly(addr..addr + PAGE_SIZE);
        let punched = self.mmu.punch(addr..addr + PAGE_SIZE);
        drop(layout);
        Lookup::Other(match punched {
            Ok(()) => Step::Denied,
            Err(_) => self.refuse(addr, Denial::NoAccess, || true),
        })
    }

    /// Queues a fault until the change of the layout that it met ends; lets it look again if that has happened.
    pub(crate) fn stall(&self, fault: Parked) {
        let mut layout = self.layout.lock();
        if layout.changing.iter().any(|r| r.contains(&fault.event.addr)) {
            layout.stalled.push(fault);
        } else {
            drop(layout);
            self.dispatch(vec![fault]);
        }
    }

    /// Makes the access fail, unless `wanted` says, once every other handler can see the denial, that it should not after all.
    fn refuse(&self, addr: usize, denial: Denial, wanted: impl Fn() -> bool) -> Step {
        match self.mmu.deny(addr, denial, wanted) {
            Ok(true) => Step::Denied,
            Ok(false) => Step::Again,
            // No memory for the kernel's bookkeeping: try again until there is.
            Err(_) => Step::Later,
        }
    }

    /// SIGBUS, once nothing of ours is left at the address.
    fn beyond_the_end(&self, vma: &VmaGuard, index: u64, addr: usize) -> Step {
        let object = &vma.spec.object;
        if let Some(folio) = object.lookup(index) {
            if !folio.state.try_lock() {
                return Step::Wait(folio);
            }
            let unmapped = match folio.body().extent.as_mut() {
                Some(extent) => self.mmu.unmap(extent),
                None => Ok(()),
            };
            self.unlock(&folio);
            if unmapped == Err(UnmapError::Busy) {
                return Step::Later;
            }
        }
        self.refuse(addr, bus(vma), || index >= object.size_pages())
    }

    /// Maps the page, and what of its locked folio may come with it.
    fn map_folio(&self, vma: &VmaGuard, folio: &Arc<Folio>, index: u64, fault: &Parked) -> Step {
        let object = &vma.spec.object;
        let (base, page, write) =
            (vma.address_of(folio.index), (index - folio.index) as usize, fault.event.write);
        let throttle = write && self.mark_dirty(object, folio, page) && self.too_dirty();
        let wake = if throttle { Wake::Later } else { Wake::Now };
        let mut body = folio.body();
        let extent = body.extent();
        if extent.base().is_some_and(|b| b != base) {
            match self.mmu.unmap(extent) {
                Ok(()) => {}
                Err(UnmapError::Busy) => return Step::Later,
                Err(UnmapError::Lost) => {
                    drop(body);
                    self.discard(object, folio);
                    return Step::Again;
                }
            }
        }
        let was_home = extent.is_home();
        let spurious = !write && extent.away().contains(page);
        let mapped = if extent.away().contains(page) {
            if write { self.mmu.make_writable(page_at(base, page), wake) } else { Ok(()) }
        } else {
            let (pages, access) = around(vma, folio, object, page, write);
            self.mmu.map(extent, base, pages, access, wake)
        };
        drop(body);
        if folio.state.set(Flag::Used) && was_home {
            folio.state.set(Flag::Referenced);
        }
        match mapped {
            Ok(()) if throttle => Step::Throttled,
            Ok(()) if spurious => Step::Spurious,
            Ok(()) => Step::Done,
            // The way is blocked by what the program mapped behind our back: the address is not ours any more.
            Err(Errno::NOENT | Errno::INVAL | Errno::EXIST) => Step::Foreign,
            Err(_) => Step::Later,
        }
    }

    /// Lets a throttled writer go on when less is dirty, or after a while.
    pub(crate) fn throttle(&self, page: Range<usize>) {
        self.counters.throttled.add(1);
        let until = elbowroom_sync::time::Instant::now() + crate::config::THROTTLE_BOUND;
        let mut state = self.flush.state.lock();
        state.throttled.push((page, until));
        state.all = true;
        drop(state);
        self.flush.changed.notify_all();
    }
}

fn page_at(base: usize, page: usize) -> Range<usize> {
    let addr = base.wrapping_add(page << PAGE_SHIFT);
    addr..addr + PAGE_SIZE
}

/// Which pages of the folio to map for a fault at `page`, and how.
fn around(
    vma: &VmaGuard,
    folio: &Folio,
    object: &FileObject,
    page: usize,
    write: bool,
) -> (Range<usize>, Access) {
    if write {
        // Only the page that is dirty may be writable.
        return (page..page + 1, Access::Write);
    }
    let mapped = vma.pages();
    let end = folio.range().end.min(mapped.end).min(object.size_pages());
    let visible = (folio.index.max(mapped.start) - folio.index) as usize..(end - folio.index) as usize;
    let tracked = vma.spec.sharing == Sharing::Shared && vma.spec.prot.contains(Prot::WRITE);
    if tracked || object.is_strict() {
        let start = page & !(TRACKED_AROUND_PAGES - 1);
        let near = start.max(visible.start)..(start + TRACKED_AROUND_PAGES).min(visible.end);
        (near, Access::ReadTracked)
    } else {
        (visible, Access::ReadOnly)
    }
}
