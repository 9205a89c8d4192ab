//! The manager rests while a process forks: the service thread's side. docs/decisions/0025-fork.md
//!
//! A service thread has the manager rest ([`Op::ForkBegins`](super::request::Op)), and waits for the end of
//! the fork. What the forking thread does meanwhile is in process/inherit.
//!
//! Synchronization: a futex tells the service thread that the fork was made.

use crate::base::sys;
use elbowroom::{Host, Inheritance, Manager, Space};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A rest that a service thread has begun.
pub struct Rest {
    /// What the child's manager goes on with.
    pub inheritance: Inheritance,
    /// The service thread, in whose file table the descriptors are.
    pub tid: u32,
    /// The highest number in that table.
    pub top: RawFd,
    /// A futex: 1 once the fork was made, or is not to be. Apart, since it is told when the rest may be gone.
    over: Arc<AtomicU32>,
}

/// What a child's threads need of its parent's.
pub struct Copying {
    /// Shared with the service thread that waits; in the child kept for ever.
    pub rest: Arc<Rest>,
    /// Descriptors in the program's file table, and the numbers that they are to have in that of the child's
    /// threads.
    pub opened: Vec<(RawFd, RawFd)>,
    /// What [`late_forks`](crate::base::tree::late_forks) said before.
    pub late: i64,
}

/// Has the manager rest. For a service thread, not within [`Manager::work`]. [`until_over`] follows.
///
/// # Errors
/// The manager's, as errno.
pub fn begin(manager: &Manager, space: &Space<Host>) -> Result<Arc<Rest>, i32> {
    let inheritance = manager.fork_begins(space).map_err(|error| error.raw_os_error())?;
    let rest = Rest { inheritance, tid: sys::gettid(), top: highest_number(), over: Arc::default() };
    Ok(Arc::new(rest))
}

fn highest_number() -> RawFd {
    let numbers = std::fs::read_dir("/proc/thread-self/fd").into_iter().flatten().flatten();
    numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).max().unwrap_or(0)
}

/// Waits until the fork was made, and lets the manager go on.
pub fn until_over(manager: &Manager, rest: &Rest) {
    while rest.over.load(Ordering::Acquire) == 0 {
        sys::futex_wait(&rest.over, 0, None);
    }
    manager.fork_ends();
}

impl Rest {
    /// The fork was made, or is not to be. What the rest owns are descriptors of the service threads' table,
    /// so the service thread that waits is the last to have it: the caller's share goes before that is woken.
    pub fn end(self: Arc<Self>) {
        let over = self.over.clone();
        drop(self);
        over.store(1, Ordering::Release);
        sys::futex_wake(over.as_ptr(), 1);
    }
}
