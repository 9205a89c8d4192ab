//! The write family.

use crate::agent::write;
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};

export! {
    write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t = write::write_cursor;
    __write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t = write::write_cursor;
    pwrite(fd: c_int, from: *const c_void, len: size_t, offset: off_t) -> ssize_t = write::write_at;
    pwrite64(fd: c_int, from: *const c_void, len: size_t, offset: off_t) -> ssize_t = write::write_at;
    __pwrite64(fd: c_int, from: *const c_void, len: size_t, offset: off_t) -> ssize_t = write::write_at;
    writev(fd: c_int, from: *const iovec, n: c_int) -> ssize_t = write::write_parts;
    pwritev(fd: c_int, from: *const iovec, n: c_int, offset: off_t) -> ssize_t = write::write_parts_at;
    pwritev64(fd: c_int, from: *const iovec, n: c_int, offset: off_t) -> ssize_t = write::write_parts_at;
    pwritev2(fd: c_int, from: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t
        = write::write_parts_with;
    pwritev64v2(fd: c_int, from: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t
        = write::write_parts_with;
}
