//! The space verbs: what the mmap family does, one verb a file.
//!
//! Every change of the layout goes through [`change`], in three steps: publish a list of mappings without what goes away (new faults there stall);
//! wait until nobody uses the old ones and take their pages out of the window; publish what comes instead, and let the stalled
//! faults look again. The layout lock is held for the first and the last step only.

mod access;
mod advise;
mod change;
mod handback;
mod map;
mod protect;
mod query;
mod remap;
mod sync;
mod unmap;

pub use advise::Advice;
pub use map::{MapRequest, Place};
pub use remap::Remap;

use elbowroom_machine::{Errno, PAGE_SIZE};
use std::ops::Range;

/// The pages of a request as addresses, or EINVAL for what Linux calls invalid: an unaligned start, no length, or an end beyond
/// the address space.
fn page_range(addr: usize, len: usize) -> Result<Range<usize>, Errno> {
    let len = len.checked_next_multiple_of(PAGE_SIZE).filter(|&len| len > 0).ok_or(Errno::INVAL)?;
    if !addr.is_multiple_of(PAGE_SIZE) {
        return Err(Errno::INVAL);
    }
    Ok(addr..addr.checked_add(len).ok_or(Errno::INVAL)?)
}
