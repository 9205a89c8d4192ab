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

    /// [`Space::unmap`], if all of the range is ours: addresses that were given to the kernel are not ours
    /// to unmap.
    ///
    /// # Errors
    /// As for [`Space::unmap`]. EXDEV: a part of the range is the kernel's. Nothing is changed then.
    pub fn unmap_ours(&self, addr: usize, len: usize) -> Result<(), Errno> {
        // While the layout is locked, no part of the range can be given to the kernel.
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
        // Another thread may have begun to close these files; here they are closed before the call returns.
        files.iter().for_each(|file| self.core.close_unmapped(file, Obstacle::Wait));
        Ok(())
    }

    /// The files that are mapped in the range.
    fn files_in(&self, range: &Range<usize>) -> Vec<Arc<FileObject>> {
        let parts = self.parts(range);
        let objects = parts.iter().filter_map(|part| part.spec.object.as_deref());
        objects.filter(|object| !object.is_memory()).cloned().collect()
    }

    /// Unmaps the range if it is one VMA of which no page is in the cache or belongs to the space: then no
    /// page need be unmapped, and the layout lock is taken only once. `false`: it is not, and nothing is
    /// changed.
    fn unmap_untouched(&self, range: &Range<usize>) -> Result<bool, Errno> {
        // Dropped after the lock.
        let _vma;
        let mut layout = self.layout_without_change_in(range);
        match self.mm.cut_untouched(&mut layout, range) {
            Some(vma) => _vma = vma,
            None => return Ok(false),
        }
        if self.core.mmu.allow(range.clone()).is_err() {
            // The kernel could not undo the denials there, so the addresses are not used again. That is
            // better than later mappings there whose accesses fail without reason.
            self.mm.take(&mut layout, range);
        }
        Ok(true)
    }
}
