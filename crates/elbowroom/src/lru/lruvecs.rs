//! One [`Lruvec`] for each group and kind of memory, and the shadow entries of evicted folios. Linux:
//! `struct mem_cgroup_per_node`.
//!
//! Synchronization: a lock for each lruvec, and for each thread's batch; atomics.

use super::additions::{Addition, Additions};
use super::shadow::Shadows;
use super::{List, Lruvec};
use crate::config::MAX_GROUPS;
use crate::group::{GroupId, Kind};
use crate::page::Folio;
use elbowroom_sync::{Arc, LockStats, Mutant, OnceLock};

/// In tests of the tests: folios stay in the batches of threads that list no further ones.
const MUTANT_KEEP_BATCHES: Mutant = Mutant::new("keep_batches");

/// The kind of a folio.
fn kind_of(folio: &Folio) -> Kind {
    if folio.is_cached() { Kind::File } else { Kind::Anonymous }
}

/// A folio that comes back after it was evicted.
pub(crate) struct Refault<'l> {
    /// The lists of the group that paid for it when it was evicted.
    pub(crate) lists: &'l Lruvec,
    /// How many pages were evicted from these lists since then.
    pub(crate) distance: u64,
    /// How many pages that were evicted later are still out: with so many more frames the folio would not
    /// have been. `None`: it was evicted too long ago.
    pub(crate) later: Option<u64>,
    /// For how many pages that come back so late it stands: those of which it is forgotten that they were
    /// evicted are not seen.
    pub(crate) pages: u64,
}

/// The lruvecs of all groups. Those of a group are made with its first folio, and stay when the group is
/// removed, since they may still hold folios.
pub(crate) struct Lruvecs {
    groups: Vec<OnceLock<Box<[Lruvec; Kind::COUNT]>>>,
    additions: Additions,
    frames: usize,
    shadows: Shadows,
    locks: LockStats,
}

impl Lruvecs {
    /// Empty lists, for an arena of `frames` frames.
    pub(crate) fn new(frames: usize, locks: &LockStats) -> Self {
        Self {
            groups: (0..MAX_GROUPS).map(|_| OnceLock::new()).collect(),
            additions: Additions::default(),
            frames,
            shadows: Shadows::new(frames),
            locks: locks.clone(),
        }
    }

    /// Adds a folio that is in no list to the list `list` of its group and kind, unless it is dead: soon,
    /// with others of the calling thread.
    pub(crate) fn add(&self, folio: Arc<Folio>, list: List) {
        let pages = folio.pages() as u32;
        self.add_as(folio, list, pages);
    }

    /// [`Lruvecs::add`] for a folio that counts as so many pages: as a sample, it stands for other folios,
    /// too.
    pub(crate) fn add_as(&self, folio: Arc<Folio>, list: List, pages: u32) {
        self.additions.add(Addition { folio, list, pages }, |additions| self.list(additions));
    }

    /// Lists the folios of all threads that are to be listed; `false`: there were none.
    pub(crate) fn drain(&self) -> bool {
        !MUTANT_KEEP_BATCHES.planted() && self.additions.drain(|additions| self.list(additions))
    }

    /// Lists folios, those of the same lruvec that follow each other together.
    fn list(&self, additions: &mut Vec<Addition>) {
        let mut rest = additions.drain(..).peekable();
        while let Some(first) = rest.peek() {
            let lruvec = self.of(&first.folio);
            lruvec
                .add(std::iter::from_fn(|| rest.next_if(|next| std::ptr::eq(self.of(&next.folio), lruvec))));
        }
    }

    /// Takes a dead folio out of its list, if it is in one.
    #[track_caller]
    pub(crate) fn remove(&self, folio: &Folio) {
        self.of(folio).remove([folio]);
    }

    /// [`Lruvecs::remove`] of several folios, those of the same lruvec that follow each other together.
    #[track_caller]
    pub(crate) fn remove_all(&self, folios: &[Arc<Folio>]) {
        for same in folios.chunk_by(|one, next| std::ptr::eq(self.of(one), self.of(next))) {
            self.of(&same[0]).remove(same.iter().map(|folio| &**folio));
        }
    }

    /// Notes that a folio of the file with this serial number was evicted.
    pub(crate) fn note_evicted(&self, file: u64, folio: &Folio) {
        let now = self.of(folio).evicted().note_out(folio.pages());
        self.shadows.evicted([file, folio.index], folio.group, now);
    }

    /// Looks up whether a folio of the file that has just come in was evicted before, and when; `None`: it
    /// was not, or that is forgotten. Removes its shadow entry.
    pub(crate) fn refault(&self, file: u64, folio: &Folio) -> Option<Refault<'_>> {
        let lists = |group: usize| &self.of_index(group)[Kind::File as usize];
        let (group, distance) =
            self.shadows.refault([file, folio.index], |group| lists(group).evicted().clock())?;
        let (lists, pages) = (lists(group), folio.pages());
        let then = lists.evicted().clock().saturating_sub(distance);
        let later = lists.evicted().later(then);
        // Of the evictions since, at least `later` were of different pages, and at most `distance`: the mean
        // is taken.
        let different = (later.unwrap_or(distance) + distance) / 2;
        let pages = self.shadows.stands_for(different) * pages as f64;
        // The fraction is rounded up as often as its size says, by a part of the distance that is as good as
        // random.
        let pages = (pages + (distance % 64) as f64 / 64.0) as u64;
        lists.evicted().note_back(then, pages);
        Some(Refault { lists, distance, later, pages })
    }

    /// The lruvecs of the group with this index, by kind.
    fn of_index(&self, group: usize) -> &[Lruvec; Kind::COUNT] {
        self.groups[group].get_or_init(|| Box::new(Kind::ALL.map(|_| Lruvec::new(self.frames, &self.locks))))
    }

    /// The lruvec of a group and kind.
    pub(crate) fn at(&self, group: GroupId, kind: Kind) -> &Lruvec {
        &self.of_index(group.index())[kind as usize]
    }

    /// The lruvec of a folio's group and kind.
    fn of(&self, folio: &Folio) -> &Lruvec {
        self.at(folio.group, kind_of(folio))
    }

    /// The lruvecs of all groups.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Lruvec> {
        self.groups.iter().filter_map(OnceLock::get).flat_map(|lists| lists.iter())
    }
}
