//! What the process of a run does with the run's budget.

use crate::config::{FRAMES_AT_HAND, GROW_AHEAD_FRAMES, GROW_AHEAD_SHARE};
use crate::process_tree::{BLOCK, Member};
use crate::swap::Swap;
use elbowroom_machine::Mmu;

/// The memory of one process, of the budget that its run has.
pub(super) struct RunMemory<'r, M> {
    pub(super) member: &'r Member,
    pub(super) mmu: &'r M,
    pub(super) swap: &'r Swap,
}

impl<M: Mmu> RunMemory<'_, M> {
    /// Whether the run has pages left. A guess.
    pub fn has_room(&self) -> bool {
        self.member.has_room() && self.mmu.frames() > self.mmu.populated_frames()
    }

    /// With fewer free frames than this, the arena grows ahead of need.
    pub fn grow_ahead(&self) -> usize {
        GROW_AHEAD_FRAMES.min(self.member.room() / GROW_AHEAD_SHARE)
    }

    /// The pool of compressed pages has its part of the memory that is there.
    pub fn fit_pool(&self) {
        self.swap.pool_room.fit(self.mmu.populated_frames() as u64);
    }

    /// Takes a block, so that the arena may grow by it; if there is none, another process is asked for some.
    pub fn take_block(&self) -> bool {
        // What was taken before and could not be populated.
        if self.mmu.can_grow() {
            return true;
        }
        // Without addresses for more, there is no use for it.
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

    /// Gives free frames back, at most so many, but for a few: pages that go out need frames of the pool.
    /// Tells how many.
    pub fn give(&self, most: usize) -> usize {
        let spare = self.mmu.frames_at_hand().saturating_sub(FRAMES_AT_HAND);
        let given = self.mmu.allowance().give(most.min(spare));
        self.fit_pool();
        self.member.give(given);
        given
    }
}
