//! The signal mask, and what changes it without being asked: it is virtual for signals that instructions
//! raise (see [`crate::process::signals::blocked`]).

use crate::base::real;
use crate::base::reserve;
use crate::base::state;
use crate::base::sys::{self, Except, SignalsBlocked};
use crate::process::signals::{arm_synchronous, blocked};
use libc::{c_int, c_void};

pub type Jump = *mut c_void;
type Start = *const c_void;

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

/// What a thread is to run, and the virtual mask that it inherits.
struct Created {
    start: unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
    mask: u64,
}

/// Uses the library's heap on a thread of the program's: no handler may interrupt that, which could wait for
/// a thread of ours that wants the heap.
fn alone<R>(call: impl FnOnce() -> R) -> R {
    let _blocked = SignalsBlocked::new(Except::Nothing);
    call()
}

unsafe extern "C-unwind" fn created(what: *mut c_void) -> *mut c_void {
    // SAFETY: `create_thread` made it for this thread.
    let Created { start, argument, mask } = alone(|| *unsafe { Box::from_raw(what.cast::<Created>()) });
    blocked::inherit(mask);
    // SAFETY: the program's own function and argument.
    unsafe { start(argument) }
}

pub unsafe fn create_thread(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let mask = blocked::mask();
    if mask == 0 || start.is_null() || state::for_program().is_none() {
        // Threads of ours get their stacks from the reserve.
        // SAFETY: the caller's promise.
        return unsafe { reserve::create_thread(thread, attributes, start, argument) };
    }
    // SAFETY: a function pointer of the program's, which is not null.
    let start = unsafe {
        std::mem::transmute::<Start, unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void>(start)
    };
    let what = alone(|| Box::into_raw(Box::new(Created { start, argument, mask })));
    // SAFETY: the caller's promise; the thread takes `what`.
    let r = unsafe { real::pthread_create(thread, attributes, created as *const c_void, what.cast()) };
    if r != 0 {
        // SAFETY: no thread has taken it.
        alone(|| drop(unsafe { Box::from_raw(what) }));
    }
    r
}
