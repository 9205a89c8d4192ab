//! The start of threads, and what they do at their end: only the library's own are done here.

use crate::reserve;
use libc::{c_int, c_void, pthread_attr_t, pthread_t};

export! {
    pthread_create(thread: *mut pthread_t, attributes: *const pthread_attr_t, start: *const c_void,
        argument: *mut c_void) -> c_int = reserve::create_thread;
    __cxa_thread_atexit_impl(destructor: *const c_void, object: *mut c_void, dso: *mut c_void) -> c_int
        = reserve::at_thread_exit;
}
