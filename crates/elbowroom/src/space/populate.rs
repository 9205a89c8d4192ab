//! Bringing pages in before they are touched. Linux: `populate_vma_page_range`, `faultin_page_range`.

use super::Space;
use crate::fault::{FaultError, NO_THREAD};
use crate::platform::Platform;
use crate::vma::{Prot, VmaFlags};
use elbowroom_machine::{FaultEvent, PAGE_SIZE};
use std::ops::Range;

impl<P: Platform> Space<P> {
    /// Brings the page of `addr` in, as an access would.
    ///
    /// # Errors
    /// How an access would fail.
    pub(super) fn fault_in(&self, addr: usize, write: bool) -> Result<(), FaultError> {
        self.core.fault(FaultEvent { addr, thread: NO_THREAD, write, present: false })
    }

    /// Brings the pages of the range in, except in mappings that are locked on fault. In writable private
    /// mappings they are brought in as for a store, which makes the copies now. Stops at the first page
    /// that cannot be had.
    pub(super) fn populate(&self, range: &Range<usize>) -> Result<(), FaultError> {
        let parts = self.parts(range);
        for part in parts.iter().filter(|part| !part.spec.flags.contains(VmaFlags::ON_FAULT)) {
            let write = part.spec.is_private() && part.spec.prot.contains(Prot::WRITE);
            for page in part.range.clone().step_by(PAGE_SIZE) {
                self.fault_in(page, write)?;
            }
        }
        Ok(())
    }

    /// [`Space::populate`]; it is no error if a page cannot be had.
    pub(super) fn populate_what_can_be(&self, range: &Range<usize>) {
        // A thread that touches the page gets the error.
        let _ = self.populate(range);
    }
}
