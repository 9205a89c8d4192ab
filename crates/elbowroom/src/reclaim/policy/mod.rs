//! The decisions of reclaim, apart from how they are carried out: which list gives next, which pages have a
//! second chance, and which pages are active when they come back.
//!
//! A [`Policy`] knows sizes and distances in pages. It has no locks, folios or I/O, so that a simulator or
//! a test can drive it. Linux: the decisions in `shrink_lruvec`, `inactive_is_low` and
//! `workingset_refault`.

mod balance;
mod chances;
mod division;
mod pick;
mod proactive;
mod two_lists;

pub(crate) use balance::{Costs, Counted};
pub(crate) use pick::pick;
pub(crate) use proactive::{Proactive, Seen};
pub(crate) use two_lists::TwoLists;

use crate::group::Kind;
use crate::lru::{Next, Sizes};

/// What reclaim does with a single clean page that is next in the inactive list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chance {
    /// The page is evicted from its window, without a second chance.
    Skipped,
    /// The page waits on standby, where it counts as so many pages: itself and those that were skipped, for
    /// which it is the sample.
    CountsAs(u32),
}

/// A folio that comes back after it was evicted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refaulted {
    pub(crate) kind: Kind,
    /// How many pages were evicted after it.
    pub(crate) distance: u64,
    /// How many pages it has.
    pub(crate) pages: usize,
}

/// How pages age. Sizes are in pages; `room` is how many the lists may have in all.
pub(crate) trait Policy {
    /// How many pages of a kind may be active. The oldest active pages beyond that become inactive.
    fn active_share(&self, kind: Kind, room: usize) -> usize;

    /// How many pages are worth as much as active ones when lists of several kinds and groups are to give:
    /// the same of all, however a kind divides what it has.
    fn valued_share(&self, room: usize) -> usize;

    /// How many pages of a kind may wait on standby before some of them are evicted.
    fn standby_share(&self, kind: Kind, room: usize) -> usize;

    /// Which list reclaim takes from next: the inactive list, whose pages get their second chance, or
    /// standby, whose pages are evicted, and how many of those. `barren`: no folio that the inactive list
    /// gave last could be taken.
    fn next(&self, sizes: Sizes, kind: Kind, room: usize, barren: bool) -> Next;

    /// Whether a page gets its second chance. `was_active`: it has been active since it came in.
    fn chance(&self, was_active: bool) -> Chance;

    /// Notes that the second chance of a single page that was never active has ended. `taken`: the page was
    /// touched.
    fn note_chance(&self, taken: bool);

    /// Notes that the second chance of a folio of a file has ended, whatever the folio was before.
    fn note_file_chance(&self, pages: u64, taken: bool, room: usize);

    /// Whether a folio that comes back becomes active. `active`: how many pages are active now.
    fn activates(&self, back: Refaulted, active: usize, room: usize) -> bool;
}

#[cfg(all(test, not(shuttle)))]
mod tests;
