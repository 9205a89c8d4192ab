//! getrlimit, setrlimit and prlimit: the limits of address space and data are virtual where we have reserved
//! some of it (see [`crate::limits`]).

use crate::limits;
use crate::real;
use crate::state;
use crate::sys;
use libc::{c_int, c_uint, pid_t, rlimit};

export! {
    getrlimit(resource: c_uint, old: *mut rlimit) -> c_int = get;
    getrlimit64(resource: c_uint, old: *mut rlimit) -> c_int = get;
    setrlimit(resource: c_uint, new: *const rlimit) -> c_int = set;
    setrlimit64(resource: c_uint, new: *const rlimit) -> c_int = set;
    prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int = change;
    prlimit64(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int = change;
}

unsafe fn get(resource: c_uint, old: *mut rlimit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { change(0, resource, std::ptr::null(), old) }
}

unsafe fn set(resource: c_uint, new: *const rlimit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { change(0, resource, new, std::ptr::null_mut()) }
}

unsafe fn change(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
    let about_self = pid == 0 || pid.cast_unsigned() == sys::getpid();
    if !about_self || state::for_program().is_none() || !limits::is_virtual(resource.cast_signed()) {
        // SAFETY: the caller's promise.
        return unsafe { real::prlimit64(pid, resource, new, old) };
    }
    let mut asked = rlimit { rlim_cur: 0, rlim_max: 0 };
    if !new.is_null() && !sys::copy_in(new, &mut asked) {
        return sys::fail(libc::EFAULT);
    }
    match limits::virtual_limit(resource.cast_signed(), (!new.is_null()).then_some(asked)) {
        None => -1,
        Some(was) if !old.is_null() && !sys::copy_out(&was, old) => sys::fail(libc::EFAULT),
        Some(_) => 0,
    }
}
