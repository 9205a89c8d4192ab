//! Read-copy-update for structures of shared nodes, without unsafe code above this crate.
//!
//! A reader pins the epoch and follows [`ArcCell`]s as plain references; a writer puts another `Arc` into a
//! cell, and what was there is dropped only after a grace period: when every [`Guard`] that was pinned at
//! that time is gone. Linux: `rcu_read_lock`, `rcu_dereference`, `rcu_assign_pointer` and `kfree_rcu`. How a
//! grace period is found is in `readers`.
//!
//! * Readers never lock, wait or retry. The outermost [`pin`] is an exchange, or a store and a fence, on a
//!   line of the thread's own; a load is one load. Who only reads drops nothing and looks at nobody, until
//!   its thread ends.
//! * A retired value is dropped by the thread that retired it, when an outermost guard of it goes; by another
//!   thread only if that one has ended. A value's `Drop` must not take a lock that the holder of a guard
//!   could have or wait for, wait, or do I/O. A writer that never pauses has its garbage back from a
//!   [`Limbo`].
//! * A guard that stays holds back every later drop in the process. A pinned thread must not sleep, wait or
//!   do I/O.
//! * Nothing promises that a retired value is dropped at all while the thread that retired it pins no more;
//!   use [`ArcCell::swap`] or counts of your own where a resource must come back.
//! * In the child of a fork, sections of threads that are not there stay for good, and nothing is dropped,
//!   until [`after_fork`].
//! * Not for signal handlers: one that interrupts [`pin`] would take its section for begun.
//!
//! Beside [`RcuCell`](crate::RcuCell), which costs its readers a store and a barrier for each value, where a
//! section pays once for a walk over many nodes. `RcuCell` drops an old value with its last handle, so that a
//! file is closed when a call returns; here nothing says when a value is dropped, and its `Drop` must do no
//! I/O.
//!
//! Synchronization: a load is `Acquire`, a store `Release`, so that a reader of a value sees what its writer
//! did before. Two writers of one cell may race; each old value is retired once.
//!
//! # Under a model checker
//! With `--cfg loom` or `--cfg shuttle` the same interface runs on a model that drops a retired value at the
//! earliest moment at which it may go and panics with "used after its grace period" when a guard that may
//! still use it is there. The guards are counted by execution, not by OS thread, so that a missing pin shows
//! although shuttle runs all its tasks on one thread. The bug `no_grace` (`.ci/mutants`) is the fault
//! that this must find: values are dropped as they are retired.
//!
//! Blind spots of the model: `pin`, unpinning and retiring are fences (`SeqCst`), and all unpinning and
//! retiring is ordered by one atomic, which is more than the real one promises; a value's `Drop` runs in the
//! thread that unpins last or retires, never later; a guard counts as a user of what it loaded until it is
//! dropped, even if the reference is not looked at again. How the real one finds the end of a grace period,
//! and hands records on, has loom models of its own (`readers/models.rs`); the queues in `real` and [`Limbo`]
//! are tested on real threads only.

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
    /// 63 bits, which are whatever their user says.
    Word(u64),
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
