//! Which folios were evicted, and when, so that at a refault the distance is known: how much longer the
//! lists would have had to be for a hit.
//!
//! Linux keeps shadow entries in the xarray (mm/workingset.c). Here they are in a fixed table, one entry
//! per frame, addressed by a hash. A later eviction with the same hash overwrites an earlier one. So the
//! memory is bounded, and on average the oldest evictions are forgotten first.
//!
//! An entry has the group that paid for the folio, and the time of the eviction by the clock of that
//! group's lists, which counts the pages evicted from them. The distance is by this clock since only longer
//! lists of that group would have kept the folio, however much other groups evict.

use crate::group::GroupId;
use elbowroom_sync::OnceLock;
use elbowroom_sync::atomic::{AtomicU64, Ordering};

/// The most entries. With more frames than this, evictions are forgotten sooner.
const MOST_ENTRIES: usize = 1 << 20;

/// The lower bits of an entry are the time. Only differences of times are used, modulo 2^32 pages (16 TiB).
const TIME_BITS: u32 = 32;

/// The bits above the time are the group's index. The rest is a tag from the hash.
const GROUP_BITS: u32 = 10;

/// The table is allocated in parts of so many entries, each when it is first needed: most processes never
/// evict anything.
const PART: usize = 4096;

/// The table of entries.
pub(super) struct Shadows {
    parts: Box<[OnceLock<Box<[AtomicU64]>>]>,
    /// How many entries a part has.
    part: usize,
}

impl Shadows {
    /// Room for about `frames` evictions, at most a million (8 MiB).
    pub(super) fn new(frames: usize) -> Self {
        let entries = frames.next_power_of_two().min(MOST_ENTRIES);
        let part = entries.min(PART);
        Self { parts: (0..entries / part).map(|_| OnceLock::new()).collect(), part }
    }

    /// For how many evictions one that is still known stands, after so many evictions of different pages:
    /// each of these has overwritten an entry, so one in e^(evictions / entries) is still known. At most 20:
    /// of more that are forgotten, one that is known says too little.
    pub(super) fn stands_for(&self, evictions: u64) -> f64 {
        (evictions as f64 / (self.parts.len() * self.part) as f64).min(3.0).exp()
    }

    /// The part of a place, the entry's number in it, and the entry's tag.
    fn place(&self, [object, index]: [u64; 2]) -> (&OnceLock<Box<[AtomicU64]>>, usize, u64) {
        let hash = (object.wrapping_mul(0xA24B_AED4_963E_E407) ^ index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = hash ^ hash >> 29;
        let tag = hash >> (TIME_BITS + GROUP_BITS) | 1;
        let entry = hash as usize & (self.parts.len() * self.part - 1);
        (&self.parts[entry / self.part], entry % self.part, tag)
    }

    /// Notes that the folio at a place (an object and the number of a page), for which `group` paid, was
    /// evicted at the time `now` of the group's clock.
    pub(super) fn evicted(&self, place: [u64; 2], group: GroupId, now: u64) {
        let (part, entry, tag) = self.place(place);
        let part = part.get_or_init(|| (0..self.part).map(|_| AtomicU64::new(0)).collect());
        let of = tag << GROUP_BITS | group.index() as u64;
        part[entry].store(of << TIME_BITS | u64::from(now as u32), Ordering::Relaxed);
    }

    /// If the eviction of the folio at a place is still known: the index of the group that paid for it, and
    /// how long ago that was by the group's `clock`. Removes the entry.
    pub(super) fn refault(&self, place: [u64; 2], clock: impl FnOnce(usize) -> u64) -> Option<(usize, u64)> {
        let (part, entry, tag) = self.place(place);
        let entry = &part.get()?[entry];
        let value = entry.load(Ordering::Relaxed);
        if value >> (TIME_BITS + GROUP_BITS) != tag
            || entry.compare_exchange(value, 0, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return None;
        }
        let group = (value >> TIME_BITS) as usize & ((1 << GROUP_BITS) - 1);
        let distance = (clock(group) as u32).wrapping_sub(value as u32);
        Some((group, u64::from(distance)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_pages_of_the_group_evicted_since() {
        let (shadows, (group, other)) = (Shadows::new(1024), (GroupId::ROOT, GroupId::OTHER));
        let refault = |place, now| shadows.refault(place, |_| now);
        assert_eq!(refault([1, 7], 1), None);
        shadows.evicted([1, 7], group, 1);
        shadows.evicted([1, 8], group, 129);
        shadows.evicted([1, 9], other, u64::from(u32::MAX));
        assert_eq!(refault([2, 7], 129), None);
        assert_eq!(refault([1, 7], 129), Some((group.index(), 128)));
        assert_eq!(refault([1, 7], 129), None, "told once");
        assert_eq!(refault([1, 8], 129), Some((group.index(), 0)));
        assert_eq!(refault([1, 9], 1 << 32 | 5), Some((other.index(), 6)));
    }
}
