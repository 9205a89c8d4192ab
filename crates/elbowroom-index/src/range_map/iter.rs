//! Iteration in the order of keys.

use super::{Found, RangeMap};
use elbowroom_sync::epoch::Guard;
use std::ops::Range;

/// The ranges of a [`RangeMap`] that share a key with a given one. See [`RangeMap::overlapping`].
pub struct Overlapping<'g, V: Send + Sync + 'static> {
    map: &'g RangeMap<V>,
    guard: &'g Guard,
    /// The keys that are still to be visited.
    rest: Range<u64>,
    /// The leaf that covers the start of `rest`, and the slot of that key; None if the leaf is still to be
    /// looked up.
    at: Option<(Found<'g, V>, usize)>,
}

impl<'g, V: Copy + Send + Sync + 'static> Overlapping<'g, V> {
    pub(super) fn new(map: &'g RangeMap<V>, range: Range<u64>, guard: &'g Guard) -> Self {
        Self { map, guard, rest: range, at: None }
    }

    /// The entry at the start of `rest`, gap or value, and moves `rest` behind it; None at the end.
    fn step(&mut self) -> Option<(Range<u64>, Option<V>)> {
        if self.rest.is_empty() {
            return None;
        }
        let (found, slot) = self.at.take().unwrap_or_else(|| {
            let found = self.map.find(self.rest.start, self.guard);
            let slot = found.leaf.slot_of(self.rest.start);
            (found, slot)
        });
        let entry = (found.leaf.range(found.lo, slot), found.leaf.values[slot]);
        self.rest.start = entry.0.end;
        if entry.0.end < found.hi {
            self.at = Some((found, slot + 1));
        }
        Some(entry)
    }
}

impl<V: Copy + Send + Sync + 'static> Iterator for Overlapping<'_, V> {
    type Item = (Range<u64>, V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let (range, Some(value)) = self.step()? {
                return Some((range, value));
            }
        }
    }
}
