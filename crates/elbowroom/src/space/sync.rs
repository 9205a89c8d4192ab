//! msync. Linux: mm/msync.c.

use super::change::VmaPart;
use super::{Space, page_align};
use crate::platform::Platform;
use crate::trace::Verb;
use crate::vma::{Sharing, VmaFlags};
use crate::writeback::Obstacle;
use elbowroom_machine::{Errno, PAGE_SIZE};

impl<P: Platform> Space<P> {
    /// Writes the dirty pages of the range back, and makes them durable if `durable`. `invalidate` only
    /// makes the call fail at locked mappings.
    ///
    /// # Errors
    /// EINVAL: the address is not aligned. ENOMEM: the range wraps. Else the first of the following errors
    /// that a mapping in the range has, in order of addresses; mappings behind that one are not written
    /// then. EBUSY: `invalidate`, and the mapping is locked. The first error of a write-back of its file
    /// since the last report, this one's included. If there is none, ENOMEM: a part of the range is not
    /// mapped; the rest was written.
    pub fn sync(&self, addr: usize, len: usize, durable: bool, invalidate: bool) -> Result<(), Errno> {
        self.core.verb(Verb::Sync, addr, len, || {
            self.sync_parts(addr, len, invalidate, |part| self.sync_part(part, durable))
        })
    }

    /// Checks the range as [`Space::sync`] does, but writes nothing: the flusher writes dirty pages in
    /// time. Linux: msync without `MS_SYNC`.
    ///
    /// # Errors
    /// EINVAL, EBUSY and ENOMEM as for [`Space::sync`]. Never an error of a write-back: only
    /// [`Space::sync`] reports those.
    pub fn sync_later(&self, addr: usize, len: usize, invalidate: bool) -> Result<(), Errno> {
        self.core.verb(Verb::Sync, addr, len, || self.sync_parts(addr, len, invalidate, |_| Ok(())))
    }

    fn sync_parts(
        &self,
        addr: usize,
        len: usize,
        invalidate: bool,
        sync: impl Fn(&VmaPart) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if !addr.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::INVAL);
        }
        let rounded = page_align(len);
        if addr.checked_add(rounded).is_none() {
            return Err(Errno::NOMEM);
        }
        if rounded == 0 {
            return Ok(());
        }
        let range = self.clamped(addr, len);
        let mut mapped = 0;
        for part in self.parts(&range) {
            if invalidate && part.spec.flags.contains(VmaFlags::LOCKED) {
                return Err(Errno::BUSY);
            }
            mapped += part.range.len();
            // As Linux does: mappings behind one that cannot be written are not tried.
            sync(&part)?;
        }
        if mapped == rounded { Ok(()) } else { Err(Errno::NOMEM) }
    }

    fn sync_part(&self, part: &VmaPart, durable: bool) -> Result<(), Errno> {
        let Some(object) = &part.spec.object else { return Ok(()) };
        if object.is_memory() || part.spec.sharing == Sharing::Private {
            return Ok(());
        }
        let mut result = self.core.write_back(object, part.pages(), Obstacle::Wait);
        if durable && let Some(file) = object.file().filter(|file| file.writable()) {
            result = result.and(file.sync_data());
        }
        object.take_error().map_or(result, Err)
    }
}
