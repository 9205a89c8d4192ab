//! Read-copy-update for structures of shared nodes, without unsafe code above this crate.
//!
//! A reader pins the epoch and follows [`ArcCell`]s as plain references; a writer puts another `Arc` into a cell, and
//! what was there is dropped only after a grace period: when every [`Guard`] that was pinned at that time is gone.
//! Linux: `rcu_read_lock`, `rcu_dereference`, `rcu_assign_pointer` and `kfree_rcu`. Fraser's epochs, as
//! `crossbeam-epoch` builds them, with its one default collector.
//!
//! * Readers never lock, wait or retry. [`pin`] is a store and a fence, a load is one load. Once in a while a reader
//!   that pins or unpins is the one who drops what others have retired.
//! * So a retired value may be dropped by any thread that uses this module, at any pin: a value's `Drop` must not
//!   take a lock that a reader could hold, wait, or do I/O.
//!   A writer that never pauses keeps its garbage from its readers with a [`Limbo`].
//! * A guard that stays holds back every later drop in the process. A pinned thread must not sleep, wait or do I/O.
//! * Nothing promises that a retired value is dropped at all while no thread pins; use [`ArcCell::swap`] or counts of
//!   your own where a resource must come back.
//!
//! Synchronization: a load is `Acquire`, a store `Release`, so that a reader of a value sees what its writer did before.
//! Two writers of one cell may race; each old value is retired once.
//!
//! # Under a model checker
//! With `--cfg loom` or `--cfg shuttle` the same interface runs on a model that drops a retired value at the earliest
//! moment at which it may go and panics with "used after its grace period" when a guard that may still use it is
//! there. The guards are counted by execution, not by OS thread, so that a missing pin shows although shuttle runs
//! all its tasks on one thread. `--cfg elbowroom_mutant="no_grace"` plants the fault that this must find: values are
//! dropped as they are retired.
//!
//! Blind spots of the model: crossbeam's own code is not run; `pin`, unpinning and retiring are fences (`SeqCst`), and
//! all unpinning and retiring is ordered by one atomic, which is more than crossbeam promises; a value's `Drop` runs in
//! the thread that unpins last or retires, never later and never in a bystander; a guard counts as a user of what it
//! loaded until it is dropped, even if the reference is not looked at again.

#[cfg(not(any(loom, shuttle)))]
mod limbo;
#[cfg(not(any(loom, shuttle)))]
mod real;
#[cfg(not(any(loom, shuttle)))]
use real as imp;

#[cfg(any(loom, shuttle))]
mod model;
#[cfg(any(loom, shuttle))]
use model as imp;

pub use imp::{ArcCell, Guard, pin};
#[cfg(not(any(loom, shuttle)))]
pub use limbo::Limbo;
#[cfg(any(loom, shuttle))]
pub use model::Limbo;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
