//! madvise. Linux: `do_madvise`, `madvise_vma_behavior`.

use super::change::{AfterChange, Pages, VmaPart};
use super::{Space, page_align};
use crate::fault::FaultError;
use crate::platform::Platform;
use crate::trace::Verb;
use crate::vma::{Pattern, Prot, Sharing, VmaFlags};
use crate::writeback::Obstacle;
use elbowroom_machine::{Denial, Errno, PAGE_SIZE};
use std::ops::Range;

/// How often `forget` repeats if pages of the part are there again.
const FORGET_ROUNDS: usize = 16;

/// Advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Detect streams.
    Normal,
    /// Read single pages.
    Random,
    /// Read as much as is allowed at once.
    Sequential,
    /// Start reading now.
    WillNeed,
    /// Forget the pages that belong to the space; the file's pages are read again when touched.
    DontNeed,
    /// As DontNeed, but for locked mappings, too.
    DontNeedLocked,
    /// The pages that belong to the space may be forgotten: those that are swapped out are, and those in
    /// memory only if memory is short.
    Free,
    /// The pages will not be needed soon.
    Cold,
    /// Evict them.
    PageOut,
    /// Read them.
    PopulateRead,
    /// Read them, to be written.
    PopulateWrite,
    /// Free them in the object, too: they read as zeros.
    Remove,
    /// A child does not get the mapping.
    DontFork,
    /// A child gets it.
    DoFork,
    /// A child gets it empty.
    WipeOnFork,
    /// A child gets it with its bytes.
    KeepOnFork,
    /// It is not in core dumps.
    DontDump,
    /// It is in core dumps.
    DoDump,
    /// The mapping may have huge pages. Only remembered, and passed to the kernel if the mapping goes back
    /// to it.
    HugePage,
    /// The mapping has no huge pages. Only remembered, too.
    NoHugePage,
    /// Pages with the same bytes may be merged (KSM). Only remembered, too.
    Mergeable,
    /// Pages may not be merged.
    Unmergeable,
    /// The mapping has no guard pages. Mappings with guard pages are the kernel's, so there is nothing to
    /// do.
    RemoveGuards,
}

impl<P: Platform> Space<P> {
    /// Acts on advice, VMA by VMA; VMAs before a failure stay advised.
    ///
    /// # Errors
    /// EINVAL: the address is not aligned, or the end wraps. What a VMA refuses: EINVAL for what is locked
    /// (DontNeed, Free, Cold, PageOut, Remove), for what is not private anonymous memory (Free, WipeOnFork)
    /// or is (Remove); EACCES for Remove without the right to write. EBUSY: a page is pinned for longer than
    /// the bound (DontNeed, Remove). ENOMEM if a part of the range is not mapped: the rest is done all the
    /// same. Populating: ENOMEM at a hole, EINVAL without the right, EFAULT where the page cannot be had,
    /// EBUSY where it is pinned at another address, EIO when the manager was dropped.
    pub fn advise(&self, addr: usize, len: usize, advice: Advice) -> Result<(), Errno> {
        self.core.verb(Verb::Advise, addr, len, || self.advise_now(addr, len, advice))
    }

    fn advise_now(&self, addr: usize, len: usize, advice: Advice) -> Result<(), Errno> {
        let rounded = page_align(len);
        if !addr.is_multiple_of(PAGE_SIZE) || len != 0 && rounded == 0 || addr.checked_add(rounded).is_none()
        {
            return Err(Errno::INVAL);
        }
        if len == 0 {
            return Ok(());
        }
        let range = self.clamped(addr, len);
        match advice {
            Advice::PopulateRead => return self.advise_populate(&range, Prot::READ),
            Advice::PopulateWrite => return self.advise_populate(&range, Prot::WRITE),
            _ => {}
        }
        let mut mapped = 0;
        for part in self.parts(&range) {
            mapped += part.range.len();
            self.advise_part(&part, advice)?;
        }
        if mapped == rounded { Ok(()) } else { Err(Errno::NOMEM) }
    }

    fn advise_part(&self, part: &VmaPart, advice: Advice) -> Result<(), Errno> {
        let locked = part.spec.flags.contains(VmaFlags::LOCKED);
        let anonymous = part.spec.object.is_none();
        let refused = match advice {
            Advice::DontNeed | Advice::Cold | Advice::PageOut => locked,
            Advice::Free => locked || !anonymous,
            Advice::Remove => locked || anonymous,
            Advice::WipeOnFork => !anonymous,
            _ => false,
        };
        if refused {
            return Err(Errno::INVAL);
        }
        let range = &part.range;
        match advice {
            Advice::Normal => self.set_pattern(range, Pattern::Detect),
            Advice::Random => self.set_pattern(range, Pattern::Random),
            Advice::Sequential => self.set_pattern(range, Pattern::Sequential),
            Advice::WillNeed => {
                if let Some(object) = &part.spec.object {
                    self.core.will_need(object, part.pages());
                }
                Ok(())
            }
            Advice::DontNeed | Advice::DontNeedLocked => self.forget(part),
            Advice::Cold => {
                self.core.deactivate_part(&self.mm, part);
                Ok(())
            }
            Advice::PageOut => {
                self.page_out(part);
                Ok(())
            }
            Advice::Remove => self.remove(part),
            Advice::DontFork => self.set_flags(range, |flags| flags.insert(VmaFlags::DONT_FORK)),
            Advice::DoFork => self.set_flags(range, |flags| flags.remove(VmaFlags::DONT_FORK)),
            Advice::WipeOnFork => self.set_flags(range, |flags| flags.insert(VmaFlags::WIPE_ON_FORK)),
            Advice::KeepOnFork => self.set_flags(range, |flags| flags.remove(VmaFlags::WIPE_ON_FORK)),
            Advice::DontDump => self.set_flags(range, |flags| flags.insert(VmaFlags::DONT_DUMP)),
            Advice::DoDump => self.set_flags(range, |flags| flags.remove(VmaFlags::DONT_DUMP)),
            Advice::HugePage => self.set_flags(range, |flags| {
                flags.remove(VmaFlags::NO_HUGE_PAGE);
                flags.insert(VmaFlags::HUGE_PAGE);
            }),
            Advice::NoHugePage => self.set_flags(range, |flags| {
                flags.remove(VmaFlags::HUGE_PAGE);
                flags.insert(VmaFlags::NO_HUGE_PAGE);
            }),
            Advice::Free => {
                self.core.free_part(&self.mm, part);
                Ok(())
            }
            Advice::Mergeable => self.set_flags(range, |flags| flags.insert(VmaFlags::MERGEABLE)),
            Advice::Unmergeable => self.set_flags(range, |flags| flags.remove(VmaFlags::MERGEABLE)),
            Advice::PopulateRead | Advice::PopulateWrite | Advice::RemoveGuards => Ok(()),
        }
    }

    /// Forgets the pages that belong to the space at a part, and checks that none is left.
    ///
    /// While another thread changes the layout of a range, the VMAs there are out of the index, and
    /// `Spaces::forget_part` leaves their pages alone: they may be going to the kernel. So this looks
    /// afterwards whether the part is still mapped, and has no pages; if it has some, they are forgotten in
    /// another round. Pages that other threads store to meanwhile may be forgotten as well; the number of
    /// rounds is bounded because of them.
    ///
    /// # Errors
    /// ENOMEM: the part is not wholly mapped any more. Those of `Spaces::forget_part`.
    fn forget(&self, part: &VmaPart) -> Result<(), Errno> {
        for _ in 0..FORGET_ROUNDS {
            self.core.forget_part(&self.mm, part)?;
            let there: usize = self.parts(&part.range).iter().map(|part| part.range.len()).sum();
            if there < part.range.len() {
                return Err(Errno::NOMEM);
            }
            if !part.spec.is_private() || !self.mm.anon.has_any(part.page_numbers()) {
                break;
            }
        }
        Ok(())
    }

    fn page_out(&self, part: &VmaPart) {
        if part.spec.is_private() {
            self.core.page_out_own(&self.mm, part);
        }
        if let Some(object) = part.spec.object.as_ref().filter(|object| !object.is_memory()) {
            // What cannot be written now stays; its error is reported by msync.
            let _ = self.core.write_back(object, part.pages(), Obstacle::Skip);
            self.core.drop_clean(object, part.pages());
        }
    }

    fn remove(&self, part: &VmaPart) -> Result<(), Errno> {
        let Some(object) = &part.spec.object else { return Err(Errno::INVAL) };
        if part.spec.sharing != Sharing::Shared || !part.spec.may_write {
            return Err(Errno::ACCESS);
        }
        if object.is_memory() {
            let all = self.core.drop_memory(object, part.pages());
            return if all { Ok(()) } else { Err(Errno::BUSY) };
        }
        let bytes = object.bytes_of(part.pages());
        if bytes.is_empty() {
            // Beyond the end there is nothing to free.
            return Ok(());
        }
        let ticket = self.core.write_begin(object, bytes.clone());
        let punched = object.file().ok_or(Errno::BADF).and_then(|file| file.punch_hole(bytes.clone()));
        if punched.is_ok() {
            self.core.resized(object, bytes);
        }
        self.core.write_end(ticket, 0..0);
        punched
    }

    fn set_pattern(&self, range: &Range<usize>, pattern: Pattern) -> Result<(), Errno> {
        let change = self.begin(range.clone(), |_| Ok(Pages::Stay))?;
        let new = change.parts.iter().map(|part| part.with(|spec| spec.pattern = pattern)).collect();
        self.finish(change, new, AfterChange::Free);
        Ok(())
    }

    fn advise_populate(&self, range: &Range<usize>, right: Prot) -> Result<(), Errno> {
        let (parts, whole) = self.parts_up_to_hole(range);
        for part in parts {
            if !part.spec.prot.contains(right) {
                return Err(Errno::INVAL);
            }
            for page in part.range.step_by(PAGE_SIZE) {
                self.fault_in(page, right == Prot::WRITE).map_err(|error| match error {
                    FaultError::Denied(Denial::NotMapped) => Errno::NOMEM,
                    FaultError::Denied(Denial::NoAccess | Denial::NoWrite) => Errno::INVAL,
                    FaultError::Denied(Denial::Bus | Denial::BusReadOnly) => Errno::FAULT,
                    FaultError::Pinned => Errno::BUSY,
                    FaultError::Stopped => Errno::IO,
                })?;
            }
        }
        if whole { Ok(()) } else { Err(Errno::NOMEM) }
    }
}
