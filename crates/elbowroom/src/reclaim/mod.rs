//! Making frames free: second chances, eviction, and what a refault means.
//!
//! How frames are given out, and the thread that keeps some at hand, are in [`mod@supply`] and
//! [`mod@supplier`]; what is special about anonymous memory is in [`mod@anon`], and what becomes of pages of
//! zeros in [`mod@zeros`]. Nothing here waits: a locked or held folio is passed over, a dirty one is handed
//! to the flusher.

mod anon;
mod cost;
mod high;
mod policy;
mod proactive;
mod run_memory;
mod scan;
mod supplier;
mod supply;
#[cfg(all(test, not(shuttle)))]
mod tests;
mod zeros;

pub(crate) use self::anon::Out;
pub(crate) use self::high::see_to_high;
pub(crate) use self::proactive::need;
pub(crate) use self::scan::Target;

use self::cost::{Cost, CostTable};
use self::policy::{Chance, Listed, Policy, Refaulted, TwoLists};
use self::run_memory::RunMemory;
use self::scan::Scan;
pub(crate) use self::supplier::Supplier;
use self::supplier::Supply;
use crate::config::{
    FAILED_DIRTY_KEEP, FIXED_BYTES, OVERTAKEN_ONE_IN, RUN_ORDER, SLOTS_AHEAD_SHARE, WRITES_AHEAD,
};
use crate::core::Core;
use crate::group::{Frames, GroupEvent, Kind};
use crate::learned::{Kept, Learned};
use crate::lru::{List, Lruvec, Lruvecs, Refault};
use crate::object::{ALL_PAGES, FileObject};
use crate::page::{Flag, Folio, LockedFolio, Ready, Woken};
use crate::platform::Platform;
use crate::process_tree::KEPT;
use crate::runs::Runs;
use crate::stats::Event;
#[cfg(any(debug_assertions, shuttle))]
use crate::swap::groups_of_slots;
use crate::trace::Happened;
use elbowroom_machine::{Errno, Mmu, PAGE_SIZE, UnmapError};
use elbowroom_sync::time::Instant;
use elbowroom_sync::{Arc, thread};
use std::ops::Deref;

/// Memory is plenty while a sixteenth of the arena is free.
const PLENTY: usize = 16;

/// The swap file is behind while one part in this many of the pages that may wait for it waits.
const BEHIND: usize = 2;

/// Where a folio that reclaim met goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Gone,
    Inactive,
    Active,
}

/// How reclaim has met a folio from a list.
enum Met<'a> {
    Locked(LockedFolio<'a>),
    Not(Arc<Folio>, Fate),
}

/// How memory is used: what is worth bringing together.
pub(crate) struct Patterns {
    /// Which parts of files are read whole.
    pub(crate) files: Learned,
    /// What keeps that for the next run, if anything does.
    pub(crate) kept: Option<Kept>,
    /// What of anonymous memory comes in together, and whether all of it was wanted.
    pub(crate) anon: Runs,
}

/// The lists of folios, and what frees their frames.
pub(crate) struct Reclaim<P: Platform> {
    core: Core<P>,
    lists: Lruvecs,
    policy: TwoLists,
    /// What it cost lately to take from each group and kind.
    costs: CostTable,
    patterns: Patterns,
    /// What the thread that keeps frames at hand shares with others.
    supply: Supply,
    began: Instant,
}

impl<P: Platform> Deref for Reclaim<P> {
    type Target = Core<P>;

    fn deref(&self) -> &Core<P> {
        &self.core
    }
}

impl<P: Platform> Drop for Reclaim<P> {
    fn drop(&mut self) {
        // The arena gives its memory back only if all of it is free. No thread has a space of ours any
        // more.
        let spaces = self.spaces.all();
        let own = spaces.iter().flat_map(|mm| mm.anon.in_range(ALL_PAGES)).map(|own| own.1);
        // Memory that mappings share is in no table.
        let mapped = spaces.iter().flat_map(|mm| mm.objects());
        let objects = self.objects.all().into_iter().chain(self.objects.unmapped.take()).chain(mapped);
        let cached = objects.flat_map(|object| object.folios_in(ALL_PAGES));
        let nobody = Ready::default();
        let mut leaked = false;
        // The lists may have folios of objects that the table has given up.
        self.lists.drain();
        let queued: Vec<_> = self.lists.all().flat_map(Lruvec::take_all).collect();
        debug_assert!(thread::panicking() || queued.iter().all(|folio| !folio.state.test(Flag::Dead)));
        for folio in cached.chain(own).chain(queued) {
            // No thread is left that could have locked it.
            let Ok(mut folio) = LockedFolio::try_lock(folio, &self.waits, &nobody) else { continue };
            self.forget_kept(&mut folio);
            if let Some(mut frames) = folio.body_mut().extent.take() {
                match self.mmu.unmap(&mut frames) {
                    Ok(()) => self.free(frames),
                    Err(_) => {
                        frames.leak();
                        leaked = true;
                    }
                }
            }
        }
        #[cfg(any(debug_assertions, shuttle))]
        if !thread::panicking() {
            self.groups.check_swap(groups_of_slots(&self.swap).into_iter());
        }
        self.swap.take_frames().into_iter().for_each(|frames| self.free(frames));
        debug_assert!(leaked || thread::panicking() || self.groups.with_charges().is_none());
        if let Some(member) = &self.config.member {
            member.give_all();
        }
    }
}

impl<P: Platform> Reclaim<P> {
    pub(crate) fn new(core: Core<P>) -> Self {
        if let Some(member) = &core.config.member {
            core.mmu.allowance().restrict();
            member.charge(KEPT);
            core.mmu.allowance().add(KEPT);
        }
        Self {
            lists: Lruvecs::new(core.mmu.frames(), &core.locks),
            policy: TwoLists::new(&core.config.ablation, core.config.reclaim.division),
            costs: CostTable::new(&core.locks),
            patterns: Patterns {
                files: Learned::new(core.mmu.frames() * PAGE_SIZE, &core.locks),
                kept: core.config.records.learned.clone().map(|path| Kept::new(path, &core.locks)),
                anon: Runs::new(core.mmu.frames(), &core.locks),
            },
            supply: Supply::new(core.config.member.as_ref(), &core.locks),
            began: Instant::now(),
            core,
        }
    }

    /// How memory is used.
    pub(crate) fn patterns(&self) -> &Patterns {
        &self.patterns
    }

    /// The process's part of the run's budget, if it is the process of a run.
    fn run(&self) -> Option<RunMemory<'_, P::Mmu>> {
        let member = self.config.member.as_ref()?;
        Some(RunMemory { member, mmu: &self.mmu, swap: &self.swap })
    }

    /// The work of the thread that keeps frames at hand.
    pub(crate) fn supplier(&self) -> Supplier<'_, P> {
        Supplier(self)
    }

    /// Whether much of the memory is free. A guess.
    pub(crate) fn is_plenty(&self) -> bool {
        self.has_free(PLENTY)
    }

    /// Frees about `want` pages of a group and those below it; returns how many. Faults that waited for a
    /// folio it unlocked go to `woken`.
    pub(crate) fn shrink(&self, target: impl Into<Target>, want: usize, woken: &dyn Woken) -> usize {
        let target = target.into();
        let shrink = || Scan::new(self, target, woken).shrink(want);
        let freed = self.noted(Happened::Reclaim, |freed| [want as u64, *freed as u64], shrink);
        // Not all of them: the thread that waits for frames is to get some.
        self.pay_frames(freed / 2);
        freed
    }

    /// Whether so much waits for the flusher that the swap file seems to be the bottleneck: pages are
    /// compressed then before they are written.
    fn file_is_behind(&self) -> bool {
        self.to_write.own() * BEHIND >= self.writes_ahead()
    }

    /// Whether the flusher has as much anonymous memory to write as is on standby. To go on meanwhile would
    /// free nothing, and take all that is used out of its windows. Linux: `reclaim_throttle`, with
    /// `VMSCAN_THROTTLE_WRITEBACK`.
    fn is_writing_enough(&self) -> bool {
        self.to_write.own() >= self.writes_ahead()
    }

    /// Frames that may be in the lists: not those of the pool. If the shares were of all frames, the active
    /// list could keep all that the pool leaves: what comes in would go out at once for what comes in next,
    /// and a thread that needs two pages at a time would never have both.
    fn listable_frames(&self) -> usize {
        self.mmu.populated_frames().saturating_sub(self.swap.frames())
    }

    /// How many pages of anonymous memory may be on their way to the file. Few, when few slots are free: what
    /// a group loses beyond need takes slots that other groups were promised.
    fn writes_ahead(&self) -> usize {
        let standby = self.policy.standby_share(scan::all_of(self, Kind::Anonymous));
        let batch = self.tuning().reclaim_batch_pages;
        let slots = (self.swap.free_slots() / SLOTS_AHEAD_SHARE) as usize;
        standby.min(slots).max(batch).min(WRITES_AHEAD)
    }

    /// Locks a folio that reclaim may touch.
    fn meet<'a>(&'a self, folio: Arc<Folio>, woken: &'a dyn Woken) -> Met<'a> {
        if folio.state.test(Flag::Dead) {
            return Met::Not(folio, Fate::Gone);
        }
        if folio.state.is_held() {
            return Met::Not(folio, Fate::Inactive);
        }
        let folio = match LockedFolio::try_lock(folio, &self.waits, woken) {
            Ok(folio) => folio,
            Err(folio) => return Met::Not(folio, Fate::Inactive),
        };
        let fate = if folio.state.test(Flag::Dead) {
            Fate::Gone
        } else if folio.state.is_held() {
            Fate::Inactive
        } else if folio.state.clear(Flag::Referenced) {
            folio.state.set(Flag::Active);
            folio.state.set(Flag::Workingset);
            Fate::Active
        } else {
            return Met::Locked(folio);
        };
        Met::Not(folio.into_folio(), fate)
    }

    fn put_back(&self, folio: Arc<Folio>, fate: Fate) {
        let list = match fate {
            Fate::Gone => return,
            Fate::Inactive => List::Inactive,
            Fate::Active => List::Active,
        };
        // It was looked at, and stays.
        cost::note_folio(self, &folio, Cost::Rotation, folio.pages());
        self.lists.add(folio, list);
    }

    /// Takes inactive folios out of their windows: those of a single clean page all together. While hardly
    /// any such page is touched on standby, those that were never active are evicted at once, but for a
    /// sample. Returns how many folios are on standby now, and how many pages were freed.
    fn age(&self, batch: Vec<Arc<Folio>>, woken: &dyn Woken) -> (usize, usize) {
        let mut aged = 0;
        let (mut dropped, mut dropped_frames) = (Vec::new(), Vec::new());
        let mut singles = Vec::with_capacity(batch.len());
        let mut extents = Vec::with_capacity(batch.len());
        for folio in batch {
            let mut victim = match self.meet(folio, woken) {
                Met::Locked(victim) => victim,
                Met::Not(folio, fate) => {
                    // A dead folio says nothing about the folios behind it, so the batch is not barren.
                    aged += usize::from(fate == Fate::Gone);
                    self.put_back(folio, fate);
                    continue;
                }
            };
            if !victim.is_cached() && victim.order > RUN_ORDER {
                // Its parts are listed.
                self.split_to_swap(victim, RUN_ORDER);
                aged += 1;
                continue;
            }
            if !victim.is_cached() && self.is_thin(&mut victim) {
                self.split_thin(victim);
                aged += 1;
                continue;
            }
            // Anonymous folios are not clean: their bytes are nowhere else.
            let clean = victim.is_cached() && victim.body().dirty.is_empty();
            let (order, body) = (victim.order, victim.body_mut());
            let single = order == 0 && clean && !body.extent().is_home();
            if single && let Some(frames) = body.extent.take() {
                match self.policy.chance(victim.state.test(Flag::Workingset)) {
                    Chance::Skipped => {
                        dropped.push(victim);
                        dropped_frames.push(frames);
                    }
                    Chance::CountsAs(pages) => {
                        let (extent, charge) = frames.lend();
                        singles.push((victim, pages, charge));
                        extents.push(extent);
                    }
                }
            } else {
                let pages = victim.pages() as u32;
                aged += usize::from(self.age_one(victim, pages));
            }
        }
        let freed = self.evict_singles(dropped, dropped_frames);
        self.mmu.unmap_clean(&mut extents);
        for ((mut victim, counts_as, charge), extent) in singles.into_iter().zip(extents) {
            victim.body_mut().extent = Some(charge.with(extent));
            aged += usize::from(self.age_one(victim, counts_as));
        }
        (aged, freed)
    }

    /// Evicts locked folios of a single clean page each, which have these frames. Returns how many.
    fn evict_singles(&self, victims: Vec<LockedFolio<'_>>, frames: Vec<Frames>) -> usize {
        let frames = self.groups.discard_clean(&self.mmu, frames);
        if frames.is_empty() {
            let pages = victims.len();
            self.counters.add(Event::GonePages, pages as u64);
            self.counters.add(Event::FileOuts, pages as u64);
            for victim in victims {
                let object = victim.object();
                leave_cache(object.as_deref(), &victim);
                self.note_evicted(object.as_deref(), &victim);
            }
            return pages;
        }
        let mut freed = 0;
        for (mut victim, frames) in victims.into_iter().zip(frames) {
            // Some are home; of the others perhaps one is pinned.
            let home = frames.is_home();
            victim.body_mut().extent = Some(frames);
            if home {
                freed += self.evict(&mut victim);
            } else {
                self.age_one(victim, 1);
            }
        }
        freed
    }

    /// Takes a locked inactive folio out of its window, unlocks it and lists it for its second chance as so
    /// many pages, if that can be.
    fn age_one(&self, mut victim: LockedFolio<'_>, counts_as: u32) -> bool {
        victim.state.clear(Flag::Sparse);
        let was_home = victim.body_mut().extent().is_home();
        let unmapped = self.mmu.unmap(victim.body_mut().extent());
        let lost = unmapped == Err(UnmapError::Lost);
        let gone = lost && victim.is_cached() && self.evict_lost(&mut victim);
        let folio = victim.into_folio();
        if unmapped.is_ok() {
            self.counters.add(Event::SecondChances, 1);
            if !was_home {
                self.counters.add(Event::GonePages, folio.pages());
            }
            self.lists.add_as(folio, List::Standby, counts_as);
        } else if !gone {
            self.put_back(folio, Fate::Inactive);
        }
        unmapped.is_ok()
    }

    /// Frees a folio that was not touched since it was taken out of its window; returns how many pages.
    fn visit_standby(&self, folio: Arc<Folio>, of: Listed<'_>, woken: &dyn Woken) -> usize {
        // A page that was active before always gets its second chance, and says nothing about pages that
        // were not.
        let unknown = folio.order == 0 && !folio.state.test(Flag::Workingset);
        let file_pages = if folio.is_cached() { folio.pages() } else { 0 };
        let note_file = |taken| {
            if self.policy.note_file_chance(file_pages, taken, of) {
                self.counters.add(Event::PolicyChanges, 1);
            }
        };
        let mut victim = match self.meet(folio, woken) {
            Met::Locked(victim) => victim,
            Met::Not(folio, fate) => {
                if fate == Fate::Active {
                    note_file(true);
                    if unknown {
                        self.policy.note_chance(true);
                    }
                }
                self.put_back(folio, fate);
                return 0;
            }
        };
        let body = victim.body_mut();
        let (home, dirty) = (body.extent().is_home(), !body.dirty.is_empty());
        let (fate, freed) = if !home {
            (Fate::Inactive, 0)
        } else if !victim.is_cached() {
            return self.visit_own(victim);
        } else if dirty && !self.may_drop_dirty(&victim) {
            cost::note_folio(self, &victim, Cost::Pageout, victim.pages());
            self.to_write.add([victim.arc().clone()]);
            (Fate::Inactive, 0)
        } else {
            let pages = self.evict(&mut victim);
            self.counters.add(Event::FileOuts, pages as u64);
            (Fate::Gone, pages)
        };
        if fate == Fate::Gone {
            note_file(false);
            if unknown {
                self.policy.note_chance(false);
            }
        }
        self.put_back(victim.into_folio(), fate);
        freed
    }

    /// [`Reclaim::visit_standby`] for a locked folio of anonymous memory.
    fn visit_own(&self, victim: LockedFolio<'_>) -> usize {
        let (mut to_file, payer) = (Vec::new(), (victim.group, Kind::Anonymous));
        let pages = match self.swap_out(victim, &mut to_file) {
            Out::Gone(pages) => {
                cost::note(self, payer, Cost::Pageout, pages as u64);
                pages
            }
            Out::ToFile(folio) => {
                cost::note(self, payer, Cost::Pageout, folio.pages());
                self.lists.add(folio.clone(), List::Inactive);
                to_file.push(folio);
                0
            }
            Out::NoRoom(folio) => {
                self.put_back(folio, Fate::Active);
                0
            }
        };
        self.to_write.add(to_file);
        pages
    }

    /// Whether a dirty folio may be given up: its write-back failed, and faults have waited for memory too
    /// long.
    fn may_drop_dirty(&self, folio: &Folio) -> bool {
        folio.state.test(Flag::WriteFailed) && self.groups.starving.time() > FAILED_DIRTY_KEEP
    }

    /// Evicts a locked folio of which some pages are no longer where they were mapped; true. If other pages
    /// of it are dirty, it is left to the flusher, which writes these and drops the folio; false.
    fn evict_lost(&self, folio: &mut LockedFolio<'_>) -> bool {
        if folio.body().dirty.is_empty() {
            self.evict(folio);
            return true;
        }
        folio.body_mut().extent().note_damaged();
        self.to_write.add([folio.arc().clone()]);
        false
    }

    /// [`Reclaim::evict_lost`] for a folio that is still in a list.
    pub(crate) fn discard_lost(&self, folio: &mut LockedFolio<'_>) -> bool {
        let gone = self.evict_lost(folio);
        if gone {
            self.lists.remove(folio);
        }
        gone
    }

    /// [`Reclaim::evict`] for a folio that is still in a list.
    pub(crate) fn discard(&self, folio: &mut LockedFolio<'_>) {
        self.evict(folio);
        self.lists.remove(folio);
    }

    /// Pages of folios that were not touched for some time.
    pub(crate) fn idle_pages(&self) -> usize {
        self.lists.all().map(Lruvec::idle_pages).sum()
    }

    /// Takes an unmapped folio out of its cache and frees its frames; returns how many.
    pub(crate) fn evict(&self, folio: &mut LockedFolio<'_>) -> usize {
        let (head, body) = folio.parts();
        let object = head.object();
        leave_cache(object.as_deref(), head);
        let lost = body.dirty.count();
        if lost > 0 {
            self.counters.add(Event::LostDirtyPages, lost as u64);
            self.groups.of(head.group).remove_dirty(lost);
            body.dirty.clear();
            if let Some(object) = &object {
                object.record_error(Errno::IO);
            }
        }
        let Some(extent) = body.extent.take() else { return 0 };
        let pages = extent.pages();
        self.note_evicted(object.as_deref(), head);
        self.free(extent);
        pages
    }

    fn note_evicted(&self, object: Option<&FileObject>, folio: &Folio) {
        if let Some(object) = object {
            self.lists.note_evicted(object.serial, folio);
            if !folio.state.test(Flag::Used) && !object.is_memory() {
                self.counters.add(Event::UnusedPages, folio.pages());
                self.patterns.files.unused(object.serial, folio.range());
            }
        }
        self.counters.add(Event::EvictedPages, folio.pages());
        self.groups.folios.remove();
    }

    /// Lists a folio whose bytes have just been read.
    pub(crate) fn add_to_list(&self, object: &FileObject, folio: Arc<Folio>) {
        let refault = self.lists.refault(object.serial, &folio);
        let activate = refault.is_some_and(|Refault { lists, distance, later, pages }| {
            self.counters.add(Event::RefaultPages, folio.pages());
            note_spared(self, distance, later, pages);
            self.groups.count(folio.group, GroupEvent::Refaults(Kind::File), folio.pages());
            let room = scan::room_of(self, folio.group, lists);
            let of = Listed { kind: Kind::File, room, divided: lists.divided() };
            let back = Refaulted { distance, pages: folio.pages() as usize };
            self.policy.activates(back, lists.active_pages(), of)
        });
        if activate {
            folio.state.set(Flag::Active);
            folio.state.set(Flag::Workingset);
            cost::note_folio(self, &folio, Cost::Restore, folio.pages());
        }
        self.lists.add(folio, if activate { List::Active } else { List::Inactive });
    }
}

/// Counts pages that came back by how much more memory would have kept them: as many frames more as pages
/// have gone out later and are still out, as in an LRU list. In these lists pages overtake each other, so for
/// a quarter more and half more memory a part of those that have gone out later and are back counts, too
/// ([`OVERTAKEN_ONE_IN`]).
fn note_spared<P: Platform>(reclaim: &Reclaim<P>, distance: u64, later: Option<u64>, pages: u64) {
    let Some(later) = later else { return };
    let overtaken = distance.saturating_sub(later) / OVERTAKEN_ONE_IN;
    // What a manager needs with any budget does not grow.
    let frames = reclaim.listable_frames() as u64 + FIXED_BYTES / PAGE_SIZE as u64;
    let events = [
        (4, overtaken, Event::NearQuarterPages),
        (2, overtaken, Event::NearHalfPages),
        (1, 0, Event::NearPages),
    ];
    for (_, _, event) in events.into_iter().filter(|(part, more, _)| later + more <= frames / part) {
        reclaim.counters.add(event, pages);
    }
}

/// Takes a locked folio out of its cache, so that no lookup finds it any more.
fn leave_cache(object: Option<&FileObject>, folio: &Folio) {
    match object {
        Some(object) => object.remove(folio),
        // The cache is gone.
        None => _ = folio.state.set(Flag::Dead),
    }
}
