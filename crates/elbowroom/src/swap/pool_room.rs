//! How many frames the pool of compressed pages may have, and should have.

use elbowroom_sync::atomic::{AtomicU64, Ordering};

/// Pages that only pass through the pool to the file may take one part in this many of the arena, and at
/// most [`PASSING`] frames: 2 MiB.
const PASSING_SHARE: u64 = 64;
const PASSING: u64 = 512;

/// Pages in one part in this many of these frames wait for more, so that few are not written alone.
const PASSING_WAITS: u64 = 4;

/// Frames are counted in pages.
pub struct PoolRoom {
    /// Of so many frames of the arena the pool may have `most`.
    frames: u64,
    most: u64,
    /// What it may have of the frames that the arena has now.
    may_have: AtomicU64,
    /// What it should have.
    target: AtomicU64,
    /// What it may have beside that, for pages that only pass through it to the file.
    passing: u64,
}

impl PoolRoom {
    /// Of `frames` frames of the arena the pool may have `most`, and should have `target`.
    pub fn new(frames: u64, most: u64, target: u64) -> Self {
        Self {
            frames,
            most,
            may_have: AtomicU64::new(most),
            target: AtomicU64::new(target),
            passing: (frames / PASSING_SHARE).min(PASSING),
        }
    }

    /// The arena has so many frames now: the process of a run may have few of those that it has addresses
    /// for, and a pool of all of them would leave none for the pages that are used.
    pub fn fit(&self, frames: u64) {
        let part =
            u128::from(self.most) * u128::from(frames.min(self.frames)) / u128::from(self.frames.max(1));
        self.may_have.store(part as u64, Ordering::Relaxed);
    }

    /// What the pool may have.
    pub fn may_have(&self) -> u64 {
        self.may_have.load(Ordering::Relaxed)
    }

    /// What the pool should have from now on.
    pub fn aim(&self, target: u64) {
        self.target.store(target, Ordering::Relaxed);
    }

    /// What the pool should have.
    pub fn target(&self) -> u64 {
        self.target.load(Ordering::Relaxed).min(self.may_have())
    }

    /// What the pool may have with the pages that only pass through it.
    pub fn with_passing(&self) -> u64 {
        self.may_have().min(self.target() + self.passing)
    }

    /// Where the pool has more, pages go on to the file.
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
