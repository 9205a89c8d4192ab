//! mincore.

use super::page_range;
use crate::core::Core;
use crate::page::Flag;
use elbowroom_machine::{Errno, PAGE_SIZE};

impl Core {
    /// Sets bit 0 of each byte of `out`, one per page from `addr` on, to whether the page is in memory.
    ///
    /// # Errors
    /// ENOMEM if a page is not mapped.
    pub(crate) fn resident(&self, addr: usize, out: &mut [u8]) -> Result<(), Errno> {
        if out.is_empty() {
            return Ok(());
        }
        let range = page_range(addr, out.len() * PAGE_SIZE)?;
        for (page, byte) in range.step_by(PAGE_SIZE).zip(out) {
            let vma = self.vmas.find(page).ok_or(Errno::NOMEM)?;
            let folio = vma.spec.object.lookup(vma.page_at(page));
            *byte = u8::from(folio.is_some_and(|f| f.state.test(Flag::Uptodate)));
        }
        Ok(())
    }
}
