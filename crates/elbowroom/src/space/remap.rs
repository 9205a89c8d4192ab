//! mremap.

use super::change::{Pages, Part};
use super::page_range;
use super::protect::covers_all;
use crate::core::Core;
use crate::vma::{Vma, VmaSpec};
use elbowroom_machine::{Errno, PAGE_SHIFT};
use std::ops::Range;

/// Where a remapped range may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remap {
    /// It stays where it is.
    InPlace,
    /// It moves if it must.
    MayMove,
    /// Exactly there (inside windows); what is there is replaced.
    Fixed(usize),
}

impl Core {
    /// Shrinks, grows or moves a range of one mapping, or of neighbours that Linux would have merged into one; returns where it is now.
    ///
    /// # Errors
    /// EFAULT: the old range is not all one mapping. ENOMEM: no room to grow in place. EINVAL: the new range overlaps the old one.
    pub(crate) fn remap(&self, addr: usize, old: usize, new: usize, how: Remap) -> Result<usize, Errno> {
        let (old_range, new_range) = (page_range(addr, old)?, page_range(addr, new)?);
        let vmas = self.vmas.overlapping(&old_range);
        let one = vmas.first().is_some_and(|v| v.range.start <= addr)
            && vmas.last().is_some_and(|v| v.range.end >= old_range.end)
            && vmas.windows(2).all(|pair| pair[0].continues_as(&pair[1]));
        let (Some(first), Some(last), true) = (vmas.first(), vmas.last(), one) else {
            return Err(Errno::FAULT);
        };
        let at_end = last.range.end == old_range.end;
        let (spec, first_page) = (first.spec.clone(), first.page_at(addr));
        drop(vmas);
        if let Remap::Fixed(target) = how {
            let target = page_range(target, new)?;
            if target.start < old_range.end && old_range.start < target.end {
                return Err(Errno::INVAL);
            }
            self.owned(&target)?;
            return self.move_onto(old_range, target);
        }
        if new_range.len() <= old_range.len() {
            let rest = new_range.end..old_range.end;
            if !rest.is_empty() {
                self.unmap(rest.start, rest.len())?;
            }
            return Ok(addr);
        }
        let growth = old_range.end..new_range.end;
        if at_end && self.grow(&growth, first_page, spec, &old_range) {
            return Ok(addr);
        }
        if how == Remap::InPlace {
            return Err(Errno::NOMEM);
        }
        self.move_away(old_range, new_range.len())
    }

    /// Maps the free range right after a mapping as its continuation.
    fn grow(&self, growth: &Range<usize>, first_page: u64, spec: VmaSpec, old: &Range<usize>) -> bool {
        let mut layout = self.layout_without_change_in(growth);
        if !layout.gaps.is_free(growth) {
            return false;
        }
        layout.gaps.take_exactly(growth.clone());
        let page = first_page + (old.len() >> PAGE_SHIFT) as u64;
        self.vmas.replace(&[], vec![Vma::new(growth.clone(), page, spec)]);
        true
    }

    /// Moves a mapping to wherever there is room for it.
    fn move_away(&self, from: Range<usize>, new_len: usize) -> Result<usize, Errno> {
        let change = self.begin_change(from.clone(), |parts| all_mapped(parts, &from))?;
        let part = change.parts[0].clone();
        match self.map_free(super::Place::Anywhere, new_len, part.first_page, part.spec) {
            Ok(placed) => {
                self.finish_change(change, Vec::new(), |layout, change| layout.release_all(change));
                Ok(placed.start)
            }
            Err(e) => {
                // No room: everything stays as it was.
                self.undo_change(change);
                Err(e)
            }
        }
    }

    /// Moves a mapping over what is mapped at `target`.
    fn move_onto(&self, from: Range<usize>, target: Range<usize>) -> Result<usize, Errno> {
        let plan_from = |parts: &[Part]| all_mapped(parts, &from);
        let plan_target = |_: &[Part]| Ok(Pages::Leave);
        // Two changes at once: always the lower one first, so that two threads cannot wait for each other.
        let (old, new) = if from.start < target.start {
            let old = self.begin_change(from.clone(), plan_from)?;
            match self.begin_change(target.clone(), plan_target) {
                Ok(new) => (old, new),
                Err(e) => {
                    self.undo_change(old);
                    return Err(e);
                }
            }
        } else {
            let new = self.begin_change(target.clone(), plan_target)?;
            match self.begin_change(from.clone(), plan_from) {
                Ok(old) => (old, new),
                Err(e) => {
                    self.undo_change(new);
                    return Err(e);
                }
            }
        };
        let part = &old.parts[0];
        let vma = Vma::new(target.clone(), part.first_page, part.spec.clone());
        self.finish_change(new, vec![vma], |_, _| {});
        self.finish_change(old, Vec::new(), |layout, change| layout.release_all(change));
        Ok(target.start)
    }
}

/// EFAULT if a part of the range is not mapped any more.
fn all_mapped(parts: &[Part], range: &Range<usize>) -> Result<Pages, Errno> {
    covers_all(parts, range).map(|()| Pages::Leave).map_err(|_| Errno::FAULT)
}
