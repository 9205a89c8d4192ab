//! Changing the layout: the mechanism under all verbs that do.

use crate::config::{DELAY, PINNED_BOUND};
use crate::core::{Core, LayoutState};
use crate::vma::{Vma, VmaSpec, carve};
use elbowroom_machine::{Errno, UnmapError};
use elbowroom_sync::time::Instant;
use elbowroom_sync::{Arc, MutexGuard, thread};
use std::ops::Range;

/// A part of a mapping that a change concerns.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) range: Range<usize>,
    pub(super) first_page: u64,
    pub(super) spec: VmaSpec,
}

impl LayoutState {
    /// Makes free what was mapped and what was free before; the rest of the range is the kernel's.
    pub(super) fn release_all(&mut self, change: &Change) {
        self.release(&change.free);
        change.parts.iter().for_each(|part| self.gaps.release(part.range.clone()));
    }

    /// Makes addresses free.
    pub(super) fn release(&mut self, ranges: &[Range<usize>]) {
        ranges.iter().for_each(|range| self.gaps.release(range.clone()));
    }
}

impl Part {
    /// The part as a mapping of its own, with its spec changed.
    pub(super) fn with(&self, change: impl FnOnce(&mut VmaSpec)) -> Arc<Vma> {
        let mut spec = self.spec.clone();
        change(&mut spec);
        Vma::new(self.range.clone(), self.first_page, spec)
    }

    /// The file's pages that it maps.
    pub(super) fn pages(&self) -> Range<u64> {
        self.first_page..self.first_page + (self.range.len() / elbowroom_machine::PAGE_SIZE) as u64
    }
}

/// Whether the pages of what is changed leave their windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pages {
    Leave,
    Stay,
}

/// A change that has begun: the range belongs to whoever holds this until [`Core::finish_change`].
#[must_use = "faults in the range wait until the change is finished"]
pub(super) struct Change {
    pub(super) range: Range<usize>,
    /// What was mapped there, cut to the range.
    pub(super) parts: Vec<Part>,
    /// What was free there.
    pub(super) free: Vec<Range<usize>>,
}

impl Core {
    /// Begins a change of `range`: waits for others that overlap it, then takes what is mapped there off the list and detaches it; takes its pages
    /// out if `plan` says so. Free addresses in the range are taken, too.
    ///
    /// `plan` looks at the parts before anything is changed and may refuse.
    ///
    /// # Errors
    /// What `plan` said. EBUSY: the kernel has pinned a page there for longer than the bound. Nothing is changed then.
    pub(super) fn begin_change(
        &self,
        range: Range<usize>,
        plan: impl FnOnce(&[Part]) -> Result<Pages, Errno>,
    ) -> Result<Change, Errno> {
        let (old, change, pages) = {
            let mut layout = self.layout_without_change_in(&range);
            let old = self.vmas.overlapping(&range);
            let mut parts = Vec::with_capacity(old.len());
            let mut kept = Vec::new();
            for vma in &old {
                let Some(carved) = carve(&vma.range, vma.first_page, &range) else { continue };
                let spec = || vma.spec.clone();
                for piece in [carved.before, carved.after].into_iter().flatten() {
                    kept.push((piece, spec()));
                }
                let inside = carved.inside;
                parts.push(Part { range: inside.range, first_page: inside.first_page, spec: spec() });
            }
            let pages = plan(&parts)?;
            let free = layout.gaps.take_exactly(range.clone());
            layout.changing.push(range.clone());
            let kept = kept.into_iter().map(|(piece, spec)| Vma::new(piece.range, piece.first_page, spec));
            self.vmas.replace(&old, kept.collect());
            (old, Change { range, parts, free }, pages)
        };
        old.iter().for_each(|vma| vma.detach());
        drop(old);
        if pages == Pages::Leave {
            let left = change.parts.iter().try_for_each(|part| self.take_out(part));
            if let Err(e) = left.and_then(|()| self.mmu.allow(change.range.clone())) {
                self.undo_change(change);
                return Err(e);
            }
        }
        Ok(change)
    }

    /// Ends a change with everything as it was.
    pub(super) fn undo_change(&self, change: Change) {
        let same = change.parts.iter().map(|part| part.with(|_| ())).collect();
        self.finish_change(change, same, |layout, change| layout.release(&change.free));
    }

    /// Ends a change: `new` is mapped in its range; `end` settles what else the layout lock guards.
    pub(super) fn finish_change(
        &self,
        change: Change,
        new: Vec<Arc<Vma>>,
        end: impl FnOnce(&mut LayoutState, &Change),
    ) {
        let mut layout = self.layout.lock();
        if !new.is_empty() {
            self.vmas.replace(&[], new);
        }
        end(&mut layout, &change);
        layout.changing.retain(|r| *r != change.range);
        let stalled =
            layout.stalled.extract_if(.., |fault| change.range.contains(&fault.event.addr)).collect();
        drop(layout);
        self.dispatch(stalled);
    }

    /// The layout lock, at a moment when nobody changes anything in `range`. Changes end by themselves, so this does.
    pub(super) fn layout_without_change_in(&self, range: &Range<usize>) -> MutexGuard<'_, LayoutState> {
        loop {
            let layout = self.layout.lock();
            if !layout.changing.iter().any(|r| r.start < range.end && range.start < r.end) {
                return layout;
            }
            drop(layout);
            thread::sleep(DELAY / 10);
        }
    }

    /// Takes the pages of a part that is on no list any more out of its window.
    fn take_out(&self, part: &Part) -> Result<(), Errno> {
        let object = &part.spec.object;
        let at = |index: u64| {
            let distance = (index as usize).wrapping_sub(part.first_page as usize);
            part.range.start.wrapping_add(distance.wrapping_mul(elbowroom_machine::PAGE_SIZE))
        };
        for folio in object.folios_in(part.pages()) {
            let base = at(folio.index);
            let is_here = || {
                let body = folio.body();
                body.leaving || body.extent.as_ref().is_some_and(|e| e.base() == Some(base))
            };
            let started = Instant::now();
            // Without the lock first: a folio whose frames a device has, or that is mapped elsewhere, is not here, and nobody
            // can bring it here any more.
            while is_here() {
                self.waits.lock(&folio);
                let result = if is_here() { self.mmu.unmap(folio.body().extent()) } else { Ok(()) };
                if result == Err(UnmapError::Lost) {
                    self.discard(object, &folio);
                }
                self.unlock(&folio);
                if result == Err(UnmapError::Busy) {
                    if started.elapsed() > PINNED_BOUND {
                        return Err(Errno::BUSY);
                    }
                    thread::sleep(DELAY);
                }
            }
        }
        Ok(())
    }
}
