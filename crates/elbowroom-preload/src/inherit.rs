//! A fork whose child goes on with a copy of the manager. docs/decisions/0025-fork.md
//!
//! Before it, a service thread has the manager rest ([`Op::ForkBegins`]), and waits for the end of the fork
//! in [`until_made`]. The forking thread meanwhile opens, in the program's file table, what the child's
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

use crate::config::Fork;
use crate::fork;
use crate::request::{self, Op};
use crate::service;
use crate::state::{self, Process};
use crate::sys;
use elbowroom::{Host, Inheritance, Manager, Space};
use libc::{c_int, c_long};
use refuse::Refusal;
use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Numbers that a child needs beyond those that the parent's threads have.
const MORE_NUMBERS: u64 = 64;
/// More than the thread that forks needs of its stack until its child's windows are registered, in bytes.
const STACK_BYTES: usize = 64 << 10;
/// How often it is tried to find all of libc's streams in memory.
const STREAM_ROUNDS: usize = 16;

/// What a service thread has begun.
pub struct Begun {
    inheritance: Inheritance,
    /// The service thread, in whose file table the descriptors are.
    tid: u32,
    /// The highest number in that table.
    top: RawFd,
    /// A futex: 1 once the fork was made, or is not to be.
    over: AtomicU32,
}

/// What the child's threads need.
pub struct Copying {
    /// There until it is told that the fork was made; in the child for ever.
    begun: *const Begun,
    /// Descriptors in the program's file table, and the numbers that they are to have in that of the child's
    /// threads.
    pub opened: Vec<(RawFd, RawFd)>,
    /// The highest number that the parent's threads have.
    pub top: RawFd,
    /// What [`fork::late_forks`] said before.
    late: i64,
}

// SAFETY: what it points to is only read, but for an atomic.
unsafe impl Sync for Copying {}

thread_local! {
    /// The fork that this thread makes.
    static COPYING: Cell<*mut Copying> = const { Cell::new(std::ptr::null_mut()) };
}

/// Has the manager rest. For a service thread, not within [`Manager::work`]. Gives the address of a [`Begun`]
/// for [`until_made`].
pub fn begin_quiet(manager: &Manager, space: &Space<Host>) -> Result<usize, i32> {
    let inheritance = manager.fork_begins(space).map_err(|error| error.raw_os_error())?;
    let begun = Begun { inheritance, tid: sys::gettid(), top: highest_number(), over: AtomicU32::new(0) };
    Ok(Box::into_raw(Box::new(begun)) as usize)
}

fn highest_number() -> RawFd {
    let numbers = std::fs::read_dir("/proc/thread-self/fd").into_iter().flatten().flatten();
    numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).max().unwrap_or(0)
}

/// Waits until the fork was made, and lets the manager go on.
pub fn until_made(manager: &Manager, begun: usize) {
    // SAFETY: `begin_quiet` made it for this call; the forking thread does not use it once it has stored.
    let begun = unsafe { Box::from_raw(begun as *mut Begun) };
    while begun.over.load(Ordering::Acquire) == 0 {
        sys::futex_wait(&begun.over, 0, None);
    }
    drop(begun);
    manager.fork_ends();
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
    if fork::late_forks() != 0 {
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
    let late = fork::late_forks();
    let begun = request::submit(process, Op::ForkBegins).map_err(|_| {
        Refusal::for_now("the manager does not come to rest, or a file cannot go back to the kernel")
    })? as *const Begun;
    // SAFETY: made by `begin_quiet`, and there until `over` is stored.
    let Begun { inheritance, tid, top, .. } = unsafe { &*begun };
    let mut copying = Copying { begun, opened: Vec::new(), top: *top, late };
    let all = inheritance.files.iter().chain(&inheritance.lifelines);
    let opened = is_room_above(*top)
        && all.into_iter().all(|handed| {
            let fd = open_again(*tid, handed.number, handed.flags.bits() as c_int);
            copying.opened.extend(fd.map(|fd| (fd, handed.number)));
            fd.is_some()
        });
    COPYING.set(Box::into_raw(Box::new(copying)));
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
    let copying = unsafe { Box::from_raw(copying) };
    copying.close();
    // SAFETY: it is there until this is stored.
    let over = unsafe { &raw const (*copying.begun).over };
    // SAFETY: as above; this store is the last access.
    unsafe { &*over }.store(1, Ordering::Release);
    sys::futex_wake(over.cast(), 1);
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
    let late = copying.late != fork::late_forks();
    if late {
        process.set_error("the fork took too long".to_owned());
    }
    let goes_on =
        !late && state::last_manager().is_some_and(|manager| service::take_over(process, manager, copying));
    copying.close();
    if goes_on { Child::GoesOn } else { Child::Failed }
}

impl Copying {
    /// In the child: what it inherits.
    pub fn inheritance(&self) -> &Inheritance {
        // SAFETY: made by `begin_quiet`; what frees it, does so in the parent.
        unsafe { &(*self.begun).inheritance }
    }

    /// Closes what the program's file table has of it.
    fn close(&self) {
        for (fd, _) in &self.opened {
            // SAFETY: opened by `begin` for this.
            unsafe { libc::syscall(libc::SYS_close, *fd as c_long) };
        }
    }
}

/// Gives the calling thread, and those that it starts, a file table in which the descriptors have the numbers
/// that they are to have. All others up to `top` are taken by what cannot be read or written: copies of the
/// parent's descriptors that are given up here close nothing else.
///
/// # Errors
/// The kernel's.
pub fn own_file_table(opened: &[(RawFd, RawFd)], top: RawFd) -> std::io::Result<()> {
    let call = |number: c_long, arguments: [c_long; 3]| -> std::io::Result<RawFd> {
        let [a, b, c] = arguments;
        // SAFETY: integers, but for the path of openat; the table is this thread's own, or becomes so first.
        match unsafe { libc::syscall(number, a, b, c) } {
            result if result < 0 => Err(std::io::Error::last_os_error()),
            result => Ok(result as RawFd),
        }
    };
    call(libc::SYS_unshare, [libc::CLONE_FILES as c_long, 0, 0])?;
    let mut kept = Vec::new();
    for (fd, number) in opened {
        let above = [*fd as c_long, libc::F_DUPFD_CLOEXEC as c_long, top as c_long + 1];
        kept.push((call(libc::SYS_fcntl, above)?, *number));
    }
    let mut from = 0;
    for (fd, _) in &kept {
        if *fd as c_long > from {
            call(libc::SYS_close_range, [from, *fd as c_long - 1, 0])?;
        }
        from = *fd as c_long + 1;
    }
    call(libc::SYS_close_range, [from, u32::MAX as c_long, 0])?;
    let flags = (libc::O_PATH | libc::O_CLOEXEC) as c_long;
    let nothing = call(libc::SYS_openat, [libc::AT_FDCWD as c_long, c"/".as_ptr() as c_long, flags])?;
    for number in (0..=top).filter(|number| *number != nothing) {
        call(libc::SYS_dup3, [nothing as c_long, number as c_long, libc::O_CLOEXEC as c_long])?;
    }
    for (fd, number) in kept {
        call(libc::SYS_dup3, [fd as c_long, number as c_long, libc::O_CLOEXEC as c_long])?;
        call(libc::SYS_close, [fd as c_long, 0, 0])?;
    }
    Ok(())
}
