//! The parts of an arena that grow side by side: plain data, no memory is touched.
//!
//! A lane is a range of frames that grows from its start, by one thread at a time. Threads that populate
//! blocks of different lanes do not wait for each other: memory that was not populated yet lies between, so
//! no VMA of the kernel's is a neighbour of both. Only the last block of a lane is next to the first of the
//! next lane: there they may wait, once for each lane.

use std::ops::Range;

/// The fewest blocks of a lane: fewer would be populated before a second thread could help.
const LANE_BLOCKS: usize = 16;

/// The most lanes. Chosen, not measured: beyond some number, threads wait for the kernel's locks of free
/// memory.
const MOST_LANES: usize = 4;

/// A range of frames that grows from its start.
#[derive(Debug)]
struct Lane {
    start: usize,
    /// Frames below this one are populated or being populated.
    claimed: usize,
    /// No frame from this one on is ever populated.
    limit: usize,
    /// Whether a thread populates a block of it.
    growing: bool,
}

impl Lane {
    fn ungrown(&self) -> usize {
        self.limit - self.claimed
    }
}

/// What a thread that wants to populate a block does.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The thread populates these frames, and calls [`Lanes::end`] then.
    Block(Range<usize>),
    /// Other threads are populating a block in each lane that has frames left: the thread waits for one of
    /// them.
    Busy,
    /// Nothing is left to be populated.
    Nothing,
}

/// All lanes of an arena, in the order of their frames.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    /// Frames of a block.
    block: usize,
}

impl Lanes {
    /// Divides `frames` frames into lanes that grow by `block` frames at a time: one lane a processor, at
    /// most.
    pub(super) fn new(frames: usize, block: usize, processors: usize) -> Self {
        let count = (frames / (LANE_BLOCKS * block)).min(processors).clamp(1, MOST_LANES);
        let length = frames.div_ceil(count).next_multiple_of(block);
        let lane = |nth: usize| {
            let start = frames.min(nth * length);
            Lane { start, claimed: start, limit: frames.min(start + length), growing: false }
        };
        Self { lanes: (0..count).map(lane).collect(), block }
    }

    /// Claims a block of the first lane that no thread is growing and that has frames left to populate; of
    /// the block only its first `most` frames, and then the rest of it as the next one.
    pub(super) fn claim(&mut self, most: usize) -> Claim {
        if most == 0 {
            return Claim::Nothing;
        }
        if let Some(lane) = self.lanes.iter_mut().find(|lane| !lane.growing && lane.ungrown() > 0) {
            let start = lane.claimed;
            let end = (start / self.block + 1) * self.block;
            lane.claimed = end.min(lane.limit).min(start.saturating_add(most));
            lane.growing = true;
            return Claim::Block(start..lane.claimed);
        }
        if self.lanes.iter().any(|lane| lane.growing) { Claim::Busy } else { Claim::Nothing }
    }

    /// Ends the claim of a block: it is populated, or, if not `done`, can be claimed again.
    pub(super) fn end(&mut self, block: &Range<usize>, done: bool) {
        let ours = |lane: &&mut Lane| lane.growing && lane.claimed == block.end && lane.start <= block.start;
        let lane = self.lanes.iter_mut().find(ours).expect("the block was claimed");
        lane.growing = false;
        if !done {
            lane.claimed = block.start;
        }
    }

    /// Frames that are populated or being populated.
    #[cfg(test)]
    fn claimed(&self) -> usize {
        self.ranges().map(|range| range.len()).sum()
    }

    /// Frames that can be populated still.
    pub(super) fn ungrown(&self) -> usize {
        self.lanes.iter().map(Lane::ungrown).sum()
    }

    /// The ranges of frames that are populated or being populated, in order.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let claimed = self.lanes.iter().map(|lane| lane.start..lane.claimed);
        claimed.filter(|range| !range.is_empty())
    }

    /// Gives up at most so many frames that were not populated, for good: the last ones. Tells how many.
    pub(super) fn withhold(&mut self, most: usize) -> usize {
        let mut left = most;
        for lane in self.lanes.iter_mut().rev() {
            let given = lane.ungrown().min(left);
            lane.limit -= given;
            left -= given;
        }
        most - left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 512;

    /// All that can be claimed, one block after the other.
    fn claim_all(lanes: &mut Lanes) -> Vec<Range<usize>> {
        let mut all = Vec::new();
        loop {
            match lanes.claim(usize::MAX) {
                Claim::Block(block) => {
                    lanes.end(&block, true);
                    all.push(block);
                }
                Claim::Busy => panic!("no thread is in a lane"),
                Claim::Nothing => return all,
            }
        }
    }

    /// Each frame is claimed once, whatever the size is, and in blocks that begin at multiples of their size.
    #[test]
    fn all_frames_are_claimed_once() {
        for frames in [1, 511, 512, 513, 16 * BLOCK, 32 * BLOCK - 1, 32 * BLOCK, 65 * BLOCK + 3, 307_199] {
            for processors in [1, 2, 3, 64] {
                let mut lanes = Lanes::new(frames, BLOCK, processors);
                assert_eq!((lanes.ungrown(), lanes.claimed()), (frames, 0));
                let mut all = claim_all(&mut lanes);
                all.sort_by_key(|block| block.start);
                assert!(all.iter().all(|block| block.start % BLOCK == 0 && block.len() <= BLOCK));
                let mut next = 0;
                for block in &all {
                    assert_eq!(block.start, next);
                    next = block.end;
                }
                assert_eq!((next, lanes.ungrown(), lanes.claimed()), (frames, 0, frames));
            }
        }
    }

    #[test]
    fn threads_get_blocks_that_are_no_neighbours() {
        let mut lanes = Lanes::new(64 * BLOCK, BLOCK, 2);
        let (Claim::Block(one), Claim::Block(two)) = (lanes.claim(usize::MAX), lanes.claim(usize::MAX))
        else {
            panic!()
        };
        assert_eq!((one.clone(), two.clone()), (0..BLOCK, 32 * BLOCK..33 * BLOCK));
        assert_eq!(lanes.claim(usize::MAX), Claim::Busy);
        // What could not be populated is claimed again.
        lanes.end(&two, false);
        assert_eq!(lanes.claim(usize::MAX), Claim::Block(two.clone()));
        lanes.end(&one, true);
        assert_eq!(lanes.claim(usize::MAX), Claim::Block(BLOCK..2 * BLOCK));
        lanes.end(&two, true);
        assert_eq!(lanes.ranges().collect::<Vec<_>>(), [0..2 * BLOCK, two]);
    }

    /// A small arena is populated by one thread, as is one of a machine with one processor.
    #[test]
    fn small_arenas_have_one_lane() {
        for (blocks, processors) in [(31, 8), (1000, 1)] {
            let mut lanes = Lanes::new(blocks * BLOCK, BLOCK, processors);
            assert!(matches!(lanes.claim(usize::MAX), Claim::Block(_)));
            assert_eq!(lanes.claim(usize::MAX), Claim::Busy);
        }
    }

    #[test]
    fn a_part_of_a_block_is_claimed_and_then_its_rest() {
        let mut lanes = Lanes::new(4 * BLOCK, BLOCK, 1);
        let mut claim = |most| match lanes.claim(most) {
            Claim::Block(block) => {
                lanes.end(&block, true);
                block
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(
            [claim(BLOCK), claim(100), claim(BLOCK)],
            [0..BLOCK, BLOCK..BLOCK + 100, BLOCK + 100..2 * BLOCK]
        );
        assert_eq!(lanes.claim(0), Claim::Nothing);
    }

    #[test]
    fn what_is_given_up_is_never_claimed() {
        let mut lanes = Lanes::new(64 * BLOCK, BLOCK, 2);
        let (Claim::Block(one), Claim::Block(two)) = (lanes.claim(usize::MAX), lanes.claim(usize::MAX))
        else {
            panic!()
        };
        // More than the second lane has.
        assert_eq!(lanes.withhold(40 * BLOCK), 40 * BLOCK);
        assert_eq!(lanes.ungrown(), 22 * BLOCK);
        [one, two].iter().for_each(|block| lanes.end(block, true));
        assert_eq!(claim_all(&mut lanes).len(), 22);
        assert_eq!((lanes.withhold(1), lanes.claimed()), (0, 24 * BLOCK));
    }
}
