//! What was evicted, and when: so that a refault tells how far it was from a hit.
//!
//! Linux keeps shadow entries in the xarray (mm/workingset.c). Here they are a fixed table, one entry per
//! frame, addressed by a hash: a later eviction with the same hash takes an earlier one's place, which loses
//! the oldest knowledge first on average, and the memory is bounded.

use elbowroom_sync::atomic::{AtomicU64, Ordering};

/// With more frames than this the oldest evictions are forgotten sooner.
const MOST_ENTRIES: usize = 1 << 20;

pub(crate) struct Shadows {
    entries: Vec<AtomicU64>,
    evicted_pages: AtomicU64,
}

impl Shadows {
    /// Room for about `frames` evictions, at most a million (8 MiB).
    pub(crate) fn new(frames: usize) -> Self {
        let entries = (0..frames.next_power_of_two().min(MOST_ENTRIES)).map(|_| AtomicU64::new(0)).collect();
        Self { entries, evicted_pages: AtomicU64::new(0) }
    }

    fn place(&self, object: u64, index: u64) -> (&AtomicU64, u64) {
        let hash = (object.wrapping_mul(0xA24B_AED4_963E_E407) ^ index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = hash ^ hash >> 29;
        (&self.entries[hash as usize & (self.entries.len() - 1)], hash >> 32 | 1)
    }

    /// Notes that the folio at `index`, of `pages` pages, was evicted.
    pub(crate) fn evicted(&self, object: u64, index: u64, pages: u64) {
        let now = self.evicted_pages.fetch_add(pages, Ordering::Relaxed) + pages;
        let (entry, tag) = self.place(object, index);
        entry.store(tag << 32 | now & 0xFFFF_FFFF, Ordering::Relaxed);
    }

    /// How many pages were evicted since the folio at `index` was, if that is still known; forgets it. Wraps
    /// after 2^32 pages (16 TiB), as a difference.
    pub(crate) fn refault(&self, object: u64, index: u64) -> Option<u64> {
        let (entry, tag) = self.place(object, index);
        let value = entry.load(Ordering::Relaxed);
        if value >> 32 != tag
            || entry.compare_exchange(value, 0, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return None;
        }
        let now = self.evicted_pages.load(Ordering::Relaxed);
        Some(u64::from((now as u32).wrapping_sub(value as u32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_pages_evicted_since() {
        let shadows = Shadows::new(1024);
        assert_eq!(shadows.refault(1, 7), None);
        shadows.evicted(1, 7, 1);
        shadows.evicted(1, 8, 128);
        assert_eq!(shadows.refault(2, 7), None);
        assert_eq!(shadows.refault(1, 7), Some(128));
        assert_eq!(shadows.refault(1, 7), None, "told once");
        assert_eq!(shadows.refault(1, 8), Some(0));
    }
}
