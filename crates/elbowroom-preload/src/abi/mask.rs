//! The signal mask, and what changes it.

use crate::base::real;
use crate::process::mask::{self, Jump};
use libc::c_int;

export! {
    sigprocmask(how: c_int, set: *const u64, old: *mut u64) -> c_int = mask::change_or_fail;
    pthread_sigmask(how: c_int, set: *const u64, old: *mut u64) -> c_int = mask::change;
    siglongjmp(env: Jump, value: c_int) -> c_int = |env, value| mask::jump(real::siglongjmp, env, value);
    longjmp(env: Jump, value: c_int) -> c_int = |env, value| mask::jump(real::longjmp, env, value);
    _longjmp(env: Jump, value: c_int) -> c_int = |env, value| mask::jump(real::_longjmp, env, value);
    __longjmp_chk(env: Jump, value: c_int) -> c_int
        = |env, value| mask::jump(real::__longjmp_chk, env, value);
}
