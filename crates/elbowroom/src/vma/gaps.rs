//! Free addresses inside windows. Plain data.

use std::collections::BTreeMap;
use std::ops::Range;

/// Free ranges, never touching each other.
#[derive(Default)]
pub(crate) struct Gaps {
    by_start: BTreeMap<usize, usize>,
}

impl Gaps {
    /// Adds a free range and joins it with its neighbours.
    pub(crate) fn release(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &before_end)) = self.by_start.range(..start).next_back()
            && before_end >= start
        {
            debug_assert_eq!(before_end, start, "a free range is freed");
            start = before;
        }
        if let Some(after_end) = self.by_start.remove(&end) {
            end = after_end;
        }
        self.by_start.insert(start, end);
    }

    /// The lowest place for `len` bytes at an address that is `phase` modulo `align` (a power of two above `phase`); takes it.
    pub(crate) fn take(&mut self, len: usize, align: usize, phase: usize) -> Option<Range<usize>> {
        let place = |start: usize| {
            let at = start.saturating_sub(phase).next_multiple_of(align) + phase;
            at..at + len
        };
        let found = self.by_start.iter().map(|(&start, &end)| (place(start), end));
        let (place, _) = found.into_iter().find(|(place, end)| place.end <= *end)?;
        self.take_exactly(place.clone());
        Some(place)
    }

    /// Whether all of `range` is free.
    pub(crate) fn is_free(&self, range: &Range<usize>) -> bool {
        self.by_start.range(..=range.start).next_back().is_some_and(|(_, &end)| end >= range.end)
    }

    /// Takes what of `range` is free; returns it.
    pub(crate) fn take_exactly(&mut self, range: Range<usize>) -> Vec<Range<usize>> {
        let overlap: Vec<_> = self
            .by_start
            .range(..range.end)
            .rev()
            .take_while(|(_, end)| **end > range.start)
            .map(|(&s, &e)| (s, e))
            .collect();
        let mut taken = Vec::with_capacity(overlap.len());
        for (start, end) in overlap {
            taken.push(start.max(range.start)..end.min(range.end));
            self.by_start.remove(&start);
            if start < range.start {
                self.by_start.insert(start, range.start);
            }
            if end > range.end {
                self.by_start.insert(range.end, end);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn against_a_bitmap() {
        let mut gaps = Gaps::default();
        let mut free = [false; 256];
        let mut seed = 3_u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (len, align) = ((seed >> 60) as usize + 1, 1 << ((seed >> 50) % 5));
            let phase = (seed >> 30) as usize % align;
            if seed >> 49 & 1 == 0 {
                let fits = |at: &usize| at + len <= 256 && free[*at..at + len].iter().all(|&f| f);
                let expected = (0..256).filter(|at| at % align == phase).find(fits);
                let taken = gaps.take(len, align, phase);
                assert_eq!(taken.as_ref().map(|r| r.start), expected);
                taken.into_iter().flatten().for_each(|i| free[i] = false);
            } else {
                let start = (seed >> 40) as usize % (256 - len);
                if free[start..start + len].iter().all(|&f| !f) {
                    assert!(!gaps.is_free(&(start..start + len)));
                    free[start..start + len].fill(true);
                    gaps.release(start..start + len);
                    assert!(gaps.is_free(&(start..start + len)));
                }
            }
        }
    }
}
