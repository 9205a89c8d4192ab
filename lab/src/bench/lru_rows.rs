//! The rows of what was published of waits for the LRU lock, and which uses of ours each stands for.

use elbowroom_sync::{LockRow, LruUse};

use super::compare::Record;

/// A row of what was published; the last one is for all that has no row there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LruRow {
    ShrinkCost,
    RefaultCost,
    ScanStart,
    ActiveList,
    Drain,
    Other,
}

impl LruRow {
    const ALL: [Self; 6] =
        [Self::ShrinkCost, Self::RefaultCost, Self::ScanStart, Self::ActiveList, Self::Drain, Self::Other];

    /// The row of a use. Of draining, Linux's row has no folios that reclaim puts back; ours has them.
    fn of(lru_use: LruUse) -> Self {
        match lru_use {
            LruUse::ShrinkCost => Self::ShrinkCost,
            LruUse::RefaultCost => Self::RefaultCost,
            LruUse::ScanStart => Self::ScanStart,
            LruUse::RotationCost | LruUse::Deactivate => Self::ActiveList,
            LruUse::Add => Self::Drain,
            LruUse::Isolate | LruUse::Remove | LruUse::End => Self::Other,
        }
    }

    /// The keys of its acquisitions per second, its waits and its holds.
    fn keys(self) -> [&'static str; 3] {
        match self {
            Self::ShrinkCost => [
                "lru_acquisitions_shrink_cost_per_second",
                "lru_wait_shrink_cost_ns",
                "lru_hold_shrink_cost_ns",
            ],
            Self::RefaultCost => [
                "lru_acquisitions_refault_cost_per_second",
                "lru_wait_refault_cost_ns",
                "lru_hold_refault_cost_ns",
            ],
            Self::ScanStart => {
                ["lru_acquisitions_scan_start_per_second", "lru_wait_scan_start_ns", "lru_hold_scan_start_ns"]
            }
            Self::ActiveList => [
                "lru_acquisitions_active_list_per_second",
                "lru_wait_active_list_ns",
                "lru_hold_active_list_ns",
            ],
            Self::Drain => ["lru_acquisitions_drain_per_second", "lru_wait_drain_ns", "lru_hold_drain_ns"],
            Self::Other => ["lru_acquisitions_other_per_second", "lru_wait_other_ns", "lru_hold_other_ns"],
        }
    }
}

/// The figures of all rows, between two moments that are so many seconds apart. Holds are there if they were
/// measured.
pub fn figures(before: &[LockRow], after: &[LockRow], seconds: f64) -> Record {
    let mut record = Record::new();
    let mut hold_all = None;
    for row in LruRow::ALL {
        let sum = |rows: &[LockRow], of: fn(&LockRow) -> u64| -> u64 {
            let is_of_it = |one: &&LockRow| one.lru_use.map_or(LruRow::Other, LruRow::of) == row;
            rows.iter().filter(is_of_it).map(of).sum()
        };
        let grown = |of: fn(&LockRow) -> u64| sum(after, of).saturating_sub(sum(before, of)) as f64;
        let [acquisitions, wait, hold] = row.keys();
        record.insert(acquisitions, grown(|one| one.acquisitions) / seconds);
        record.insert(wait, grown(|one| one.wait_ns));
        if after.iter().any(|one| one.holds > 0) {
            let held = grown(|one| one.hold_ns);
            record.insert(hold, held);
            *hold_all.get_or_insert(0.0) += held;
        }
    }
    record.extend(hold_all.map(|held| ("lru_hold_ns", held)));
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published;
    use elbowroom_sync::LockStats;

    /// The keys of the published rows, in their order; the row for the rest has none.
    #[test]
    fn each_published_row_has_a_use_of_the_lock_and_each_use_a_row() {
        let published = published::json("usemem", 30.0);
        let keys = published.as_array().unwrap().iter().filter_map(|one| one["key"].as_str());
        let published: Vec<_> =
            keys.filter(|key| key.starts_with("lru_wait_") && *key != "lru_wait_ns").collect();
        let rows = LruRow::ALL.into_iter().filter(|row| *row != LruRow::Other);
        assert_eq!(published, rows.map(|row| row.keys()[1]).collect::<Vec<_>>());
        for row in LruRow::ALL {
            assert!(LruUse::ALL.into_iter().any(|lru_use| LruRow::of(lru_use) == row), "{row:?}");
        }
    }

    #[test]
    fn what_is_counted_is_in_exactly_one_row() {
        let stats = LockStats::new();
        stats.count_in_detail();
        let (lists, before) = (stats.lru_mutex(()), stats.snapshot().by_lru_use());
        for (times, lru_use) in (1..).zip(LruUse::ALL) {
            (0..times).for_each(|_| drop(lists.lock(lru_use)));
        }
        let record = figures(&before, &stats.snapshot().by_lru_use(), 1.0);
        let taken = LruRow::ALL.map(|row| record[row.keys()[0]]);
        // In the order of the uses: 1, 2, 4, and 3 + 5, 6, 7 + 8 + 9.
        assert_eq!(taken, [1.0, 2.0, 4.0, 8.0, 6.0, 24.0]);
        let held: f64 = LruRow::ALL.into_iter().map(|row| record[row.keys()[2]]).sum();
        assert!(held > 0.0 && record["lru_hold_ns"] == held);
    }
}
