//! fork: makes a second space with the same mappings, which shares the first one's own pages until either
//! stores to them. Linux: `dup_mmap`, `copy_page_range`.

use super::Space;
use crate::config::FORK_PINNED_BOUND;
use crate::object::ALL_PAGES;
use crate::platform::Soft;
use crate::trace::Verb;
use crate::vma::{Vma, VmaFlags, VmaSpec};
use crate::writeback::Patience;
use elbowroom_machine::{Errno, PAGE_SHIFT, UnmapError};
use elbowroom_sync::Mutant;
use elbowroom_sync::epoch::Slot;
use std::ops::Range;

/// In tests of the tests: a child takes its count of a swap slot only after its parent may have given the
/// slot up.
const MUTANT_SHARE_LATE: Mutant = Mutant::new("share_late");

impl Space<Soft> {
    /// A child: a space with the same mappings at the same places. Shared mappings have the same pages; a
    /// page that belongs to this space is copied when either space stores to it. Both spaces may go on, and
    /// be forked again. Each page is shared at one moment; stores that other threads make meanwhile are in
    /// the child or not.
    ///
    /// # Errors
    /// ENOMEM: too many spaces or VMAs. EAGAIN: pages that belong to this space, and so cannot be shared,
    /// were pinned for longer than 0.1 s in all; or mappings were being changed all the time.
    ///
    /// Locks: `layout` of this space, shortly; those of the folios that belong to it. Changes of mappings
    /// wait until it ends.
    pub fn fork(&self) -> Result<Space<Soft>, Errno> {
        let child = Space::create(&self.core, self.mm.group.get())?;
        let forked = self.core.verb(Verb::Fork, self.base, 0, || self.fork_into(&child));
        if forked.is_err() {
            self.undo_fork(&child);
        }
        child.settle_down();
        forked.map(|()| child)
    }

    fn fork_into(&self, child: &Space<Soft>) -> Result<(), Errno> {
        let offset = child.base.wrapping_sub(self.base);
        // Until this ends no change begins, so nothing is unmapped or replaced, and the child gets the
        // pages of the mappings that it has. What other threads map meanwhile at free addresses is not in
        // the child.
        let _still = self.core.keep_still(&self.mm).ok_or(Errno::AGAIN)?;
        let parts = self.mm.parts_held(&self.everything(), &self.mm.write());
        let inherited = || parts.iter().filter(|part| !part.2.flags.contains(VmaFlags::DONT_FORK));
        // First the VMAs, then the pages: a thread that looks for private copies of a file's page finds the
        // child's by its VMA, and waits until the child has all of its pages.
        child.map_as(inherited().cloned(), offset)?;
        let patience = Patience::of(FORK_PINNED_BOUND);
        for (range, _, spec) in inherited() {
            if !spec.is_private() || spec.flags.contains(VmaFlags::WIPE_ON_FORK) {
                continue;
            }
            let pages = (range.start >> PAGE_SHIFT) as u64..(range.end >> PAGE_SHIFT) as u64;
            for own in self.mm.anon.owned_in(pages.clone()) {
                for page in own.start.max(pages.start)..own.end.min(pages.end) {
                    let there = ((page as usize) << PAGE_SHIFT).wrapping_add(offset) >> PAGE_SHIFT;
                    self.share(page, child, there as u64, &patience)?;
                }
            }
        }
        Ok(())
    }

    /// Puts in the VMAs of another space, `offset` bytes away. The whole space counts as in change until
    /// [`Space::settle_down`].
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
        layout.changing.push(self.everything());
        vmas.into_iter().for_each(|vma| self.mm.insert(&mut layout, vma));
        Ok(())
    }

    /// Ends the change that [`Space::map_as`] has begun: the space has all of its pages.
    fn settle_down(&self) {
        let mut layout = self.mm.write();
        layout.changing.clear();
        let gate = layout.take_gate();
        drop(layout);
        if let Some(gate) = gate {
            gate.open();
        }
    }

    /// Shares what this space has at a page, in memory or out, with the child: from now on a store by
    /// either is a fault, which copies the page.
    fn share(&self, page: u64, child: &Space<Soft>, there: u64, patience: &Patience) -> Result<(), Errno> {
        loop {
            let Some(mut folio) = self.core.lock_own_within(&self.mm, page, &(page..page + 1)) else {
                let share = |slot| {
                    if !MUTANT_SHARE_LATE.planted() {
                        self.core.swap.share(slot)
                    }
                };
                let out = self.mm.anon.share_out(page, share);
                if MUTANT_SHARE_LATE.planted()
                    && let Slot::Word(slot) = out
                {
                    self.core.swap.share(slot);
                }
                match out {
                    // The child is known to no other thread yet, so nothing is in its way.
                    Slot::Word(slot) => _ = child.mm.anon.put_out(there, slot),
                    // Dropped meanwhile: then the child has none either.
                    Slot::Empty => {}
                    // It has come in meanwhile: try again.
                    Slot::Full(_) => continue,
                }
                break;
            };
            // A folio that other spaces share already is mapped read-only everywhere. One that only this
            // space has is unmapped, so that the next store to it is a fault.
            let shared = folio.body().spaces() > 1;
            let unmapped = shared || self.core.mmu.unmap(folio.body_mut().extent()) != Err(UnmapError::Busy);
            if unmapped {
                folio.body_mut().rmap.add(there);
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

    /// Takes the pages away from a child whose fork has failed.
    fn undo_fork(&self, child: &Space<Soft>) {
        for page in child.mm.anon.owned_in(ALL_PAGES).flatten() {
            loop {
                if let Some(folio) = self.core.lock_own(&child.mm, page) {
                    break child.core.take_own(&child.mm, page, folio);
                }
                if child.core.take_own_out(&child.mm, page) {
                    break;
                }
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::{Config, Manager, MapRequest, Place, Prot, Sharing};
    use elbowroom_machine::PAGE_SIZE;
    use elbowroom_sync::time::{Duration, Instant};
    use elbowroom_sync::{Arc, thread};

    /// A truncation must wait for the child: a private copy may be not in the child yet, and already be
    /// dropped from its parent.
    #[test]
    fn a_truncation_waits_for_a_child_that_is_being_made() {
        const LONG: Duration = Duration::from_millis(300);
        let manager = Manager::<Soft>::start_on(Config::with_memory(16 << 20)).unwrap();
        let parent = manager.create_space().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(PAGE_SIZE as u64).unwrap();
        let object = manager.open(file.path(), true).unwrap();
        let request = MapRequest {
            place: Place::Anywhere,
            len: PAGE_SIZE,
            prot: Prot::READ.union(Prot::WRITE),
            may_write: true,
            sharing: Sharing::Private,
            object: Some(object.clone()),
            offset: 0,
            populate: false,
            locked: false,
            no_reserve: false,
            group: None,
        };
        let addr = parent.map(request).unwrap();
        parent.cpu().write_u64(addr, 1).unwrap();

        let child = Arc::new(manager.create_space().unwrap());
        let offset = child.base().wrapping_sub(parent.base());
        let parts = parent.mm.parts_held(&parent.everything(), &parent.mm.write());
        child.map_as(parts.into_iter(), offset).unwrap();
        file.as_file().set_len(0).unwrap();
        let there = addr.wrapping_add(offset);
        let for_forker = child.clone();
        let forker = thread::spawn("forker", move || {
            thread::sleep(LONG);
            for_forker.settle_down();
        });
        let began = Instant::now();
        manager.resized(&object, 0..u64::MAX);
        assert!(began.elapsed() > LONG / 2, "{:?}", began.elapsed());
        forker.unwrap().join().unwrap();
        assert!(child.cpu().read_u64(there).is_err());
    }
}
