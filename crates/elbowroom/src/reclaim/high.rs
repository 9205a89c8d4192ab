//! Groups that use more than their `high`: a thread that needs pages for such a group frees some first, and
//! sleeps if that was not enough. Linux: `reclaim_high` and `mem_cgroup_handle_over_high`.
//!
//! A thread sleeps so long that a group a few percent above its `high` hardly grows any more, but never for
//! more than [`HIGH_BOUND`], and not at all if nothing could be freed: then a sleep would only keep the
//! program from freeing memory itself.

use super::Reclaim;
use crate::config::HIGH_BOUND;
use crate::group::{GroupEvent, GroupId};
use crate::page::Woken;
use crate::platform::Platform;
use elbowroom_sync::time::Duration;

/// The sleep for a group that uses twice its `high`; it grows with the square of the part beyond `high`.
/// Linux: `MEMCG_DELAY_SCALING_SHIFT`, for one page.
const TIME_AT_TWICE: Duration = Duration::from_secs(2);

/// Shorter sleeps are skipped: they cost more than they are worth.
const LEAST: Duration = Duration::from_millis(1);

/// Pages that a thread frees at most before it gets its own.
const MOST_PAGES: u64 = 512;

/// For a thread that needs pages for a group: if the group, or one above it, is over its `high`, frees
/// pages of the one that is over. Returns how long the thread should sleep afterwards.
pub(crate) fn see_to_high<P: Platform>(
    reclaim: &Reclaim<P>,
    group: GroupId,
    woken: &dyn Woken,
) -> Option<Duration> {
    let (over, [usage, high]) = reclaim.groups.over_high(group)?;
    reclaim.groups.count(over, GroupEvent::High, 1);
    let batch = reclaim.tuning().reclaim_batch_pages;
    let want = (usage - high).min(MOST_PAGES).max(batch as u64);
    let freed = reclaim.shrink(over, want as usize, woken);
    // If nothing was freed while many pages are being written to swap, these may be free soon: such an access
    // says nothing about whether the group is stuck, and is not counted. Not so where swap is full: the pages
    // stay.
    let is_swap_full = reclaim.swap.free_slots() == 0 || reclaim.groups.full_swap(over).is_some();
    if freed > 0 || is_swap_full || !reclaim.is_writing_enough() {
        reclaim.groups.of(over).note_high(freed > 0);
    }
    let (over, [usage, high]) = reclaim.groups.over_high(group)?;
    if freed == 0 {
        reclaim.groups.count(over, GroupEvent::HighStuck, 1);
        return None;
    }
    let time = sleep_time(usage, high)?;
    reclaim.groups.count(over, GroupEvent::HighWaits, 1);
    Some(time)
}

/// How long a thread sleeps whose group uses `usage` pages, more than `high`.
fn sleep_time(usage: u64, high: u64) -> Option<Duration> {
    let beyond = (usage - high) as f64 / high.max(1) as f64;
    let time = HIGH_BOUND.min(TIME_AT_TWICE.mul_f64((beyond * beyond).min(1.0)));
    (time >= LEAST).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_grow_with_the_square_of_what_is_beyond() {
        let millis = |usage, high| sleep_time(usage, high).map_or(0, |time| time.as_millis());
        assert_eq!([1001, 1020, 1030, 1100, 1200].map(|usage| millis(usage, 1000)), [0, 0, 1, 20, 80]);
        assert_eq!([millis(1400, 1000), millis(9000, 1000), millis(5, 0)], [200, 200, 200]);
    }
}
