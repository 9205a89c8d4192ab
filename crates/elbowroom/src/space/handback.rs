//! Giving addresses back to the kernel.

use super::Space;
use super::change::{Pages, Part, Rest};
use crate::config::{ALIAS_MOVES, ALIAS_ROUNDS, DELAY, PINNED_BOUND};
use crate::object::FileObject;
use crate::platform::Host;
use crate::vma::Prot;
use crate::writeback::Obstacle;
use elbowroom_machine::{Errno, PAGE_SIZE};
use elbowroom_sync::time::Instant;
use elbowroom_sync::{Arc, thread};

impl Space<Host> {
    /// Replaces the mappings of files in the range by the kernel's own, in place, of the same files at the same offsets, with PROT_* bits
    /// `prot`, or their own rights if `None`. What was dirty is written first, so the bytes are the same.
    ///
    /// # Errors
    /// EINVAL: the range is no range. EOPNOTSUPP: something there is not a file's, or has pages of its own; nothing is changed. ENOMEM: no more ranges can be
    /// given away; nothing is changed. EBUSY: a page is pinned, or being written, for longer than the bound; nothing is changed. The error of a write-back: nothing is
    /// changed. The error of
    /// mapping: what was not mapped stays as it is.
    pub fn hand_back(&self, addr: usize, len: usize, prot: Option<u32>) -> Result<(), Errno> {
        self.hand_back_if(addr, len, prot, |_| true)
    }

    /// The same, if all of it is mappings of what is `wanted`; else EOPNOTSUPP.
    fn hand_back_if(
        &self,
        addr: usize,
        len: usize,
        prot: Option<u32>,
        wanted: impl Fn(&FileObject) -> bool,
    ) -> Result<(), Errno> {
        let range = self.range(addr, len).ok_or(Errno::INVAL)?;
        let deadline = Instant::now() + PINNED_BOUND;
        let (change, mut mapped) = loop {
            let plan = |parts: &[Part]| {
                let file =
                    |part: &Part| part.spec.object.as_ref().is_some_and(|o| !o.is_memory() && wanted(o));
                if !parts.iter().all(file) {
                    return Err(Errno::OPNOTSUPP);
                }
                self.can_give(parts.len())
            };
            let change = self.begin(range.clone(), plan)?;
            match self.settled(&change.parts) {
                Ok(true) => break (change, Ok(())),
                Ok(false) if Instant::now() > deadline => {
                    self.undo(change);
                    return Err(Errno::BUSY);
                }
                // A write(2) to it is under way. It may wait for our change to end, so we do not wait for it in here.
                Ok(false) => self.undo(change),
                Err(e) => {
                    self.undo(change);
                    return Err(e);
                }
            }
            thread::sleep(DELAY);
        };
        let mut kept = Vec::new();
        for part in &change.parts {
            mapped = mapped.and_then(|()| self.map_kernels_own(part, prot));
            if mapped.is_err() {
                kept.push(part.with(|_| ()));
            }
        }
        self.finish(change, kept, Rest::Given);
        mapped
    }

    /// Whether the file has all that the parts, which are being changed, have; writes back what can be written now.
    ///
    /// # Errors
    /// EOPNOTSUPP: there are pages of the space's own. The error of a write-back.
    fn settled(&self, parts: &[Part]) -> Result<bool, Errno> {
        // Only now can no more appear.
        let own = |part: &Part| part.spec.is_private() && self.mm.anon.has_any(part.page_numbers());
        if parts.iter().any(own) {
            return Err(Errno::OPNOTSUPP);
        }
        let mut clean = true;
        for part in parts {
            let Some(object) = &part.spec.object else { continue };
            self.core.write_back(object, part.pages(), Obstacle::Skip)?;
            clean &= object.dirty_in(part.pages()).is_empty();
        }
        Ok(clean)
    }

    fn map_kernels_own(&self, part: &Part, prot: Option<u32>) -> Result<(), Errno> {
        let Some(object) = &part.spec.object else { return Ok(()) };
        let (read, write) = (u32::from(Prot::READ.bits()), u32::from(Prot::WRITE.bits()));
        debug_assert_eq!((read, write), (1, 2), "the bits are those of PROT_READ and PROT_WRITE");
        let prot = prot.unwrap_or(u32::from(part.spec.prot.bits()));
        let offset = part.first_page * PAGE_SIZE as u64;
        let private = part.spec.is_private();
        self.core.mmu.map_file(part.range.clone(), object.file().as_fd(), offset, prot, private)
    }

    /// ENOMEM, before anything is changed, if no more ranges can be given away.
    fn can_give(&self, ranges: usize) -> Result<Pages, Errno> {
        if self.core.mmu.can_give_away(ranges + 1) { Ok(Pages::Leave) } else { Err(Errno::NOMEM) }
    }

    /// Leaves the files to the kernel whose folios have gone from one mapping to another all the time in the last second.
    ///
    /// A folio is mapped in one place. An instruction that needs two mappings of one at the same time (`rep movsb` from one to the other) would fault for ever,
    /// and a loop that uses two in turn is slow. The kernel can do both.
    pub(crate) fn settle_aliases(&self) {
        for object in self.core.objects.all() {
            if object.take_moves() > ALIAS_MOVES {
                self.leave_to_kernel(&object);
            }
        }
    }

    fn leave_to_kernel(&self, object: &Arc<FileObject>) {
        // From now on nobody maps it anew.
        object.set_aliased(true);
        let listed = || {
            let layout = self.core.still_layout(&self.mm);
            (self.mm.ranges_of(object, &layout), self.mm.copies_of(object, 0, &layout))
        };
        if !listed().1.is_empty() {
            // The kernel knows nothing of those.
            return object.set_aliased(false);
        }
        self.core.counters.aliased_files.add(1);
        // Some may be moved between being listed and being handed back.
        for _ in 0..ALIAS_ROUNDS {
            let (ranges, _) = listed();
            if ranges.is_empty() {
                return;
            }
            for range in ranges {
                // What cannot be handed back goes on as it was, and so does the program.
                let ours = |other: &FileObject| std::ptr::eq(other, &**object);
                let _ = self.hand_back_if(range.start, range.len(), None, ours);
            }
        }
        // Some could not be: better all with us than some.
        object.set_aliased(false);
    }

    /// Unmaps what is mapped in the range and leaves its addresses to whoever maps something over them.
    ///
    /// # Errors
    /// As for [`Space::hand_back`].
    pub fn surrender(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let range = self.range(addr, len).ok_or(Errno::INVAL)?;
        let plan = |parts: &[Part]| self.can_give(parts.len() + 1).map(|_| Pages::Drop);
        let change = self.begin(range.clone(), plan)?;
        let mut given = Ok(());
        let mut rest = range.clone();
        while let Some(owned) = self.core.mmu.windows().first_owned(rest.clone()) {
            rest.start = owned.end;
            given = given.and(self.core.mmu.give_away(owned));
        }
        self.finish(change, Vec::new(), Rest::Taken);
        given
    }
}
