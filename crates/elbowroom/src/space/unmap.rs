//! munmap.

use super::change::Pages;
use super::page_range;
use crate::core::Core;
use elbowroom_machine::Errno;

impl Core {
    /// Unmaps all of our mappings in the range, which may have holes. Dirty pages stay in the cache and are written back from there.
    pub(crate) fn unmap(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let range = page_range(addr, len)?;
        let change = self.begin_change(range, |_| Ok(Pages::Leave))?;
        self.finish_change(change, Vec::new(), |layout, change| layout.release_all(change));
        Ok(())
    }
}
