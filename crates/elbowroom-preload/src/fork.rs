//! What happens around fork(2) and what is like it.
//!
//! A forked child has neither the service threads nor the windows, and finds [`crate::state::Process`] wiped.
//! Before the fork, files that could be stored to, and watched ones, are handed back to the kernel, and dirty
//! pages are written back: the child reads the files as its parent left them, and the two see each other's
//! stores.
//!
//! The processes of a tree that forked and did nothing more are counted, since nothing is managed in them:
//! every fork counts one, and a forked process that executes a program or gets a manager counts itself out.
//! The counter is in memory that all of them share; a program that is executed starts its own.
//!
//! Synchronization: atomics, and one lock so that forks are made one after the other.

use crate::config::Fork;
use crate::end;
use crate::inherit::{self, Child, Way, refuse};
use crate::interpose;
use crate::real;
use crate::reserve;
use crate::signals;
use crate::state;
use crate::sys::{self, Except, PAGE, SignalsBlocked};
use crate::word_lock::WordLock;
use elbowroom::Side;
use libc::c_int;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, Ordering};

/// No address of a program is above this.
const ADDRESS_END: usize = 1 << 47;

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());
/// This process is one of them.
static IS_ONLY_FORKED: AtomicBool = AtomicBool::new(false);

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
            Way::Kernel => before_fork(),
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

/// Registers the handlers, and makes what processes share. Called by the constructor.
pub fn set_up() {
    register();
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, wherever the kernel puts it.
    let page = unsafe { sys::mmap(std::ptr::null_mut(), PAGE, prot, flags, -1, 0) };
    if page != libc::MAP_FAILED {
        SHARED.store(page.cast(), Ordering::Release);
    }
}

/// In memory that all processes of the tree share. All zero is the start.
#[repr(C)]
struct Shared {
    /// Those that were forked and neither executed a program nor got a manager.
    only_forked: AtomicI64,
    /// Forks that took too long to be made while a manager rested.
    late_forks: AtomicI64,
}

fn shared() -> Option<&'static Shared> {
    // SAFETY: null, or the page of `set_up`, which is never unmapped; all of it is atomics.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// How many forks of this tree took too long while a manager rested for them. Their children have no copy
/// that is whole, and find the number changed.
pub fn late_forks() -> i64 {
    shared().map_or(1, |shared| shared.late_forks.load(Ordering::SeqCst))
}

/// A fork takes too long.
pub fn note_late() {
    if let Some(shared) = shared() {
        shared.late_forks.fetch_add(1, Ordering::SeqCst);
    }
}

/// What comes before a child that gets a copy of this process: it must read the files as its parent left
/// them, and the two must see each other's stores where the kernel lets them. [`after_fork`] follows, in the
/// parent, whether there is a child or not.
pub fn before_fork() {
    if let Some(process) = state::process() {
        process.fork_begins();
    }
    interpose::hand_back_shared();
    end::flush();
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
    let Some(process) = state::process() else { return };
    process.is_home();
    let copy = inherit::in_child(process);
    if copy != Child::GoesOn {
        count(1);
        IS_ONLY_FORKED.store(true, Ordering::Release);
    }
    signals::after_fork();
    if copy != Child::GoesOn {
        // With copies they may be there, and not registered: another thread may be making one.
        let copies = state::options().is_some_and(|options| options.fork != Fork::Kernel);
        keep_windows_closed(if copies { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE });
    }
}

fn count(change: i64) {
    if let Some(shared) = shared() {
        shared.only_forked.fetch_add(change, Ordering::AcqRel);
    }
}

/// How many processes of this tree were forked, and then neither executed a program nor got a manager. A
/// child that is about to do so counts until it has.
pub fn unmanaged_children() -> u64 {
    shared().map_or(0, |shared| shared.only_forked.load(Ordering::Acquire).try_into().unwrap_or(0))
}

/// This process has a manager: it is not among those that only forked.
pub fn now_managed() {
    leave();
}

/// This process is about to execute a program. Gives what [`came_back`] wants.
pub fn about_to_exec() -> bool {
    leave()
}

/// The program was not executed.
pub fn came_back(left: bool) {
    if left {
        IS_ONLY_FORKED.store(true, Ordering::Release);
        count(1);
    }
}

/// Counts this process out, if it is not a child that shares the memory of one that is counted.
fn leave() -> bool {
    let left = IS_ONLY_FORKED.load(Ordering::Acquire)
        && state::process().is_some_and(|process| process.is_home())
        && IS_ONLY_FORKED.swap(false, Ordering::AcqRel);
    if left {
        count(-1);
    }
    left
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
            sys::write_stderr(b"elbowroom: a forked child cannot give its parent's memory up\n");
            sys::exit_group(128 + libc::SIGABRT);
        }
    }
}
