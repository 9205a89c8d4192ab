//! Which addresses have had their mappings changed by the program, and when: the library that stands before
//! malloc keeps freed blocks, and must not give one out again whose rights, guards or pages are not those of
//! a new mapping (crates/elbowroom-heap/src/changes.rs).
//!
//! Time is a count of changes. Addresses are grouped into granules, and each granule has a stamp: the time of
//! its last change. Granules share stamps, and blocks share granules: so a block may seem changed that is
//! not, never the other way round. The block is then unmapped instead of kept.
//!
//! Synchronization: atomics. A change is noted before the call that makes it, on the thread that makes it;
//! a thread that frees a changed block has synchronized with that thread before, to get the block.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// log2 of the bytes of a granule.
const GRANULE_SHIFT: u32 = 20;
/// How many stamps there are, a power of two.
const STAMPS: usize = 4096;

/// The time: how many changes were noted.
static NOW: AtomicU64 = AtomicU64::new(0);
/// The time of the last change of more granules than there are stamps: it counts for all addresses.
static ALL: AtomicU64 = AtomicU64::new(0);
static STAMP: [AtomicU64; STAMPS] = [const { AtomicU64::new(0) }; STAMPS];

/// The granules of a range, which is cut off at the end of the address space.
fn granules(addr: usize, len: usize) -> Range<usize> {
    let end = addr.saturating_add(len);
    if addr == end { 0..0 } else { addr >> GRANULE_SHIFT..((end - 1) >> GRANULE_SHIFT) + 1 }
}

/// Stamps a range whose mapping the program is about to change in a way that a later owner of the addresses
/// would notice.
pub fn note(addr: usize, len: usize) {
    let granules = granules(addr, len);
    if granules.is_empty() {
        return;
    }
    let now = NOW.fetch_add(1, Ordering::AcqRel) + 1;
    if granules.len() > STAMPS {
        ALL.fetch_max(now, Ordering::Release);
        return;
    }
    for granule in granules {
        STAMP[granule % STAMPS].fetch_max(now, Ordering::Release);
    }
}

/// The time, for [`elbowroom_changed_since`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn elbowroom_changes() -> u64 {
    NOW.load(Ordering::Acquire)
}

/// Whether the mapping of a range may have been changed since a time.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn elbowroom_changed_since(time: u64, addr: usize, len: usize) -> bool {
    let is_later = |stamp: &AtomicU64| stamp.load(Ordering::Acquire) > time;
    // Most programs change nothing.
    is_later(&NOW)
        && (is_later(&ALL) || granules(addr, len).any(|granule| is_later(&STAMP[granule % STAMPS])))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn a_change_is_seen_where_it_was_and_by_those_before_it() {
        let before = elbowroom_changes();
        note(1000 * MIB + 4096, MIB);
        let after = elbowroom_changes();
        for (at, len, changed) in [
            (1000 * MIB, 4096, true),
            (1001 * MIB + 8192, 4096, true),
            (999 * MIB, MIB + 1, true),
            (999 * MIB, MIB, false),
            (1002 * MIB, MIB, false),
            (0, 3000 * MIB, true),
        ] {
            assert_eq!(elbowroom_changed_since(before, at, len), changed, "{at:#x} {len:#x}");
            assert!(!elbowroom_changed_since(after, at, len));
        }
        note(7 * MIB, 0);
        assert_eq!(elbowroom_changes(), after, "nothing");
        note(usize::MAX - 4096, usize::MAX);
        assert!(elbowroom_changed_since(after, usize::MAX - 4096, 4096));
        let before = elbowroom_changes();
        note(4096, (STAMPS + 1) * MIB);
        assert!(elbowroom_changed_since(before, 900_000 * MIB, 4096), "all at once");
    }
}
