//! The frames of the pool that no block has: they come from the arena in runs, and go back in runs.
//!
//! Compressed pages do not move. If their frames lay one by one between those of folios, the arena would
//! soon have no free run of frames, whatever else goes out. So frames are told apart by the chunk of the
//! arena that they are in, frames of chunks that have few free are used first, and a chunk goes back when
//! all of it is free. Linux: `MIGRATE_UNMOVABLE` page blocks.

use crate::config::RUN_ORDER;
use crate::group::Frames;
use elbowroom_machine::PAGE_SHIFT;
use std::collections::{BTreeMap, BTreeSet};

/// Free frames of one page each, by chunk. Plain data.
#[derive(Default)]
pub struct Chunks {
    chunks: BTreeMap<usize, Chunk>,
    /// How many frames are free in each chunk that has any, and its number.
    by_free: BTreeSet<(usize, usize)>,
    free: usize,
}

/// 2^[`RUN_ORDER`] frames of the arena, naturally aligned, or as many of them as the pool has.
#[derive(Default)]
struct Chunk {
    has: usize,
    free: Vec<Frames>,
}

fn chunk_of(frame: &Frames) -> usize {
    frame.home_ptr() as usize >> (PAGE_SHIFT + u32::from(RUN_ORDER))
}

impl Chunks {
    /// How many frames are free.
    pub fn free_frames(&self) -> usize {
        self.free
    }

    /// Adds frames of the arena to the free ones.
    pub fn add(&mut self, frames: impl IntoIterator<Item = Frames>) {
        for frame in frames {
            self.adopt(&frame);
            self.free(frame);
        }
    }

    /// Notes that a frame of the arena's is the pool's, and in use.
    pub fn adopt(&mut self, frame: &Frames) {
        self.chunks.entry(chunk_of(frame)).or_default().has += 1;
    }

    /// Undoes [`Chunks::adopt`] for a frame that is in use: it is the arena's again.
    pub fn disown(&mut self, frame: &Frames) {
        let number = chunk_of(frame);
        let chunk = self.chunks.get_mut(&number).expect("the pool has the frame");
        chunk.has -= 1;
        if chunk.has == 0 {
            self.chunks.remove(&number);
        }
    }

    /// Takes a free frame.
    pub fn take(&mut self) -> Option<Frames> {
        let (_, number) = *self.by_free.first()?;
        self.change(number, |chunk| chunk.free.pop())
    }

    /// Puts a frame back that was taken or adopted. If its whole chunk is free then, and `keep` frames stay
    /// free without it, returns the frames of the chunk, for the arena.
    ///
    /// # Panics
    /// If the frame is not the pool's.
    pub fn put_back(&mut self, frame: Frames, keep: usize) -> Vec<Frames> {
        let number = chunk_of(&frame);
        self.free(frame);
        let chunk = &self.chunks[&number];
        if chunk.free.len() < chunk.has || self.free < keep + chunk.has {
            return Vec::new();
        }
        self.by_free.remove(&(chunk.has, number));
        self.free -= chunk.has;
        self.chunks.remove(&number).map_or(Vec::new(), |chunk| chunk.free)
    }

    fn free(&mut self, frame: Frames) {
        self.change(chunk_of(&frame), |chunk| {
            assert!(chunk.free.len() < chunk.has, "the pool has the frame");
            chunk.free.push(frame);
        });
    }

    /// Takes all that are free: the manager ends.
    pub fn take_all(&mut self) -> Vec<Frames> {
        let chunks = std::mem::take(self).chunks;
        chunks.into_values().flat_map(|chunk| chunk.free).collect()
    }

    fn change<R>(&mut self, number: usize, change: impl FnOnce(&mut Chunk) -> R) -> R {
        let chunk = self.chunks.get_mut(&number).expect("the pool has frames of the chunk");
        let before = chunk.free.len();
        let result = change(chunk);
        let after = chunk.free.len();
        self.by_free.remove(&(before, number));
        if after > 0 {
            self.by_free.insert((after, number));
        }
        self.free = self.free - before + after;
        result
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::group::{DirtyLimits, GroupId, Groups};
    use elbowroom_machine::soft::{SoftConfig, SoftMmu};
    use elbowroom_sync::LockStats;

    const RUN: usize = 1 << RUN_ORDER;

    #[test]
    fn a_chunk_goes_back_when_all_of_it_is_free_and_enough_is_left() {
        let mmu = SoftMmu::new(SoftConfig::new(1024), &LockStats::new()).unwrap();
        while mmu.grow().unwrap() {}
        let groups = Groups::new(DirtyLimits::NONE, 0, &LockStats::new());
        let run = |order| groups.alloc(&mmu, GroupId::ROOT, order).unwrap();
        let mut chunks = Chunks::default();
        chunks.add(run(RUN_ORDER).split(0));
        chunks.add(run(RUN_ORDER).split(0));
        // A frame whose neighbours are not the pool's.
        let lonely = run(0);
        chunks.adopt(&lonely);
        assert!(chunks.put_back(lonely, 2 * RUN + 1).is_empty());
        assert_eq!(chunks.free_frames(), 2 * RUN + 1);
        // What has few free comes first, so one chunk stays whole.
        let mut taken: Vec<_> = (0..RUN + 1).map_while(|_| chunks.take()).collect();
        assert_eq!((taken.len(), chunks.free_frames()), (RUN + 1, RUN));
        // The lonely one was taken first, and is given back at once if nothing must be kept.
        let lonely = chunks.put_back(taken.remove(0), 0);
        assert_eq!((lonely.len(), chunks.free_frames()), (1, RUN));
        let mut last = taken.pop().unwrap();
        taken.into_iter().for_each(|frame| assert!(chunks.put_back(frame, 0).is_empty()));
        // Given to the arena and back again while it was in use.
        chunks.disown(&last);
        chunks.adopt(&last);
        last.clear();
        let whole = chunks.put_back(last, RUN);
        assert_eq!((whole.len(), chunks.free_frames()), (RUN, RUN));
        let rest = chunks.take_all();
        assert_eq!((rest.len(), chunks.take().is_none()), (RUN, true));
        lonely.into_iter().chain(whole).chain(rest).for_each(|frame| groups.free(&mmu, frame));
        assert_eq!(groups.with_charges(), None);
        let huge = groups.alloc(&mmu, GroupId::ROOT, 9).ok();
        groups.free(&mmu, huge.expect("all is whole again"));
    }
}
