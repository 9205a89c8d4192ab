//! Memory groups: a tree of groups, to which frames are charged, and which limit how many frames may be
//! charged. Linux: `mem_cgroup`.
//!
//! [`Frames`] are frames with their charge. The manager handles frames in this form: they come from
//! [`Groups::alloc`] and end in [`Groups::free`]. Between them the charge cannot be forgotten, and only
//! [`Groups::charge_to_root`] changes it. A caller that needs the bare extent, for a device, keeps the
//! [`Charge`] and has to join the two again.
//!
//! `tree` has the groups and their parents, `charge` what each uses, `limits` what it may use and what is
//! protected of it, `swap` what each has in swap, `stat` what is counted. This module does not decide what
//! follows when a limit is exceeded: that is done in `reclaim` for memory, and in `writeback::balance` for
//! dirty pages.
//!
//! Synchronization: atomics, and a lock for changes of the tree. Charges are counted by threads in rows of
//! their own, so they cost no shared cache line; a reader adds the rows up.

mod charge;
mod limits;
pub mod of_thread;
mod pressure;
mod stat;
mod swap;
#[cfg(all(test, not(shuttle)))]
mod tests;
mod tree;

use self::charge::{NearMax, Stock};
pub use self::limits::{DirtyLimits, Limits};
pub use self::pressure::{
    Pressure, PressureUse, StallExtent, StallKind, StallKinds, StallSource, StallTime, Trigger, Watch,
};
pub(crate) use self::pressure::{Source, Stall};
pub use self::stat::{GroupEvent, GroupStats, Kind, KindStats, SwapStats};
pub use self::swap::{Payer, Purpose, SwapGroup};
use self::tree::Tree;
pub use self::tree::{Group, Protected};
use crate::config::{MIN_GIVES, MIN_HOLDS, STARVED_LOOK};
use elbowroom_machine::{Extent, Mmu};
use elbowroom_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Lines, LockClass, LockStats, Mutant, Mutex, PerThread, thread};
use std::fmt::{self, Display, Formatter};
use std::ops::{Deref, DerefMut};

/// In tests of the tests: the charge of any group is given back to the root.
const MUTANT_FREE_TO_ROOT: Mutant = Mutant::new("free_to_root");

/// The name of a group. It stays valid when the group is removed: what is allocated for the group then is
/// charged to the nearest group above it. Only when 1,024 groups were made and this one has no pages left,
/// a new group may take its place in the table; what is allocated for the removed group then is charged to
/// the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupId {
    index: u16,
    /// How often the place in the table was used before.
    life: u16,
}

impl GroupId {
    /// The group that is above all others. It pays for all memory that no other group pays for.
    pub const ROOT: Self = Self { index: 0, life: 0 };

    /// A second group, which managers have in tests.
    #[cfg(test)]
    pub const OTHER: Self = Self { index: 1, life: 0 };

    /// The number of the group's place among all groups, from 0 (the root) on. A group may get the place of
    /// one that was removed.
    pub fn number(self) -> usize {
        self.index()
    }

    /// The group in one word, which no other group of the manager has.
    pub(crate) fn key(self) -> u64 {
        u64::from(self.life) << 16 | u64::from(self.index)
    }

    /// The group's index in tables of groups, below [`MAX_GROUPS`](crate::config::MAX_GROUPS).
    pub(crate) fn index(self) -> usize {
        usize::from(self.index)
    }
}

impl Display for GroupId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "group {}", self.index)
    }
}

/// The group that pays for an object, read by many threads without a lock.
pub struct GroupCell(AtomicU32);

impl GroupCell {
    /// A cell that holds the root.
    pub fn root() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The group.
    pub fn get(&self) -> GroupId {
        let word = self.0.load(Ordering::Relaxed);
        GroupId { index: word as u16, life: (word >> 16) as u16 }
    }

    /// Replaces the group.
    pub fn set(&self, group: GroupId) {
        self.0.store(u32::from(group.life) << 16 | u32::from(group.index), Ordering::Relaxed);
    }
}

/// Why no frames can be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverLimit {
    /// No such run of frames is free in what the arena has so far.
    Arena,
    /// This group would use more than its `max`: the group that asks for frames, or one above it.
    Group(GroupId),
    /// This group would use more memory and swap than its `memory_swap_max`: the group that asks for frames,
    /// or one above it. That pages go to swap does not help.
    MemorySwap(GroupId),
}

/// How a writer is to wait until fewer pages are dirty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// The longest time to wait.
    pub time: Duration,
    /// The group whose pages the writer has dirtied.
    pub group: GroupId,
    /// More pages are dirty than the hard limit permits: the writer waits until fewer are, instead of only
    /// sleeping for its turn.
    pub full: bool,
}

/// How many folios have frames, in all groups together. The budget pays for the metadata of that many.
#[derive(Default)]
pub struct Folios {
    count: Lines<AtomicUsize>,
    peak: Lines<AtomicUsize>,
}

impl Folios {
    /// Counts one more folio.
    pub fn add(&self) {
        let folios = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if folios > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(folios, Ordering::Relaxed);
        }
    }

    /// Counts one folio fewer.
    pub fn remove(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many there are.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The most that there were at a time.
    pub fn most(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }
}

/// For how long faults have waited. The times are in nanoseconds since the birth of [`Starving`]. Threads
/// that note at the same time may begin the time twice, a moment apart.
#[derive(Default)]
struct Since {
    /// When the faults began to wait.
    began: AtomicU64,
    /// When a thread has seen a fault wait last; 0: no fault waits.
    seen: AtomicU64,
}

impl Since {
    /// A fault waits. The time begins now, if none has waited a moment ago.
    fn note(&self, now: Duration) {
        if self.time(now).is_none() {
            self.began.store(now.as_nanos() as u64, Ordering::Relaxed);
        }
        self.seen.store((now.as_nanos() as u64).max(1), Ordering::Relaxed);
    }

    fn end(&self) {
        self.seen.store(0, Ordering::Relaxed);
    }

    /// `None`: no fault waits. A fault that leaves without memory, since its mapping is gone, ends no time.
    /// So the time also ends if no waiting fault was seen for [`STARVED_LOOK`].
    fn time(&self, now: Duration) -> Option<Duration> {
        let seen = Duration::from_nanos(self.seen.load(Ordering::Relaxed));
        let since = Duration::from_nanos(self.began.load(Ordering::Relaxed));
        let waits = !seen.is_zero() && now.saturating_sub(seen) <= STARVED_LOOK;
        waits.then(|| now.saturating_sub(since))
    }
}

/// Measures for how long faults have waited for memory without any of them getting some.
pub struct Starving {
    born: Instant,
    /// How long faults have waited for memory, of the arena or of a group.
    all: Since,
    /// How long faults have waited for frames of the arena.
    arena: Since,
    /// Until when groups give what their `min` protects, in nanoseconds since `born`.
    min_gives_until: AtomicU64,
    /// Whether groups have given what their `min` protects, and whether that was told.
    min_was_given: AtomicBool,
    told_of_min: AtomicBool,
}

impl Starving {
    fn new() -> Self {
        Self {
            born: Instant::now(),
            all: Since::default(),
            arena: Since::default(),
            min_gives_until: AtomicU64::new(0),
            min_was_given: AtomicBool::new(false),
            told_of_min: AtomicBool::new(false),
        }
    }

    /// A fault waits for memory. `arena`: one waits for frames of the arena.
    pub fn note(&self, arena: bool) {
        let now = self.born.elapsed();
        self.all.note(now);
        if arena {
            self.arena.note(now);
        }
    }

    /// Ends the time: a fault that waited for memory has got some, or no fault waits any more.
    pub fn note_fed(&self) {
        self.all.end();
        self.arena.end();
    }

    /// For how long faults have waited for memory without any getting some.
    pub fn time(&self) -> Duration {
        self.all.time(self.born.elapsed()).unwrap_or_default()
    }

    /// Whether groups are to give what their `min` protects: faults have waited for frames of the arena for
    /// [`MIN_HOLDS`] without any getting some, or had done so within the last [`MIN_GIVES`].
    pub fn takes_min(&self) -> bool {
        let now = self.born.elapsed();
        if self.arena.time(now).is_some_and(|time| time > MIN_HOLDS) {
            self.min_gives_until.store((now + MIN_GIVES).as_nanos() as u64, Ordering::Relaxed);
        }
        (now.as_nanos() as u64) < self.min_gives_until.load(Ordering::Relaxed)
    }

    /// Groups have given what their `min` protects.
    pub fn note_min_given(&self) {
        self.min_was_given.store(true, Ordering::Relaxed);
    }

    /// Whether groups have given what their `min` protects, and that was not told. It counts as told then.
    pub fn is_min_to_be_told(&self) -> bool {
        self.min_was_given.load(Ordering::Relaxed) && !self.told_of_min.swap(true, Ordering::Relaxed)
    }
}

/// The groups of a manager.
pub struct Groups {
    tree: Tree,
    /// Held while groups are made or removed, and while limits are set.
    changes: Mutex<()>,
    stocks: PerThread<Stock>,
    /// The group whose memory is to be freed ahead of need.
    pub near_max: NearMax,
    dirty: DirtyLimits,
    locks: LockStats,
    /// The folios of all groups.
    pub folios: Folios,
    /// For how long faults have waited for memory in vain.
    pub starving: Starving,
}

impl Deref for Groups {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        &self.tree
    }
}

/// The least `max` of a group and of all groups above it, in pages, at most `all`; and whether each of them
/// uses less than three quarters of its `max`. A guess.
pub fn limit_of(groups: &Groups, group: GroupId, all: u64) -> (u64, bool) {
    let above = groups.lineage(group.index()).map(|index| groups.at(index));
    above.fold((all, true), |(most, is_free), group| {
        let max = group.limits.max();
        (most.min(max), is_free && group.usage.pages() < max / 4 * 3)
    })
}

impl Groups {
    /// The root group, and so many other children of it, for tests. `all`: how many pages of all groups
    /// together may be dirty.
    pub fn new(all: DirtyLimits, others: usize, locks: &LockStats) -> Self {
        let groups = Self {
            tree: Tree::new(),
            changes: Mutex::uncounted(LockClass::Groups, ()),
            stocks: PerThread::default(),
            near_max: NearMax::default(),
            dirty: all,
            locks: locks.clone(),
            folios: Folios::default(),
            starving: Starving::new(),
        };
        (0..=others).for_each(|index| groups.add_first(index));
        groups
    }

    /// The group with this name, or the group that has its place in the table now.
    pub fn of(&self, group: GroupId) -> &Group {
        self.at(group.index())
    }

    /// The names of all groups, removed ones that still have their place included.
    pub fn ids(&self) -> impl Iterator<Item = GroupId> {
        self.places().map(|(index, _)| self.id(index))
    }

    /// All groups, removed ones that still have their place included.
    pub fn all(&self) -> impl Iterator<Item = &Group> {
        self.places().map(|(index, _)| self.at(index))
    }

    /// The sum of the pages that are charged to all groups.
    pub fn charged_pages(&self) -> u64 {
        // Each group's count is exact only while no thread allocates: the sum may be below 0, and so wrap,
        // for a moment.
        self.all().map(Group::charged_pages).fold(0, u64::wrapping_add).min(i64::MAX as u64)
    }

    /// How many faults of all groups wait for I/O.
    pub fn waiting(&self) -> usize {
        self.all().map(Group::waiting).sum()
    }

    /// How many pages of all groups are dirty.
    pub fn dirty_pages(&self) -> usize {
        self.all().map(Group::dirty_pages).sum()
    }

    /// How many pages of all groups together may be dirty.
    pub fn dirty_limits(&self) -> DirtyLimits {
        self.dirty
    }

    /// Counts an event of a group.
    pub fn count(&self, group: GroupId, event: GroupEvent, n: u64) {
        self.of(group).counters.add(event, n);
    }

    /// A run of 2^`order` frames, charged to the payer's group, or, if that was removed, to the nearest group
    /// above it that was not removed.
    ///
    /// # Errors
    /// No such run is free in what the arena has so far, or a group's limit does not permit the charge.
    pub fn alloc(&self, mmu: &impl Mmu, payer: impl Into<Payer>, order: u8) -> Result<Frames, OverLimit> {
        let pages = 1_u32 << order;
        let group = self.charge(payer.into(), u64::from(pages))?;
        let Some(extent) = mmu.alloc(order) else {
            self.uncharge_pages(group, u64::from(pages));
            return Err(OverLimit::Arena);
        };
        Ok(Frames { extent, charge: Charge { group, pages } })
    }

    /// Moves the charge of frames to the root. Linux: `mem_cgroup_move_account`.
    pub fn charge_to_root(&self, frames: Frames) -> Frames {
        let (extent, charge) = frames.lend();
        let frames = self.lend_to_root(extent);
        self.uncharge(charge);
        frames
    }

    /// Charges an extent, whose group's charge the caller keeps, to the root as well, until
    /// [`Groups::take_from_root`] or [`Groups::uncharge`]. The group stays charged meanwhile, so that it
    /// can take the extent back whatever its limit is.
    pub fn lend_to_root(&self, extent: Extent) -> Frames {
        let pages = extent.pages() as u32;
        // The root has no limit.
        let group = self.charge(GroupId::ROOT.into(), u64::from(pages)).unwrap_or(GroupId::ROOT);
        Frames { extent, charge: Charge { group, pages } }
    }

    /// Takes back an extent that was lent to the root: only its group is charged for it again.
    pub fn take_from_root(&self, frames: Frames, charge: Charge) -> Frames {
        let (extent, of_root) = frames.lend();
        self.uncharge(of_root);
        charge.with(extent)
    }

    /// Frees frames, and takes back their charge.
    ///
    /// # Panics
    /// If a page of them is mapped.
    pub fn free(&self, mmu: &impl Mmu, frames: Frames) {
        let Frames { extent, charge } = frames;
        mmu.free(extent);
        self.uncharge(charge);
    }

    /// Takes frames of a clean page each, all of them mapped, out of their windows, and frees them: see
    /// [`Mmu::discard_clean`]. If a page is pinned, frees none and returns all of them; some may be home
    /// then.
    pub fn discard_clean(&self, mmu: &impl Mmu, frames: Vec<Frames>) -> Vec<Frames> {
        let (extents, charges): (Vec<_>, Vec<_>) = frames.into_iter().map(Frames::lend).unzip();
        let left = mmu.discard_clean(extents);
        if left.is_empty() {
            charges.into_iter().for_each(|charge| self.uncharge(charge));
            return Vec::new();
        }
        charges.into_iter().zip(left).map(|(charge, extent)| charge.with(extent)).collect()
    }

    /// Takes back a charge, of frames that are free now or charged to another group.
    pub fn uncharge(&self, charge: Charge) {
        let group = if MUTANT_FREE_TO_ROOT.planted() { GroupId::ROOT } else { charge.group };
        self.uncharge_pages(group, u64::from(charge.pages));
        std::mem::forget(charge);
    }

    /// The first group that has a page charged to it.
    pub fn with_charges(&self) -> Option<(usize, u64)> {
        self.all().map(Group::charged_pages).enumerate().find(|(_, pages)| *pages > 0)
    }
}

/// Frames that are charged to a group. They go back by [`Groups::free`].
#[derive(Debug)]
#[must_use = "frames are given back, not forgotten"]
pub struct Frames {
    extent: Extent,
    charge: Charge,
}

impl Frames {
    /// The group to which the frames are charged.
    pub fn group(&self) -> GroupId {
        self.charge.group
    }

    /// Separates the bare extent from its charge, which [`Charge::with`] joins again.
    pub fn lend(self) -> (Extent, Charge) {
        (self.extent, self.charge)
    }

    /// Splits the frames, which may be mapped and stay where they are, into runs of 2^`order` pages.
    ///
    /// # Panics
    /// If the frames are fewer than 2^`order`.
    pub fn split(self, order: u8) -> Vec<Frames> {
        let group = self.charge.group;
        std::mem::forget(self.charge);
        let charged = |extent| Frames { extent, charge: Charge { group, pages: 1 << order } };
        self.extent.split(order).into_iter().map(charged).collect()
    }

    /// Forgets the frames without freeing them: the manager ends, and they cannot be taken home.
    pub fn leak(self) {
        std::mem::forget(self);
    }
}

impl Deref for Frames {
    type Target = Extent;

    fn deref(&self) -> &Extent {
        &self.extent
    }
}

impl DerefMut for Frames {
    fn deref_mut(&mut self) -> &mut Extent {
        &mut self.extent
    }
}

/// The charge of an extent that was lent ([`Frames::lend`]).
#[derive(Debug)]
#[must_use = "the extent that it is for comes back"]
pub struct Charge {
    group: GroupId,
    pages: u32,
}

impl Charge {
    /// Joins the charge and its extent, which has come back.
    ///
    /// # Panics
    /// In debug builds, if the extent is not as large as the one that was lent.
    pub fn with(self, extent: Extent) -> Frames {
        debug_assert_eq!(extent.pages(), self.pages as usize, "another extent has come back");
        Frames { extent, charge: self }
    }
}

impl Drop for Charge {
    /// # Panics
    /// In debug builds: the frames of this charge were forgotten. Not while a panic unwinds, when that may
    /// happen.
    fn drop(&mut self) {
        debug_assert!(thread::panicking(), "{} pages of {:?} were forgotten", self.pages, self.group);
    }
}
