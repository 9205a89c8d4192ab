//! Reads what a program has advised to be read (MADV_WILLNEED): piece by piece, so that the handler serves
//! faults in between, and no more than there is room for.

use super::Faults;
use super::Handler;
use crate::group::{GroupId, limit_of};
use crate::object::FileObject;
use crate::platform::Platform;
use elbowroom_machine::Mmu;
use elbowroom_sync::Arc;
use std::collections::VecDeque;
use std::ops::Range;

/// Page ranges of files that are still to be read ahead.
#[derive(Default)]
pub(super) struct Ahead(VecDeque<(Arc<FileObject>, Range<u64>)>);

impl Ahead {
    pub(super) fn add(&mut self, object: Arc<FileObject>, pages: Range<u64>) {
        self.0.push_back((object, pages));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<P: Platform> Handler<'_, P> {
    /// Starts reading the next piece. If frames run out, the rest of the piece is not read: it is only
    /// advice.
    pub(super) fn read_ahead(&mut self) {
        let Some((object, pages)) = self.ahead.0.pop_front() else { return };
        let piece = pages.start
            ..pages.end.min(pages.start + self.core.tuning().ahead_piece_pages).min(object.size_pages());
        if piece.is_empty() {
            return;
        }
        let cap = self.core.read_cap(object.group.get());
        self.pass().prefetch(&object, piece.clone(), cap);
        if piece.end < pages.end {
            self.ahead.0.push_front((object, piece.end..pages.end));
        }
    }
}

impl<P: Platform> Faults<P> {
    /// How many pages of a group's file may be read ahead now: as many as there are free frames and pages
    /// that were not touched for some time, but at most half of the arena, and of what the group may have.
    pub(crate) fn room_for_advice(&self, group: GroupId) -> u64 {
        let free = self.mmu.frames().saturating_sub(self.mmu.populated_frames()) + self.mmu.frames_at_hand();
        let (most, _) = limit_of(&self.groups, group, self.mmu.frames() as u64);
        ((free + self.idle_pages()) as u64).min(most / 2)
    }
}
