//! What happens before a signal ends the process.
//!
//! Dirty pages are written back and the end is reported; then the disposition becomes the kernel's SIG_DFL
//! and the signal happens again, with the same siginfo, so that the wait status, the core dump and its
//! registers are those of the program.
//!
//! This is also called in a forked child that accesses managed memory of its parent which it lacks: a line
//! explains that before the child dies.

use super::kernel::set_default;
use super::kind::is_synchronous;
use crate::base::report::Buffer;
use crate::base::state;
use crate::base::stderr;
use crate::base::sys;
use crate::process::{core_dump, end};
use libc::{c_int, siginfo_t};
use std::fmt::Write;

/// A memory error that was found in the background: no instruction would meet it again.
const BUS_MCEERR_AO: c_int = 5;

/// Called by our handler, with all signals blocked, or at least this one.
pub fn happens(signal: c_int, info: *mut siginfo_t) {
    let kept = sys::errno();
    // SAFETY: the kernel gives a valid siginfo.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if sys::getpid() == 1 && !(is_synchronous(signal) && code > 0) {
        // The kernel does not end process 1 by such a signal.
        return;
    }
    if state::process().is_some_and(|process| process.is_home()) {
        if signal == libc::SIGSEGV && code > 0 && state::alive().is_none() {
            explain_child_fault(address);
        }
        end::process_ends();
        core_dump::prepare(signal, (is_synchronous(signal) && code > 0).then_some(address));
    }
    set_default(signal);
    let faulted = matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL);
    let by_instruction = faulted && code > 0 && !(signal == libc::SIGBUS && code == BUS_MCEERR_AO);
    if !by_instruction {
        raise_again(signal, info);
    }
    sys::set_errno(kept);
}

/// Queues the same signal to this thread. The signal is blocked while the handler runs, and takes effect
/// when the handler returns.
fn raise_again(signal: c_int, info: *mut siginfo_t) {
    let (pid, tid) = (sys::getpid() as libc::c_long, sys::gettid() as libc::c_long);
    // SAFETY: the siginfo is the kernel's own; to itself a thread may queue any.
    unsafe {
        if sys::system_call(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal as libc::c_long, info) != 0 {
            sys::system_call(libc::SYS_tgkill, pid, tid, signal as libc::c_long);
        }
    }
}

/// Not inlined, so that the buffer is not on the stack of every end.
#[inline(never)]
fn explain_child_fault(address: usize) {
    if !state::last_manager().is_some_and(|manager| manager.windows().intersects(address, 1)) {
        return;
    }
    let mut text = Buffer::<320>::new();
    let _ = write!(text, "elbowroom: a forked child touched managed memory (address {address:#x}); ");
    let _ = match state::process().and_then(|process| process.error()) {
        Some(why) => writeln!(text, "it has no copy: {why}"),
        None => writeln!(text, "only fork + exec is supported"),
    };
    stderr::write(text.as_bytes());
}
