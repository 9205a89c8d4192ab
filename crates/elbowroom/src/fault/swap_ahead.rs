//! Anonymous memory that is read from the swap file ahead of who goes through it in order.
//!
//! Linux reads one window of swap around a fault and has the thread wait for all of it
//! (`swap_vma_readahead`); ahead of a reader it reads files only (`page_cache_async_ra`), as is done here.

use super::Pass;
use super::private::{OutRun, block_in};
use crate::config::RUN_ORDER;
use crate::page::{AnonPages, Flag, Folio};
use crate::platform::Platform;
use crate::swap::Source;
use crate::vma::{Mm, VmaGuard};
use elbowroom_machine::Mmu;

/// Pages of a run.
const RUN_PAGES: u64 = 1 << RUN_ORDER;

/// What is read ahead of one stream is at most one part in this many of the arena.
const AHEAD_SHARE: u64 = 256;

impl<P: Platform> Pass<'_, P> {
    /// Has the runs from page `from` on read that are in the file, while the thread works on the one before;
    /// what is in memory, or comes, is passed by. What there is no room for is left: nobody waits for it.
    pub(super) fn swap_ahead(&mut self, mm: &Mm, vma: &VmaGuard<'_>, from: u64) {
        let core = self.core;
        // Only a handler can read. With many waiting faults the device is busy.
        if self.io.is_none() || core.groups.root().waiting() > core.tuning().read_on_max_waiting {
            return;
        }
        let most = core.mmu.frames() as u64 / AHEAD_SHARE / RUN_PAGES;
        let runs = core.tuning().swap_ahead_runs.min(most);
        // While the run in the middle was read ahead and is not touched yet, nothing is begun: later, several
        // runs are begun together, and the device gets one request for those that lie together.
        let middle = block_in(vma, from + runs / 2 * RUN_PAGES, RUN_ORDER);
        let middle = middle.and_then(|block| mm.anon.lookup(block.start));
        if middle.is_some_and(|folio| folio.state.test(Flag::Readahead)) {
            return;
        }
        for nth in 0..runs {
            let Some(block) = block_in(vma, from + nth * RUN_PAGES, RUN_ORDER) else { return };
            let first = block.start;
            let Some(slots) = mm.anon.run_out(block) else { continue };
            let Some(source @ Source::File(_)) = core.swap.seems(slots[0]) else { continue };
            let run = OutRun { first, slots, source };
            if !run.is_where_it_was(&core.swap) {
                continue;
            }
            // None is freed for it.
            let Some(frames) = core.alloc(RUN_ORDER) else { return };
            if let Some(folio) = self.start_swap_in(mm, run, frames, false) {
                folio.state.set(Flag::Readahead);
            }
        }
    }

    /// The same where a thread has come to a folio that was read ahead of it.
    pub(super) fn swap_on(&mut self, mm: &Mm, vma: &VmaGuard<'_>, page: u64, folio: &Folio) {
        if vma.spec.object.is_none()
            && folio.state.test(Flag::Readahead)
            && folio.state.clear(Flag::Readahead)
        {
            self.swap_ahead(mm, vma, AnonPages::first_of(folio, page) + folio.pages());
        }
    }
}
