//! What swap keeps of pages that came in, for when they go out again as they were. Linux: the slot of a clean
//! folio of the swap cache.

use super::{OutPage, PackedSpot, Released, Swap, Tier};
use crate::group::{Frames, SwapGroup};
use crate::page::{CopyAt, Spot, SwapCopy};
use elbowroom_sync::Mutant;
use elbowroom_sync::atomic::Ordering;

/// In tests of the tests: swap is taken to have the bytes of a page that was stored to.
const MUTANT_STALE_COPY: Mutant = Mutant::new("stale_copy");

/// Pages that come in keep their spots of the file while at most this fraction of its pages is taken.
const FULL: (u64, u64) = (7, 8);

/// What swap still has of a page that goes out again.
#[derive(Debug)]
pub enum Again {
    /// All: the page has this slot again.
    Slot(u64),
    /// The bytes, at this spot of the file, which is the caller's.
    File(Spot),
    /// Nothing; frames that are not needed any more.
    Nothing(Vec<Frames>),
}

/// What giving a count of a slot up has led to.
enum End {
    /// Other spaces have a count of the slot.
    Shared,
    /// The pool keeps its bytes for the folio into which they came. The group to which it was charged.
    Kept(SwapGroup),
    /// It was the last count, and nothing is kept. Where the bytes are, and the group.
    Empty(Tier, SwapGroup),
}

impl Swap {
    /// Gives up one count of a slot whose bytes have come in as a page of a folio. Returns what is free now,
    /// and what swap keeps of the page, which belongs to the folio and is charged to no group. Swap keeps
    /// nothing while others have a count of the slot, or when so much of it is taken that the room is better
    /// used for what goes out next. Compressed pages are kept only while memory is `plenty`. Linux:
    /// `swap_vm_full`.
    pub fn release_keeping(&self, number: u64, plenty: bool) -> (Released, Option<CopyAt>) {
        // Without sizing nothing makes the pool smaller.
        let taken = self.used() + self.kept.load(Ordering::Relaxed);
        let may_keep = plenty && self.sizing.is_some() && 2 * taken <= self.quota.limit();
        let (slot, end) = self.with(number, |stripe, at| {
            let slot = &mut stripe.slots[at];
            let was = *slot;
            let end = match slot.tier {
                Tier::Pool { handle, leaving: false, in_file } if may_keep && slot.count == 1 => {
                    slot.tier = Tier::Kept { handle, in_file };
                    self.kept.fetch_add(1, Ordering::Relaxed);
                    End::Kept(std::mem::replace(&mut stripe.groups[at], SwapGroup::NONE))
                }
                _ => stripe.give_up(at).map_or(End::Shared, |(tier, group)| End::Empty(tier, group)),
            };
            (was, end)
        });
        let (tier, group) = match end {
            End::Shared => return (Released::default(), None),
            End::Kept(group) => (None, group),
            End::Empty(tier, group) => (Some(tier), group),
        };
        if !matches!(slot.tier, Tier::Filled(_)) {
            self.outs.note_back(slot.out);
        }
        self.used.fetch_sub(1, Ordering::Relaxed);
        let released = |frames| Released { frames, group: Some(group) };
        let Some(tier) = tier else { return (released(Vec::new()), Some(CopyAt::Slot(number))) };
        let (frames, spot) = self.empty(tier);
        let Some(spot) = spot else { return (released(frames), None) };
        if self.file_pages() * FULL.1 <= self.quota.limit() * FULL.0 {
            return (released(frames), Some(CopyAt::File(spot)));
        }
        self.free_spot(spot);
        (released(frames), None)
    }

    /// Tells what swap still has of a page that goes out. `copy` is what the page's folio has kept, and is
    /// used up. If the page has its slot again, its charge is the slot's.
    pub fn goes_out_again(&self, copy: SwapCopy, page: &OutPage) -> Again {
        let same = copy.sum == page.sum || MUTANT_STALE_COPY.planted();
        match copy.place {
            CopyAt::File(spot) if same => Again::File(spot),
            CopyAt::Slot(number) if same && self.is_out_again(number, page) => Again::Slot(number),
            place => Again::Nothing(self.forget(place)),
        }
    }

    /// Gives a slot that a folio has kept to the page's spaces again; `false`: its bytes are gone, or no slot
    /// may be used any more.
    fn is_out_again(&self, number: u64, page: &OutPage) -> bool {
        if self.count_one_more().is_err() {
            return false;
        }
        let is_out = self.with(number, |stripe, at| {
            let slot = &mut stripe.slots[at];
            match slot.tier {
                Tier::Kept { handle, in_file } => {
                    slot.tier = Tier::Pool { handle, leaving: false, in_file };
                    self.kept.fetch_sub(1, Ordering::Relaxed);
                }
                Tier::File(_) => {}
                Tier::Filled(_) | Tier::Pool { .. } | Tier::Gone => return false,
            }
            (slot.count, slot.out) = (page.spaces as u16, self.outs.now());
            stripe.groups[at] = page.group;
            true
        });
        if is_out {
            self.outs.note_out();
        } else {
            self.used.fetch_sub(1, Ordering::Relaxed);
        }
        is_out
    }

    /// Drops bytes that the pool keeps of pages that are in folios, since memory is short. Returns frames
    /// that are not needed any more.
    pub fn drop_kept(&self) -> Vec<Frames> {
        if self.kept.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut freed = Vec::new();
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            let slots = stripe.slots.iter_mut().filter(|slot| slot.count > 0);
            freed.extend(slots.filter_map(|slot| {
                let Tier::Kept { handle, in_file } = slot.tier else { return None };
                slot.tier = self.without_pool(in_file);
                Some(handle)
            }));
        }
        freed.into_iter().flat_map(|handle| self.put_back(self.pool.free(handle))).collect()
    }

    /// Where the bytes of a slot that a folio keeps are once the pool has dropped them.
    pub(super) fn without_pool(&self, in_file: Option<PackedSpot>) -> Tier {
        self.kept.fetch_sub(1, Ordering::Relaxed);
        in_file.map_or(Tier::Gone, |in_file| Tier::File(in_file.spot()))
    }

    /// Frees what swap has kept for a folio. Returns frames that are not needed any more.
    pub fn forget(&self, place: CopyAt) -> Vec<Frames> {
        let (frames, spot) = match place {
            CopyAt::File(spot) => (Vec::new(), Some(spot)),
            CopyAt::Slot(number) => {
                // No group is charged for it.
                let tier = self.give_up(number).map(|(tier, _)| tier);
                if let Some(Tier::Kept { .. }) = tier {
                    self.kept.fetch_sub(1, Ordering::Relaxed);
                }
                tier.map_or_else(Default::default, |tier| self.empty(tier))
            }
        };
        spot.into_iter().for_each(|spot| self.free_spot(spot));
        frames
    }
}
