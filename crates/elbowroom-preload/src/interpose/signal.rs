//! sigaction and relatives: SIG_DFL is virtual where our handler stands in for it (see [`crate::signals`]).

use crate::real;
use crate::signals;
use libc::c_int;

export! {
    sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int
        = signals::virtual_sigaction;
    signal(number: c_int, handler: usize) -> usize = |n, h| set(real::signal, n, h);
    bsd_signal(number: c_int, handler: usize) -> usize = |n, h| set(real::bsd_signal, n, h);
    ssignal(number: c_int, handler: usize) -> usize = |n, h| set(real::ssignal, n, h);
    sysv_signal(number: c_int, handler: usize) -> usize = |n, h| set(real::sysv_signal, n, h);
    __sysv_signal(number: c_int, handler: usize) -> usize = |n, h| set(real::__sysv_signal, n, h);
    sigset(number: c_int, handler: usize) -> usize = |n, h| set(real::sigset, n, h);
}

unsafe fn set(real: unsafe fn(c_int, usize) -> usize, signal: c_int, handler: usize) -> usize {
    // SAFETY: the caller's promise.
    let was = unsafe { real(signal, handler) };
    signals::virtual_result(signal, handler, was)
}
