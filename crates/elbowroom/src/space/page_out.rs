//! MADV_PAGEOUT of what belongs to a space alone. Linux: `madvise_pageout`, `reclaim_pages`.

use super::Spaces;
use super::change::VmaPart;
use crate::config::RUN_ORDER;
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
        'all: for own in mm.anon.owned_in(pages) {
            let mut page = own.start;
            while page < own.end {
                let Some(mut folio) = self.own_to_page_out(mm, page) else {
                    page += 1;
                    continue;
                };
                page = AnonPages::first_of(&folio, page) + folio.pages();
                if self.mmu.unmap(folio.body_mut().extent()).is_err() {
                    continue;
                }
                match self.swap_out(folio, &mut to_file) {
                    Out::Gone(_) => self.note_dead(),
                    Out::ToFile(folio) => to_file.push(folio),
                    Out::NoRoom(_) => break 'all,
                }
            }
        }
        self.write_to_swap(to_file);
    }

    /// The folio that the space has at a page, locked, and not larger than what goes out at a time. It is a
    /// hint: what somebody has locked, or is about to use, is passed by.
    fn own_to_page_out(&self, mm: &Mm, page: u64) -> Option<LockedFolio<'_>> {
        loop {
            let folio = LockedFolio::try_lock(mm.anon.lookup(page)?, &self.waits, self.handlers()).ok()?;
            if !mm.anon.has(page, folio.arc()) || folio.state.is_held() {
                return None;
            }
            if folio.order <= RUN_ORDER {
                return Some(folio);
            }
            let first = AnonPages::first_of(&folio, page);
            self.split_own(mm, first, RUN_ORDER, folio);
        }
    }
}
