//! The one crate that names `std::sync`, `std::thread` and `std::time`.
//!
//! Everything above takes its atomics, locks, RCU cells, threads and clock from here, so that a build with
//! `--cfg loom` runs the same code under the loom model checker. Locks are made with a [`LockClass`]: they count
//! their acquisitions and waits by class, and in debug builds they check the order in which a thread takes them.
//!
//! Blind spots of the facade under loom: [`RcuCell`] is a mutex around an `Arc` there (loom cannot see into
//! `arc-swap`), time does not pass, and [`Counter`] is one plain atomic.
//!
//! Synchronization: each type documents its own.

mod counter;
mod histogram;
mod lock;
mod rcu;
pub mod thread;

pub use counter::Counter;
pub use histogram::{Histogram, HistogramSnapshot};
pub use lock::{ClassStats, Condvar, LockClass, LockStats, Mutex, MutexGuard};
pub use rcu::RcuCell;

/// Atomic integers, from std or from loom.
pub mod atomic {
    #[cfg(loom)]
    pub use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    #[cfg(not(loom))]
    pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
}

#[cfg(loom)]
pub use loom::sync::Arc;
#[cfg(not(loom))]
pub use std::sync::{Arc, Weak};

/// The monotonic clock.
pub mod time {
    pub use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
}
