//! Which addresses are ours: a table that any thread reads without a lock, also in a signal handler or a
//! forked child.

use crate::PAGE_SIZE;
use crate::foreign::Foreign;
use elbowroom_sync::OnceLock;
use rustix::io::Errno;
use std::ops::Range;

pub use crate::foreign::Side;

/// The most windows one manager can have. Each is a terabyte where the system allows it.
const MAX_WINDOWS: usize = 64;

/// A window, and which of its pages were given to the kernel.
struct Window {
    range: Range<usize>,
    foreign: Foreign,
    /// The addresses of the memory of `foreign`.
    table: Range<usize>,
}

impl Window {
    fn page(&self, addr: usize) -> usize {
        (addr - self.range.start) / PAGE_SIZE
    }

    /// The pages around `part`, which is inside the window.
    fn pages(&self, part: &Range<usize>) -> Range<usize> {
        self.page(part.start)..(part.end - self.range.start).div_ceil(PAGE_SIZE)
    }

    /// The first run of bytes of `part`, which is inside the window, on that side.
    fn first_run(&self, part: &Range<usize>, side: Side) -> Option<Range<usize>> {
        let pages = self.foreign.first_run(self.pages(part), side)?;
        let start = self.range.start + pages.start * PAGE_SIZE;
        let end = self.range.start + pages.end * PAGE_SIZE;
        Some(start.max(part.start)..end.min(part.end))
    }
}

/// The windows, and which of their pages were given to the kernel.
///
/// Synchronization: reading needs nothing, takes a few steps for each level of a tree ([`crate::foreign`]),
/// and neither waits nor allocates. A reader sees each range that was given away or taken back before
/// (happens-before); of a change that is under way it may see a part. Writers are serialized by the lock of
/// the layout.
pub struct WindowTable {
    /// In the order in which they were made.
    windows: [OnceLock<Window>; MAX_WINDOWS],
}

impl Default for WindowTable {
    fn default() -> Self {
        Self { windows: [const { OnceLock::new() }; MAX_WINDOWS] }
    }
}

impl WindowTable {
    fn iter(&self) -> impl Iterator<Item = &Window> + '_ {
        self.windows.iter().map_while(OnceLock::get)
    }

    /// The first part of `range` that is ours: inside a window and not given to the kernel.
    pub fn first_owned(&self, range: Range<usize>) -> Option<Range<usize>> {
        let mut from = range.start;
        while from < range.end {
            let window = self.iter().filter(|w| w.range.end > from).min_by_key(|w| w.range.start)?;
            let part = window.range.start.max(from)..window.range.end.min(range.end);
            if part.is_empty() {
                return None;
            }
            if let Some(owned) = window.first_run(&part, Side::Managed) {
                return Some(owned);
            }
            from = part.end;
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

    /// Splits `range` into parts that are ours and parts that are not, which alternate, in the order of
    /// addresses.
    pub fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (Side, Range<usize>)> + '_ {
        let mut rest = range;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let mut owned = self.first_owned(rest.clone()).unwrap_or(rest.end..rest.end);
            if owned.start > rest.start {
                let part = rest.start..owned.start;
                rest.start = owned.start;
                return Some((Side::Kernel, part));
            }
            // Windows may be neighbours.
            while let Some(more) = self.first_owned(owned.end..rest.end)
                && more.start == owned.end
            {
                owned.end = more.end;
            }
            rest.start = owned.end;
            Some((Side::Managed, owned))
        })
    }

    /// The windows as they were made: pages that were given to the kernel are included.
    pub fn windows(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.iter().map(|window| window.range.clone())
    }

    /// Whether all of `range` is inside one window and was given to the kernel.
    pub fn is_foreign(&self, range: &Range<usize>) -> bool {
        self.around(range).is_some_and(|window| window.first_run(range, Side::Kernel).as_ref() == Some(range))
    }

    /// The addresses of the memory of the table itself, each with the guard page before it. They stay
    /// reserved when the manager is gone, as those of the windows do.
    pub fn tables(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.iter().map(|window| window.table.start - PAGE_SIZE..window.table.end.next_multiple_of(PAGE_SIZE))
    }

    /// Whether any of `range` is memory of the table itself.
    pub(crate) fn is_made_of(&self, range: &Range<usize>) -> bool {
        self.iter().any(|w| range.start < w.table.end && w.table.start < range.end)
    }

    /// The window that all of `range` is in.
    fn around(&self, range: &Range<usize>) -> Option<&Window> {
        self.iter().find(|w| w.range.start <= range.start && range.end <= w.range.end)
    }

    /// How many bytes of memory the table needs for a window of `len` bytes.
    pub(crate) fn bytes_for(len: usize) -> usize {
        Foreign::bytes(len / PAGE_SIZE).next_multiple_of(PAGE_SIZE)
    }

    /// Whether another window can be added.
    pub(crate) fn has_room(&self) -> bool {
        self.windows[MAX_WINDOWS - 1].get().is_none()
    }

    /// Whether half of all windows can still be added.
    pub(crate) fn is_half_free(&self) -> bool {
        self.windows[MAX_WINDOWS / 2].get().is_none()
    }

    /// Adds a window, whose pages' marks are kept in `memory`.
    ///
    /// # Errors
    /// ENOMEM: there are too many.
    ///
    /// # Safety
    /// `memory` is page-aligned and [`WindowTable::bytes_for`] long; all of it is zero and readable and
    /// writable, nothing else uses it, and it stays mapped for ever.
    pub(crate) unsafe fn add_window(&self, range: Range<usize>, memory: *const u8) -> Result<(), Errno> {
        // SAFETY: passed on.
        let foreign = unsafe { Foreign::new(memory, range.len() / PAGE_SIZE) };
        let slot = self.windows.iter().find(|slot| slot.get().is_none()).ok_or(Errno::NOMEM)?;
        let table = memory as usize..memory as usize + Self::bytes_for(range.len());
        slot.set(Window { range, foreign, table }).map_err(|_| Errno::NOMEM)
    }

    /// Gives the parts of `range`, a range of whole pages, that are inside windows to the kernel.
    pub(crate) fn give_away(&self, range: &Range<usize>) {
        self.set(range, Side::Kernel);
    }

    /// Takes the parts of `range`, a range of whole pages, that are inside windows back from the kernel.
    pub(crate) fn take_back(&self, range: &Range<usize>) {
        self.set(range, Side::Managed);
    }

    fn set(&self, range: &Range<usize>, side: Side) {
        for window in self.iter() {
            let part = window.range.start.max(range.start)..window.range.end.min(range.end);
            if !part.is_empty() {
                window.foreign.set(window.pages(&part), side);
            }
        }
    }
}

/// The smallest range of whole pages around `addr..addr + len`.
pub fn surrounding_pages(addr: usize, len: usize) -> Range<usize> {
    addr & !(PAGE_SIZE - 1)..addr.saturating_add(len).next_multiple_of(PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(table: &WindowTable, range: Range<usize>) {
        let memory = vec![0_u64; WindowTable::bytes_for(range.len()) / 8].leak();
        // SAFETY: zeros, long enough, aligned for words (all that these tests need), and leaked.
        unsafe { table.add_window(range, memory.as_ptr().cast()).unwrap() };
    }

    #[test]
    fn foreign_parts_are_not_ours() {
        let table = WindowTable::default();
        assert!(!table.intersects(0, usize::MAX));
        add(&table, 0x10_0000..0x20_0000);
        add(&table, 0x40_0000..0x50_0000);
        assert!(table.covers(0x10_0000, 0x10_0000) && !table.covers(0xf_f000, 0x2000));
        assert_eq!(table.first_owned(0..usize::MAX), Some(0x10_0000..0x20_0000));
        assert_eq!(table.first_owned(0x20_0000..0x41_0000), Some(0x40_0000..0x41_0000));
        table.give_away(&(0x10_0000..0x11_0000));
        table.give_away(&(0x12_0000..0x13_0000));
        table.give_away(&(0x13_0000..0x14_0000));
        assert!(!table.intersects(0x12_0000, 0x2_0000));
        assert_eq!(table.first_owned(0x10_0000..0x20_0000), Some(0x11_0000..0x12_0000));
        assert_eq!(table.first_owned(0x12_0000..0x20_0000), Some(0x14_0000..0x20_0000));
        table.give_away(&(0x14_0000..0x20_0000));
        assert_eq!(table.first_owned(0x12_0000..0x50_0000), Some(0x40_0000..0x50_0000));
        assert!(table.is_foreign(&(0x12_0000..0x20_0000)) && !table.is_foreign(&(0x11_f000..0x20_0000)));
        table.take_back(&(0x10_0000..0x20_0000));
        assert!(table.covers(0x10_0000, 0x10_0000));
    }

    #[test]
    fn bytes_are_those_of_their_pages() {
        let table = WindowTable::default();
        add(&table, 0x10_0000..0x20_0000);
        table.give_away(&(0x10_1000..0x10_2000));
        assert_eq!(table.first_owned(0x10_0ff0..0x10_2010), Some(0x10_0ff0..0x10_1000));
        assert_eq!(table.first_owned(0x10_1001..0x10_2010), Some(0x10_2000..0x10_2010));
        assert!(
            table.covers(0x10_2ff8, 16) && !table.intersects(0x10_1800, 1) && !table.covers(0x10_0000, 0)
        );
    }

    #[test]
    fn parts_are_in_turn_and_are_all() {
        let table = WindowTable::default();
        add(&table, 0x10_0000..0x20_0000);
        add(&table, 0x20_0000..0x30_0000);
        table.give_away(&(0x12_0000..0x13_0000));
        let parts: Vec<_> = table.parts(0xf_0000..0x31_0000).collect();
        let expected = [
            (Side::Kernel, 0xf_0000..0x10_0000),
            (Side::Managed, 0x10_0000..0x12_0000),
            (Side::Kernel, 0x12_0000..0x13_0000),
            (Side::Managed, 0x13_0000..0x30_0000),
            (Side::Kernel, 0x30_0000..0x31_0000),
        ];
        assert_eq!(parts, expected);
        assert_eq!(table.parts(0x12_0000..0x12_0000).count(), 0);
        assert_eq!(table.parts(0x50_0000..usize::MAX).count(), 1);
    }
}
