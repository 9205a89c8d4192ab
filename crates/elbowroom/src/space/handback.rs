//! Giving addresses back to the kernel.

use super::Space;
use super::change::{Change, Pages, Part, Rest, Terms};
use crate::config::{ALIAS_ROUNDS, DELAY, PINNED_BOUND};
use crate::object::FileObject;
use crate::platform::Host;
use crate::stats::Event;
use crate::vma::Prot;
use crate::writeback::Obstacle;
use elbowroom_machine::{Errno, PAGE_SIZE};
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::time::Instant;
use elbowroom_sync::{Arc, thread};
use std::ops::Range;

impl Space<Host> {
    /// Replaces the mappings of files in the range by the kernel's own, in place, of the same files at the same offsets, with PROT_* bits
    /// `prot`, or their own rights if `None`. What was dirty is written first, so the bytes are the same.
    ///
    /// # Errors
    /// EINVAL: the range is no range. EOPNOTSUPP: something there is not a file's, or has pages of its own. ENOMEM: no more ranges can be given away. EBUSY: a page is
    /// pinned, or being written, for longer than the bound. The error of a write-back. In all of these nothing is changed. The error of mapping: what was not mapped
    /// stays as it is.
    pub fn hand_back(&self, addr: usize, len: usize, prot: Option<u32>) -> Result<(), Errno> {
        let range = self.range(addr, len).ok_or(Errno::INVAL)?;
        let deadline = Instant::now() + PINNED_BOUND;
        while !self.give_files(std::slice::from_ref(&range), prot, None)? {
            // A write(2) to it is under way. It may wait for our change to end, so we do not wait for it in there.
            if Instant::now() > deadline {
                return Err(Errno::BUSY);
            }
            thread::sleep(DELAY);
        }
        Ok(())
    }

    /// Replaces the mappings of files in the ranges, which are in order, by the kernel's own, all at one moment. With `only`: if they are all that there is of that file,
    /// and nothing else. `false`: not now.
    fn give_files(
        &self,
        ranges: &[Range<usize>],
        prot: Option<u32>,
        only: Option<&Arc<FileObject>>,
    ) -> Result<bool, Errno> {
        let mut changes = Vec::new();
        let given = self.begin_giving(ranges, only, &mut changes);
        if !matches!(given, Ok(true)) {
            changes.into_iter().for_each(|change| self.undo(change));
            return given;
        }
        let mut mapped = Ok(());
        for change in changes {
            let mut kept = Vec::new();
            for part in &change.parts {
                mapped = mapped.and_then(|()| self.map_kernels_own(part, prot));
                if mapped.is_err() {
                    kept.push(part.with(|_| ()));
                }
            }
            self.finish(change, kept, Rest::Given);
        }
        mapped.map(|()| true)
    }

    /// Takes the mappings out, and sees to it that the file has all that they have. What has begun is in `changes`, whatever the result.
    fn begin_giving(
        &self,
        ranges: &[Range<usize>],
        only: Option<&Arc<FileObject>>,
        changes: &mut Vec<Change>,
    ) -> Result<bool, Errno> {
        let wanted = |object: &Arc<FileObject>| {
            !object.is_memory() && only.is_none_or(|only| Arc::ptr_eq(only, object))
        };
        // From the lowest address on: so that two who begin several cannot wait for each other.
        for range in ranges {
            let terms = Terms { beside_another: !changes.is_empty(), ..Terms::default() };
            let change = self.begin_on(terms, range.clone(), |parts: &[Part]| {
                if !parts.iter().all(|part| part.spec.object.as_ref().is_some_and(|object| wanted(object))) {
                    return Err(Errno::OPNOTSUPP);
                }
                self.can_give(parts.len() + ranges.len())
            })?;
            changes.push(change);
        }
        if let Some(object) = only {
            let layout = self.mm.write();
            // Mapped, or moved, since it was listed.
            if layout.changing.len() != changes.len() || !self.mm.ranges_of(object, &layout).is_empty() {
                return Ok(false);
            }
        }
        changes.iter().try_fold(true, |all, change| Ok(self.settled(&change.parts)? && all))
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

    /// Leaves the files to the kernel of which a folio has gone from one mapping to another all the time.
    ///
    /// A folio is mapped in one place. An instruction that needs two mappings of one at the same time (`rep movsb` from one to the other) would fault for ever,
    /// and a loop that uses two in turn is slow. The kernel can do both.
    pub(crate) fn settle_aliases(&self) {
        self.core.seconds.fetch_add(1, Ordering::Relaxed);
        for object in self.core.objects.all() {
            if object.take_bouncing() {
                self.leave_to_kernel(&object);
            }
        }
    }

    fn leave_to_kernel(&self, object: &Arc<FileObject>) {
        // From now on nobody maps it anew.
        object.set_aliased(true);
        for _ in 0..ALIAS_ROUNDS {
            let Some(layout) = self.core.still_layout(&self.mm) else { break };
            let ranges = self.mm.ranges_of(object, &layout);
            drop(layout);
            if ranges.is_empty() {
                return;
            }
            match self.give_files(&ranges, None, Some(object)) {
                Ok(true) => self.core.counters.add(Event::AliasedFiles, 1),
                Ok(false) | Err(Errno::BUSY) => thread::sleep(DELAY),
                Err(_) => break,
            }
        }
        // The kernel cannot have it, or not now: all of it goes on as it was.
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
