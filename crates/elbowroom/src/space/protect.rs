//! mprotect.

use super::change::{Pages, Part};
use super::page_range;
use crate::core::Core;
use crate::vma::{Prot, Sharing};
use elbowroom_machine::Errno;

impl Core {
    /// Changes the rights of the range. `Ok(false)`: nothing was changed, since private pages would become writable, which is the kernel's
    /// business so far.
    pub(crate) fn protect(&self, addr: usize, len: usize, prot: Prot) -> Result<bool, Errno> {
        if len == 0 {
            return Ok(true);
        }
        let range = page_range(addr, len)?;
        let plan = |parts: &[Part]| {
            covers_all(parts, &range)?;
            if prot.contains(Prot::WRITE) {
                if parts.iter().any(|p| p.spec.sharing == Sharing::Private) {
                    return Err(Errno::OPNOTSUPP);
                }
                if !parts.iter().all(|p| p.spec.may_write) {
                    return Err(Errno::ACCESS);
                }
            }
            // Pages that may do less than before are taken out, and come back as the new rights say.
            let reduces = parts.iter().any(|part| !prot.contains(part.spec.prot));
            Ok(if reduces { Pages::Leave } else { Pages::Stay })
        };
        let change = match self.begin_change(range.clone(), plan) {
            Err(Errno::OPNOTSUPP) => return Ok(false),
            change => change?,
        };
        if let Err(e) = self.mmu.allow(range) {
            self.undo_change(change);
            return Err(e);
        }
        let new = change.parts.iter().map(|part| part.with(|spec| spec.prot = prot)).collect();
        self.finish_change(change, new, |layout, change| layout.release(&change.free));
        Ok(true)
    }
}

/// ENOMEM if the parts leave a hole in the range, as Linux says.
pub(super) fn covers_all(parts: &[Part], range: &std::ops::Range<usize>) -> Result<(), Errno> {
    let mapped: usize = parts.iter().map(|p| p.range.len()).sum();
    if mapped == range.len() { Ok(()) } else { Err(Errno::NOMEM) }
}
