//! getrlimit, setrlimit and prlimit: the limits of address space and data are virtual where we have reserved
//! some of it (see [`crate::process::limits`]).

use crate::agent::ranges::hand_back_shared;
use crate::base::real;
use crate::base::state;
use crate::base::sys::{self, Except, SignalsBlocked};
use crate::process::limits;
use libc::{c_int, c_uint, pid_t, rlimit};

pub unsafe fn get(resource: c_uint, old: *mut rlimit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { change(0, resource, std::ptr::null(), old) }
}

pub unsafe fn set(resource: c_uint, new: *const rlimit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { change(0, resource, new, std::ptr::null_mut()) }
}

/// Hands files back before the number of descriptors is cut for good. A watch on a file needs one of our
/// descriptors for each open by another process: without one the kernel denies the open. So watched files
/// must go back.
fn before_fewer_descriptors(new: *const rlimit) {
    let mut asked = rlimit { rlim_cur: 0, rlim_max: 0 };
    let mut is = rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is valid for the call.
    let known = unsafe { real::prlimit64(0, libc::RLIMIT_NOFILE, std::ptr::null(), &mut is) } == 0;
    if !new.is_null() && sys::copy_in(new, &mut asked) && known && asked.rlim_max < is.rlim_max {
        hand_back_shared();
    }
}

/// The program sees and sets its own limit, not the one that our threads raise for a moment.
unsafe fn change_descriptors(new: *const rlimit, old: *mut rlimit) -> c_int {
    let mut asked = rlimit { rlim_cur: 0, rlim_max: 0 };
    let mut was = rlimit { rlim_cur: 0, rlim_max: 0 };
    if !new.is_null() && !sys::copy_in(new, &mut asked) {
        return sys::fail(libc::EFAULT);
    }
    let from = if new.is_null() { new } else { &raw const asked };
    // A signal handler that asks for the limit would wait for the thread that it has interrupted.
    let blocked = SignalsBlocked::new(Except::Nothing);
    let to = &raw mut was;
    // SAFETY: both limits are valid for the call, or the new one is null.
    let call = || unsafe { real::prlimit64(0, libc::RLIMIT_NOFILE, from, to) };
    let changed = elbowroom::with_own_limit(call);
    drop(blocked);
    if changed == 0 && !old.is_null() && !sys::copy_out(&was, old) {
        return sys::fail(libc::EFAULT);
    }
    changed
}

pub unsafe fn change(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
    let about_self = pid == 0 || pid.cast_unsigned() == sys::getpid();
    let is_ours = || state::alive().is_some_and(|(process, _)| process.is_home());
    if about_self && resource == libc::RLIMIT_NOFILE && is_ours() {
        let kept = sys::errno();
        before_fewer_descriptors(new);
        sys::set_errno(kept);
        // SAFETY: the caller's promise.
        return unsafe { change_descriptors(new, old) };
    }
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
