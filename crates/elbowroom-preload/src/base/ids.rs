//! A fixed, lock-free, allocation-free set of files, for the question that every read and write asks: "is
//! this file managed?"
//!
//! Files are added and never taken out: an answer of "yes" only means that the manager is asked. When the
//! table is full the answer is always "yes".
//!
//! Synchronization: any thread may add and look up at any time. A slot is claimed by its inode number and
//! becomes visible by its device; a look-up that runs beside an addition may miss it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Slots; a power of two.
const SLOTS: usize = 4096;
/// A run of slots longer than this counts as a full table.
const MAX_PROBES: usize = 256;

/// Open addressing over (device, inode). All zero is the empty set.
#[repr(C)]
pub struct IdSet {
    slots: [Slot; SLOTS],
    overflowed: AtomicBool,
}

#[repr(C)]
struct Slot {
    /// Inode + 1; 0 is free.
    inode: AtomicU64,
    /// Device + 1; 0 while the slot is being filled.
    device: AtomicU64,
}

impl IdSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self {
            slots: [const { Slot { inode: AtomicU64::new(0), device: AtomicU64::new(0) } }; SLOTS],
            overflowed: AtomicBool::new(false),
        }
    }

    /// Adds a file.
    pub fn add(&self, device: u64, inode: u64) {
        let (key, value) = (inode.wrapping_add(1), device.wrapping_add(1));
        for slot in self.probe(inode) {
            match slot.inode.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return slot.device.store(value, Ordering::Release),
                Err(there) if there == key => {
                    let device = slot.device.load(Ordering::Acquire);
                    if device == value {
                        return;
                    }
                }
                Err(_) => {}
            }
        }
        self.overflowed.store(true, Ordering::Release);
    }

    /// Whether the file may be in the set: never `false` for a file whose addition has returned.
    pub fn may_contain(&self, device: u64, inode: u64) -> bool {
        let (key, value) = (inode.wrapping_add(1), device.wrapping_add(1));
        for slot in self.probe(inode) {
            match slot.inode.load(Ordering::Acquire) {
                0 => break,
                there if there == key && slot.device.load(Ordering::Acquire) == value => return true,
                _ => {}
            }
        }
        self.overflowed.load(Ordering::Acquire)
    }

    fn probe(&self, inode: u64) -> impl Iterator<Item = &Slot> {
        let start = (inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize;
        (0..MAX_PROBES).map(move |step| &self.slots[(start + step) % SLOTS])
    }
}

/// Counters of a [`KernelMapped`]; a power of two.
const COUNTERS: usize = 256;
/// Set in a counter for good once one of its files was given to the kernel. Additions do not count that
/// far.
const GIVEN: u64 = 1 << 62;

/// Files that the kernel maps, or has mapped, and how often they were added. All zero is the empty set.
#[repr(C)]
pub struct KernelMapped {
    files: IdSet,
    /// Additions of the files with the same hash.
    additions: [AtomicU64; COUNTERS],
}

impl KernelMapped {
    /// The empty set.
    pub const fn new() -> Self {
        Self { files: IdSet::new(), additions: [const { AtomicU64::new(0) }; COUNTERS] }
    }

    /// Adds a file. Called before the kernel is asked to map it, and again when it has mapped it.
    pub fn add(&self, device: u64, inode: u64) {
        self.files.add(device, inode);
        self.counter(inode).fetch_add(1, Ordering::SeqCst);
    }

    /// Adds a file that is given to the kernel, which maps it sooner or later.
    pub fn add_given(&self, device: u64, inode: u64) {
        self.files.add(device, inode);
        self.counter(inode).fetch_or(GIVEN, Ordering::SeqCst);
    }

    /// `None`: no mapping of the file was left to the kernel. Else a number that changes each time that one
    /// is. For a file that the manager has handed back to the kernel, it changes with each call.
    pub fn additions(&self, device: u64, inode: u64) -> Option<u64> {
        if !self.files.may_contain(device, inode) {
            return None;
        }
        let counter = self.counter(inode);
        let given = counter.load(Ordering::SeqCst) & GIVEN != 0;
        Some(if given { counter.fetch_add(1, Ordering::SeqCst) + 1 } else { counter.load(Ordering::SeqCst) })
    }

    fn counter(&self, inode: u64) -> &AtomicU64 {
        &self.additions[(inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % COUNTERS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_are_counted_and_what_was_given_is_never_settled() {
        let files = Box::new(KernelMapped::new());
        assert_eq!(files.additions(1, 5), None);
        files.add(1, 5);
        let first = files.additions(1, 5);
        assert!(first.is_some() && first == files.additions(1, 5));
        files.add(1, 5);
        assert_ne!(first, files.additions(1, 5));
        files.add_given(1, 5);
        assert_ne!(files.additions(1, 5), files.additions(1, 5));
        assert_eq!(files.additions(1, 6), None);
    }

    #[test]
    fn finds_what_was_added_and_nothing_else() {
        let set = Box::new(IdSet::new());
        for inode in 0..2000 {
            set.add(7, inode * 3);
            set.add(7, inode * 3);
        }
        for inode in 0..6000 {
            assert_eq!(set.may_contain(7, inode), inode % 3 == 0, "{inode}");
            assert!(!set.may_contain(8, inode));
        }
    }

    #[test]
    fn same_inode_on_two_devices() {
        let set = Box::new(IdSet::new());
        set.add(1, 5);
        assert!(!set.may_contain(2, 5));
        set.add(2, 5);
        assert!(set.may_contain(1, 5) && set.may_contain(2, 5));
    }

    #[test]
    fn a_full_table_says_yes() {
        let set = Box::new(IdSet::new());
        for inode in 0..5000 {
            set.add(1, inode);
        }
        assert!((0..5000).all(|inode| set.may_contain(1, inode)));
        assert!(set.may_contain(99, 1 << 40));
    }
}
