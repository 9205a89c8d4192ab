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
    /// Shrinks, grows or moves a range of one mapping; returns where it is now.
    ///
    /// # Errors
    /// EFAULT: the old range is not all one mapping. ENOMEM: no room to grow in place. EINVAL: the new range overlaps the old one.
    pub(crate) fn remap(&self, addr: usize, old: usize, new: usize, how: Remap) -> Result<usize, Errno> {
        let (old_range, new_range) = (page_range(addr, old)?, page_range(addr, new)?);
        let vma = self.vmas.find(addr).ok_or(Errno::FAULT)?;
        if vma.range.end < old_range.end {
            return Err(Errno::FAULT);
        }
        let (at_end, spec, first_page) =
            (vma.range.end == old_range.end, vma.spec.clone(), vma.page_at(addr));
        drop(vma);
        if let Remap::Fixed(target) = how {
            let target = page_range(target, new)?;
            if target.start < old_range.end && old_range.start < target.end {
                return Err(Errno::INVAL);
            }
            self.owned(&target)?;
            self.unmap(target.start, target.len())?;
            return self.move_to(old_range, Some(target), new_range.len());
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
        self.move_to(old_range, None, new_range.len())
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

    fn move_to(
        &self,
        from: Range<usize>,
        target: Option<Range<usize>>,
        new_len: usize,
    ) -> Result<usize, Errno> {
        let one = |parts: &[Part]| covers_all(parts, &from).map_err(|_| Errno::FAULT);
        let change = self.begin_change(from.clone(), Pages::Leave, one)?;
        let part = change.parts[0].clone();
        let place = match target {
            Some(target) => super::Place::FixedNoReplace(target.start),
            None => super::Place::Anywhere,
        };
        let placed = self.map_free(place, new_len, part.first_page, part.spec.clone());
        let back = match &placed {
            Ok(_) => Vec::new(),
            // No room: everything stays as it was.
            Err(_) => change.parts.iter().map(|part| super::protect::with(part, |_| ())).collect(),
        };
        let moved = placed.is_ok();
        self.finish_change(change, back, |layout, change| {
            if moved {
                layout.gaps.release(change.range.clone());
            }
        });
        Ok(placed?.start)
    }
}
