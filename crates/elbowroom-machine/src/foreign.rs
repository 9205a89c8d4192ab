//! Which pages of a window are the kernel's: a tree that any thread reads without a lock.
//!
//! A node is one word of 32 entries. An entry stands for one page at the lowest level, and for a node of
//! the level below further up; it says that all its pages are owned, that all are foreign, or, above the
//! lowest level, that they differ, as the node below tells. The nodes below an entry that says "all" are
//! not read and may be out of date, so a range of any size is marked by changing a few nodes of each level,
//! and memory is touched only where pages differ.
//!
//! # Invariants
//! 1. Writers are serialized. A node below is complete before the entry that leads to it is stored (release),
//!    and readers go down from the top (acquire).
//! 2. So a reader sees a page as foreign that was marked before its search began (happens-before) and stays
//!    so until it ends: whichever entries the reader meets on its way down, the entry in which its search
//!    ends says "foreign". The same holds for a page that is owned.

use elbowroom_sync::atomic::{AtomicU64, Ordering};
use std::ops::Range;

/// log2 of the entries in a node.
const NODE_SHIFT: u32 = 5;
const NODE_ENTRIES: usize = 1 << NODE_SHIFT;
/// Levels that a tree can have: enough for 2^35 pages, more than there are addresses.
const MAX_LEVELS: usize = 7;

const OWNED: u64 = 0b00;
const MIXED: u64 = 0b01;
const FOREIGN: u64 = 0b11;
const ENTRY: u64 = 0b11;

/// Who owns a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The manager's.
    Managed,
    /// The kernel's.
    Kernel,
}

impl Side {
    /// A node all of whose entries name this side.
    fn node(self) -> u64 {
        match self {
            Side::Managed => 0,
            Side::Kernel => u64::MAX,
        }
    }
}

/// How many pages an entry of a level stands for.
fn span(level: usize) -> usize {
    1 << (NODE_SHIFT as usize * level)
}

/// The nodes of each level for so many pages, from the lowest level on; the last one that is not 0 is 1.
fn nodes(pages: usize) -> [usize; MAX_LEVELS] {
    let mut count = pages;
    let mut done = false;
    [(); MAX_LEVELS].map(|()| {
        if done {
            return 0;
        }
        count = count.div_ceil(NODE_ENTRIES).max(1);
        done = count == 1;
        count
    })
}

/// The marks of a run of pages, which are counted from 0.
pub(crate) struct Foreign {
    words: *const AtomicU64,
    /// Where the nodes of each level begin.
    first: [usize; MAX_LEVELS],
    top: usize,
    pages: usize,
}

// SAFETY: the memory behind the pointer consists of atomics and is never unmapped (`Foreign::new`).
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// How many bytes of memory the marks of so many pages need.
    pub(crate) fn bytes(pages: usize) -> usize {
        nodes(pages).iter().sum::<usize>() * size_of::<AtomicU64>()
    }

    /// Marks for `pages` pages, none of them foreign.
    ///
    /// # Safety
    /// `memory` is page-aligned and [`Foreign::bytes`] long; all of it is zero and readable and writable,
    /// nothing else uses it, and it stays mapped for ever.
    pub(crate) unsafe fn new(memory: *const u8, pages: usize) -> Self {
        let counts = nodes(pages);
        let mut next = 0;
        let first = counts.map(|count| {
            next += count;
            next - count
        });
        let top = counts.iter().rposition(|count| *count > 0).unwrap_or(0);
        assert!(counts[top] == 1, "a window is larger than any address space");
        Self { words: memory.cast(), first, top, pages }
    }

    fn node(&self, level: usize, index: usize) -> &AtomicU64 {
        debug_assert!(level <= self.top && index < nodes(self.pages)[level], "no such node");
        // SAFETY: the node is inside the memory that `new` was given, which lasts for ever: `index` is that
        // of a page of ours, which the public functions see to, in its level.
        unsafe { &*self.words.add(self.first[level] + index) }
    }

    /// The side of `page`, and the end of its run of pages on that side, as far as one node tells.
    fn look(&self, page: usize) -> (Side, usize) {
        let mut level = self.top;
        loop {
            let entry = page >> (NODE_SHIFT as usize * level);
            let rest =
                self.node(level, entry >> NODE_SHIFT).load(Ordering::Acquire) >> (2 * (entry % NODE_ENTRIES));
            let side = match rest & ENTRY {
                OWNED => Side::Managed,
                FOREIGN => Side::Kernel,
                _ => {
                    level -= 1;
                    continue;
                }
            };
            let same = ((rest ^ side.node()).trailing_zeros() / 2) as usize;
            let same = same.min(NODE_ENTRIES - entry % NODE_ENTRIES);
            return (side, (entry + same) * span(level));
        }
    }

    /// The first run of pages in `pages` that are on that side.
    pub(crate) fn first_run(&self, pages: Range<usize>, side: Side) -> Option<Range<usize>> {
        let limit = pages.end.min(self.pages);
        let mut at = pages.start;
        let mut start = None;
        while at < limit {
            let (found, end) = self.look(at);
            match (found == side, start) {
                (true, None) => start = Some(at),
                (false, Some(_)) => break,
                _ => {}
            }
            at = end;
        }
        start.map(|start| start..at.min(limit))
    }

    /// Puts the pages on that side. Calls are serialized by the caller.
    ///
    /// # Panics
    /// If there are no such pages.
    pub(crate) fn set(&self, pages: Range<usize>, side: Side) {
        assert!(pages.end <= self.pages, "the pages are outside of the window");
        if !pages.is_empty() {
            self.set_in(self.top, 0, pages, side);
        }
    }

    /// Puts pages of one node on that side, and returns the node's new word. It descends only at the two
    /// ends of the range: at most twice a level.
    fn set_in(&self, level: usize, index: usize, pages: Range<usize>, side: Side) -> u64 {
        let node = self.node(level, index);
        let mut word = node.load(Ordering::Relaxed);
        let span = span(level);
        let entries = index * NODE_ENTRIES..(index + 1) * NODE_ENTRIES;
        for entry in (pages.start / span).max(entries.start)..pages.end.div_ceil(span).min(entries.end) {
            let shift = 2 * (entry % NODE_ENTRIES);
            let below = entry * span..(entry + 1) * span;
            let part = pages.start.max(below.start)..pages.end.min(below.end);
            let before = word >> shift & ENTRY;
            let after = if part == below {
                side.node() & ENTRY
            } else {
                let child = self.node(level - 1, entry);
                if before != MIXED {
                    // No entry leads readers to this node now.
                    child.store(if before == FOREIGN { u64::MAX } else { 0 }, Ordering::Release);
                }
                match self.set_in(level - 1, entry, part, side) {
                    0 => OWNED,
                    u64::MAX => FOREIGN,
                    _ => MIXED,
                }
            };
            word = word & !(ENTRY << shift) | after << shift;
        }
        node.store(word, Ordering::Release);
        word
    }
}

#[cfg(test)]
mod tests;
