//! The group that a thread has chosen for the mappings that it makes. Linux: the control group of a thread.

use super::GroupId;
#[cfg(not(shuttle))]
use std::cell::Cell;

// A model runs all its threads on one of the standard library's, so this would be shared there.
#[cfg(not(shuttle))]
std::thread_local! {
    /// The manager's core, by its address, and the group.
    static CHOSEN: Cell<Option<(usize, GroupId)>> = const { Cell::new(None) };
}

/// Runs `f`; the mappings that the calling thread makes in it are the group's. `core`: the address of the
/// manager's core, which no other manager has meanwhile.
#[cfg(not(shuttle))]
pub fn within<R>(core: usize, group: GroupId, f: impl FnOnce() -> R) -> R {
    /// Puts back what was chosen before, after a panic, too.
    struct Before(Option<(usize, GroupId)>);
    impl Drop for Before {
        fn drop(&mut self) {
            CHOSEN.set(self.0);
        }
    }
    let _before = Before(CHOSEN.replace(Some((core, group))));
    f()
}

/// The group that the calling thread has chosen for the mappings of a manager.
pub fn chosen(core: usize) -> Option<GroupId> {
    #[cfg(not(shuttle))]
    return CHOSEN.get().filter(|(of, _)| *of == core).map(|(_, group)| group);
    #[cfg(shuttle)]
    {
        let _ = core;
        None
    }
}
