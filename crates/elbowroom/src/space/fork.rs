//! fork: a second space with the same mappings, and copies of what belongs to the first. Linux: `dup_mmap`,
//! `copy_page_range`.

use super::Space;
use crate::config::FORK_PINNED_BOUND;
use crate::platform::Soft;
use crate::vma::{Vma, VmaFlags, VmaSpec};
use crate::writeback::Patience;
use elbowroom_machine::{Errno, PAGE_SHIFT, UnmapError};
use elbowroom_sync::atomic::Ordering;
use std::ops::Range;

impl Space<Soft> {
    /// A child: a space with the same mappings at the same places. Shared ones have the same pages; what
    /// belongs to this space is copied when either stores to it. Both may go on, and be forked again. Each
    /// page is shared at one moment; stores that other threads make meanwhile are in the child or not.
    ///
    /// # Errors
    /// ENOMEM: too many spaces or VMAs. EAGAIN: a page that belongs to this space has been pinned for longer
    /// than 0.1 s, and cannot be shared; or mappings were being changed all the time.
    ///
    /// Locks: `layout` of this space, shortly; those of the folios that belong to it. Changes of mappings
    /// wait until it ends.
    pub fn fork(&self) -> Result<Space<Soft>, Errno> {
        let child = Space::create(&self.core)?;
        let forked = self.fork_into(&child);
        if let Err(e) = forked {
            self.undo_fork(&child);
            return Err(e);
        }
        Ok(child)
    }

    fn fork_into(&self, child: &Space<Soft>) -> Result<(), Errno> {
        let offset = child.base.wrapping_sub(self.base);
        // No change begins until this ends, nor is anything unmapped: what would be mapped in its place is
        // not what the child gets there. What is mapped meanwhile where nothing was is not the child's.
        let _still = self.core.keep_still(&self.mm).ok_or(Errno::AGAIN)?;
        let parts = self.mm.parts_held(&self.everything(), &self.mm.write());
        let inherited = || parts.iter().filter(|part| !part.2.flags.contains(VmaFlags::DONT_FORK));
        // First where the pages are, then the pages: whoever looks for copies of a file's page finds them by
        // the mapping.
        child.map_as(inherited().cloned(), offset)?;
        let patience = Patience::of(FORK_PINNED_BOUND);
        for (range, _, spec) in inherited() {
            if !spec.is_private() || spec.flags.contains(VmaFlags::WIPE_ON_FORK) {
                continue;
            }
            let pages = (range.start >> PAGE_SHIFT) as u64..(range.end >> PAGE_SHIFT) as u64;
            for (first, folio) in self.mm.anon.in_range(pages.clone()) {
                for page in first.max(pages.start)..(first + folio.pages()).min(pages.end) {
                    let there = ((page as usize) << PAGE_SHIFT).wrapping_add(offset) >> PAGE_SHIFT;
                    self.share(page, child, there as u64, patience)?;
                }
            }
        }
        Ok(())
    }

    /// Maps the same as another space, `offset` bytes away.
    fn map_as(
        &self,
        parts: impl Iterator<Item = (Range<usize>, u64, VmaSpec)>,
        offset: usize,
    ) -> Result<(), Errno> {
        let vmas = parts.map(|(range, first_page, mut spec)| {
            // Memory locks are not inherited.
            spec.flags.remove(VmaFlags::LOCKED | VmaFlags::ON_FAULT);
            Vma::new(range.start.wrapping_add(offset)..range.end.wrapping_add(offset), first_page, spec)
        });
        let vmas: Vec<_> = vmas.collect();
        let mut layout = self.mm.write();
        self.mm.room_for(vmas.len(), &layout)?;
        vmas.into_iter().for_each(|vma| self.mm.insert(&mut layout, vma));
        Ok(())
    }

    /// Lets the child have what this space has at a page: from now on a store by either is a fault.
    fn share(&self, page: u64, child: &Space<Soft>, there: u64, patience: Patience) -> Result<(), Errno> {
        // Dropped meanwhile: then the child has none either. Copied or moved: the next look finds the other.
        while let Some(mut folio) = self.core.lock_own_within(&self.mm, page, &(page..page + 1)) {
            // What others have, too, nobody can store to.
            let shared = folio.mapcount.load(Ordering::Acquire) > 1;
            let unmapped = shared || self.core.mmu.unmap(folio.body_mut().extent()) != Err(UnmapError::Busy);
            if unmapped {
                folio.mapcount.fetch_add(1, Ordering::AcqRel);
                // Nobody knows the child yet.
                child.mm.anon.insert(there, folio.arc());
            }
            drop(folio);
            if unmapped {
                break;
            }
            if !patience.wait() {
                return Err(Errno::AGAIN);
            }
        }
        Ok(())
    }

    /// Takes back what a child has got that nobody will ever use.
    fn undo_fork(&self, child: &Space<Soft>) {
        for (page, _) in child.mm.anon.in_range(0..u64::MAX >> PAGE_SHIFT) {
            if let Some(folio) = self.core.lock_own(&child.mm, page) {
                child.core.take_own(&child.mm, page, folio);
            }
        }
    }
}
