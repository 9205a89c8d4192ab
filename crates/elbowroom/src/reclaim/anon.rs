//! Anonymous memory: folios that belong to spaces go out, and come back when they are touched. Linux:
//! `shrink_folio_list`, where it swaps, and mm/page_io.c.
//!
//! What goes out is locked and home, so nobody stores to it. Its bytes are in their slot before any space has
//! the slot's number, and they are there until the last space has taken its own number out.

use super::Reclaim;
use crate::config::RUN_ORDER;
use crate::group::Frames;
use crate::page::{Flag, Folio, HUGE_ORDER, LockedFolio, checksum};
use crate::platform::Platform;
use crate::stats::Event;
use crate::swap::{Compressor, Placement, Short};
use crate::vma::Mm;
use elbowroom_machine::{PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::epoch::Slot;

/// What became of a folio that was to go out.
pub(crate) enum Out {
    /// It is gone, and so many of its pages are out.
    Gone(usize),
    /// The flusher is to write it to the file.
    ToFile(Arc<Folio>),
    /// There is no room for its bytes now.
    NoRoom(Arc<Folio>),
}

/// Why a page stays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stays {
    /// The flusher is to write it to the file.
    ForFile,
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

    /// Splits a locked folio, which the space has from `first` on, into smaller ones of 2^`order` pages; its
    /// pages stay where they are.
    pub(crate) fn split_own(&self, mm: &Mm, first: u64, order: u8, mut large: LockedFolio<'_>) {
        debug_assert_eq!(large.body().spaces(), 1, "only single pages are shared");
        let Some(frames) = large.body_mut().extent.take() else { return };
        let small: Vec<_> = (first..)
            .step_by(1 << order)
            .zip(frames.split(order))
            .map(|(page, frames)| self.anon_folio(page, frames, self.handlers()))
            .collect();
        let folios: Vec<_> = small.iter().map(|folio| folio.arc().clone()).collect();
        let split = mm.anon.split(first, large.arc(), &folios);
        assert!(split, "what is at a page changes only under its folio's lock");
        self.note_split(&large);
        small.into_iter().for_each(|folio| self.list_own(folio.into_folio()));
    }

    /// A locked folio has been replaced by what it was split into.
    fn note_split(&self, large: &LockedFolio<'_>) {
        large.state.set(Flag::Dead);
        self.groups.root().remove_folio();
        self.note_dead();
        if large.order == HUGE_ORDER {
            self.counters.add(Event::HugeSplits, 1);
        }
    }

    /// Splits a locked huge folio that reclaim has met into what goes out at a time.
    pub(super) fn split_to_swap(&self, huge: LockedFolio<'_>) {
        let first = huge.body().rmap.pages()[0];
        // A space has it, so the space is there.
        if let Some(mm) = self.spaces.of((first as usize) << PAGE_SHIFT) {
            self.split_own(&mm, first, RUN_ORDER, huge);
        }
    }

    /// Puts a locked folio of anonymous memory, which is home and in no list, out, and frees its frames. A
    /// larger one of which not all can go out is split: the pages that stay are listed, and those that the
    /// flusher is to write are added to `to_file`.
    pub(crate) fn swap_out(&self, mut folio: LockedFolio<'_>, to_file: &mut Vec<Arc<Folio>>) -> Out {
        if folio.order > 0 {
            return self.swap_run_out(folio, to_file);
        }
        if folio.state.test(Flag::Queued) {
            return Out::ToFile(folio.into_folio());
        }
        let Some(own) = folio.body_mut().extent.take() else { return Out::NoRoom(folio.into_folio()) };
        let spaces = folio.body().spaces() as u32;
        match self.keep(own, spaces, &mut Compressor::new()) {
            Ok(slot) => {
                self.leave_spaces(&mut folio, slot);
                Out::Gone(1)
            }
            Err((own, why)) => {
                folio.body_mut().extent = Some(own);
                let folio = folio.into_folio();
                if why == Stays::ForFile { Out::ToFile(folio) } else { Out::NoRoom(folio) }
            }
        }
    }

    /// The same for a larger folio, page by page.
    fn swap_run_out(&self, mut large: LockedFolio<'_>, to_file: &mut Vec<Arc<Folio>>) -> Out {
        let mut compressor = Compressor::new();
        let first = large.body().rmap.pages()[0];
        let mm = self.spaces.of((first as usize) << PAGE_SHIFT).expect("a space has the folio");
        let begins = &large.body_mut().extent().bytes()[..PAGE_SIZE];
        if self.swap.place(&mut compressor, begins) == Placement::Full {
            return Out::NoRoom(large.into_folio());
        }
        let Some(own) = large.body_mut().extent.take() else { return Out::NoRoom(large.into_folio()) };
        let (mut parts, mut stay) = (Vec::with_capacity(own.pages()), Vec::new());
        for (page, own) in (first..).zip(own.split(0)) {
            parts.push(match self.keep(own, 1, &mut compressor) {
                Ok(slot) => Slot::Word(slot),
                Err((own, why)) => {
                    let small = self.anon_folio(page, own, self.handlers());
                    let part = Slot::Full(small.arc().clone());
                    stay.push((small, why));
                    part
                }
            });
        }
        let gone = parts.len() - stay.len();
        let split = mm.anon.split_out(first, large.arc(), parts);
        assert!(split, "what is at a page changes only under its folio's lock");
        large.state.set(Flag::Dead);
        self.groups.root().remove_folio();
        self.counters.add(Event::SwapOuts, gone as u64);
        for (small, why) in stay {
            if why == Stays::ForFile {
                to_file.push(small.arc().clone());
            }
            self.list_own(small.into_folio());
        }
        Out::Gone(gone)
    }

    /// Keeps the bytes of a page that so many spaces have, and gives its frame up; tells the slot.
    fn keep(&self, own: Frames, spaces: u32, compressor: &mut Compressor) -> Result<u64, (Frames, Stays)> {
        let sum = checksum(own.bytes());
        let placement = self.swap.place(compressor, own.bytes());
        if placement == Placement::File {
            return Err((own, Stays::ForFile));
        }
        // The page's own frame is the last that is given: its bytes are nowhere else until they are kept.
        let (mut own, mut frames, mut wanted) = (Some(own), Vec::new(), 0);
        let kept = loop {
            if wanted > 0 {
                if !self.gather(wanted - 1, &mut frames) {
                    break Err(Stays::NoRoom);
                }
                frames.extend(own.take());
            }
            let kept = self.swap.keep(&placement, sum, spaces, &mut frames);
            if let Err(short) = &kept {
                own = own.or_else(|| frames.pop());
                if let Short::Frames(missing) = short {
                    wanted = frames.len() + usize::from(wanted > 0) + missing;
                    continue;
                }
            }
            break kept.map_err(|_| Stays::NoRoom);
        };
        match kept {
            Ok(slot) => {
                frames.extend(own);
                self.save_frames(frames);
                Ok(slot)
            }
            Err(why) => {
                self.save_frames(frames);
                Err((own.expect("nothing has taken it"), why))
            }
        }
    }

    /// Adds frames of one page each, until there are so many; `false`: there are none.
    fn gather(&self, wanted: usize, frames: &mut Vec<Frames>) -> bool {
        if frames.len() < wanted {
            frames.extend(self.swap.take_reserve(wanted - frames.len()));
        }
        while frames.len() < wanted {
            let Some(frame) = self.alloc(0) else { return false };
            frames.push(frame);
        }
        true
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
