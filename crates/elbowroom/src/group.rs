//! Memory groups: frames are charged to them, and their dirty pages and waiting faults are counted. Linux:
//! `mem_cgroup`, `try_charge`, `uncharge_folio`.
//!
//! [`Frames`] are frames with their charge, and what the manager trades in: they come from
//! [`Groups::alloc`] and end in [`Groups::free`]. Between them the charge cannot be forgotten, and only
//! [`Groups::recharge`] changes it: a caller that needs the bare extent, for a device, keeps the [`Charge`]
//! and has to join the two again. There is one group, the root, so far.
//!
//! How much may be dirty is limited for all together, and for each group. What exceeding a limit means is not
//! decided here (`writeback::balance`).
//!
//! Synchronization: atomics. Charges are counted by threads in rows of their own, so they cost no shared
//! cache line; a reader adds the rows up.

use crate::ablation::Tuning;
use crate::config::{Config, MAX_GROUPS};
use elbowroom_machine::{Extent, Mmu, PAGE_SIZE};
use elbowroom_sync::Mutant;
use elbowroom_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Counters, Lines, thread};
use std::ops::{Deref, DerefMut};

/// In tests of the tests: what is charged to one group is given back to another.
const MUTANT_FREE_TO_ROOT: Mutant = Mutant::new("free_to_root");

/// A group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupId(u16);

impl GroupId {
    /// The group that pays for all that no other group is to pay for.
    pub const ROOT: Self = Self(0);

    /// Another one, which managers have in tests.
    #[cfg(test)]
    pub const OTHER: Self = Self(1);

    /// The group at this place in tables of groups.
    pub fn from_index(index: usize) -> Self {
        Self(index as u16)
    }

    /// Its place in tables of groups, below [`MAX_GROUPS`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// How many pages may be dirty. Linux: `dirty_background_ratio` and `dirty_ratio`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyLimits {
    /// The flusher works while more are.
    pub background: usize,
    /// No writer goes on while more are; at least `background`.
    pub hard: usize,
}

impl DirtyLimits {
    /// No limits.
    pub const NONE: Self = Self { background: usize::MAX / 2, hard: usize::MAX };

    /// A hard limit, and half of it for the background, as Linux has them.
    pub fn of(hard: usize) -> Self {
        Self { background: hard / 2, hard }
    }

    /// What the configuration asks for, in an arena of `frames`.
    pub fn for_arena(config: &Config, frames: usize) -> Self {
        let percent = |percent: usize| frames * percent / 100;
        // What is dirty cannot be evicted, and reads need frames, too.
        let most = percent(75);
        // At least one page may be dirty while nothing is written: else a flusher that is always quicker than
        // the thread whose store it waits for would take the page away before each store.
        match config.dirty {
            Some(bytes) => {
                let pages = usize::try_from(bytes / PAGE_SIZE as u64).unwrap_or(frames);
                Self::of(pages.min(most).max(2))
            }
            None => {
                let Tuning { dirty_percent, dirty_background_percent, .. } = config.ablation.tuning;
                let hard = percent(dirty_percent).min(most).max(2);
                Self { background: percent(dirty_background_percent).clamp(1, hard - 1), hard }
            }
        }
    }
}

/// How a writer is to wait for less to be dirty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// For so long at most.
    pub time: Duration,
    /// The group whose pages it has dirtied.
    pub group: GroupId,
    /// More is dirty than the hard limit: it waits for less to be dirty, not only for its turn.
    pub full: bool,
}

/// What is known of a group.
pub struct Group {
    charged: Counters<1>,
    /// Pages of its frames that differ from their file.
    dirty: AtomicUsize,
    /// How many of its pages may be dirty.
    limits: DirtyLimits,
    /// Its faults that wait for I/O.
    waiting: AtomicUsize,
}

impl Group {
    fn new(limits: DirtyLimits) -> Self {
        Self {
            charged: Counters::default(),
            dirty: AtomicUsize::default(),
            limits,
            waiting: AtomicUsize::default(),
        }
    }

    /// Pages that are charged to it. A sum of what threads have counted: exact if no other thread allocates.
    pub fn charged_pages(&self) -> u64 {
        self.charged.get(0)
    }

    /// So many more of its pages are dirty.
    pub fn add_dirty(&self, pages: usize) {
        self.dirty.fetch_add(pages, Ordering::AcqRel);
    }

    /// So many fewer of its pages are dirty.
    pub fn remove_dirty(&self, pages: usize) {
        self.dirty.fetch_sub(pages, Ordering::AcqRel);
    }

    /// How many of its pages are dirty.
    pub fn dirty_pages(&self) -> usize {
        self.dirty.load(Ordering::Acquire)
    }

    /// How many of its pages may be dirty.
    pub fn dirty_limits(&self) -> DirtyLimits {
        self.limits
    }

    /// One more of its faults waits for I/O.
    pub fn add_waiting(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// One fewer of its faults waits for I/O.
    pub fn remove_waiting(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many of its faults wait for I/O.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// How many folios have frames, of all groups together: what describes them is paid for by the budget.
#[derive(Default)]
pub struct Folios {
    count: Lines<AtomicUsize>,
    peak: Lines<AtomicUsize>,
}

impl Folios {
    /// There is one more folio.
    pub fn add(&self) {
        let folios = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if folios > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(folios, Ordering::Relaxed);
        }
    }

    /// There is one folio fewer.
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

/// For how long faults have waited for memory without any getting some.
pub struct Starving {
    born: Instant,
    /// When that began, in nanoseconds since `born`; 0: none waits.
    since: AtomicU64,
}

impl Starving {
    fn new() -> Self {
        Self { born: Instant::now(), since: AtomicU64::new(0) }
    }

    /// A fault waits for memory: the time begins now, if none waited before.
    pub fn note(&self) {
        let now = self.born.elapsed().as_nanos() as u64;
        let _ = self.since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// A fault that waited for memory has some, or none waits any more.
    pub fn note_fed(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// For how long faults have waited for memory without any getting some.
    pub fn time(&self) -> Duration {
        match self.since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => self.born.elapsed().saturating_sub(Duration::from_nanos(since)),
        }
    }
}

/// The groups of a manager.
pub struct Groups {
    groups: Vec<Group>,
    limits: DirtyLimits,
    /// The folios of all groups.
    pub folios: Folios,
    /// Whether faults wait for memory.
    pub starving: Starving,
}

impl Groups {
    /// The root group, which has no limits of its own, and others with these limits. `all`: how much may be
    /// dirty in all groups together.
    pub fn new(all: DirtyLimits, others: &[DirtyLimits]) -> Self {
        debug_assert!(others.len() < MAX_GROUPS);
        let groups = [DirtyLimits::NONE].iter().chain(others).map(|limits| Group::new(*limits));
        Self { groups: groups.collect(), limits: all, folios: Folios::default(), starving: Starving::new() }
    }

    /// A group.
    pub fn of(&self, group: GroupId) -> &Group {
        &self.groups[group.index()]
    }

    /// The pages that are charged to any group.
    pub fn charged_pages(&self) -> u64 {
        // Exact for each group only while no thread allocates: a difference may wrap for a moment.
        self.all().map(Group::charged_pages).fold(0, u64::wrapping_add).min(i64::MAX as u64)
    }

    /// How many faults of all groups wait for I/O.
    pub fn waiting(&self) -> usize {
        self.all().map(Group::waiting).sum()
    }

    /// How many pages of all groups are dirty.
    pub fn dirty_pages(&self) -> usize {
        self.groups.iter().map(Group::dirty_pages).sum()
    }

    /// How many pages of all groups together may be dirty.
    pub fn dirty_limits(&self) -> DirtyLimits {
        self.limits
    }

    /// The names of all groups.
    pub fn ids(&self) -> impl Iterator<Item = GroupId> {
        (0..self.groups.len() as u16).map(GroupId)
    }

    /// All groups.
    pub fn all(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter()
    }

    /// A run of 2^`order` frames, charged to `group`; `None` if none is free in what the arena has so far.
    pub fn alloc(&self, mmu: &impl Mmu, group: GroupId, order: u8) -> Option<Frames> {
        let extent = mmu.alloc(order)?;
        let charge = Charge { group, pages: extent.pages() as u32 };
        self.of(group).charged.add(0, u64::from(charge.pages));
        Some(Frames { extent, charge })
    }

    /// The same frames, charged to another group. Linux: `mem_cgroup_move_account`.
    pub fn recharge(&self, frames: Frames, to: GroupId) -> Frames {
        let Frames { extent, mut charge } = frames;
        if charge.group != to {
            self.of(charge.group).charged.add(0, u64::from(charge.pages).wrapping_neg());
            self.of(to).charged.add(0, u64::from(charge.pages));
            charge.group = to;
        }
        Frames { extent, charge }
    }

    /// Gives frames back.
    ///
    /// # Panics
    /// If a page of them is mapped.
    pub fn free(&self, mmu: &impl Mmu, frames: Frames) {
        let Frames { extent, charge } = frames;
        mmu.free(extent);
        self.uncharge(charge);
    }

    /// Takes frames of a clean page each, all of them mapped, out of their windows, and frees them: see
    /// [`Mmu::discard_clean`]. Gives all of them back if one is pinned; some may be home then.
    pub fn discard_clean(&self, mmu: &impl Mmu, frames: Vec<Frames>) -> Vec<Frames> {
        let (extents, charges): (Vec<_>, Vec<_>) = frames.into_iter().map(Frames::lend).unzip();
        let left = mmu.discard_clean(extents);
        if left.is_empty() {
            charges.into_iter().for_each(|charge| self.uncharge(charge));
            return Vec::new();
        }
        charges.into_iter().zip(left).map(|(charge, extent)| charge.with(extent)).collect()
    }

    fn uncharge(&self, charge: Charge) {
        let group = if MUTANT_FREE_TO_ROOT.planted() { GroupId::ROOT } else { charge.group };
        self.of(group).charged.add(0, u64::from(charge.pages).wrapping_neg());
        std::mem::forget(charge);
    }

    /// The first group that has a page charged to it.
    pub fn with_charges(&self) -> Option<(usize, u64)> {
        self.groups.iter().map(Group::charged_pages).enumerate().find(|(_, pages)| *pages > 0)
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
    /// The group to which they are charged.
    pub fn group(&self) -> GroupId {
        self.charge.group
    }

    /// The bare extent, and the charge that is still owed for it.
    pub fn lend(self) -> (Extent, Charge) {
        (self.extent, self.charge)
    }

    /// Frames of 2^`order` pages each, which may be mapped, and stay where they are.
    ///
    /// # Panics
    /// If the frames are fewer than 2^`order`.
    pub fn split(self, order: u8) -> Vec<Frames> {
        let group = self.charge.group;
        std::mem::forget(self.charge);
        let charged = |extent| Frames { extent, charge: Charge { group, pages: 1 << order } };
        self.extent.split(order).into_iter().map(charged).collect()
    }

    /// Gives them up where they are: the manager ends, and they cannot be taken home.
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
    /// In debug builds, if it is not as large as the one that was lent.
    pub fn with(self, extent: Extent) -> Frames {
        debug_assert_eq!(extent.pages(), self.pages as usize, "another extent has come back");
        Frames { extent, charge: self }
    }
}

impl Drop for Charge {
    /// # Panics
    /// In debug builds: frames were forgotten. Not while a panic unwinds, which leaves things half done.
    fn drop(&mut self) {
        debug_assert!(thread::panicking(), "{} pages of {:?} were forgotten", self.pages, self.group);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use elbowroom_machine::soft::{SoftConfig, SoftMmu};
    use elbowroom_machine::{Access, Wake};
    use elbowroom_sync::LockStats;

    const OTHER: GroupId = GroupId::OTHER;

    fn world() -> (Groups, SoftMmu) {
        let mmu = SoftMmu::new(SoftConfig::new(2048), &LockStats::new()).unwrap();
        while mmu.grow().unwrap() {}
        (Groups::new(DirtyLimits::NONE, &[DirtyLimits::of(10)]), mmu)
    }

    #[test]
    fn what_is_charged_to_a_group_is_given_back_to_it() {
        let (groups, mmu) = world();
        let charged = || [GroupId::ROOT, OTHER].map(|group| groups.of(group).charged_pages());
        let (one, nine) = (groups.alloc(&mmu, GroupId::ROOT, 0), groups.alloc(&mmu, OTHER, 9));
        assert_eq!(charged(), [1, 512]);
        let mut small = nine.unwrap().split(0);
        assert_eq!((small.len(), charged()), (512, [1, 512]));
        small.drain(2..).for_each(|frames| groups.free(&mmu, frames));
        assert_eq!(charged(), [1, 2]);
        let moved = groups.recharge(small.pop().unwrap(), GroupId::ROOT);
        assert_eq!(charged(), [2, 1]);
        let (extent, charge) = groups.recharge(moved, OTHER).lend();
        groups.free(&mmu, charge.with(extent));
        let left = groups.discard_clean(&mmu, small);
        assert_eq!((left.len(), charged()), (0, [1, 0]));
        groups.free(&mmu, one.unwrap());
        assert_eq!((charged(), groups.with_charges()), ([0, 0], None));
    }

    /// A page that is pinned keeps its charge, and so do those that were to go with it.
    #[test]
    fn what_cannot_be_discarded_stays_charged() {
        let (groups, mmu) = world();
        let start = SoftMmu::space_range(mmu.create_space().unwrap()).start;
        let mut both: Vec<_> = (0..2).filter_map(|_| groups.alloc(&mmu, OTHER, 0)).collect();
        for (frames, addr) in both.iter_mut().zip((start..).step_by(elbowroom_machine::PAGE_SIZE)) {
            mmu.map(frames, addr, 0..1, Access::Write, Wake::Now).unwrap();
        }
        let cpu = mmu.cpu();
        let pin = cpu.pin(start, 8, elbowroom_machine::soft::Intent::Read).unwrap();
        let both = groups.discard_clean(&mmu, both);
        assert_eq!((both.len(), groups.of(OTHER).charged_pages()), (2, 2));
        drop(pin);
        for mut frames in both {
            mmu.unmap(&mut frames).unwrap();
            groups.free(&mmu, frames);
        }
        assert_eq!(groups.with_charges(), None);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "4 pages of GroupId(1) were forgotten")]
    fn frames_cannot_be_forgotten() {
        let (groups, mmu) = world();
        drop(groups.alloc(&mmu, OTHER, 2));
    }
}
