//! A space and its mappings move to another group. Linux: a process that is written to `cgroup.procs`.
//!
//! As there, what is allocated from then on is charged to the new group. Pages that are in memory or in swap
//! stay charged to the group that they were allocated for: to move them would be to visit each of them.

use super::Space;
use super::change::{AfterChange, Pages, VmaPart};
use super::page_align;
use super::protect::covers_all;
use crate::group::GroupId;
use crate::platform::Platform;
use crate::trace::Verb;
use elbowroom_machine::{Errno, PAGE_SIZE};

impl<P: Platform> Space<P> {
    /// The group of the space: it pays for mappings that are made without a group of their own.
    pub fn group(&self) -> GroupId {
        self.mm.group.get()
    }

    /// Gives the space another group. Mappings that exist stay in theirs: see [`Space::move_mappings`].
    ///
    /// # Errors
    /// ENOENT: there is no such group.
    pub fn set_group(&self, group: GroupId) -> Result<(), Errno> {
        self.core.groups.check(group)?;
        self.mm.group.set(group);
        Ok(())
    }

    /// Moves the mappings of a range to another group, which pays for the anonymous memory that is allocated
    /// for them from now on. Pages that are there stay charged to the group before. Pages of files are
    /// charged to the group of the file's first mapping, as before.
    ///
    /// `addr`: a multiple of the page size. `len`: in bytes, rounded up to whole pages; 0: nothing is moved.
    /// A mapping that is in the range in part is split.
    ///
    /// # Errors
    /// ENOENT: there is no such group. EINVAL: the address is not aligned. ENOMEM: not all of the range is
    /// mapped; then nothing is moved.
    ///
    /// Locks: the layout lock, and the locks of the range's VMAs.
    pub fn move_mappings(&self, addr: usize, len: usize, group: GroupId) -> Result<(), Errno> {
        self.core.verb(Verb::Regroup, addr, len, || self.move_mappings_now(addr, len, group))
    }

    fn move_mappings_now(&self, addr: usize, len: usize, group: GroupId) -> Result<(), Errno> {
        self.core.groups.check(group)?;
        if !addr.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::INVAL);
        }
        let range = self.clamped(addr, len);
        if len == 0 {
            return Ok(());
        }
        if range.len() != page_align(len) {
            return Err(Errno::NOMEM);
        }
        let plan = |parts: &[VmaPart]| covers_all(parts, &range).map(|()| Pages::Stay);
        let change = self.begin(range.clone(), plan)?;
        let new = change.parts.iter().map(|part| part.with(|spec| spec.group = group)).collect();
        self.finish(change, new, AfterChange::Free);
        Ok(())
    }
}
