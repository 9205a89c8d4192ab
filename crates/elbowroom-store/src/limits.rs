//! Limits of the process that our files meet although they are not the program's doing: how many descriptors
//! it may have (RLIMIT_NOFILE), and how far into a file it may write (RLIMIT_FSIZE).
//!
//! The first holds for each file table by itself, ours included. Files that are kept open leave the lowest
//! numbers free for what is opened for a moment. Where numbers below the soft limit are scarce, that limit
//! is raised to the hard one for the moment in which a number is given. Nothing waits for a disk meanwhile. A
//! program that changes its limit in this very moment finds its own value there afterwards. One that asks the
//! kernel for it without [`with_own_limit`] may see the hard limit, and a child that it makes then may keep
//! it.

use crate::calls::Descriptor;
use elbowroom_machine::Errno;
use elbowroom_sync::atomic::{AtomicU32, Ordering};
use elbowroom_sync::thread;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getpid, getrlimit, prlimit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The lowest number of a file that is kept open.
const FIRST_KEPT: i32 = 64;
/// So many of the numbers below that must follow a free one, so that other threads do not take it before a
/// call that fails with harm without one.
const ROOM: i32 = 16;

/// The process that has raised the limit for a moment; 0: none.
static RAISED_BY: AtomicU32 = AtomicU32::new(0);
/// How often it was raised.
static RAISED: AtomicU32 = AtomicU32::new(0);

/// Opens a file that is kept open.
pub(crate) fn open_kept(open: impl Fn() -> Result<OwnedFd, Errno>) -> Result<Descriptor, Errno> {
    let fd = Descriptor::from(open_briefly(open)?);
    if fd.as_fd().as_raw_fd() >= FIRST_KEPT {
        return Ok(fd);
    }
    let higher = || fcntl_dupfd_cloexec(fd.as_fd(), FIRST_KEPT);
    match higher().or_else(|_| raised(higher)) {
        Ok(higher) => Ok(higher.into()),
        // The hard limit is reached, too: then it stays where it is.
        Err(_) => Ok(fd),
    }
}

/// Errors of which one says that no number is free.
pub(crate) trait Exhaustion {
    /// Whether this is EMFILE.
    fn is_exhaustion(&self) -> bool;
}

impl Exhaustion for Errno {
    fn is_exhaustion(&self) -> bool {
        *self == Errno::MFILE
    }
}

impl Exhaustion for std::io::Error {
    fn is_exhaustion(&self) -> bool {
        Errno::from_io_error(self) == Some(Errno::MFILE)
    }
}

/// Opens a file that is closed soon. The program may have lowered its limit below what we have open already.
pub(crate) fn open_briefly<T, E: Exhaustion>(open: impl Fn() -> Result<T, E>) -> Result<T, E> {
    match open() {
        Err(error) if error.is_exhaustion() => raised(open),
        opened => opened,
    }
}

/// Whether calls of [`with_room`] find one: the hard limit is beyond what is open.
pub(crate) fn is_room(fd: BorrowedFd<'_>) -> bool {
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let next = raised(|| fcntl_dupfd_cloexec(fd, 0)).map(Descriptor::from);
    next.is_ok_and(|fd| (fd.as_fd().as_raw_fd() as u64).saturating_add(FIRST_KEPT as u64) < hard)
}

/// Makes a call that needs one number, and fails with harm if the kernel finds none. `fd` is any that is
/// open.
pub(crate) fn with_room<T>(fd: BorrowedFd<'_>, call: impl Fn() -> T) -> T {
    // The number that comes next.
    let next = fcntl_dupfd_cloexec(fd, 0).map(Descriptor::from).map(|fd| fd.as_fd().as_raw_fd() + ROOM);
    if next.is_ok_and(|next| next < FIRST_KEPT && (next as u64) < soft_limit()) {
        return call();
    }
    raised(call)
}

/// Makes a call that tells what the limit on descriptors is, at a moment in which it is the program's own.
pub fn with_own_limit<T>(call: impl Fn() -> T) -> T {
    loop {
        let raised = RAISED.load(Ordering::Acquire);
        let by = RAISED_BY.load(Ordering::Acquire);
        if by == 0 || by != this_process() {
            let told = call();
            if RAISED.load(Ordering::Acquire) == raised {
                return told;
            }
        }
        // Whoever has raised it makes three system calls.
        thread::yield_now();
    }
}

/// Whether the kernel would refuse to write up to this byte of a file, and send a signal for it.
pub(crate) fn is_beyond_file_limit(end: u64) -> bool {
    getrlimit(Resource::Fsize).current.is_some_and(|limit| end > limit)
}

fn soft_limit() -> u64 {
    with_own_limit(|| getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

fn this_process() -> u32 {
    getpid().as_raw_nonzero().get() as u32
}

/// Makes a call while the soft limit on descriptors is as high as the hard one.
fn raised<T>(call: impl Fn() -> T) -> T {
    let this = this_process();
    // Whoever has it makes three system calls. A process that was forked in between finds its parent's
    // number, which means nothing.
    while let Err(other) = RAISED_BY.compare_exchange(0, this, Ordering::Acquire, Ordering::Relaxed) {
        if other != this {
            let _ = RAISED_BY.compare_exchange(other, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        thread::yield_now();
    }
    RAISED.fetch_add(1, Ordering::AcqRel);
    let result = with_raised(call);
    RAISED_BY.store(0, Ordering::Release);
    result
}

fn with_raised<T>(call: impl Fn() -> T) -> T {
    let before = getrlimit(Resource::Nofile);
    // A number must fit into an int.
    let top = before.maximum.unwrap_or(u64::MAX).min(i32::MAX as u64);
    if before.current.is_none_or(|soft| soft >= top) {
        return call();
    }
    let high = || Rlimit { current: Some(top), maximum: before.maximum };
    if prlimit(None, Resource::Nofile, high()).is_err() {
        return call();
    }
    let result = call();
    let own = Rlimit { current: before.current, maximum: before.maximum };
    // What the program has set meanwhile stays. Putting a lower limit back cannot fail.
    if let Ok(found) = prlimit(None, Resource::Nofile, own)
        && found != high()
    {
        let _ = prlimit(None, Resource::Nofile, found);
    }
    result
}
