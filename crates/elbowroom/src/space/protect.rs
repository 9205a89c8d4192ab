//! mprotect.

use super::change::{Pages, Part};
use super::page_range;
use crate::core::Core;
use crate::vma::{Prot, Sharing, Vma, VmaSpec};
use elbowroom_machine::Errno;
use elbowroom_sync::Arc;

impl Core {
    /// Changes the rights of the range. `Ok(false)`: nothing was changed, since private pages would become writable, which is the kernel's
    /// business so far.
    pub(crate) fn protect(&self, addr: usize, len: usize, prot: Prot) -> Result<bool, Errno> {
        if len == 0 {
            return Ok(true);
        }
        let range = page_range(addr, len)?;
        let old = self.vmas.overlapping(&range);
        let reduces = old.iter().any(|vma| !prot.contains(vma.spec.prot));
        drop(old);
        let pages = if reduces { Pages::Leave } else { Pages::Stay };
        let checked = |parts: &[Part]| {
            covers_all(parts, &range)?;
            if !prot.contains(Prot::WRITE) {
                return Ok(());
            }
            if parts.iter().any(|p| p.spec.sharing == Sharing::Private) {
                return Err(Errno::OPNOTSUPP);
            }
            if parts.iter().all(|p| p.spec.may_write) { Ok(()) } else { Err(Errno::ACCESS) }
        };
        let change = match self.begin_change(range.clone(), pages, checked) {
            Err(Errno::OPNOTSUPP) => return Ok(false),
            change => change?,
        };
        self.mmu.allow(range.clone())?;
        let new = change.parts.iter().map(|part| with(part, |spec| spec.prot = prot)).collect();
        self.finish_change(change, new, |_, _| {});
        Ok(true)
    }
}

/// The part as a mapping whose spec is changed.
pub(super) fn with(part: &Part, change: impl FnOnce(&mut VmaSpec)) -> Arc<Vma> {
    let mut spec = part.spec.clone();
    change(&mut spec);
    Vma::new(part.range.clone(), part.first_page, spec)
}

/// ENOMEM if the parts leave a hole in the range, as Linux says.
pub(super) fn covers_all(parts: &[Part], range: &std::ops::Range<usize>) -> Result<(), Errno> {
    let mapped: usize = parts.iter().map(|p| p.range.len()).sum();
    if mapped == range.len() { Ok(()) } else { Err(Errno::NOMEM) }
}
