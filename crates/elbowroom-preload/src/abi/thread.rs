//! The start of threads, and destructors at their end (only those of the library's own threads are kept
//! here).

use crate::base::reserve;
use crate::process::threads;
use libc::{c_int, c_void};

export! {
    pthread_create(thread: *mut libc::pthread_t, attributes: *const libc::pthread_attr_t,
        start: *const c_void, argument: *mut c_void) -> c_int = threads::create;
    thrd_create(thread: *mut libc::pthread_t, start: *const c_void, argument: *mut c_void) -> c_int
        = threads::create_int;
    __cxa_thread_atexit_impl(destructor: *const c_void, object: *mut c_void, dso: *mut c_void) -> c_int
        = reserve::at_thread_exit;
}
