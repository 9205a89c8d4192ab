//! The calls that change a file's size, or its bytes without a buffer of the program: truncate, fallocate,
//! open with O_TRUNC, copy_file_range, sendfile, splice.

use crate::coherence::{self, At, Target};
use crate::real;
use crate::request::{Change, Flush};
use crate::sys;
use libc::{c_char, c_int, c_long, c_uint, mode_t, off_t, size_t, ssize_t};
use std::ops::Range;

export! {
    ftruncate(fd: c_int, len: off_t) -> c_int = truncate_fd;
    ftruncate64(fd: c_int, len: off_t) -> c_int = truncate_fd;
    truncate(path: *const c_char, len: off_t) -> c_int = truncate_path;
    truncate64(path: *const c_char, len: off_t) -> c_int = truncate_path;
    fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int = allocate;
    fallocate64(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int = allocate;
    posix_fallocate(fd: c_int, offset: off_t, len: off_t) -> c_int = posix_allocate;
    posix_fallocate64(fd: c_int, offset: off_t, len: off_t) -> c_int = posix_allocate;
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = open_path;
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = open_path;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = open_at;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = open_at;
    creat(path: *const c_char, mode: mode_t) -> c_int = create;
    creat64(path: *const c_char, mode: mode_t) -> c_int = create;
    copy_file_range(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: c_uint)
        -> ssize_t = copy_range;
    sendfile(to: c_int, from: c_int, from_at: *mut off_t, len: size_t) -> ssize_t = send;
    sendfile64(to: c_int, from: c_int, from_at: *mut off_t, len: size_t) -> ssize_t = send;
    splice(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: c_uint)
        -> ssize_t = join;
}

/// Frames a call that may change the size and the bytes `changed`.
fn resizing(
    target: &Target,
    held: Range<u64>,
    changed: Range<u64>,
    flush: Flush,
    call: impl FnOnce() -> c_long,
) -> c_int {
    let done = coherence::framed(target, held, flush, || {
        let r = call();
        let at = changed.start;
        // A call that failed may still have changed the size: that is looked up either way.
        (r as c_int, Change::Resized(if r < 0 { at..at } else { changed }))
    });
    done.unwrap_or_else(sys::fail)
}

/// What a size change that gave `r` has changed: all from the cut on. Another thread may have made the file
/// longer since, so that its size alone does not tell that what was cached beyond the cut is gone.
fn cut(r: c_long, at: u64) -> Option<Change> {
    (r >= 0).then_some(Change::Resized(at..u64::MAX))
}

fn truncate_managed(target: &Target, len: off_t, call: impl FnOnce() -> c_long) -> c_int {
    let len = len.max(0) as u64;
    resizing(target, len.min(target.size)..u64::MAX, len..u64::MAX, Flush::Not, call)
}

unsafe fn truncate_fd(fd: c_int, len: off_t) -> c_int {
    match coherence::managed_fd(fd) {
        // SAFETY: integers only.
        Some(target) => truncate_managed(&target, len, || unsafe {
            libc::syscall(libc::SYS_ftruncate, fd as c_long, len)
        }),
        None => coherence::unframed(
            // SAFETY: integers only.
            || unsafe { real::ftruncate64(fd, len) },
            |_| coherence::managed_fd(fd),
            |r, _| cut(r.into(), len as u64),
        ),
    }
}

unsafe fn truncate_path(path: *const c_char, len: off_t) -> c_int {
    match coherence::managed_path(libc::AT_FDCWD, path) {
        Some(target) => truncate_managed(&target, len, || {
            // SAFETY: the kernel checks the path.
            unsafe { libc::syscall(libc::SYS_truncate, path, len) }
        }),
        None => coherence::unframed(
            // SAFETY: the caller's promise.
            || unsafe { real::truncate64(path, len) },
            |_| coherence::managed_path(libc::AT_FDCWD, path),
            |r, _| cut(r.into(), len as u64),
        ),
    }
}

/// What fallocate(2) changes, besides the size.
fn allocation_changes(mode: c_int, offset: u64, len: u64) -> Range<u64> {
    if mode & (libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE) != 0 {
        offset..u64::MAX
    } else if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0 {
        offset..offset.saturating_add(len)
    } else {
        offset..offset
    }
}

unsafe fn allocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int {
    let (Some(target), Ok(start), Ok(bytes)) =
        (coherence::managed_fd(fd), u64::try_from(offset), u64::try_from(len))
    else {
        // SAFETY: integers only.
        return unsafe { real::fallocate64(fd, mode, offset, len) };
    };
    let changed = allocation_changes(mode, start, bytes);
    let (held, flush) =
        if changed.is_empty() { (start..u64::MAX, Flush::Not) } else { (changed.clone(), Flush::First) };
    // SAFETY: integers only.
    resizing(&target, held, changed, flush, || unsafe {
        libc::syscall(libc::SYS_fallocate, fd as c_long, mode as c_long, offset, len)
    })
}

unsafe fn posix_allocate(fd: c_int, offset: off_t, len: off_t) -> c_int {
    if coherence::managed_fd(fd).is_some() && offset >= 0 && len > 0 {
        let kept = sys::errno();
        // SAFETY: integers only.
        let r = unsafe { allocate(fd, 0, offset, len) };
        let error = if r == 0 { 0 } else { sys::errno() };
        sys::set_errno(kept);
        if error != libc::EOPNOTSUPP {
            return error;
        }
        // libc then writes a byte into every block; the manager sees the new size when it looks next.
    }
    // SAFETY: integers only.
    unsafe { real::posix_fallocate64(fd, offset, len) }
}

/// open(2) with O_TRUNC of a managed file; `None`: libc opens it.
fn open_truncating(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> Option<c_int> {
    if flags & libc::O_TRUNC == 0 {
        return None;
    }
    let target = coherence::managed_path(dir, path)?;
    // SAFETY: the kernel checks the path.
    Some(resizing(&target, 0..u64::MAX, 0..u64::MAX, Flush::Not, || unsafe {
        libc::syscall(libc::SYS_openat, dir as c_long, path, flags as c_long, mode as c_long)
    }))
}

/// libc's open of a file that is not managed, with O_TRUNC or without.
fn open_unmanaged(flags: c_int, open: impl FnOnce() -> c_int) -> c_int {
    if flags & libc::O_TRUNC == 0 {
        return open();
    }
    coherence::unframed(open, coherence::managed_fd, |fd, _| cut(fd.into(), 0))
}

unsafe fn open_path(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    open_truncating(libc::AT_FDCWD, path, flags, mode)
        // SAFETY: the caller's promise.
        .unwrap_or_else(|| open_unmanaged(flags, || unsafe { real::open64(path, flags, mode) }))
}

unsafe fn open_at(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    open_truncating(dir, path, flags, mode)
        // SAFETY: the caller's promise.
        .unwrap_or_else(|| open_unmanaged(flags, || unsafe { real::openat64(dir, path, flags, mode) }))
}

unsafe fn create(path: *const c_char, mode: mode_t) -> c_int {
    let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
    open_truncating(libc::AT_FDCWD, path, flags, mode)
        // SAFETY: the caller's promise.
        .unwrap_or_else(|| open_unmanaged(flags, || unsafe { real::creat64(path, mode) }))
}

/// Where one side of a transfer begins: at the offset that the pointer points to, else at the descriptor's
/// position.
unsafe fn side(at: *mut off_t) -> Option<At> {
    // SAFETY: the caller's promise: null or valid.
    match unsafe { at.as_ref() } {
        Some(offset) => At::offset(*offset),
        None => Some(At::Cursor),
    }
}

/// A transfer from file to file inside the kernel. `None`: neither side is managed in a way that matters, or
/// the kernel will refuse it.
unsafe fn between(
    from: (c_int, *mut off_t),
    to: (c_int, *mut off_t),
    len: size_t,
    raw: impl FnOnce() -> c_long,
) -> Option<ssize_t> {
    let source = coherence::managed_fd(from.0);
    let target = coherence::managed_fd(to.0);
    if source.is_none() && target.is_none() {
        return None;
    }
    // SAFETY: the caller's promise.
    let (from_at, to_at) = unsafe { (side(from.1)?, side(to.1)?) };
    if let Some(source) = source
        && let Err(errno) = coherence::before_read(&source, from.0, from_at, len as u64)
    {
        return Some(sys::fail(errno) as ssize_t);
    }
    let target = target?;
    let start = match to_at {
        At::Offset(offset) => offset,
        At::Cursor => sys::position(to.0)?,
    };
    let done = coherence::framed(&target, start..start.saturating_add(len as u64), Flush::Not, || {
        let n = raw();
        (n as ssize_t, Change::Written(start..start.saturating_add(n.max(0) as u64)))
    });
    Some(done.unwrap_or_else(|errno| sys::fail(errno) as ssize_t))
}

unsafe fn copy_range(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the caller's promise.
    let raw = || unsafe {
        let (from, to, flags) = (from as c_long, to as c_long, flags as c_long);
        libc::syscall(libc::SYS_copy_file_range, from, from_at, to, to_at, len, flags)
    };
    // SAFETY: the caller's promise.
    unsafe {
        between((from, from_at), (to, to_at), len, raw)
            .unwrap_or_else(|| real::copy_file_range(from, from_at, to, to_at, len, flags))
    }
}

unsafe fn send(to: c_int, from: c_int, from_at: *mut off_t, len: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    let raw = || unsafe { libc::syscall(libc::SYS_sendfile, to as c_long, from as c_long, from_at, len) };
    // SAFETY: the caller's promise.
    unsafe {
        between((from, from_at), (to, std::ptr::null_mut()), len, raw)
            .unwrap_or_else(|| real::sendfile64(to, from, from_at, len))
    }
}

unsafe fn join(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the caller's promise.
    let raw = || unsafe {
        let (from, to, flags) = (from as c_long, to as c_long, flags as c_long);
        libc::syscall(libc::SYS_splice, from, from_at, to, to_at, len, flags)
    };
    // SAFETY: the caller's promise.
    unsafe {
        between((from, from_at), (to, to_at), len, raw)
            .unwrap_or_else(|| real::splice(from, from_at, to, to_at, len, flags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fallocate_changes_what_its_mode_says() {
        assert!(allocation_changes(0, 10, 20).is_empty());
        assert!(allocation_changes(libc::FALLOC_FL_KEEP_SIZE, 10, 20).is_empty());
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        assert_eq!(allocation_changes(punch, 10, 20), 10..30);
        assert_eq!(allocation_changes(libc::FALLOC_FL_ZERO_RANGE, 10, u64::MAX), 10..u64::MAX);
        assert_eq!(allocation_changes(libc::FALLOC_FL_INSERT_RANGE, 10, 20), 10..u64::MAX);
    }
}
