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

impl Part {
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
}

impl Core {
    /// Begins a change of `range`: waits for others that overlap it, then takes what is mapped there off the list, detaches it, and takes its pages out.
    ///
    /// `check` looks at the parts before anything is changed and may refuse.
    ///
    /// # Errors
    /// What `check` said. EBUSY: the kernel has pinned a page there for longer than the bound; then nothing is mapped there any
    /// more, and the addresses stay out of use.
    pub(super) fn begin_change(
        &self,
        range: Range<usize>,
        pages: Pages,
        check: impl FnOnce(&[Part]) -> Result<(), Errno>,
    ) -> Result<Change, Errno> {
        let (old, parts) = {
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
            check(&parts)?;
            layout.changing.push(range.clone());
            let kept = kept.into_iter().map(|(piece, spec)| Vma::new(piece.range, piece.first_page, spec));
            self.vmas.replace(&old, kept.collect());
            (old, parts)
        };
        old.iter().for_each(|vma| vma.detach());
        drop(old);
        let change = Change { range, parts };
        if pages == Pages::Leave {
            for part in &change.parts {
                self.take_out(part)?;
            }
            self.mmu.allow(change.range.clone())?;
        }
        Ok(change)
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
                    self.evict(object, &folio);
                }
                let mut ready = Vec::new();
                self.waits.unlock(&folio, &mut ready);
                self.dispatch(ready);
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
