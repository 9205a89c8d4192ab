//! mprotect. Linux: `do_mprotect_pkey`.

use super::change::{AfterChange, Pages, VmaPart};
use super::{Space, page_align};
use crate::platform::Platform;
use crate::trace::Verb;
use crate::vma::{Prot, VmaFlags};
use elbowroom_machine::{Errno, PAGE_SIZE};

impl<P: Platform> Space<P> {
    /// Changes the rights of the range, VMA by VMA: VMAs before a failure stay changed.
    ///
    /// # Errors
    /// In this order. EINVAL: the address is not aligned. ENOMEM: the end is not after the start; or a hole.
    /// EACCES: the right to write, for a shared mapping of a file that is not open for writing. EOPNOTSUPP:
    /// private pages would become writable, and the manager was told not to allow that; nothing is changed.
    pub fn protect(&self, addr: usize, len: usize, prot: Prot) -> Result<(), Errno> {
        self.core.verb(Verb::Protect, addr, len, || self.protect_now(addr, len, prot))
    }

    fn protect_now(&self, addr: usize, len: usize, prot: Prot) -> Result<(), Errno> {
        if !addr.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::INVAL);
        }
        if len == 0 {
            return Ok(());
        }
        let rounded = page_align(len);
        if addr.checked_add(rounded).is_none_or(|end| end == addr) {
            return Err(Errno::NOMEM);
        }
        let range = self.clamped(addr, len);
        let write = prot.contains(Prot::WRITE);
        let (parts, whole) = self.parts_up_to_hole(&range);
        let private = parts.iter().any(|part| part.spec.is_private());
        if write && private && !self.core.config.private_writes {
            return Err(Errno::OPNOTSUPP);
        }
        for part in parts {
            let becomes_writable = write && !part.spec.prot.contains(Prot::WRITE);
            self.protect_part(&part, prot)?;
            if becomes_writable && part.spec.is_private() && part.spec.flags.contains(VmaFlags::LOCKED) {
                self.populate_what_can_be(&part.range);
            }
        }
        if whole && range.len() == rounded { Ok(()) } else { Err(Errno::NOMEM) }
    }

    fn protect_part(&self, part: &VmaPart, prot: Prot) -> Result<(), Errno> {
        let write = prot.contains(Prot::WRITE);
        if write && !part.spec.may_write {
            return Err(Errno::ACCESS);
        }
        let plan = |parts: &[VmaPart]| {
            covers_all(parts, &part.range)?;
            if write && !parts.iter().all(|p| p.spec.may_write) {
                return Err(Errno::ACCESS);
            }
            // If a right is taken away, the pages are unmapped; faults map them again with the new rights.
            let reduces = parts.iter().any(|part| !prot.contains(part.spec.prot));
            Ok(if reduces { Pages::Leave } else { Pages::Stay })
        };
        let change = self.begin(part.range.clone(), plan)?;
        // A program that takes the right to write away may want to see each store fail, as a garbage
        // collector does.
        let loses_write = |part: &&VmaPart| !write && part.spec.prot.contains(Prot::WRITE);
        for part in change.parts.iter().filter(loses_write) {
            part.spec.object.iter().for_each(|object| object.make_strict());
        }
        if let Err(e) = self.allow(&part.range) {
            self.undo(change);
            return Err(e);
        }
        let new = change.parts.iter().map(|part| part.with(|spec| spec.prot = prot)).collect();
        self.finish(change, new, AfterChange::Free);
        Ok(())
    }

    fn allow(&self, range: &std::ops::Range<usize>) -> Result<(), Errno> {
        elbowroom_machine::Mmu::allow(&self.core.mmu, range.clone())
    }
}

/// ENOMEM if the parts leave a hole in the range, as Linux says.
pub(super) fn covers_all(parts: &[VmaPart], range: &std::ops::Range<usize>) -> Result<(), Errno> {
    let mapped: usize = parts.iter().map(|p| p.range.len()).sum();
    if mapped == range.len() { Ok(()) } else { Err(Errno::NOMEM) }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::{Config, Manager, MapRequest, Place, Sharing, Soft};

    /// The file must be strict before its pages are mapped again: otherwise the first store could be
    /// missed.
    #[test]
    fn a_file_is_strict_once_the_right_to_write_was_taken_away() {
        let manager = Manager::<Soft>::start_on(Config::with_memory(16 << 20)).unwrap();
        let space = manager.create_space().unwrap();
        for sharing in [Sharing::Shared, Sharing::Private] {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(8 * PAGE_SIZE as u64).unwrap();
            let object = manager.open(file.path(), true).unwrap();
            let request = MapRequest {
                place: Place::Anywhere,
                len: 8 * PAGE_SIZE,
                prot: Prot::READ,
                may_write: true,
                sharing,
                object: Some(object.clone()),
                offset: 0,
                populate: false,
                locked: false,
                no_reserve: false,
                group: None,
            };
            let at = space.map(request).unwrap();
            space.protect(at, 8 * PAGE_SIZE, Prot::READ.union(Prot::WRITE)).unwrap();
            assert!(!object.is_strict());
            space.protect(at + PAGE_SIZE, PAGE_SIZE, Prot::READ).unwrap();
            assert!(object.is_strict());
        }
    }
}
