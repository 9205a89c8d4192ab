//! Today's policy: an inactive and an active list, with a second chance on standby between the inactive
//! list and eviction. Linux: the lists of mm/vmscan.c. A scan of more than memory keeps a part of what it
//! read, as bimodal insertion does (Qureshi et al., Adaptive Insertion Policies, ISCA 2007).

use super::chances::Chances;
use super::{Chance, Policy};
use crate::ablation::Ablation;
use crate::config::CHANCE_SAMPLE_ONE_IN;
use crate::group::Kind;
use crate::lru::{Next, Sizes};
use elbowroom_sync::atomic::{AtomicU64, Ordering};

/// The policy, with what it has seen.
pub(crate) struct TwoLists {
    /// One part in so many of the pages waits on standby.
    standby_part: usize,
    active_percent: usize,
    /// One in so many pages that come back too late is active all the same.
    bimodal_one_in: u64,
    /// `None`: each page has its second chance.
    chances: Option<Chances>,
    /// Pages of files that came back too late.
    late: AtomicU64,
}

impl TwoLists {
    /// The policy with these switches and constants.
    pub(crate) fn new(ablation: &Ablation) -> Self {
        Self {
            standby_part: ablation.tuning.standby_share,
            active_percent: ablation.tuning.active_percent,
            bimodal_one_in: ablation.tuning.bimodal_one_in,
            chances: ablation.skipped_chances.then(Chances::default),
            late: AtomicU64::new(0),
        }
    }
}

impl Policy for TwoLists {
    fn active_share(&self, room: usize) -> usize {
        room * self.active_percent / 100
    }

    fn standby_share(&self, room: usize) -> usize {
        room / self.standby_part
    }

    fn next(&self, sizes: Sizes, room: usize, barren: bool) -> Next {
        let full = sizes.standby > self.standby_share(room);
        if full || sizes.inactive == 0 || barren { Next::Evict } else { Next::Age }
    }

    fn chance(&self, was_active: bool) -> Chance {
        match &self.chances {
            Some(chances) if !was_active && chances.are_rarely_taken() => {
                // A page of the sample counts for those that are skipped, so it is on standby for as long
                // as if all were.
                if chances.sample() { Chance::CountsAs(CHANCE_SAMPLE_ONE_IN as u32) } else { Chance::Skipped }
            }
            _ => Chance::CountsAs(1),
        }
    }

    fn note_chance(&self, taken: bool) {
        if let Some(chances) = &self.chances {
            chances.note(taken);
        }
    }

    fn activates(&self, kind: Kind, distance: u64, active: usize, room: usize) -> bool {
        // The page would not have gone out if it had been in the active list: it is worth as much as the
        // pages there. Without that, pages that are used often, but not while they are on standby, come and
        // go, and the more of them do, the shorter anything is on standby. Linux: `workingset_refault`.
        if distance <= active as u64 {
            return true;
        }
        if kind == Kind::Anonymous {
            return false;
        }
        // Beyond what a larger active list would have kept: a cycle longer than memory, perhaps. Keep a
        // part of it.
        let late = self.late.fetch_add(1, Ordering::Relaxed);
        late.is_multiple_of(self.bimodal_one_in) && active < self.active_share(room)
    }
}
