//! How many frames the pool of compressed pages may have, and should have.

use elbowroom_sync::atomic::{AtomicU64, Ordering};

/// Frames for pages that only pass through the pool to the swap file: one part in this many of the arena's
/// frames, and at most [`PASSING`]: 2 MiB.
const PASSING_SHARE: u64 = 64;
const PASSING: u64 = 512;

/// The pool passes pages on to the file once they fill one part in this many of these frames: below that
/// they wait for more, so that writes are not of few pages.
const PASSING_WAITS: u64 = 4;

/// The pool's share of the arena. All numbers are frames.
pub struct PoolRoom {
    /// The frames of the whole arena; of these the pool may have `most`.
    frames: u64,
    most: u64,
    /// How many frames the pool may have now: `most` in proportion to the frames that have memory.
    may_have: AtomicU64,
    /// How many frames the pool should have.
    target: AtomicU64,
    /// How many frames it may have beyond `target`, for pages that only pass through it to the file.
    passing: u64,
}

impl PoolRoom {
    /// An arena of `frames` frames, of which the pool may have `most` and should have `target`.
    pub fn new(frames: u64, most: u64, target: u64) -> Self {
        Self {
            frames,
            most,
            may_have: AtomicU64::new(most),
            target: AtomicU64::new(target),
            passing: (frames / PASSING_SHARE).min(PASSING),
        }
    }

    /// Sets how many frames of the arena have memory. In a run the process has addresses for more frames
    /// than it may get; a pool sized by all of them would leave none for the pages in use.
    pub fn fit(&self, frames: u64) {
        let part =
            u128::from(self.most) * u128::from(frames.min(self.frames)) / u128::from(self.frames.max(1));
        self.may_have.store(part as u64, Ordering::Relaxed);
    }

    /// How many frames the pool may have now.
    pub fn may_have(&self) -> u64 {
        self.may_have.load(Ordering::Relaxed)
    }

    /// Sets how many frames the pool should have from now on.
    pub fn aim(&self, target: u64) {
        self.target.store(target, Ordering::Relaxed);
    }

    /// How many frames the pool should have: no more than it may have.
    pub fn target(&self) -> u64 {
        self.target.load(Ordering::Relaxed).min(self.may_have())
    }

    /// How many frames the pool may have, those of pages that only pass through it included.
    pub fn with_passing(&self) -> u64 {
        self.may_have().min(self.target() + self.passing)
    }

    /// With more frames than this, the pool passes pages on to the file.
    pub fn passes_on_at(&self) -> u64 {
        self.target() + self.passing / PASSING_WAITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_has_its_part_of_the_frames_that_are_there() {
        let room = PoolRoom::new(1000, 400, 300);
        assert_eq!((room.may_have(), room.target(), room.with_passing()), (400, 300, 315));
        room.fit(500);
        assert_eq!((room.may_have(), room.target(), room.with_passing()), (200, 200, 200));
        room.aim(50);
        assert_eq!((room.target(), room.with_passing(), room.passes_on_at()), (50, 65, 53));
        room.fit(5000);
        assert_eq!(room.may_have(), 400);
        PoolRoom::new(0, 0, 0).fit(7);
    }
}
