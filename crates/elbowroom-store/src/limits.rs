//! Limits that the program has set for itself, but which also apply to our files: how many descriptors the
//! process may have (RLIMIT_NOFILE), and how far into a file it may write (RLIMIT_FSIZE).
//!
//! RLIMIT_NOFILE applies to each file table by itself, ours included. Files that are kept open do not use
//! the lowest numbers, which stay free for files that are opened for a moment. Where numbers below the soft
//! limit are scarce, that limit is raised to the hard one for the moment in which a descriptor is opened.
//! If the program asks the kernel for its limit in that moment, without [`with_own_limit`], it may see the
//! hard limit; if it changes its limit, the change may be undone; and a child that it makes may keep the
//! raised limit.
//!
//! Synchronization: [`Turn`], a lock that is held for two system calls, protects the record of the limits,
//! and their changes. At any time there may be several calls that need the raised limit, or several that
//! need the program's own limit, but never both kinds. Calls of the first kind may wait for each other (the
//! opening of a watched file waits for the thread that reads the event, which needs a descriptor, too), so
//! they never exclude each other.

use crate::calls::Descriptor;
use elbowroom_machine::Errno;
use elbowroom_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getpid, getrlimit, prlimit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The lowest descriptor number of a file that is kept open.
const FIRST_KEPT: i32 = 64;
/// How many numbers must be free above the next kept file's number when a file is to be watched.
const SPARE: u64 = 64;
/// How many numbers there must be between a free number and [`FIRST_KEPT`] (or the limit): so many other
/// threads may take a number before a call that does harm without one.
const ROOM: i32 = 16;
/// With a hard limit of so many descriptors, or fewer, there are not enough numbers for files that are kept
/// open and those that are opened for a moment.
pub const LEAST_DESCRIPTORS: u64 = FIRST_KEPT as u64 + ROOM as u64 + SPARE;
/// How long a call that needs the raised limit waits for those that need the program's own. These are
/// short, except exec, which may itself wait for us.
const PATIENCE: Duration = Duration::from_millis(100);

/// The lock word: the pid of the process whose thread has the turn; 0: unlocked.
static TURN: AtomicU32 = AtomicU32::new(0);
/// The pid of the process to which the counts below belong. A forked child finds its parent's.
static KNOWN_OF: AtomicU32 = AtomicU32::new(0);
/// How many calls need the program's own limits now.
static KEEPERS: AtomicU32 = AtomicU32::new(0);

static DESCRIPTORS: Raisable = Raisable::new(Resource::Nofile);
static FILE_SIZE: Raisable = Raisable::new(Resource::Fsize);

/// A limit that is raised for a moment.
struct Raisable {
    resource: Resource,
    /// How many calls now need the limit raised.
    raisers: AtomicU32,
    /// The program's own soft and hard limit, while the limit is raised; `u64::MAX`: unlimited.
    own: [AtomicU64; 2],
}

/// Opens a file that is kept open.
///
/// EMFILE also if only low numbers are left: these are needed for events of watches, without which the
/// kernel denies opens by other processes.
pub(crate) fn open_kept(open: impl Fn() -> Result<OwnedFd, Errno>) -> Result<Descriptor, Errno> {
    let fd = Descriptor::from(open_briefly(open)?);
    if fd.as_fd().as_raw_fd() >= FIRST_KEPT {
        return Ok(fd);
    }
    let higher = || fcntl_dupfd_cloexec(fd.as_fd(), FIRST_KEPT);
    // EINVAL: the limit is below these numbers.
    higher().or_else(|_| raised(higher)).map(Descriptor::from).map_err(|_| Errno::MFILE)
}

/// Error types with a value for "no descriptor number is free".
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

/// Opens a file that is closed soon. If no number is free, tries again with the limit raised: the program
/// may have lowered it below the number of descriptors that we have open.
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

/// Makes a call that needs one descriptor number, and does harm if the kernel finds none free. `fd` is any
/// open descriptor. `None`: all numbers are taken, and the call was not made.
pub(crate) fn with_room<T>(fd: BorrowedFd<'_>, call: impl Fn() -> T) -> Option<T> {
    // The number that the kernel would give next.
    let next = || fcntl_dupfd_cloexec(fd, 0).map(Descriptor::from).map(|fd| fd.as_fd().as_raw_fd());
    let is_plenty =
        |next: i32| next + ROOM < FIRST_KEPT && own_soft().is_some_and(|soft| ((next + ROOM) as u64) < soft);
    if next().is_ok_and(is_plenty) {
        return Some(call());
    }
    raised(|| next().is_ok().then(&call))
}

/// The program's own soft limit; `None` if it is raised now.
fn own_soft() -> Option<u64> {
    let _turn = Turn::take();
    let is_own = DESCRIPTORS.raisers.load(Ordering::Relaxed) == 0;
    is_own.then(|| getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

/// Makes a call that reads or changes the limit on descriptors, or lets another program inherit it, while
/// the limit is the program's own.
///
/// Not for a child that shares its parent's memory. Signals must be blocked when this begins and when
/// `call` returns: a signal handler that called this, too, would wait for its own thread.
pub fn with_own_limit<T>(call: impl FnOnce() -> T) -> T {
    let _keeper = Keeper::new();
    call()
}

/// Makes a call that sets the size of a file of our own, which may be larger than the program may write.
/// `call` gets the number of bytes that the kernel allows then.
pub fn with_highest_file_limit<T>(call: impl FnOnce(u64) -> T) -> T {
    let _raised = Raised::new(&FILE_SIZE);
    call(getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX))
}

/// The hard limit on the size of a file; `None`: no limit.
pub(crate) fn highest_file_limit() -> Option<u64> {
    getrlimit(Resource::Fsize).maximum
}

/// Whether the kernel would refuse a write that ends at this byte of a file, and send SIGXFSZ.
pub(crate) fn is_beyond_file_limit(end: u64) -> bool {
    getrlimit(Resource::Fsize).current.is_some_and(|limit| end > limit)
}

fn this_process() -> u32 {
    getpid().as_raw_nonzero().get() as u32
}

/// The lock of the record of the limits. No thread waits while it holds the lock.
struct Turn;

impl Turn {
    fn take() -> Self {
        let this = this_process();
        while let Err(other) = TURN.compare_exchange(0, this, Ordering::Acquire, Ordering::Relaxed) {
            // In a forked child the lock may be held by a thread of the parent, which does not exist here.
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
    /// `None`: the limit is as high already, or cannot be raised now.
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

    /// The values to raise the limit to, in the order in which they are tried.
    fn highest(&self, limit: &Rlimit) -> [Rlimit; 2] {
        let soft = match self.resource {
            // A descriptor number must fit into an int.
            Resource::Nofile => Some(limit.maximum.unwrap_or(u64::MAX).min(i32::MAX as u64)),
            _ => limit.maximum,
        };
        let as_hard = Rlimit { current: soft, maximum: limit.maximum };
        // We never need more descriptors than the hard limit. The size of the swap file is an option of its
        // own, so even the hard limit of the program's files should not bind it; to remove that limit needs
        // CAP_SYS_RESOURCE.
        let without = Rlimit { current: None, maximum: None };
        if self.resource == Resource::Fsize { [without, as_hard] } else { [as_hard, as_hard] }
    }

    /// Raises the limit. `None`: it is as high already, or may not be changed.
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

    /// Restores the program's own limit, unless the program has changed it since, without
    /// [`with_own_limit`].
    fn lower(&self) {
        let found = getrlimit(self.resource);
        if !self.highest(&found).contains(&found) {
            return;
        }
        let own = self.own.each_ref().map(|own| own.load(Ordering::Relaxed));
        let own = own.map(|own| (own != u64::MAX).then_some(own));
        // The program may have lowered the hard limit meanwhile: that stays.
        let maximum = if found.maximum.is_none() { own[1] } else { found.maximum };
        // Lowering a limit cannot fail.
        if let Ok(replaced) = prlimit(None, self.resource, Rlimit { current: own[0], maximum })
            && replaced != found
        {
            let _ = prlimit(None, self.resource, replaced);
        }
    }
}

#[cfg(test)]
mod tests;
