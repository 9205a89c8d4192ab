//! What happens around fork(2) and what is like it.
//!
//! A forked child has neither the service threads nor the windows, and finds [`crate::base::state::Process`]
//! wiped. Before the fork, files that could be stored to, and watched ones, are handed back to the kernel,
//! and dirty pages are written back: the child reads the files as its parent left them, and the two see each
//! other's stores.
//!
//! Synchronization: atomics, and one lock so that forks are made one after the other.

use crate::agent::flush::flush;
use crate::agent::ranges;
use crate::base::config::Fork;
use crate::base::real;
use crate::base::reserve;
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

/// Whose fork it is, from our hook before it to the one after it.
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
            // If the caller cannot be told, the child finds out where it needs what it has not.
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

/// What comes before a child that gets a copy of this process: it must read the files as its parent left
/// them, and the two must see each other's stores where the kernel lets them. [`after_fork`] follows, in the
/// parent, whether there is a child or not. `false`: something stays managed, which the child would not have.
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
    // First, since the others may allocate.
    reserve::in_child();
    DEPTH.set(0);
    TURN.reset();
    // SAFETY: this is the child's only thread, before it does anything else.
    unsafe { elbowroom_sync::epoch::after_fork() };
    // The child of a thread of ours would be a bug, but its mark is not for a child's only thread.
    state::set_service_thread(false);
    // A child has no locks of its parent's.
    state::LOCKS_FUTURE_MEMORY.store(false, Ordering::Release);
    let Some(process) = state::process() else { return };
    process.is_home();
    let copy = inherit::in_child(process);
    if copy != Child::GoesOn {
        tree::only_forked();
    }
    signals::after_fork();
    if copy != Child::GoesOn {
        // With copies they may be there, and not registered: another thread may be making one.
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
            // Nothing may be read there.
            stderr::write(b"elbowroom: a forked child cannot give its parent's memory up\n");
            sys::exit_group(128 + libc::SIGABRT);
        }
    }
}
