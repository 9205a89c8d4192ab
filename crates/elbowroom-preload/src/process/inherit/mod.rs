//! A fork whose child goes on with a copy of the manager. docs/decisions/0025-fork.md
//!
//! Before it, a service thread has the manager rest ([`Op::ForkBegins`]), and waits for the end of the fork
//! (agent/rest.rs). The forking thread meanwhile opens, in the program's file table, what the child's
//! threads need of the parent's: a fork copies only that table. In the child, before any other hook runs, a
//! first thread gives itself a file table with the old numbers in it and takes the manager over
//! ([`service::take_over`]); the forking thread waits for that.
//!
//! libc itself stores to its streams in a child before any hook runs. Where those lie in managed memory (an
//! allocator of the program's own), they must be there: see [`streams`].
//!
//! Synchronization: a futex tells the service thread that the fork was made. Forks are one at a time: the
//! manager rests for one.

pub mod refuse;
mod streams;

use crate::agent::request::{self, Answer, Op};
use crate::agent::rest::Copying;
use crate::agent::service;
use crate::base::config::Fork;
use crate::base::state::{self, Process};
use crate::base::tree;
use elbowroom::Manager;
use libc::{c_int, c_long};
use refuse::Refusal;
use std::cell::Cell;
use std::os::fd::RawFd;

/// Numbers that a child needs beyond those that the parent's threads have.
const MORE_NUMBERS: u64 = 64;
/// More than the thread that forks needs of its stack until its child's windows are registered, in bytes.
const STACK_BYTES: usize = 64 << 10;
/// How often it is tried to find all of libc's streams in memory.
const STREAM_ROUNDS: usize = 16;

thread_local! {
    /// The fork that this thread makes.
    static COPYING: Cell<*mut Copying> = const { Cell::new(std::ptr::null_mut()) };
}

/// How a fork is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// With a copy, for which all is prepared.
    Copies,
    /// All private memory goes to the kernel before.
    Kernel,
    /// Not at all: what comes of it is ended, and its caller told ([`refuse::fork`]).
    Refused,
}

/// Before a fork: prepares for a child that goes on with a copy of the manager, if that is wanted and can be.
pub fn begin(process: &Process) -> Way {
    let Some((options, (_, manager))) = state::options().zip(state::alive()) else { return Way::Kernel };
    if options.fork == Fork::Kernel || !state::manages_private() {
        return Way::Kernel;
    }
    let begun = match obstacle(manager) {
        None => begin_copy(process, manager),
        Some(obstacle) => Err(obstacle),
    };
    match begun {
        Ok(()) => Way::Copies,
        Err(refusal) if options.fork == Fork::Fail && refuse::in_hook(refusal) => Way::Refused,
        Err(_) => Way::Kernel,
    }
}

/// fork(2) where it fails if there cannot be a copy.
pub fn fork_or_fail(real: impl FnOnce() -> c_int) -> c_int {
    refuse::fork(state::alive().and_then(|(_, manager)| obstacle(manager)), real)
}

/// Why this thread cannot have a copy, as far as that is known before.
fn obstacle(manager: &Manager) -> Option<Refusal> {
    if tree::late_forks() != 0 {
        return Some(Refusal::for_good("an earlier fork, of this process or a relative, took too long"));
    }
    let here = &raw const manager as usize;
    // The child's stack would grow before its windows are registered. A window right above a stack, which is
    // where the kernel puts stacks, is none of it.
    let is_managed = manager.windows().intersects(here.saturating_sub(STACK_BYTES), STACK_BYTES);
    is_managed.then_some(Refusal::for_good("the stack of the thread that forks is in managed memory"))
}

fn begin_copy(process: &Process, manager: &Manager) -> Result<(), Refusal> {
    streams::lock();
    for _ in 0..STREAM_ROUNDS {
        match rest(process, manager) {
            Ok(away) if away.is_empty() => return Ok(()),
            Ok(away) => {
                end_rest();
                streams::touch(&away);
            }
            Err(refusal) => {
                streams::unlock();
                return Err(refusal);
            }
        }
    }
    streams::unlock();
    Err(Refusal::for_now("what libc keeps of open streams does not stay in memory"))
}

/// Has the manager rest, and opens what the child needs. Gives the pages of libc's streams that are not in
/// memory.
fn rest(process: &Process, manager: &Manager) -> Result<Vec<usize>, Refusal> {
    let late = tree::late_forks();
    let Ok(Answer::Rests(rest)) = request::submit(process, Op::ForkBegins) else {
        return Err(Refusal::for_now(
            "the manager does not come to rest, or a file cannot go back to the kernel",
        ));
    };
    let mut handed = Vec::new();
    let all = rest.inheritance.files.iter().chain(&rest.inheritance.lifelines);
    let opened = is_room_above(rest.top)
        && all.into_iter().all(|file| {
            let fd = open_again(rest.tid, file.number, file.flags.bits() as c_int);
            handed.extend(fd.map(|fd| (fd, file.number)));
            fd.is_some()
        });
    COPYING.set(Box::into_raw(Box::new(Copying { rest, opened: handed, late })));
    if opened {
        return Ok(streams::away(manager.windows()));
    }
    end_rest();
    Err(Refusal::for_now("no descriptors are left, or those of the swap file may not be opened"))
}

/// Has the manager go on; nothing if it does not rest for this thread. Tells whether it did.
fn end_rest() -> bool {
    let copying = COPYING.replace(std::ptr::null_mut());
    if copying.is_null() {
        return false;
    }
    // SAFETY: made by `rest`, on this thread, which has taken it.
    let copying = *unsafe { Box::from_raw(copying) };
    close(&copying);
    copying.rest.end();
    true
}

fn is_room_above(top: RawFd) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit`.
    unsafe { libc::syscall(libc::SYS_getrlimit, libc::RLIMIT_NOFILE as c_long, &raw mut limit) };
    top as u64 + MORE_NUMBERS < limit.rlim_cur
}

fn open_again(tid: u32, number: RawFd, flags: c_int) -> Option<RawFd> {
    let path = std::ffi::CString::new(format!("/proc/self/task/{tid}/fd/{number}")).ok()?;
    let (flags, at) = ((flags | libc::O_CLOEXEC) as c_long, libc::AT_FDCWD as c_long);
    // SAFETY: the path is a valid string.
    let fd = unsafe { libc::syscall(libc::SYS_openat, at, path.as_ptr(), flags) };
    RawFd::try_from(fd).ok().filter(|fd| *fd >= 0)
}

/// In the parent, after the fork; nothing if [`begin`] did nothing. Tells whether it did.
pub fn end() -> bool {
    let ended = end_rest();
    if ended {
        streams::unlock();
    }
    ended
}

/// What came of the copy of the manager, in a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Child {
    /// It has none: the fork was made in another way.
    HasNone,
    /// It goes on.
    GoesOn,
    /// It cannot go on. What the windows have must not be touched.
    Failed,
}

/// In the child, before it does anything else that may touch managed memory.
pub fn in_child(process: &'static Process) -> Child {
    let copying = COPYING.replace(std::ptr::null_mut());
    if copying.is_null() {
        return Child::HasNone;
    }
    // SAFETY: as in `end_rest`; the memory is the child's copy, and leaked: a thread of ours reads it.
    let copying: &'static Copying = unsafe { &*copying };
    let late = copying.late != tree::late_forks();
    if late {
        process.set_error("the fork took too long".to_owned());
    }
    let goes_on =
        !late && state::last_manager().is_some_and(|manager| service::take_over(process, manager, copying));
    close(copying);
    if goes_on { Child::GoesOn } else { Child::Failed }
}

/// Closes what the program's file table has of a copy.
fn close(copying: &Copying) {
    for (fd, _) in &copying.opened {
        // SAFETY: opened by `rest` for this.
        unsafe { libc::syscall(libc::SYS_close, *fd as c_long) };
    }
}
