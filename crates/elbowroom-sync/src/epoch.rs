//! Read-copy-update for structures of shared nodes, without unsafe code above this crate.
//!
//! A reader pins the epoch and follows [`ArcCell`]s as plain references; a writer puts another `Arc` into a
//! cell, and the old value is dropped only after a grace period: when every [`Guard`] that was pinned at
//! that time is gone. Linux: `rcu_read_lock`, `rcu_dereference`, `rcu_assign_pointer` and `kfree_rcu`. How
//! a grace period is found is in `readers`.
//!
//! * Readers never lock, wait or retry. The outermost [`pin`] is an exchange, or a store and a fence, on a
//!   line of the thread's own; a load is one load. A thread that only reads drops nothing and looks at no
//!   other thread's record, until it ends.
//! * A retired value is dropped by the thread that retired it, when that thread drops an outermost guard;
//!   by another thread only if the retiring thread has ended. A value's `Drop` must not wait, do I/O, or
//!   take a lock that a thread with a guard could have or wait for. A writer that never pauses can get its
//!   retired values back from a [`Limbo`].
//! * A guard that is not dropped holds back every later drop in the process. A pinned thread must not
//!   sleep, wait or do I/O.
//! * If the thread that retired a value never pins again, the value may never be dropped; use
//!   [`ArcCell::swap`] or counts of your own where a resource must be released.
//! * In the child of a fork, the sections of the parent's other threads never end, so nothing is dropped
//!   until [`after_fork`].
//! * Not for signal handlers: a handler that interrupts [`pin`] would take the half-begun section for its
//!   own.
//!
//! [`RcuCell`](crate::RcuCell) is the alternative for single values: its readers pay a store and a barrier
//! for each value, while a section here pays once for a walk over many nodes. `RcuCell` drops an old value
//! with its last handle, so that a file is closed when a call returns; here the time of a drop is not
//! known, and a value's `Drop` must do no I/O.
//!
//! Synchronization: a load is `Acquire`, a store `Release`, so that a reader of a value sees what its writer
//! did before. Two writers of one cell may race; each old value is retired once.
//!
//! # Under a model checker
//! With `--cfg loom` or `--cfg shuttle` the same interface runs on a model. It drops a retired value at the
//! earliest permitted moment, and panics with "used after its grace period" if a guard that may still use
//! the value is there. The guards are counted by execution, not by OS thread, so that a missing pin shows
//! although shuttle runs all its tasks on one thread. The planted bug `no_grace` (`.ci/mutants`), which
//! drops values as soon as they are retired, must be found by this.
//!
//! Blind spots of the model: `pin`, unpinning and retiring are fences (`SeqCst`), and all unpinning and
//! retiring is ordered by one atomic, which is more than the real implementation promises; a value's `Drop`
//! runs in the thread that unpins last or retires, never later; a guard counts as a user of what it loaded
//! until it is dropped, even if the reference is not used again. How the real implementation finds the end
//! of a grace period, and hands records on, has loom models of its own (`readers/models.rs`); the queues in
//! `real` and [`Limbo`] are tested on real threads only.

#[cfg(not(any(loom, shuttle)))]
mod limbo;
#[cfg(any(not(any(loom, shuttle)), all(test, loom)))]
mod readers;
#[cfg(not(any(loom, shuttle)))]
mod real;
#[cfg(not(any(loom, shuttle)))]
use real as imp;

#[cfg(any(loom, shuttle))]
mod model;
#[cfg(any(loom, shuttle))]
use model as imp;

#[cfg(not(any(loom, shuttle)))]
mod slot;
#[cfg(any(loom, shuttle))]
#[path = "epoch/slot_model.rs"]
mod slot;

pub use imp::{ArcCell, Guard, pin};
#[cfg(not(any(loom, shuttle)))]
pub use limbo::Limbo;
#[cfg(any(loom, shuttle))]
pub use model::Limbo;
#[cfg(not(any(loom, shuttle)))]
pub use real::after_fork;
pub use slot::SlotCell;

/// What a [`SlotCell`] holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot<V> {
    /// Nothing.
    Empty,
    /// A value.
    Full(V),
    /// A word of 63 bits, whose meaning the user of the cell defines.
    Word(u64),
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
