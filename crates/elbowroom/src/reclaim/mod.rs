//! Making frames free: second chances, eviction, and what a refault means.
//!
//! Direct reclaim only: whoever needs frames frees a batch first. Nothing here waits: a locked or held folio is passed over, a dirty one is
//! handed to the flusher.

mod lru;
mod shadow;

pub(crate) use lru::{Entry, Lru};
pub(crate) use shadow::Shadows;

use crate::config::{BIMODAL_ONE_IN, FAILED_DIRTY_KEEP, RECLAIM_BATCH_PAGES, RECLAIM_SCAN_FACTOR};
use crate::core::Core;
use crate::object::FileObject;
use crate::page::{Flag, Folio, Parked};
use elbowroom_machine::{Extent, UnmapError};
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::Ordering;

/// What reclaim did with a folio that it met.
enum Fate {
    /// It is gone or going.
    Gone {
        freed: usize,
    },
    Inactive,
    Standby,
    Active,
}

impl Core {
    /// A run of 2^`order` frames or, if memory is short or in pieces, a smaller one; `None` if nothing can be freed now.
    pub(crate) fn frames(&self, order: u8, ready: &mut Vec<Parked>) -> Option<Extent> {
        let wanted = 1 << order;
        for _ in 0..4 {
            if let Some(extent) = self.mmu.alloc(order) {
                return Some(extent);
            }
            if self.mmu.free_frames() >= wanted + RECLAIM_BATCH_PAGES {
                // Free, but in pieces: freeing more would not help soon.
                break;
            }
            if self.shrink(wanted.max(RECLAIM_BATCH_PAGES), ready) == 0 {
                break;
            }
        }
        (0..=order).rev().find_map(|smaller| self.mmu.alloc(smaller))
    }

    /// Frees about `want` pages; returns how many. Faults that waited for a folio it unlocked are added to `ready`.
    pub(crate) fn shrink(&self, want: usize, ready: &mut Vec<Parked>) -> usize {
        let mut freed = 0;
        let mut looks = (want * RECLAIM_SCAN_FACTOR).max(256);
        while freed < want && looks > 0 {
            looks -= 1;
            let (entry, from_standby) = {
                let mut lru = self.lru.lock();
                self.balance(&mut lru);
                let keep_standby = self.mmu.frames() / 8;
                if lru.standby.pages() > keep_standby || lru.inactive.len() == 0 {
                    (lru.standby.pop(), true)
                } else {
                    (lru.inactive.pop(), false)
                }
            };
            let Some(entry) = entry else { break };
            let fate = self.visit(&entry, from_standby, ready);
            let mut lru = self.lru.lock();
            match fate {
                Fate::Gone { freed: n } => freed += n,
                Fate::Inactive => lru.inactive.push(entry),
                Fate::Standby => lru.standby.push(entry),
                Fate::Active => lru.active.push(entry),
            }
        }
        freed
    }

    /// Keeps at least half of the folios' pages outside the active queue.
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
        self.mmu.frames() / 2
    }

    fn visit(&self, entry: &Entry, from_standby: bool, ready: &mut Vec<Parked>) -> Fate {
        let folio = &entry.folio;
        if folio.state.test(Flag::Dead) {
            return Fate::Gone { freed: 0 };
        }
        if folio.state.is_held() || !folio.state.try_lock() {
            return Fate::Inactive;
        }
        let fate = if folio.state.test(Flag::Dead) {
            Fate::Gone { freed: 0 }
        } else if folio.state.is_held() {
            Fate::Inactive
        } else if folio.state.clear(Flag::Referenced) {
            folio.state.set(Flag::Active);
            Fate::Active
        } else {
            self.age(entry, from_standby)
        };
        self.waits.unlock(folio, ready);
        fate
    }

    /// One step of a locked folio on its way out.
    fn age(&self, entry: &Entry, from_standby: bool) -> Fate {
        let folio = &entry.folio;
        let (unmapped, dirty) = {
            let mut body = folio.body();
            let was_home = body.extent().is_home();
            let unmapped = self.mmu.unmap(body.extent());
            if !was_home && unmapped.is_ok() {
                self.counters.second_chances.add(1);
            }
            (unmapped, !body.dirty.is_empty())
        };
        match unmapped {
            Err(UnmapError::Busy) => Fate::Inactive,
            // Whatever was in the lost pages is gone; the rest is read again.
            Err(UnmapError::Lost) => Fate::Gone { freed: self.evict(&entry.object, folio) },
            Ok(()) if !from_standby => Fate::Standby,
            Ok(()) if dirty && !self.may_drop_dirty(folio) => {
                self.flush_soon(entry.object.clone(), folio.clone());
                Fate::Inactive
            }
            Ok(()) => Fate::Gone { freed: self.evict(&entry.object, folio) },
        }
    }

    /// Whether a dirty folio may be given up: its write-back failed, and faults have waited for memory too long.
    fn may_drop_dirty(&self, folio: &Folio) -> bool {
        folio.state.test(Flag::WriteFailed) && self.memory_wait() > FAILED_DIRTY_KEEP
    }

    /// Takes a locked, unmapped folio out of its cache and frees its frames; returns how many.
    pub(crate) fn evict(&self, object: &FileObject, folio: &Folio) -> usize {
        object.remove(folio);
        let mut body = folio.body();
        let lost = body.dirty.count();
        if lost > 0 {
            self.counters.lost_dirty_pages.add(lost as u64);
            self.dirty_pages.fetch_sub(lost, Ordering::AcqRel);
            body.dirty.clear();
        }
        let Some(extent) = body.extent.take() else { return 0 };
        drop(body);
        let pages = extent.pages();
        self.shadows.evicted(object.serial, folio.index, pages as u64);
        self.counters.evicted_pages.add(pages as u64);
        self.folios.fetch_sub(1, Ordering::Relaxed);
        self.mmu.free(extent);
        pages
    }

    /// Queues a folio whose bytes have just been read.
    pub(crate) fn enqueue(&self, object: Arc<FileObject>, folio: Arc<Folio>) {
        let activate = self.shadows.refault(object.serial, folio.index).is_some_and(|distance| {
            self.counters.refault_pages.add(folio.pages());
            let mut lottery = self.lottery.load(Ordering::Relaxed);
            let active = self.lru.lock().active.pages();
            if distance <= active as u64 {
                return true;
            }
            // Beyond what a larger active list would have kept: a cycle longer than memory, perhaps. Keep a part of it.
            lottery += 1;
            self.lottery.store(lottery, Ordering::Relaxed);
            lottery.is_multiple_of(BIMODAL_ONE_IN) && active < self.active_limit()
        });
        let mut lru = self.lru.lock();
        if activate {
            folio.state.set(Flag::Active);
            lru.active.push(Entry { object, folio });
        } else {
            lru.inactive.push(Entry { object, folio });
        }
    }
}
