//! mlock and munlock. Linux: mm/mlock.c.
//!
//! A locked mapping is populated, and advice that would take its pages away fails. But the budget has
//! priority: its pages can be evicted.

use super::change::{AfterChange, Pages};
use super::{Space, page_align};
use crate::platform::Platform;
use crate::vma::VmaFlags;
use elbowroom_machine::{Errno, PAGE_SIZE};
use std::ops::Range;

impl<P: Platform> Space<P> {
    /// Locks the pages that have a byte of the range, VMA by VMA; VMAs before a hole stay locked. Brings
    /// their pages in unless `on_fault`.
    ///
    /// # Errors
    /// EINVAL: the end wraps. ENOMEM: a hole; or a page cannot be brought in, and all is locked nevertheless.
    pub fn lock(&self, addr: usize, len: usize, on_fault: bool) -> Result<(), Errno> {
        let Some(range) = self.set_locked(addr, len, Some(on_fault))? else { return Ok(()) };
        self.populate(&range).map_err(|_| Errno::NOMEM)
    }

    /// Unlocks the pages that have a byte of the range (munlock).
    ///
    /// # Errors
    /// As for [`Space::lock`].
    pub fn unlock(&self, addr: usize, len: usize) -> Result<(), Errno> {
        self.set_locked(addr, len, None).map(|_| ())
    }

    /// Locks the range (`Some(on_fault)`) or unlocks it (`None`). Returns the range in whole pages; `None`
    /// if it is empty.
    fn set_locked(&self, addr: usize, len: usize, lock: Option<bool>) -> Result<Option<Range<usize>>, Errno> {
        let start = addr & !(PAGE_SIZE - 1);
        let len = page_align(len.wrapping_add(addr % PAGE_SIZE));
        if start.checked_add(len).is_none() {
            return Err(Errno::INVAL);
        }
        if len == 0 {
            return Ok(None);
        }
        let range = self.clamped(start, len);
        let (parts, whole) = self.parts_up_to_hole(&range);
        for part in &parts {
            self.set_flags(&part.range, |flags| {
                flags.set(VmaFlags::LOCKED, lock.is_some());
                flags.set(VmaFlags::ON_FAULT, lock == Some(true));
            })?;
        }
        if whole && range.len() == len { Ok(Some(range)) } else { Err(Errno::NOMEM) }
    }

    /// Changes the flags of what is mapped in a range.
    pub(super) fn set_flags(
        &self,
        range: &Range<usize>,
        change_flags: impl Fn(&mut VmaFlags),
    ) -> Result<(), Errno> {
        let change = self.begin(range.clone(), |_| Ok(Pages::Stay))?;
        let new = change.parts.iter().map(|part| part.with(|spec| change_flags(&mut spec.flags))).collect();
        self.finish(change, new, AfterChange::Free);
        Ok(())
    }

    /// Unlocks the whole mapping that has `addr`.
    pub(super) fn unlock_mapping(&self, addr: usize) -> Result<(), Errno> {
        let range = {
            let page = addr..addr + PAGE_SIZE;
            let layout = self.layout_without_change_in(&page);
            self.mm.overlapping(&page, &layout).first().map(|vma| vma.range.clone())
        };
        match range {
            Some(range) => {
                self.set_flags(&range, |flags| flags.remove(VmaFlags::LOCKED | VmaFlags::ON_FAULT))
            }
            None => Ok(()),
        }
    }
}
