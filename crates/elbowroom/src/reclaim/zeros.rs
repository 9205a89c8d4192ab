//! Pages of zeros that become nothing. Anonymous memory reads as zeros where nothing is, so a page of zeros
//! that goes out needs no slot and no place in an index: whether a thread stored the zeros or only read the
//! page. Linux maps one shared page of zeros for loads, and writes no page of zeros to a swap file.
//!
//! A copy of a file's page is kept although it is all zeros: without it the file's page would be there.

use super::Reclaim;
use crate::page::LockedFolio;
use crate::platform::Platform;
use crate::stats::Event;
use crate::swap::is_zero;
use elbowroom_machine::{PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::Mutant;
use std::ops::Range;

/// In tests of the tests: a copy of a file's page that is all zeros is dropped, too.
const MUTANT_DROP_ZERO_COPIES: Mutant = Mutant::new("drop_zero_copies");

/// Which pages of a folio that goes out may become nothing.
pub(super) enum Zeros {
    /// All of it.
    All,
    /// The pages for which this is true, by their number in the folio.
    Some(Vec<bool>),
    /// No page.
    None,
}

impl<P: Platform> Reclaim<P> {
    /// Which pages of a locked folio of anonymous memory, which is home, may become nothing.
    pub(super) fn zeros_in(&self, folio: &mut LockedFolio<'_>) -> Zeros {
        let mut pages = folio.body_mut().extent().bytes().chunks(PAGE_SIZE);
        // The usual case, told by the first words of each page.
        if !pages.clone().any(is_zero) {
            return Zeros::None;
        }
        let (all, zeros) = (pages.clone().all(is_zero), pages.by_ref().map(is_zero).collect());
        let count = folio.pages();
        if !folio.body().rmap.pages().iter().all(|&first| self.nothing_is_zero(first..first + count)) {
            Zeros::None
        } else if all {
            Zeros::All
        } else {
            Zeros::Some(zeros)
        }
    }

    /// Whether these pages would read as zeros if the space had nothing there. The caller holds the lock of
    /// the folio that the space has there: pages of a folio change their mapping only with that lock. In a
    /// mapping that is being changed: no.
    fn nothing_is_zero(&self, pages: Range<u64>) -> bool {
        let bytes = (pages.start as usize) << PAGE_SHIFT..(pages.end as usize) << PAGE_SHIFT;
        let Some(mm) = self.spaces.of(bytes.start) else { return false };
        let vma = mm.enter(bytes.start);
        vma.is_ok_and(|vma| {
            let anonymous = vma.spec.object.is_none() || MUTANT_DROP_ZERO_COPIES.planted();
            vma.spec.is_private() && anonymous && bytes.end <= vma.range.end
        })
    }

    /// Takes a locked folio of which [`Reclaim::zeros_in`] says that all of it may become nothing out of its
    /// spaces, and frees its frames. Returns how many pages it had.
    pub(super) fn drop_zeros(&self, folio: LockedFolio<'_>) -> usize {
        let pages = folio.pages();
        for &page in folio.body().rmap.pages() {
            let mm = self.spaces.of((page as usize) << PAGE_SHIFT);
            let out = mm.is_some_and(|mm| mm.anon.remove(page, folio.arc()));
            assert!(out, "what is at a page changes only under its folio's lock");
        }
        self.free_folio(folio);
        self.counters.add(Event::ZerosDropped, pages);
        pages as usize
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::{Advice, Config, Manager, MapRequest, Soft};
    use elbowroom_machine::PAGE_SIZE;

    const BUDGET: u64 = 16 << 20;

    /// Beside a page of memory, which becomes nothing.
    #[test]
    fn a_copy_that_is_all_zeros_stays_in_the_place_of_the_files_page() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7; PAGE_SIZE]).unwrap();
        let config = Config { swap: BUDGET, ..Config::with_memory(BUDGET) };
        let manager = Manager::<Soft>::start_on(config).unwrap();
        let space = manager.create_space().unwrap();
        let memory = MapRequest::private_memory(PAGE_SIZE);
        let object = Some(manager.open(file.path(), true).unwrap());
        let copy = space.map(MapRequest { object, ..MapRequest::private_memory(PAGE_SIZE) }).unwrap();
        let memory = space.map(memory).unwrap();
        let cpu = space.cpu();
        for addr in [copy, memory] {
            cpu.write(addr, &[0; PAGE_SIZE]).unwrap();
            space.advise(addr, PAGE_SIZE, Advice::PageOut).unwrap();
            assert_eq!(cpu.read_u64(addr), Ok(0));
        }
        let stats = manager.stats();
        assert_eq!((stats.pswpout, stats.zeros_dropped), (1, 1));
    }
}
