//! MADV_PAGEOUT of what belongs to a space alone. Linux: `madvise_pageout`, `reclaim_pages`.

use super::Spaces;
use super::change::VmaPart;
use crate::page::{AnonPages, LockedFolio};
use crate::platform::Platform;
use crate::reclaim::Out;
use crate::vma::Mm;
use elbowroom_machine::Mmu;

impl<P: Platform> Spaces<P> {
    /// Puts the pages that the space has in a part out, as far as nobody uses them and there is room. Others
    /// may bring them in again by the time this returns.
    pub(super) fn page_out_own(&self, mm: &Mm, part: &VmaPart) {
        if !self.swap.is_on() {
            return;
        }
        let pages = part.page_numbers();
        self.split_ends(mm, &pages);
        let mut to_file = Vec::new();
        for page in mm.anon.owned_in(pages).into_iter().flatten() {
            let Some(mut folio) = self.own_to_page_out(mm, page) else { continue };
            if self.mmu.unmap(folio.body_mut().extent()).is_err() {
                continue;
            }
            match self.swap_out(&mut folio) {
                Out::Gone => self.note_dead(),
                Out::ToFile => to_file.push(folio.arc().clone()),
                Out::NoRoom => break,
            }
        }
        self.write_to_swap(to_file);
    }

    /// The folio of one page that the space has at a page, locked. It is a hint: what somebody has locked, or
    /// is about to use, is passed by.
    fn own_to_page_out(&self, mm: &Mm, page: u64) -> Option<LockedFolio<'_>> {
        loop {
            let folio = LockedFolio::try_lock(mm.anon.lookup(page)?, &self.waits, self.handlers()).ok()?;
            if !mm.anon.has(page, folio.arc()) || folio.state.is_held() {
                return None;
            }
            if folio.order == 0 {
                return Some(folio);
            }
            let first = AnonPages::first_of(&folio, page);
            self.split_own(mm, first, folio);
        }
    }
}
