//! A space and its mappings move to another group. Linux: a process that is written to `cgroup.procs`.
//!
//! As there, new memory is charged to the new group. Pages in memory or in swap stay charged to the group
//! that they were allocated for: to move them would be to visit each of them.

use super::change::{AfterChange, Pages, VmaPart};
use super::protect::covers_all;
use super::{Space, page_align};
use crate::group::GroupId;
use crate::platform::Platform;
use crate::trace::Verb;
use elbowroom_machine::{Errno, PAGE_SIZE};

/// The group that pays for mappings of a space that are made without a group of their own.
pub(crate) fn group_of<P: Platform>(space: &Space<P>) -> GroupId {
    space.mm.group.get()
}

/// [`MemoryGroups::move_space`](crate::MemoryGroups::move_space).
pub(crate) fn move_space<P: Platform>(space: &Space<P>, group: GroupId) -> Result<(), Errno> {
    space.core.groups.check(group)?;
    space.mm.group.set(group);
    Ok(())
}

/// [`MemoryGroups::move_mappings`](crate::MemoryGroups::move_mappings).
pub(crate) fn move_mappings<P: Platform>(
    space: &Space<P>,
    addr: usize,
    len: usize,
    group: GroupId,
) -> Result<(), Errno> {
    let body = || {
        space.core.groups.check(group)?;
        if !addr.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::INVAL);
        }
        if len == 0 {
            return Ok(());
        }
        let range = space.clamped(addr, len);
        if range.len() != page_align(len) {
            return Err(Errno::NOMEM);
        }
        let plan = |parts: &[VmaPart]| covers_all(parts, &range).map(|()| Pages::Stay);
        let change = space.begin(range.clone(), plan)?;
        let new = change.parts.iter().map(|part| part.with(|spec| spec.group = group)).collect();
        space.finish(change, new, AfterChange::Free);
        Ok(())
    };
    space.core.verb(Verb::Regroup, addr, len, body)
}
