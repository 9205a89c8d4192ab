//! Writing anonymous memory to the swap file: pages that neither are one word nor compress, as they are,
//! and the oldest pages of the pool, compressed
//! (docs/decisions/0028-a-file-that-keeps-pages-compressed.md). Linux: `swap_writepage`, with the clusters
//! of `scan_swap_map_slots`; `zswap_writeback_entry`.
//!
//! What goes out together lies together, in the order of its addresses, so that it is written at once. The
//! folios stay where they are, locked, until their bytes are in the file; a thread that wants one waits for
//! its lock.

use super::Writeback;
use crate::config::{CLUSTER_PAGES, STAGING_ORDER};
use crate::group::{Frames, GroupId, SwapGroup};
use crate::page::{Flag, Folio, LockedFolio, Spot, checksum};
use crate::platform::Platform;
use crate::stats::Event;
use crate::swap::{LARGEST, Oldest, OutPage, Packer};
use elbowroom_machine::{Extent, PAGE_SIZE};
use elbowroom_sync::Arc;
use std::iter;
use std::ops::Range;

/// What came of writing pages of the pool to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolWritten {
    /// The pool is as large as it should be.
    Enough,
    /// The pool is still too large, but the flusher's other work is to get its turn first.
    More,
    /// The file takes nothing now, or no frame is to be had for it.
    NotNow,
}

/// A locked folio that goes out, and the group whose swap it is charged to.
type Charged<'a> = (LockedFolio<'a>, SwapGroup);

/// Writes of pages of the pool, after which the flusher's other work gets its turn.
const POOL_WRITES: usize = 16;

impl<P: Platform> Writeback<P> {
    /// Writes folios of anonymous memory that were claimed to go out, as far as they were not touched since,
    /// and frees their frames.
    pub(crate) fn write_to_swap(&self, mut folios: Vec<Arc<Folio>>) {
        // The order of the addresses that they had when they were made: nearly always they are still there.
        folios.sort_unstable_by_key(|folio| folio.index);
        let (mut room, mut rest) = (true, &folios[..]);
        while !rest.is_empty() {
            let (some, others) = rest.split_at(cluster(rest));
            // Without room they stay; reclaim meets them again.
            room = room && self.write_cluster_to_swap(some);
            self.to_write.done(some);
            rest = others;
        }
    }

    /// [`Writeback::write_to_swap`] for as many folios as are written at once. `false`: there is no room in
    /// the file.
    fn write_cluster_to_swap(&self, folios: &[Arc<Folio>]) -> bool {
        let mut taken = Vec::with_capacity(folios.len());
        for folio in folios {
            // The first one's lock is waited for: the thread that holds it, reclaim perhaps, may be about
            // to release it. The others' are not: a thread that waits for a folio with others locked could
            // wait for a thread that waits for those.
            let alone = taken.is_empty();
            taken.extend(self.take_to_swap(folio, alone));
        }
        // Before the write: what is beyond a group's limit need not be written.
        let mut taken: Vec<_> = taken.into_iter().filter_map(|folio| charge_swap_out(self, folio)).collect();
        let pages = |taken: &[Charged<'_>]| taken.iter().map(|folio| folio.0.pages() as usize).sum();
        let all: usize = pages(&taken);
        // Nor need pages be written for which there is no slot.
        let wanted = all.min(self.swap.free_slots() as usize);
        let mut positions = Vec::with_capacity(wanted);
        while positions.len() < wanted
            && let Some(run) = self.swap.take_positions((wanted - positions.len()) as u64)
        {
            positions.extend(run);
        }
        let room = positions.len() == all;
        // Folios for which there is no room stay. A larger one is split: there may be room for some of its
        // pages.
        while pages(&taken) > positions.len()
            && let Some((folio, group)) = taken.pop()
        {
            self.groups.uncharge_swap(group, folio.pages());
            if folio.order > 0 {
                self.split_to_swap(folio, 0);
            }
        }
        let unused = positions.drain(pages(&taken)..);
        unused.for_each(|position| self.swap.free_positions(position..position + 1));
        self.write_folios_to_swap(taken, &positions);
        room
    }

    /// Locks a folio, if it is still to go out; `wait`: waits for its lock.
    fn take_to_swap(&self, folio: &Arc<Folio>, wait: bool) -> Option<LockedFolio<'_>> {
        let folio = if wait {
            self.lock(folio)
        } else {
            LockedFolio::try_lock(folio.clone(), &self.waits, self.handlers()).ok()?
        };
        let home = folio.body().extent.as_ref().is_some_and(|frames| frames.is_home());
        let wanted = home && !folio.state.test(Flag::Dead) && !folio.state.is_held();
        wanted.then_some(folio)
    }

    /// Writes the oldest pages of the pool to the file, until the pool is as large as it should be, but not
    /// for long. Where memory is short the pool first gives up what folios have, too.
    pub(crate) fn write_pool_down(&self) -> PoolWritten {
        for _ in 0..POOL_WRITES {
            if !self.is_plenty() {
                self.swap.drop_kept().into_iter().for_each(|frame| self.free(frame));
            }
            if !self.swap.pool_is_over(self.is_plenty()) {
                return PoolWritten::Enough;
            }
            let staging = self
                .swap
                .take_staging()
                .or_else(|| self.alloc(GroupId::ROOT, STAGING_ORDER).ok())
                .or_else(|| self.alloc(GroupId::ROOT, 0).ok());
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
        let most = (positions.end - positions.start) as usize;
        let (mut leaving, mut left, mut packed) = (Vec::new(), 0, 0);
        let (mut packer, mut object) = (Packer::new(), [0; LARGEST]);
        let mut finish = |packer: &mut Packer, packed: &mut usize| {
            if !packer.is_empty() {
                let page = &mut staging.bytes_mut()[*packed * PAGE_SIZE..][..PAGE_SIZE];
                packer.finish(page);
                self.swap.seal(page, positions.start + *packed as u64);
                *packed += 1;
            }
        };
        while packed < most
            && self.swap.pool_is_over(self.is_plenty())
            && let Some(next) = self.swap.oldest()
        {
            match next {
                Oldest::Left(frames) => {
                    left += 1;
                    frames.into_iter().for_each(|frame| self.free(frame));
                }
                Oldest::Gap => finish(&mut packer, &mut packed),
                Oldest::Leaves(slot) => {
                    let Some(len) = self.swap.load_leaving(&slot, &mut object) else { continue };
                    let mut nth = packer.add(&object[..len]);
                    if nth.is_none() {
                        finish(&mut packer, &mut packed);
                        nth = Some(()).filter(|()| packed < most).and_then(|()| packer.add(&object[..len]));
                    }
                    match nth {
                        Some(nth) => leaving.push((slot, Spot::part(positions.start + packed as u64, nth))),
                        None => self.swap.stays_first(slot),
                    }
                }
            }
        }
        finish(&mut packer, &mut packed);
        self.counters.add(Event::SwapWritebacks, left);
        self.swap.free_positions(positions.start + packed as u64..positions.end);
        if packed == 0 {
            return left > 0;
        }
        let bytes = packed * PAGE_SIZE;
        let begun_ns = self.begin_transfer();
        let written = file.write(staging, 0..bytes, offset);
        self.note_swap_transfer(file.id(), written.is_ok(), begun_ns, [offset, bytes as u64]);
        self.swap.note_written(written.is_ok());
        if written.is_err() {
            // A full disk, perhaps. The pages stay in the pool.
            self.counters.add(Event::SwapErrors, 1);
            leaving.into_iter().for_each(|(slot, _)| self.swap.stays(slot));
            self.swap.free_positions(positions.start..positions.start + packed as u64);
            return false;
        }
        self.swap.use_spots(leaving.iter().map(|(_, spot)| *spot));
        let (arrived, frames) = self.swap.arrived(leaving);
        self.counters.add(Event::SwapWritebacks, arrived);
        frames.into_iter().for_each(|frame| self.free(frame));
        true
    }

    /// Writes locked folios to these pages of the file, one for each of their pages.
    fn write_folios_to_swap(&self, mut folios: Vec<Charged<'_>>, positions: &[u64]) {
        folios.iter().for_each(|(folio, _)| folio.begin_io(Flag::Writeback));
        let (mut sums, mut places) = (Vec::with_capacity(positions.len()), positions.iter());
        for (folio, _) in &mut folios {
            // Sealed in place: no thread sees the bytes, since the folios stay locked until they are out,
            // or unsealed again.
            let pages = folio.body_mut().extent().bytes_mut().chunks_mut(PAGE_SIZE);
            for (page, &position) in pages.zip(&mut places) {
                sums.push(checksum(page));
                self.swap.seal(page, position);
            }
        }
        let extents = folios.iter().filter_map(|(folio, _)| folio.body().extent.as_deref());
        let pages = extents.flat_map(|extent| {
            let starts = (0..extent.pages()).map(|page| page * PAGE_SIZE);
            starts.map(move |start| (extent, start..start + PAGE_SIZE))
        });
        let pages: Vec<_> = pages.collect();
        let (mut written, mut rest) = (Vec::with_capacity(pages.len()), &pages[..]);
        for run in positions.chunk_by(|one, next| one + 1 == *next) {
            let (parts, others) = rest.split_at(run.len());
            written.extend(iter::repeat_n(self.write_run_to_swap(parts, run[0]), run.len()));
            rest = others;
        }
        folios.iter().for_each(|(folio, _)| folio.end_io(Flag::Writeback));
        let (mut begin, mut gone) = (0, Vec::with_capacity(folios.len()));
        for folio in folios {
            let pages = begin..begin + folio.0.pages() as usize;
            begin = pages.end;
            let all = written[pages.clone()].iter().all(|written| *written);
            gone.extend(self.end_swap_out(folio, &positions[pages.clone()], &sums[pages], all));
        }
        // Together, so that the lock of the lists is taken once. Until then reclaim finds dead folios there.
        self.unlist_own(&gone);
    }

    /// Writes pages to those of the file from `position` on.
    fn write_run_to_swap(&self, pages: &[(&Extent, Range<usize>)], position: u64) -> bool {
        let Some((file, offset)) = self.swap.place(position) else { return false };
        let begun_ns = self.begin_transfer();
        let written = file.write_vectored(pages, offset).is_ok();
        self.note_swap_transfer(file.id(), written, begun_ns, [offset, (pages.len() * PAGE_SIZE) as u64]);
        self.swap.note_written(written);
        if !written {
            // A full disk, perhaps. The pages stay in memory.
            self.counters.add(Event::SwapErrors, 1);
        }
        written
    }

    /// Ends the write of a folio whose pages were sealed for these pages of the file. If they were
    /// `written` there the folio is dead, and is returned for the caller to take it out of its list; or else
    /// the folio is unsealed and stays.
    fn end_swap_out(
        &self,
        (mut folio, group): Charged<'_>,
        positions: &[u64],
        sums: &[u64],
        written: bool,
    ) -> Option<Arc<Folio>> {
        let (spaces, mut slots) = (folio.body().spaces() as u32, Vec::with_capacity(positions.len()));
        if written {
            let spots = || positions.iter().map(|position| Spot::whole(*position));
            self.swap.use_spots(spots());
            let pages = spots().zip(sums);
            slots.extend(pages.map_while(|(spot, &sum)| {
                self.swap.keep_in_file(spot, &OutPage { sum, spaces, group }).ok()
            }));
        }
        if slots.len() == positions.len() {
            let own = folio.body_mut().extent.take();
            self.leave_spaces(&mut folio, &slots);
            own.into_iter().for_each(|own| self.free(own));
            return Some(folio.into_folio());
        }
        let bytes = folio.body_mut().extent().bytes_mut();
        for (page, &position) in bytes.chunks_mut(PAGE_SIZE).zip(positions) {
            self.swap.unseal(page, position);
        }
        // Those before have a slot, which gives its charge and its page of the file back.
        self.groups.uncharge_swap(group, (positions.len() - slots.len()) as u64);
        for &position in &positions[slots.len()..] {
            if written {
                self.swap.free_spot(Spot::whole(position));
            } else {
                self.swap.free_positions(position..position + 1);
            }
        }
        slots.into_iter().for_each(|slot| (0..spaces).for_each(|_| self.release_slot(slot)));
        if written && folio.order > 0 {
            // There were slots for some of its pages, perhaps: they may go out one by one.
            self.split_to_swap(folio, 0);
        }
        None
    }
}

/// Charges a locked folio to its group's swap. `None`: the group's limit does not permit it, so the folio
/// stays; a larger one is split if some of its pages may go out.
fn charge_swap_out<'a, P: Platform>(
    writeback: &'a Writeback<P>,
    folio: LockedFolio<'a>,
) -> Option<Charged<'a>> {
    let groups = &writeback.groups;
    match groups.charge_swap(folio.group, folio.pages()) {
        Ok(group) => Some((folio, group)),
        Err(_) => {
            if folio.order > 0 && groups.full_swap(folio.group).is_none() {
                writeback.split_to_swap(folio, 0);
            }
            None
        }
    }
}

/// How many of these folios, at least one, are written at once.
fn cluster(folios: &[Arc<Folio>]) -> usize {
    let mut pages = 0;
    let fits = |folio: &&Arc<Folio>| {
        pages += folio.pages();
        pages <= CLUSTER_PAGES
    };
    folios.iter().take_while(fits).count().max(1)
}
