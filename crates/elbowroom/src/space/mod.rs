//! Spaces: the mmap family, one verb a file, with Linux's results and error numbers.
//!
//! Every change of a layout goes through [`change`], in three steps: take the VMAs in the range out of the
//! index, when no reader has them locked (new faults there stall); take their pages out of the MMU; put in
//! the new VMAs, if any, and let the stalled faults look again. The layout lock is held for the first and
//! the last step only.
//!
//! Addresses of the process's own space are pointers. The addresses of a soft space have its number in
//! their top 16 bits.

mod access;
mod advise;
mod change;
mod dump;
mod fork;
mod handback;
#[cfg(not(shuttle))]
mod inherit;
mod insert;
mod lock;
mod map;
mod mapping;
mod own;
mod page_out;
mod populate;
mod protect;
mod query;
pub(crate) mod regroup;
mod remap;
mod sync;
mod unmap;
mod view;

pub use advise::Advice;
pub use dump::Dumpable;
pub use insert::{Buffer, PartialInsert};
pub use map::{MapRequest, Place};
pub use mapping::Mapping;
pub use query::Area;
pub use remap::Remap;
pub use view::{AccessError, Cpu};

use crate::fault::Faults;
use crate::platform::Platform;
use crate::vma::Mm;
use elbowroom_machine::{Errno, Mmu, PAGE_SIZE};
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::{AtomicU32, Ordering};
use std::ops::{Deref, Range};

/// The size of a space: what Linux calls TASK_SIZE.
const TASK_SIZE: usize = (1 << 47) - PAGE_SIZE;

/// The highest of the manager's layers: the verbs of all its spaces.
pub(crate) struct Spaces<P: Platform> {
    faults: Faults<P>,
    /// How many [`Cpu`]s were made.
    cpus: AtomicU32,
}

impl<P: Platform> Deref for Spaces<P> {
    type Target = Faults<P>;

    fn deref(&self) -> &Faults<P> {
        &self.faults
    }
}

impl<P: Platform> Spaces<P> {
    pub(crate) fn new(faults: Faults<P>) -> Self {
        Self { faults, cpus: AtomicU32::new(0) }
    }

    /// A number for a [`Cpu`], which only tells streams of accesses apart.
    fn next_cpu(&self) -> u32 {
        self.cpus.fetch_add(1, Ordering::Relaxed)
    }
}

/// A space: addresses, and what is mapped there. Its verbs may be called from any thread.
///
/// Dropping a soft space unmaps everything. The process's own space lives as long as its manager.
pub struct Space<P: Platform> {
    pub(crate) core: Arc<Spaces<P>>,
    pub(crate) mm: Arc<Mm>,
    /// Its lowest address; 0 for real pointers.
    pub(crate) base: usize,
}

/// A length rounded up to pages; it wraps as Linux's `PAGE_ALIGN` does.
fn page_align(len: usize) -> usize {
    len.wrapping_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1)
}

impl<P: Platform> Space<P> {
    /// The range of pages from `addr` on; `None` if it is empty, does not lie in the space, or `addr` is
    /// not aligned.
    fn range(&self, addr: usize, len: usize) -> Option<Range<usize>> {
        let at = addr.checked_sub(self.base).filter(|at| at.is_multiple_of(PAGE_SIZE) && *at <= TASK_SIZE)?;
        let len = (len <= TASK_SIZE - at).then(|| page_align(len)).filter(|&len| len > 0)?;
        Some(addr..addr + len)
    }

    /// The part of a range that lies in the space; the rest counts as a hole. The end of the range must not
    /// wrap.
    fn clamped(&self, addr: usize, len: usize) -> Range<usize> {
        let end = addr.saturating_add(page_align(len)).min(self.base + TASK_SIZE);
        addr.min(end).max(self.base)..end.max(self.base)
    }

    /// The addresses at which [`Place::Anywhere`] may put mappings.
    fn addresses(&self) -> Range<usize> {
        // Nothing is ever mapped at 0, so that a null pointer faults. Linux: `mmap_min_addr`.
        self.base + (64 << 10)..self.base + TASK_SIZE
    }

    /// The address ranges of the mappings without the right to write.
    #[cfg(not(shuttle))]
    pub(crate) fn without_stores(&self) -> Vec<Range<usize>> {
        let parts = self.parts(&self.everything()).into_iter();
        parts
            .filter(|part| !part.spec.prot.contains(crate::vma::Prot::WRITE))
            .map(|part| part.range)
            .collect()
    }

    /// All addresses of the space: mappings at fixed addresses may be below [`Space::addresses`].
    fn everything(&self) -> Range<usize> {
        self.base..self.base + TASK_SIZE
    }

    /// ENOMEM unless all of the range lies in our windows in this space.
    fn owned(&self, range: &Range<usize>) -> Result<(), Errno> {
        let fits = range.start >= self.base && range.end <= self.base + TASK_SIZE;
        if fits && self.core.mmu.covers(range.start, range.len()) { Ok(()) } else { Err(Errno::NOMEM) }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
