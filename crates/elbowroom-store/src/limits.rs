//! Limits of the process that our files meet although they are not the program's doing: how many descriptors
//! it may have (RLIMIT_NOFILE), and how far into a file it may write (RLIMIT_FSIZE).
//!
//! The first holds for each file table by itself, ours included. Files that are kept open get numbers beyond
//! the soft limit, which is raised to the hard one for the moment in which a number is given; so those below
//! it stay free for what is opened for a moment. Nothing waits for a disk meanwhile. A program that changes
//! its limit in this very moment finds its own value there afterwards; one that asks for it may see the hard
//! limit, and a child that it makes then may keep it.

use crate::calls::Descriptor;
use elbowroom_machine::Errno;
use elbowroom_sync::atomic::{AtomicU32, Ordering};
use elbowroom_sync::thread;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getpid, getrlimit, prlimit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// So many of the lowest numbers, or half of those that the soft limit allows, are not taken by files that
/// are kept open.
const SPARE_DESCRIPTORS: u64 = 64;

/// The process that has raised the limit for a moment; 0: none.
static RAISED_BY: AtomicU32 = AtomicU32::new(0);

/// Opens a file that is kept open.
pub(crate) fn open_kept(open: impl Fn() -> Result<OwnedFd, Errno>) -> Result<Descriptor, Errno> {
    let soft = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let fd = match open() {
        // The program has lowered its limit below what we have open already, or many threads open files at
        // once.
        Err(Errno::MFILE) => return raised(soft, open).map(Descriptor::from),
        opened => Descriptor::from(opened?),
    };
    let number = fd.as_fd().as_raw_fd() as u64;
    if number < soft - SPARE_DESCRIPTORS.min(soft / 2) || number >= soft {
        return Ok(fd);
    }
    match raised(soft, || fcntl_dupfd_cloexec(fd.as_fd(), soft as i32)) {
        Ok(high) => Ok(high.into()),
        // The hard limit is reached, too: then it stays where it is.
        Err(_) => Ok(fd),
    }
}

/// Whether calls of [`with_room`] find one: the hard limit is beyond what is open.
pub(crate) fn is_room(fd: BorrowedFd<'_>) -> bool {
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let next = raised(0, || fcntl_dupfd_cloexec(fd, 0)).map(Descriptor::from);
    next.is_ok_and(|fd| (fd.as_fd().as_raw_fd() as u64).saturating_add(SPARE_DESCRIPTORS) < hard)
}

/// Makes a call that fails, with harm, if the kernel finds no number for a descriptor. `fd` is any that is open.
pub(crate) fn with_room<T>(fd: BorrowedFd<'_>, call: impl Fn() -> T) -> T {
    let soft = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // The number that comes next. Few others are taken before the call takes it.
    let next = fcntl_dupfd_cloexec(fd, 0).map(Descriptor::from).map(|fd| fd.as_fd().as_raw_fd() as u64);
    if next.is_ok_and(|next| next.saturating_add(SPARE_DESCRIPTORS) < soft) {
        return call();
    }
    raised(soft, call)
}

/// Whether the kernel would refuse to write up to this byte of a file, and send a signal for it.
pub(crate) fn is_beyond_file_limit(end: u64) -> bool {
    getrlimit(Resource::Fsize).current.is_some_and(|limit| end > limit)
}

/// Makes a call while the soft limit on descriptors is as high as the hard one.
fn raised<T>(soft: u64, call: impl Fn() -> T) -> T {
    let this = getpid().as_raw_nonzero().get() as u32;
    // Whoever has it makes three system calls. A process that was forked in between finds its parent's
    // number, which means nothing.
    while let Err(other) = RAISED_BY.compare_exchange(0, this, Ordering::Acquire, Ordering::Relaxed) {
        if other != this {
            let _ = RAISED_BY.compare_exchange(other, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        thread::yield_now();
    }
    let result = with_raised(soft, call);
    RAISED_BY.store(0, Ordering::Release);
    result
}

fn with_raised<T>(soft: u64, call: impl Fn() -> T) -> T {
    let before = getrlimit(Resource::Nofile);
    // A number must fit into an int.
    let top = before.maximum.unwrap_or(u64::MAX).min(i32::MAX as u64);
    if before.current.is_none_or(|current| current >= top) || top <= soft {
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
