//! What becomes of mappings when a range is cut out of them, when a new one can be merged with its
//! neighbours, and what they leave free. Plain data in, a plan out.

use super::{Pattern, Prot, Sharing, VmaFlags};
use crate::group::GroupId;
use elbowroom_machine::PAGE_SHIFT;
use std::ops::Range;

/// One mapping against a cut, as address ranges.
///
/// ```text
///  mapping   |-------------|      |-------|   |-------|     |-----|
///  cut           |----|        |-----|           |-----|  |---------|
///  before    |---|                                |--         (none)
///  inside        |----|           |--|           |----|    |-----|
///  after              |----|          |---|   (none)          (none)
/// ```
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Carved {
    /// What is left before the cut.
    pub(crate) before: Option<SplitPart>,
    /// What the cut takes.
    pub(crate) inside: SplitPart,
    /// What is left after it.
    pub(crate) after: Option<SplitPart>,
}

/// A part of a mapping.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) struct SplitPart {
    /// Its addresses.
    pub(crate) range: Range<usize>,
    /// The file's page at its start.
    pub(crate) first_page: u64,
}

/// What must be equal for two mappings to be merged, besides their places. Linux: `is_mergeable_vma`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    /// The number of what it maps; `None`: private anonymous memory.
    pub(crate) object: Option<u64>,
    /// The number of the program's description that it was mapped through.
    pub(crate) origin: Option<u64>,
    pub(crate) prot: Prot,
    pub(crate) may_write: bool,
    pub(crate) sharing: Sharing,
    pub(crate) pattern: Pattern,
    pub(crate) flags: VmaFlags,
    /// The group that pays for its anonymous memory.
    pub(crate) group: GroupId,
}

/// A mapping, as far as merging it with another goes.
#[derive(Debug, Clone)]
pub(crate) struct Side {
    /// Its addresses.
    pub(crate) range: Range<usize>,
    /// The object's page at their start; of private anonymous memory the number of the page itself.
    pub(crate) first_page: u64,
    /// What else must be equal.
    pub(crate) kind: Kind,
}

/// With which of its neighbours a new mapping becomes one. Linux: the cases of `vma_merge_new_range`.
///
/// Letters are objects, numbers their pages.
///
/// ```text
///           before   new     after           index afterwards
///  Alone   |A0 A1|  |A3|                    |A0 A1|  |A3|         a gap: not the next addresses
///  Alone   |A0 A1||A7|                      |A0 A1||A7|           not the next pages
///  Alone   |A0 A1||B2|                      |A0 A1||B2|           not the same object, rights or flags
///  Before  |A0 A1||A2 A3|  |A4|             |A0 A1 A2 A3|  |A4|
///  Before  |A0 A1||A2 A3||A9|               |A0 A1 A2 A3||A9|
///  After   |A0|  |A2 A3||A4 A5|             |A0|  |A2 A3 A4 A5|
///  After   |A7||A2 A3||A4 A5|               |A7||A2 A3 A4 A5|
///  Both    |A0 A1||A2||A3 A4|               |A0 A1 A2 A3 A4|
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Merge {
    /// It stays a mapping of its own.
    Alone,
    /// It continues the one before it.
    Before,
    /// The one after it continues it.
    After,
    /// All three are one.
    Both,
}

impl Merge {
    /// Whether the mapping before is part of it.
    pub(crate) fn with_before(self) -> bool {
        matches!(self, Merge::Before | Merge::Both)
    }

    /// Whether the mapping after is part of it.
    pub(crate) fn with_after(self) -> bool {
        matches!(self, Merge::After | Merge::Both)
    }
}

/// Decides with which neighbours, if there are any, a new mapping becomes one.
pub(crate) fn merge(before: Option<&Side>, new: &Side, after: Option<&Side>) -> Merge {
    let before = before.is_some_and(|before| adjoin(before, new));
    let after = after.is_some_and(|after| adjoin(new, after));
    match (before, after) {
        (false, false) => Merge::Alone,
        (true, false) => Merge::Before,
        (false, true) => Merge::After,
        (true, true) => Merge::Both,
    }
}

/// Whether the second of two mappings is the first one's continuation: the next addresses, the next pages,
/// all else equal. Linux: `can_vma_merge_after`.
fn adjoin(first: &Side, second: &Side) -> bool {
    let next_page = first.first_page + (first.range.len() >> PAGE_SHIFT) as u64;
    first.kind == second.kind && first.range.end == second.range.start && next_page == second.first_page
}

/// The parts of `range` that none of `taken` covers. `taken`: ranges in order that do not overlap; the
/// first and the last may reach out of `range`.
///
/// ```text
///  range         |------------------|
///  taken     |-----|   |--||--|   |----|
///  gaps            |---|      |---|
/// ```
pub(crate) fn gaps(range: &Range<u64>, taken: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut free = Vec::new();
    let mut at = range.start;
    for taken in taken {
        if taken.start > at {
            free.push(at..taken.start.min(range.end));
        }
        at = at.max(taken.end);
    }
    if at < range.end {
        free.push(at..range.end);
    }
    free
}

/// Cuts `cut` out of the mapping of the file from `first_page` at `range`; `None` if they do not overlap. All
/// addresses are page-aligned.
pub(crate) fn carve(range: &Range<usize>, first_page: u64, cut: &Range<usize>) -> Option<Carved> {
    let inside = range.start.max(cut.start)..range.end.min(cut.end);
    if inside.start >= inside.end {
        return None;
    }
    let piece = |part: Range<usize>| SplitPart {
        first_page: first_page + ((part.start - range.start) >> PAGE_SHIFT) as u64,
        range: part,
    };
    let some = |part: Range<usize>| (part.start < part.end).then(|| piece(part));
    Some(Carved {
        before: some(range.start..inside.start),
        after: some(inside.end..range.end),
        inside: piece(inside),
    })
}

#[cfg(test)]
mod tests;
