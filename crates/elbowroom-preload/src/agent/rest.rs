//! The manager rests while a process forks: the service thread's side. docs/decisions/0025-fork.md
//!
//! A service thread has the manager rest ([`Op::ForkBegins`](super::request::Op)), and waits for the end of
//! the fork. What the forking thread does meanwhile is in process/inherit.
//!
//! The forking thread may cause a fault without an access of its own: on its way out of a system call, or
//! of a page fault, the kernel does the task work of io_uring transfers, which accesses their buffers. A
//! transfer that ends while the kernel makes the child makes it begin again after that work. No handler
//! serves such a fault before the fork is made, and the fork is not made before the fault is served. So the
//! service thread looks whether a fault of the forking thread waits, and then gives the rest up. The
//! forking thread finds that out before it forks, or the child does in its copy of the word, and the fork
//! begins anew.
//!
//! Handlers may wait for the lock of the library's heap, so the forking thread does not use that heap: it
//! could cause such a fault with the lock held.
//!
//! Synchronization: one word, which is a futex. Forks are one at a time.

use crate::base::sys;
use crate::base::tree;
use elbowroom::{Host, Inheritance, Manager, Space};
use elbowroom_store::Handed;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// The time between two looks whether the forking thread waits for a fault, in ms.
const LOOK_MS: u32 = 2;

/// The manager rests, and the fork was not begun.
const BEGUN: u32 = 0;
/// The forking thread makes the fork now.
const FORKING: u32 = 1;
/// The fork was made, or is not to be made.
const OVER: u32 = 2;
/// The manager had to go on before the fork was made.
const GIVEN_UP: u32 = 3;
/// Nothing is left of a rest that was given up.
const ENDED: u32 = 4;

/// The state of the last rest.
static STATE: AtomicU32 = AtomicU32::new(ENDED);

/// A rest that a service thread has begun. In the child it is kept for ever.
pub struct Rest {
    /// What the child's manager goes on with.
    pub inheritance: Inheritance,
    /// The service thread, in whose file table the descriptors are.
    pub tid: u32,
    /// The highest number in that table.
    pub top: RawFd,
    /// What [`late_forks`](tree::late_forks) said before.
    pub late: i64,
    /// The thread that forks.
    forker: u32,
    /// For each descriptor of the inheritance its number in the program's file table; negative: none yet.
    opened: Vec<AtomicI32>,
}

/// Has the manager rest. For a service thread, not within [`Manager::work`]. [`until_over`] follows.
///
/// # Errors
/// The manager's, as errno.
pub fn begin(manager: &Manager, space: &Space<Host>, forker: u32) -> Result<Arc<Rest>, i32> {
    let late = tree::late_forks();
    let inheritance = manager.fork_begins(space).map_err(|error| error.raw_os_error())?;
    let all = inheritance.files.len() + inheritance.lifelines.len();
    let opened = std::iter::repeat_with(|| AtomicI32::new(-1)).take(all).collect();
    let (tid, top) = (sys::gettid(), highest_number());
    STATE.store(BEGUN, Ordering::Release);
    Ok(Arc::new(Rest { inheritance, tid, top, late, forker, opened }))
}

fn highest_number() -> RawFd {
    let numbers = std::fs::read_dir("/proc/thread-self/fd").into_iter().flatten().flatten();
    numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).max().unwrap_or(0)
}

/// Waits until the fork was made, and lets the manager go on. Allocates nothing before: the fork copies the
/// heap.
pub fn until_over(manager: &Manager, rest: &Rest) {
    let state = || STATE.load(Ordering::Acquire);
    let mut awaited = None;
    while let now @ (BEGUN | FORKING) = state() {
        sys::futex_wait(&STATE, now, Some(LOOK_MS));
        if state() == now {
            awaited = manager.awaited_by(rest.forker);
        }
        if awaited.is_some() {
            // The forking thread waits, and so changes nothing.
            STATE.store(GIVEN_UP, Ordering::Release);
        }
    }
    let Some(page) = awaited else { return manager.fork_ends() };
    manager.fork_is_given_up(page);
    while state() == GIVEN_UP {
        sys::futex_wait(&STATE, GIVEN_UP, None);
    }
    manager.given_up_fork_ends();
    STATE.store(ENDED, Ordering::Release);
    sys::futex_wake(STATE.as_ptr(), i32::MAX);
}

fn change(from: u32, to: u32) -> bool {
    STATE.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// The forking thread makes the fork now. `false`: the manager does not rest any more.
pub fn is_used() -> bool {
    change(BEGUN, FORKING)
}

/// In a child: whether the manager did not rest any more when the fork was made.
pub fn is_given_up() -> bool {
    STATE.load(Ordering::Acquire) == GIVEN_UP
}

impl Rest {
    /// The descriptors that the child needs, and where the number goes that each gets in the program's file
    /// table.
    pub fn handed(&self) -> impl Iterator<Item = (&Handed, &AtomicI32)> {
        self.inheritance.files.iter().chain(&self.inheritance.lifelines).zip(&self.opened)
    }

    /// The descriptors that were opened there, each with the number that it is to have in the file table of
    /// the child's service threads.
    pub fn opened(&self) -> impl Iterator<Item = (RawFd, RawFd)> {
        let number = |(file, fd): (&Handed, &AtomicI32)| (fd.load(Ordering::Relaxed), file.number);
        self.handed().map(number).filter(|(fd, _)| *fd >= 0)
    }

    /// Ends the rest: the fork was made, or is not to be made. The rest owns descriptors of the service
    /// threads' file table, so the service thread that waits must drop it last: the caller drops its
    /// reference before it wakes that thread.
    pub fn end(self: Arc<Self>) {
        drop(self);
        let was_given_up = STATE.swap(OVER, Ordering::AcqRel) == GIVEN_UP;
        sys::futex_wake(STATE.as_ptr(), 1);
        // The next rest must not begin before the service thread has ended this one.
        while was_given_up && STATE.load(Ordering::Acquire) == OVER {
            sys::futex_wait(&STATE, OVER, None);
        }
    }
}
