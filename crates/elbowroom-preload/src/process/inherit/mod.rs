//! A fork whose child goes on with a copy of the manager. docs/decisions/0025-fork.md
//!
//! Before the fork, a service thread has the manager rest ([`Op::ForkBegins`]), and waits for the end of
//! the fork (agent/rest.rs). The forking thread meanwhile opens, in the program's file table, what the
//! child's threads need of the parent's: a fork copies only that table. In the child, before any other hook
//! runs, a first thread gives itself a file table with the old numbers in it and takes the manager over
//! ([`service::take_over`]); the forking thread waits for that.
//!
//! libc itself stores to its streams in a child before any hook runs. Where the streams lie in managed
//! memory (an allocator of the program's own), their pages must be in memory: see [`streams`].
//!
//! Synchronization: a futex tells the service thread that the fork was made. Forks are made one at a time,
//! since the manager rests for one.

pub mod refuse;
mod streams;

use crate::agent::request::{self, Answer, Op};
use crate::agent::rest::{self, Rest};
use crate::agent::service;
use crate::base::config::Fork;
use crate::base::report::Buffer;
use crate::base::state::{self, Process};
use crate::base::sys;
use crate::base::tree::{self, Trial, Verdict};
use crate::process::signals::blocked::SYNCHRONOUS;
use elbowroom::Manager;
use libc::{c_int, c_long};
use refuse::Refusal;
use std::cell::Cell;
use std::fmt::Write;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How many descriptors a child needs beyond the highest number in the file table of the parent's service
/// threads.
const MORE_NUMBERS: u64 = 64;
/// More than the thread that forks needs of its stack until its child's windows are registered, in bytes.
const STACK_BYTES: usize = 64 << 10;
/// How often a rest is begun anew to find all of libc's streams in memory.
const STREAM_ROUNDS: usize = 16;
/// For how long a rest is begun anew if transfers of the forking thread end it (agent/rest.rs).
const TRANSFERS_BOUND: Duration = Duration::from_secs(10);

/// The refusal when [`TRANSFERS_BOUND`] is over.
const TRANSFERS: Refusal = Refusal::for_now("transfers of its parent need what is out, again and again");

thread_local! {
    /// The rest for the fork that this thread makes; null: it makes no fork with a copy.
    static RESTS: Cell<*const Rest> = const { Cell::new(std::ptr::null()) };
}

/// How a fork is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// With a copy of the manager, for which all is prepared.
    Copies,
    /// All private memory goes to the kernel before.
    Kernel,
    /// Not at all: libc makes the child all the same, but it is ended, and fork's caller gets an error
    /// ([`refuse::fork`]).
    Refused,
}

/// How long a parent waits for its child's manager, once the fork is made, in milliseconds.
const TRIAL_MS: u32 = 10_000;
/// The time between two looks of the parent whether the child is still there, in milliseconds.
const LOOK_MS: u32 = 50;
/// Forks cannot have copies: a child lacked something that later children would lack, too.
static DENIED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The trial of the fork that this thread makes: the child gives a verdict on its manager before any
    /// code of the program runs in it.
    static ON_TRIAL: Cell<Option<Trial>> = const { Cell::new(None) };
    /// The mask from before a fork, while this thread's signals wait for the end of the fork. A handler
    /// that ran while the manager rests could wait for the manager, and so for its own thread. And a child
    /// on trial may be ended without a trace, so no handler must run in it.
    static MASK: Cell<Option<u64>> = const { Cell::new(None) };
    /// The next fork is made by the kernel alone.
    static BY_KERNEL: Cell<bool> = const { Cell::new(false) };
}

/// Before a fork: prepares for a child that goes on with a copy of the manager, if that is wanted and can be.
pub fn begin(process: &Process) -> Way {
    let Some((options, (_, manager))) = state::options().zip(state::alive()) else { return Way::Kernel };
    if options.fork == Fork::Kernel || !state::manages_private() || BY_KERNEL.get() {
        return Way::Kernel;
    }
    let begun = match obstacle(manager) {
        None => begin_copy(process, manager),
        Some(obstacle) => Err(obstacle),
    };
    match begun {
        Ok(()) => Way::Copies,
        Err(refusal) if options.fork == Fork::Fail && refuse::in_hook(refusal) => Way::Refused,
        Err(refusal) => {
            refuse::say_by_kernel(refusal);
            Way::Kernel
        }
    }
}

/// fork(2). If the child cannot have a copy, the fork fails, or is made by the kernel alone, as the options
/// say. If only the child finds that out, it is ended, and the fork fails, or another child is made.
pub fn fork(real: impl Fn() -> c_int) -> c_int {
    let deadline = Instant::now() + TRANSFERS_BOUND;
    let refusal = loop {
        let now = state::alive().filter(|_| refuse::is_wanted()).and_then(|(_, manager)| obstacle(manager));
        let pid = refuse::fork(now, &real);
        let Some(trial) = ON_TRIAL.take() else { return pid };
        let errno = sys::errno();
        let verdict = if pid < 0 { Verdict::GoesOn } else { verdict(trial, pid) };
        let lacks = refusal_of(verdict);
        if lacks.is_some() {
            refuse::reap(pid);
        }
        trial.end();
        release_signals();
        match lacks {
            Some(_) if verdict == Verdict::NotWhole && Instant::now() < deadline => {}
            Some(refusal) => break refusal,
            None => {
                sys::set_errno(errno);
                return pid;
            }
        }
    };
    if refuse::is_wanted() {
        return sys::fail(refuse::say(refusal));
    }
    refuse::say_by_kernel(refusal);
    BY_KERNEL.set(true);
    let pid = refuse::fork(None, &real);
    BY_KERNEL.set(false);
    pid
}

/// Waits for the child's verdict. A child that gives none in time is killed.
fn verdict(trial: Trial, pid: c_int) -> Verdict {
    for _ in 0..TRIAL_MS / LOOK_MS {
        if let Some(verdict) = trial.wait(LOOK_MS) {
            return verdict;
        }
        if has_ended(pid) {
            break;
        }
    }
    if trial.give(Verdict::Silent) {
        // SAFETY: integers only. No other thread waits for the child, since none knows of it.
        unsafe { sys::system_call(libc::SYS_kill, pid as c_long, libc::SIGKILL as c_long) };
        return Verdict::Silent;
    }
    trial.wait(0).unwrap_or(Verdict::Silent)
}

fn has_ended(pid: c_int) -> bool {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let how = (libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) as c_long;
    let none = std::ptr::null_mut::<c_int>();
    let (which, pid) = (libc::P_PID as c_long, pid as c_long);
    // SAFETY: the kernel writes one siginfo, or nothing if the child runs.
    let r = unsafe { sys::system_call(libc::SYS_waitid, which, pid, info.as_mut_ptr(), how, none) };
    // SAFETY: all zero is a siginfo, without a signal.
    r != 0 || unsafe { info.assume_init() }.si_signo != 0
}

fn refusal_of(verdict: Verdict) -> Option<Refusal> {
    let refusal = match verdict {
        Verdict::GoesOn => return None,
        Verdict::NoThreads => {
            return Some(Refusal::for_now(
                "it can start no threads (RLIMIT_NPROC, or pids.max of its cgroup)",
            ));
        }
        Verdict::NoRoom => {
            return Some(Refusal::for_now(
                "it has too little memory, descriptors (ulimit -n), or room for its swap file",
            ));
        }
        Verdict::NotWhole => return Some(TRANSFERS),
        Verdict::Denied => {
            Refusal::for_good("it is denied something that a manager needs (by seccomp, or other rights)")
        }
        Verdict::Silent => {
            Refusal::for_good("it ended, or stood still, before it had one (seccomp may do that)")
        }
    };
    DENIED.store(true, Ordering::Release);
    Some(refusal)
}

/// Why a fork of this thread cannot have a copy, as far as that is known before the fork.
fn obstacle(manager: &Manager) -> Option<Refusal> {
    if tree::late_forks() != 0 {
        return Some(Refusal::for_good("an earlier fork, of this process or a relative, took too long"));
    }
    if DENIED.load(Ordering::Acquire) {
        return Some(Refusal::for_good("the child of an earlier fork could not have one"));
    }
    let here = &raw const manager as usize;
    // The child's stack would grow before its windows are registered. A window may lie right above a stack
    // (the kernel places both there), so only addresses below are looked at.
    let is_managed = manager.windows().intersects(here.saturating_sub(STACK_BYTES), STACK_BYTES);
    is_managed.then_some(Refusal::for_good("the stack of the thread that forks is in managed memory"))
}

fn hold_signals() {
    // Not the signals that instructions raise: the library itself may cause them (signals/passage.rs).
    MASK.set(Some(sys::block(!SYNCHRONOUS)));
}

fn release_signals() {
    if let Some(mask) = MASK.take() {
        sys::set_mask(mask);
    }
}

fn begin_copy(process: &Process, manager: &Manager) -> Result<(), Refusal> {
    hold_signals();
    let begun = begin_held(process, manager);
    if begun.is_err() {
        release_signals();
    }
    begun
}

fn begin_held(process: &Process, manager: &Manager) -> Result<(), Refusal> {
    streams::lock();
    let begun = begin_rest(process, manager);
    match begun {
        Ok(()) => put_on_trial(),
        Err(_) => streams::unlock(),
    }
    begun
}

/// Has the manager rest until the fork is made, with all of libc's streams in memory, to which libc stores
/// in the child.
fn begin_rest(process: &Process, manager: &Manager) -> Result<(), Refusal> {
    let deadline = Instant::now() + TRANSFERS_BOUND;
    let mut rounds = 0;
    loop {
        have_rest(process)?;
        let are_in_memory = streams::are_in_memory(manager.windows());
        if are_in_memory && rest::is_used() {
            return Ok(());
        }
        end_rest();
        if !are_in_memory {
            streams::bring(manager.windows());
            rounds += 1;
        }
        if rounds == STREAM_ROUNDS {
            return Err(Refusal::for_now("what libc keeps of open streams does not stay in memory"));
        }
        if Instant::now() > deadline {
            return Err(TRANSFERS);
        }
    }
}

/// Puts the next copy on trial, if the fork has a caller that can be told of a failure.
fn put_on_trial() {
    if refuse::is_in_fork() {
        ON_TRIAL.set(Trial::begin());
    }
}

/// Has the manager rest, and opens what the child needs.
fn have_rest(process: &Process) -> Result<(), Refusal> {
    let Ok(Answer::Rests(rest)) = request::submit(process, Op::ForkBegins(sys::gettid())) else {
        return Err(Refusal::for_now(
            "the manager does not come to rest, or a file cannot go back to the kernel",
        ));
    };
    let room = if is_room_above(rest.top) { Ok(()) } else { Err(libc::EMFILE) };
    let opened = room.and_then(|()| {
        rest.handed().try_for_each(|(file, number)| {
            let fd = open_again(rest.tid, file.number, file.flags.bits() as c_int)?;
            number.store(fd, Ordering::Relaxed);
            Ok(())
        })
    });
    RESTS.set(Arc::into_raw(rest));
    let errno = match opened {
        Ok(()) => return Ok(()),
        Err(errno) => errno,
    };
    end_rest();
    Err(match errno {
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EINTR => {
            Refusal::for_now("no descriptors are left")
        }
        _ => Refusal::for_good("the process may not open its swap file any more"),
    })
}

/// Has the manager go on, if it rests for this thread. Tells whether it did.
fn end_rest() -> bool {
    let rest = RESTS.replace(std::ptr::null());
    if rest.is_null() {
        return false;
    }
    // SAFETY: from `Arc::into_raw` in `have_rest`, on this thread, which has taken it.
    let rest = unsafe { Arc::from_raw(rest) };
    close(&rest);
    rest.end();
    true
}

fn is_room_above(top: RawFd) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit`.
    unsafe { sys::system_call(libc::SYS_getrlimit, libc::RLIMIT_NOFILE as c_long, &raw mut limit) };
    top as u64 + MORE_NUMBERS < limit.rlim_cur
}

fn open_again(tid: u32, number: RawFd, flags: c_int) -> Result<RawFd, c_int> {
    let mut path = Buffer::<64>::new();
    // The buffer has room for any numbers.
    let _ = write!(path, "/proc/self/task/{tid}/fd/{number}\0");
    let (flags, at) = ((flags | libc::O_CLOEXEC) as c_long, libc::AT_FDCWD as c_long);
    // SAFETY: the path ends.
    let fd = unsafe { sys::system_call(libc::SYS_openat, at, path.as_bytes().as_ptr(), flags) };
    RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(sys::errno)
}

/// In the parent, after the fork: ends what [`begin`] has begun. Tells whether a rest was begun.
pub fn end() -> bool {
    let ended = end_rest();
    if ended {
        streams::unlock();
        // With a trial, [`fork`] does this when the trial has ended.
        if ON_TRIAL.get().is_none() {
            release_signals();
        }
    }
    ended
}

/// What came of the copy of the manager, in a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Child {
    /// The child has no copy: the fork was made in another way.
    HasNone,
    /// The child goes on with the copy.
    GoesOn,
    /// The child cannot go on. Managed memory must not be accessed.
    Failed,
}

/// In the child, before anything else that may access managed memory: takes the copy over.
pub fn in_child(process: &'static Process) -> Child {
    let rest = RESTS.replace(std::ptr::null());
    if rest.is_null() {
        return Child::HasNone;
    }
    // SAFETY: as in `end_rest`; the memory is the child's copy, and leaked: a thread of ours reads it.
    let rest: &'static Rest = unsafe { &*rest };
    let late = rest.late != tree::late_forks();
    let whole = !late && !rest::is_given_up();
    if !whole {
        let why = if late { "the fork took too long" } else { TRANSFERS.why() };
        process.set_error(why.to_owned());
    }
    let verdict = match state::last_manager().filter(|_| whole) {
        Some(manager) => service::take_over(process, manager, rest),
        None if late => Verdict::Denied,
        None => Verdict::NotWhole,
    };
    close(rest);
    if let Some(trial) = ON_TRIAL.take() {
        // A child of a fork that took too long stays: it reports the reason when it accesses memory that it
        // lacks.
        let stays = verdict == Verdict::GoesOn || late;
        let given = trial.give(if stays { Verdict::GoesOn } else { verdict });
        if !given || !stays {
            sys::exit_group(0);
        }
    } else if verdict != Verdict::GoesOn && whole {
        service::report_failure(process);
    }
    release_signals();
    if verdict == Verdict::GoesOn { Child::GoesOn } else { Child::Failed }
}

/// Closes the descriptors that were opened in the program's file table.
fn close(rest: &Rest) {
    for (fd, _) in rest.opened() {
        // SAFETY: opened by `have_rest` for this.
        unsafe { sys::system_call(libc::SYS_close, fd as c_long) };
    }
}
