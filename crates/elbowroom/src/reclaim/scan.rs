//! A scan: which lists give next, and how much of each is looked at. Linux: `shrink_node_memcgs`,
//! `get_scan_count` and `shrink_lruvec`.
//!
//! The lists of each group and kind give in proportion to their sizes: over many batches, what is evicted of
//! them is as large a part of each. Lists that gave nothing are left alone until all others gave nothing.

use super::Reclaim;
use super::policy::{Policy, pick};
use crate::config::{RECLAIM_BATCH_FOLIOS, RECLAIM_SCAN_FACTOR};
use crate::lru::{Batch, Lruvec, Taken};
use crate::page::Woken;
use crate::platform::Platform;

/// One scan.
pub(super) struct Scan<'a, P: Platform> {
    pub(super) reclaim: &'a Reclaim<P>,
    /// Where the faults go that waited for a folio that the scan unlocked.
    pub(super) woken: &'a dyn Woken,
}

impl<'a, P: Platform> Scan<'a, P> {
    /// Frees about `want` pages; returns how many.
    pub(super) fn shrink(&self, want: usize) -> usize {
        let freed = self.shrink_inactive(want);
        if freed == 0 && !self.reclaim.is_writing_enough() && self.deactivate(want) {
            return self.shrink_inactive(want);
        }
        freed
    }

    fn shrink_inactive(&self, want: usize) -> usize {
        let (mut freed, mut lists) = (0, self.lists());
        while freed < want && !self.reclaim.is_writing_enough() {
            let weights = lists.iter().map(|(lruvec, room)| self.takable_pages(lruvec, *room));
            let Some(next) = pick(weights, self.reclaim.lists.next_turn()) else { break };
            let (lruvec, room) = lists.swap_remove(next);
            let got = self.shrink_lruvec(lruvec, room, want - freed);
            freed += got;
            if got > 0 {
                lists.push((lruvec, room));
            }
        }
        freed
    }

    /// The lists that have pages, each with its part of the room for all.
    fn lists(&self) -> Vec<(&'a Lruvec, usize)> {
        let Reclaim { lists, core, .. } = self.reclaim;
        let (all, frames) = (lists.of_groups(core.groups.ids()), self.reclaim.listable_frames());
        let with_room = |lruvec| (lruvec, lists.room_of(lruvec, core.groups.ids(), frames));
        all.filter(|lruvec| lruvec.listed_pages() > 0).map(with_room).collect()
    }

    /// The pages of lists that can be taken now: those that were not touched for some time, and what is
    /// active beyond its share.
    fn takable_pages(&self, lruvec: &Lruvec, room: usize) -> usize {
        let share = self.reclaim.policy.active_share(room);
        lruvec.idle_pages() + lruvec.active_pages().saturating_sub(share)
    }

    /// Makes pages of all active lists inactive, about as many as `want`, or a batch; `false`: nothing is
    /// active.
    fn deactivate(&self, want: usize) -> bool {
        let batch = want.max(self.reclaim.tuning().reclaim_batch_pages);
        let lists = self.lists();
        let all: usize = lists.iter().map(|(lruvec, _)| lruvec.active_pages()).sum();
        let part = |lruvec: &Lruvec| (batch * lruvec.active_pages()).div_ceil(all.max(1));
        lists.into_iter().filter(|(lruvec, _)| lruvec.deactivate(part(lruvec))).count() > 0
    }

    /// Frees about `want` pages of one group's folios of one kind, which may have `room` pages; returns how
    /// many.
    fn shrink_lruvec(&self, lruvec: &Lruvec, room: usize, want: usize) -> usize {
        let Self { reclaim, woken } = self;
        let mut freed = 0;
        let mut looks = (want * RECLAIM_SCAN_FACTOR).max(256);
        let batch =
            Batch { pages: want.max(reclaim.tuning().reclaim_batch_pages), folios: RECLAIM_BATCH_FOLIOS };
        // Whether the inactive list has only what cannot be taken now.
        let mut barren = false;
        while freed < want && looks > 0 && !reclaim.is_writing_enough() {
            let next = |sizes| reclaim.policy.next(sizes, room, barren);
            match lruvec.take(reclaim.policy.active_share(room), batch, next) {
                Some(Taken::Standby(folio)) => {
                    looks -= 1;
                    freed += reclaim.visit_standby(folio, *woken);
                }
                Some(Taken::Inactive(folios)) => {
                    looks = looks.saturating_sub(folios.len());
                    let (aged, evicted) = reclaim.age(folios, *woken);
                    freed += evicted;
                    barren = aged == 0 && evicted == 0;
                }
                None => break,
            }
        }
        freed
    }
}
