//! munmap.

use super::Space;
use super::change::{AfterChange, Pages};
use crate::object::FileObject;
use crate::platform::Platform;
use crate::trace::Verb;
use crate::writeback::Obstacle;
use elbowroom_machine::{Errno, Mmu};
use elbowroom_sync::Arc;
use std::ops::Range;

impl<P: Platform> Space<P> {
    /// Unmaps what is mapped in the range, which may have holes. Dirty pages of files stay in the cache and
    /// are written back from there.
    ///
    /// # Errors
    /// EINVAL: the address is not aligned, the length is 0, or the end is beyond the space. ENOMEM: a VMA is
    /// cut, and there are too many. EBUSY: a page has been pinned for longer than the bound. Nothing is
    /// changed then.
    ///
    /// Locks: `layout`, shortly, twice; those of the folios that are mapped there.
    pub fn unmap(&self, addr: usize, len: usize) -> Result<(), Errno> {
        self.unmap_if(addr, len, |_| Ok(()))
    }

    /// The same, if all of the range is ours: what went back to the kernel is not ours to unmap.
    ///
    /// # Errors
    /// As there. EXDEV: a part of it is the kernel's. Nothing is changed then.
    pub fn unmap_ours(&self, addr: usize, len: usize) -> Result<(), Errno> {
        // With the layout locked nothing of it can be given away any more.
        let ours = |range: &Range<usize>| self.core.mmu.covers(range.start, range.len());
        self.unmap_if(addr, len, |range| if ours(range) { Ok(()) } else { Err(Errno::XDEV) })
    }

    /// [`Space::unmap`], if `may`, asked with the layout locked, allows it.
    fn unmap_if(
        &self,
        addr: usize,
        len: usize,
        may: impl FnOnce(&Range<usize>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.core.verb(Verb::Unmap, addr, len, || self.unmap_now(addr, len, may))
    }

    fn unmap_now(
        &self,
        addr: usize,
        len: usize,
        may: impl FnOnce(&Range<usize>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let range = self.range(addr, len).ok_or(Errno::INVAL)?;
        let files = if self.core.config.close_unmapped { self.files_in(&range) } else { Vec::new() };
        if !self.unmap_untouched(&range)? {
            let change = self.begin(range.clone(), |_| may(&range).map(|()| Pages::Drop))?;
            self.finish(change, Vec::new(), AfterChange::Free);
        }
        self.settle();
        // Another thread may have begun to close them; they are closed when this returns.
        files.iter().for_each(|file| self.core.close_unmapped(file, Obstacle::Wait));
        Ok(())
    }

    /// The files that are mapped in the range.
    fn files_in(&self, range: &Range<usize>) -> Vec<Arc<FileObject>> {
        let parts = self.parts(range);
        let objects = parts.iter().filter_map(|part| part.spec.object.as_deref());
        objects.filter(|object| !object.is_memory()).cloned().collect()
    }

    /// Unmaps what no page of was ever there, or is any more: then nothing need be taken out, and the layout
    /// lock is held once.
    fn unmap_untouched(&self, range: &Range<usize>) -> Result<bool, Errno> {
        let mut layout = self.layout_without_change_in(range);
        if !self.mm.cut_untouched(&mut layout, range) {
            return Ok(false);
        }
        if self.core.mmu.allow(range.clone()).is_err() {
            // Some pages cannot be mapped again: nothing is. That is better than mappings that fail without
            // reason.
            self.mm.take(&mut layout, range);
        }
        Ok(true)
    }
}
