//! Core dumps of managed memory, which the kernel leaves out as it is: docs/limits.md has the rules.
//!
//! Before a signal ends the process with a core dump, a service thread gives managed memory to the kernel,
//! as much as there is free memory for. Of the rest, the dump has the pages that are in memory. A debugger
//! can have the same done by [`for_debugger`].

use crate::agent::request::{self, Answer, Op};
use crate::base::config::Core;
use crate::base::said;
use crate::base::state;
use crate::base::sys;
use libc::{c_int, c_long};

/// The signals whose default is a core dump: signal(7).
const DUMPING: [c_int; 10] = [
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGSYS,
];

/// To be called before the signal ends the process; `address`: where an access has failed.
pub fn prepare(signal: c_int, address: Option<usize>) {
    let Some(core) = state::options().map(|options| options.core).filter(|core| *core != Core::None) else {
        return;
    };
    let Some((process, _)) = state::alive().filter(|(process, _)| process.is_home()) else { return };
    let Some(largest) = most_bytes().filter(|_| DUMPING.contains(&signal)) else { return };
    let most_bytes = if core == Core::Resident { 0 } else { largest };
    if let Ok(Answer::Text(text)) = request::submit(process, Op::MakeDumpable { most_bytes, address })
        && !text.is_empty()
    {
        said::say(format_args!("{text}"));
    }
}

/// To be called by a debugger: gives managed memory to the kernel, as far as there is free memory, so that
/// the debugger can read it. 0: all of it; 1: not all; -1: nothing is managed, or this is a thread of ours,
/// or a child that shares memory.
///
/// # Safety
/// None is needed: it is as libc's functions are.
pub unsafe fn for_debugger() -> c_int {
    let Some((process, _)) = state::alive().filter(|(process, _)| process.is_home()) else { return -1 };
    match request::submit(process, Op::MakeDumpable { most_bytes: u64::MAX, address: None }) {
        Ok(Answer::Text("")) => 0,
        Ok(_) => 1,
        Err(_) => -1,
    }
}

/// How large a core dump may be, in bytes; `None`: there will be none.
fn most_bytes() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let mut pattern = [0; 1];
    // SAFETY: the kernel writes one `rlimit`; the others are integers.
    let dumpable = unsafe {
        sys::system_call(libc::SYS_getrlimit, libc::RLIMIT_CORE as c_long, &raw mut limit);
        sys::system_call(libc::SYS_prctl, libc::PR_GET_DUMPABLE as c_long, 0, 0, 0, 0)
    };
    // The limit does not apply if core dumps go to a program.
    let is_piped = sys::read_file(b"/proc/sys/kernel/core_pattern\0", &mut pattern) == Some(b"|");
    let most = if is_piped { u64::MAX } else { limit.rlim_cur };
    (dumpable == 1 && most > 0).then_some(most)
}
