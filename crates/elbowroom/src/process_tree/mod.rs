//! One budget for all processes of a run: a table in memory that they share.
//!
//! A [`ProcessTree`] is the table: the limits of the run, and a row for each process. A [`Member`] is a
//! process with its row. A process takes pages from the tree before its arena gets memory for them, and gives
//! them back when the kernel has that memory again. A process that finds the tree full asks another one for
//! pages ([`choice`]), and reclaims its own pages meanwhile: nothing waits for an answer.
//! docs/decisions/0033-one-budget-for-a-tree.md
//!
//! No process trusts another one's row: a wrong row can give processes too much or too little memory, but
//! does no other harm. The sum of used pages is not stored, but added up from the rows, so that a process
//! that dies at any instruction leaves no wrong sum behind.
//!
//! Synchronization: the words are atomics. A lock, which is a word of the table, makes reading the sum and
//! changing a row one step. A waiting thread takes the lock from an owner that is gone, or that has kept it
//! for half a second because it was stopped. If that owner goes on later, the processes may have a few
//! pages more than the limit until they give them back.

#[cfg(not(shuttle))]
mod alone;
mod choice;
mod ended;
mod file;
mod gauges;
mod groups;
mod member;
mod table;
mod view;

#[cfg(not(shuttle))]
pub use alone::ShownAlone;
pub(crate) use choice::{BLOCK, KEPT};
pub use ended::{LargeProcess, LargestProcesses};
pub use file::TableFile;
pub use gauges::{ProcessGauges, ProcessPressure, StallAverages, StalledFor};
pub(crate) use groups::Progress;
pub use groups::{GroupAnswer, GroupRequest, GroupRow, GroupTable, GroupUse, LimitKey, OwnGroups};
pub use member::{Member, Others};
pub use table::ProcessTree;
pub use view::{ProcessRow, ProcessUse, RunTotals, TreeLimits, TreeSnapshot};

#[cfg(all(test, not(shuttle)))]
mod tests;
