//! Writing anonymous memory to the swap file: what neither is one word nor compresses, and what was in the
//! pool for longest. Linux: `swap_writepage`, with the clusters of `scan_swap_map_slots`;
//! `zswap_writeback_entry`.
//!
//! What goes out together lies together, in the order of its addresses, so that it is written at once. The
//! folios stay where they are, locked, until their bytes are in the file; who wants one waits for its lock.

use super::Writeback;
use crate::config::{CLUSTER_PAGES, STAGING_ORDER};
use crate::group::Frames;
use crate::page::{Flag, Folio, LockedFolio, checksum};
use crate::platform::Platform;
use crate::stats::Event;
use crate::swap::Oldest;
use elbowroom_machine::PAGE_SIZE;
use elbowroom_sync::Arc;
use std::ops::Range;

/// What came of writing pages of the pool to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolWritten {
    /// The pool is as large as it should be.
    Enough,
    /// It is not yet, and others are to get their turn first.
    More,
    /// The file takes nothing now, or no frame is to be had for it.
    NotNow,
}

/// Writes of pages of the pool, after which others get their turn.
const POOL_WRITES: usize = 16;

impl<P: Platform> Writeback<P> {
    /// Writes folios of anonymous memory that are to go out, as far as they were not touched since, and
    /// frees their frames.
    pub(crate) fn write_to_swap(&self, mut folios: Vec<Arc<Folio>>) {
        // Nearly always where they are now.
        folios.sort_unstable_by_key(|folio| folio.index);
        let mut room = true;
        for some in folios.chunks(CLUSTER_PAGES as usize) {
            // Without room they stay; reclaim meets them again.
            room = room && self.write_cluster_to_swap(some);
            self.to_write.done(some);
        }
    }

    /// The same for so many that can be written at once. `false`: there is no room in the file.
    fn write_cluster_to_swap(&self, folios: &[Arc<Folio>]) -> bool {
        let mut taken = Vec::with_capacity(folios.len());
        for folio in folios {
            // The first one's lock is waited for: whoever met the folio may be about to let it go. Who waits
            // for a folio with others locked could wait for somebody who waits for those.
            let alone = taken.is_empty();
            taken.extend(self.take_to_swap(folio, alone));
        }
        while !taken.is_empty() {
            let Some(positions) = self.swap.take_positions(taken.len() as u64) else { return false };
            let rest = taken.split_off((positions.end - positions.start) as usize);
            self.write_run_to_swap(taken, positions);
            taken = rest;
        }
        true
    }

    /// A folio's lock, if the folio is to go out still.
    fn take_to_swap(&self, folio: &Arc<Folio>, wait: bool) -> Option<LockedFolio<'_>> {
        let folio = if wait {
            self.lock(folio)
        } else {
            LockedFolio::try_lock(folio.clone(), &self.waits, self.handlers()).ok()?
        };
        let home = folio.body().extent.as_ref().is_some_and(|frames| frames.is_home());
        let wanted = home && folio.order == 0 && !folio.state.test(Flag::Dead) && !folio.state.is_held();
        wanted.then_some(folio)
    }

    /// Writes the oldest pages of the pool to the file, until the pool is as large as it should be, but not
    /// for long.
    pub(crate) fn write_pool_down(&self) -> PoolWritten {
        for _ in 0..POOL_WRITES {
            if !self.swap.pool_is_over(self.is_plenty()) {
                return PoolWritten::Enough;
            }
            let staging =
                self.swap.take_staging().or_else(|| self.alloc(STAGING_ORDER)).or_else(|| self.alloc(0));
            let Some(mut staging) = staging else { return PoolWritten::NotNow };
            let written = self.write_oldest(&mut staging);
            self.swap.give_staging(staging);
            if !written {
                return PoolWritten::NotNow;
            }
        }
        PoolWritten::More
    }

    /// Writes the oldest pages of the pool to the file, as many as are to be had and `staging` has room for.
    /// `false`: it could not.
    fn write_oldest(&self, staging: &mut Frames) -> bool {
        let Some(positions) = self.swap.take_positions(staging.pages() as u64) else { return false };
        let Some((file, offset)) = self.swap.place(positions.start) else { return false };
        let mut leaving = Vec::with_capacity(staging.pages());
        let mut left = 0;
        while leaving.len() < (positions.end - positions.start) as usize
            && self.swap.pool_is_over(self.is_plenty())
            && let Some(next) = self.swap.oldest()
        {
            let room = leaving.len() * PAGE_SIZE;
            match next {
                Oldest::Left(frames) => {
                    left += 1;
                    frames.into_iter().for_each(|frame| self.free(frame));
                }
                Oldest::Leaves(slot) => {
                    let page = &mut staging.bytes_mut()[room..][..PAGE_SIZE];
                    if self.swap.expand_leaving(&slot, page) {
                        self.swap.seal(page, positions.start + leaving.len() as u64);
                        leaving.push(slot);
                    }
                }
            }
        }
        self.counters.add(Event::SwapWritebacks, left);
        let bytes = leaving.len() * PAGE_SIZE;
        let begun_ns = self.begin_transfer();
        let written = if bytes == 0 { Ok(()) } else { file.write(staging, 0..bytes, offset) };
        if bytes > 0 {
            self.note_transfer(file.id(), written.is_ok(), begun_ns, [offset, bytes as u64]);
            self.swap.note_written(written.is_ok());
        }
        let rest = positions.start + leaving.len() as u64..positions.end;
        self.swap.free_positions(rest);
        let positions = positions.start..positions.start + leaving.len() as u64;
        if written.is_ok() {
            let (arrived, frames) = self.swap.arrived(leaving, positions);
            self.counters.add(Event::SwapWritebacks, arrived);
            frames.into_iter().for_each(|frame| self.free(frame));
        } else {
            leaving.into_iter().for_each(|slot| self.swap.stays(slot));
            self.swap.free_positions(positions);
        }
        if written.is_err() {
            // A full disk, perhaps. The pages stay in the pool.
            self.counters.add(Event::SwapErrors, 1);
        }
        written.is_ok() && (bytes > 0 || left > 0)
    }

    /// Writes folios of a page each to neighbouring pages of the file, as many.
    fn write_run_to_swap(&self, mut folios: Vec<LockedFolio<'_>>, positions: Range<u64>) {
        let Some((file, offset)) = self.swap.place(positions.start) else { return };
        folios.iter().for_each(|folio| folio.begin_io(Flag::Writeback));
        // Nobody sees them before they are written, or are what they were again.
        let sums: Vec<_> = folios
            .iter_mut()
            .zip(positions.clone())
            .map(|(folio, position)| {
                let page = folio.body_mut().extent().bytes_mut();
                let sum = checksum(page);
                self.swap.seal(page, position);
                sum
            })
            .collect();
        let frames = folios.iter().filter_map(|folio| folio.body().extent.as_deref());
        let parts: Vec<_> = frames.map(|extent| (extent, 0..PAGE_SIZE)).collect();
        let begun_ns = self.begin_transfer();
        let written = file.write_vectored(&parts, offset);
        let place = [offset, (parts.len() * PAGE_SIZE) as u64];
        self.note_transfer(file.id(), written.is_ok(), begun_ns, place);
        self.swap.note_written(written.is_ok());
        folios.iter().for_each(|folio| folio.end_io(Flag::Writeback));
        if written.is_err() {
            // A full disk, perhaps. The pages stay in memory.
            self.counters.add(Event::SwapErrors, 1);
        }
        for ((mut folio, position), sum) in folios.into_iter().zip(positions).zip(sums) {
            let spaces = folio.body().spaces() as u32;
            let kept = written.is_ok().then(|| self.swap.keep_in_file(position, sum, spaces));
            if let Some(Ok(slot)) = kept {
                let own = folio.body_mut().extent.take();
                self.leave_spaces(&mut folio, slot);
                self.note_dead();
                own.into_iter().for_each(|own| self.free(own));
            } else {
                self.swap.unseal(folio.body_mut().extent().bytes_mut(), position);
                self.swap.free_position(position);
            }
        }
    }
}
