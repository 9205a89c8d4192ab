//! The manager rests while a process forks: the service thread's side. docs/decisions/0025-fork.md
//!
//! A service thread has the manager rest ([`Op::ForkBegins`](super::request::Op)), and waits for the end of
//! the fork. What the forking thread does meanwhile is in process/inherit.
//!
//! The forking thread may meet a fault that it knows nothing of: on its way out of a system call the kernel
//! does the work of io_uring's transfers, which reaches for the buffers. No handler serves that fault before
//! the fork was made, and the fork is not made before it is served. So the service thread looks where the
//! other one is, and gives the rest up: the forking thread finds that out before it forks, and begins anew.
//! From then on it is too late: a transfer that ends while the kernel makes the child holds the fork up until
//! it is late (docs/limits.md).
//!
//! Synchronization: one word, which is a futex. It is in the child's copy of the memory, too.

use crate::base::report::Buffer;
use crate::base::sys;
use elbowroom::{Host, Inheritance, Manager, Space};
use std::fmt::Write;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often it is looked where the forking thread is, in ms, until it forks.
const LOOK_MS: u32 = 2;

/// The manager rests, and the fork was not begun.
const BEGUN: u32 = 0;
/// The forking thread makes it now.
const FORKING: u32 = 1;
/// It was made, or is not to be.
const OVER: u32 = 2;
/// The manager does not rest any more.
const GIVEN_UP: u32 = 3;

/// A rest that a service thread has begun.
pub struct Rest {
    /// What the child's manager goes on with.
    pub inheritance: Inheritance,
    /// The service thread, in whose file table the descriptors are.
    pub tid: u32,
    /// The highest number in that table.
    pub top: RawFd,
    /// The thread that forks.
    forker: u32,
    /// A futex. Apart, since the end is told when the rest may be gone.
    state: Arc<AtomicU32>,
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
pub fn begin(manager: &Manager, space: &Space<Host>, forker: u32) -> Result<Arc<Rest>, i32> {
    let inheritance = manager.fork_begins(space).map_err(|error| error.raw_os_error())?;
    let (tid, top) = (sys::gettid(), highest_number());
    Ok(Arc::new(Rest { inheritance, tid, top, forker, state: Arc::new(AtomicU32::new(BEGUN)) }))
}

fn highest_number() -> RawFd {
    let numbers = std::fs::read_dir("/proc/thread-self/fd").into_iter().flatten().flatten();
    numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).max().unwrap_or(0)
}

/// Waits until the fork was made, and lets the manager go on. Allocates nothing before: the fork copies the
/// heap.
pub fn until_over(manager: &Manager, rest: &Rest) {
    let state = || rest.state.load(Ordering::Acquire);
    while state() == BEGUN {
        sys::futex_wait(&rest.state, BEGUN, Some(LOOK_MS));
        if state() == BEGUN && faults(rest.forker) {
            rest.change(BEGUN, GIVEN_UP);
        }
    }
    while state() == FORKING {
        sys::futex_wait(&rest.state, FORKING, None);
    }
    manager.fork_ends();
    // The forking thread has a share of the rest until then.
    while state() == GIVEN_UP {
        sys::futex_wait(&rest.state, GIVEN_UP, None);
    }
}

/// Whether the thread waits for a fault to be served. `false` where the kernel does not tell.
fn faults(tid: u32) -> bool {
    let mut path = Buffer::<64>::new();
    let mut place = [0; 64];
    // It has room for any number.
    let _ = write!(path, "/proc/self/task/{tid}/wchan\0");
    sys::read_file(path.as_bytes(), &mut place).is_some_and(|place| place.starts_with(b"handle_userfault"))
}

impl Rest {
    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The forking thread makes the fork now. `false`: the manager does not rest any more.
    pub fn is_used(&self) -> bool {
        self.change(BEGUN, FORKING)
    }

    /// The fork was made, or is not to be. What the rest owns are descriptors of the service threads' table,
    /// so the service thread that waits is the last to have it: the caller's share goes before that is woken.
    pub fn end(self: Arc<Self>) {
        let state = self.state.clone();
        drop(self);
        state.store(OVER, Ordering::Release);
        sys::futex_wake(state.as_ptr(), 1);
    }
}
