//! msync.

use super::page_range;
use crate::core::Core;
use crate::writeback::Obstacle;
use elbowroom_machine::Errno;

impl Core {
    /// Writes the dirty pages of the range back, and makes them durable if `durable`.
    ///
    /// # Errors
    /// The first error of a write-back of the file since the last report, this one's included. ENOMEM if part of the range is not mapped, after
    /// the rest was written.
    pub(crate) fn sync(&self, addr: usize, len: usize, durable: bool) -> Result<(), Errno> {
        if len == 0 {
            return Ok(());
        }
        let range = page_range(addr, len)?;
        let vmas = self.vmas.overlapping(&range);
        let mut mapped = 0;
        let mut first = Ok(());
        for vma in &vmas {
            let part = vma.range.start.max(range.start)..vma.range.end.min(range.end);
            mapped += part.len();
            let object = &vma.spec.object;
            let mut result =
                self.write_back(object, vma.page_at(part.start)..vma.page_at(part.end), Obstacle::Wait);
            if durable && object.file().writable() {
                result = result.and(object.file().sync_data());
            }
            first = first.and(object.take_error().map_or(result, Err));
        }
        first.and(if mapped == range.len() { Ok(()) } else { Err(Errno::NOMEM) })
    }
}
