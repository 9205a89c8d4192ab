//! Which process gives pages when the tree is full. Plain data in, a choice out.

/// Pages that a process keeps whatever others want, so that it can serve faults: 4 MiB.
pub(crate) const KEPT: usize = 1024;

/// The fewest pages that move from process to process at a time: 2 MiB.
pub(crate) const BLOCK: usize = 512;

/// The most pages that a process asks for at a time: 8 MiB.
const ASK_PAGES: usize = 4 * BLOCK;

/// A process does not take fewer pages than this from the tree, since that is not worth it: 256 KiB.
pub(super) const LEAST: usize = 64;

/// The figures of a process by which [`giver`] and [`part_of`] choose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Pages that the process has.
    pub has: usize,
    /// Pages that the process keeps whatever others want.
    pub keeps: usize,
    /// Pages that are protected: other processes get none of them.
    pub low: usize,
    /// Recent refaults and swap-ins per second, for each 1,024 pages that the process has.
    pub cost: u64,
    /// The process was asked for pages, and did not give them in time.
    pub is_silent: bool,
}

impl Share {
    /// Pages that the process can give to others.
    pub fn spare(&self) -> usize {
        self.has.saturating_sub(self.low.max(self.keeps))
    }
}

/// The process that is to give pages to the process with `own`, by its index in `others`, and how many.
/// `None`: `own` reclaims its own pages.
///
/// The cost of a process, the rate at which its pages come back, is what its next page is worth: the
/// cheapest process gives. Among processes of about the same cost, one with more pages gives half of the
/// difference, so that processes with the same load come to have the same; if it gave more, pages would go
/// to and fro.
pub(super) fn giver(own: &Share, others: &[Share]) -> Option<(usize, usize)> {
    let is_poor = own.has < own.keeps.max(own.low);
    let gives = |share: &Share| {
        let spare = share.spare();
        if spare < BLOCK || share.is_silent {
            None
        } else if is_poor || share.cost * 2 < own.cost {
            Some(ASK_PAGES.min(spare))
        } else {
            let more = spare.saturating_sub(own.spare());
            (share.cost <= own.cost && more > BLOCK).then(|| ASK_PAGES.min((more / 2).max(BLOCK)))
        }
    };
    let givers = others.iter().enumerate().filter_map(|(at, share)| Some((at, share, gives(share)?)));
    let least = givers.min_by_key(|(_, share, _)| (share.cost, std::cmp::Reverse(share.spare())));
    least.map(|(at, _, pages)| (at, pages))
}

/// How many pages a process has to give when all processes have `over` pages more than they may: a part of
/// `over` in proportion to what each can give. `spare`: what all can give together.
pub(super) fn part_of(over: usize, own: &Share, spare: usize) -> usize {
    match own.spare() {
        0 => 0,
        own => (over * own).div_ceil(spare.max(1)).min(own),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(has: usize, cost: u64) -> Share {
        Share { has, cost, keeps: KEPT, ..Share::default() }
    }

    #[test]
    fn the_cheapest_pages_are_given() {
        let (idle, busy) = (share(10_000, 0), share(50_000, 800));
        let giver = |own: &Share, others: &[Share]| super::giver(own, others).map(|(at, _)| at);
        assert_eq!(giver(&share(5_000, 100), &[busy, idle]), Some(1));
        // The pages of the asking process are worth less than those of any other.
        assert_eq!(giver(&share(20_000, 0), &[busy, share(15_000, 0)]), None);
        // About the same cost: the larger process gives, and only to a smaller one.
        assert_eq!(giver(&share(5_000, 100), &[share(20_000, 90)]), Some(0));
        assert_eq!(giver(&share(20_000, 100), &[share(5_000, 90)]), None);
        assert_eq!(giver(&share(20_000, 100), &[share(5_000, 40)]), Some(0));
        // A small process that is a little cheaper does not hide a large one.
        assert_eq!(giver(&share(5_000, 100), &[share(KEPT + 600, 60), share(100_000, 95)]), Some(1));
    }

    #[test]
    fn nothing_is_asked_of_the_protected_the_silent_and_the_poor() {
        let protected = Share { low: 9_900, ..share(10_000, 0) };
        let silent = Share { is_silent: true, ..share(10_000, 0) };
        let others = [protected, silent, share(KEPT + BLOCK - 1, 0)];
        assert_eq!(giver(&share(0, 0), &others), None);
        let mut others = others.to_vec();
        others.push(share(KEPT + BLOCK, 5_000));
        assert_eq!(giver(&share(0, 0), &others), Some((3, BLOCK)), "a process without memory gets some");
    }

    /// Processes with the same load come to have the same number of pages, and pages do not go round for
    /// ever.
    #[test]
    fn equal_processes_come_to_equal_shares() {
        let mut all = [share(100_000, 50), share(2_000, 50), share(6_000, 50)];
        let mut moves = 0;
        loop {
            let mut moved = false;
            for asks in 0..all.len() {
                let others: Vec<_> = all.iter().copied().enumerate().filter(|(at, _)| *at != asks).collect();
                let shares: Vec<_> = others.iter().map(|(_, share)| *share).collect();
                if let Some((gives, pages)) = giver(&all[asks], &shares) {
                    all[others[gives].0].has -= pages;
                    all[asks].has += pages;
                    (moved, moves) = (true, moves + 1);
                }
            }
            if !moved {
                break;
            }
            assert!(moves < 1_000, "{all:?}");
        }
        let has = all.map(|share| share.has);
        assert!(has.iter().max().unwrap() - has.iter().min().unwrap() <= 3 * BLOCK, "{has:?}");
    }

    #[test]
    fn the_parts_of_all_are_what_is_over() {
        let all = [share(100_000, 0), Share { low: 40_000, ..share(50_000, 0) }, share(KEPT, 0)];
        let spare = all.iter().map(Share::spare).sum();
        let parts = all.map(|share| part_of(20_000, &share, spare));
        assert_eq!(parts[2], 0);
        assert!((20_000..20_003).contains(&parts.iter().sum::<usize>()), "{parts:?}");
        assert!(parts[0] > 5 * parts[1]);
        assert_eq!(part_of(usize::MAX >> 32, &all[0], spare), 100_000 - KEPT, "no more than there is");
    }
}
