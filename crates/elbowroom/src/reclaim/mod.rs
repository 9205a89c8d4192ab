//! Making frames free: second chances, eviction, and what a refault means.
//!
//! A thread of its own keeps some frames at hand (Linux: `kswapd`): it grows the arena ahead of need up to
//! its size, and from then on frees frames when few are left. Whoever needs frames sooner frees a batch
//! himself, also while the arena still grows, as if it had its size; where nothing can be freed, he grows it.
//! Nothing here waits: a locked or held folio is passed over, a dirty one is handed to the flusher.

use crate::config::{
    ACTIVE_PERCENT, AHEAD_BATCH_PAGES, BIMODAL_ONE_IN, CHANCE_SAMPLE_ONE_IN, DELAY, FAILED_DIRTY_KEEP,
    GROW_AT_ONCE_FRAMES, LOW_SHARE, RECLAIM_BATCH_FOLIOS, RECLAIM_BATCH_PAGES, RECLAIM_ROUNDS,
    RECLAIM_SCAN_FACTOR, STANDBY_SHARE, SUPPLY_LOOK,
};
use crate::core::Core;
use crate::lru::{Entry, Lru};
use crate::object::FileObject;
use crate::page::{Flag, Folio, LockedFolio, Ready, Woken};
use crate::platform::Platform;
use crate::stats::Event;
use elbowroom_machine::{Errno, Extent, Mmu, UnmapError};
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::time::Instant;
use elbowroom_sync::{Arc, thread};

/// Where a folio that reclaim met goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Gone,
    Inactive,
    Active,
}

/// A folio that reclaim has locked, with the object whose cache it is in.
struct Victim<'a> {
    object: Arc<FileObject>,
    folio: LockedFolio<'a>,
}

impl Victim<'_> {
    /// Unlocks it, to be queued.
    fn into_entry(self) -> Entry {
        Entry { object: self.object, folio: self.folio.let_go() }
    }
}

/// What reclaim made of an entry.
enum Met<'a> {
    Locked(Victim<'a>),
    Not(Entry, Fate),
}

impl<P: Platform> Core<P> {
    /// A run of 2^`order` frames or, if memory is short or in pieces, a smaller one; `None` if nothing can be
    /// freed now.
    pub(crate) fn frames(&self, order: u8, woken: &dyn Woken) -> Option<Extent> {
        let wanted: usize = 1 << order;
        for _ in 0..RECLAIM_ROUNDS {
            let extent = self.mmu.alloc(order);
            self.see_to_supply(order);
            if extent.is_some() {
                return extent;
            }
            // What is free may be in pieces. Folios of the same size free runs of it, so go on for a while.
            let scarce = self.mmu.populated_frames() < GROW_AT_ONCE_FRAMES;
            let grown = scarce && self.grow_arena();
            if !grown && self.shrink(wanted.max(RECLAIM_BATCH_PAGES), woken) == 0 && !self.grow_arena() {
                break;
            }
        }
        loop {
            let smaller = (0..=order).rev().find_map(|smaller| self.mmu.alloc(smaller));
            // Others may have taken what the arena had grown by.
            if smaller.is_some() || !self.grow_arena() {
                return smaller;
            }
        }
    }

    /// A run of 2^`order` frames, if there is one free. Takes no time to speak of.
    pub(crate) fn frames_at_hand(&self, order: u8) -> Option<Extent> {
        let extent = self.mmu.alloc(order);
        self.see_to_supply(order);
        extent
    }

    /// A run of 2^`order` frames, if that can be had without freeing any. An arena that grows for it clears
    /// no more than its user would have to.
    pub(crate) fn whole_run(&self, order: u8) -> Option<Extent> {
        let mut extent = self.mmu.alloc(order);
        for _ in 0..RECLAIM_ROUNDS {
            // More than once, since others may take what it has grown by.
            if extent.is_some() || !self.grow_arena() {
                break;
            }
            extent = self.mmu.alloc(order);
        }
        self.see_to_supply(order);
        extent
    }

    /// Wakes the thread that keeps frames at hand, if there is something for it to do. It frees single frames
    /// only: runs are made by who needs one, of folios that are as large, and would be in pieces otherwise.
    fn see_to_supply(&self, order: u8) {
        if self.mmu.wants_to_grow() || order == 0 && self.mmu.frames_at_hand() < self.low_mark() {
            self.supply.ask();
        }
    }

    /// Fewer frames should not be free.
    fn low_mark(&self) -> usize {
        self.mmu.frames() / LOW_SHARE
    }

    fn grow_arena(&self) -> bool {
        // Without memory for more, what is there must do.
        self.mmu.grow().unwrap_or(false)
    }

    /// The thread that keeps frames at hand, and has time for `chores` about once in [`SUPPLY_LOOK`].
    pub(crate) fn run_supplier(self: &Arc<Self>, chores: impl Fn(&Arc<Self>)) {
        let mut due = Instant::now() + SUPPLY_LOOK;
        while !self.stop.load(Ordering::Acquire) {
            if !(self.mmu.wants_to_grow() && self.grow_arena()) {
                self.supply.wait(&self.stop, SUPPLY_LOOK);
                self.free_ahead();
            }
            if Instant::now() >= due {
                chores(self);
                due = Instant::now() + SUPPLY_LOOK;
            }
        }
    }

    /// Frees frames up to the high mark, if fewer than the low mark are free and the arena has its size. Not
    /// for longer than that should take: if others allocate as fast, they ring again, and there are chores.
    fn free_ahead(&self) {
        let low = self.low_mark();
        if self.mmu.wants_to_grow() || self.mmu.frames_at_hand() >= low {
            return;
        }
        for _ in 0..(2 * low).div_ceil(AHEAD_BATCH_PAGES) {
            if self.mmu.frames_at_hand() >= 2 * low || self.stop.load(Ordering::Acquire) {
                return;
            }
            // Handed over at the end of a batch, so that a handler is kicked once.
            let ready = Ready::default();
            let freed = self.shrink(AHEAD_BATCH_PAGES, &ready);
            self.dispatch(ready.take());
            // Whoever has just been woken does little before it waits again, and should not wait for this.
            thread::yield_now();
            if freed == 0 {
                // All that is left is in use: whoever needs it looks for himself.
                return self.supply.wait(&self.stop, 10 * DELAY);
            }
        }
    }

    /// Frees about `want` pages; returns how many. Faults that waited for a folio it unlocked go to `woken`.
    pub(crate) fn shrink(&self, want: usize, woken: &dyn Woken) -> usize {
        let freed = self.shrink_inactive(want, woken);
        if freed == 0 && self.deactivate(want.max(RECLAIM_BATCH_PAGES)) {
            return self.shrink_inactive(want, woken);
        }
        freed
    }

    fn shrink_inactive(&self, want: usize, woken: &dyn Woken) -> usize {
        let mut freed = 0;
        let mut looks = (want * RECLAIM_SCAN_FACTOR).max(256);
        let keep_standby = self.mmu.populated_frames() / STANDBY_SHARE;
        // Whether the inactive queue has only what cannot be taken now.
        let mut barren = false;
        while freed < want && looks > 0 {
            let mut lru = self.lru.lock();
            self.balance(&mut lru);
            if lru.standby.pages() > keep_standby || lru.inactive.len() == 0 || barren {
                let Some(entry) = lru.standby.pop() else { break };
                drop(lru);
                looks -= 1;
                freed += self.visit_standby(entry, woken);
            } else {
                let mut batch = Vec::with_capacity(RECLAIM_BATCH_FOLIOS);
                let mut pages = 0;
                while pages < want.max(RECLAIM_BATCH_PAGES) && batch.len() < RECLAIM_BATCH_FOLIOS {
                    let Some(entry) = lru.inactive.pop() else { break };
                    pages += entry.folio.pages() as usize;
                    batch.push(entry);
                }
                drop(lru);
                looks = looks.saturating_sub(batch.len());
                let (aged, evicted) = self.age(batch, woken);
                freed += evicted;
                barren = aged == 0 && evicted == 0;
            }
        }
        freed
    }

    /// Takes the oldest of the active queue, whatever its share, since there is nothing else; `false` if it
    /// has none.
    fn deactivate(&self, want: usize) -> bool {
        let mut lru = self.lru.lock();
        let mut pages = 0;
        while pages < want {
            let Some(entry) = lru.active.pop() else { break };
            pages += entry.folio.pages() as usize;
            entry.folio.state.clear(Flag::Referenced);
            entry.folio.state.clear(Flag::Active);
            lru.inactive.push(entry);
        }
        pages > 0
    }

    /// Keeps the active queue within its share.
    fn balance(&self, lru: &mut Lru) {
        let mut looks = 16;
        while looks > 0 && lru.active.pages() > self.active_limit() {
            looks -= 1;
            let Some(entry) = lru.active.pop() else { return };
            if entry.folio.state.clear(Flag::Referenced) && !entry.folio.state.test(Flag::Dead) {
                lru.active.push(entry);
            } else {
                entry.folio.state.clear(Flag::Active);
                lru.inactive.push(entry);
            }
        }
    }

    fn active_limit(&self) -> usize {
        self.mmu.populated_frames() * ACTIVE_PERCENT / 100
    }

    /// Locks a folio that reclaim may touch.
    fn meet<'a>(&'a self, entry: Entry, woken: &'a dyn Woken) -> Met<'a> {
        let Entry { object, folio } = entry;
        if folio.state.test(Flag::Dead) {
            return Met::Not(Entry { object, folio }, Fate::Gone);
        }
        if folio.state.is_held() {
            return Met::Not(Entry { object, folio }, Fate::Inactive);
        }
        let folio = match LockedFolio::try_lock(folio, &self.waits, woken) {
            Ok(folio) => folio,
            Err(folio) => return Met::Not(Entry { object, folio }, Fate::Inactive),
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
            return Met::Locked(Victim { object, folio });
        };
        Met::Not(Victim { object, folio }.into_entry(), fate)
    }

    fn requeue(&self, entry: Entry, fate: Fate) {
        let mut lru = self.lru.lock();
        match fate {
            Fate::Gone => {}
            Fate::Inactive => lru.inactive.push(entry),
            Fate::Active => lru.active.push(entry),
        }
    }

    /// Takes inactive folios out of their windows: those of a single clean page all together. While hardly
    /// any such page is touched on standby, those that were never active are evicted at once, but for a
    /// sample. Returns how many folios are on standby now, and how many pages were freed.
    fn age(&self, batch: Vec<Entry>, woken: &dyn Woken) -> (usize, usize) {
        let mut aged = 0;
        let rarely = self.chances.are_rarely_taken();
        let (mut dropped, mut dropped_extents) = (Vec::new(), Vec::new());
        let mut singles = Vec::with_capacity(batch.len());
        let mut extents = Vec::with_capacity(batch.len());
        for entry in batch {
            let mut victim = match self.meet(entry, woken) {
                Met::Locked(victim) => victim,
                Met::Not(entry, fate) => {
                    self.requeue(entry, fate);
                    continue;
                }
            };
            let (order, body) = (victim.folio.order, victim.folio.body_mut());
            let single = order == 0 && body.dirty.is_empty() && !body.extent().is_home();
            if single && let Some(extent) = body.extent.take() {
                let new = rarely && !victim.folio.state.test(Flag::Workingset);
                if new && !self.chances.sample() {
                    dropped.push(victim);
                    dropped_extents.push(extent);
                } else {
                    // One of a sample is to have its chance for as long as if all had theirs.
                    singles.push((victim, if new { CHANCE_SAMPLE_ONE_IN } else { 1 }));
                    extents.push(extent);
                }
            } else {
                let pages = victim.folio.pages() as usize;
                aged += usize::from(self.age_one(victim, pages));
            }
        }
        let freed = self.evict_singles(dropped, dropped_extents);
        self.mmu.unmap_clean(&mut extents);
        for ((mut victim, counts_as), extent) in singles.into_iter().zip(extents) {
            victim.folio.body_mut().extent = Some(extent);
            aged += usize::from(self.age_one(victim, counts_as));
        }
        (aged, freed)
    }

    /// Evicts locked folios of a single clean page, whose extents these are. Returns how many.
    fn evict_singles(&self, victims: Vec<Victim<'_>>, extents: Vec<Extent>) -> usize {
        let mut extents = self.mmu.discard_clean(extents);
        if extents.is_empty() {
            let pages = victims.len();
            for victim in victims {
                victim.object.remove(&victim.folio);
                self.note_evicted(&victim.object, &victim.folio);
            }
            return pages;
        }
        self.mmu.unmap_clean(&mut extents);
        let mut freed = 0;
        for (mut victim, extent) in victims.into_iter().zip(extents) {
            let home = extent.is_home();
            victim.folio.body_mut().extent = Some(extent);
            if home {
                freed += self.evict(&victim.object, &mut victim.folio);
            } else {
                self.age_one(victim, 1);
            }
        }
        freed
    }

    /// Takes a locked inactive folio out of its window, unlocks it and queues it for its second chance as so
    /// many pages, if that can be.
    fn age_one(&self, mut victim: Victim<'_>, counts_as: usize) -> bool {
        let unmapped = self.mmu.unmap(victim.folio.body_mut().extent());
        if unmapped == Err(UnmapError::Lost) {
            // Whatever was in the lost pages is gone; the rest is read again.
            self.evict(&victim.object, &mut victim.folio);
        }
        let entry = victim.into_entry();
        match unmapped {
            Ok(()) => {
                self.counters.add(Event::SecondChances, 1);
                self.lru.lock().standby.push_as(entry, counts_as);
            }
            Err(UnmapError::Busy) => self.requeue(entry, Fate::Inactive),
            Err(UnmapError::Lost) => {}
        }
        unmapped.is_ok()
    }

    /// Frees a folio that was not touched since it was taken out of its window; returns how many pages.
    fn visit_standby(&self, entry: Entry, woken: &dyn Woken) -> usize {
        // What was active before gets its chance in any case, and says nothing about those that were not.
        let unknown = entry.folio.order == 0 && !entry.folio.state.test(Flag::Workingset);
        let mut victim = match self.meet(entry, woken) {
            Met::Locked(victim) => victim,
            Met::Not(entry, fate) => {
                if unknown && fate == Fate::Active {
                    self.chances.note(true);
                }
                self.requeue(entry, fate);
                return 0;
            }
        };
        let body = victim.folio.body_mut();
        let (home, dirty) = (body.extent().is_home(), !body.dirty.is_empty());
        let (fate, freed) = if !home {
            (Fate::Inactive, 0)
        } else if dirty && !self.may_drop_dirty(&victim.folio) {
            self.flush_soon(victim.object.clone(), victim.folio.arc().clone());
            (Fate::Inactive, 0)
        } else {
            (Fate::Gone, self.evict(&victim.object, &mut victim.folio))
        };
        if unknown && fate == Fate::Gone {
            self.chances.note(false);
        }
        self.requeue(victim.into_entry(), fate);
        freed
    }

    /// Whether a dirty folio may be given up: its write-back failed, and faults have waited for memory too
    /// long.
    fn may_drop_dirty(&self, folio: &Folio) -> bool {
        folio.state.test(Flag::WriteFailed) && self.memory_wait() > FAILED_DIRTY_KEEP
    }

    /// [`Core::evict`] for a folio that is still in a queue: its entry is dropped at the next tick.
    pub(crate) fn discard(&self, object: &FileObject, folio: &mut LockedFolio<'_>) {
        self.evict(object, folio);
        self.dead.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes an unmapped folio out of its cache and frees its frames; returns how many.
    pub(crate) fn evict(&self, object: &FileObject, folio: &mut LockedFolio<'_>) -> usize {
        object.remove(folio);
        let body = folio.body_mut();
        let lost = body.dirty.count();
        if lost > 0 {
            self.counters.add(Event::LostDirtyPages, lost as u64);
            self.dirty_pages.fetch_sub(lost, Ordering::AcqRel);
            body.dirty.clear();
            object.record_error(Errno::IO);
        }
        let Some(extent) = body.extent.take() else { return 0 };
        let pages = extent.pages();
        self.note_evicted(object, folio);
        self.mmu.free(extent);
        pages
    }

    fn note_evicted(&self, object: &FileObject, folio: &Folio) {
        self.shadows.evicted(object.serial, folio.index, folio.pages());
        self.counters.add(Event::EvictedPages, folio.pages());
        self.folios.fetch_sub(1, Ordering::Relaxed);
    }

    /// Queues a folio whose bytes have just been read.
    pub(crate) fn enqueue(&self, object: Arc<FileObject>, folio: Arc<Folio>) {
        let activate = self.shadows.refault(object.serial, folio.index).is_some_and(|distance| {
            self.counters.add(Event::RefaultPages, folio.pages());
            let active = self.lru.lock().active.pages();
            if distance <= active as u64 {
                return true;
            }
            // Beyond what a larger active list would have kept: a cycle longer than memory, perhaps. Keep a
            // part of it.
            let late = self.late_refaults.fetch_add(1, Ordering::Relaxed);
            late.is_multiple_of(BIMODAL_ONE_IN) && active < self.active_limit()
        });
        let mut lru = self.lru.lock();
        if activate {
            folio.state.set(Flag::Active);
            folio.state.set(Flag::Workingset);
            lru.active.push(Entry { object, folio });
        } else {
            lru.inactive.push(Entry { object, folio });
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::{Config, Manager, MapRequest, Place, Prot, Sharing, Soft};
    use elbowroom_machine::PAGE_SIZE;
    use elbowroom_sync::time::Duration;

    /// Whenever few frames are left, some are freed although nobody asks for more.
    #[test]
    fn single_frames_are_freed_ahead_of_need() {
        const PAGES: usize = 8192;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len((PAGES * PAGE_SIZE) as u64).unwrap();
        let manager = Manager::<Soft>::start_on(Config::with_memory(16 << 20)).unwrap();
        let space = manager.create_space().unwrap();
        let request = MapRequest {
            place: Place::Anywhere,
            len: PAGES * PAGE_SIZE,
            prot: Prot::READ,
            may_write: false,
            sharing: Sharing::Shared,
            object: Some(manager.open(file.path(), false).unwrap()),
            offset: 0,
            populate: false,
            locked: false,
        };
        let (start, cpu, core) = (space.map(request).unwrap(), space.cpu(), &space.core);
        let mut met = 0;
        // In strides, so that no stream is seen and single pages are read.
        for page in (0..PAGES).map(|turn| turn * 4099 % PAGES) {
            assert_eq!(cpu.read_u64(start + page * PAGE_SIZE), Ok(0));
            let low = || !core.mmu.wants_to_grow() && core.mmu.frames_at_hand() < core.low_mark();
            let since = Instant::now();
            met += usize::from(low());
            while low() {
                assert!(since.elapsed() < Duration::from_secs(20), "nobody frees frames ahead");
                thread::sleep(DELAY);
            }
        }
        assert!(met > 0, "memory was never short");
    }
}
