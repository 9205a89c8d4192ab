//! fork: a second space with the same mappings, and copies of what belongs to the first. Linux: `dup_mmap`, `copy_page_range`.

use super::Space;
use crate::config::{DELAY, FORK_PINNED_BOUND};
use crate::page::Folio;
use crate::platform::Soft;
use crate::vma::{Vma, VmaFlags};
use elbowroom_machine::{Errno, PAGE_SHIFT, UnmapError};
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::time::Instant;
use elbowroom_sync::{Arc, thread};

impl Space<Soft> {
    /// A child: a space with the same mappings at the same places. Shared ones have the same pages; what belongs to this space is copied when
    /// either stores to it. Both may go on, and be forked again. Each page is shared at one moment; stores that other threads make meanwhile are in
    /// the child or not.
    ///
    /// # Errors
    /// ENOMEM: too many spaces or VMAs. EAGAIN: a page that belongs to this space has been pinned for longer than 0.1 s, and cannot be shared.
    ///
    /// Locks: `layout` of this space for the whole time; those of the folios that belong to it.
    pub fn fork(&self) -> Result<Space<Soft>, Errno> {
        let child = Space::create(&self.core)?;
        let offset = child.base.wrapping_sub(self.base);
        let mut vmas = Vec::new();
        let mut own = Vec::new();
        {
            let everything = self.addresses();
            let layout = self.layout_without_change_in(&everything);
            for (range, first_page, mut spec) in self.mm.parts_held(&everything, &layout) {
                if spec.flags.contains(VmaFlags::DONT_FORK) {
                    continue;
                }
                if spec.is_private() && !spec.flags.contains(VmaFlags::WIPE_ON_FORK) {
                    let pages = (range.start >> PAGE_SHIFT) as u64..(range.end >> PAGE_SHIFT) as u64;
                    for (page, folio) in self.mm.anon.in_range(pages) {
                        if let Err(e) = self.share(&folio) {
                            own.into_iter().for_each(|(_, folio)| self.unshare(&folio));
                            return Err(e);
                        }
                        own.push((page, folio));
                    }
                }
                // Memory locks are not inherited.
                spec.flags.remove(VmaFlags::LOCKED | VmaFlags::ON_FAULT);
                vmas.push((range, first_page, spec));
            }
        }
        // Nobody knows the child yet.
        for (page, folio) in own {
            let addr = ((page as usize) << PAGE_SHIFT).wrapping_add(offset);
            child.mm.anon.insert((addr >> PAGE_SHIFT) as u64, &folio);
        }
        let mut layout = child.mm.write();
        child.mm.room_for(vmas.len())?;
        for (range, first_page, spec) in vmas {
            let there = range.start.wrapping_add(offset)..range.end.wrapping_add(offset);
            child.mm.insert(&mut layout, Vma::new(there, first_page, spec));
        }
        drop(layout);
        Ok(child)
    }

    /// Lets one more space have a folio: from now on a store by any of them is a fault.
    fn share(&self, folio: &Arc<Folio>) -> Result<(), Errno> {
        let started = Instant::now();
        loop {
            self.core.waits.lock(folio);
            let unmapped = self.core.mmu.unmap(folio.body().extent());
            if unmapped != Err(UnmapError::Busy) {
                folio.mapcount.fetch_add(1, Ordering::AcqRel);
            }
            self.core.unlock(folio);
            if unmapped != Err(UnmapError::Busy) {
                return Ok(());
            }
            if started.elapsed() > FORK_PINNED_BOUND {
                return Err(Errno::AGAIN);
            }
            thread::sleep(DELAY);
        }
    }

    fn unshare(&self, folio: &Arc<Folio>) {
        self.core.waits.lock(folio);
        folio.mapcount.fetch_sub(1, Ordering::AcqRel);
        self.core.unlock(folio);
    }
}
