//! Huge folios of private anonymous memory: made by a fault where a whole one fits, split where only a part
//! of one is needed, and collapsed from small folios.
//!
//! Linux: `do_huge_pmd_anonymous_page`, `split_huge_page`, `collapse_huge_page`. A huge folio belongs to
//! one space: fork shares pages one by one. Splitting moves no byte and unmaps nothing. Collapsing copies
//! the bytes while it holds the locks of all the small folios, so that a thread that wants one of them
//! waits, and then finds the huge folio.

use super::Faults;
use super::Pass;
use super::outcome::Outcome;
use crate::config::COLLAPSE_LOOKS;
use crate::group::{Frames, GroupId};
use crate::page::{AnonPages, HUGE_ORDER, HUGE_PAGES, LockedFolio, Parked};
use crate::platform::Platform;
use crate::stats::Event;
use crate::vma::{Mm, VmaGuard};
use elbowroom_machine::{Mmu, PAGE_SHIFT};
use std::ops::Range;

/// A huge folio is made only while one part in this many of the arena is free: half.
const HALF: usize = 2;

/// The same, where huge folios that turn out to be unused can be swapped out: a sixteenth stays free for
/// single pages.
const LEFT_FREE: usize = 16;

impl<P: Platform> Pass<'_, P> {
    /// Serves a fault on untouched memory by a huge folio, if its 2 MiB lie in the mapping, the space has
    /// no page there yet, and memory is plenty.
    pub(super) fn huge_zero_page(
        &mut self,
        mm: &Mm,
        vma: &VmaGuard<'_>,
        page: u64,
        fault: &Parked,
    ) -> Option<Outcome> {
        let core = self.core;
        let first = page >> HUGE_ORDER << HUGE_ORDER;
        let block = first..first + HUGE_PAGES;
        let mapped = (vma.range.start >> PAGE_SHIFT) as u64..(vma.range.end >> PAGE_SHIFT) as u64;
        let fits = mapped.start <= block.start && block.end <= mapped.end;
        // Unused parts of a huge folio can be swapped out if there are slots for the whole arena. They are
        // zeros, which take a slot each, but no room for bytes.
        let can_go = core.swap.free_slots() >= core.mmu.frames() as u64;
        let roomy = core.has_free(if can_go { LEFT_FREE } else { HALF });
        if !(fits && core.config.ablation.huge_folios && roomy && mm.anon.seems_empty(block)) {
            return None;
        }
        let mut extent = match self.take_run(vma.spec.group, HUGE_ORDER) {
            Ok(extent) => extent?,
            Err(step) => return Some(step),
        };
        extent.clear();
        let folio = core.anon_folio(first, extent, self.ready);
        core.counters.add(Event::HugeFaults, 1);
        Some(self.own(mm, vma, folio, fault))
    }
}

impl<P: Platform> Faults<P> {
    /// The folio that a space has at a page, locked. A folio that reaches out of the pages `within` is
    /// split first. Waits for the lock. Not for handlers.
    pub(crate) fn lock_own_within(&self, mm: &Mm, page: u64, within: &Range<u64>) -> Option<LockedFolio<'_>> {
        self.lock_own_if(mm, page, |own| within.start <= own.start && own.end <= within.end)
    }

    /// The folio that a space has at a page, locked. A folio of several pages is split into single pages
    /// unless `whole` accepts the range of its pages. Waits for the lock. Not for handlers.
    pub(crate) fn lock_own_if(
        &self,
        mm: &Mm,
        page: u64,
        whole: impl Fn(Range<u64>) -> bool,
    ) -> Option<LockedFolio<'_>> {
        loop {
            let folio = self.lock_own(mm, page)?;
            let first = AnonPages::first_of(&folio, page);
            if folio.order == 0 || whole(first..first + folio.pages()) {
                return Some(folio);
            }
            self.split_own(mm, first, 0, folio);
        }
    }

    /// Splits the folios that reach over the start or the end of a range of pages.
    pub(crate) fn split_ends(&self, mm: &Mm, pages: &Range<u64>) {
        if mm.anon.is_empty() {
            return;
        }
        for page in [pages.start, pages.end - 1] {
            drop(self.lock_own_within(mm, page, pages));
        }
    }

    /// Collapses blocks of 2 MiB that are full of small folios into huge folios, a few at a time. Linux:
    /// `khugepaged`.
    pub(crate) fn collapse_some(&self) {
        let mut left = self.tuning().collapses_at_once;
        for mm in self.spaces.all() {
            if !self.config.ablation.huge_folios || mm.anon.is_empty() {
                continue;
            }
            for first in mm.blocks_to_collapse(COLLAPSE_LOOKS) {
                if left == 0 || !self.has_free(HALF) {
                    return;
                }
                left -= usize::from(self.collapse(&mm, first));
            }
        }
    }

    /// Makes one huge folio of the small folios from page `first` on, if all of them are in memory, none is
    /// locked or pinned, and no other space has one of them.
    fn collapse(&self, mm: &Mm, first: u64) -> bool {
        let small: Vec<_> = mm.anon.in_range(first..first + HUGE_PAGES).map(|own| own.1).collect();
        let pages: u64 = small.iter().map(|folio| folio.pages()).sum();
        if pages != HUGE_PAGES || small.len() == 1 {
            return false;
        }
        let all = small.len();
        let lock = |folio| LockedFolio::try_lock(folio, &self.waits, self.handlers()).ok();
        let mut locked: Vec<_> = small.into_iter().map_while(lock).collect();
        let usable = locked.len() == all && self.can_collapse(mm, first, &mut locked);
        let group = locked.first().map_or(GroupId::ROOT, |folio| folio.group);
        let huge = usable.then(|| self.alloc(group, HUGE_ORDER).ok()).flatten();
        huge.is_some_and(|extent| self.collapse_into(mm, first, locked, extent))
    }

    fn can_collapse(&self, mm: &Mm, first: u64, small: &mut [LockedFolio<'_>]) -> bool {
        let mut page = first;
        small.iter_mut().all(|folio| {
            let at = page;
            page += folio.pages();
            mm.anon.has(at, folio.arc())
                && folio.body().spaces() == 1
                && self.mmu.unmap(folio.body_mut().extent()).is_ok()
        })
    }

    /// Copies the locked small folios, which are home, into the extent.
    fn collapse_into(
        &self,
        mm: &Mm,
        first: u64,
        mut small: Vec<LockedFolio<'_>>,
        mut extent: Frames,
    ) -> bool {
        let mut to = extent.bytes_mut();
        for folio in &mut small {
            let own = folio.body_mut().extent();
            let (here, rest) = to.split_at_mut(own.len_bytes());
            here.copy_from_slice(own.bytes());
            to = rest;
        }
        let huge = self.anon_folio(first, extent, self.handlers());
        let folios: Vec<_> = small.iter().map(|folio| folio.arc().clone()).collect();
        let collapsed = mm.anon.collapse(first, &folios, huge.arc());
        if collapsed {
            small.into_iter().for_each(|folio| self.free_own(folio));
            self.list_own(huge.into_folio());
            self.counters.add(Event::HugeCollapses, 1);
        } else {
            self.free_folio(huge);
        }
        collapsed
    }
}
