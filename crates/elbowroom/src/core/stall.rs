//! Stalls of threads that access memory: in which group a stall counts, and for which file or mapping.

use super::Core;
use crate::group::{GroupId, Source, Stall, StallKind};
use crate::platform::Platform;
use elbowroom_sync::epoch::pin;

impl<P: Platform> Core<P> {
    /// A thread begins to stall at an access to `addr`. `group`: the group whose memory is short; `None`:
    /// the group that pays for what is mapped at `addr`. The caller has no VMA locked.
    pub(crate) fn begin_stall(
        &self,
        kind: StallKind,
        thread: u32,
        addr: usize,
        group: Option<GroupId>,
    ) -> Option<Stall> {
        // Under shuttle time does not pass, and each lock taken gives it more schedules to try.
        if cfg!(shuttle) {
            return None;
        }
        let (pays, source) = self.stalls_for(kind, addr);
        Some(Stall::begin(&self.groups.of(group.unwrap_or(pays)).pressure(), thread, kind, source))
    }

    /// The group that pays for what is mapped at `addr`, and the file or the mapping there. A mapping that
    /// is being changed counts as one that begins at `addr`.
    fn stalls_for(&self, kind: StallKind, addr: usize) -> (GroupId, Source) {
        let guard = pin();
        let unknown = Source::Mapping(addr);
        let Some(mm) = self.spaces.at(addr, &guard) else { return (GroupId::ROOT, unknown) };
        let Ok(vma) = mm.enter(addr) else { return (mm.group.get(), unknown) };
        let mapping = Source::Mapping(vma.range.start);
        match &vma.spec.object {
            Some(object) if object.is_memory() => (object.group.get(), mapping),
            Some(object) if kind != StallKind::SwapIn => (object.group.get(), Source::File(object.id())),
            _ => (vma.spec.group, mapping),
        }
    }
}
