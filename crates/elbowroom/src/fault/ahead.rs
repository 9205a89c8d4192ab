//! Reads what no thread waits for: the rest of chunks of which a thread has come to the first page, and what
//! a program has advised to be read (MADV_WILLNEED). Piece by piece, so that the handler serves faults in
//! between, and no more than there is room for.

use super::Faults;
use super::Handler;
use super::io::Parts;
use crate::group::{GroupId, limit_of};
use crate::learned::Chunk;
use crate::object::FileObject;
use crate::platform::Platform;
use elbowroom_machine::Mmu;
use elbowroom_sync::Arc;
use std::collections::VecDeque;
use std::ops::Range;

/// So many chunks wait at most to be read.
const MOST_CHUNKS: usize = 64;

/// Page ranges of files that are still to be read.
#[derive(Default)]
pub(super) struct Ahead {
    chunks: VecDeque<(Arc<FileObject>, Chunk)>,
    advised: VecDeque<(Arc<FileObject>, Range<u64>)>,
}

impl Ahead {
    /// Adds what is left of a chunk, unless it is there already.
    pub(super) fn chunk(&mut self, object: Arc<FileObject>, chunk: Chunk) {
        let first = chunk.pages.start;
        let has =
            |(of, has): &(Arc<FileObject>, Chunk)| Arc::ptr_eq(of, &object) && has.pages.contains(&first);
        if chunk.pages.is_empty() || self.chunks.iter().any(has) {
            return;
        }
        if self.chunks.len() >= MOST_CHUNKS {
            // Threads that come to it read it themselves.
            self.chunks.pop_front();
        }
        self.chunks.push_back((object, chunk));
    }

    /// Adds pages of which a program has said that it will need them.
    pub(super) fn advised(&mut self, object: Arc<FileObject>, pages: Range<u64>) {
        self.advised.push_back((object, pages));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.advised.is_empty()
    }
}

impl<P: Platform> Handler<'_, P> {
    /// Starts reading the next piece. If frames run out, the rest of the piece is not read: no thread waits
    /// for it.
    pub(super) fn read_ahead(&mut self) {
        if !self.io.has_to_read(self.core.mmu.frames()) {
            return;
        }
        if let Some((object, chunk)) = self.io.ahead.chunks.pop_front() {
            return self.read_chunk(object, chunk);
        }
        let Some((object, pages)) = self.io.ahead.advised.pop_front() else { return };
        let piece = pages.start
            ..pages.end.min(pages.start + self.core.tuning().ahead_piece_pages).min(object.size_pages());
        if piece.is_empty() {
            return;
        }
        let cap = self.core.read_cap(object.group.get());
        self.pass().prefetch(&object, piece.clone(), &Parts::UpTo(cap));
        if piece.end < pages.end {
            self.io.ahead.advised.push_front((object, piece.end..pages.end));
        }
    }

    /// Starts reading the next piece of a chunk. Pieces of several chunks come in turn.
    fn read_chunk(&mut self, object: Arc<FileObject>, chunk: Chunk) {
        if !object.is_mapped() {
            return;
        }
        let Range { start, end } = chunk.pages;
        let piece = start..end.min(start + self.core.tuning().ahead_piece_pages);
        self.pass().prefetch(&object, piece.clone(), &Parts::Of(&chunk));
        if piece.end < end {
            self.io.ahead.chunks.push_back((object, chunk.from(piece.end)));
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
