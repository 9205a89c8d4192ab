//! sigaction and relatives: dispositions are virtual where our handler stands in front (see
//! [`crate::process::signals`]).

use crate::base::real;
use crate::process::signals::{self, virtual_signal};
use libc::c_int;

export! {
    sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int
        = signals::virtual_sigaction;
    signal(number: c_int, handler: usize) -> usize = |n, h| virtual_signal(real::signal, n, h);
    bsd_signal(number: c_int, handler: usize) -> usize = |n, h| virtual_signal(real::bsd_signal, n, h);
    ssignal(number: c_int, handler: usize) -> usize = |n, h| virtual_signal(real::ssignal, n, h);
    sysv_signal(number: c_int, handler: usize) -> usize = |n, h| virtual_signal(real::sysv_signal, n, h);
    __sysv_signal(number: c_int, handler: usize) -> usize = |n, h| virtual_signal(real::__sysv_signal, n, h);
    sigset(number: c_int, handler: usize) -> usize = |n, h| virtual_signal(real::sigset, n, h);
}
