//! Transfers inside the kernel.

use crate::agent::transfer;
use libc::{c_int, c_uint, off_t, size_t, ssize_t};

export! {
    copy_file_range(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t,
        flags: c_uint) -> ssize_t = transfer::copy_range;
    sendfile(to: c_int, from: c_int, from_at: *mut off_t, len: size_t) -> ssize_t = transfer::send;
    sendfile64(to: c_int, from: c_int, from_at: *mut off_t, len: size_t) -> ssize_t = transfer::send;
    splice(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: c_uint)
        -> ssize_t = transfer::join;
}
