//! Anonymous memory: folios that belong to spaces go out, and come back when they are touched. Linux:
//! `shrink_folio_list`, where it swaps, and mm/page_io.c.
//!
//! What goes out is locked and home, so nobody stores to it. Its bytes are in their slot before any space has
//! the slot's number, and they are there until the last space has taken its own number out.

use super::Reclaim;
use crate::group::Frames;
use crate::page::{Flag, Folio, LockedFolio, checksum};
use crate::platform::Platform;
use crate::stats::Event;
use crate::swap::{Compressor, Placement, Short};
use crate::vma::Mm;
use elbowroom_machine::PAGE_SHIFT;
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::Ordering;

/// What became of a page that was to go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Out {
    /// It is out.
    Gone,
    /// The flusher is to write it to the file.
    ToFile,
    /// There is no room for its bytes now.
    NoRoom,
}

impl<P: Platform> Reclaim<P> {
    /// Lists a folio of anonymous memory that is new, or has just come in, so that it may go out.
    pub(crate) fn list_own(&self, folio: Arc<Folio>) {
        if self.swap.is_on() {
            self.lru.lock().inactive.push(folio);
        }
    }

    /// Frees a folio of anonymous memory that is in no space any more, and home.
    pub(crate) fn free_own(&self, folio: LockedFolio<'_>) {
        self.free_folio(folio);
        self.note_dead();
    }

    /// A folio of anonymous memory that is in a list left its space.
    pub(crate) fn note_dead(&self) {
        if self.swap.is_on() {
            self.dead.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Splits a locked huge folio, which the space has from `first` on, into folios of one page; its pages
    /// stay where they are.
    pub(crate) fn split_own(&self, mm: &Mm, first: u64, mut huge: LockedFolio<'_>) {
        debug_assert_eq!(huge.body().spaces(), 1, "huge folios are not shared");
        let Some(extent) = huge.body_mut().extent.take() else { return };
        let small: Vec<_> = (first..)
            .zip(extent.split())
            .map(|(page, extent)| self.anon_folio(page, extent, self.handlers()))
            .collect();
        let folios: Vec<_> = small.iter().map(|folio| folio.arc().clone()).collect();
        let split = mm.anon.split(first, huge.arc(), &folios);
        assert!(split, "what is at a page changes only under its folio's lock");
        huge.state.set(Flag::Dead);
        self.groups.root().remove_folio();
        self.note_dead();
        self.counters.add(Event::HugeSplits, 1);
        small.into_iter().for_each(|folio| self.list_own(folio.into_folio()));
    }

    /// Splits a locked huge folio that reclaim has met.
    pub(super) fn split_to_swap(&self, huge: LockedFolio<'_>) {
        let first = huge.body().rmap.pages()[0];
        // A space has it, so the space is there.
        if let Some(mm) = self.spaces.of((first as usize) << PAGE_SHIFT) {
            self.split_own(&mm, first, huge);
        }
    }

    /// Puts a locked folio of one page of anonymous memory, which is home, out, and frees its frame.
    pub(crate) fn swap_out(&self, folio: &mut LockedFolio<'_>) -> Out {
        if folio.state.test(Flag::Queued) {
            return Out::ToFile;
        }
        let Some(own) = folio.body_mut().extent.take() else { return Out::NoRoom };
        let mut compressor = Compressor::new();
        let sum = checksum(own.bytes());
        let placement = self.swap.place(&mut compressor, own.bytes());
        if placement == Placement::File {
            folio.body_mut().extent = Some(own);
            return Out::ToFile;
        }
        let spaces = folio.body().spaces() as u32;
        // The page's own frame comes last: it may get it back.
        let (mut own, mut frames) = (Some(own), Vec::new());
        let slot = loop {
            match self.swap.keep(&placement, sum, spaces, &mut frames) {
                Ok(slot) => break slot,
                Err(Short::Frames(missing)) if self.gather(missing, &mut frames, &mut own) => {}
                Err(_) => {
                    // If it was given, it is the last: its bytes are nowhere else.
                    folio.body_mut().extent = own.or_else(|| frames.pop());
                    self.save_frames(frames);
                    return Out::NoRoom;
                }
            }
        };
        self.leave_spaces(folio, slot);
        self.save_frames(frames);
        self.save_frames(own.into_iter().collect());
        Out::Gone
    }

    /// Puts the number of its slot in the place of a locked folio, in all spaces that have it.
    pub(crate) fn leave_spaces(&self, folio: &mut LockedFolio<'_>, slot: u64) {
        for &page in folio.body().rmap.pages() {
            let mm = self.spaces.of((page as usize) << PAGE_SHIFT);
            let out = mm.is_some_and(|mm| mm.anon.swap_out(page, folio.arc(), slot));
            assert!(out, "what is at a page changes only under its folio's lock");
        }
        folio.state.set(Flag::Dead);
        self.groups.root().remove_folio();
        self.counters.add(Event::SwapOuts, 1);
    }

    /// Adds so many frames, one page each, with `own` as the last; `false`: there are not so many, and `own`
    /// stays.
    fn gather(&self, missing: usize, frames: &mut Vec<Frames>, own: &mut Option<Frames>) -> bool {
        let Some(others) = missing.checked_sub(usize::from(own.is_some())) else { return false };
        let wanted = frames.len() + others;
        frames.extend(self.swap.take_reserve(others));
        while frames.len() < wanted {
            let Some(frame) = self.alloc(0) else { return false };
            frames.push(frame);
        }
        frames.extend(own.take());
        true
    }

    /// Puts frames into the reserve of the pool, as far as there is room, and frees the rest.
    fn save_frames(&self, frames: Vec<Frames>) {
        if !frames.is_empty() {
            self.swap.fill_reserve(frames).into_iter().for_each(|frames| self.free(frames));
        }
    }

    /// Fills the reserve of the pool: when memory is short it is too late.
    pub(crate) fn prepare_swap(&self) {
        if self.swap.is_on() {
            let frames = (0..self.swap.reserve_lacks()).map_while(|_| self.whole_run(0)).collect();
            self.save_frames(frames);
        }
    }

    /// Gives up a space's count of a swap slot.
    pub(crate) fn release_slot(&self, slot: u64) {
        self.swap.release(slot).into_iter().for_each(|frames| self.free(frames));
    }
}
