//! How a process takes pages from its run's budget, and gives them back.

use crate::config::{FRAMES_AT_HAND, GROW_AHEAD_SHARE};
use crate::process_tree::{BLOCK, Member};
use crate::swap::Swap;
use elbowroom_machine::Mmu;

/// The parts of one process that the run's budget limits: its member, its arena and its swap.
pub(super) struct RunMemory<'r, M> {
    pub(super) member: &'r Member,
    pub(super) mmu: &'r M,
    pub(super) swap: &'r Swap,
}

impl<M: Mmu> RunMemory<'_, M> {
    /// Whether the run has pages left, and the arena frames without memory to use them for. A guess:
    /// nothing is locked.
    pub fn has_room(&self) -> bool {
        self.member.has_room() && self.mmu.frames() > self.mmu.populated_frames()
    }

    /// With fewer free frames than this, the arena grows ahead of need, if its tuning permits so many.
    pub fn grow_ahead(&self) -> usize {
        self.member.room() / GROW_AHEAD_SHARE
    }

    /// Sets how many frames the pool of compressed pages may have: its part of the frames that have memory.
    pub fn fit_pool(&self) {
        self.swap.pool_room.fit(self.mmu.populated_frames() as u64);
    }

    /// Takes up to a block of pages from the run, so that the arena may grow by it; if the run has none,
    /// asks another process for pages.
    pub fn take_block(&self) -> bool {
        // Pages that were taken before, and are not populated yet, come first.
        if self.mmu.can_grow() {
            return true;
        }
        // An arena whose frames all have memory cannot use more pages.
        let most = self.mmu.frames().saturating_sub(self.mmu.populated_frames());
        if most == 0 {
            return false;
        }
        let pages = if self.has_room() { self.member.room().min(BLOCK).min(most) } else { 0 };
        let taken = pages > 0 && self.member.take(pages);
        if taken {
            self.mmu.allowance().add(pages);
        } else {
            self.member.ask();
        }
        taken
    }

    /// Gives at most `most` free frames back to the run, and returns how many. Keeps [`FRAMES_AT_HAND`]:
    /// pages that go out to the pool need frames.
    pub fn give(&self, most: usize) -> usize {
        let spare = self.mmu.frames_at_hand().saturating_sub(FRAMES_AT_HAND);
        let given = self.mmu.allowance().give(most.min(spare));
        self.fit_pool();
        self.member.give(given);
        given
    }
}
