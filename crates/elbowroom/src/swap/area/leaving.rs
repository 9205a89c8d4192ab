//! The way from the pool to the file. Linux: `zswap_writeback_entry`.
//!
//! The bytes of a slot that leaves stay in the pool until they have arrived in the file. Meanwhile the slot
//! may be given up, and its number used again. The new slot is not marked as leaving, since only one thread
//! marks slots, unless that thread takes it for the same batch, too: of two entries with the same number,
//! the later one is the slot's.

use super::{GAP, STRIPES, Swap, SwapSlot, Tier};
use crate::group::Frames;
use crate::page::Spot;
use crate::swap::classes::LARGEST;
use crate::swap::pool::Handle;
use elbowroom_sync::Mutant;
use elbowroom_sync::atomic::Ordering;

/// In tests of the tests: a slot that was given up and is in use again is taken for the one that left.
const MUTANT_FORGET_LEAVING: Mutant = Mutant::new("forget_leaving");

/// A slot whose bytes leave the pool for the file.
#[derive(Debug)]
pub struct Leaving(pub(super) u64);

/// What was in the pool for longest.
#[derive(Debug)]
pub enum Oldest {
    /// A slot that is to be written to the file.
    Leaves(Leaving),
    /// The file, or a folio, had its bytes already; frames that are not needed any more.
    Left(Vec<Frames>),
    /// A run ends: what leaves next begins a new page of the file.
    Gap,
}

impl Swap {
    /// Takes the slot that has been in the pool for longest: its bytes stay there until [`Swap::arrived`].
    /// `None`: there is none. For one thread at a time.
    pub fn oldest(&self) -> Option<Oldest> {
        while let Some(number) = self.pop_oldest() {
            if number == GAP {
                return Some(Oldest::Gap);
            }
            let mut stripe = self.stripes[number as usize % STRIPES].lock();
            // A slot that was given up and used again may be in the queue twice.
            let Some(slot) = stripe.slots.get_mut(number as usize / STRIPES).filter(|slot| slot.count > 0)
            else {
                continue;
            };
            match &mut slot.tier {
                Tier::Pool { handle, leaving: false, in_file: Some(in_file) } => {
                    let (handle, in_file) = (*handle, *in_file);
                    slot.tier = Tier::File(in_file.spot());
                    drop(stripe);
                    self.left_pool.fetch_add(1, Ordering::Relaxed);
                    return Some(Oldest::Left(self.put_back(self.pool.free(handle))));
                }
                Tier::Kept { handle, in_file } => {
                    let (handle, in_file) = (*handle, *in_file);
                    slot.tier = self.kept.without_pool(slot.tier, in_file);
                    drop(stripe);
                    return Some(Oldest::Left(self.put_back(self.pool.free(handle))));
                }
                Tier::Pool { leaving: leaving @ false, in_file: None, .. } => {
                    *leaving = true;
                    return Some(Oldest::Leaves(Leaving(u64::from(number))));
                }
                _ => {}
            }
        }
        None
    }

    fn pop_oldest(&self) -> Option<u32> {
        self.queue.lock().pop_front()
    }

    /// Copies the compressed bytes of a slot that leaves the pool to the beginning of `to`, and tells how
    /// many they are; `None`: the slot was given up. Whether the bytes are those that went out is told by
    /// the checksum, when they come in.
    pub fn load_leaving(&self, Leaving(number): &Leaving, to: &mut [u8; LARGEST]) -> Option<usize> {
        self.if_leaving(*number, |_, handle| self.pool.load(handle, to))
    }

    /// The bytes of these slots, in the order in which [`Swap::oldest`] gave them, have been written to
    /// these spots, and are only there from now on. Returns for how many slots that is so, and frames that
    /// are not needed any more. The spot of a slot that was given up is freed.
    pub fn arrived(&self, leaving: Vec<(Leaving, Spot)>) -> (u64, Vec<Frames>) {
        let (mut arrived, mut freed) = (0, Vec::new());
        // The last first: see the comment of the module.
        for (slot, spot) in leaving.into_iter().rev() {
            match self.arrived_at(slot, spot) {
                Ok(frames) => {
                    arrived += 1;
                    freed.extend(frames);
                }
                Err(()) => self.free_spot(spot),
            }
        }
        self.left_pool.fetch_add(arrived, Ordering::Relaxed);
        (arrived, freed)
    }

    /// An error: the slot was given up, and does not need the spot.
    pub(super) fn arrived_at(&self, Leaving(number): Leaving, spot: Spot) -> Result<Vec<Frames>, ()> {
        let handle = self.if_leaving(number, |slot, handle| {
            slot.tier = Tier::File(spot);
            handle
        });
        Ok(self.put_back(self.pool.free(handle.ok_or(())?)))
    }

    /// The slot stays in the pool, and may leave it later.
    pub fn stays(&self, slot: Leaving) {
        let number = slot.0;
        if self.stays_in_pool(slot) {
            self.queue_up(&[number]);
        }
    }

    /// [`Swap::stays`] for a slot that has no room in what is written now: it is the next that leaves.
    pub fn stays_first(&self, slot: Leaving) {
        let number = slot.0;
        if self.stays_in_pool(slot) {
            self.queue.lock().push_front(number as u32);
        }
    }

    /// `false`: the slot was given up.
    fn stays_in_pool(&self, Leaving(number): Leaving) -> bool {
        let stays = |slot: &mut SwapSlot, handle| {
            slot.tier = Tier::Pool { handle, leaving: false, in_file: None };
        };
        self.if_leaving(number, stays).is_some()
    }

    /// Does something to a slot that leaves the pool, unless it was given up.
    fn if_leaving<R>(&self, number: u64, f: impl FnOnce(&mut SwapSlot, Handle) -> R) -> Option<R> {
        let mut stripe = self.stripes[number as usize % STRIPES].lock();
        let slot = stripe.slots.get_mut(number as usize / STRIPES).filter(|slot| slot.count > 0)?;
        match slot.tier {
            Tier::Pool { handle, leaving, .. } if leaving || MUTANT_FORGET_LEAVING.planted() => {
                Some(f(slot, handle))
            }
            _ => None,
        }
    }

    /// What [`Swap::give_staging`] has left.
    pub fn take_staging(&self) -> Option<Frames> {
        self.staging.lock().take()
    }

    /// Frames in which pages are expanded on their way to the file, kept for the next time.
    pub fn give_staging(&self, frames: Frames) {
        let other = self.staging.lock().replace(frames);
        debug_assert!(other.is_none(), "one thread writes");
    }
}
