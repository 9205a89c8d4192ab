//! Signals whose default action ends the process.
//!
//! Once a mapping is managed, such an end must not lose stores, nor the report. So every signal of that kind
//! whose disposition is SIG_DFL gets [`on_fatal_signal`], and the program is not to notice: sigaction(2) and
//! its relatives (interpose/signal.rs) report SIG_DFL where our handler is, and put our handler where the
//! program sets SIG_DFL. The handler writes back, reports, restores SIG_DFL and lets the signal happen again,
//! with the same siginfo, so that the wait status, the core dump and its registers are those of the program.
//!
//! The same handler serves a forked child that touches what was managed memory of its parent: that is said
//! before the child dies.
//!
//! Synchronization: dispositions are swapped by the kernel; beside them are only the flags and the mask that
//! the program gave with SIG_DFL, in atomics.

use crate::end;
use crate::real;
use crate::state;
use crate::summary::Buffer;
use crate::sys;
use libc::{c_int, c_void, siginfo_t};
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

const SIGNALS: usize = 65;

static ARMED: AtomicBool = AtomicBool::new(false);
/// What the program gave along with SIG_DFL.
static DEFAULT_FLAGS: [AtomicI32; SIGNALS] = [const { AtomicI32::new(0) }; SIGNALS];
static DEFAULT_MASKS: [AtomicU64; SIGNALS] = [const { AtomicU64::new(0) }; SIGNALS];

/// Whether the default action of the signal ends the process, and a handler can be set for it.
pub fn is_fatal(signal: c_int) -> bool {
    match signal {
        libc::SIGKILL | libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => false,
        libc::SIGCHLD | libc::SIGCONT | libc::SIGURG | libc::SIGWINCH => false,
        // 32 and 33 are libc's own.
        1..=31 | 34..=64 => true,
        _ => false,
    }
}

/// Whether SIG_DFL is virtual now.
pub fn armed() -> bool {
    ARMED.load(Ordering::Acquire)
}

/// Installs the handler for all signals that would end the process. Once is enough for a process and its
/// children.
pub fn arm() {
    if armed() || ARMED.swap(true, Ordering::AcqRel) {
        return;
    }
    for signal in (1..SIGNALS as c_int).filter(|signal| is_fatal(*signal)) {
        arm_one(signal);
    }
}

/// Installs the handler for one signal, if its disposition is SIG_DFL.
fn arm_one(signal: c_int) {
    let Some(before) = exchange(signal, None) else { return };
    if before.sa_sigaction != libc::SIG_DFL {
        return;
    }
    remember_default(signal, &before);
    // Another thread may have set a disposition in between: it gets it back.
    if let Some(replaced) = exchange(signal, Some(&ours()))
        && replaced.sa_sigaction != libc::SIG_DFL
        && !is_ours(&replaced)
    {
        exchange(signal, Some(&replaced));
    }
}

/// After a fork: the SIGSEGV of a child that touches its parent's managed memory must be explained.
pub fn arm_for_child() {
    arm_one(libc::SIGSEGV);
}

fn ours() -> libc::sigaction {
    // SAFETY: all zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_fatal_signal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the set is valid.
    unsafe { libc::sigfillset(&mut action.sa_mask) };
    action
}

/// Whether a disposition is our handler.
pub fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == on_fatal_signal as *const () as usize
}

/// sigaction(2) as libc has it.
fn exchange(signal: c_int, new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    // SAFETY: all zero is a valid `sigaction`.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    let kept = sys::errno();
    // SAFETY: both are null or valid; our handler may run at any time.
    let r = unsafe { real::sigaction(signal, new, &mut old) };
    sys::set_errno(kept);
    (r == 0).then_some(old)
}

fn remember_default(signal: c_int, action: &libc::sigaction) {
    DEFAULT_FLAGS[signal as usize].store(action.sa_flags, Ordering::Relaxed);
    // SAFETY: a `sigset_t` begins with the 64 bits that the kernel knows.
    let mask = unsafe { std::ptr::from_ref(&action.sa_mask).cast::<u64>().read() };
    DEFAULT_MASKS[signal as usize].store(mask, Ordering::Relaxed);
}

/// sigaction(2) as the program sees it.
///
/// # Safety
/// As sigaction(2): the pointers are null or valid.
pub unsafe fn virtual_sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !is_fatal(signal) {
        // SAFETY: the caller's promise.
        return unsafe { real::sigaction(signal, new, old) };
    }
    // SAFETY: the caller's promise. Read before `old` is written: they may be the same.
    let asked = unsafe { new.as_ref() }.copied();
    let set = match asked {
        Some(action) if action.sa_sigaction == libc::SIG_DFL && armed() => Some(ours()),
        other => other,
    };
    // SAFETY: `old` is null or valid; the other pointer is ours.
    let r =
        unsafe { real::sigaction(signal, set.as_ref().map_or(std::ptr::null(), std::ptr::from_ref), old) };
    // SAFETY: the caller's promise.
    if let (0, Some(old)) = (r, unsafe { old.as_mut() })
        && is_ours(old)
    {
        old.sa_sigaction = libc::SIG_DFL;
        old.sa_flags = DEFAULT_FLAGS[signal as usize].load(Ordering::Relaxed);
        // SAFETY: as in `remember_default`.
        unsafe {
            libc::sigemptyset(&mut old.sa_mask);
            let mask = DEFAULT_MASKS[signal as usize].load(Ordering::Relaxed);
            (&raw mut old.sa_mask).cast::<u64>().write(mask);
        }
    }
    if let (0, Some(action)) = (r, asked)
        && action.sa_sigaction == libc::SIG_DFL
    {
        remember_default(signal, &action);
    }
    r
}

/// After libc's signal(3) or a relative: what the program is told was there, and our handler again where it
/// set SIG_DFL.
pub fn virtual_result(signal: c_int, set: usize, was: usize) -> usize {
    if armed() && is_fatal(signal) && set == libc::SIG_DFL {
        arm_one(signal);
    }
    if was == on_fatal_signal as *const () as usize { libc::SIG_DFL } else { was }
}

extern "C" fn on_fatal_signal(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    let kept = sys::errno();
    // SAFETY: the kernel gives a valid siginfo.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if state::process().is_some_and(|process| process.is_home()) {
        if signal == libc::SIGSEGV && code > 0 && state::alive().is_none() {
            explain_child_fault(address);
        }
        end::process_ends();
    }
    // SAFETY: all zero is a valid `sigaction`: SIG_DFL, no flags.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    exchange(signal, Some(&default));
    let faulted = matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL);
    let by_instruction = faulted && code > 0 && !(signal == libc::SIGBUS && code == BUS_MCEERR_AO);
    if !by_instruction {
        raise_again(signal, info);
    }
    sys::set_errno(kept);
}

/// A memory error that was found in the background: no instruction would meet it again.
const BUS_MCEERR_AO: c_int = 5;

/// Queues the same signal to this thread. It is blocked while the handler runs, and happens when the handler
/// returns.
fn raise_again(signal: c_int, info: *mut siginfo_t) {
    let (pid, tid) = (sys::getpid() as libc::c_long, sys::gettid() as libc::c_long);
    // SAFETY: the siginfo is the kernel's own; to itself a thread may queue any.
    unsafe {
        if libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal as libc::c_long, info) != 0 {
            libc::syscall(libc::SYS_tgkill, pid, tid, signal as libc::c_long);
        }
    }
}

fn explain_child_fault(address: usize) {
    if !state::last_manager().is_some_and(|manager| manager.windows().intersects(address, 1)) {
        return;
    }
    let mut text = Buffer::<160>::new();
    let _ = writeln!(
        text,
        "elbowroom: a forked child touched managed memory (address {address:#x}); only fork + exec is supported"
    );
    sys::write_stderr(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signals_are_those_that_end_a_process() {
        let fatal = [libc::SIGSEGV, libc::SIGTERM, libc::SIGUSR1, libc::SIGPIPE, libc::SIGSYS, 34, 64];
        assert!(fatal.into_iter().all(is_fatal));
        let not = [0, 65, 32, 33, libc::SIGKILL, libc::SIGSTOP, libc::SIGCHLD, libc::SIGWINCH, libc::SIGTSTP];
        assert!(!not.into_iter().any(is_fatal));
    }
}
