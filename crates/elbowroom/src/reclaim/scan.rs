//! A scan: which lists give next, and how much of each is looked at. Linux: `shrink_node_memcgs`,
//! `get_scan_count` and `shrink_lruvec`.
//!
//! The lists of each group and kind give pages in proportion to their sizes beyond the group's protection,
//! and give more the less it cost lately to take from their kind (`cost`). Over many batches, each list
//! loses the same part of its unprotected pages, weighted by that. Lists that gave nothing are left alone
//! until all others gave nothing. A group within its `low` is left alone, too, unless all others gave
//! nothing; a group within its `min` always, but for an access that would fail else. Anonymous memory is
//! left alone where no more may go to swap:
//! of a group whose swap is at its limit, and wherever memory and swap together are to become less.

use super::Reclaim;
use super::cost::{self, Cost};
use super::policy::{Listed, Policy, Turns};
use crate::config::{RECLAIM_BATCH_FOLIOS, RECLAIM_SCAN_FACTOR};
use crate::group::{GroupEvent, GroupId, Kind, Protected};
use crate::lru::{Batch, Lruvec, Taken};
use crate::page::Woken;
use crate::platform::Platform;

/// Which groups give nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Spared {
    /// Groups within their `min`, or within their `low`.
    Low,
    /// Only groups within their `min`. Linux: `memcg_low_reclaim`.
    Min,
    /// No group: each gives, within its `min`, too.
    Nothing,
}

/// The use that a scan is to make less: that of a group, with the groups below it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    group: GroupId,
    /// Whether it helps that pages go to swap. Linux: `scan_control.may_swap`.
    may_swap: bool,
    /// Which groups give nothing, even if all others have nothing left to give.
    spares: Spared,
}

impl From<GroupId> for Target {
    /// The group's memory.
    fn from(group: GroupId) -> Self {
        Self { group, may_swap: true, spares: Spared::Min }
    }
}

impl Target {
    /// The memory and swap of a group together: only pages of files can be freed.
    pub(crate) fn memory_and_swap(group: GroupId) -> Self {
        Self { group, may_swap: false, spares: Spared::Min }
    }

    /// The group's memory, ahead of need: of no group what its `low` protects.
    pub(super) fn ahead(group: GroupId) -> Self {
        Self { group, may_swap: true, spares: Spared::Low }
    }

    /// The arena, for an access that finds no frame in it: as the last resort groups give what their `min`
    /// protects, since the access would fail else.
    pub(crate) fn arena_for_access() -> Self {
        Self { group: GroupId::ROOT, may_swap: true, spares: Spared::Nothing }
    }
}

/// One scan of a group and the groups below it.
pub(super) struct Scan<'a, P: Platform> {
    reclaim: &'a Reclaim<P>,
    target: Target,
    /// Takes the faults that waited for a folio that the scan unlocked.
    woken: &'a dyn Woken,
}

/// The lists of one group and kind, from which pages may be taken.
struct Source<'a> {
    lruvec: &'a Lruvec,
    group: GroupId,
    kind: Kind,
    /// How many pages the lists may have.
    room: usize,
    /// The weight of a page of these lists: the part of the group that is not protected, in 1/1,024, times
    /// the weight of the kind.
    part: u64,
}

/// The unprotected part of a group without protection. Parts are in 1/1,024 of its usage.
const WHOLE: u64 = 1024;

impl<'a, P: Platform> Scan<'a, P> {
    /// A scan for a group whose pages are to be freed.
    pub(super) fn new(reclaim: &'a Reclaim<P>, target: Target, woken: &'a dyn Woken) -> Self {
        Self { reclaim, target, woken }
    }

    /// Frees about `want` pages; returns how many.
    pub(super) fn shrink(&self, want: usize) -> usize {
        for spared in [Spared::Low, Spared::Min, Spared::Nothing] {
            let is_barred = spared == Spared::Nothing && !self.takes_min();
            if spared > self.target.spares || is_barred {
                break;
            }
            let (mut freed, mut skipped) = self.shrink_inactive(want, spared);
            if freed == 0 && self.reclaim.lists.drain() {
                (freed, skipped) = self.shrink_inactive(want, spared);
            }
            let may_deactivate = self.target.spares != Spared::Low && !self.reclaim.is_writing_enough();
            if freed == 0 && may_deactivate && self.deactivate(want, spared) {
                freed = self.shrink_inactive(want, spared).0;
            }
            if freed > 0 && spared == Spared::Nothing {
                self.reclaim.groups.starving.note_min_given();
            }
            if freed > 0 || !skipped {
                return freed;
            }
        }
        0
    }

    /// Whether groups give what their `min` protects. Not while pages are on their way out: they are free
    /// soon.
    fn takes_min(&self) -> bool {
        let Self { reclaim, target, .. } = self;
        target.spares == Spared::Nothing && reclaim.to_write.own() == 0 && reclaim.groups.starving.takes_min()
    }

    /// Frees about `want` pages from the inactive and standby lists. Returns how many, and whether groups
    /// were left alone since they are within their protection.
    fn shrink_inactive(&self, want: usize, spared: Spared) -> (usize, bool) {
        let (mut freed, (mut sources, skipped)) = (0, self.sources(spared));
        while freed < want && !self.reclaim.is_writing_enough() {
            let weighed = |source: &Source<'a>| (self.weight(source), source.lruvec.account());
            let turns = Turns::new(sources.iter().map(weighed));
            let batch = want - freed;
            let Some(next) = turns.next(batch as u64) else { break };
            let source = sources.swap_remove(next);
            let got = self.shrink_lruvec(&source, batch);
            // Pages that are being written are not counted yet. What has nothing to give is not to be asked
            // first each time.
            turns.note(next, got.max(batch) as u64);
            self.reclaim.groups.count(source.group, GroupEvent::Stolen(source.kind), got as u64);
            freed += got;
            if got > 0 {
                sources.push(source);
            }
        }
        (freed, skipped)
    }

    /// The lists that have pages and may give some, and whether groups were left alone since they are
    /// within their protection.
    fn sources(&self, spared: Spared) -> (Vec<Source<'a>>, bool) {
        let (reclaim, mut skipped) = (self.reclaim, false);
        let mut sources = Vec::new();
        let Target { group: target, may_swap, .. } = self.target;
        let all = reclaim.groups.protected_below(target);
        let below: Vec<_> = all.iter().map(|group| group.group).collect();
        let swappiness = reclaim.groups.swappiness(target);
        let weights = cost::look(reclaim, target, &below).weights(swappiness);
        for Protected { group, usage, min, low } in all {
            let within = |protection: u64| protection > 0 && protection >= usage;
            if within(min) && spared != Spared::Nothing {
                skipped |= usage > 0;
                continue;
            }
            let lists = Kind::ALL.map(|kind| (kind, reclaim.lists.at(group, kind)));
            let stays = || !may_swap || reclaim.groups.refuses_swap(group);
            let may_give = |(kind, lruvec): &(Kind, &Lruvec)| {
                lruvec.listed_pages() > 0 && !(*kind == Kind::Anonymous && stays())
            };
            let mut lists = lists.into_iter().filter(may_give).peekable();
            if within(low) && lists.peek().is_some() {
                if spared == Spared::Low {
                    skipped = true;
                    continue;
                }
                reclaim.groups.count(group, GroupEvent::Low, 1);
            }
            let protection = match spared {
                Spared::Low => min.max(low),
                Spared::Min => min,
                Spared::Nothing => 0,
            };
            let part = match usage.max(protection) {
                0 => WHOLE,
                all => WHOLE - (u128::from(WHOLE) * u128::from(protection) / u128::from(all)) as u64,
            };
            sources.extend(lists.map(|(kind, lruvec)| {
                let room = room_of(reclaim, group, lruvec);
                let part = part * weights[kind as usize];
                Source { lruvec, group, kind, room, part }
            }));
        }
        (sources, skipped)
    }

    /// The weight of lists, for [`Turns`]: their pages that can be taken now (those not touched for some
    /// time, and active ones beyond their share), less the protected part, times the weight of the kind.
    fn weight(&self, Source { lruvec, room, part, .. }: &Source<'_>) -> u64 {
        let share = self.reclaim.policy.valued_share(*room);
        let pages = lruvec.idle_pages() + lruvec.active_pages().saturating_sub(share);
        (pages as u64).saturating_mul(*part)
    }

    /// Makes about `want` pages of all active lists inactive, but at least a batch; `false`: no page was
    /// active.
    fn deactivate(&self, want: usize, spared: Spared) -> bool {
        let batch = want.max(self.reclaim.tuning().reclaim_batch_pages);
        let sources = self.sources(spared).0;
        let all: usize = sources.iter().map(|source| source.lruvec.active_pages()).sum();
        let part = |lruvec: &Lruvec| (batch * lruvec.active_pages()).div_ceil(all.max(1));
        sources.iter().filter(|source| source.lruvec.deactivate(part(source.lruvec))).count() > 0
    }

    /// Frees about `want` pages of one group's folios of one kind; returns how many.
    fn shrink_lruvec(&self, source: &Source<'_>, want: usize) -> usize {
        let (Self { reclaim, woken, .. }, Source { lruvec, group, kind, room, .. }) = (self, source);
        let of = Listed { kind: *kind, room: *room, divided: lruvec.divided() };
        let mut freed = 0;
        let mut looks = (want * RECLAIM_SCAN_FACTOR).max(256);
        let pages = want.max(reclaim.tuning().reclaim_batch_pages);
        let scanned = |pages: u64| reclaim.groups.count(*group, GroupEvent::Scanned(*kind), pages);
        // Whether the last batch of the inactive list had only folios that cannot be taken now.
        let mut barren = false;
        while freed < want && looks > 0 && !reclaim.is_writing_enough() {
            let mut rotated = 0;
            let next = |sizes, active| {
                rotated = active;
                reclaim.policy.next(sizes, of, barren)
            };
            let batch = Batch { pages, folios: RECLAIM_BATCH_FOLIOS, wanted: want - freed };
            let taken = lruvec.take(reclaim.policy.active_share(of), batch, next);
            cost::note(reclaim, (*group, *kind), Cost::Rotation, rotated as u64);
            match taken {
                Some(Taken::Standby(folios)) => {
                    looks = looks.saturating_sub(folios.len());
                    scanned(folios.iter().map(|folio| folio.pages()).sum());
                    let visit = |folio| reclaim.visit_standby(folio, of, *woken);
                    freed += folios.into_iter().map(visit).sum::<usize>();
                }
                Some(Taken::Inactive(folios)) => {
                    looks = looks.saturating_sub(folios.len());
                    scanned(folios.iter().map(|folio| folio.pages()).sum());
                    let (aged, evicted) = reclaim.age(folios, *woken);
                    freed += evicted;
                    barren = aged == 0 && evicted == 0;
                }
                None => break,
            }
        }
        freed
    }
}

/// How many pages the lists of a group and kind may have. The lists of the root share, in proportion to
/// their sizes, all frames that may be in lists. The lists of any other group have their present size as
/// room: when such a group is reclaimed from, it or the arena is full.
pub(super) fn room_of<P: Platform>(reclaim: &Reclaim<P>, group: GroupId, lruvec: &Lruvec) -> usize {
    let listed = lruvec.listed_pages();
    if group != GroupId::ROOT {
        return listed;
    }
    let lists = |group| Kind::ALL.map(|kind| reclaim.lists.at(group, kind).listed_pages());
    let all: usize = reclaim.groups.ids().flat_map(lists).sum();
    let room = reclaim.listable_frames();
    if listed >= all { room } else { (room as u128 * listed as u128 / all as u128) as usize }
}

/// The lists of the root, as if they were all that there are.
pub(super) fn all_of<P: Platform>(reclaim: &Reclaim<P>, kind: Kind) -> Listed<'_> {
    let divided = reclaim.lists.at(GroupId::ROOT, kind).divided();
    Listed { kind, room: reclaim.listable_frames(), divided }
}
