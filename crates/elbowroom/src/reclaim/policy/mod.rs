//! The decisions of reclaim, apart from how they are carried out: which list gives next, which pages have a
//! second chance, and which pages are active when they come back.
//!
//! A [`Policy`] knows sizes and distances in pages. It has no locks, folios or I/O, so that a simulator or
//! a test can drive it. Linux: the decisions in `shrink_lruvec`, `inactive_is_low` and
//! `workingset_refault`.

mod balance;
mod chances;
mod pick;
mod proactive;
mod two_lists;

pub(crate) use balance::{Costs, Counted};
pub(crate) use pick::Turns;
pub(crate) use proactive::{Proactive, Seen};
pub(crate) use two_lists::TwoLists;

use crate::division::Divided;
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

/// The lists of one group and kind.
#[derive(Clone, Copy)]
pub(crate) struct Listed<'a> {
    pub(crate) kind: Kind,
    /// How many pages they may have in all.
    pub(crate) room: usize,
    /// What is known of how their large folios are used.
    pub(crate) divided: &'a Divided,
}

/// A folio that comes back after it was evicted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refaulted {
    /// How many pages were evicted after it.
    pub(crate) distance: u64,
    /// How many pages it has.
    pub(crate) pages: usize,
}

/// How pages age. Sizes are in pages.
pub(crate) trait Policy {
    /// How many pages may be active. The oldest active pages beyond that become inactive.
    fn active_share(&self, of: Listed<'_>) -> usize;

    /// How many pages are worth as much as active ones when lists of several kinds and groups are to give:
    /// the same part of the `room` of all, however lists divide theirs.
    fn valued_share(&self, room: usize) -> usize;

    /// How many pages may wait on standby before some of them are evicted.
    fn standby_share(&self, of: Listed<'_>) -> usize;

    /// Which list reclaim takes from next: the inactive list, whose pages get their second chance, or
    /// standby, whose pages are evicted, and how many of those. `barren`: no folio that the inactive list
    /// gave last could be taken.
    fn next(&self, sizes: Sizes, of: Listed<'_>, barren: bool) -> Next;

    /// Whether a page gets its second chance. `was_active`: it has been active since it came in.
    fn chance(&self, was_active: bool) -> Chance;

    /// Notes that the second chance of a single page that was never active has ended. `taken`: the page was
    /// touched.
    fn note_chance(&self, taken: bool);

    /// Notes that the second chance of a folio of a file has ended, whatever the folio was before. Returns
    /// whether the lists are divided in another way from now on.
    fn note_file_chance(&self, pages: u64, taken: bool, of: Listed<'_>) -> bool;

    /// Whether a folio that comes back becomes active. `active`: how many pages are active now.
    fn activates(&self, back: Refaulted, active: usize, of: Listed<'_>) -> bool;
}

#[cfg(all(test, not(shuttle)))]
mod tests;
