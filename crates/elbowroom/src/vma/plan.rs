//! What becomes of mappings when a range is cut out of them. Plain data in, a plan out.

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
    pub(crate) before: Option<Piece>,
    /// What the cut takes.
    pub(crate) inside: Piece,
    /// What is left after it.
    pub(crate) after: Option<Piece>,
}

/// A part of a mapping.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) struct Piece {
    /// Its addresses.
    pub(crate) range: Range<usize>,
    /// The file's page at its start.
    pub(crate) first_page: u64,
}

/// Whether the second of two mappings, each as its addresses and the page at their start, is the first one's continuation.
pub(crate) fn adjoin(first: (&Range<usize>, u64), second: (&Range<usize>, u64)) -> bool {
    first.0.end == second.0.start && first.1 + (first.0.len() >> PAGE_SHIFT) as u64 == second.1
}

/// Cuts `cut` out of the mapping of the file from `first_page` at `range`; `None` if they do not overlap. All addresses are page-aligned.
pub(crate) fn carve(range: &Range<usize>, first_page: u64, cut: &Range<usize>) -> Option<Carved> {
    let inside = range.start.max(cut.start)..range.end.min(cut.end);
    if inside.start >= inside.end {
        return None;
    }
    let piece = |part: Range<usize>| Piece {
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
mod tests {
    use super::*;

    /// Every way two ranges of up to six pages can lie, against a page-by-page oracle.
    #[test]
    fn every_case() {
        let addr = |page: usize| page << PAGE_SHIFT;
        for (a, b, c, d) in (0..1296).map(|i| (i / 216, i / 36 % 6, i / 6 % 6, i % 6)) {
            if a >= b || c >= d {
                continue;
            }
            let carved = carve(&(addr(a)..addr(b)), 100, &(addr(c)..addr(d)));
            let Some(carved) = carved else {
                assert!(b <= c || d <= a);
                continue;
            };
            let mut pages = Vec::new();
            for (piece, cut) in [(carved.before, false), (Some(carved.inside), true), (carved.after, false)] {
                let Some(piece) = piece else { continue };
                for (i, page) in (piece.range.start..piece.range.end).step_by(addr(1)).enumerate() {
                    let page = page >> PAGE_SHIFT;
                    assert_eq!((c..d).contains(&page), cut);
                    assert_eq!(piece.first_page + i as u64, 100 + (page - a) as u64);
                    pages.push(page);
                }
            }
            assert_eq!(pages, (a..b).collect::<Vec<_>>());
        }
    }
}
