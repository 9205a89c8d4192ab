//! Limits of the process that our files meet although they are not the program's doing: how many descriptors
//! it may have (RLIMIT_NOFILE), and how far into a file it may write (RLIMIT_FSIZE).
//!
//! The first holds for each file table by itself, ours included. Files that are kept open leave the lowest
//! numbers free for what is opened for a moment. Where numbers below the soft limit are scarce, that limit
//! is raised to the hard one for the moment in which a number is given. A program that asks the kernel for
//! its limit without [`with_own_limit`] may see the hard limit then, one that changes it so may find its
//! change undone, and a child that it makes then may keep the raised limit.
//!
//! Synchronization: [`Turn`], a lock that is held for two system calls, is around all that is known of the
//! limit and around its changes. Between them there may be any number of calls that need the raised limit, or
//! of calls that need the program's own, never both. The first may wait for each other (the opening of a
//! watched file waits for the thread that takes the event, which needs a number, too), so they never exclude
//! each other.

use crate::calls::Descriptor;
use elbowroom_machine::Errno;
use elbowroom_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getpid, getrlimit, prlimit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The lowest number of a file that is kept open.
const FIRST_KEPT: i32 = 64;
/// So many numbers must be left behind the next one that is kept when a file is to be watched.
const SPARE: u64 = 64;
/// So many of the numbers below [`FIRST_KEPT`] must follow a free one, so that other threads do not take it
/// before a call that fails with harm without one.
const ROOM: i32 = 16;
/// A hard limit of so many descriptors leaves no number for a file that is kept open, or none behind it for
/// what is opened for a moment.
pub const LEAST_DESCRIPTORS: u64 = FIRST_KEPT as u64 + ROOM as u64 + SPARE;
/// How long a call that needs the raised limit waits for those that need the program's own. They are short,
/// except that of exec, which may itself wait for us.
const PATIENCE: Duration = Duration::from_millis(100);

/// The process whose thread has the turn; 0: none.
static TURN: AtomicU32 = AtomicU32::new(0);
/// The process that the rest is about.
static KNOWN_OF: AtomicU32 = AtomicU32::new(0);
/// How many calls need the program's own limits now.
static KEEPERS: AtomicU32 = AtomicU32::new(0);

static DESCRIPTORS: Raisable = Raisable::new(Resource::Nofile);
static FILE_SIZE: Raisable = Raisable::new(Resource::Fsize);

/// A limit that is raised for a moment.
struct Raisable {
    resource: Resource,
    /// How many calls need it raised now.
    raisers: AtomicU32,
    /// The program's own soft and hard limit, while it is raised; `u64::MAX`: none.
    own: [AtomicU64; 2],
}

/// Opens a file that is kept open.
///
/// EMFILE also where only low numbers are left: they are for events of watches, without which the kernel
/// denies other processes their opens.
pub(crate) fn open_kept(open: impl Fn() -> Result<OwnedFd, Errno>) -> Result<Descriptor, Errno> {
    let fd = Descriptor::from(open_briefly(open)?);
    if fd.as_fd().as_raw_fd() >= FIRST_KEPT {
        return Ok(fd);
    }
    let higher = || fcntl_dupfd_cloexec(fd.as_fd(), FIRST_KEPT);
    // EINVAL: the limit is below these numbers.
    higher().or_else(|_| raised(higher)).map(Descriptor::from).map_err(|_| Errno::MFILE)
}

/// Errors of which one says that no number is free.
pub trait Exhaustion {
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
pub fn open_briefly<T, E: Exhaustion>(open: impl Fn() -> Result<T, E>) -> Result<T, E> {
    match open() {
        Err(error) if error.is_exhaustion() => raised(open),
        opened => opened,
    }
}

/// Whether a file can be kept open, with some numbers left behind.
pub(crate) fn is_room(fd: BorrowedFd<'_>) -> bool {
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let next = raised(|| fcntl_dupfd_cloexec(fd, FIRST_KEPT)).map(Descriptor::from);
    next.is_ok_and(|fd| (fd.as_fd().as_raw_fd() as u64).saturating_add(SPARE) < hard)
}

/// Makes a call that needs one number, and fails with harm if the kernel finds none. `fd` is any that is
/// open. `None`: all numbers are taken, and the call was not made.
pub(crate) fn with_room<T>(fd: BorrowedFd<'_>, call: impl Fn() -> T) -> Option<T> {
    // The number that comes next.
    let next = || fcntl_dupfd_cloexec(fd, 0).map(Descriptor::from).map(|fd| fd.as_fd().as_raw_fd());
    let is_plenty =
        |next: i32| next + ROOM < FIRST_KEPT && own_soft().is_some_and(|soft| ((next + ROOM) as u64) < soft);
    if next().is_ok_and(is_plenty) {
        return Some(call());
    }
    raised(|| next().is_ok().then(&call))
}

/// The program's own soft limit, if it is not raised now.
fn own_soft() -> Option<u64> {
    let _turn = Turn::take();
    let is_own = DESCRIPTORS.raisers.load(Ordering::Relaxed) == 0;
    is_own.then(|| getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

/// Makes a call that tells or changes what the limit on descriptors is, or that lets another program inherit
/// it: at a moment in which it is the program's own.
///
/// Not for a child that shares its parent's memory. Signals must be blocked when this begins and when `call`
/// returns: a handler that did the same would wait for its own thread.
pub fn with_own_limit<T>(call: impl FnOnce() -> T) -> T {
    let _keeper = Keeper::new();
    call()
}

/// Makes a call that gives a file of our own a size, which may be beyond what the program may write. It is
/// told how many bytes the kernel allows.
pub fn with_highest_file_limit<T>(call: impl FnOnce(u64) -> T) -> T {
    let _raised = Raised::new(&FILE_SIZE);
    call(getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX))
}

/// How large a file of our own can be made, as far as the user says; `None`: no limit.
pub(crate) fn highest_file_limit() -> Option<u64> {
    getrlimit(Resource::Fsize).maximum
}

/// Whether the kernel would refuse to write up to this byte of a file, and send a signal for it.
pub(crate) fn is_beyond_file_limit(end: u64) -> bool {
    getrlimit(Resource::Fsize).current.is_some_and(|limit| end > limit)
}

fn this_process() -> u32 {
    getpid().as_raw_nonzero().get() as u32
}

/// The right to use what is known of the limit, and to change it. Nothing waits while it is held.
struct Turn;

impl Turn {
    fn take() -> Self {
        let this = this_process();
        while let Err(other) = TURN.compare_exchange(0, this, Ordering::Acquire, Ordering::Relaxed) {
            // A forked child finds what its parent's threads were at. None of them is here.
            let inherited = other != 0 && other != this;
            if inherited && TURN.compare_exchange(other, this, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                break;
            }
            thread::yield_now();
        }
        if KNOWN_OF.swap(this, Ordering::Relaxed) != this {
            DESCRIPTORS.raisers.store(0, Ordering::Relaxed);
            FILE_SIZE.raisers.store(0, Ordering::Relaxed);
            KEEPERS.store(0, Ordering::Relaxed);
        }
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TURN.store(0, Ordering::Release);
    }
}

/// While it lives, the limits are the program's own.
struct Keeper;

impl Keeper {
    fn new() -> Self {
        loop {
            let turn = Turn::take();
            let raisers = [&DESCRIPTORS, &FILE_SIZE].map(|limit| limit.raisers.load(Ordering::Relaxed));
            if raisers == [0, 0] {
                KEEPERS.fetch_add(1, Ordering::Relaxed);
                return Self;
            }
            drop(turn);
            thread::yield_now();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _turn = Turn::take();
        KEEPERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// While it lives, a soft limit is as high as the hard one.
struct Raised(&'static Raisable);

impl Raised {
    /// `None`: it is so in any case, or cannot be had now.
    fn new(limit: &'static Raisable) -> Option<Self> {
        let mut until = None;
        loop {
            let turn = Turn::take();
            if KEEPERS.load(Ordering::Relaxed) == 0 {
                if limit.raisers.load(Ordering::Relaxed) == 0 {
                    limit.raise()?;
                }
                limit.raisers.fetch_add(1, Ordering::Relaxed);
                return Some(Self(limit));
            }
            drop(turn);
            if Instant::now() >= *until.get_or_insert_with(|| Instant::now() + PATIENCE) {
                return None;
            }
            thread::yield_now();
        }
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        let _turn = Turn::take();
        if self.0.raisers.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.lower();
        }
    }
}

/// Makes a call while the soft limit on descriptors is as high as the hard one.
fn raised<T>(call: impl Fn() -> T) -> T {
    let _raised = Raised::new(&DESCRIPTORS);
    call()
}

impl Raisable {
    const fn new(resource: Resource) -> Self {
        Self { resource, raisers: AtomicU32::new(0), own: [AtomicU64::new(0), AtomicU64::new(0)] }
    }

    /// What it can be raised to: what is best first.
    fn highest(&self, limit: &Rlimit) -> [Rlimit; 2] {
        let soft = match self.resource {
            // A number must fit into an int.
            Resource::Nofile => Some(limit.maximum.unwrap_or(u64::MAX).min(i32::MAX as u64)),
            _ => limit.maximum,
        };
        let as_hard = Rlimit { current: soft, maximum: limit.maximum };
        // Nothing of ours needs more descriptors than the hard limit. The size of the swap file is an option
        // of its own, so the limit of the program's files does not bind it; no limit at all needs
        // CAP_SYS_RESOURCE.
        let without = Rlimit { current: None, maximum: None };
        if self.resource == Resource::Fsize { [without, as_hard] } else { [as_hard, as_hard] }
    }

    /// Raises it. `None`: it is as high already, or may not be changed.
    fn raise(&self) -> Option<()> {
        let before = getrlimit(self.resource);
        let own = before.current?;
        let higher = |limit: &Rlimit| limit.current.is_none_or(|top| own < top);
        let raised = self.highest(&before).into_iter().filter(higher);
        raised.map(|limit| prlimit(None, self.resource, limit)).find(Result::is_ok)?.ok()?;
        let own = [before.current, before.maximum].map(|limit| limit.unwrap_or(u64::MAX));
        self.own.iter().zip(own).for_each(|(place, own)| place.store(own, Ordering::Relaxed));
        Some(())
    }

    /// Puts the program's own limit back. Not if it was changed past us since.
    fn lower(&self) {
        let found = getrlimit(self.resource);
        if !self.highest(&found).contains(&found) {
            return;
        }
        let own = self.own.each_ref().map(|own| own.load(Ordering::Relaxed));
        let own = own.map(|own| (own != u64::MAX).then_some(own));
        // The hard limit may have been lowered past us.
        let maximum = if found.maximum.is_none() { own[1] } else { found.maximum };
        // Putting a lower limit back cannot fail.
        if let Ok(replaced) = prlimit(None, self.resource, Rlimit { current: own[0], maximum })
            && replaced != found
        {
            let _ = prlimit(None, self.resource, replaced);
        }
    }
}

#[cfg(test)]
mod tests;
