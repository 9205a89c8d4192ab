//! Changing the layout: the mechanism that all verbs use that change it.

use super::Space;
use super::Spaces;
use crate::config::CHANGE_LOOK;
use crate::object::{MappedRange, Standing};
use crate::page::{AnonPages, Flag, Folio, LockedFolio};
use crate::platform::Platform;
use crate::vma::{Layout, Mm, Vma, VmaFlags, VmaSpec};
use crate::writeback::{Home, Leave, Patience};
use elbowroom_machine::{Errno, Mmu, PAGE_SHIFT, UnmapError};
use elbowroom_sync::Arc;
use elbowroom_sync::time::Duration;
use std::ops::Range;

/// A part of a mapping that a change concerns.
#[derive(Clone)]
pub(super) struct VmaPart {
    pub(super) range: Range<usize>,
    pub(super) first_page: u64,
    pub(super) spec: VmaSpec,
}

impl VmaPart {
    /// A VMA of the part's range, with the part's spec as changed by `change`.
    pub(super) fn with(&self, change: impl FnOnce(&mut VmaSpec)) -> Vma {
        let mut spec = self.spec.clone();
        change(&mut spec);
        Vma::new(self.range.clone(), self.first_page, spec)
    }

    /// Whether a VMA that is in the place of the part now is still private, and not locked since: pages of
    /// it may be dropped as if it were the part.
    pub(super) fn is_like(&self, vma: &Vma) -> bool {
        let locked = vma.spec.flags.difference(self.spec.flags).contains(VmaFlags::LOCKED);
        vma.spec.is_private() && !locked
    }

    /// Removes the part from the object's reverse map, which has listed it as in change since it was cut
    /// out of the index.
    fn unlist(&self) {
        if let Some(object) = &self.spec.object {
            let (range, first_page, private) = (self.range.clone(), self.first_page, self.spec.is_private());
            let listed = MappedRange { range, first_page, private, standing: Standing::InChange };
            object.rmap.replace(self.range.start, [listed], []);
        }
    }

    /// The pages of the object that the part maps.
    pub(super) fn pages(&self) -> Range<u64> {
        self.first_page..self.first_page + (self.range.len() >> PAGE_SHIFT) as u64
    }

    /// The part's pages, by their numbers in the address space.
    pub(super) fn page_numbers(&self) -> Range<u64> {
        (self.range.start >> PAGE_SHIFT) as u64..(self.range.end >> PAGE_SHIFT) as u64
    }
}

/// What a change does with the pages of the VMAs in its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pages {
    /// They stay where they are.
    Stay,
    /// They are unmapped from the MMU; those that belong to the space are kept.
    Leave,
    /// They are unmapped from the MMU; those that belong to the space are freed.
    Drop,
}

/// What becomes of those addresses of a change's range at which no VMA is put in at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterChange {
    /// All are free.
    Free,
    /// Addresses that were free are free again; those that were mapped have been given to the kernel.
    Given,
    /// None is free: the space does not get any of them back.
    Taken,
}

/// A change that has begun: the range belongs to the owner of this value until [`Space::finish`].
#[must_use = "faults in the range wait until the change is finished"]
pub(super) struct Change {
    pub(super) range: Range<usize>,
    /// What was mapped there, cut to the range.
    pub(super) parts: Vec<VmaPart>,
    /// What was free there.
    free: Vec<Range<usize>>,
    /// How many VMAs may be put in at its end: so much room was reserved.
    promised: usize,
}

/// What a change needs besides its range.
#[derive(Default)]
pub(super) struct BeginOptions {
    /// Reserve room for at least so many VMAs that it puts in at its end.
    pub(super) adds: usize,
    /// Its owner has begun another change. So it must not wait until a thread that wants a moment without
    /// changes has had it: that thread waits for the other change.
    pub(super) beside_another: bool,
    /// Extend its range to the ends of the VMAs that reach out of it.
    pub(super) whole: bool,
    /// Its owner tries again, so a pinned page is waited for only briefly: a transfer that has pinned it may
    /// itself wait for another page of the range, whose fault waits for the change.
    pub(super) brief: bool,
}

/// How long a change waits for a pinned page if its owner tries again.
const BRIEF: Duration = Duration::from_millis(20);

impl Change {
    /// Treats the VMAs that were in the range as unmapped for good: if the change is undone, the whole
    /// range is left free.
    pub(super) fn forget_parts(&mut self) {
        self.parts.iter().for_each(VmaPart::unlist);
        self.free.extend(self.parts.drain(..).map(|part| part.range));
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

impl<P: Platform> Space<P> {
    /// The VMAs in the range, cut to it, as they are at one moment without a change in the range.
    pub(super) fn parts(&self, range: &Range<usize>) -> Vec<VmaPart> {
        // A change under way has VMAs out of the index that it may put back.
        let layout = self.layout_without_change_in(range);
        self.parts_held(range, &layout)
    }

    fn parts_held(&self, range: &Range<usize>, layout: &Layout<'_>) -> Vec<VmaPart> {
        let parts = self.mm.parts_held(range, layout);
        parts.into_iter().map(|(range, first_page, spec)| VmaPart { range, first_page, spec }).collect()
    }

    /// The parts from the start of the range up to the first hole, and whether there is none.
    pub(super) fn parts_up_to_hole(&self, range: &Range<usize>) -> (Vec<VmaPart>, bool) {
        if range.is_empty() {
            return (Vec::new(), false);
        }
        let mut parts = self.parts(range);
        let mut at = range.start;
        let hole = parts.iter().position(|part| {
            let hole = part.range.start != at;
            at = part.range.end;
            hole
        });
        if let Some(first) = hole {
            parts.truncate(first);
        }
        let whole = parts.last().is_some_and(|part| part.range.end == range.end);
        (parts, whole)
    }

    /// Begins a change of `range`: waits for other changes that overlap it, then takes the VMAs there out
    /// of the index, and their pages out of the MMU if `plan` says so. Free addresses in the range are
    /// taken, too.
    ///
    /// `plan` looks at the parts before anything is changed and may refuse.
    ///
    /// # Errors
    /// What `plan` said. ENOMEM: too many VMAs. EBUSY: a page there has been pinned for longer than the
    /// bound. Nothing is changed then.
    pub(super) fn begin(
        &self,
        range: Range<usize>,
        plan: impl FnOnce(&[VmaPart]) -> Result<Pages, Errno>,
    ) -> Result<Change, Errno> {
        self.begin_on(BeginOptions::default(), range, plan)
    }

    /// [`Space::begin`], with options.
    pub(super) fn begin_on(
        &self,
        options: BeginOptions,
        range: Range<usize>,
        plan: impl FnOnce(&[VmaPart]) -> Result<Pages, Errno>,
    ) -> Result<Change, Errno> {
        let (change, pages) = {
            let mut range = range;
            let mut layout = loop {
                let layout = self.layout_to_change(&range, options.beside_another);
                let wanted = if options.whole { self.mm.whole(&range, &layout) } else { range.clone() };
                if wanted == range {
                    break layout;
                }
                drop(layout);
                range = wanted;
            };
            let parts = self.parts_held(&range, &layout);
            let pages = plan(&parts)?;
            let promised = self.mm.promise(&mut layout, &range, options.adds)?;
            let free = self.mm.free_in(&range, &layout);
            self.mm.cut(&mut layout, &range);
            layout.changing.push(range.clone());
            (Change { range, parts, free, promised }, pages)
        };
        if pages != Pages::Stay {
            let patience = if options.brief { Patience::of(BRIEF) } else { Patience::bounded() };
            let left = change.parts.iter().try_for_each(|part| self.core.take_out(&self.mm, part, &patience));
            if let Err(e) = left.and_then(|()| self.core.mmu.allow(change.range.clone())) {
                self.undo(change);
                return Err(e);
            }
        }
        if pages == Pages::Drop {
            change.parts.iter().for_each(|part| self.core.drop_own(&self.mm, part));
        }
        Ok(change)
    }

    /// Begins a change of a free range, which the caller has found with the layout lock that it passes. The
    /// change puts in one VMA at its end, or none.
    ///
    /// # Errors
    /// ENOMEM: too many VMAs.
    pub(super) fn begin_free(&self, range: Range<usize>, mut layout: Layout<'_>) -> Result<Change, Errno> {
        let promised = self.mm.promise(&mut layout, &range, 1)?;
        self.mm.take(&mut layout, &range);
        layout.changing.push(range.clone());
        Ok(Change { free: vec![range.clone()], range, parts: Vec::new(), promised })
    }

    /// Ends a change by putting the same VMAs in again.
    pub(super) fn undo(&self, change: Change) {
        let same = change.parts.iter().map(|part| part.with(|_| ())).collect();
        self.finish(change, same, AfterChange::Free);
    }

    /// Ends a change: puts the VMAs `new` into its range; `rest` says what becomes of the other addresses.
    /// Lets the faults and threads go on that have waited for it.
    pub(super) fn finish(&self, change: Change, new: Vec<Vma>, rest: AfterChange) {
        let mut layout = self.mm.write();
        match rest {
            AfterChange::Free => {
                for range in change.free.iter().chain(change.parts.iter().map(|part| &part.range)) {
                    self.mm.release(&mut layout, range);
                }
            }
            AfterChange::Given => change.free.iter().for_each(|range| self.mm.release(&mut layout, range)),
            AfterChange::Taken => {}
        }
        debug_assert!(new.len() <= change.promised, "there is room for what comes in");
        layout.promised -= change.promised;
        for vma in new {
            self.mm.insert(&mut layout, vma);
        }
        // After the new VMAs are in: a thread that looks for the object's mappings without the layout lock
        // finds either the old or the new one.
        change.parts.iter().for_each(VmaPart::unlist);
        layout.changing.retain(|r| *r != change.range);
        let mut stalled: Vec<_> =
            layout.stalled.extract_if(.., |fault| change.range.contains(&fault.event.addr)).collect();
        let gate = layout.take_gate();
        drop(layout);
        if let Some(gate) = gate {
            gate.open();
        }
        stalled.iter_mut().for_each(|fault| fault.waited(&self.core.locks));
        self.core.dispatch(stalled);
        drop(change);
    }

    /// To be called after a verb that may have unmapped the last mapping of an object: shared memory is
    /// freed, and a file is written back and closed, if unmapped files are to be closed at once. With no
    /// lock held and no change under way.
    #[inline]
    pub(super) fn settle(&self) {
        if self.core.objects.unmapped.any() {
            self.core.settle_unmapped();
        }
    }

    /// The layout lock, at a moment when no change that overlaps `range` is under way. Changes end without
    /// our help, so the wait ends.
    #[track_caller]
    pub(super) fn layout_without_change_in(&self, range: &Range<usize>) -> Layout<'_> {
        self.layout_to_change(range, true)
    }

    /// [`Space::layout_without_change_in`], to begin a change. Unless `at_once`, it also waits while
    /// another thread wants a moment without any change.
    #[track_caller]
    fn layout_to_change(&self, range: &Range<usize>, at_once: bool) -> Layout<'_> {
        loop {
            let mut layout = self.mm.write();
            let may = at_once || layout.still_wanted == 0;
            if may && !layout.changing.iter().any(|r| overlap(r, range)) {
                return layout;
            }
            let gate = layout.gate();
            drop(layout);
            gate.wait(&self.core.locks, CHANGE_LOOK);
        }
    }
}

impl<P: Platform> Spaces<P> {
    /// Takes the pages of a part out of the MMU.
    ///
    /// # Errors
    /// EBUSY: a page has been pinned for longer than `patience` lasts.
    pub(super) fn take_out(&self, mm: &Mm, part: &VmaPart, patience: &Patience) -> Result<(), Errno> {
        if part.spec.is_private() {
            self.split_ends(mm, &part.page_numbers());
            for (first, folio) in mm.anon.in_range(part.page_numbers()) {
                self.bring_listed_home(mm, first, &folio, patience)?;
            }
        }
        let Some(object) = &part.spec.object else { return Ok(()) };
        for folio in object.mapped_in(part.pages()) {
            let distance = (folio.index as usize).wrapping_sub(part.first_page as usize) << PAGE_SHIFT;
            self.bring_home(&folio, part.range.start.wrapping_add(distance), patience)?;
        }
        Ok(())
    }

    /// Unmaps a folio that the space had from page `first` on when it was looked up. If the folio has been
    /// split or collapsed since, the folios that are in its place are unmapped.
    fn bring_listed_home(
        &self,
        mm: &Mm,
        first: u64,
        folio: &Arc<Folio>,
        patience: &Patience,
    ) -> Result<(), Errno> {
        self.bring_home(folio, (first as usize) << PAGE_SHIFT, patience)?;
        let mut page = first;
        while folio.state.test(Flag::Dead) && page < first + folio.pages() {
            page = self.bring_own_home(mm, page, patience)?;
        }
        Ok(())
    }

    /// Unmaps the folio that belongs to the space at a page, if it is mapped there. Returns the page behind
    /// the folio.
    fn bring_own_home(&self, mm: &Mm, page: u64, patience: &Patience) -> Result<u64, Errno> {
        while let Some(mut folio) = self.lock_own(mm, page) {
            let first = AnonPages::first_of(&folio, page);
            let gone = self.mmu.unmap_at(folio.body_mut().extent(), (first as usize) << PAGE_SHIFT);
            let next = first + folio.pages();
            drop(folio);
            if gone != Err(UnmapError::Busy) {
                return Ok(next);
            }
            if !patience.wait() {
                return Err(Errno::BUSY);
            }
        }
        Ok(page + 1)
    }

    /// Unmaps a folio if it is mapped with its first page at `base`.
    fn bring_home(&self, folio: &Arc<Folio>, base: usize, patience: &Patience) -> Result<(), Errno> {
        let here = |folio: &LockedFolio<'_>| {
            folio.body().extent.as_ref().is_some_and(|extent| extent.place(base).is_some())
        };
        if let Home::Damaged(mut folio) = self.take_home(folio, Leave::At(base), patience, here)?
            && folio.is_cached()
        {
            self.lose(&mut folio);
        }
        Ok(())
    }

    /// Takes the pages of a part that stays mapped out of the MMU, but for those that are pinned. Any of them
    /// may be back by the time this returns. Linux: `madvise_cold`.
    pub(super) fn deactivate_part(&self, mm: &Mm, part: &VmaPart) {
        // It is only advice: pinned pages stay mapped.
        let _ = self.take_out(mm, part, &Patience::none());
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::config::PINNED_BOUND;
    use crate::page::HUGE_PAGES;
    use crate::{Advice, Config, Manager, MapRequest, Sharing, Soft};
    use elbowroom_machine::PAGE_SIZE;

    use elbowroom_sync::atomic::{AtomicBool, Ordering};
    use elbowroom_sync::thread;
    use elbowroom_sync::time::{Duration, Instant};

    /// Long changes that overlap in time: there is no moment without a change, unless a thread asks for
    /// one.
    #[test]
    fn a_still_moment_comes_whatever_others_change() {
        const LONG: Duration = Duration::from_millis(40);
        let manager = Manager::<Soft>::start_on(Config::with_memory(16 << 20)).unwrap();
        let space = manager.create_space().unwrap();
        let ranges = [(); 4]
            .map(|()| space.map(MapRequest::private_memory(PAGE_SIZE)).map(|at| at..at + PAGE_SIZE).unwrap());
        let (space, stop) = (Arc::new(space), Arc::new(AtomicBool::new(false)));
        let changers: Vec<_> = (0..)
            .zip(ranges)
            .map(|(nth, range)| {
                let (space, stop) = (space.clone(), stop.clone());
                let change_on = move || {
                    thread::sleep(LONG / 4 * nth);
                    while !stop.load(Ordering::Relaxed) {
                        let change = space.begin(range.clone(), |_| Ok(Pages::Stay)).unwrap();
                        thread::sleep(LONG);
                        space.undo(change);
                    }
                };
                thread::spawn("changer", change_on).unwrap()
            })
            .collect();
        thread::sleep(2 * LONG);
        let began = Instant::now();
        let still = space.core.keep_still(&space.mm).is_some();
        let took = began.elapsed();
        stop.store(true, Ordering::Relaxed);
        changers.into_iter().for_each(|changer| changer.join().unwrap());
        assert!(still && took < Duration::from_secs(10), "{took:?}");
    }

    /// A file without private mappings has no copies to be looked for, so its truncation waits for no change.
    #[test]
    fn a_truncation_without_copies_waits_for_no_change() {
        let manager = Manager::<Soft>::start_on(Config::with_memory(16 << 20)).unwrap();
        let space = manager.create_space().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8 * PAGE_SIZE as u64).unwrap();
        let object = manager.open(file.path(), true).unwrap();
        let sharing = Sharing::Shared;
        space
            .map(MapRequest {
                object: Some(object.clone()),
                sharing,
                ..MapRequest::private_memory(8 * PAGE_SIZE)
            })
            .unwrap();
        let other = space.map(MapRequest::private_memory(PAGE_SIZE)).unwrap();
        let change = space.begin(other..other + PAGE_SIZE, |_| Ok(Pages::Stay)).unwrap();
        let began = Instant::now();
        file.as_file().set_len(0).unwrap();
        manager.resized(&object, 0..u64::MAX);
        // While the change is not over.
        assert!(began.elapsed() < PINNED_BOUND, "{:?}", began.elapsed());
        space.undo(change);
    }

    /// A space with a huge folio, and its address.
    fn a_touched_block() -> (Manager<Soft>, Space<Soft>, usize) {
        const BYTES: usize = (HUGE_PAGES as usize) << PAGE_SHIFT;
        let manager = Manager::<Soft>::start_on(Config::with_memory(64 << 20)).unwrap();
        let space = manager.create_space().unwrap();
        let start = space.map(MapRequest::private_memory(2 * BYTES)).unwrap().next_multiple_of(BYTES);
        space.cpu().write_u64(start, 1).unwrap();
        (manager, space, start)
    }

    /// The advice splits the huge folio after it was looked up, as another thread's could.
    #[test]
    fn what_a_huge_folio_was_split_into_leaves_with_it() {
        let (_manager, space, start) = a_touched_block();
        let (core, mm, first) = (&space.core, &space.mm, (start >> PAGE_SHIFT) as u64);
        let listed = mm.anon.find(first).unwrap();
        space.advise(start + 9 * PAGE_SIZE, PAGE_SIZE, Advice::Cold).unwrap();
        let mapped = || {
            let own = mm.anon.in_range(first..first + HUGE_PAGES);
            own.filter(|(_, folio)| folio.state.test(Flag::Mapped)).count()
        };
        assert_eq!(mapped(), HUGE_PAGES as usize - 1);
        core.bring_listed_home(mm, first, &listed, &Patience::none()).unwrap();
        assert_eq!(mapped(), 0);
    }

    /// As if the folios had been collapsed after the ends of the part were split.
    #[test]
    fn a_part_of_a_huge_folio_is_dropped_page_by_page() {
        let (_manager, space, start) = a_touched_block();
        let (core, mm, first) = (&space.core, &space.mm, (start >> PAGE_SHIFT) as u64);
        let huge = mm.anon.find(first).unwrap();
        assert_eq!(huge.pages(), HUGE_PAGES);
        core.bring_home(&huge, start, &Patience::none()).unwrap();
        for (from, pages) in [(0, 100), (300, 50), (400, HUGE_PAGES as usize - 400)] {
            let range = start + (from << PAGE_SHIFT)..start + ((from + pages) << PAGE_SHIFT);
            let part = VmaPart { range, first_page: 0, spec: mm.enter(start).unwrap().spec.clone() };
            core.drop_own(mm, &part);
        }
        let left = mm.anon.in_range(first..first + HUGE_PAGES);
        let left: Vec<_> = left.into_iter().map(|(page, _)| page - first).collect();
        assert_eq!(left, (100..300).chain(350..400).collect::<Vec<_>>());
    }
}
