//! The memory groups of a manager, as programs see them.

#[cfg(all(test, not(shuttle)))]
mod tests;

use crate::config::DELAY;
#[cfg(not(shuttle))]
use crate::group::of_thread;
use crate::group::{GroupId, GroupStats, Limits};
use crate::page::Ready;
use crate::pause::{Cause, pause};
use crate::platform::{Platform, Soft};
use crate::reclaim::Target;
use crate::space::{Space, Spaces, regroup};
use elbowroom_machine::{Errno, PAGE_SIZE};
use elbowroom_sync::Arc;

/// How many attempts may free nothing before reclaim gives up. Linux: `MAX_RECLAIM_RETRIES`.
const RETRIES: usize = 16;

/// The memory groups of a manager: a tree whose root, [`GroupId::ROOT`], is the manager's whole budget. A
/// space or a mapping belongs to a group, and the memory that is used for it is charged to that group. A
/// group uses at most what its limits and those of all groups above it permit. Linux: cgroup v2, memory
/// controller.
///
/// All calls may be made by any thread that may call the manager, at any time.
pub struct MemoryGroups<'m, P: Platform> {
    core: &'m Arc<Spaces<P>>,
}

impl<'m, P: Platform> MemoryGroups<'m, P> {
    pub(super) fn of(core: &'m Arc<Spaces<P>>) -> Self {
        Self { core }
    }

    /// Makes a group below `parent`, with these limits.
    ///
    /// # Errors
    /// ENOENT: there is no group `parent`. ENOSPC: there are 1,024 groups, removed ones with pages left
    /// included.
    ///
    /// Locks: `groups`.
    pub fn create(&self, parent: GroupId, limits: &Limits) -> Result<GroupId, Errno> {
        self.core.groups.create(parent, limits)
    }

    /// Changes the limits of a group. If the group uses more than its new `max`, or has more than its new
    /// `memory_swap_max`, its memory is reclaimed before this returns: for the latter, pages of files. Pages
    /// that cannot be reclaimed stay, but the group gets no more. What is in swap stays there, whatever the
    /// new `swap_max` is.
    ///
    /// # Errors
    /// ENOENT: there is no such group. EINVAL: it is the root, whose limit is the budget. EBUSY: the limits
    /// are set, but too little of the group's memory can be reclaimed now: it is still beyond one of the two.
    ///
    /// Locks: `groups`; then those of reclaim.
    pub fn set_limits(&self, group: GroupId, limits: &Limits) -> Result<(), Errno> {
        let groups = &self.core.groups;
        groups.change_limits(group, |_| *limits)?;
        let beyond = || match (groups.beyond_max(group), groups.beyond_memory_swap(group)) {
            (0, 0) => None,
            (0, pages) => Some((pages, Target::memory_and_swap(group))),
            (pages, _) => Some((pages, Target::from(group))),
        };
        let mut failures = 0;
        while let Some((pages, target)) = beyond().filter(|_| failures < RETRIES) {
            let want = (pages as usize).min(self.core.tuning().reclaim_batch_pages);
            if self.shrink(target, want) == 0 {
                failures += 1;
                pause(Cause::Frames, DELAY);
            }
        }
        if beyond().is_none() { Ok(()) } else { Err(Errno::BUSY) }
    }

    /// Removes a group. The memory that it uses counts as the parent's from now on; what is allocated for
    /// its spaces and mappings later is charged to the parent.
    ///
    /// # Errors
    /// ENOENT: there is no such group. EBUSY: it is the root, or has groups below it.
    ///
    /// Locks: `groups`.
    pub fn remove(&self, group: GroupId) -> Result<(), Errno> {
        self.core.groups.remove(group)
    }

    /// Runs `f`: the mappings that the calling thread makes in it are the group's, if their requests name
    /// none, in whichever space. Calls may be nested; the innermost counts. Memory that is mapped already
    /// stays where it is.
    ///
    /// # Errors
    /// ENOENT: there is no such group. `f` was not called.
    #[cfg(not(shuttle))]
    pub fn within<R>(&self, group: GroupId, f: impl FnOnce() -> R) -> Result<R, Errno> {
        self.core.groups.check(group)?;
        Ok(of_thread::within(Arc::as_ptr(self.core) as usize, group, f))
    }

    /// The statistics of a group, with all groups below it.
    ///
    /// # Errors
    /// ENOENT: there is no such group.
    pub fn stats(&self, group: GroupId) -> Result<GroupStats, Errno> {
        self.core.groups.stats(group)
    }

    /// The statistics of all groups, each with the groups below it: in one walk, where as many calls of
    /// [`MemoryGroups::stats`] would look at a group once for each group above it.
    ///
    /// Locks: `groups`.
    pub fn all_stats(&self) -> Vec<(GroupId, GroupStats)> {
        self.core.groups.all_stats()
    }

    /// Frees about so many bytes of a group's memory, even if the group itself is protected; the protection
    /// of groups below it holds. Returns how many bytes were freed, which may be more or less. Linux:
    /// `memory.reclaim`.
    ///
    /// # Errors
    /// ENOENT: there is no such group.
    ///
    /// Locks: those of reclaim.
    pub fn reclaim(&self, group: GroupId, bytes: u64) -> Result<u64, Errno> {
        self.core.groups.check(group)?;
        let want = bytes.div_ceil(PAGE_SIZE as u64) as usize;
        let (mut freed, mut failures) = (0, 0);
        while freed < want && failures < RETRIES {
            let some = self.shrink(group, (want - freed).min(self.core.tuning().reclaim_batch_pages));
            freed += some;
            if some == 0 {
                failures += 1;
                pause(Cause::Frames, DELAY);
            }
        }
        Ok((freed * PAGE_SIZE) as u64)
    }

    /// Shows groups under these names to `elbowroom top` and `ctl`, which can also change their limits then.
    /// Names have at most 128 bytes; of longer ones the first so many are shown. Only the first call has an
    /// effect, and only if the process is one of a run ([`Config::member`](crate::Config::member)). All
    /// processes of a run together can show 1,024 groups; further ones are not shown.
    pub fn show(&self, groups: &[(GroupId, &str)]) {
        if let Some(member) = &self.core.config.member {
            member.groups().show(groups.iter().map(|(id, name)| (id.key(), (*name).to_owned())).collect());
        }
    }

    fn shrink(&self, target: impl Into<Target>, want: usize) -> usize {
        let ready = Ready::default();
        let freed = self.core.shrink(target, want, &ready);
        self.core.dispatch(ready.take());
        freed
    }
}

impl<P: Platform> MemoryGroups<'_, P> {
    /// The group of a space: it pays for mappings that are made without a group of their own.
    pub fn group_of(&self, space: &Space<P>) -> GroupId {
        regroup::group_of(space)
    }

    /// Gives a space another group. Mappings that exist stay in theirs: see [`MemoryGroups::move_mappings`].
    ///
    /// # Errors
    /// ENOENT: there is no such group.
    pub fn move_space(&self, space: &Space<P>, group: GroupId) -> Result<(), Errno> {
        regroup::move_space(space, group)
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
    pub fn move_mappings(
        &self,
        space: &Space<P>,
        addr: usize,
        len: usize,
        group: GroupId,
    ) -> Result<(), Errno> {
        regroup::move_mappings(space, addr, len, group)
    }
}

impl MemoryGroups<'_, Soft> {
    /// Makes an empty soft space of a group.
    ///
    /// # Errors
    /// ENOENT: there is no such group. ENOMEM: there are as many spaces as there may be.
    pub fn create_space(&self, group: GroupId) -> Result<Space<Soft>, Errno> {
        self.core.groups.check(group)?;
        Space::create(self.core, group)
    }
}
