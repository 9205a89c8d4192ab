//! Brings anonymous memory in ahead of a thread that goes through it in order.
//!
//! Pages whose bytes are in the swap file are read ahead, and mapped when they are touched; those whose
//! bytes are in memory are mapped at once.
//!
//! Linux reads one window of swap around a fault and has the thread wait for all of it
//! (`swap_vma_readahead`); it reads ahead of a thread asynchronously only in files (`page_cache_async_ra`);
//! here that is done for swap, too.

use super::Pass;
use super::out_run::{Bytes, OutRun};
use super::private::{RUN_PAGES, block_in};
use crate::config::RUN_ORDER;
use crate::group::{GroupId, Payer};
use crate::page::{AnonPages, Flag, Folio, LockedFolio, Parked, Spot};
use crate::platform::Platform;
use crate::swap::{Source, Swap, follow};
use crate::vma::{Mm, VmaGuard};
use elbowroom_machine::{Mmu, PAGE_SHIFT};
use std::ops::Range;

/// At most one part in this many of the arena is read ahead of one stream.
const AHEAD_SHARE: u64 = 256;

impl<P: Platform> Pass<'_, P> {
    /// Starts reading the runs from page `from` on whose bytes are in the swap file, while the thread works
    /// on the run before. Pages that are in memory, or being read, are skipped. It ends when frames run
    /// out: no thread waits for these reads.
    pub(super) fn swap_ahead(&mut self, mm: &Mm, vma: &VmaGuard<'_>, from: u64) {
        let core = self.core;
        // Only a handler can read. With many waiting faults the device is busy.
        if self.io.is_none() || core.groups.waiting() > core.tuning().read_on_max_waiting {
            return;
        }
        let most = core.mmu.frames() as u64 / AHEAD_SHARE / RUN_PAGES;
        let runs = core.tuning().swap_ahead_runs.min(most);
        // As long as the run in the middle of those ahead is not touched yet, no read is begun. So several
        // runs are begun together later, and the device gets one request for those that lie together.
        let middle = block_in(vma, from + runs / 2 * RUN_PAGES, RUN_ORDER);
        let middle = middle.and_then(|block| mm.anon.lookup(block.start));
        if middle.is_some_and(|folio| folio.state.test(Flag::Readahead)) {
            return;
        }
        for nth in 0..runs {
            let Some(block) = block_in(vma, from + nth * RUN_PAGES, RUN_ORDER) else { return };
            if self
                .read_pieces((mm, vma.spec.group), block, false, |folio| _ = folio.state.set(Flag::Readahead))
                .is_none()
            {
                return;
            }
        }
    }

    /// Brings and maps whole runs from page `from` on whose bytes are in memory, up to page `end` at most,
    /// so that the thread needs no fault there. Takes only frames that are free. Returns the page behind
    /// the last run that was mapped.
    pub(super) fn load_ahead(&mut self, mm: &Mm, vma: &VmaGuard<'_>, from: u64, end: u64) -> u64 {
        let mut first = from;
        while first + RUN_PAGES <= end && self.load_next(mm, vma, first).is_some() {
            first += RUN_PAGES;
        }
        first
    }

    /// Brings and maps the run at page `first`. `None`: not all of its bytes are in memory, or no frames
    /// are free.
    fn load_next(&mut self, mm: &Mm, vma: &VmaGuard<'_>, first: u64) -> Option<()> {
        let core = self.core;
        let slots = mm.anon.run_out(block_in(vma, first, RUN_ORDER)?)?;
        let run = OutRun { first, slots, bytes: Bytes::Memory };
        if !run.is_where_it_was(&core.swap) {
            return None;
        }
        let frames = core.alloc(Payer::swap_in(vma.spec.group), RUN_ORDER).ok()?;
        let mut folio = self.load(mm, &run, frames).ok()?;
        // If it cannot be mapped, the folio stays, and a fault there maps it.
        let _ = core.map_at(vma, &mut folio, RUN_ORDER, ((first as usize) << PAGE_SHIFT, false));
        core.list_own(folio.into_folio());
        Some(())
    }

    /// Starts reading the rest of the block of 2^`order` pages around `page`, in pieces, where only a part
    /// of the block was together in the swap file. `sparse`: the folios are to be mapped page by page.
    /// Tells how many pages are being read.
    pub(super) fn swap_rest(
        &mut self,
        mm: &Mm,
        vma: &VmaGuard<'_>,
        page: u64,
        order: u8,
        sparse: bool,
    ) -> u32 {
        let core = self.core;
        let busy = core.groups.waiting() > core.tuning().read_on_max_waiting;
        let Some(block) = block_in(vma, page, order).filter(|_| !busy) else { return 0 };
        let mut come = 0;
        self.read_pieces((mm, vma.spec.group), block, sparse, |folio| come += folio.pages() as u32);
        come
    }

    /// Begins to read those pages of a block that are in the swap file; calls `begun` with each folio.
    /// `None`: the free frames ran out; none are freed for it.
    fn read_pieces(
        &mut self,
        (mm, group): (&Mm, GroupId),
        block: Range<u64>,
        sparse: bool,
        mut begun: impl FnMut(&Folio),
    ) -> Option<()> {
        for run in pieces(&self.core.swap, &mm.anon.out_in(block)) {
            let frames = self.core.alloc(Payer::swap_in(group), run.order()).ok()?;
            if let Some(folio) = self.start_swap_in(mm, run, frames, sparse) {
                begun(&folio);
            }
        }
        Some(())
    }

    /// Goes on with [`Pass::swap_ahead`] if the fault has reached a folio that was read ahead. Returns the
    /// pages behind that folio that this fault should map, too.
    pub(super) fn swap_on(
        &mut self,
        mm: &Mm,
        vma: &VmaGuard<'_>,
        page: u64,
        folio: &Folio,
        fault: &Parked,
    ) -> Option<Range<u64>> {
        let ahead = vma.spec.object.is_none() && folio.state.test(Flag::Readahead);
        if !ahead || !folio.state.clear(Flag::Readahead) {
            return None;
        }
        let from = AnonPages::first_of(folio, page) + folio.pages();
        self.swap_ahead(mm, vma, from);
        let most = self.core.tuning().swap_run_pages.max(RUN_PAGES);
        Some(from..page + self.run_pages(mm, vma, page, most, fault))
    }

    /// Maps the runs in `ahead` that were read ahead and have arrived. This is done before the thread is
    /// woken, because it would fault at each of them otherwise.
    pub(super) fn map_ahead(&mut self, mm: &Mm, vma: &VmaGuard<'_>, ahead: Range<u64>, fault: &Parked) {
        let mut first = ahead.start;
        while first + RUN_PAGES <= ahead.end && self.map_next(mm, vma, first).is_some() {
            first += RUN_PAGES;
        }
        if first > ahead.start {
            let page = (fault.event.addr >> PAGE_SHIFT) as u64;
            self.note_run(page, &(page..first), fault);
        }
    }

    /// Maps the run at page `first`. `None`: it was not read ahead, has not arrived, or is locked.
    fn map_next(&mut self, mm: &Mm, vma: &VmaGuard<'_>, first: u64) -> Option<()> {
        let core = self.core;
        let folio = mm.anon.lookup(block_in(vma, first, RUN_ORDER)?.start)?;
        let has_come = |folio: &Folio| {
            folio.order == RUN_ORDER && folio.state.test(Flag::Readahead) && folio.state.test(Flag::Uptodate)
        };
        if !has_come(&folio) {
            return None;
        }
        let mut folio = LockedFolio::try_lock(folio, &core.waits, self.ready).ok()?;
        if !mm.anon.has(first, folio.arc())
            || folio.body().spaces() > 1
            || !folio.state.clear(Flag::Readahead)
        {
            return None;
        }
        // If it cannot be mapped, the folio stays, and a fault there maps it.
        let _ = core.map_at(vma, &mut folio, RUN_ORDER, ((first as usize) << PAGE_SHIFT, false));
        Some(())
    }
}

/// Divides the pages in `out` (page and slot, in order) that are in the swap file into runs that are
/// together there. Each run has 2^n pages, and is aligned to that.
fn pieces(swap: &Swap, out: &[(u64, u64)]) -> Vec<OutRun> {
    let in_file = |(page, slot): &(u64, u64)| match swap.seems(*slot) {
        Some(Source::File(spot)) => Some((*page, *slot, spot)),
        _ => None,
    };
    let mut rest: &[(u64, u64, Spot)] = &out.iter().filter_map(in_file).collect::<Vec<_>>();
    let mut runs = Vec::new();
    while let Some(&(first, ..)) = rest.first() {
        let together = |order: &u8| {
            let run = rest.get(..1 << order);
            let next_to = |two: &[(u64, u64, Spot)]| two[0].0 + 1 == two[1].0 && follow(two[0].2, two[1].2);
            first.is_multiple_of(1 << order) && run.is_some_and(|run| run.windows(2).all(next_to))
        };
        let order = (1..=RUN_ORDER).rev().find(together).unwrap_or(0);
        let (run, others) = rest.split_at(1 << order);
        let slots = run.iter().map(|at| at.1).collect();
        runs.push(OutRun { first, slots, bytes: Bytes::File(run.iter().map(|at| at.2).collect()) });
        rest = others;
    }
    runs
}
