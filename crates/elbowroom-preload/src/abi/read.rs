//! The read family.

use crate::agent::read;
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};

export! {
    read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t = read::read_cursor;
    __read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t = read::read_cursor;
    __read_chk(fd: c_int, to: *mut c_void, len: size_t, room: size_t) -> ssize_t = read::read_checked;
    pread(fd: c_int, to: *mut c_void, len: size_t, offset: off_t) -> ssize_t = read::read_at;
    pread64(fd: c_int, to: *mut c_void, len: size_t, offset: off_t) -> ssize_t = read::read_at;
    __pread64(fd: c_int, to: *mut c_void, len: size_t, offset: off_t) -> ssize_t = read::read_at;
    __pread_chk(fd: c_int, to: *mut c_void, len: size_t, offset: off_t, room: size_t) -> ssize_t
        = read::read_at_checked;
    __pread64_chk(fd: c_int, to: *mut c_void, len: size_t, offset: off_t, room: size_t) -> ssize_t
        = read::read_at_checked;
    readv(fd: c_int, to: *const iovec, n: c_int) -> ssize_t = read::read_parts;
    preadv(fd: c_int, to: *const iovec, n: c_int, offset: off_t) -> ssize_t = read::read_parts_at;
    preadv64(fd: c_int, to: *const iovec, n: c_int, offset: off_t) -> ssize_t = read::read_parts_at;
    preadv2(fd: c_int, to: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t
        = read::read_parts_with;
    preadv64v2(fd: c_int, to: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t
        = read::read_parts_with;
}
