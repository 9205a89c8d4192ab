//! What happens before and after fork(2) and similar calls.
//!
//! A forked child has neither the service threads nor the windows, and finds
//! [`crate::base::state::Process`] wiped. If the child gets no copy of the manager, files that could be
//! stored to, watched files, and private memory are handed back to the kernel before the fork, and dirty
//! pages are written back: the child reads the files as its parent left them, and the two see each other's
//! stores.
//!
//! Synchronization: atomics, and one lock so that forks are made one after the other.

use crate::agent::flush::flush;
use crate::agent::ranges;
use crate::base::config::Fork;
use crate::base::real;
use crate::base::reserve;
use crate::base::run;
use crate::base::state;
use crate::base::stderr;
use crate::base::sys::{self, ADDRESS_END, Except, PAGE, SignalsBlocked};
use crate::base::tree;
use crate::base::word_lock::WordLock;
use crate::process::inherit::{self, Child, Way, refuse};
use crate::process::limits;
use crate::process::signals;
use elbowroom::Side;
use libc::c_int;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// Held by the thread that forks, from our hook before the fork to the one after it.
///
/// libc locks its list of hooks from the end of the last one until the fork is made, and within that its list
/// of streams. A thread that has a copy made takes the list of streams in the hook, before libc locks the
/// hooks again. So no other thread may be on its way from its hook to the list of streams.
static TURN: WordLock = WordLock::new();

thread_local! {
    /// How many forks of this thread are under way: a signal's handler may make one within another.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

fn take_turn() {
    let _blocked = SignalsBlocked::new(Except::LibcInternal);
    if DEPTH.replace(DEPTH.get() + 1) == 0 {
        TURN.lock();
    }
}

fn end_turn() {
    let _blocked = SignalsBlocked::new(Except::LibcInternal);
    DEPTH.set(DEPTH.get() - 1);
    if DEPTH.get() == 0 {
        TURN.unlock();
    }
}

/// Registers the handlers, once.
pub fn register() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn prepare() {
        take_turn();
        match state::process().map_or(Way::Kernel, inherit::begin) {
            Way::Kernel if before_fork() => {}
            // If the caller cannot be told, the child is made: an access to memory that it lacks ends it,
            // with a reason.
            Way::Kernel => {
                if refuse::in_hook(refuse::STAYS_MANAGED) {
                    after_fork();
                }
            }
            Way::Copies | Way::Refused => {}
        }
    }
    unsafe extern "C" fn parent() {
        if !refuse::is_refused() && !inherit::end() {
            after_fork();
        }
        end_turn();
    }
    unsafe extern "C" fn child() {
        if refuse::is_refused() {
            sys::exit_group(0);
        }
        in_child();
    }
    if REGISTERED.swap(true, Ordering::AcqRel) {
        return;
    }
    let [prepare, parent, child]: [unsafe extern "C" fn(); 3] = [prepare, parent, child];
    let none = std::ptr::null_mut();
    // SAFETY: the handlers stay valid: this library is never unloaded.
    unsafe { real::__register_atfork(prepare as *mut _, parent as *mut _, child as *mut _, none) };
}

/// Prepares for a child that gets a copy of this process from the kernel alone: it must read the files as
/// its parent left them, and the two must see each other's stores where the kernel lets them.
/// [`after_fork`] follows, in the parent, whether there is a child or not. `false`: some memory stays
/// managed, which the child would lack.
pub fn before_fork() -> bool {
    if let Some(process) = state::process() {
        process.fork_begins();
    }
    let given = ranges::hand_back_shared();
    flush();
    given
}

/// In the parent, after the fork.
pub fn after_fork() {
    if let Some(process) = state::process() {
        process.fork_ends();
    }
}

/// In the child, before it does anything else.
pub fn in_child() {
    // The heap first, since the following steps may allocate.
    reserve::in_child();
    DEPTH.set(0);
    TURN.reset();
    // SAFETY: this is the child's only thread, before it does anything else.
    unsafe { elbowroom_sync::epoch::after_fork() };
    // A fork by a thread of ours would be a bug, but even then the child's only thread must not be marked
    // as ours.
    state::set_service_thread(false);
    // A child has no locks of its parent's.
    state::LOCKS_FUTURE_MEMORY.store(false, Ordering::Release);
    let Some(process) = state::process() else { return };
    process.is_home();
    if let Some(member) = run::member() {
        member.become_child();
    }
    let copy = inherit::in_child(process);
    if copy != Child::GoesOn {
        tree::only_forked();
        if let Some(member) = run::member() {
            member.give_all();
        }
    }
    signals::after_fork();
    if copy != Child::GoesOn {
        // If copies are made, the windows may be mapped here, but not registered: another thread's fork may
        // be under way with its copy.
        let copies = state::options().is_some_and(|options| options.fork != Fork::Kernel);
        keep_windows_closed(if copies { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE });
        limits::settle();
    }
}

/// Reserves the addresses of the parent's windows without access, so that nothing the child maps can lie
/// where a stale pointer of the parent's points: such an access must fail, not read something else.
fn keep_windows_closed(place: c_int) {
    let Some(windows) = state::last_manager().map(|manager| manager.windows()) else { return };
    for (_, range) in windows.parts(PAGE..ADDRESS_END).filter(|(side, _)| *side == Side::Managed) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | place;
        let at = range.start as *mut libc::c_void;
        // SAFETY: nothing that is mapped is changed, but for the windows' own pages if `place` is MAP_FIXED.
        // If it fails, the addresses are in use already.
        let closed = unsafe { sys::mmap(at, range.len(), libc::PROT_NONE, flags, -1, 0) };
        if closed == libc::MAP_FAILED && place == libc::MAP_FIXED {
            // Without this, the child could read wrong bytes there.
            stderr::write(b"elbowroom: a forked child cannot give its parent's memory up\n");
            sys::exit_group(128 + libc::SIGABRT);
        }
    }
}
