//! Giving addresses back to the kernel.

use super::Space;
use super::change::{Pages, Part, Rest};
use crate::config::{ALIAS_MOVES, ALIAS_ROUNDS};
use crate::object::FileObject;
use crate::platform::Host;
use crate::vma::Prot;
use crate::writeback::Obstacle;
use elbowroom_machine::{Errno, PAGE_SIZE};
use elbowroom_sync::Arc;

impl Space<Host> {
    /// Replaces the mappings of files in the range by the kernel's own, in place, of the same files at the same offsets, with PROT_* bits
    /// `prot`, or their own rights if `None`. What was dirty is written first, so the bytes are the same.
    ///
    /// # Errors
    /// EINVAL: the range is no range. EOPNOTSUPP: something there is not a file's, or has pages of its own; nothing is changed. ENOMEM: no more ranges can be
    /// given away; nothing is changed. The error of a write-back: nothing is changed. The error of
    /// mapping: what was not mapped stays as it is.
    pub fn hand_back(&self, addr: usize, len: usize, prot: Option<u32>) -> Result<(), Errno> {
        let range = self.range(addr, len).ok_or(Errno::INVAL)?;
        let plan = |parts: &[Part]| {
            let file = |part: &Part| part.spec.object.as_ref().is_some_and(|object| !object.is_memory());
            if !parts.iter().all(file) {
                return Err(Errno::OPNOTSUPP);
            }
            self.can_give(parts.len())
        };
        let change = self.begin(range, plan)?;
        // Only now can no more appear.
        let own = |part: &Part| part.spec.is_private() && self.mm.anon.has_any(part.page_numbers());
        if change.parts.iter().any(own) {
            self.undo(change);
            return Err(Errno::OPNOTSUPP);
        }
        let write_back = |part: &Part| match &part.spec.object {
            Some(object) => self.core.write_back(object, part.pages(), Obstacle::Wait),
            None => Ok(()),
        };
        if let Err(e) = change.parts.iter().try_for_each(write_back) {
            // The kernel's own mapping would have the old bytes.
            self.undo(change);
            return Err(e);
        }
        let mut mapped = Ok(());
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
                let _ = self.hand_back(range.start, range.len(), None);
            }
        }
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
