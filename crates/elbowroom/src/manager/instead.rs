//! Zeros instead of bytes that cannot be had, for programs that make an error of their own of SIGBUS.
//!
//! Synchronization: the record of pages that are refused is the MMU's, under its lock.

use super::Manager;
use crate::platform::Host;
use elbowroom_machine::Errno;
use std::ops::Range;

/// Maps zeros at pages at which an access raises SIGBUS because the file ends before them or cannot be read
/// there.
#[derive(Clone, Copy)]
pub struct ZerosInstead<'a>(&'a Manager<Host>);

impl<'a> ZerosInstead<'a> {
    /// For the pages of this manager.
    pub fn of(manager: &'a Manager<Host>) -> Self {
        Self(manager)
    }

    /// Shows zeros at the page of `addr`, if accesses to it raise SIGBUS now. Returns for how many pages from
    /// this one on they did, and now show zeros; 0: an access waits for the manager, or works. The access is
    /// then to be repeated. Other threads see the zeros, and stores to them are lost, until
    /// [`ZerosInstead::hide`] is called.
    ///
    /// # Errors
    /// ENOMEM: the kernel has no room for another mapping.
    pub fn show(self, addr: usize) -> Result<usize, Errno> {
        self.0.core.mmu.show_zeros(addr)
    }

    /// Ends [`ZerosInstead::show`] for these addresses: the next access to a page asks the file again.
    ///
    /// # Errors
    /// The kernel's: the zeros are still there.
    pub fn hide(self, range: Range<usize>) -> Result<(), Errno> {
        self.0.core.mmu.allow(range)
    }
}
