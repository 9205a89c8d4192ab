//! Writing anonymous memory to the swap file: what neither is one word nor compresses. Linux:
//! `swap_writepage`, with the clusters of `scan_swap_map_slots`.
//!
//! What goes out together lies together, in the order of its addresses, so that it is written at once. The
//! folios stay where they are, locked, until their bytes are in the file; who wants one waits for its lock.

use super::Writeback;
use crate::config::CLUSTER_PAGES;
use crate::page::{Flag, Folio, LockedFolio, checksum};
use crate::platform::Platform;
use crate::stats::Event;
use elbowroom_machine::{PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::Arc;
use std::ops::Range;

impl<P: Platform> Writeback<P> {
    /// Writes folios of anonymous memory that are to go out, as far as they were not touched since, and
    /// frees their frames.
    pub(crate) fn write_to_swap(&self, mut folios: Vec<Arc<Folio>>) {
        // Nearly always where they are now.
        folios.sort_unstable_by_key(|folio| folio.index);
        for some in folios.chunks(CLUSTER_PAGES as usize) {
            let mut taken = Vec::with_capacity(some.len());
            for folio in some {
                // The first one's lock is waited for: whoever met the folio may be about to let it go. Who
                // waits for a folio with others locked could wait for somebody who waits for those.
                let alone = taken.is_empty();
                taken.extend(self.take_to_swap(folio, alone));
            }
            while !taken.is_empty() {
                // Without room they stay; reclaim meets them again.
                let Some(positions) = self.swap.take_positions(taken.len() as u64) else { return };
                let rest = taken.split_off((positions.end - positions.start) as usize);
                self.write_run_to_swap(taken, positions);
                taken = rest;
            }
        }
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

    /// Writes folios of a page each to neighbouring pages of the file, as many.
    fn write_run_to_swap(&self, folios: Vec<LockedFolio<'_>>, positions: Range<u64>) {
        let Some(file) = self.swap.file() else { return };
        folios.iter().for_each(|folio| folio.begin_io(Flag::Writeback));
        let frames = folios.iter().filter_map(|folio| folio.body().extent.as_deref());
        let parts: Vec<_> = frames.map(|extent| (extent, 0..PAGE_SIZE)).collect();
        let begun_ns = self.begin_transfer();
        let written = file.write_vectored(&parts, positions.start << PAGE_SHIFT);
        let place = [positions.start << PAGE_SHIFT, (parts.len() * PAGE_SIZE) as u64];
        self.note_transfer(file.id(), written.is_ok(), begun_ns, place);
        folios.iter().for_each(|folio| folio.end_io(Flag::Writeback));
        if written.is_err() {
            // A full disk, perhaps. The pages stay in memory.
            self.counters.add(Event::SwapErrors, 1);
            return self.swap.free_positions(positions);
        }
        for (mut folio, position) in folios.into_iter().zip(positions) {
            let Some(own) = folio.body_mut().extent.take() else { continue };
            match self.swap.keep_in_file(position, checksum(own.bytes()), folio.body().spaces() as u32) {
                Ok(slot) => {
                    self.leave_spaces(&mut folio, slot);
                    self.note_dead();
                    self.free(own);
                }
                Err(_) => {
                    folio.body_mut().extent = Some(own);
                    self.swap.free_positions(position..position + 1);
                }
            }
        }
    }
}
