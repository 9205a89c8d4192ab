//! Which of several lists is asked next for pages, so that each is asked for its part, as its weight says.
//!
//! Each list has an account of how much less than its part the list was asked for. After a batch the account
//! of each list grows by the list's part of the batch, and the account of the list that was asked shrinks by
//! the batch. The list with the largest account is asked next. So the parts are exact but for a batch or
//! two, also where batches have several sizes, several threads ask in turn, and weights change. A list that
//! gives only a part of a batch was asked for all of it. The idea: deficit round robin (Shreedhar and
//! Varghese, SIGCOMM 1995).

use elbowroom_sync::atomic::{AtomicI64, Ordering};

/// Accounts are in pages divided by this.
const FINE: i64 = 1 << 20;

/// Lists of which one is to give.
pub(crate) struct Turns<'a> {
    /// The weight of each, and its account. What gets lost because threads race does no harm.
    lists: Vec<(u64, &'a AtomicI64)>,
    /// The sum of the weights. It saturates: no machine has weights of more than 2^64 in all.
    all: u64,
}

impl<'a> Turns<'a> {
    pub(crate) fn new(lists: impl Iterator<Item = (u64, &'a AtomicI64)>) -> Self {
        let lists: Vec<_> = lists.collect();
        let all = lists.iter().fold(0, |all: u64, (weight, _)| all.saturating_add(*weight));
        Self { lists, all }
    }

    /// The index of the list that gives the next batch of about so many pages; `None` if all weights are 0.
    pub(crate) fn next(&self, pages: u64) -> Option<usize> {
        let due = |(_, (weight, account)): &(usize, &(u64, &AtomicI64))| {
            account.load(Ordering::Relaxed).saturating_add(self.part(*weight, pages))
        };
        let can_give = self.lists.iter().enumerate().filter(|(_, (weight, _))| *weight > 0);
        can_give.max_by_key(due).map(|(number, _)| number)
    }

    /// Notes that the list of this index gave so many pages.
    pub(crate) fn note(&self, gave: usize, pages: u64) {
        let mut owed = 0;
        for (_, (weight, account)) in self.lists.iter().enumerate().filter(|(number, _)| *number != gave) {
            let part = self.part(*weight, pages);
            owed += part;
            account.fetch_add(part, Ordering::Relaxed);
        }
        // The sum of all stays as it was, whatever was rounded.
        self.lists[gave].1.fetch_sub(owed, Ordering::Relaxed);
    }

    /// The part of so many pages that a list of this weight is to give.
    fn part(&self, weight: u64, pages: u64) -> i64 {
        let fine = u128::from(pages) * FINE as u128;
        i64::try_from(fine * u128::from(weight) / u128::from(self.all.max(1))).unwrap_or(i64::MAX)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// Lists of these weights give so many batches, of the sizes that `size` says. Checks what each gave.
    fn give(weights: &[u64], batches: usize, size: impl Fn(usize) -> u64) {
        let accounts: Vec<_> = weights.iter().map(|_| AtomicI64::new(0)).collect();
        let all: u64 = weights.iter().sum();
        let mut gave = vec![0_u64; weights.len()];
        let largest = (0..batches).map(&size).max().unwrap_or(0) as f64;
        for batch in 0..batches {
            let turns = Turns::new(weights.iter().copied().zip(&accounts));
            let next = turns.next(32).unwrap();
            turns.note(next, size(batch));
            gave[next] += size(batch);
            let so_far: u64 = gave.iter().sum();
            for (gave, weight) in gave.iter().zip(weights) {
                let due = so_far as f64 * *weight as f64 / all as f64;
                let most = 1.5 * largest;
                assert!((*gave as f64 - due).abs() <= most, "{gave} pages instead of {due} of {weights:?}");
                assert!(*weight > 0 || *gave == 0);
            }
        }
    }

    #[test]
    fn each_gives_as_much_as_its_weight_says() {
        for weights in [vec![1, 1], vec![3, 0, 1], vec![1 << 40, 1 << 38], vec![7, 11, 13, 1, 0, 5], vec![9]]
        {
            give(&weights, 1000, |_| 32);
            give(&weights, 1000, |batch| [1, 512, 32, 7][batch * 7 % 4]);
        }
        give(&[u64::MAX / 2, u64::MAX / 2], 100, |_| 32);
        assert_eq!(Turns::new([].into_iter()).next(32), None);
        let account = AtomicI64::new(7);
        assert_eq!(Turns::new([(0, &account), (0, &account)].into_iter()).next(32), None);
    }

    /// Where two threads look before either has taken, both may take from the same list. That is made good.
    #[test]
    fn looks_at_the_same_time_are_made_good() {
        let accounts = [AtomicI64::new(0), AtomicI64::new(0), AtomicI64::new(0)];
        let weights = [5, 2, 1];
        let mut gave = [0_u64; 3];
        for _ in 0..500 {
            let threads = [(), ()].map(|()| Turns::new(weights.into_iter().zip(&accounts)));
            let both = [threads[0].next(32).unwrap(), threads[1].next(32).unwrap()];
            for (turns, next) in threads.iter().zip(both) {
                turns.note(next, 32);
                gave[next] += 32;
            }
        }
        for (gave, due) in gave.into_iter().zip([20_000_i64, 8_000, 4_000]) {
            assert!((gave as i64 - due).abs() <= 96, "{gave} pages instead of {due}");
        }
    }
}
