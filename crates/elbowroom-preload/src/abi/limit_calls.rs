//! getrlimit, setrlimit and prlimit.

use crate::process::limit_calls;
use libc::{c_int, c_uint, pid_t, rlimit};

export! {
    getrlimit(resource: c_uint, old: *mut rlimit) -> c_int = limit_calls::get;
    getrlimit64(resource: c_uint, old: *mut rlimit) -> c_int = limit_calls::get;
    setrlimit(resource: c_uint, new: *const rlimit) -> c_int = limit_calls::set;
    setrlimit64(resource: c_uint, new: *const rlimit) -> c_int = limit_calls::set;
    prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int
        = limit_calls::change;
    prlimit64(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int
        = limit_calls::change;
}
