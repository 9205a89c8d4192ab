//! The write family: mappings must see what it stores.

use crate::coherence::{self, At};
use crate::real;
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};

export! {
    write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t = write_cursor;
    pwrite(fd: c_int, from: *const c_void, len: size_t, offset: off_t) -> ssize_t = write_at;
    pwrite64(fd: c_int, from: *const c_void, len: size_t, offset: off_t) -> ssize_t = write_at;
    writev(fd: c_int, from: *const iovec, n: c_int) -> ssize_t = write_parts;
    pwritev(fd: c_int, from: *const iovec, n: c_int, offset: off_t) -> ssize_t = write_parts_at;
    pwritev64(fd: c_int, from: *const iovec, n: c_int, offset: off_t) -> ssize_t = write_parts_at;
    pwritev2(fd: c_int, from: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t
        = write_parts_with;
    pwritev64v2(fd: c_int, from: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t
        = write_parts_with;
}

/// A write to a managed file; `None` if it is not one, or the kernel will refuse the call.
fn managed(fd: c_int, parts: &[iovec], at: Option<At>, flags: c_int) -> Option<ssize_t> {
    let target = coherence::managed_fd(fd)?;
    (!parts.is_empty()).then(|| at.map(|at| coherence::write(&target, fd, parts, at, flags)))?
}

unsafe fn write_cursor(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    let part = iovec { iov_base: from.cast_mut(), iov_len: len };
    // SAFETY: the caller's promise.
    managed(fd, &[part], Some(At::Cursor), 0).unwrap_or_else(|| unsafe { real::write(fd, from, len) })
}

unsafe fn write_at(fd: c_int, from: *const c_void, len: size_t, offset: off_t) -> ssize_t {
    let part = iovec { iov_base: from.cast_mut(), iov_len: len };
    // SAFETY: the caller's promise.
    managed(fd, &[part], At::offset(offset), 0)
        .unwrap_or_else(|| unsafe { real::pwrite64(fd, from, len, offset) })
}

unsafe fn write_parts(fd: c_int, from: *const iovec, n: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let parts = unsafe { coherence::parts(from, n) };
    // SAFETY: the caller's promise.
    managed(fd, parts, Some(At::Cursor), 0).unwrap_or_else(|| unsafe { real::writev(fd, from, n) })
}

unsafe fn write_parts_at(fd: c_int, from: *const iovec, n: c_int, offset: off_t) -> ssize_t {
    // SAFETY: the caller's promise.
    let parts = unsafe { coherence::parts(from, n) };
    // SAFETY: the caller's promise.
    managed(fd, parts, At::offset(offset), 0)
        .unwrap_or_else(|| unsafe { real::pwritev64(fd, from, n, offset) })
}

unsafe fn write_parts_with(fd: c_int, from: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let parts = unsafe { coherence::parts(from, n) };
    let at = if offset == -1 { Some(At::Cursor) } else { At::offset(offset) };
    // SAFETY: the caller's promise.
    managed(fd, parts, at, flags).unwrap_or_else(|| unsafe { real::pwritev64v2(fd, from, n, offset, flags) })
}
