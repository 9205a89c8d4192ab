//! What an mremap means: its ranges, and whether the kernel or the manager does the call.

use crate::base::sys::{ADDRESS_END, PAGE};
use elbowroom::Remap;
use libc::c_int;
use std::ops::Range;

/// What mremap(2) was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemapArgs {
    /// The mapping as it is.
    pub old: usize,
    /// Its length in bytes; 0 asks for a second mapping of the same pages.
    pub old_len: usize,
    /// The new length in bytes.
    pub new_len: usize,
    /// MREMAP_* bits.
    pub flags: c_int,
    /// Where, with MREMAP_FIXED; a hint, with MREMAP_DONTUNMAP.
    pub new: usize,
}

/// The ranges that an mremap concerns, in whole pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranges {
    /// The mapping: at least its first page.
    pub mapping: Range<usize>,
    /// The mapping, with the addresses that it may grow into in place.
    pub grown: Range<usize>,
    /// The range that must be managed for the manager to do the call: a mapping that may move needs no room
    /// behind it.
    pub needed: Range<usize>,
    /// Where the mapping must go, or should go if it can; empty: no place is named.
    pub target: Range<usize>,
    /// The new length in bytes.
    pub new_len: usize,
    fixed: bool,
    may_move: bool,
    keeps: bool,
    from_len: usize,
    new: usize,
}

/// Which of the ranges have managed addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Any of [`Ranges::grown`] or [`Ranges::target`] is inside windows.
    pub concerns_us: bool,
    /// All of [`Ranges::needed`], and of a target that is replaced, is inside windows and ours.
    pub all_ours: bool,
}

/// Whose call it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// The kernel does the call: nothing that it concerns is managed.
    Kernel,
    /// The call fails with this errno.
    Refused(c_int),
    /// The manager does the call: the mapping becomes shorter in place.
    Cut,
    /// The manager does the call, in this way.
    Ask(Remap),
    /// The kernel does the call, after all that it concerns has gone to the kernel.
    HandBack,
}

impl Ranges {
    /// `None`: the kernel refuses the call, and changes nothing.
    pub fn of(args: &RemapArgs) -> Option<Self> {
        let page_up = |len: usize| len.checked_add(PAGE - 1).map(|len| len & !(PAGE - 1));
        let (from_len, to_len) = (page_up(args.old_len)?, page_up(args.new_len)?);
        let has = |flag| args.flags & flag != 0;
        let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        if !args.old.is_multiple_of(PAGE) || to_len == 0 || has(!known) {
            return None;
        }
        let (fixed, may_move, keeps) =
            (has(libc::MREMAP_FIXED), has(libc::MREMAP_MAYMOVE), has(libc::MREMAP_DONTUNMAP));
        let grown = args.old..args.old.checked_add(from_len.max(to_len).max(PAGE))?.min(ADDRESS_END);
        let wished = keeps && args.new != 0;
        let target = if fixed || wished { args.new..args.new.checked_add(to_len)? } else { 0..0 };
        if args.old.checked_add(from_len)? > ADDRESS_END || target.end.max(to_len) > ADDRESS_END {
            return None;
        }
        let mapping = args.old..args.old + from_len.max(PAGE);
        let needed = if may_move { mapping.clone() } else { grown.clone() };
        let (new, new_len) = (args.new, to_len);
        Some(Self { mapping, grown, needed, target, new_len, fixed, may_move, keeps, from_len, new })
    }

    /// Whether the target is only wished: what is mapped there stays.
    pub fn is_wish(&self) -> bool {
        !self.fixed && !self.target.is_empty()
    }

    /// Whether what is mapped at the target is replaced.
    pub fn replaces(&self) -> bool {
        self.fixed
    }

    /// The mapping as the caller has named it, which may be of no bytes.
    pub fn named(&self) -> Range<usize> {
        self.mapping.start..self.mapping.start + self.from_len
    }

    /// Whose call it is.
    pub fn plan(&self, facts: Facts) -> Plan {
        if !facts.concerns_us {
            return Plan::Kernel;
        }
        let Self { fixed, may_move, keeps, from_len, new, .. } = *self;
        // Linux checks the new address for both flags; it is 0 if the call has none.
        let onto_itself = (fixed || keeps)
            && (!new.is_multiple_of(PAGE)
                || (self.mapping.start < self.target.end && new < self.mapping.start + from_len));
        if onto_itself || (fixed || keeps) && !may_move || keeps && from_len != self.new_len {
            return Plan::Refused(libc::EINVAL);
        }
        if !facts.all_ours || self.is_wish() || from_len == 0 && !may_move {
            return Plan::HandBack;
        }
        match (fixed, keeps, may_move) {
            (false, _, _) if self.new_len < from_len => Plan::Cut,
            (true, true, _) => Plan::Ask(Remap::FixedDontUnmap(new)),
            (true, false, _) => Plan::Ask(Remap::Fixed(new)),
            (false, true, _) => Plan::Ask(Remap::DontUnmap(0)),
            (false, false, true) => Plan::Ask(Remap::MayMove),
            (false, false, false) => Plan::Ask(Remap::InPlace),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: usize = 16 * PAGE;
    const NOT_OURS: Facts = Facts { concerns_us: false, all_ours: false };
    const PARTLY: Facts = Facts { concerns_us: true, all_ours: false };
    const OURS: Facts = Facts { concerns_us: true, all_ours: true };

    /// All calls with lengths of 0 to 3 pages, all flags, and new addresses before, in and behind.
    fn each(mut look: impl FnMut(RemapArgs, Ranges)) {
        for old_len in [0, 1, PAGE, 2 * PAGE, 3 * PAGE - 1] {
            for new_len in [1, PAGE, 2 * PAGE, 4 * PAGE] {
                for flags in 0..8 {
                    for new in [0, 8 * PAGE, AT - PAGE, AT, AT + PAGE, AT + 8 * PAGE, AT + 8 * PAGE + 1] {
                        let args = RemapArgs { old: AT, old_len, new_len, flags, new };
                        let ranges = Ranges::of(&args).expect("the kernel looks at it");
                        look(args, ranges);
                    }
                }
            }
        }
    }

    fn has(args: &RemapArgs, flag: c_int) -> bool {
        args.flags & flag != 0
    }

    #[test]
    fn what_is_not_ours_is_the_kernels_whatever_it_asks() {
        each(|_, ranges| assert_eq!(ranges.plan(NOT_OURS), Plan::Kernel));
    }

    #[test]
    fn what_the_kernel_refuses_is_refused_before_anything_goes_back() {
        let mut refused = 0;
        each(|args, ranges| {
            let placed = has(&args, libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP);
            let pages = |len: usize| len.next_multiple_of(PAGE);
            let overlaps = !ranges.target.is_empty()
                && args.old < args.new + pages(args.new_len)
                && args.new < args.old + pages(args.old_len);
            let wrong = placed && !has(&args, libc::MREMAP_MAYMOVE)
                || has(&args, libc::MREMAP_DONTUNMAP) && pages(args.old_len) != pages(args.new_len)
                || placed && !args.new.is_multiple_of(PAGE)
                || overlaps;
            for facts in [PARTLY, OURS] {
                let plan = ranges.plan(facts);
                assert_eq!(plan == Plan::Refused(libc::EINVAL), wrong, "{args:?}: {plan:?}");
            }
            refused += usize::from(wrong);
        });
        assert!(refused > 100);
    }

    #[test]
    fn the_manager_is_asked_only_where_all_is_its_own() {
        each(|args, ranges| {
            assert!(!matches!(ranges.plan(PARTLY), Plan::Ask(_) | Plan::Cut | Plan::Kernel), "{args:?}");
            match ranges.plan(OURS) {
                Plan::Cut => assert!(ranges.new_len < args.old_len && !ranges.replaces(), "{args:?}"),
                Plan::Ask(Remap::Fixed(at) | Remap::FixedDontUnmap(at)) => {
                    assert!(at == args.new && has(&args, libc::MREMAP_FIXED), "{args:?}");
                }
                Plan::Ask(Remap::MayMove) => assert!(has(&args, libc::MREMAP_MAYMOVE), "{args:?}"),
                Plan::Ask(Remap::InPlace) => assert_eq!(args.flags, 0, "{args:?}"),
                Plan::Ask(Remap::DontUnmap(_)) => assert!(has(&args, libc::MREMAP_DONTUNMAP), "{args:?}"),
                Plan::HandBack => assert!(ranges.is_wish() || args.old_len == 0, "{args:?}"),
                Plan::Refused(_) => {}
                Plan::Kernel => panic!("{args:?} is the manager's"),
            }
        });
    }

    #[test]
    fn ranges_are_whole_pages_and_need_no_room_if_they_may_move() {
        each(|args, ranges| {
            let whole = [&ranges.mapping, &ranges.grown, &ranges.needed];
            assert!(
                whole.iter().all(|range| range.start == AT && range.end.is_multiple_of(PAGE)),
                "{args:?}"
            );
            assert!(ranges.mapping.end <= ranges.grown.end);
            let needs = if has(&args, libc::MREMAP_MAYMOVE) { &ranges.mapping } else { &ranges.grown };
            assert_eq!(&ranges.needed, needs, "{args:?}");
        });
    }

    #[test]
    fn impossible_calls_go_to_the_kernel_as_they_are() {
        let good = RemapArgs { old: AT, old_len: PAGE, new_len: PAGE, flags: 0, new: 0 };
        assert!(Ranges::of(&good).is_some());
        for bad in [
            RemapArgs { old: AT + 1, ..good },
            RemapArgs { new_len: 0, ..good },
            RemapArgs { new_len: usize::MAX, ..good },
            RemapArgs { old_len: usize::MAX, ..good },
            RemapArgs { flags: 8, ..good },
            RemapArgs { old: ADDRESS_END, ..good },
            RemapArgs { new_len: ADDRESS_END + PAGE, ..good },
            RemapArgs { flags: libc::MREMAP_FIXED, new: ADDRESS_END, ..good },
            RemapArgs { flags: libc::MREMAP_FIXED, new: usize::MAX - PAGE + 1, new_len: 2 * PAGE, ..good },
        ] {
            assert_eq!(Ranges::of(&bad), None, "{bad:?}");
        }
    }
}
