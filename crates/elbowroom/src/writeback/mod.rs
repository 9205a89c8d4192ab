//! Writing dirty folios back.
//!
//! A folio that is written is locked and out of its window, so its bytes are stable; its frames are with
//! the write until it ends. Only the flusher and threads that called a verb do this: both may wait. Errors
//! stay with the file until the program asks for them (msync, fsync, close); the pages stay dirty and are
//! tried again.

mod balance;
mod cluster;
mod end;
mod flusher;
mod folio;
mod home;
mod rings;
mod swap_file;
mod throttle;

pub(crate) use home::{Home, Leave, Patience};

use self::balance::Balance;
use self::rings::Rings;
use self::throttle::Throttled;
use crate::object::{ALL_PAGES, FileObject, Which};
use crate::page::{Flag, Folio, LockedFolio, checksum};
use crate::platform::Platform;
use crate::reclaim::Reclaim;
use crate::stats::Event;
use elbowroom_machine::{Errno, Mmu, PAGE_SHIFT, PAGE_SIZE};
use elbowroom_store::EngineKind;
use elbowroom_sync::atomic::{AtomicBool, AtomicU64};
use elbowroom_sync::{Arc, Condvar, LockClass, Mutex};
use std::ops::{Deref, Range};

/// What to do about a folio that cannot be written now: a write(2) to it is under way, or the kernel has
/// pinned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Leave it for the next time.
    Skip,
    /// Wait, with a bound.
    Wait,
}

impl Obstacle {
    /// For how long to wait, from now on.
    fn patience(self) -> Patience {
        match self {
            Self::Skip => Patience::none(),
            Self::Wait => Patience::bounded(),
        }
    }
}

/// What is to be written back, and the writers that wait for it.
pub(crate) struct Writeback<P: Platform> {
    reclaim: Reclaim<P>,
    state: Mutex<FlushState>,
    /// Notified when less is dirty again.
    relieved: Condvar,
    /// How fast is written, and how fast threads may dirty pages.
    balance: Mutex<Balance>,
    /// When the first pause of the writers in `state` ends, in nanoseconds, as in `throttle`.
    next_throttled: AtomicU64,
    /// The flusher knows that more is dirty than the background limit.
    flushing: AtomicBool,
    /// Pages written so far.
    flushed: AtomicU64,
    rings: Rings,
}

#[derive(Default)]
struct FlushState {
    /// Writers that wait in the kernel for less to be dirty.
    throttled: Vec<Throttled>,
    /// All that is dirty is to be written soon.
    all: bool,
    /// More is dirty than the background limit.
    background: bool,
    /// Pages whose accesses were made to fail because there was no memory; they are allowed again later.
    refused: Vec<Range<usize>>,
}

impl<P: Platform> Deref for Writeback<P> {
    type Target = Reclaim<P>;

    fn deref(&self) -> &Reclaim<P> {
        &self.reclaim
    }
}

impl<P: Platform> Writeback<P> {
    pub(crate) fn new(reclaim: Reclaim<P>) -> Self {
        let rings = Rings::new(&reclaim.locks, reclaim.config.engine != EngineKind::Threads);
        Self {
            state: reclaim.locks.mutex(LockClass::Flush, FlushState::default()),
            balance: reclaim.locks.mutex(LockClass::Flush, Balance::new()),
            reclaim,
            relieved: Condvar::new(),
            next_throttled: AtomicU64::new(u64::MAX),
            flushing: AtomicBool::new(false),
            flushed: AtomicU64::new(0),
            rings,
        }
    }

    /// Marks a page dirty, before a store to it can happen. Tells whether it was clean.
    pub(crate) fn mark_dirty(&self, object: &FileObject, folio: &mut LockedFolio<'_>, page: usize) -> bool {
        let body = folio.body_mut();
        if body.dirty.contains(page) {
            return false;
        }
        body.dirty.insert(page);
        self.groups.of(folio.group).add_dirty(1);
        object.index_dirty(folio);
        true
    }

    /// Settles which of the pages that were made writable ahead of their stores are dirty, in a locked folio
    /// whose pages are all home.
    pub(crate) fn settle_guesses(&self, folio: &mut LockedFolio<'_>) {
        let body = folio.body_mut();
        let Some(extent) = &body.extent else { return };
        let bytes = |page: usize| &extent.bytes()[page << PAGE_SHIFT..][..PAGE_SIZE];
        let unused = body.dirty.settle(|page| checksum(bytes(page)));
        if unused == 0 {
            return;
        }
        let clean = body.dirty.is_empty();
        self.groups.of(folio.group).remove_dirty(unused);
        self.counters.add(Event::StoresAheadUnused, unused as u64);
        if clean && let Some(object) = folio.object() {
            object.index_clean(folio);
        }
    }

    /// Writes back the dirty folios of the file with pages in `pages`. The first error, after all were tried.
    pub(crate) fn write_back(
        &self,
        object: &Arc<FileObject>,
        pages: Range<u64>,
        obstacle: Obstacle,
    ) -> Result<(), Errno> {
        self.write_back_while(object, pages, obstacle, |_| true)
    }

    /// [`Writeback::write_back`] as long as `more` is true, which is asked after each cluster, with the
    /// page behind it.
    fn write_back_while(
        &self,
        object: &Arc<FileObject>,
        pages: Range<u64>,
        obstacle: Obstacle,
        mut more: impl FnMut(u64) -> bool,
    ) -> Result<(), Errno> {
        let folios = object.dirty_in(pages);
        if folios.is_empty() {
            return Ok(());
        }
        let foreign = object.begin_change();
        self.follow_others(object);
        let patience = obstacle.patience();
        let mut first = Ok(());
        let mut rest = &folios[..];
        while !rest.is_empty() {
            let (done, written) = self.write_next(object, rest, obstacle, &patience);
            first = first.and(written);
            let (written, left) = rest.split_at(done);
            rest = left;
            if !written.last().is_none_or(|folio| more(folio.range().end)) {
                break;
            }
        }
        first = first.and(object.end_change());
        if foreign {
            self.drop_foreign(object);
        }
        first
    }

    /// Drops the clean pages of a file that another process has changed.
    pub(crate) fn drop_foreign(&self, object: &Arc<FileObject>) {
        self.counters.add(Event::ForeignChanges, 1);
        self.drop_clean(object, ALL_PAGES);
    }

    /// Looks whether another process has changed the file, and drops its stale pages then.
    pub(crate) fn check_foreign(&self, object: &Arc<FileObject>) {
        let changed = object.changed_by_others();
        self.follow_others(object);
        if changed {
            self.drop_foreign(object);
        }
    }

    /// Writes the first of some dirty folios, and those that follow it in the file; returns how many it has
    /// dealt with. EBUSY: an obstacle was waited for, and lasted too long.
    fn write_next(
        &self,
        object: &Arc<FileObject>,
        folios: &[Arc<Folio>],
        obstacle: Obstacle,
        patience: &Patience,
    ) -> (usize, Result<(), Errno>) {
        loop {
            let (done, result) = self.write_cluster(object, folios);
            match result {
                Err(Errno::BUSY) if patience.wait() => {}
                Err(Errno::BUSY) if obstacle == Obstacle::Skip => return (done, Ok(())),
                result => return (done, result),
            }
        }
    }

    /// Writes back everything. The first error, after all was tried.
    pub(crate) fn write_all(&self, obstacle: Obstacle) -> Result<(), Errno> {
        let mut first = Ok(());
        for object in self.objects.all() {
            first = first.and(self.write_back(&object, ALL_PAGES, obstacle));
        }
        first
    }

    /// Drops the clean folios of a file that have pages in `pages`.
    pub(crate) fn drop_clean(&self, object: &Arc<FileObject>, pages: Range<u64>) {
        for folio in object.folios_in(pages) {
            let clean = |folio: &LockedFolio<'_>| folio.body().dirty.is_all_guesses();
            match self.take_home(&folio, Leave::Everywhere, &Patience::none(), clean) {
                // A page that was guessed to be dirty is dirty: the folio stays.
                Ok(Home::Here(folio)) if !folio.body().dirty.is_empty() => {}
                Ok(Home::Damaged(mut folio)) if !folio.body().dirty.is_empty() => self.lose(&mut folio),
                Ok(Home::Here(mut folio) | Home::Damaged(mut folio)) => self.discard(&mut folio),
                // What is pinned stays.
                Ok(Home::Not) | Err(_) => {}
            }
        }
    }

    /// Undoes the denials of a file's pages in its mappings: whatever made an access fail may be over; if
    /// not, it fails again. Pages beyond its end stay denied.
    pub(crate) fn allow_again(&self, object: &Arc<FileObject>, obstacle: Obstacle) {
        let Some(end) = object.begin_undoing() else { return };
        let (inside, mut all) = (0..end, true);
        // A mapping that is made later has no denials: mapping undoes them.
        for mapper in self.mappers(object, &ALL_PAGES, Which::All) {
            let mapped = match obstacle {
                Obstacle::Skip => mapper.mapped_now(object, &ALL_PAGES, Which::All),
                Obstacle::Wait => self.mapped_still(&mapper, object, &ALL_PAGES, Which::All),
            };
            // The layout lock is released here: the MMU is called without it.
            let ranges = mapped.map(|(_, mapped)| mapped);
            all &= ranges.is_some();
            for mapping in ranges.into_iter().flatten() {
                let border = (mapping.page_numbers(&inside).end << PAGE_SHIFT) as usize;
                all &= self.mmu.allow(mapping.range.start..border).is_ok();
            }
        }
        if !all {
            // Tried again later: a mapping was in change, or the kernel refused.
            object.note_denied(0);
            object.note_unreadable();
        }
        object.end_undoing();
    }

    /// Frees the memory that no mapping is left of, and writes back and closes such files, if files are to
    /// be closed then. For threads that hold no lock and have no change of a layout under way.
    pub(crate) fn settle_unmapped(&self) {
        for object in self.objects.unmapped.take() {
            if object.is_memory() {
                self.drop_memory(&object, ALL_PAGES);
            } else {
                self.close_unmapped(&object, Obstacle::Wait);
            }
        }
    }

    /// Writes back and closes a file that no mapping maps. Pages that could not be written keep it open;
    /// the flusher tries again.
    pub(crate) fn close_unmapped(&self, object: &Arc<FileObject>, obstacle: Obstacle) {
        if object.is_mapped() {
            return;
        }
        let all = ALL_PAGES;
        // Before our own writes: what others changed is not to be taken for ours.
        self.check_foreign(object);
        // An error stays with the file.
        let _ = self.write_back(object, all.clone(), obstacle);
        for folio in object.folios_in(all.clone()) {
            if !folio.state.test(Flag::Uptodate) {
                // Its read, which uses the open file, has ended when the folio is unlocked.
                self.waits.wait(&folio);
            }
        }
        self.check_foreign(object);
        if object.changed_just_now() {
            self.drop_clean(object, all);
        }
        // Not done any more once the file is closed. What is dirty now stays with the kernel.
        self.drop_kernel_cache(object);
        if let Some(kept) = &self.patterns().kept {
            kept.closed(object);
        }
        object.close_file();
    }

    /// Frees folios of memory: they read as zeros again. `false`: some are left, which have been pinned for
    /// longer than the bound.
    pub(crate) fn drop_memory(&self, object: &FileObject, pages: Range<u64>) -> bool {
        let patience = Patience::bounded();
        let mut all = true;
        for folio in object.folios_in(pages) {
            match self.take_home(&folio, Leave::Everywhere, &patience, |_| true) {
                Ok(Home::Here(folio) | Home::Damaged(folio)) => {
                    object.remove(&folio);
                    self.free_folio(folio);
                }
                Ok(Home::Not) => {}
                Err(_) => all = false,
            }
        }
        all
    }

    /// Has everything that is dirty written soon.
    pub(crate) fn write_all_soon(&self) {
        self.state.lock().all = true;
        self.to_write.bell.ring();
    }

    /// Notes that accesses to a page were made to fail because there was no memory: the next tick undoes
    /// that.
    pub(crate) fn note_refused(&self, page: Range<usize>) {
        self.state.lock().refused.push(page);
    }

    /// How many pages [`Writeback::note_refused`] has noted.
    #[cfg(test)]
    pub(crate) fn refused(&self) -> usize {
        self.state.lock().refused.len()
    }
}
