//! Which addresses are ours: a table that any thread reads without a lock, in a signal handler too.

use crate::PAGE_SIZE;
use elbowroom_sync::atomic::{AtomicUsize, Ordering};
use rustix::io::Errno;
use std::ops::Range;

/// The most windows one manager can have. Each is a terabyte where the system allows it.
const MAX_WINDOWS: usize = 64;

/// The most separate ranges inside windows that were given to the kernel for good.
const MAX_FOREIGN: usize = 4096;

struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Slot {
    fn range(&self) -> Range<usize> {
        self.start.load(Ordering::Acquire)..self.end.load(Ordering::Acquire)
    }
}

/// An append-only list of ranges. Appending is serialized by the caller; reading needs nothing.
struct Ranges<const N: usize> {
    slots: Box<[Slot]>,
    used: AtomicUsize,
}

impl<const N: usize> Ranges<N> {
    fn new() -> Self {
        let slots = (0..N).map(|_| Slot { start: AtomicUsize::new(0), end: AtomicUsize::new(0) }).collect();
        Self { slots, used: AtomicUsize::new(0) }
    }

    fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.slots[..self.used.load(Ordering::Acquire)].iter().map(Slot::range)
    }

    fn push(&self, range: Range<usize>) -> Result<(), Errno> {
        let used = self.used.load(Ordering::Acquire);
        // Neighbours grow in place: one store makes the larger range visible.
        if let Some(slot) = self.slots[..used].iter().find(|s| s.range().end == range.start) {
            slot.end.store(range.end, Ordering::Release);
            return Ok(());
        }
        let slot = self.slots.get(used).ok_or(Errno::NOMEM)?;
        slot.start.store(range.start, Ordering::Release);
        slot.end.store(range.end, Ordering::Release);
        self.used.store(used + 1, Ordering::Release);
        Ok(())
    }
}

/// Where the windows are, less what was given to the kernel.
pub struct WindowTable {
    windows: Ranges<MAX_WINDOWS>,
    foreign: Ranges<MAX_FOREIGN>,
}

impl Default for WindowTable {
    fn default() -> Self {
        Self { windows: Ranges::new(), foreign: Ranges::new() }
    }
}

impl WindowTable {
    /// The first part of `range` that is ours: inside a window and not given to the kernel.
    pub fn first_owned(&self, range: Range<usize>) -> Option<Range<usize>> {
        let mut from = range.start;
        while from < range.end {
            let inside = self.windows.iter().filter(|w| w.end > from).min_by_key(|w| w.start)?;
            let mut part = inside.start.max(from)..inside.end.min(range.end);
            if part.is_empty() {
                return None;
            }
            // Move past the foreign ranges that cover its start, then stop before the next one.
            while let Some(foreign) = self.foreign.iter().find(|f| f.contains(&part.start)) {
                part.start = foreign.end;
            }
            if part.start < part.end {
                let next = self.foreign.iter().filter(|f| f.start > part.start).map(|f| f.start).min();
                part.end = part.end.min(next.unwrap_or(usize::MAX));
                return Some(part);
            }
            from = part.start;
        }
        None
    }

    /// Whether any byte of `addr..addr + len` is ours.
    pub fn intersects(&self, addr: usize, len: usize) -> bool {
        self.first_owned(addr..addr.saturating_add(len)).is_some()
    }

    /// Whether all of `addr..addr + len` (not empty) is ours.
    pub fn covers(&self, addr: usize, len: usize) -> bool {
        let range = addr..addr.saturating_add(len);
        self.first_owned(range.clone()) == Some(range)
    }

    /// The windows, with what was given to the kernel still in them.
    pub fn windows(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.windows.iter()
    }

    pub(crate) fn add_window(&self, range: Range<usize>) -> Result<(), Errno> {
        // Windows are never joined: each was registered and reserved by itself.
        let used = self.windows.used.load(Ordering::Acquire);
        if used == MAX_WINDOWS {
            return Err(Errno::NOMEM);
        }
        self.windows.push(range)
    }

    /// How many more ranges can be given away.
    pub(crate) fn room(&self) -> usize {
        MAX_FOREIGN - self.foreign.used.load(Ordering::Acquire)
    }

    pub(crate) fn give_away(&self, range: Range<usize>) -> Result<(), Errno> {
        self.foreign.push(range)
    }
}

/// The smallest range of whole pages around `addr..addr + len`.
pub fn surrounding_pages(addr: usize, len: usize) -> Range<usize> {
    addr & !(PAGE_SIZE - 1)..addr.saturating_add(len).next_multiple_of(PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_parts_are_not_ours() {
        let table = WindowTable::default();
        assert!(!table.intersects(0, usize::MAX));
        table.add_window(0x10_0000..0x20_0000).unwrap();
        table.add_window(0x40_0000..0x50_0000).unwrap();
        assert!(table.covers(0x10_0000, 0x10_0000) && !table.covers(0xf_f000, 0x2000));
        assert_eq!(table.first_owned(0..usize::MAX), Some(0x10_0000..0x20_0000));
        assert_eq!(table.first_owned(0x20_0000..0x41_0000), Some(0x40_0000..0x41_0000));
        table.give_away(0x10_0000..0x11_0000).unwrap();
        table.give_away(0x12_0000..0x13_0000).unwrap();
        table.give_away(0x13_0000..0x14_0000).unwrap();
        assert!(!table.intersects(0x12_0000, 0x2_0000));
        assert_eq!(table.first_owned(0x10_0000..0x20_0000), Some(0x11_0000..0x12_0000));
        assert_eq!(table.first_owned(0x12_0000..0x20_0000), Some(0x14_0000..0x20_0000));
        table.give_away(0x14_0000..0x20_0000).unwrap();
        assert_eq!(table.first_owned(0x12_0000..0x50_0000), Some(0x40_0000..0x50_0000));
    }
}
