//! Mappings that the child of a fork does not get, or gets empty, if it goes on with a copy of the manager.
//! Linux: `dup_mmap`, with `VM_DONTCOPY` and `VM_WIPEONFORK`.

use super::change::VmaPart;
use super::own::each_own;
use super::{Space, Spaces};
use crate::group::Frames;
use crate::page::AnonPages;
use crate::platform::Host;
use crate::vma::{Mm, VmaFlags};
use elbowroom_machine::Errno;

/// How many pages are dropped at a time.
const BATCH: usize = 256;

impl Space<Host> {
    /// Called in a child before a thread of the program runs: unmaps the mappings that the child does not
    /// get (MADV_DONTFORK), and empties those that it gets empty (MADV_WIPEONFORK). Memory locks are not
    /// inherited.
    ///
    /// # Errors
    /// Those of unmapping, and of a change.
    pub(crate) fn leave_to_parent(&self) -> Result<(), Errno> {
        let locks = VmaFlags::LOCKED | VmaFlags::ON_FAULT;
        for part in self.parts(&self.everything()) {
            let flags = part.spec.flags;
            if flags.intersects(VmaFlags::DONT_FORK | VmaFlags::WIPE_ON_FORK) {
                self.core.discard_own(&self.mm, &part);
            }
            if flags.contains(VmaFlags::DONT_FORK) {
                self.unmap(part.range.start, part.range.len())?;
            } else if flags.intersects(locks) {
                self.set_flags(&part.range, |flags| flags.remove(locks))?;
            }
        }
        Ok(())
    }
}

impl Spaces<Host> {
    /// Drops the pages that belong to the space at a part that no thread uses, whether they are at home,
    /// mapped or out. The child's frames keep none of the bytes, which may be the program's secrets. Mapped
    /// pages are dropped where they are, so that those that the two processes share are not copied first.
    fn discard_own(&self, mm: &Mm, part: &VmaPart) {
        let (pages, mut away) = (part.page_numbers(), Vec::new());
        let all: Result<(), Errno> = each_own(mm, &pages, |page| {
            let Some(mut folio) = self.lock_own_within(mm, page, &pages) else {
                // If it came in meanwhile, the next look finds the folio.
                return Ok(if self.take_own_out(mm, page) { page + 1 } else { page });
            };
            let first = AnonPages::first_of(&folio, page);
            if folio.order > 0 {
                // The next look finds a single page.
                self.split_own(mm, first, 0, folio);
                return Ok(page);
            }
            let frames = folio.body_mut().extent();
            if frames.is_home() {
                frames.bytes_mut().fill(0);
            } else {
                away.extend(folio.body_mut().extent.take());
            }
            self.take_own(mm, first, folio);
            if away.len() == BATCH {
                self.discard(std::mem::take(&mut away));
            }
            Ok(first + 1)
        });
        debug_assert!(all.is_ok(), "no page is waited for");
        self.discard(away);
    }

    fn discard(&self, frames: Vec<Frames>) {
        let left = self.groups.discard_clean(&self.mmu, frames);
        debug_assert!(left.is_empty(), "real pages are dropped, pinned or not");
    }
}
