//! What swap keeps of pages that came in, for when they go out again as they were. Linux: the slot of a clean
//! folio of the swap cache.

use super::file::is_own_spot;
use super::{OutPage, PackedSpot, Released, STRIPES, Swap, Tier};
use crate::group::{Frames, SwapGroup};
use crate::page::{Spot, SwapCopy};
use elbowroom_sync::Mutant;
use elbowroom_sync::atomic::{AtomicU64, AtomicUsize, Ordering};

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

/// How many slots, not among the used ones, folios keep.
#[derive(Default)]
pub(super) struct Copies {
    /// Of these, those whose bytes are in the pool.
    in_pool: AtomicU64,
    /// Those whose bytes are in the file only.
    in_file: AtomicU64,
    /// The stripe from which [`Swap::drop_kept_in_file`] takes spots next.
    next: AtomicUsize,
}

impl Copies {
    pub(super) fn has_some_in_pool(&self) -> bool {
        self.in_pool.load(Ordering::Relaxed) > 0
    }

    fn count(&self, tier: &Tier) -> Option<&AtomicU64> {
        match tier {
            Tier::Kept { .. } => Some(&self.in_pool),
            Tier::KeptInFile(_) => Some(&self.in_file),
            _ => None,
        }
    }

    fn add(&self, tier: &Tier) {
        self.count(tier).into_iter().for_each(|count| _ = count.fetch_add(1, Ordering::Relaxed));
    }

    fn remove(&self, tier: &Tier) {
        self.count(tier).into_iter().for_each(|count| _ = count.fetch_sub(1, Ordering::Relaxed));
    }

    /// Where the bytes of a slot that a folio keeps are once the pool has dropped them.
    pub(super) fn without_pool(&self, kept: Tier, in_file: Option<PackedSpot>) -> Tier {
        self.remove(&kept);
        let tier = in_file.map_or(Tier::Gone, |in_file| Tier::KeptInFile(in_file.spot()));
        self.add(&tier);
        tier
    }
}

impl Swap {
    /// Gives up one count of a slot whose bytes have come in as a page of a folio. Returns what is free now,
    /// and whether swap keeps the bytes: the slot belongs to the folio then and is charged to no group. Swap
    /// keeps nothing while others have a count of the slot, or when so much of it is taken that the room is
    /// better used for what goes out next. Compressed pages are kept only while memory is `plenty`. Linux:
    /// `swap_vm_full`.
    pub fn release_keeping(&self, number: u64, plenty: bool) -> (Released, bool) {
        // Without sizing nothing makes the pool smaller.
        let taken = self.used() + self.kept.in_pool.load(Ordering::Relaxed);
        let may_keep = plenty && self.sizing.is_some() && 2 * taken <= self.quota.limit();
        let kept = self.with(number, |stripe, at| {
            let slot = &mut stripe.slots[at];
            let was = *slot;
            let (tier, leaves_pool) = match slot.tier {
                _ if slot.count > 1 => return None,
                Tier::Pool { handle, leaving: false, in_file } if may_keep => {
                    (Tier::Kept { handle, in_file }, None)
                }
                Tier::Pool { handle, leaving: false, in_file: Some(in_file) } => {
                    (Tier::KeptInFile(in_file.spot()), Some(handle))
                }
                Tier::File(spot) => (Tier::KeptInFile(spot), None),
                _ => return None,
            };
            slot.tier = tier;
            self.kept.add(&tier);
            Some((was.out, leaves_pool, std::mem::replace(&mut stripe.groups[at], SwapGroup::NONE)))
        });
        let Some((out, leaves_pool, group)) = kept else { return (self.release(number), false) };
        self.outs.note_back(out);
        self.used.fetch_sub(1, Ordering::Relaxed);
        let mut frames = leaves_pool.map_or_else(Vec::new, |handle| self.put_back(self.pool.free(handle)));
        let is_full = self.file_pages() * FULL.1 > self.quota.limit() * FULL.0;
        let stays =
            !is_full || self.with(number, |stripe, at| matches!(stripe.slots[at].tier, Tier::Kept { .. }));
        if !stays {
            frames.extend(self.forget(number));
        }
        (Released { frames, group: Some(group) }, stays)
    }

    /// Tells what swap still has of a page that goes out. `copy` is what the page's folio has kept, and is
    /// used up. If the page has its slot again, its charge is the slot's.
    pub fn goes_out_again(&self, copy: SwapCopy, page: &OutPage) -> Again {
        if copy.sum == page.sum || MUTANT_STALE_COPY.planted() {
            let spot = self.with(copy.slot, |stripe, at| {
                let tier = stripe.slots[at].tier;
                let Tier::KeptInFile(spot) = tier else { return None };
                self.kept.remove(&tier);
                stripe.give_up(at);
                Some(spot)
            });
            if let Some(spot) = spot {
                return Again::File(spot);
            }
            if self.is_out_again(copy.slot, page) {
                return Again::Slot(copy.slot);
            }
        }
        Again::Nothing(self.forget(copy.slot))
    }

    /// Gives a slot that a folio has kept to the page's spaces again; `false`: its bytes are gone, or no slot
    /// may be used any more.
    fn is_out_again(&self, number: u64, page: &OutPage) -> bool {
        if self.count_one_more().is_err() {
            return false;
        }
        let is_out = self.with(number, |stripe, at| {
            let slot = &mut stripe.slots[at];
            let Tier::Kept { handle, in_file } = slot.tier else { return false };
            self.kept.remove(&slot.tier);
            slot.tier = Tier::Pool { handle, leaving: false, in_file };
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
        if !self.kept.has_some_in_pool() {
            return Vec::new();
        }
        let mut freed = Vec::new();
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            let slots = stripe.slots.iter_mut().filter(|slot| slot.count > 0);
            freed.extend(slots.filter_map(|slot| {
                let Tier::Kept { handle, in_file } = slot.tier else { return None };
                slot.tier = self.kept.without_pool(slot.tier, in_file);
                Some(handle)
            }));
        }
        freed.into_iter().flat_map(|handle| self.put_back(self.pool.free(handle))).collect()
    }

    /// Frees spots of the file whose bytes folios have, too: at least `want`, if there are so many. No folio
    /// is locked for that. `false`: there was no such spot.
    ///
    /// Locks: `swap` of some stripes, one after the other; then `swap-file`.
    pub(super) fn drop_kept_in_file(&self, want: usize) -> bool {
        let mut spots = Vec::new();
        for _ in 0..STRIPES {
            if self.kept.in_file.load(Ordering::Relaxed) == 0 || spots.len() >= want {
                break;
            }
            let stripe = self.kept.next.fetch_add(1, Ordering::Relaxed) % STRIPES;
            let mut stripe = self.stripes[stripe].lock();
            let slots = stripe.slots.iter_mut().filter(|slot| slot.count > 0);
            spots.extend(slots.filter_map(|slot| {
                let tier = slot.tier;
                let Tier::KeptInFile(spot) = tier else { return None };
                // To free a spot of an ancestor's file gives this process no room.
                if !is_own_spot(self, spot) {
                    return None;
                }
                self.kept.remove(&tier);
                slot.tier = Tier::Gone;
                Some(spot)
            }));
        }
        let some = !spots.is_empty();
        spots.into_iter().for_each(|spot| self.free_spot(spot));
        some
    }

    /// Frees the slot that swap has kept for a folio. Returns frames that are not needed any more.
    pub fn forget(&self, number: u64) -> Vec<Frames> {
        // No group is charged for it.
        let Some((tier, _)) = self.give_up(number) else { return Vec::new() };
        self.kept.remove(&tier);
        let (frames, spot) = self.empty(tier);
        spot.into_iter().for_each(|spot| self.free_spot(spot));
        frames
    }
}
