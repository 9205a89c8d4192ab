//! The one crate that names `std::sync`, `std::thread` and `std::time`.
//!
//! Everything above takes its atomics, locks, RCU cells, threads and clock from here, so that a build with
//! `--cfg loom` or `--cfg shuttle` runs the same code under the loom or the shuttle model checker. Locks are
//! made with a [`LockClass`]: they count their acquisitions and waits by class, mode and call site
//! ([`LockStats`]), and in debug builds they check the order in which a thread takes them.
//!
//! Blind spots of the facade under a model checker: [`RcuCell`] is a mutex around an `Arc` there (no
//! checker sees into `arc-swap`), [`epoch`] is a model of its own that its page describes, time does not
//! pass (a wait for a [`Condvar`] with a bound has none; under shuttle a clock of the execution's own moves
//! on with each sleep), locks are not counted, other statistics are std's atomics, and the order of locks
//! is not checked. Shuttle takes every atomic access for sequentially consistent; only loom finds
//! reorderings.
//!
//! Synchronization: each type documents its own.

#[cfg_attr(any(loom, shuttle), allow(dead_code, reason = "models have their own epoch"))]
mod blocking;
mod cell;
mod contention;
mod counter;
pub mod epoch;
mod flag_lock;
mod histogram;
mod layout_lock;
mod lines;
mod lock;
mod mutant;
mod per_thread;
mod rcu;
mod rings;
#[cfg(shuttle)]
mod shuttled;
mod slots;
pub mod thread;

pub use blocking::may_block;
pub use contention::{
    Awaited, ClassStats, DECADES_NS, LockRow, LockSnapshot, LockStats, LruMutex, LruUse, Mode, Wait, WaitSums,
};
pub use counter::{Counters, SparseCounters};
pub use flag_lock::{FlagGuard, FlagLock};
pub use histogram::{Histogram, HistogramSnapshot, ThreadHistogram};
pub use layout_lock::{LayoutHeld, LayoutLock, LayoutRead, LayoutWrite, MAX_STEALS};
pub use lines::Lines;
pub use lock::{Condvar, LockClass, Mutex, MutexGuard};
pub use mutant::Mutant;
pub use per_thread::PerThread;
pub use rcu::RcuCell;
pub use rings::{RECORD_WORDS, Record, RingCopy, Rings};
/// std's, also under a model checker: it is set once, by code in which the checker switches no threads, and
/// only read from then on.
pub use std::sync::OnceLock;

pub use slots::{Full, Key, SlotRead, Slots, TryReadError};

/// Atomic integers, from std or from a model checker.
pub mod atomic {
    #[cfg(shuttle)]
    pub use crate::shuttled::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    #[cfg(loom)]
    pub use loom::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    #[cfg(not(any(loom, shuttle)))]
    pub use std::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

#[cfg(loom)]
pub use loom::sync::Arc;
#[cfg(shuttle)]
pub use shuttle::sync::{Arc, Barrier, Weak};
#[cfg(not(any(loom, shuttle)))]
pub use std::sync::{Arc, Barrier, Weak};

/// The monotonic clock.
pub mod time {
    #[cfg(shuttle)]
    pub use crate::shuttled::Instant;
    #[cfg(not(shuttle))]
    pub use std::time::Instant;
    pub use std::time::{Duration, SystemTime, UNIX_EPOCH};
}
