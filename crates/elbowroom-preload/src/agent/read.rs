//! The read family: stores through mappings must be seen by it.

use crate::agent::coherence::{self, At, Given, Way};
use crate::agent::user_mode;
use crate::base::real;
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};

/// A read. `real` is libc's own: for files that are not managed, and for calls that the kernel will refuse.
fn read_to(fd: c_int, to: Given, at: Option<At>, flags: c_int, real: impl FnMut() -> ssize_t) -> ssize_t {
    at.and_then(|at| coherence::read(fd, to, at, flags))
        .unwrap_or_else(|| user_mode::transfer(Way::Read, fd, to, at, flags, real))
}

pub unsafe fn read_cursor(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    read_to(fd, Given::one(to, len), Some(At::Cursor), 0, || unsafe { real::read(fd, to, len) })
}

pub unsafe fn read_checked(fd: c_int, to: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    if len > room {
        // SAFETY: libc ends the program.
        return unsafe { real::__read_chk(fd, to, len, room) };
    }
    // SAFETY: the caller's promise.
    unsafe { read_cursor(fd, to, len) }
}

pub unsafe fn read_at(fd: c_int, to: *mut c_void, len: size_t, offset: off_t) -> ssize_t {
    let given = Given::one(to, len);
    // SAFETY: the caller's promise.
    read_to(fd, given, At::offset(offset), 0, || unsafe { real::pread64(fd, to, len, offset) })
}

pub unsafe fn read_at_checked(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    offset: off_t,
    room: size_t,
) -> ssize_t {
    if len > room {
        // SAFETY: libc ends the program.
        return unsafe { real::__pread64_chk(fd, to, len, offset, room) };
    }
    // SAFETY: the caller's promise.
    unsafe { read_at(fd, to, len, offset) }
}

pub unsafe fn read_parts(fd: c_int, to: *const iovec, n: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    read_to(fd, Given::Many(to, n), Some(At::Cursor), 0, || unsafe { real::readv(fd, to, n) })
}

pub unsafe fn read_parts_at(fd: c_int, to: *const iovec, n: c_int, offset: off_t) -> ssize_t {
    let at = At::offset(offset);
    // SAFETY: the caller's promise.
    read_to(fd, Given::Many(to, n), at, 0, || unsafe { real::preadv64(fd, to, n, offset) })
}

pub unsafe fn read_parts_with(fd: c_int, to: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t {
    let at = if offset == -1 { Some(At::Cursor) } else { At::offset(offset) };
    // SAFETY: the caller's promise.
    read_to(fd, Given::Many(to, n), at, flags, || unsafe { real::preadv64v2(fd, to, n, offset, flags) })
}
