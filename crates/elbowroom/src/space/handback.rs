//! Giving addresses back to the kernel.

use super::Space;
use super::change::{Pages, Part, Rest};
use crate::platform::Host;
use crate::vma::Prot;
use crate::writeback::Obstacle;
use elbowroom_machine::{Errno, PAGE_SIZE};

impl Space<Host> {
    /// Replaces the mappings of files in the range by the kernel's own, in place, of the same files at the same offsets, with PROT_* bits
    /// `prot`, or their own rights if `None`. What was dirty is written first, so the bytes are the same.
    ///
    /// # Errors
    /// EINVAL: the range is no range. EOPNOTSUPP: something there is not a file's, or has pages of its own; nothing is changed. ENOMEM: no more ranges can be
    /// given away; nothing is changed. Else the first error of writing back or mapping.
    pub fn hand_back(&self, addr: usize, len: usize, prot: Option<u32>) -> Result<(), Errno> {
        let range = self.range(addr, len).ok_or(Errno::INVAL)?;
        let plan = |parts: &[Part]| {
            let own = |part: &Part| {
                let file = part.spec.object.as_ref().is_some_and(|object| !object.is_memory());
                !file || !self.mm.anon.in_range(part.page_numbers()).is_empty()
            };
            if parts.iter().any(own) {
                return Err(Errno::OPNOTSUPP);
            }
            self.can_give(parts.len())
        };
        let change = self.begin(range, plan)?;
        let mut first = Ok(());
        for part in &change.parts {
            let Some(object) = &part.spec.object else { continue };
            first = first.and(self.core.write_back(object, part.pages(), Obstacle::Wait));
            let (read, write) = (u32::from(Prot::READ.bits()), u32::from(Prot::WRITE.bits()));
            debug_assert_eq!((read, write), (1, 2), "the bits are those of PROT_READ and PROT_WRITE");
            let prot = prot.unwrap_or(u32::from(part.spec.prot.bits()));
            let offset = part.first_page * PAGE_SIZE as u64;
            let (file, private) = (object.file(), part.spec.is_private());
            let mmu = &self.core.mmu;
            first = first.and(mmu.map_file(part.range.clone(), file.as_fd(), offset, prot, private));
        }
        self.finish(change, Vec::new(), Rest::Given);
        first
    }

    /// ENOMEM, before anything is changed, if no more ranges can be given away.
    fn can_give(&self, ranges: usize) -> Result<Pages, Errno> {
        if self.core.mmu.can_give_away(ranges + 1) { Ok(Pages::Drop) } else { Err(Errno::NOMEM) }
    }

    /// Unmaps what is mapped in the range and leaves its addresses to whoever maps something over them.
    ///
    /// # Errors
    /// As for [`Space::hand_back`].
    pub fn surrender(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let range = self.range(addr, len).ok_or(Errno::INVAL)?;
        let change = self.begin(range.clone(), |parts| self.can_give(parts.len() + 1))?;
        let mut given = Ok(());
        let mut rest = range.clone();
        while let Some(owned) = self.core.mmu.windows().first_owned(rest.clone()) {
            rest.start = owned.end;
            given = given.and(self.core.mmu.give_away(owned));
        }
        self.finish(change, Vec::new(), Rest::Taken);
        given
    }
}
