//! Calls that may end their thread (by cancellation) while something is held that must be given back.
//!
//! A thread that is cancelled unwinds by force, and must not meet a value to drop. glibc keeps a list of
//! functions for that, which it calls when it passes the frame of their buffer; POSIX' pthread_cleanup_push
//! is a macro over the same functions.

use libc::{c_int, c_void};
use std::mem::MaybeUninit;

/// glibc's `struct _pthread_cleanup_buffer`.
#[repr(C)]
struct Buffer {
    routine: Routine,
    argument: *mut c_void,
    kind: c_int,
    before: *mut Buffer,
}

/// Gives something back.
pub type Routine = unsafe extern "C" fn(*mut c_void);

unsafe extern "C" {
    fn _pthread_cleanup_push(buffer: *mut Buffer, routine: Routine, argument: *mut c_void);
    fn _pthread_cleanup_pop(buffer: *mut Buffer, execute: c_int);
}

/// Makes a call. If the thread ends in it, `routine` is called with `argument`; else the caller does what is
/// to be done.
///
/// # Safety The routine may be called with the argument as long as the call is under way. The call has no
/// values to drop.
pub unsafe fn with_cleanup<R>(routine: Routine, argument: *mut c_void, call: impl FnOnce() -> R) -> R {
    let mut buffer = MaybeUninit::uninit();
    // SAFETY: the buffer lives until it is popped, in this frame.
    unsafe { _pthread_cleanup_push(buffer.as_mut_ptr(), routine, argument) };
    let result = call();
    // SAFETY: it was pushed last.
    unsafe { _pthread_cleanup_pop(buffer.as_mut_ptr(), 0) };
    result
}
