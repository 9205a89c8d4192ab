//! The frame allocator's bookkeeping: a binary buddy system over frame numbers. Plain data, no memory is
//! touched.
//!
//! Source: Knuth, TAOCP 1, 2.5; Linux `mm/page_alloc.c`. The lowest free run is taken first, so that what is
//! in use stays together.

use crate::MAX_ORDER;
use std::collections::BTreeSet;

/// Free runs of frames, by order.
#[derive(Default)]
pub(crate) struct Buddy {
    free: [BTreeSet<u32>; MAX_ORDER as usize + 1],
    free_frames: usize,
}

impl Buddy {
    /// Adds frames `first..end`, which it has never seen.
    pub(crate) fn add(&mut self, mut first: u32, end: u32) {
        while first < end {
            let aligned = first.trailing_zeros().min(u32::from(MAX_ORDER));
            let fits = (end - first).ilog2();
            let order = aligned.min(fits);
            self.release(first, order as u8);
            first += 1 << order;
        }
    }

    /// A run of 2^`order` frames, aligned to its size.
    pub(crate) fn take(&mut self, order: u8) -> Option<u32> {
        let found = (order..=MAX_ORDER).find(|&o| !self.free[o as usize].is_empty())?;
        let first = self.free[found as usize].pop_first()?;
        for smaller in order..found {
            self.free[smaller as usize].insert(first + (1 << smaller));
        }
        self.free_frames -= 1 << order;
        Some(first)
    }

    /// Gives a run back; it is joined with its free buddies.
    pub(crate) fn release(&mut self, first: u32, order: u8) {
        self.free_frames += 1 << order;
        let (mut first, mut order) = (first, order);
        while order < MAX_ORDER && self.free[order as usize].remove(&(first ^ (1 << order))) {
            first &= !(1 << order);
            order += 1;
        }
        let fresh = self.free[order as usize].insert(first);
        debug_assert!(fresh, "frame {first} freed twice");
    }

    /// How many frames are free.
    pub(crate) fn free_frames(&self) -> usize {
        self.free_frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_disjoint_aligned_and_join_again() {
        let mut buddy = Buddy::default();
        buddy.add(0, 1300);
        assert_eq!(buddy.free_frames(), 1300);
        let mut owner = vec![None; 1300];
        let mut held = Vec::new();
        let mut seed = 7_u64;
        for step in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if seed >> 63 == 0 {
                let order = ((seed >> 40) % 10) as u8;
                if let Some(first) = buddy.take(order) {
                    assert_eq!(first % (1 << order), 0);
                    for frame in first..first + (1 << order) {
                        assert_eq!(owner[frame as usize].replace(step), None, "frame {frame} given twice");
                    }
                    held.push((first, order));
                }
            } else if !held.is_empty() {
                let (first, order) = held.swap_remove((seed >> 33) as usize % held.len());
                (first..first + (1 << order)).for_each(|f| owner[f as usize] = None);
                buddy.release(first, order);
            }
            assert_eq!(buddy.free_frames(), owner.iter().filter(|o| o.is_none()).count());
        }
        held.into_iter().for_each(|(first, order)| buddy.release(first, order));
        assert_eq!((buddy.take(9), buddy.take(9), buddy.take(9)), (Some(0), Some(512), None));
        assert_eq!(buddy.take(8), Some(1024));
    }
}
