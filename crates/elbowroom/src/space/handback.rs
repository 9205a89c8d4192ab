//! Giving addresses back to the kernel.

use super::change::Pages;
use super::page_range;
use crate::core::Core;
use crate::vma::{Prot, Sharing};
use crate::writeback::Obstacle;
use elbowroom_machine::{Errno, PAGE_SIZE};

impl Core {
    /// Replaces what is mapped in the range by the kernel's own mappings of the same files at the same offsets, with PROT_* bits `prot`, or their own
    /// rights if `None`. What was dirty is written first, so the bytes are the same.
    pub(crate) fn hand_back(&self, addr: usize, len: usize, prot: Option<u32>) -> Result<(), Errno> {
        let range = page_range(addr, len)?;
        let change = self.begin_change(range, |parts| self.can_give(parts.len()))?;
        let mut first = Ok(());
        for part in &change.parts {
            let object = &part.spec.object;
            first = first.and(self.write_back(object, part.pages(), Obstacle::Wait));
            let (read, write) = (u32::from(Prot::READ.bits()), u32::from(Prot::WRITE.bits()));
            debug_assert_eq!((read, write), (1, 2), "the bits are those of PROT_READ and PROT_WRITE");
            let prot = prot.unwrap_or(u32::from(part.spec.prot.bits()));
            let private = part.spec.sharing == Sharing::Private;
            let offset = part.first_page * PAGE_SIZE as u64;
            let file = object.file();
            first = first.and(self.mmu.map_file(part.range.clone(), file.as_fd(), offset, prot, private));
        }
        self.finish_change(change, Vec::new(), |layout, change| layout.release(&change.free));
        first
    }

    /// ENOMEM, before anything is changed, if no more ranges can be given away.
    fn can_give(&self, ranges: usize) -> Result<Pages, Errno> {
        if self.mmu.can_give_away(ranges + 1) { Ok(Pages::Leave) } else { Err(Errno::NOMEM) }
    }

    /// Unmaps what is mapped in the range and leaves its addresses to whoever maps something over them.
    pub(crate) fn surrender(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let range = page_range(addr, len)?;
        let change = self.begin_change(range.clone(), |parts| self.can_give(parts.len() + 1))?;
        let mut given = Ok(());
        let mut rest = range.clone();
        while let Some(owned) = self.mmu.windows().first_owned(rest.clone()) {
            rest.start = owned.end;
            given = given.and(self.mmu.give_away(owned));
        }
        self.finish_change(change, Vec::new(), |_, _| {});
        given
    }
}
