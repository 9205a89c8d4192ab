//! MADV_PAGEOUT of what belongs to a space alone. Linux: `madvise_pageout`, `reclaim_pages`.

use super::Spaces;
use super::change::VmaPart;
use crate::config::{FRESH, RUN_ORDER};
use crate::page::{Folio, LockedFolio};
use crate::pause::{Cause, pause};
use crate::platform::Platform;
use crate::reclaim::Out;
use crate::vma::Mm;
use elbowroom_machine::Mmu;
use elbowroom_sync::Arc;
use elbowroom_sync::time::Duration;
use std::slice::from_ref;

/// How long one call waits, in all, for pages that were mapped less than [`FRESH`] ago. Then it skips such
/// pages.
const PATIENCE: Duration = Duration::from_millis(100);

impl<P: Platform> Spaces<P> {
    /// Puts out the pages that the space has in a part, unless they are in use, as long as there is room in
    /// swap. Other threads may have brought them in again when this returns.
    pub(super) fn page_out_own(&self, mm: &Mm, part: &VmaPart) {
        if !self.swap.is_on() {
            return;
        }
        let pages = part.page_numbers();
        self.split_ends(mm, &pages);
        let mut to_file = Vec::new();
        let (mut rest, mut patience) = (pages, PATIENCE);
        // Folio by folio, and without holding the index's lock in between: a thread that calls this again
        // and again finds few pages each time, and must not keep faults waiting that bring pages in.
        while let Some((first, folio)) = mm.anon.first_in(rest.clone()) {
            let at = rest.start;
            rest.start = at.max(first + folio.pages());
            let Some(mut folio) = self.own_to_page_out(mm, first, folio) else { continue };
            if let Some(fresh) = FRESH.checked_sub(self.since_mapped(&folio)).filter(|time| !time.is_zero()) {
                drop(folio);
                if let Some(left) = patience.checked_sub(fresh) {
                    patience = left;
                    pause(Cause::Contended, fresh);
                    rest.start = at;
                }
                continue;
            }
            rest.start = at.max(first + folio.pages());
            if self.mmu.unmap(folio.body_mut().extent()).is_err() {
                continue;
            }
            let listed = folio.arc().clone();
            match self.swap_out(folio, &mut to_file) {
                Out::Gone(_) => self.unlist_own(from_ref(&listed)),
                Out::ToFile(folio) => to_file.push(folio),
                Out::NoRoom(_) => break,
            }
        }
        self.write_to_swap(self.to_write.claim(to_file));
    }

    /// Locks the folio that the space has from page `first` on. A folio that is larger than what goes out
    /// at a time is split, and its first part locked. `None`: the folio is locked by another thread, held
    /// for a fault, or no longer there; it is skipped, since this is only advice.
    fn own_to_page_out(&self, mm: &Mm, first: u64, found: Arc<Folio>) -> Option<LockedFolio<'_>> {
        let mut found = found;
        loop {
            let folio = LockedFolio::try_lock(found, &self.waits, self.handlers()).ok()?;
            if !mm.anon.has(first, folio.arc()) || folio.state.is_held() {
                return None;
            }
            if folio.order <= RUN_ORDER {
                return Some(folio);
            }
            self.split_own(mm, first, RUN_ORDER, folio);
            found = mm.anon.lookup(first)?;
        }
    }
}
