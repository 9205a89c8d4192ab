//! mremap. Linux 6.18: `check_mremap_params`, `remap_move`, `check_prep_vma`, `mremap_to`, `mremap_at`,
//! `move_vma`.

use super::change::{AfterChange, BeginOptions, Change, Pages, VmaPart};
use super::map::Place;
use super::own::each_own;
use super::{Space, TASK_SIZE, page_align};
use crate::page::AnonPages;
use crate::platform::Platform;
use crate::trace::Verb;
use crate::vma::{Vma, VmaFlags};
use elbowroom_machine::{Errno, Mmu, PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::Mutant;
use elbowroom_sync::epoch::Slot;
use std::ops::Range;

/// In tests of the tests: a folio of anonymous memory is moved, but its reverse map is not changed.
const MUTANT_FORGET_MOVE: Mutant = Mutant::new("forget_move");

/// Where a remapped range may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remap {
    /// It stays where it is.
    InPlace,
    /// It moves if it must.
    MayMove,
    /// It moves exactly to this address; mappings there are replaced.
    Fixed(usize),
    /// It moves to this address if that is free, else anywhere; the old range stays mapped, without the
    /// pages that belonged to the space.
    DontUnmap(usize),
    /// It moves exactly to this address, and the old range stays mapped.
    FixedDontUnmap(usize),
}

impl Remap {
    fn target(self) -> Option<usize> {
        match self {
            Remap::InPlace | Remap::MayMove => None,
            Remap::Fixed(to) | Remap::DontUnmap(to) | Remap::FixedDontUnmap(to) => Some(to),
        }
    }

    fn is_fixed(self) -> bool {
        matches!(self, Remap::Fixed(_) | Remap::FixedDontUnmap(_))
    }

    fn keeps_source(self) -> bool {
        matches!(self, Remap::DontUnmap(_) | Remap::FixedDontUnmap(_))
    }
}

impl<P: Platform> Space<P> {
    /// Shrinks, grows or moves the mapping at a range; returns its address now.
    ///
    /// # Errors
    /// EINVAL: an address is not aligned, the new length is 0 or larger than the space, the new range
    /// overlaps the old one or is not in the space, two lengths with [`Remap::DontUnmap`], or no old length
    /// and a private mapping. EFAULT: the old range is not all one mapping (with [`Remap::Fixed`] and one
    /// length it may be several, with holes). ENOMEM: no room to grow in place, or at all. EXDEV: a part of
    /// the tail that is cut off was given to the kernel.
    pub fn remap(&self, addr: usize, old: usize, new: usize, how: Remap) -> Result<usize, Errno> {
        self.core.verb(Verb::Remap, addr, old, || {
            let at = self.remap_range(addr, old, new, how);
            self.settle();
            at
        })
    }

    fn remap_range(&self, addr: usize, old: usize, new: usize, how: Remap) -> Result<usize, Errno> {
        let (old, new) = (page_align(old), page_align(new));
        if !addr.is_multiple_of(PAGE_SIZE) || new == 0 || new > TASK_SIZE {
            return Err(Errno::INVAL);
        }
        if let Some(to) = how.target() {
            let beyond = to.checked_sub(self.base).is_none_or(|at| at > TASK_SIZE - new);
            let overlaps = addr.wrapping_add(old) > to && to.wrapping_add(new) > addr;
            if beyond || !to.is_multiple_of(PAGE_SIZE) || how.keeps_source() && old != new || overlaps {
                return Err(Errno::INVAL);
            }
            if how.is_fixed() && old == new {
                return self.move_range(addr, old, to, how);
            }
        }
        self.check_source(addr, old, new, how)?;
        match how.target() {
            Some(to) => self.remap_to(addr, old, new, to, how),
            None => self.remap_in_place(addr, old, new, how),
        }
    }

    /// Moves the VMAs of the range one by one, and keeps the holes between them.
    fn move_range(&self, addr: usize, len: usize, to: usize, how: Remap) -> Result<usize, Errno> {
        let range = self.range(addr, len).ok_or(Errno::FAULT)?;
        let parts = self.parts(&range);
        if parts.first().is_none_or(|part| part.range.start != addr) {
            return Err(Errno::FAULT);
        }
        for part in parts {
            let (at, len) = (part.range.start, part.range.len());
            self.remap_to(at, len, len, to + (at - addr), how)?;
        }
        Ok(to)
    }

    /// The part of the mapping at `addr` from there to the mapping's end.
    fn mapping_from(&self, addr: usize) -> Result<VmaPart, Errno> {
        let page = self.range(addr, PAGE_SIZE).ok_or(Errno::FAULT)?;
        let layout = self.layout_without_change_in(&page);
        let vma = self.mm.overlapping(&page, &layout).into_iter().next().ok_or(Errno::FAULT)?;
        let range = addr..vma.range.end;
        Ok(VmaPart { range, first_page: vma.page_at(addr), spec: vma.spec.clone() })
    }

    fn check_source(&self, addr: usize, old: usize, new: usize, how: Remap) -> Result<(), Errno> {
        let part = self.mapping_from(addr)?;
        if new <= old && how.target().is_none() {
            return Ok(());
        }
        if old == 0 && part.spec.is_private() {
            return Err(Errno::INVAL);
        }
        if old.min(new) > part.range.len() { Err(Errno::FAULT) } else { Ok(()) }
    }

    /// Moves the mapping to the address `to`. First the mappings at a fixed address are unmapped, then, if
    /// it shrinks, its tail.
    fn remap_to(
        &self,
        addr: usize,
        mut old: usize,
        new: usize,
        to: usize,
        how: Remap,
    ) -> Result<usize, Errno> {
        if how.is_fixed() {
            self.unmap(to, new)?;
            self.mapping_from(addr)?;
        }
        if new < old {
            self.unmap_ours(addr + new, old - new)?;
            old = new;
        }
        let place = if how.is_fixed() { Place::Fixed(to) } else { Place::Hint(to) };
        self.move_vma(addr..addr + old, new, place, how.keeps_source())
    }

    fn remap_in_place(&self, addr: usize, old: usize, new: usize, how: Remap) -> Result<usize, Errno> {
        if new <= old {
            if new < old {
                self.unmap_ours(addr + new, old - new)?;
            }
            return Ok(addr);
        }
        if self.grow(addr, old, new) {
            return Ok(addr);
        }
        if how == Remap::InPlace {
            return Err(Errno::NOMEM);
        }
        self.move_vma(addr..addr + old, new, Place::Anywhere, false)
    }

    /// Maps the free range right after a mapping as its continuation, if the old range ends where the mapping
    /// does.
    fn grow(&self, addr: usize, old: usize, new: usize) -> bool {
        let Ok(part) = self.mapping_from(addr) else { return false };
        let growth = addr + old..addr + new;
        if part.range.end != growth.start || growth.end > self.addresses().end {
            return false;
        }
        {
            let mut layout = self.layout_without_change_in(&(growth.start - PAGE_SIZE..growth.end));
            // The mapping may have gone since it was looked at.
            let before = self.mm.overlapping(&(growth.start - PAGE_SIZE..growth.start), &layout);
            if before.first().is_none_or(|vma| vma.spec.kind() != part.spec.kind()) {
                return false;
            }
            if !self.mm.is_free(&growth, &layout) || self.mm.room_for(1, &layout).is_err() {
                return false;
            }
            if self.core.mmu.allow(growth.clone()).is_err() {
                return false;
            }
            let page = part.first_page + (old >> PAGE_SHIFT) as u64;
            self.mm.insert(&mut layout, Vma::new(growth.clone(), page, part.spec.clone()));
        }
        if part.spec.flags.contains(VmaFlags::LOCKED) {
            self.populate_what_can_be(&growth);
        }
        true
    }

    /// Moves the mapping at `from` with its pages; the new range may be longer. An empty `from` makes a
    /// second mapping of the same pages.
    fn move_vma(&self, from: Range<usize>, new: usize, place: Place, keep: bool) -> Result<usize, Errno> {
        let whole = self.mapping_from(from.start)?;
        let first_page = whole.first_page;
        let locked = whole.spec.flags.contains(VmaFlags::LOCKED);
        if from.is_empty() {
            let target = self.target(place, new, first_page)?;
            let to = target.range.clone();
            self.finish(target, vec![Vma::new(to.clone(), first_page, whole.spec)], AfterChange::Free);
            return Ok(to.start);
        }
        let (source, target) = self.both(&from, place, new, &whole)?;
        let to = target.range.clone();
        for part in source.parts.iter().filter(|part| part.spec.is_private()) {
            self.move_own(part.page_numbers(), (to.start.wrapping_sub(from.start) >> PAGE_SHIFT) as u64);
        }
        self.finish(target, vec![Vma::new(to.clone(), first_page, whole.spec)], AfterChange::Free);
        let left =
            if keep { source.parts.iter().map(|part| part.with(|_| ())).collect() } else { Vec::new() };
        self.finish(source, left, AfterChange::Free);
        if locked {
            if keep {
                // The pages have moved, so a failure here is not reported.
                let _ = self.unlock_mapping(from.start);
            }
            self.populate_what_can_be(&(to.start + from.len()..to.end));
        }
        Ok(to.start)
    }

    /// Moves the pages that belong to the space in `pages` by a distance, which may be negative. Folios of
    /// several pages that would not be aligned there are split.
    fn move_own(&self, pages: Range<u64>, distance: u64) {
        // The distance in pages of addresses, which have no more bits than these.
        let moved = |page: u64| page.wrapping_add(distance) & (u64::MAX >> PAGE_SHIFT);
        let _: Result<(), Errno> = each_own(&self.mm, &pages, |page| {
            // A large folio may have been split since the pages were listed, so the size is looked at when
            // the folio is locked.
            let whole = |own: Range<u64>| {
                let inside = pages.start <= own.start && own.end <= pages.end;
                inside && moved(own.start).is_multiple_of(own.end - own.start)
            };
            // There may be no folio any more: a truncation may have dropped a private copy meanwhile.
            let Some(mut folio) = self.core.lock_own_if(&self.mm, page, whole) else {
                return Ok(match self.mm.anon.take_out(page) {
                    Slot::Word(slot) => {
                        self.mm.anon.put_out(moved(page), slot);
                        page + 1
                    }
                    Slot::Empty => page + 1,
                    // It came in meanwhile.
                    Slot::Full(_) => page,
                });
            };
            let first = AnonPages::first_of(&folio, page);
            self.mm.anon.remove(first, folio.arc());
            self.mm.anon.insert(moved(first), folio.arc());
            if !MUTANT_FORGET_MOVE.planted() {
                folio.body_mut().rmap.change(first, moved(first));
            }
            Ok(first + folio.pages())
        });
    }

    /// Begins the two changes of a move of `from`, a part of `whole`: at the old range and at the new one.
    /// If both may have to wait, the one at the lower address is begun first, so that two moves cannot wait
    /// for each other; finding a free place waits for no change.
    ///
    /// # Errors
    /// EFAULT: the mapping has changed since it was looked up. Else the errors of beginning a change.
    fn both(
        &self,
        from: &Range<usize>,
        place: Place,
        len: usize,
        whole: &VmaPart,
    ) -> Result<(Change, Change), Errno> {
        let same = |parts: &[VmaPart]| match parts {
            [part]
                if part.range == *from
                    && part.first_page == whole.first_page
                    && part.spec.kind() == whole.spec.kind() =>
            {
                Ok(Pages::Leave)
            }
            _ => Err(Errno::FAULT),
        };
        let source = |beside_another| {
            self.begin_on(BeginOptions { beside_another, ..BeginOptions::default() }, from.clone(), same)
        };
        let first_page = whole.first_page;
        match place {
            Place::Fixed(to) if to < from.start => {
                let target = self.fixed_target(to, len, false)?;
                match source(true) {
                    Ok(source) => Ok((source, target)),
                    Err(e) => {
                        self.undo(target);
                        Err(e)
                    }
                }
            }
            _ => {
                let source = source(false)?;
                let target = match place {
                    Place::Fixed(to) => self.fixed_target(to, len, true),
                    place => self.reserve(place, len, first_page),
                };
                match target {
                    Ok(target) => Ok((source, target)),
                    Err(e) => {
                        self.undo(source);
                        Err(e)
                    }
                }
            }
        }
    }

    /// Begins a change of the range that a mapping is to move to.
    fn target(&self, place: Place, len: usize, first_page: u64) -> Result<Change, Errno> {
        match place {
            Place::Fixed(to) => self.fixed_target(to, len, false),
            place => self.reserve(place, len, first_page),
        }
    }

    /// Begins a change of the fixed range that a mapping is to move to. The range was unmapped just now; if
    /// another thread has mapped something there since, that is unmapped as well.
    fn fixed_target(&self, to: usize, len: usize, beside_another: bool) -> Result<Change, Errno> {
        self.owned(&(to..to + len))?;
        let mut change = self.begin_on(
            BeginOptions { adds: 1, beside_another, ..BeginOptions::default() },
            to..to + len,
            |_| Ok(Pages::Drop),
        )?;
        change.forget_parts();
        Ok(change)
    }
}
