//! Copies and drops the pages that belong to a space in a part of a mapping.

use super::Spaces;
use super::change::VmaPart;
use crate::page::{AnonPages, Folio};
use crate::platform::Platform;
use crate::swap::{NotLoaded, Source};
use crate::vma::{Mm, Vma};
use crate::writeback::Patience;
use elbowroom_machine::{Errno, Mmu, PAGE_SHIFT, PAGE_SIZE, PutBytes, UnmapError};
use elbowroom_sync::Arc;
use elbowroom_sync::epoch::Slot;
use std::ops::Range;

impl<P: Platform> Spaces<P> {
    /// Calls `put` with the bytes of each folio that belongs to the space in a part, and with their offset
    /// in the part. The part has been taken out of the MMU.
    ///
    /// # Errors
    /// EIO: a page is out, and its bytes cannot be had. The error of `put`.
    pub(super) fn copy_own(&self, mm: &Mm, part: &VmaPart, put: PutBytes<'_>) -> Result<(), Errno> {
        let mut buffer = vec![0; PAGE_SIZE];
        let pages = part.page_numbers();
        each_own(mm, &pages, |page| {
            let place = |page: u64| ((page - pages.start) as usize) << PAGE_SHIFT;
            let Some(mut folio) = self.lock_own_within(mm, page, &pages) else {
                return match self.copy_out(mm, page, &mut buffer)? {
                    Slot::Word(_) => put(place(page), &buffer).map(|()| page + 1),
                    Slot::Empty => Ok(page + 1),
                    // It came in meanwhile: the next look finds the folio.
                    Slot::Full(_) => Ok(page),
                };
            };
            let (first, len) = (AnonPages::first_of(&folio, page), folio.pages());
            put(place(first), folio.body_mut().extent().bytes())?;
            Ok(first + len)
        })
    }

    /// What the space has at a page. If the page is out, its bytes are copied into `to`, and it stays out.
    fn copy_out(&self, mm: &Mm, page: u64, to: &mut [u8]) -> Result<Slot<Arc<Folio>>, Errno> {
        // With a count of the slot of our own, so that the bytes stay while they are read.
        let there = mm.anon.share_out(page, |slot| self.swap.share(slot));
        let Slot::Word(slot) = there else { return Ok(there) };
        let copied = loop {
            match self.swap.seems(slot) {
                Some(Source::Memory) => match self.swap.load(slot, to) {
                    // The bytes have just been written to the file, where they stay: look again.
                    Err(NotLoaded::Elsewhere) => {}
                    loaded => break loaded.map_err(|_| Errno::IO),
                },
                Some(Source::File(spot)) => {
                    let place = self.swap.place(spot.position());
                    let Some((file, offset)) = place else { break Err(Errno::IO) };
                    break file.read_buffered(to, offset).and_then(|_| {
                        self.swap.arrive(&[slot], to).map(|came| came[0]).map_err(|_| Errno::IO)
                    });
                }
                None => break Err(Errno::IO),
            }
        };
        self.release_slot(slot);
        copied.map(|_| there)
    }

    /// Frees the pages that belong to the space in a part that has been taken out of the MMU.
    pub(super) fn drop_own(&self, mm: &Mm, part: &VmaPart) {
        if !part.spec.is_private() {
            return;
        }
        let pages = part.page_numbers();
        let _: Result<(), Errno> = each_own(mm, &pages, |page| {
            let Some(folio) = self.lock_own_within(mm, page, &pages) else {
                // If it came in meanwhile, the next look finds the folio.
                return Ok(if self.take_own_out(mm, page) { page + 1 } else { page });
            };
            let first = AnonPages::first_of(&folio, page);
            let next = first + folio.pages();
            self.take_own(mm, first, folio);
            Ok(next)
        });
    }

    /// Takes the pages of a part that stays mapped out of the MMU, and frees those that belong to the space.
    /// Linux: `madvise_dontneed_single_vma`.
    ///
    /// # Errors
    /// EBUSY: a page has been pinned for longer than the bound. The kernel's error: denials could not be
    /// undone.
    pub(super) fn forget_part(&self, mm: &Mm, part: &VmaPart) -> Result<(), Errno> {
        let patience = Patience::bounded();
        self.take_out(mm, part, &patience)?;
        if part.spec.is_private() {
            each_own(mm, &part.page_numbers(), |page| {
                loop {
                    match self.drop_own_if(mm, page, &part.page_numbers(), |vma| part.is_like(vma)) {
                        Some(next) => return Ok(next),
                        None if patience.wait() => {}
                        None => return Err(Errno::BUSY),
                    }
                }
            })?;
        }
        self.mmu.allow(part.range.clone())
    }

    /// Frees those pages of a part of private anonymous memory that are swapped out; if memory is short,
    /// those in memory, too. A page that is pinned stays. Linux: `madvise_free_single_vma`, where pages
    /// stay until reclaim meets them, unless they are stored to before. Here a store to a mapped page is
    /// not seen, and unmapping the page to see it costs as much as freeing it.
    pub(super) fn free_part(&self, mm: &Mm, part: &VmaPart) {
        let (pages, plenty) = (part.page_numbers(), self.is_plenty());
        let freed = each_own(mm, &pages, |page| match mm.anon.slot(page) {
            Slot::Full(folio) if plenty => Ok(AnonPages::first_of(&folio, page) + folio.pages()),
            _ => Ok(self.drop_own_if(mm, page, &pages, |vma| part.is_like(vma)).unwrap_or(page + 1)),
        });
        debug_assert!(freed.is_ok(), "no page is waited for");
    }

    /// Frees the folio that belongs to the space at a page, or gives up its swap slot, if `wanted` says so
    /// of the VMA that is there now. A folio that reaches out of `within` is split first. Returns the page
    /// behind the folio. `None`: it is pinned there, or the mapping is being changed.
    pub(super) fn drop_own_if(
        &self,
        mm: &Mm,
        page: u64,
        within: &Range<u64>,
        wanted: impl Fn(&Vma) -> bool,
    ) -> Option<u64> {
        let Some(mut folio) = self.lock_own_within(mm, page, within) else {
            return match mm.anon.slot(page) {
                Slot::Empty => Some(page + 1),
                Slot::Word(_) => {
                    let vma = mm.enter((page as usize) << PAGE_SHIFT).ok()?;
                    (!wanted(&vma) || self.take_own_out(mm, page)).then_some(page + 1)
                }
                // It came in meanwhile.
                Slot::Full(_) => None,
            };
        };
        let first = AnonPages::first_of(&folio, page);
        let next = first + folio.pages();
        let addr = (first as usize) << PAGE_SHIFT;
        // While the VMA is locked for reading it does not change, and since the folio is locked, no other
        // page comes there.
        let vma = mm.enter(addr).ok()?;
        if wanted(&vma) {
            // The folio may have been mapped again since the part was taken out. Where other spaces map it,
            // it stays mapped.
            if self.mmu.unmap_at(folio.body_mut().extent(), addr) == Err(UnmapError::Busy) {
                return None;
            }
            self.take_own(mm, first, folio);
        }
        Some(next)
    }
}

/// Calls `each` for the pages in a range that belong to the space. `each` returns the page from which to go
/// on, so a folio of several pages can be one call. A huge folio that was collapsed after the ends of the
/// range were split may reach out of it; it is split when `each` locks it, and then each page is a call.
pub(super) fn each_own(
    mm: &Mm,
    pages: &Range<u64>,
    mut each: impl FnMut(u64) -> Result<u64, Errno>,
) -> Result<(), Errno> {
    for own in mm.anon.owned_in(pages.clone()) {
        let end = own.end.min(pages.end);
        let mut page = own.start.max(pages.start);
        while page < end {
            page = each(page)?;
        }
    }
    Ok(())
}
