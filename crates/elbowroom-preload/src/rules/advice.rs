//! What an advice means for managed memory.

use elbowroom::Advice;
use libc::c_int;

/// These are not in libc yet.
const MADV_DONTNEED_LOCKED: c_int = 24;
const MADV_GUARD_REMOVE: c_int = 103;

/// What an advice of madvise(2) is to the manager; `None`: only the kernel can follow it.
pub fn meaning(advice: c_int) -> Option<Advice> {
    Some(match advice {
        libc::MADV_NORMAL => Advice::Normal,
        libc::MADV_RANDOM => Advice::Random,
        libc::MADV_SEQUENTIAL => Advice::Sequential,
        libc::MADV_WILLNEED => Advice::WillNeed,
        libc::MADV_DONTNEED => Advice::DontNeed,
        MADV_DONTNEED_LOCKED => Advice::DontNeedLocked,
        libc::MADV_FREE => Advice::Free,
        libc::MADV_COLD => Advice::Cold,
        libc::MADV_PAGEOUT => Advice::PageOut,
        libc::MADV_POPULATE_READ => Advice::PopulateRead,
        libc::MADV_POPULATE_WRITE => Advice::PopulateWrite,
        libc::MADV_REMOVE => Advice::Remove,
        libc::MADV_DONTFORK => Advice::DontFork,
        libc::MADV_DOFORK => Advice::DoFork,
        libc::MADV_WIPEONFORK => Advice::WipeOnFork,
        libc::MADV_KEEPONFORK => Advice::KeepOnFork,
        libc::MADV_DONTDUMP => Advice::DontDump,
        libc::MADV_DODUMP => Advice::DoDump,
        libc::MADV_HUGEPAGE => Advice::HugePage,
        libc::MADV_NOHUGEPAGE => Advice::NoHugePage,
        libc::MADV_MERGEABLE => Advice::Mergeable,
        libc::MADV_UNMERGEABLE => Advice::Unmergeable,
        MADV_GUARD_REMOVE => Advice::RemoveGuards,
        _ => return None,
    })
}

/// Whether every kernel knows the advice. A kernel without huge pages, for example, refuses advice about
/// them.
pub fn all_kernels_know(advice: c_int) -> bool {
    (libc::MADV_NORMAL..=libc::MADV_DONTNEED).contains(&advice) || advice == libc::MADV_FREE
}

/// Whether the advice changes only the bytes of a mapping, if anything.
pub fn leaves_mapping(advice: c_int) -> bool {
    matches!(
        advice,
        libc::MADV_WILLNEED
            | libc::MADV_DONTNEED
            | MADV_DONTNEED_LOCKED
            | libc::MADV_FREE
            | libc::MADV_COLD
            | libc::MADV_PAGEOUT
            | libc::MADV_POPULATE_READ
            | libc::MADV_POPULATE_WRITE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kernel_follows_these() {
        // Numbers that mean nothing, COLLAPSE, HWPOISON, SOFT_OFFLINE, GUARD_INSTALL.
        let left: Vec<_> = (0..=103).filter(|advice| meaning(*advice).is_none()).collect();
        let expected: Vec<_> = [5, 6, 7].into_iter().chain(25..=102).collect();
        assert_eq!(left, expected);
    }

    #[test]
    fn what_leaves_a_mapping_is_followed() {
        let leave: Vec<_> = (0..=103).filter(|advice| leaves_mapping(*advice)).collect();
        assert!(leave.iter().all(|advice| meaning(*advice).is_some()), "{leave:?}");
        assert!(!leave.contains(&libc::MADV_WIPEONFORK) && leave.contains(&libc::MADV_DONTNEED));
    }
}
