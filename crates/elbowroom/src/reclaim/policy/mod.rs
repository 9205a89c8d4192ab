//! What reclaim decides, apart from how that is done: which list gives next, which pages have a second
//! chance, and which are active when they come back.
//!
//! A [`Policy`] knows sizes and distances in pages. It has no locks, folios or I/O, so that a simulator can
//! drive it, and tests do. Linux: the decisions in `shrink_lruvec`, `inactive_is_low` and
//! `workingset_refault`.

mod balance;
mod chances;
mod pick;
mod two_lists;

pub(crate) use balance::{Costs, Counted};
pub(crate) use pick::pick;
pub(crate) use two_lists::TwoLists;

use crate::group::Kind;
use crate::lru::{Next, Sizes};

/// What becomes of a single clean page that is the next of the inactive list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chance {
    /// It is evicted from its window.
    Skipped,
    /// It waits on standby, where it counts as so many pages: those for which it stands.
    CountsAs(u32),
}

/// How pages age. Sizes are in pages; `room` is how many the lists may have in all.
pub(crate) trait Policy {
    /// How many pages may be active. The oldest of the others become inactive.
    fn active_share(&self, room: usize) -> usize;

    /// How many pages wait on standby where others can be taken.
    fn standby_share(&self, room: usize) -> usize;

    /// Whether pages of the inactive list have their second chance next, or pages on standby are evicted.
    /// `barren`: nothing that the inactive list gave last could be taken.
    fn next(&self, sizes: Sizes, room: usize, barren: bool) -> Next;

    /// Whether a page is to have its second chance. `was_active`: it was active since it came in.
    fn chance(&self, was_active: bool) -> Chance;

    /// The second chance of a single page that was never active has ended. `taken`: it was touched.
    fn note_chance(&self, taken: bool);

    /// Whether a page that comes back is active. `distance`: so many pages went out after it did; `active`:
    /// so many are active now.
    fn activates(&self, kind: Kind, distance: u64, active: usize, room: usize) -> bool;
}

#[cfg(all(test, not(shuttle)))]
mod tests;
