//! The signal mask, and the jumps that change it. It is virtual for signals that instructions raise (see
//! [`crate::process::signals::blocked`]).

use crate::base::sys;
use crate::process::signals::{arm_synchronous, blocked};
use libc::{c_int, c_void};

pub type Jump = *mut c_void;

/// A `sigset_t` begins with the kernel's 64 bits, and libc's functions write no more of it.
pub unsafe fn change(how: c_int, set: *const u64, old: *mut u64) -> c_int {
    // SAFETY: the caller's promise: null or valid.
    let asked = unsafe { set.as_ref() }.copied();
    if blocked::blocks_more(how, asked) {
        arm_synchronous();
    }
    match blocked::change(how, asked) {
        Ok(before) => {
            // SAFETY: as above.
            if let Some(old) = unsafe { old.as_mut() } {
                *old = before;
            }
            0
        }
        Err(errno) => errno,
    }
}

pub unsafe fn change_or_fail(how: c_int, set: *const u64, old: *mut u64) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { change(how, set, old) } {
        0 => 0,
        errno => sys::fail(errno),
    }
}

pub unsafe fn jump(real: unsafe fn(Jump, c_int) -> c_int, env: Jump, value: c_int) -> c_int {
    // SAFETY: the caller's promise. This frame has nothing that needs dropping.
    unsafe {
        blocked::jumps(env);
        real(env, value)
    }
}
