//! The policy in use: an inactive and an active list, with a second chance on standby between the inactive
//! list and eviction. Linux: the lists of mm/vmscan.c. Of a scan over more than memory, a part of the pages
//! is kept, as bimodal insertion does (Qureshi et al., Adaptive Insertion Policies, ISCA 2007).

use super::chances::Chances;
use super::{Chance, Listed, Policy, Refaulted};
use crate::ablation::Ablation;
use crate::config::CHANCE_SAMPLE_ONE_IN;
use crate::division::Division;
use crate::group::Kind;
use crate::lru::{Next, Sizes};
use elbowroom_sync::atomic::{AtomicU64, Ordering};

/// In the division *kept* one page that comes back too late, in so many times those that are kept elsewhere,
/// takes the place of one that was kept.
const KEPT_RENEWED: u64 = 16;

/// The policy, with its tuning and what it has counted.
pub(crate) struct TwoLists {
    /// The pages on standby may be the room divided by this.
    standby_part: usize,
    active_percent: usize,
    /// How the memory of files is divided; `None`: as suits each group.
    division: Option<Division>,
    /// Folios of so many pages say by their use how that is.
    division_pages: u64,
    /// One in so many pages that come back too late becomes active all the same.
    bimodal_one_in: u64,
    /// Which pages skip their second chance. `None`: each page has one.
    chances: Option<Chances>,
    /// How many pages of files came back too late to become active.
    late: AtomicU64,
}

impl TwoLists {
    /// The policy with these switches and constants. `division`: of the memory of files; `None`: the one that
    /// suits each group.
    pub(crate) fn new(ablation: &Ablation, division: Option<Division>) -> Self {
        Self {
            standby_part: ablation.tuning.standby_share,
            active_percent: ablation.tuning.active_percent,
            division,
            division_pages: ablation.tuning.division_pages,
            bimodal_one_in: ablation.tuning.bimodal_one_in,
            chances: ablation.skipped_chances.then(Chances::default),
            late: AtomicU64::new(0),
        }
    }
}

impl TwoLists {
    fn division(&self, of: Listed<'_>) -> Division {
        match of.kind {
            Kind::Anonymous => Division::Even,
            Kind::File => self.division.unwrap_or_else(|| of.divided.current()),
        }
    }
}

impl Policy for TwoLists {
    fn active_share(&self, of: Listed<'_>) -> usize {
        self.division(of).active_share(of.room, self.active_percent)
    }

    fn valued_share(&self, room: usize) -> usize {
        room * self.active_percent / 100
    }

    fn standby_share(&self, of: Listed<'_>) -> usize {
        self.division(of).standby_share(of.room, self.standby_part)
    }

    fn next(&self, sizes: Sizes, of: Listed<'_>, barren: bool) -> Next {
        match sizes.standby.saturating_sub(self.standby_share(of)) {
            0 if sizes.inactive > 0 && !barren => Next::Age,
            beyond => Next::Evict(beyond),
        }
    }

    fn chance(&self, was_active: bool) -> Chance {
        match &self.chances {
            Some(chances) if !was_active && chances.are_rarely_taken() => {
                // A sampled page counts for the skipped ones, too, so it stays on standby for as long as if
                // none were skipped.
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

    fn note_file_chance(&self, pages: u64, taken: bool, of: Listed<'_>) -> bool {
        let is_seen = self.division.is_none() && pages >= self.division_pages;
        is_seen && of.divided.note_chance(pages, taken, of.room)
    }

    fn activates(&self, back: Refaulted, active: usize, of: Listed<'_>) -> bool {
        if of.kind == Kind::File && back.pages as u64 >= self.division_pages {
            of.divided.note_back(back.pages as u64, back.distance, of.room);
        }
        let division = self.division(of);
        let fits = active + back.pages <= self.active_share(of);
        // Had the page been in the active list, it would not have been evicted: it is worth as much as the
        // pages there. Without this rule, pages that are used often, but not while they are on standby, are
        // evicted and come back; and the more of them do, the shorter any page stays on standby. Linux:
        // `workingset_refault`. Where large folios are kept for the next pass, few of them push out another:
        // that would be the oldest one, which may be the next that the pass comes to, and then pushes out
        // another. Single pages do not tell how folios are used, so the rule holds for them everywhere.
        let is_near = back.distance <= active as u64;
        let is_kept = division == Division::Kept && back.pages as u64 >= self.division_pages;
        if is_near && (!is_kept || fits) {
            return true;
        }
        if of.kind == Kind::Anonymous {
            return false;
        }
        // The page would not have stayed even in the active list: perhaps it is part of a cycle longer than
        // memory. Keep some of these pages, while there is room for them: one that pushed out another that
        // was kept would gain nothing, and in a cycle of few times memory all of these would be gone each
        // round.
        let late = self.late.fetch_add(1, Ordering::Relaxed);
        match division {
            // There is room for more. A few push out others, so that what is not used any more goes in time.
            Division::Kept if fits => late.is_multiple_of(self.bimodal_one_in.div_ceil(4)),
            // A set that fits in memory, after passes over more, takes the place of what they have left.
            Division::Kept if is_near => late.is_multiple_of(self.bimodal_one_in),
            Division::Kept => late.is_multiple_of(self.bimodal_one_in.saturating_mul(KEPT_RENEWED)),
            _ => fits && late.is_multiple_of(self.bimodal_one_in),
        }
    }
}
