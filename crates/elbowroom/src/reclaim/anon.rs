//! Anonymous memory: folios that belong to spaces go out, and come back when they are touched. Linux:
//! `shrink_folio_list`, where it swaps, and mm/page_io.c.
//!
//! A folio that goes out is locked and home, so no thread stores to it. Its bytes are in their slot before
//! any space has the slot's number, and stay there until the last space has taken the number out.

use super::Reclaim;
use super::cost::{self, Cost};
use super::policy::{Policy, Refaulted};
use super::scan;
use super::zeros::Zeros;
use crate::config::{RUN_ORDER, STAGING_ORDER};
use crate::group::{Frames, GroupEvent, GroupId, Kind};
use crate::lru::{List, Lruvec};
use crate::page::{Flag, Folio, HUGE_ORDER, LockedFolio, Spot, SwapCopy, checksum};
use crate::platform::Platform;
use crate::stats::Event;
use crate::swap::{Again, Back, CameIn, Compressor, OutPage, Placement, Room, Short};
use crate::vma::Mm;
use elbowroom_machine::{PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::Arc;
use elbowroom_sync::epoch::Slot;
use elbowroom_sync::time::Duration;
use std::iter;
use std::slice::from_ref;

/// What became of a folio that was to go out.
pub(crate) enum Out {
    /// It is gone: so many of its pages are out, or have become nothing.
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
    /// Lists a folio of anonymous memory that is new, or has just come in, so that it may go out. One that
    /// came back soon is active: [`Reclaim::slots_came_in`].
    pub(crate) fn list_own(&self, folio: Arc<Folio>) {
        if self.swap.is_on() {
            let list = if folio.state.test(Flag::Active) { List::Active } else { List::Inactive };
            self.lists.add(folio, list);
        }
    }

    /// Notes that a fault maps a folio of anonymous memory, whose lock the caller has.
    pub(crate) fn note_mapped(&self, folio: &Folio) {
        if self.swap.is_on() {
            folio.note_mapped(self.began.elapsed().as_micros() as u32);
        }
    }

    /// How long ago a fault mapped a folio of anonymous memory, modulo 71 minutes.
    pub(crate) fn since_mapped(&self, folio: &Folio) -> Duration {
        let now = self.began.elapsed().as_micros() as u32;
        Duration::from_micros(u64::from(now.wrapping_sub(folio.mapped_at())))
    }

    /// Frees a folio of anonymous memory that is in no space any more, and home.
    pub(crate) fn free_own(&self, folio: LockedFolio<'_>) {
        folio.state.set(Flag::Dead);
        self.unlist_own(from_ref(folio.arc()));
        self.free_folio(folio);
    }

    /// Takes dead folios of anonymous memory out of their lists.
    pub(crate) fn unlist_own(&self, folios: &[Arc<Folio>]) {
        if self.swap.is_on() {
            self.lists.remove_all(folios);
        }
    }

    /// Splits a locked folio, which the space has from `first` on, into smaller ones of 2^`order` pages; its
    /// pages stay where they are.
    pub(crate) fn split_own(&self, mm: &Mm, first: u64, order: u8, large: LockedFolio<'_>) {
        let small = self.split_into(mm, first, order, large);
        small.into_iter().for_each(|folio| self.list_own(folio.into_folio()));
    }

    /// [`Reclaim::split_own`], but returns the smaller folios, which are locked and in no list.
    fn split_into(&self, mm: &Mm, first: u64, order: u8, mut large: LockedFolio<'_>) -> Vec<LockedFolio<'_>> {
        debug_assert_eq!(large.body().spaces(), 1, "only single pages are shared");
        let Some(frames) = large.body_mut().extent.take() else { return Vec::new() };
        if order > 0 {
            self.forget_kept(&mut large);
        }
        let mut small: Vec<_> = (first..)
            .step_by(1 << order)
            .zip(frames.split(order))
            .map(|(page, frames)| self.anon_folio(page, frames, self.handlers()))
            .collect();
        let used = large.state.test(Flag::Used);
        for (page, folio) in small.iter_mut().enumerate() {
            if used {
                folio.state.set(Flag::Used);
            }
            // Larger ones have none: they were forgotten above.
            if let Some(copy) = large.body_mut().kept.take(page) {
                folio.body_mut().kept.add(0, copy);
            }
        }
        let folios: Vec<_> = small.iter().map(|folio| folio.arc().clone()).collect();
        let split = mm.anon.split(first, large.arc(), &folios);
        assert!(split, "what is at a page changes only under its folio's lock");
        self.note_split(&large);
        small
    }

    /// Whether some pages, but less than half, of a locked folio that reclaim has met were used since its
    /// second chance.
    pub(super) fn is_thin(&self, folio: &mut LockedFolio<'_>) -> bool {
        let (pages, order) = (folio.pages() as usize, folio.order);
        let mapped: usize =
            folio.body_mut().extent().places().iter().map(|place| place.pages().count()).sum();
        (1..=RUN_ORDER).contains(&order) && (1..pages / 2).contains(&mapped)
    }

    /// Splits a thin folio into single pages. Pages that were used are listed as before; the others have
    /// had their second chance, and are on standby.
    pub(super) fn split_thin(&self, thin: LockedFolio<'_>) {
        let first = thin.body().rmap.pages()[0];
        let Some(mm) = self.spaces.of((first as usize) << PAGE_SHIFT) else { return };
        for mut folio in self.split_into(&mm, first, 0, thin) {
            if folio.body_mut().extent().is_home() {
                self.lists.add(folio.into_folio(), List::Standby);
            } else {
                self.list_own(folio.into_folio());
            }
        }
    }

    /// Notes that a locked folio has been replaced by the smaller ones into which it was split.
    fn note_split(&self, large: &LockedFolio<'_>) {
        large.state.set(Flag::Dead);
        self.groups.folios.remove();
        self.unlist_own(from_ref(large.arc()));
        if large.order == HUGE_ORDER {
            self.counters.add(Event::HugeSplits, 1);
        }
    }

    /// Splits a locked folio of a space into those of 2^`order` pages, which can go out.
    pub(crate) fn split_to_swap(&self, large: LockedFolio<'_>, order: u8) {
        let first = large.body().rmap.pages()[0];
        // A space has it, so the space is there.
        if let Some(mm) = self.spaces.of((first as usize) << PAGE_SHIFT) {
            self.split_own(&mm, first, order, large);
        }
    }

    /// Puts out a locked folio of anonymous memory, which is home, and frees its frames. If it is in a
    /// list, the caller takes it out when it is gone. A larger folio of which not all pages can go out is
    /// split: the pages that stay are listed, and those that the flusher is to write are added to
    /// `to_file`. A page of zeros becomes nothing, where a page that is not there reads as zeros.
    pub(crate) fn swap_out(&self, mut folio: LockedFolio<'_>, to_file: &mut Vec<Arc<Folio>>) -> Out {
        if folio.order > 0 {
            return self.swap_run_out(folio, to_file);
        }
        if folio.state.test(Flag::Queued) {
            return Out::ToFile(folio.into_folio());
        }
        if let Zeros::All = self.zeros_in(&mut folio) {
            return Out::Gone(self.drop_zeros(folio));
        }
        if self.groups.refuses_swap(folio.group) {
            return Out::NoRoom(folio.into_folio());
        }
        let Some(own) = folio.body_mut().extent.take() else { return Out::NoRoom(folio.into_folio()) };
        let (spaces, copy) = (folio.body().spaces() as u32, folio.body_mut().kept.take(0));
        match self.keep(own, copy, spaces, self.swap_room(1), &mut Compressor::new()) {
            Ok((slot, own)) => {
                self.swap.queue_up(&[slot]);
                self.leave_spaces(&mut folio, &[slot]);
                self.give_frames(own.into_iter().collect());
                Out::Gone(1)
            }
            Err((own, why)) => {
                folio.body_mut().extent = Some(own);
                let folio = folio.into_folio();
                if why == Stays::ForFile { Out::ToFile(folio) } else { Out::NoRoom(folio) }
            }
        }
    }

    /// [`Reclaim::swap_out`] for a larger folio: as a whole if all of it goes to the file, or else page by
    /// page.
    fn swap_run_out(&self, mut large: LockedFolio<'_>, to_file: &mut Vec<Arc<Folio>>) -> Out {
        if large.state.test(Flag::Queued) {
            return Out::ToFile(large.into_folio());
        }
        let zeros = match self.zeros_in(&mut large) {
            Zeros::All => return Out::Gone(self.drop_zeros(large)),
            Zeros::Some(zeros) => zeros,
            Zeros::None => Vec::new(),
        };
        // Before it is split: where nothing can go out, all of it stays together.
        if self.groups.refuses_swap(large.group) {
            return Out::NoRoom(large.into_folio());
        }
        let mut compressor = Compressor::new();
        let first = large.body().rmap.pages()[0];
        let mm = self.spaces.of((first as usize) << PAGE_SHIFT).expect("a space has the folio");
        // The same room for all its pages: they come in together only if their bytes are in the same place.
        let room = self.swap_room(large.pages() as usize);
        if large.body().kept.is_empty() {
            let mut pages = large.body_mut().extent().bytes().chunks(PAGE_SIZE);
            // Where the pool would keep none of the pages, the first one tells whether any is worth
            // compressing.
            let others = if room.pool { room } else { room.to_stay() };
            let rooms = iter::once(room).chain(iter::repeat(others));
            let mut places = pages.clone().zip(rooms);
            if places.all(|(page, room)| compressor.place(page, room) == Placement::File) {
                return Out::ToFile(large.into_folio());
            }
            if pages.next().is_some_and(|page| compressor.place(page, room) == Placement::Full) {
                return Out::NoRoom(large.into_folio());
            }
        }
        let Some(own) = large.body_mut().extent.take() else { return Out::NoRoom(large.into_folio()) };
        let (mut parts, mut slots) = (Vec::with_capacity(own.pages()), Vec::with_capacity(own.pages()));
        let (mut stay, mut freed) = (Vec::new(), Vec::new());
        for (page, own) in (first..).zip(own.split(0)) {
            let nth = (page - first) as usize;
            let copy = large.body_mut().kept.take(nth);
            if zeros.get(nth) == Some(&true) {
                let kept = copy.map(|copy| self.swap.forget(copy.slot));
                kept.into_iter().flatten().for_each(|frames| self.free(frames));
                freed.push(own);
                parts.push(Slot::Empty);
                continue;
            }
            parts.push(match self.keep(own, copy, 1, room, &mut compressor) {
                Ok((slot, own)) => {
                    freed.extend(own);
                    slots.push(slot);
                    Slot::Word(slot)
                }
                Err((own, why)) => {
                    let small = self.anon_folio(page, own, self.handlers());
                    let part = Slot::Full(small.arc().clone());
                    stay.push((small, why));
                    part
                }
            });
        }
        self.swap.queue_up(&slots);
        let dropped = parts.iter().filter(|part| matches!(part, Slot::Empty)).count();
        let gone = slots.len() + dropped;
        let split = mm.anon.split_out(first, large.arc(), parts);
        assert!(split, "what is at a page changes only under its folio's lock");
        large.state.set(Flag::Dead);
        self.groups.folios.remove();
        self.counters.add(Event::SwapOuts, slots.len() as u64);
        self.counters.add(Event::ZerosDropped, dropped as u64);
        for (small, why) in stay {
            if why == Stays::ForFile {
                to_file.push(small.arc().clone());
            }
            self.list_own(small.into_folio());
        }
        // Freed together, so that they are a run again.
        self.give_frames(freed);
        Out::Gone(gone)
    }

    /// Where there is room for so many pages that are to go out.
    fn swap_room(&self, pages: usize) -> Room {
        let room = self.swap.room(pages, self.is_plenty());
        let passes = room.passes && self.config.ablation.packed_swap_file && self.file_is_behind();
        Room { passes, ..room }
    }

    /// Charges a page that so many spaces have to its group's swap, and stores its bytes; returns the slot,
    /// and the page's frame if the pool did not need it. `copy`: where swap may have the bytes already.
    fn keep(
        &self,
        own: Frames,
        copy: Option<SwapCopy>,
        spaces: u32,
        room: Room,
        compressor: &mut Compressor,
    ) -> Result<(u64, Option<Frames>), (Frames, Stays)> {
        let Ok(group) = self.groups.charge_swap(own.group(), 1) else {
            let kept = copy.map(|copy| self.swap.forget(copy.slot));
            kept.into_iter().flatten().for_each(|frames| self.free(frames));
            return Err((own, Stays::NoRoom));
        };
        let page = OutPage { sum: checksum(own.bytes()), spaces, group };
        let kept = self.keep_charged(own, copy, &page, room, compressor);
        if kept.is_err() {
            self.groups.uncharge_swap(group, 1);
        }
        kept
    }

    /// [`Reclaim::keep`] for a page that has been charged. The charge is the slot's then; after an error it
    /// is the caller's still.
    fn keep_charged(
        &self,
        own: Frames,
        copy: Option<SwapCopy>,
        page: &OutPage,
        room: Room,
        compressor: &mut Compressor,
    ) -> Result<(u64, Option<Frames>), (Frames, Stays)> {
        let in_file = match copy.map(|copy| self.swap.goes_out_again(copy, page)) {
            Some(Again::Slot(slot)) => {
                self.counters.add(Event::SwapCleanOuts, 1);
                return Ok((slot, Some(own)));
            }
            Some(Again::File(spot)) => Some(spot),
            Some(Again::Nothing(frames)) => {
                frames.into_iter().for_each(|frame| self.free(frame));
                None
            }
            None => None,
        };
        let placement = compressor.place(own.bytes(), if in_file.is_some() { room.to_stay() } else { room });
        if let Some(in_file) = in_file
            && matches!(placement, Placement::File | Placement::Full)
        {
            return self.stay_in_file(own, in_file, page);
        }
        if placement == Placement::File {
            return Err((own, Stays::ForFile));
        }
        let (mut own, mut lent, mut frames, mut wanted) = (Some(own), None, Vec::new(), 0);
        let kept = loop {
            while frames.len() < wanted
                && let Some(frame) = self.pool_frame()
            {
                frames.push(frame);
            }
            // The page's own frame is the last that is given to the pool.
            let gives = frames.len() < wanted;
            if gives && frames.len() + 1 < wanted {
                break Err(Stays::NoRoom);
            }
            if let Some(own) = own.take_if(|_| gives) {
                // The group's charge stays until it is known that the pool needs the frame.
                let (extent, charge) = own.lend();
                lent = Some(charge);
                frames.extend(Some(self.groups.lend_to_root(extent)).inspect(|own| self.swap.adopt(own)));
            }
            let short = match self.swap.keep(&placement, in_file, page, &mut frames) {
                Ok(slot) => break Ok(slot),
                Err(short) => short,
            };
            let had = frames.len();
            if let Some(charge) = lent.take() {
                let back = frames.pop().inspect(|own| self.swap.disown(own)).expect("the pool took none");
                own = Some(self.groups.take_from_root(back, charge));
            }
            match short {
                Short::Frames(missing) => wanted = had + missing,
                Short::Slots => break Err(Stays::NoRoom),
            }
        };
        lent.into_iter().for_each(|charge| self.groups.uncharge(charge));
        self.swap.put_back(frames).into_iter().for_each(|frame| self.free(frame));
        if self.swap.pool_is_over(self.is_plenty()) {
            self.to_write.bell.ring();
        }
        match kept {
            Ok(slot) => {
                self.counters.add(Event::SwapCleanOuts, u64::from(in_file.is_some()));
                Ok((slot, own))
            }
            Err(why) => {
                let own = own.expect("it was taken back");
                match in_file {
                    Some(in_file) => self.stay_in_file(own, in_file, page),
                    None => Err((own, why)),
                }
            }
        }
    }

    /// [`Reclaim::keep_charged`] for a page whose bytes are in the file already.
    fn stay_in_file(
        &self,
        own: Frames,
        spot: Spot,
        page: &OutPage,
    ) -> Result<(u64, Option<Frames>), (Frames, Stays)> {
        match self.swap.keep_in_file(spot, page) {
            Ok(slot) => {
                self.counters.add(Event::SwapCleanOuts, 1);
                Ok((slot, Some(own)))
            }
            Err(_) => {
                self.swap.free_spot(spot);
                Err((own, Stays::NoRoom))
            }
        }
    }

    /// A frame for the pool, which has it from now on. Pages of many groups share a frame there, so the
    /// root group pays.
    fn pool_frame(&self) -> Option<Frames> {
        if let Some(frame) = self.swap.take_frame() {
            return Some(frame);
        }
        if let Ok(run) = self.alloc(GroupId::ROOT, RUN_ORDER) {
            self.swap.add_frames(run.split(0));
            return self.swap.take_frame();
        }
        self.alloc(GroupId::ROOT, 0).ok().inspect(|frame| self.swap.adopt(frame))
    }

    /// Gives frames of one page each to the pool, if it has few, or else frees them.
    fn give_frames(&self, frames: Vec<Frames>) {
        if self.swap.has_few() {
            let frames = frames.into_iter().map(|frame| self.groups.charge_to_root(frame));
            self.swap.add_frames(frames.collect());
        } else {
            frames.into_iter().for_each(|frame| self.free(frame));
        }
    }

    /// Replaces a locked folio, in all spaces that have it, by the numbers of its pages' slots. A folio of
    /// several pages is in one space only.
    pub(crate) fn leave_spaces(&self, folio: &mut LockedFolio<'_>, slots: &[u64]) {
        for &page in folio.body().rmap.pages() {
            let mm = self.spaces.of((page as usize) << PAGE_SHIFT);
            let out = mm.is_some_and(|mm| match slots {
                [slot] => mm.anon.swap_out(page, folio.arc(), *slot),
                _ => mm.anon.split_out(page, folio.arc(), slots.iter().copied().map(Slot::Word).collect()),
            });
            assert!(out, "what is at a page changes only under its folio's lock");
        }
        folio.state.set(Flag::Dead);
        self.groups.folios.remove();
        self.counters.add(Event::SwapOuts, slots.len() as u64);
    }

    /// Gives frames to the pool, and to the way from it to the file: when memory is short it is too late
    /// for that.
    pub(crate) fn prepare_swap(&self) {
        if self.swap.has_file()
            && self.config.ablation.pool_sizing
            && let Some(frames) = self.whole_run(GroupId::ROOT, STAGING_ORDER)
        {
            self.swap.give_staging(frames);
        }
        while self.swap.is_on() && self.swap.has_few() {
            let run = |order| self.whole_run(GroupId::ROOT, order);
            let Some(run) = run(RUN_ORDER).or_else(|| run(0)) else { return };
            self.swap.add_frames(run.split(0));
        }
    }

    /// Gives up a space's counts of swap slots whose bytes have come in as the pages of a locked folio, from
    /// memory or from the file; what swap has of them may stay there for the next time. Counts them, and
    /// makes the folio active if the first of them came back soon.
    pub(crate) fn slots_came_in(
        &self,
        (slots, came): (&[u64], &[CameIn]),
        from_pool: bool,
        folio: &mut LockedFolio<'_>,
    ) {
        self.counters.add(Event::SwapIns, slots.len() as u64);
        if let Some(distance) = came[0].distance {
            let refaults = GroupEvent::Refaults(Kind::Anonymous);
            self.groups.count(folio.group, refaults, slots.len() as u64);
            super::note_spared(self, distance, self.swap.outs.later(distance), slots.len() as u64);
            // Pages that were put out by advice while memory is plenty say nothing about where frames are
            // needed.
            if !self.is_plenty() {
                self.swap.note_in(Back { distance, pages: slots.len() as u64, from_pool });
            }
            // The distance counts pages of all groups that went out, so it is compared with those of all.
            let lists = self.groups.ids().map(|group| self.lists.at(group, Kind::Anonymous));
            let active = lists.map(Lruvec::active_pages).sum();
            let back = Refaulted { distance, pages: slots.len() };
            if self.policy.activates(back, active, scan::all_of(self, Kind::Anonymous)) {
                folio.state.set(Flag::Active);
                folio.state.set(Flag::Workingset);
                cost::note_folio(self, folio, Cost::Restore, slots.len() as u64);
            }
        }
        let plenty = self.is_plenty();
        for (page, (slot, came)) in slots.iter().zip(came).enumerate() {
            let (released, is_kept) = self.swap.release_keeping(*slot, plenty);
            self.take_released(released);
            if is_kept {
                folio.body_mut().kept.add(page, SwapCopy { slot: *slot, sum: came.sum });
            }
        }
    }
}
