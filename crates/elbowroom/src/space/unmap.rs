//! munmap.

use super::Space;
use super::change::{Pages, Rest};
use crate::platform::Platform;
use elbowroom_machine::{Errno, Mmu};
use std::ops::Range;

impl<P: Platform> Space<P> {
    /// Unmaps what is mapped in the range, which may have holes. Dirty pages of files stay in the cache and are written back from there.
    ///
    /// # Errors
    /// EINVAL: the address is not aligned, the length is 0, or the end is beyond the space. ENOMEM: a VMA is cut, and there are too many. EBUSY: a page has
    /// been pinned for longer than the bound. Nothing is changed then.
    ///
    /// Locks: `layout`, shortly, twice; those of the folios that are mapped there.
    pub fn unmap(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let range = self.range(addr, len).ok_or(Errno::INVAL)?;
        if !self.unmap_untouched(&range)? {
            let change = self.begin(range, |_| Ok(Pages::Drop))?;
            self.finish(change, Vec::new(), Rest::Free);
        }
        self.settle();
        Ok(())
    }

    /// Unmaps what no page of was ever there, or is any more: then nothing need be taken out, and the layout lock is held once.
    fn unmap_untouched(&self, range: &Range<usize>) -> Result<bool, Errno> {
        let mut layout = self.layout_without_change_in(range);
        if !self.mm.cut_untouched(&mut layout, range) {
            return Ok(false);
        }
        if self.core.mmu.allow(range.clone()).is_err() {
            // Some pages cannot be mapped again: nothing is. That is better than mappings that fail without reason.
            self.mm.take(&mut layout, range);
        }
        Ok(true)
    }
}
