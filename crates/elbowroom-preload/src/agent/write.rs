//! The write family: mappings must see what it stores.

use crate::agent::coherence::{self, At, Given, Way};
use crate::agent::user_mode;
use crate::base::real;
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};

/// A write. `real` is libc's own: for files that are not managed, and for calls that the kernel will refuse.
fn write_to(fd: c_int, from: Given, at: Option<At>, flags: c_int, real: impl FnMut() -> ssize_t) -> ssize_t {
    let real = || user_mode::transfer(Way::Write, fd, from, at, flags, real);
    let Some(at) = at else { return real() };
    let look = coherence::look();
    match coherence::managed_fd(fd) {
        Some(target) => match from.check(target.manager) {
            Some(from) => coherence::write(&target, fd, &from, at, flags),
            None => real(),
        },
        None => coherence::write_unframed(look, fd, at, flags, real),
    }
}

pub unsafe fn write_cursor(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    let given = Given::one(from.cast_mut(), len);
    // SAFETY: the caller's promise.
    write_to(fd, given, Some(At::Cursor), 0, || unsafe { real::write(fd, from, len) })
}

pub unsafe fn write_at(fd: c_int, from: *const c_void, len: size_t, offset: off_t) -> ssize_t {
    let given = Given::one(from.cast_mut(), len);
    // SAFETY: the caller's promise.
    write_to(fd, given, At::offset(offset), 0, || unsafe { real::pwrite64(fd, from, len, offset) })
}

pub unsafe fn write_parts(fd: c_int, from: *const iovec, n: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    write_to(fd, Given::Many(from, n), Some(At::Cursor), 0, || unsafe { real::writev(fd, from, n) })
}

pub unsafe fn write_parts_at(fd: c_int, from: *const iovec, n: c_int, offset: off_t) -> ssize_t {
    let at = At::offset(offset);
    // SAFETY: the caller's promise.
    write_to(fd, Given::Many(from, n), at, 0, || unsafe { real::pwritev64(fd, from, n, offset) })
}

pub unsafe fn write_parts_with(
    fd: c_int,
    from: *const iovec,
    n: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let at = if offset == -1 { Some(At::Cursor) } else { At::offset(offset) };
    // SAFETY: the caller's promise.
    write_to(fd, Given::Many(from, n), at, flags, || unsafe { real::pwritev64v2(fd, from, n, offset, flags) })
}
