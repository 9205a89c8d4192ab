//! The scan balance: how many pages anonymous memory gives and how many files, by what it cost lately to
//! take from each. Linux: `lru_note_cost` and `get_scan_count`.
//!
//! Plain numbers. The unit of cost is a page that was scanned for nothing, since it was in use. A page that
//! was written to be freed, or that was evicted and came back early, costs 32.

use crate::group::Kind;

/// The cost of a page that had to be written to be freed, or that was evicted and came back early. Linux:
/// `SWAP_CLUSTER_MAX`.
const IO_COST: u64 = 32;

/// The largest `swappiness`. Files get this less `swappiness` as their weight.
const MOST_SWAPPINESS: u64 = 200;

/// The events of one kind of memory, of a group and those below it, since the group was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Pages that were written to be freed.
    pub(crate) pageouts: u64,
    /// Evicted pages that came back so early that they count as in use.
    pub(crate) restores: u64,
    /// Pages that reclaim looked at, and that were in use.
    pub(crate) rotations: u64,
}

impl Counted {
    /// The cost of these events. Wraps, as the counts do.
    pub(crate) fn cost(self) -> u64 {
        let Self { pageouts, restores, rotations } = self;
        pageouts.wrapping_add(restores).wrapping_mul(IO_COST).wrapping_add(rotations)
    }
}

/// What it cost lately to take from each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Costs {
    costs: [u64; Kind::COUNT],
    /// The cost of all events up to the last look.
    seen: [u64; Kind::COUNT],
}

impl Costs {
    /// The costs of a group whose counters began at `counted`.
    #[cfg(test)]
    fn since(counted: [Counted; Kind::COUNT]) -> Self {
        Self { costs: [0; Kind::COUNT], seen: counted.map(Counted::cost) }
    }

    /// Adds the cost of the events since the last look. `pages`: how many pages the lists have.
    pub(crate) fn look(&mut self, counted: [Counted; Kind::COUNT], pages: u64) {
        let now = counted.map(Counted::cost);
        let new = [0, 1].map(|kind| now[kind].wrapping_sub(self.seen[kind]));
        self.seen = now;
        self.note(new, pages);
    }

    /// Adds new costs. All costs are halved until their sum is at most a quarter of the lists' pages, so
    /// that old costs fade.
    pub(crate) fn note(&mut self, new: [u64; Kind::COUNT], pages: u64) {
        self.costs = [0, 1].map(|kind| self.costs[kind].saturating_add(new[kind]));
        while self.costs.iter().map(|cost| u128::from(*cost)).sum::<u128>() > u128::from(pages / 4) {
            self.costs = self.costs.map(|cost| cost / 2);
        }
    }

    /// The weight of each kind's pages, at least 1: the cheaper kind gives more. If `swappiness` treats
    /// both alike, each kind gets at least a third of the sum. `swappiness`: the weight of anonymous
    /// memory, of [`MOST_SWAPPINESS`].
    pub(crate) fn weights(&self, swappiness: u64) -> [u64; Kind::COUNT] {
        let total = u128::from(self.costs[0]) + u128::from(self.costs[1]);
        // The sum of both costs is added to each cost, so that neither kind counts as more than twice as
        // dear as the other. The 1 avoids a division by 0.
        let [anonymous, file] = self.costs.map(|cost| total + u128::from(cost) + 1);
        let swappiness = u128::from(swappiness.min(MOST_SWAPPINESS));
        let all = anonymous + file;
        let weight = |share: u128, cost: u128| (((share << 20) * all / cost) >> 16).max(1) as u64;
        [weight(swappiness, anonymous), weight(u128::from(MOST_SWAPPINESS) - swappiness, file)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(pageouts: u64, restores: u64, rotations: u64) -> Counted {
        Counted { pageouts, restores, rotations }
    }

    #[test]
    fn only_what_is_new_counts_and_the_past_fades() {
        let mut costs = Costs::since([counted(7, 7, 7), counted(9, 9, 9)]);
        costs.look([counted(8, 8, 12), counted(9, 9, 10)], 1 << 20);
        assert_eq!(costs.costs, [69, 1]);
        costs.look([counted(8, 8, 12), counted(9, 9, 10)], 1 << 20);
        assert_eq!(costs.costs, [69, 1], "nothing is new");
        costs.look([counted(8, 8, 12), counted(9, 9, 20)], 100);
        assert_eq!(costs.costs, [17, 2], "halved until both are at most 25");
    }

    #[test]
    fn counters_may_wrap() {
        let mut costs = Costs::since([counted(u64::MAX, 0, u64::MAX - 4), counted(u64::MAX / 32, 3, 0)]);
        costs.look([counted(1, 0, 5), counted(u64::MAX / 32 + 2, 4, 1)], 1 << 20);
        assert_eq!(costs.costs, [2 * 32 + 10, 3 * 32 + 1]);
    }

    /// Whatever the costs: with a swappiness of 100 each kind gets at least a third and at most two thirds,
    /// and the cheaper one more. Another `swappiness` weighs that.
    #[test]
    fn each_kind_gets_a_third_at_least() {
        let all: Vec<u64> = (0..64).map(|bit| 1 << bit).chain([0, 3, 1000, u64::MAX]).collect();
        for anonymous in &all {
            for file in &all {
                let costs = Costs { costs: [*anonymous, *file], seen: [0, 0] };
                let [a, f] = costs.weights(100).map(|weight| weight as f64);
                let share = a / (a + f);
                assert!((0.333..0.667).contains(&share), "{costs:?}: {share}");
                assert!(
                    anonymous == file || (anonymous < file) == (share > 0.5) || share == 0.5,
                    "{costs:?}"
                );
                let [less, more] = costs.weights(60).map(|weight| weight as f64);
                let ratio = (more / less) / (f / a);
                assert!((2.32..2.35).contains(&ratio), "140 to 60, not {ratio}");
                let ([none, _], [_, files]) = (costs.weights(0), costs.weights(200));
                assert_eq!([none, files], [1, 1], "only where the other kind has nothing");
            }
        }
    }
}
