//! Under the model checker there is no ring: the caller makes writes one after another.

use elbowroom_machine::Errno;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

/// As in `scatter`.
pub const SCATTERED_WRITES: usize = 32;

/// There is none.
pub struct WriteRing(std::convert::Infallible);

impl WriteRing {
    /// Fails always, so that no ring is ever made.
    ///
    /// # Errors
    /// Always.
    pub fn new() -> Result<Self, Errno> {
        Err(Errno::NOSYS)
    }

    pub(crate) fn write(&mut self, _: BorrowedFd<'_>, _: &[(Vec<IoSlice<'_>>, u64)]) -> Vec<usize> {
        match self.0 {}
    }

    /// There is none.
    pub fn is_broken(&self) -> bool {
        match self.0 {}
    }
}
