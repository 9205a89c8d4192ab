//! One [`Lruvec`] for each group and kind of memory, and what is known of what was evicted of them. Linux:
//! `struct mem_cgroup_per_node`.
//!
//! Synchronization: a lock for each lruvec; atomics.

use super::shadow::{Refault, Shadows};
use super::{List, Lruvec};
use crate::config::MAX_GROUPS;
use crate::group::GroupId;
use crate::page::Folio;
use elbowroom_sync::atomic::{AtomicUsize, Ordering};
use elbowroom_sync::{Arc, LockStats, OnceLock};

/// What pages belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Spaces.
    Anonymous,
    /// Files, or memory that mappings share.
    File,
}

impl Kind {
    /// How many there are.
    pub(crate) const COUNT: usize = 2;

    /// Both, in the order of their numbers.
    pub(crate) const ALL: [Self; Self::COUNT] = [Self::Anonymous, Self::File];

    /// The kind of a folio.
    pub(crate) fn of(folio: &Folio) -> Self {
        if folio.is_cached() { Self::File } else { Self::Anonymous }
    }
}

/// The lruvecs of all groups. Those of a group are made with its first folio, and stay when it is removed:
/// folios that it has still are in them.
pub(crate) struct Lruvecs {
    groups: Vec<OnceLock<[Lruvec; Kind::COUNT]>>,
    shadows: Shadows,
    /// How many times lists were chosen to give next.
    turn: AtomicUsize,
    locks: LockStats,
}

impl Lruvecs {
    /// Empty lists, for folios that have `frames` in all.
    pub(crate) fn new(frames: usize, locks: &LockStats) -> Self {
        Self {
            groups: (0..MAX_GROUPS).map(|_| OnceLock::new()).collect(),
            shadows: Shadows::new(frames),
            turn: AtomicUsize::new(0),
            locks: locks.clone(),
        }
    }

    /// Adds a folio that is in no list to this one of its group and kind, unless it is dead.
    #[track_caller]
    pub(crate) fn add(&self, folio: Arc<Folio>, list: List) {
        let pages = folio.pages() as u32;
        self.add_as(folio, list, pages);
    }

    /// [`Lruvecs::add`] for a folio that counts as so many pages: it is a sample, and stands for that many.
    #[track_caller]
    pub(crate) fn add_as(&self, folio: Arc<Folio>, list: List, pages: u32) {
        self.of(&folio).add_as(folio, list, pages);
    }

    /// Takes a dead folio out of its list, if it is in one.
    #[track_caller]
    pub(crate) fn remove(&self, folio: &Folio) {
        self.of(folio).remove(folio);
    }

    /// Notes that a folio of the file with this serial number was evicted.
    pub(crate) fn note_evicted(&self, file: u64, folio: &Folio) {
        let now = self.of(folio).note_evicted(folio.pages());
        self.shadows.evicted([file, folio.index], folio.group, now);
    }

    /// What is known of a folio of the file that has just come in: `Some` if it was evicted before. Forgets
    /// it.
    pub(crate) fn refault(&self, file: u64, folio: &Folio) -> Option<Refault> {
        let clock = |group| self.at(group, Kind::File).evicted_pages();
        self.shadows.refault([file, folio.index], clock)
    }

    /// The lists of some groups.
    pub(crate) fn of_groups(&self, groups: impl Iterator<Item = GroupId>) -> impl Iterator<Item = &Lruvec> {
        groups.flat_map(|group| self.of_group(group))
    }

    /// How many pages these lists may have if those of the groups have `room` in all: a part in proportion to
    /// their size.
    pub(crate) fn room_of(
        &self,
        lruvec: &Lruvec,
        groups: impl Iterator<Item = GroupId>,
        room: usize,
    ) -> usize {
        let all: usize = self.of_groups(groups).map(Lruvec::listed_pages).sum();
        match lruvec.listed_pages() {
            listed if listed >= all => room,
            listed => (room as u128 * listed as u128 / all as u128) as usize,
        }
    }

    /// The number of the turn in which lists are chosen next.
    pub(crate) fn next_turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// Those of a group, by kind.
    fn of_group(&self, group: GroupId) -> &[Lruvec; Kind::COUNT] {
        self.groups[group.index()].get_or_init(|| Kind::ALL.map(|_| Lruvec::new(&self.locks)))
    }

    /// That of a group and kind.
    pub(crate) fn at(&self, group: GroupId, kind: Kind) -> &Lruvec {
        &self.of_group(group)[kind as usize]
    }

    /// The one that has a folio, if any has.
    fn of(&self, folio: &Folio) -> &Lruvec {
        self.at(folio.group, Kind::of(folio))
    }

    /// Those of all groups.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Lruvec> {
        self.groups.iter().filter_map(OnceLock::get).flatten()
    }
}
