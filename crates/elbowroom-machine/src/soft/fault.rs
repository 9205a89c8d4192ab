//! Accesses that ended early.

use crate::{FaultEvent, PAGE_SIZE};

/// Why an access ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// No page is mapped at the address. The caller has the fault served, and tries again.
    NotMapped,
    /// A store to a write-protected page. The caller has the fault served, and tries again.
    ReadOnly,
    /// The page, or the MMU, has as many pins as allowed: to be tried again when some are gone.
    TooManyPins,
    /// A compare-exchange of a word that is not aligned to its size, a pin beyond its page, or a copy onto
    /// itself: the caller's mistake.
    Invalid,
}

/// Where an access ended early, and why. The bytes before `addr` are done; the caller goes on at `addr`,
/// with the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{} at {addr:#x} failed after {done} bytes: {cause:?}", if *write { "store" } else { "load" })]
pub struct SoftFault {
    /// The first address that was not accessed; not rounded.
    pub addr: usize,
    /// Whether the access was a store.
    pub write: bool,
    /// How many bytes of the access were done before `addr`.
    pub done: usize,
    /// Why.
    pub cause: Cause,
}

impl SoftFault {
    /// The fault as the host MMU would report it; `None` if there is nothing to serve.
    pub fn event(&self, thread: u32) -> Option<FaultEvent> {
        let present = match self.cause {
            Cause::NotMapped => false,
            Cause::ReadOnly => true,
            Cause::TooManyPins | Cause::Invalid => return None,
        };
        Some(FaultEvent { addr: self.addr & !(PAGE_SIZE - 1), thread, write: self.write, present })
    }

    /// The same fault in an access that had done `done` bytes before.
    pub(super) fn after(mut self, done: usize) -> Self {
        self.done += done;
        self
    }
}
