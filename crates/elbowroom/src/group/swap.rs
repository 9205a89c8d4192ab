//! How much of each group is in swap, and whether more may go there. Linux: `__mem_cgroup_try_charge_swap`,
//! `swap_cgroup`.
//!
//! A page that goes out is charged to the group that pays for it and to all groups above it, the root
//! included; there are no stocks, so each number is exact. The page's slot has the group
//! ([`SwapGroup`]), and the thread that frees the slot takes the charge back.
//!
//! Memory and swap together are limited, too. A page that goes out, or comes in, counts in both for a
//! moment: in swap before its frame is free, and in memory before its slot is. So the limit is looked at
//! only where memory is charged that is not for a page from swap ([`Purpose`]).
//!
//! Synchronization: atomics, as for memory (`charge`). A place is not given to another group while its swap
//! is above 0.

#[cfg(all(test, not(shuttle)))]
mod tests;

use super::GroupId;
use super::limits::UNLIMITED;
use super::stat::GroupEvent;
use super::tree::{Group, State, Tree};
use elbowroom_sync::Mutant;
use elbowroom_sync::atomic::{AtomicU64, Ordering};

/// In tests of the tests: a page that goes out is charged twice.
const MUTANT_CHARGE_SWAP_TWICE: Mutant = Mutant::new("charge_swap_twice");

/// In tests of the tests: the swap of any group is given back to the root.
const MUTANT_FREE_SWAP_TO_ROOT: Mutant = Mutant::new("free_swap_to_root");

/// What frames are for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Purpose {
    /// Memory that was nowhere before, or is in a file.
    #[default]
    New,
    /// Pages that come in from swap. They leave swap as soon as they have frames, so the sum of memory and
    /// swap stays the same: it is not looked at whether that is within its limit.
    SwapIn,
}

/// The group for which frames are allocated, and the purpose of the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payer {
    /// The group.
    pub group: GroupId,
    /// What the frames are for.
    pub purpose: Purpose,
}

impl From<GroupId> for Payer {
    fn from(group: GroupId) -> Self {
        Self { group, purpose: Purpose::New }
    }
}

impl Payer {
    /// Frames of a group for pages that come in from swap.
    pub fn swap_in(group: GroupId) -> Self {
        Self { group, purpose: Purpose::SwapIn }
    }
}

/// The group to which a slot of the swap area is charged, by its index in the table of groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the charge is kept with a slot, or taken back"]
pub struct SwapGroup(u16);

impl SwapGroup {
    /// The group of a slot that no space has: a folio keeps it.
    pub const NONE: Self = Self(u16::MAX);

    /// The index of the group in the table of groups.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// How many pages of a group are in swap.
#[derive(Default)]
pub(super) struct SwapUse {
    /// Pages of the group and of the groups below it.
    pages: AtomicU64,
    /// The most that `pages` has been.
    peak: AtomicU64,
}

impl SwapUse {
    /// Pages in swap, those of the groups below included.
    pub(super) fn pages(&self) -> u64 {
        self.pages.load(Ordering::SeqCst)
    }

    /// The most pages that were in swap at a time. Linux: `memory.swap.peak`.
    pub(super) fn peak_pages(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// The place gets another group.
    pub(super) fn forget_peak(&self) {
        self.peak.store(0, Ordering::Relaxed);
    }

    /// Adds pages, if the sum is at most `most`.
    fn take(&self, pages: u64, most: u64) -> bool {
        let more = |used: u64| used.checked_add(pages).filter(|used| *used <= most);
        self.pages.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    fn note_peak(&self) {
        let pages = self.pages();
        if pages > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(pages, Ordering::Relaxed);
        }
    }

    fn give(&self, pages: u64) {
        let before = self.pages.fetch_sub(pages, Ordering::SeqCst);
        debug_assert!(before >= pages, "{pages} pages leave swap of {before} that are there");
    }
}

impl Group {
    /// How many pages the group has in memory and swap beyond its limit for both. Pages that go out or come
    /// in just now count twice.
    pub(super) fn beyond_memory_swap(&self) -> u64 {
        match self.limits.memory_swap_max() {
            UNLIMITED => 0,
            most => {
                // A page that goes out is added to swap first, one that comes in to the use. So it is missing
                // in neither number if swap is looked at before and after.
                let before = self.swap.pages();
                let used = self.usage.pages();
                (used + before.max(self.swap.pages())).saturating_sub(most)
            }
        }
    }
}

impl Tree {
    /// Charges pages that go to swap to the group that pays for `group` ([`Tree::paying`]) and all groups
    /// above it. `Err`: the group whose `swap_max` does not permit that; the refusal is counted there.
    pub fn charge_swap(&self, group: GroupId, pages: u64) -> Result<SwapGroup, GroupId> {
        let root = GroupId::ROOT.index();
        loop {
            let index = self.payer(group);
            let (payer, place) = (self.at(index), self.at(index).place());
            let refused = |above: usize| {
                self.at(above).counters.add(GroupEvent::SwapMax, 1);
                Err(self.id(above))
            };
            if !payer.swap.take(pages, payer.limits.swap_max()) {
                return refused(index);
            }
            // From here on the place stays the group's, and so do the places of the groups above.
            if index != root && (payer.place() != place || place.state != State::Live) {
                payer.swap.give(pages);
                continue;
            }
            // The root's lineage is empty, and it has been charged.
            let above = || self.lineage(index).chain([root]).skip(1);
            let full = above().find(|above| {
                let group = self.at(*above);
                !group.swap.take(pages, group.limits.swap_max())
            });
            if let Some(full) = full {
                above().take_while(|above| *above != full).for_each(|above| self.at(above).swap.give(pages));
                payer.swap.give(pages);
                return refused(full);
            }
            if MUTANT_CHARGE_SWAP_TWICE.planted() {
                self.at(root).swap.take(pages, u64::MAX);
            }
            payer.swap.note_peak();
            above().for_each(|above| self.at(above).swap.note_peak());
            return Ok(SwapGroup(index as u16));
        }
    }

    /// Takes back the charge of pages that are not in swap any more, or could not go there.
    pub fn uncharge_swap(&self, group: SwapGroup, pages: u64) {
        let index = if MUTANT_FREE_SWAP_TO_ROOT.planted() { 0 } else { group.index() };
        debug_assert!(group != SwapGroup::NONE, "a slot that a folio keeps is not charged");
        // The parent of each group is read before its pages leave: then the place may get another group.
        self.lineage(index).for_each(|above| self.at(above).swap.give(pages));
        self.at(GroupId::ROOT.index()).swap.give(pages);
    }

    /// The nearest group, from the one that pays for `group` on upwards, whose swap is at its `swap_max`.
    /// `None`: pages of `group` may go out.
    pub fn full_swap(&self, group: GroupId) -> Option<GroupId> {
        let is_full = |index: &usize| self.at(*index).swap.pages() >= self.at(*index).limits.swap_max();
        self.lineage(self.payer(group)).find(is_full).map(|index| self.id(index))
    }

    /// Whether no page of a group may go out, since its swap, or that of a group above it, is at its
    /// `swap_max`. If so, that is counted there.
    pub fn refuses_swap(&self, group: GroupId) -> bool {
        let full = self.full_swap(group);
        full.into_iter().for_each(|full| self.at(full.index()).counters.add(GroupEvent::SwapMax, 1));
        full.is_some()
    }

    /// Pages that a group and the groups below it have in swap.
    #[cfg(test)]
    pub fn swap_pages(&self, group: GroupId) -> u64 {
        self.at(group.index()).swap.pages()
    }

    /// How many pages a group has in memory and swap beyond its limit for both.
    pub fn beyond_memory_swap(&self, group: GroupId) -> u64 {
        self.at(group.index()).beyond_memory_swap()
    }

    /// Checks that each group's swap is what the slots of the area are charged for, those of the groups
    /// below included. No thread uses swap meanwhile. `slots`: the groups of all slots in use.
    ///
    /// # Panics
    /// If a number is wrong.
    #[cfg(any(debug_assertions, shuttle))]
    pub fn check_swap(&self, slots: impl Iterator<Item = SwapGroup>) {
        let mut counts = vec![0_u64; self.places().map(|(index, _)| index + 1).max().unwrap_or(1)];
        for slot in slots {
            self.lineage(slot.index()).chain([0]).for_each(|above| counts[above] += 1);
        }
        for (index, _) in self.places() {
            let charged = self.at(index).swap.pages();
            assert_eq!(charged, counts[index], "{}: pages in swap, and slots", self.id(index));
        }
    }
}
