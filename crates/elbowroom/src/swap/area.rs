//! The swap area: slots, each of which tells where the bytes of a page are. Linux: `swap_info_struct`.
//!
//! A slot keeps its number as long as its count is above 0; where its bytes are may change meanwhile.
//!
//! Synchronization: slots are in stripes, with a lock of the class `swap` each. It is held while a
//! compressed page is copied out of the pool, so that no other thread moves or frees it meanwhile.

mod file;
mod kept;
mod leaving;
#[cfg(all(test, not(shuttle)))]
mod tests;

use self::file::SwapFile;
pub use self::kept::Again;
use self::kept::Copies;
pub use self::leaving::Oldest;
use super::chunks::Chunks;
use super::cipher::Cipher;
use super::classes::{BLOCK_PAGES, LARGEST};
use super::outs::Outs;
use super::pool::{Handle, Pool};
use super::pool_room::PoolRoom;
use super::quota::Quota;
use super::sizing::{Back, Reach, Sizing};
use super::tier::{Placement, Room, expand, fill};
use crate::group::{Frames, SwapGroup};
use crate::page::{Spot, checksum};
#[cfg(not(shuttle))]
use elbowroom_store::Lifeline;
use elbowroom_store::{Inject, StoreFile};
use elbowroom_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use elbowroom_sync::{Arc, Lines, LockClass, LockStats, Mutex};
use std::collections::{HashSet, VecDeque};
use std::num::NonZeroU32;
#[cfg(not(shuttle))]
use std::os::fd::RawFd;

/// Slots are spread over so many locks.
const STRIPES: usize = if cfg!(shuttle) { 2 } else { 64 };

/// Frames that are kept so that a page can go out when none is free: those of several blocks.
const RESERVE: usize = if cfg!(shuttle) { BLOCK_PAGES } else { 4 * BLOCK_PAGES };

/// In the queue, in the place of a slot's number: a run ends, and the next slot begins a new page of the
/// file.
const GAP: u32 = u32::MAX;

/// So many entries beyond twice the number of compressed pages the queue may have before it is cleaned up.
const QUEUE_SLACK: u64 = 64;

/// Where the bytes of a slot are.
#[derive(Debug, Clone, Copy)]
enum Tier {
    /// Nowhere: they are one word, repeated.
    Filled(u64),
    /// In the pool; `leaving`: and they are being written to the file; `in_file`: and the file has them.
    Pool { handle: Handle, leaving: bool, in_file: Option<PackedSpot> },
    /// In the pool, and in a folio that came in from there; no space has the slot.
    Kept { handle: Handle, in_file: Option<PackedSpot> },
    /// In the file, and in such a folio.
    KeptInFile(Spot),
    /// In such a folio only: the pool, or the file, has given them up.
    Gone,
    /// In the file.
    File(Spot),
}

/// A spot of the file, in as few bytes as can be: slots are many.
#[derive(Debug, Clone, Copy)]
struct PackedSpot(NonZeroU32);

impl PackedSpot {
    /// `None`: its number is too large, so it is not kept.
    fn new(spot: Spot) -> Option<Self> {
        u32::try_from(spot.number() + 1).ok().and_then(NonZeroU32::new).map(Self)
    }

    fn spot(self) -> Spot {
        Spot::from_number(u64::from(self.0.get()) - 1)
    }
}

/// What a fault has to do for the bytes of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// [`Swap::load`] has them.
    Memory,
    /// They are read from here, for [`Swap::arrive`].
    File(Spot),
}

#[derive(Debug, Clone, Copy)]
struct SwapSlot {
    tier: Tier,
    /// The low half of the checksum of the page.
    sum: u32,
    /// How many spaces have its number at one of their pages.
    count: u16,
    /// When it went out: a tick of the area's clock, modulo 2^16.
    out: u16,
}

#[derive(Default)]
struct Stripe {
    /// By number; a slot without a count is free.
    slots: Vec<SwapSlot>,
    /// The groups to which the slots are charged. Beside them: as a part of a slot, two bytes would take
    /// eight. Linux: `swap_cgroup_map`.
    groups: Vec<SwapGroup>,
    free: Vec<u32>,
}

impl Stripe {
    /// Gives up one count of a slot. If it was the last, tells where the slot's bytes are, and its group;
    /// the caller frees the bytes, and takes back the charge.
    fn give_up(&mut self, at: usize) -> Option<(Tier, SwapGroup)> {
        let slot = &mut self.slots[at];
        slot.count -= 1;
        let last = (slot.count == 0).then_some((slot.tier, self.groups[at]));
        if last.is_some() {
            self.free.push(at as u32);
        }
        last
    }
}

/// A page that goes out.
#[derive(Debug, Clone, Copy)]
pub struct OutPage {
    /// Its checksum.
    pub sum: u64,
    /// How many spaces have it.
    pub spaces: u32,
    /// The group to which it has been charged. The charge is the slot's, if the page gets one.
    pub group: SwapGroup,
}

/// The frames and the charge that a slot has given up.
#[derive(Debug, Default)]
#[must_use = "frames are given back, and the charge is taken back"]
pub struct Released {
    /// Frames that the pool does not need any more.
    pub frames: Vec<Frames>,
    /// The group of the slot, if no space has it any more: one page is not charged any more.
    pub group: Option<SwapGroup>,
}

/// What is known of a page whose bytes have come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CameIn {
    /// The page's checksum.
    pub sum: u64,
    /// How many pages went out since it did, exact to a 256th of the arena; `None`: it is one word, repeated.
    /// Linux: the refault distance of `workingset_test_recent`.
    pub distance: Option<u64>,
}

/// Why the bytes of a slot are not to be had from memory.
#[derive(Debug, PartialEq, Eq)]
pub enum NotLoaded {
    /// They are not those that went out.
    Corrupt,
    /// They are elsewhere by now: in the file, or with a folio.
    Elsewhere,
}

/// Why a page cannot go out now.
#[derive(Debug, PartialEq, Eq)]
pub enum Short {
    /// The pool needs so many frames more.
    Frames(usize),
    /// All slots are taken.
    Slots,
}

/// Where the bytes of pages are that are out.
pub struct Swap {
    pool: Pool,
    stripes: Vec<Lines<Mutex<Stripe>>>,
    /// How many pages may be out at a time; none: anonymous memory stays in memory.
    pub quota: Quota,
    /// How many frames the pool may have, and should have.
    pub pool_room: PoolRoom,
    /// How many frames the pool should have; `None`: as many as it may.
    sizing: Option<Mutex<Sizing>>,
    /// Pages that went out, but for those of one word, and the clock with which their slots are stamped.
    pub outs: Outs,
    /// Pages that have left the pool for the file.
    left_pool: AtomicU64,
    /// The slots in the pool, in the order in which they came there. Some have left it since.
    queue: Mutex<VecDeque<u32>>,
    /// Where compressed pages are expanded on their way to the file.
    staging: Mutex<Option<Frames>>,
    used: AtomicU64,
    /// Slots, not among the used ones, that folios keep.
    kept: Copies,
    /// Slots that there is memory for: those that are free again, too.
    described: AtomicU64,
    next: AtomicUsize,
    /// The free frames of the pool.
    chunks: Mutex<Chunks>,
    /// `None`: there is none.
    file: Option<SwapFile>,
    /// Which pages are to be stored wrong, for tests.
    inject: Option<Arc<Inject>>,
    /// Children that may read the file.
    #[cfg(not(shuttle))]
    children: Mutex<Vec<Lifeline>>,
    /// The other ends of the lifelines of this process's ancestors, which it has open.
    #[cfg(not(shuttle))]
    held: Mutex<Vec<RawFd>>,
}

impl Swap {
    /// An empty area, for as many pages as `quota` says. Of the `frames` of the arena the pool may have
    /// `pool_limit`; what has no room there goes to the file, if there is one. `sizing`: the pool's size
    /// follows what comes back.
    pub fn new(
        locks: &LockStats,
        quota: Quota,
        [frames, pool_limit]: [u64; 2],
        file: Option<(Arc<StoreFile>, Option<Cipher>)>,
        sizing: bool,
    ) -> Self {
        let sizing = (sizing && file.is_some()).then(|| Sizing::new(pool_limit, frames));
        let target = sizing.as_ref().map_or(pool_limit, Sizing::target);
        let file = file.map(|(file, cipher)| SwapFile::new(locks, quota.limit(), file, cipher));
        let stripe = |_| Lines(locks.mutex(LockClass::Swap, Stripe::default()));
        Self {
            pool: Pool::new(locks),
            stripes: (0..STRIPES).map(stripe).collect(),
            quota,
            pool_room: PoolRoom::new(frames, pool_limit, target),
            sizing: sizing.map(|sizing| locks.mutex(LockClass::SwapFile, sizing)),
            outs: Outs::new(frames),
            left_pool: AtomicU64::new(0),
            queue: locks.mutex(LockClass::SwapFile, VecDeque::new()),
            staging: locks.mutex(LockClass::SwapFile, None),
            used: AtomicU64::new(0),
            kept: Copies::default(),
            described: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            chunks: locks.mutex(LockClass::SwapFile, Chunks::default()),
            file,
            inject: None,
            #[cfg(not(shuttle))]
            children: locks.mutex(LockClass::SwapFile, Vec::new()),
            #[cfg(not(shuttle))]
            held: locks.mutex(LockClass::SwapFile, Vec::new()),
        }
    }

    /// Stores some pages wrong from now on, as these faults say.
    pub fn inject(&mut self, faults: Option<Arc<Inject>>) {
        self.inject = faults;
    }

    /// The faults that are injected.
    #[cfg(not(shuttle))]
    pub fn faults(&self) -> Option<Arc<Inject>> {
        self.inject.clone()
    }

    /// Whether pages may go out at all.
    pub fn is_on(&self) -> bool {
        self.quota.limit() > 0
    }

    /// Pages that may go out still.
    pub fn free_slots(&self) -> u64 {
        self.quota.left(self.used())
    }

    /// Pages that are out.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Pages that there is a slot for: as many as were out at the most.
    pub fn described(&self) -> u64 {
        self.described.load(Ordering::Relaxed)
    }

    /// Frames that the pool has.
    pub fn frames(&self) -> usize {
        self.pool.pages() as usize
    }

    /// The pool of compressed pages.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Where there is room for so many pages, as if none became smaller in the pool. `plenty`: much memory
    /// is free, so nothing else needs the frames that the pool may have.
    pub fn room(&self, pages: usize, plenty: bool) -> Room {
        let (target, most) = (self.pool_room.target(), self.pool_room.may_have());
        let may_have = match &self.sizing {
            None => most,
            _ if plenty => most,
            // The file takes nothing now: the pool gets all that it may have, whether that is worth it or
            // not.
            Some(_) if self.file_refuses() => most,
            Some(_) if target == 0 => 0,
            // New pages push the oldest ones out to the file, which takes a moment.
            Some(_) => most.min(target + target / 8 + BLOCK_PAGES as u64),
        };
        let will_have = self.pool.pages() + pages as u64;
        let passes = self.sizing.is_some() && will_have <= self.pool_room.with_passing();
        Room { pool: will_have <= may_have, passes, file: self.file.is_some() }
    }

    /// Whether the pool is to become smaller: it has more frames than it should and a slot that could go to
    /// the file, or memory is short and it keeps bytes that folios have, too. `plenty` as for
    /// [`Swap::room`].
    pub fn pool_is_over(&self, plenty: bool) -> bool {
        if !plenty && self.kept.has_some_in_pool() {
            return true;
        }
        let room = &self.pool_room;
        let should_have = if plenty { room.may_have() } else { room.passes_on_at() };
        self.sizing.is_some() && self.pool.pages() > should_have && self.has_queued()
    }

    /// Whether there is a slot in the queue.
    fn has_queued(&self) -> bool {
        let queue = self.queue.lock();
        // Two gaps never follow each other.
        queue.len() > 1 || queue.front().is_some_and(|front| *front != GAP)
    }

    /// How many pages went out since that of a slot did; `None`: it is one word, repeated.
    fn distance(&self, slot: &SwapSlot) -> Option<u64> {
        (!matches!(slot.tier, Tier::Filled(_))).then(|| self.outs.since(slot.out))
    }

    /// Notes what comes back for a fault: the pool's size depends on it.
    pub fn note_in(&self, back: Back) {
        let Some(sizing) = &self.sizing else { return };
        if sizing.lock().note(back) {
            let reach = self.reach();
            let (left, outs) = (self.left_pool.load(Ordering::Relaxed), self.outs.count());
            let mut sizing = sizing.lock();
            sizing.look(reach, left, outs);
            self.pool_room.aim(sizing.target());
        }
    }

    /// How many frames the pool has, and how long its oldest slot has been out.
    fn reach(&self) -> Reach {
        let oldest = {
            let mut queue = self.queue.lock();
            loop {
                match queue.front() {
                    None => break None,
                    Some(&number) => match self.pool_slot(u64::from(number)) {
                        Some(out) => break Some(out),
                        None => _ = queue.pop_front(),
                    },
                }
            }
        };
        let pages = oldest.map_or(0, |out| self.outs.since(out));
        Reach { frames: self.pool.pages(), pages }
    }

    /// When the page of a slot in the pool went out; `None`: the slot is not in the pool.
    fn pool_slot(&self, number: u64) -> Option<u16> {
        let stripe = self.stripes[number as usize % STRIPES].lock();
        let slot = stripe.slots.get(number as usize / STRIPES).filter(|slot| slot.count > 0)?;
        matches!(slot.tier, Tier::Pool { .. } | Tier::Kept { .. }).then_some(slot.out)
    }

    /// Stores a page where [`super::Compressor::place`] wants it; returns the slot's number. Takes frames,
    /// of one page each, if the pool needs some. `in_file`: the spot at which the file has the bytes, too,
    /// which belongs to the slot from now on. The caller then calls [`Swap::queue_up`].
    ///
    /// # Errors
    /// What is missing; nothing was taken, and the page's charge is still the caller's.
    pub fn keep(
        &self,
        placement: &Placement<'_>,
        in_file: Option<Spot>,
        page: &OutPage,
        frames: &mut Vec<Frames>,
    ) -> Result<u64, Short> {
        self.count_one_more()?;
        let tier = match placement {
            Placement::Filled(word) => Ok(Tier::Filled(*word)),
            Placement::Pool(object) => {
                let wrong =
                    self.inject.as_ref().filter(|inject| inject.corrupts_page()).map(|_| wrong(object));
                let stored = self.pool.store(wrong.as_deref().unwrap_or(object), frames);
                let tier = |handle| Tier::Pool {
                    handle,
                    leaving: false,
                    in_file: in_file.and_then(PackedSpot::new),
                };
                stored.map(tier).map_err(Short::Frames)
            }
            Placement::File | Placement::Full => Err(Short::Slots),
        };
        let tier = tier.inspect_err(|_| _ = self.used.fetch_sub(1, Ordering::Relaxed))?;
        if let (Some(spot), false) = (in_file, matches!(tier, Tier::Pool { in_file: Some(_), .. })) {
            self.free_spot(spot);
        }
        Ok(self.add(tier, page))
    }

    /// Queues those of the slots that are in the pool to leave it for the file. They leave together, and
    /// lie together in the file; a single slot lies anywhere. A slot that was not queued stays in the pool.
    pub fn queue_up(&self, numbers: &[u64]) {
        if self.sizing.is_none() {
            return;
        }
        let mut queue = self.queue.lock();
        // Half of the entries may be of slots that are not in the pool any more.
        if queue.len() as u64 > 2 * self.pool.objects() + QUEUE_SLACK {
            let mut kept = HashSet::new();
            queue.retain(|&other| {
                other == GAP || self.pool_slot(u64::from(other)).is_some() && kept.insert(other)
            });
            let mut before = GAP;
            queue.retain(|&other| std::mem::replace(&mut before, other) != GAP || other != GAP);
        }
        let in_pool = numbers.iter().filter(|&&number| self.pool_slot(number).is_some());
        let before = queue.len();
        queue.extend(in_pool.map(|&number| number as u32));
        // A run shares no page of the file with the next one, so that the two are read side by side.
        if queue.len() > before + 1 {
            queue.push_back(GAP);
        }
    }

    /// [`Swap::keep`] for a page that the file has already, at a spot that belongs to the slot from now on.
    pub fn keep_in_file(&self, spot: Spot, page: &OutPage) -> Result<u64, Short> {
        self.count_one_more()?;
        Ok(self.add(Tier::File(spot), page))
    }

    fn count_one_more(&self) -> Result<(), Short> {
        if !self.quota.allows(self.used.fetch_add(1, Ordering::Relaxed)) {
            self.used.fetch_sub(1, Ordering::Relaxed);
            return Err(Short::Slots);
        }
        Ok(())
    }

    /// Where the bytes of a slot seem to be, for a caller that has no count of it; `None`: the slot is free
    /// by now.
    pub fn seems(&self, number: u64) -> Option<Source> {
        let stripe = self.stripes[number as usize % STRIPES].lock();
        let slot = stripe.slots.get(number as usize / STRIPES).filter(|slot| slot.count > 0)?;
        Some(if let Tier::File(spot) = slot.tier { Source::File(spot) } else { Source::Memory })
    }

    fn add(&self, tier: Tier, &OutPage { sum, spaces, group }: &OutPage) -> u64 {
        if !matches!(tier, Tier::Filled(_)) {
            self.outs.note_out();
        }
        // There are at most 1024 spaces.
        let slot = SwapSlot { tier, sum: sum as u32, count: spaces as u16, out: self.outs.now() };
        let stripe = self.next.fetch_add(1, Ordering::Relaxed) % STRIPES;
        let mut slots = self.stripes[stripe].lock();
        let at = match slots.free.pop() {
            Some(at) => {
                slots.slots[at as usize] = slot;
                slots.groups[at as usize] = group;
                at as usize
            }
            None => {
                if slots.slots.len() == slots.slots.capacity() {
                    // Not by half of it: what describes pages is a part of the budget.
                    let more = slots.slots.len() / 8 + 64;
                    slots.slots.reserve_exact(more);
                    slots.groups.reserve_exact(more);
                }
                slots.slots.push(slot);
                slots.groups.push(group);
                self.described.fetch_add(1, Ordering::Relaxed);
                slots.slots.len() - 1
            }
        };
        (at * STRIPES + stripe) as u64
    }

    fn with<R>(&self, number: u64, f: impl FnOnce(&mut Stripe, usize) -> R) -> R {
        let number = number as usize;
        let mut stripe = self.stripes[number % STRIPES].lock();
        let at = number / STRIPES;
        assert!(stripe.slots[at].count > 0, "who has a slot's number has a count of it");
        f(&mut stripe, at)
    }

    /// Adds a count: one more space has the slot. The caller has a count of it, or keeps others from giving
    /// theirs up.
    pub fn share(&self, number: u64) {
        self.with(number, |stripe, at| stripe.slots[at].count += 1);
    }

    /// Fills a page with the bytes of a slot, which are in memory, and of which the caller has a count.
    ///
    /// # Errors
    /// The bytes are not those that went out, or are elsewhere by now. The page must not be mapped then.
    pub fn load(&self, number: u64, page: &mut [u8]) -> Result<CameIn, NotLoaded> {
        let mut compressed = [0; LARGEST];
        let (len, slot) = self.with(number, |stripe, at| {
            let slot = stripe.slots[at];
            match slot.tier {
                Tier::Filled(word) => {
                    fill(page, word);
                    Ok((None, slot))
                }
                Tier::Pool { handle, .. } => Ok((Some(self.pool.load(handle, &mut compressed)), slot)),
                Tier::File(_) => Err(NotLoaded::Elsewhere),
                Tier::Kept { .. } | Tier::KeptInFile(_) | Tier::Gone => Err(NotLoaded::Corrupt),
            }
        })?;
        let expanded = len.map_or(Ok(()), |len| expand(&compressed[..len], page));
        let sum = checksum(page);
        let same = expanded.is_ok() && sum as u32 == slot.sum;
        if same { Ok(CameIn { sum, distance: self.distance(&slot) }) } else { Err(NotLoaded::Corrupt) }
    }

    /// Gives up one count of a slot; with the last count its bytes are freed.
    pub fn release(&self, number: u64) -> Released {
        let (slot, given) = self.with(number, |stripe, at| (stripe.slots[at], stripe.give_up(at)));
        let Some((tier, group)) = given else { return Released::default() };
        if !matches!(tier, Tier::Filled(_)) {
            self.outs.note_back(slot.out);
        }
        self.used.fetch_sub(1, Ordering::Relaxed);
        let (frames, spot) = self.empty(tier);
        spot.into_iter().for_each(|spot| self.free_spot(spot));
        Released { frames, group: Some(group) }
    }

    /// Gives up one count of a slot. If it was the last, tells where the slot's bytes are, and its group;
    /// the caller frees the bytes, and takes back the charge.
    fn give_up(&self, number: u64) -> Option<(Tier, SwapGroup)> {
        self.with(number, Stripe::give_up)
    }

    /// Takes the bytes of a slot out of the pool, if they are there. Returns the frames that are not needed
    /// any more, and the spot at which the file has the bytes.
    fn empty(&self, tier: Tier) -> (Vec<Frames>, Option<Spot>) {
        match tier {
            Tier::Pool { handle, in_file, .. } | Tier::Kept { handle, in_file } => {
                (self.put_back(self.pool.free(handle)), in_file.map(PackedSpot::spot))
            }
            Tier::File(spot) | Tier::KeptInFile(spot) => (Vec::new(), Some(spot)),
            Tier::Filled(_) | Tier::Gone => (Vec::new(), None),
        }
    }

    /// A frame of one page for the pool, if one is free.
    pub fn take_frame(&self) -> Option<Frames> {
        self.chunks.lock().take()
    }

    /// Notes that a frame of the arena belongs to the pool from now on, and is in use.
    pub fn adopt(&self, frame: &Frames) {
        self.chunks.lock().adopt(frame);
    }

    /// Undoes [`Swap::adopt`]: the frame is the arena's again.
    pub fn disown(&self, frame: &Frames) {
        self.chunks.lock().disown(frame);
    }

    /// Takes frames of the pool that have become free; returns those that it does not need any more.
    pub fn put_back(&self, frames: Vec<Frames>) -> Vec<Frames> {
        if frames.is_empty() {
            return frames;
        }
        let mut chunks = self.chunks.lock();
        frames.into_iter().flat_map(|frame| chunks.put_back(frame, RESERVE)).collect()
    }

    /// Gives the pool frames of one page each.
    pub fn add_frames(&self, frames: Vec<Frames>) {
        self.chunks.lock().add(frames);
    }

    /// Whether the pool has fewer frames than it should, for when memory is short.
    pub fn has_few(&self) -> bool {
        self.chunks.lock().free_frames() < RESERVE
    }

    /// Takes all frames out: the manager ends.
    pub fn take_frames(&self) -> Vec<Frames> {
        let mut frames = self.pool.take_all();
        frames.append(&mut self.chunks.lock().take_all());
        frames.extend(self.take_staging());
        frames
    }
}

/// An object with one bit that is not as it was.
fn wrong(object: &[u8]) -> Vec<u8> {
    let mut other = object.to_vec();
    other[object.len() / 2] ^= 1;
    other
}

/// The groups of all slots in use. No thread uses the area meanwhile.
#[cfg(any(debug_assertions, shuttle))]
pub fn groups_of_slots(swap: &Swap) -> Vec<SwapGroup> {
    let mut groups = Vec::new();
    for stripe in &swap.stripes {
        let stripe = stripe.lock();
        let slots = stripe.slots.iter().zip(&stripe.groups);
        let used = slots.filter(|(slot, group)| slot.count > 0 && **group != SwapGroup::NONE);
        groups.extend(used.map(|(_, group)| *group));
    }
    groups
}
