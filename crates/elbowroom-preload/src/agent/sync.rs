//! fsync and relatives, and close: fsync makes stores through mappings durable, too, and both report the
//! file's write-back error.

use crate::agent::coherence::{self, Target};
use crate::agent::flush::flush;
use crate::agent::request::{self, Op};
use crate::base::real;
use crate::base::stderr;
use crate::base::sys;
use libc::{c_int, c_long, c_uint, off_t};
use std::ops::Range;

/// Writes back what was stored through mappings; the errno if that failed.
fn write_back(target: &Target, range: Range<u64>) -> Option<c_int> {
    if target.manager.dirty_pages() == 0 {
        return None;
    }
    request::submit(target.process, Op::WriteBack(target.id, range)).err()
}

/// The error of the file's write-back since the last call of this, as an errno.
fn take_error(target: &Target) -> Option<c_int> {
    request::submit(target.process, Op::TakeError(target.id)).err()
}

/// The result of a call, unless the write-back that belongs to it failed.
fn with_error(r: c_int, error: Option<c_int>) -> c_int {
    match error {
        Some(errno) => sys::fail(errno),
        None => r,
    }
}

pub unsafe fn sync_all(fd: c_int) -> c_int {
    let Some(target) = coherence::managed_fd(fd) else {
        // SAFETY: integers only.
        return unsafe { real::fsync(fd) };
    };
    let error = write_back(&target, 0..u64::MAX);
    // SAFETY: integers only.
    let r = unsafe { real::fsync(fd) };
    with_error(r, take_error(&target).or(error))
}

pub unsafe fn sync_data(fd: c_int) -> c_int {
    let Some(target) = coherence::managed_fd(fd) else {
        // SAFETY: integers only.
        return unsafe { real::fdatasync(fd) };
    };
    let error = write_back(&target, 0..u64::MAX);
    // SAFETY: integers only.
    let r = unsafe { real::fdatasync(fd) };
    with_error(r, take_error(&target).or(error))
}

pub unsafe fn sync_range(fd: c_int, offset: off_t, len: off_t, flags: c_uint) -> c_int {
    let mut error = None;
    if let (Some(target), Ok(start), Ok(len)) =
        (coherence::managed_fd(fd), u64::try_from(offset), u64::try_from(len))
    {
        // A length of 0 means to the end of the file.
        let end = if len == 0 { u64::MAX } else { start.saturating_add(len) };
        error = write_back(&target, start..end);
    }
    // SAFETY: integers only.
    with_error(unsafe { real::sync_file_range(fd, offset, len, flags) }, error)
}

pub unsafe fn sync_filesystem(fd: c_int) -> c_int {
    flush();
    // SAFETY: integers only.
    unsafe { sys::system_call(libc::SYS_syncfs, fd as c_long) as c_int }
}

pub unsafe fn sync_everything() {
    flush();
    // SAFETY: takes nothing.
    unsafe { sys::system_call(libc::SYS_sync) };
}

pub unsafe fn close_fd(fd: c_int) -> c_int {
    stderr::before_close(fd);
    let target = coherence::managed_fd(fd);
    // SAFETY: integers only.
    let r = unsafe { real::close(fd) };
    match target {
        Some(target) if r == 0 => with_error(r, take_error(&target)),
        _ => r,
    }
}
