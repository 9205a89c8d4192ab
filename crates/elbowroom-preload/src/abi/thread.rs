//! What threads do at their end: only the library's own are done here. (process/mask.rs has their start.)

use crate::base::reserve;
use libc::{c_int, c_void};

export! {
    __cxa_thread_atexit_impl(destructor: *const c_void, object: *mut c_void, dso: *mut c_void) -> c_int
        = reserve::at_thread_exit;
}
