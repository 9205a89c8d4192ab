//! process_madvise.

use crate::agent::advise;
use libc::{c_int, c_uint, iovec, size_t, ssize_t};

export! {
    process_madvise(pidfd: c_int, parts: *const iovec, n: size_t, advice: c_int, flags: c_uint) -> ssize_t
        = advise::advise;
}
