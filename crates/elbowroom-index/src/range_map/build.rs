//! Distributes items over new nodes, and builds whole maps.

use super::node::{Branch, FANOUT, Inner, LEAF, Leaf, Node, least, target};
use super::{RangeMap, Writer};
use elbowroom_sync::Arc;
use std::ops::Range;

/// The ranges given to [`RangeMap::from_sorted`] are empty, overlap or are out of order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotSorted {
    /// The first range that is empty, or begins below the end of the one before it.
    pub range: Range<u64>,
}

impl std::fmt::Display for NotSorted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "range {:#x}..{:#x} is empty or begins below the end of the one before it",
            self.range.start, self.range.end
        )
    }
}

impl std::error::Error for NotSorted {}

impl<V: Copy + Send + Sync + 'static> RangeMap<V> {
    /// A map of `ranges`, which must come in ascending order and not overlap, and its writer, in time linear
    /// in their number.
    ///
    /// # Errors
    /// [`NotSorted`] names the first range that breaks the order or is empty.
    pub fn from_sorted(
        ranges: impl IntoIterator<Item = (Range<u64>, V)>,
    ) -> Result<(Self, Writer<V>), NotSorted> {
        let mut entries = Vec::new();
        let mut len = 0;
        let mut last_end = 0;
        for (range, value) in ranges {
            if range.is_empty() || range.start < last_end {
                return Err(NotSorted { range });
            }
            if range.start > last_end {
                entries.push((range.start, None));
            }
            entries.push((range.end, Some(value)));
            last_end = range.end;
            len += 1;
        }
        if last_end < u64::MAX {
            entries.push((u64::MAX, None));
        }
        Ok(Self::with_root(grow_root(leaves(0, &entries, 0, Fill::Even, target(LEAF))), len))
    }
}

/// The root of a map that is one gap.
pub(super) fn bare_root<V: Copy + Send + Sync + 'static>() -> Arc<Inner<V>> {
    grow_root(leaves(0, &[(u64::MAX, None)], 0, Fill::Even, LEAF))
}

/// A root over `branches`, with as many levels of inner nodes in between as are needed.
pub(super) fn grow_root<V: Copy + Send + Sync + 'static>(mut branches: Vec<Branch<V>>) -> Arc<Inner<V>> {
    while branches.len() > FANOUT {
        branches = inners(branches, FANOUT);
    }
    Arc::new(Inner::of(branches))
}

/// Which of two new nodes gets more entries when a node that is too full is split.
#[derive(Clone, Copy)]
pub(super) enum Fill {
    Even,
    /// The lower one, for stores in ascending order.
    Lower,
    /// The upper one, for stores in descending order.
    Upper,
}

/// Leaves of `entries`, which begin at `lo`; the gap at their end, if there is one, continues for `run_on`
/// keys behind them. One leaf for at most `enough` entries, else several, filled as `fill` says.
pub(super) fn leaves<V: Copy>(
    lo: u64,
    entries: &[(u64, Option<V>)],
    run_on: u64,
    fill: Fill,
    enough: usize,
) -> Vec<Branch<V>> {
    let mut lo = lo;
    shares(entries.len(), enough, LEAF, fill)
        .map(|share| {
            let last = share.end == entries.len();
            let leaf = Leaf::of(&entries[share], if last { run_on } else { 0 });
            let end = leaf.ends[leaf.len - 1];
            let branch = Branch { end, gap: leaf.largest_gap(lo), node: Node::Leaf(Arc::new(leaf)) };
            lo = end;
            branch
        })
        .collect()
}

/// Inner nodes over `branches`: one node for at most `enough` branches, else several, evenly filled.
pub(super) fn inners<V: Copy + Send + Sync + 'static>(
    branches: Vec<Branch<V>>,
    enough: usize,
) -> Vec<Branch<V>> {
    let shares = shares(branches.len(), enough, FANOUT, Fill::Even);
    let mut branches = branches.into_iter();
    shares
        .map(|share| {
            let inner = Inner::of(branches.by_ref().take(share.len()).collect());
            let end = inner.ends[inner.len - 1];
            Branch { end, gap: inner.largest_gap(), node: Node::Inner(Arc::new(inner)) }
        })
        .collect()
}

/// Splits `count` items into runs for nodes of `capacity`: one run up to `enough` items, else runs of
/// nearly the same size; two runs are filled as `fill` says, if the nodes have room for that.
fn shares(count: usize, enough: usize, capacity: usize, fill: Fill) -> impl Iterator<Item = Range<usize>> {
    let runs = if count <= enough { 1 } else { count.div_ceil(target(capacity)) };
    let rest = count.saturating_sub(least(capacity));
    let start = move |run| match fill {
        Fill::Lower if (run, runs) == (1, 2) && rest <= capacity => rest,
        Fill::Upper if (run, runs) == (1, 2) && rest <= capacity => count - rest,
        _ => count * run / runs,
    };
    (0..runs).map(move |run| start(run)..start(run + 1))
}
