//! Calls that change the size of a file.

use crate::agent::resize;
use libc::{c_char, c_int, off_t};

export! {
    ftruncate(fd: c_int, len: off_t) -> c_int = resize::truncate_fd;
    ftruncate64(fd: c_int, len: off_t) -> c_int = resize::truncate_fd;
    truncate(path: *const c_char, len: off_t) -> c_int = resize::truncate_path;
    truncate64(path: *const c_char, len: off_t) -> c_int = resize::truncate_path;
    fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int = resize::allocate;
    fallocate64(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int = resize::allocate;
    posix_fallocate(fd: c_int, offset: off_t, len: off_t) -> c_int = resize::posix_allocate;
    posix_fallocate64(fd: c_int, offset: off_t, len: off_t) -> c_int = resize::posix_allocate;
}
