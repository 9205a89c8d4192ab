//! The calls that change a file's size: truncate, fallocate.

use crate::agent::coherence::{self, Target};
use crate::agent::request::{Change, Flush};
use crate::base::real;
use crate::base::sys;
use libc::{c_char, c_int, c_long, off_t};
use std::ops::Range;

/// Makes a call that may change the file's size, announced before and followed up after it, and has the
/// manager do what `change` says. Writes with O_APPEND wait until it is over: the end of the file must not
/// move under them.
pub fn resizing(
    target: &Target,
    held: impl Fn() -> Range<u64>,
    change: Change,
    flush: Flush,
    call: impl FnOnce() -> c_long,
) -> c_int {
    let done = coherence::framed_in_turn(target, flush, held, |_| {
        let r = call();
        // A call that failed may still have changed the size: that is looked up either way.
        (r as c_int, if r < 0 { Change::Resized(0..0) } else { change })
    });
    done.unwrap_or_else(sys::fail)
}

/// What a size change that gave `r` has changed: all from the cut on. Another thread may have made the file
/// longer since, so that its size alone does not tell that what was cached beyond the cut is gone.
pub fn cut(r: c_long, at: u64) -> Option<Change> {
    (r >= 0).then_some(Change::Resized(at..u64::MAX))
}

/// Frames a call that makes the file `len` bytes long.
pub fn cut_framed(target: &Target, len: u64, call: impl FnOnce() -> c_long) -> c_int {
    // Pages behind the end are written back nowhere: all from there on may be announced.
    let change = Change::Resized(len..u64::MAX);
    resizing(target, || len.min(target.size)..u64::MAX, change, Flush::Not, call)
}

pub unsafe fn truncate_fd(fd: c_int, len: off_t) -> c_int {
    let look = coherence::look();
    match coherence::managed_fd(fd) {
        // SAFETY: integers only.
        Some(target) => cut_framed(&target, len.max(0) as u64, || unsafe {
            sys::system_call(libc::SYS_ftruncate, fd as c_long, len)
        }),
        None => coherence::unframed(
            look,
            // SAFETY: integers only.
            || unsafe { real::ftruncate64(fd, len) },
            |_| coherence::managed_fd(fd),
            |r, _| cut(r.into(), len as u64),
        ),
    }
}

pub unsafe fn truncate_path(path: *const c_char, len: off_t) -> c_int {
    let look = coherence::look();
    match coherence::managed_path(libc::AT_FDCWD, path) {
        Some(target) => cut_framed(&target, len.max(0) as u64, || {
            // SAFETY: the kernel checks the path.
            unsafe { sys::system_call(libc::SYS_truncate, path, len) }
        }),
        None => coherence::unframed(
            look,
            // SAFETY: the caller's promise.
            || unsafe { real::truncate64(path, len) },
            |_| coherence::managed_path(libc::AT_FDCWD, path),
            |r, _| cut(r.into(), len as u64),
        ),
    }
}

/// The modes that move the bytes from an offset on, besides changing the size.
const MOVES: c_int = libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE;

/// The file systems on which a call that moves bytes drops private copies of pages (`truncate_pagecache`).
/// XFS keeps them, and others cannot move bytes.
const COPIES_END_ON: [c_long; 2] = [libc::EXT4_SUPER_MAGIC as c_long, libc::F2FS_SUPER_MAGIC as c_long];

/// What fallocate(2) changes, besides the size.
fn allocation_changes(mode: c_int, offset: u64, len: u64) -> Range<u64> {
    if mode & MOVES != 0 {
        offset..u64::MAX
    } else if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0 {
        offset..offset.saturating_add(len)
    } else {
        offset..offset
    }
}

pub unsafe fn allocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int {
    let look = coherence::look();
    // SAFETY: integers only.
    let real = || unsafe { real::fallocate64(fd, mode, offset, len) };
    let (Ok(start), Ok(bytes)) = (u64::try_from(offset), u64::try_from(len)) else { return real() };
    let changed = allocation_changes(mode, start, bytes);
    let ends_copies = || {
        mode & MOVES != 0
            && sys::filesystem(fd).is_some_and(|found| COPIES_END_ON.contains(&(found as c_long)))
    };
    let change = |changed| if ends_copies() { Change::Moved(changed) } else { Change::Resized(changed) };
    let Some(target) = coherence::managed_fd(fd) else {
        let changes = |r, _: &Target| (r >= 0).then(|| change(changed));
        return coherence::unframed(look, real, |_| coherence::managed_fd(fd), changes);
    };
    coherence::cancellation_point();
    let (held, flush) =
        if changed.is_empty() { (start..u64::MAX, Flush::Not) } else { (changed.clone(), Flush::First) };
    // SAFETY: integers only.
    resizing(
        &target,
        || held.clone(),
        change(changed),
        flush,
        || unsafe { sys::system_call(libc::SYS_fallocate, fd as c_long, mode as c_long, offset, len) },
    )
}

pub unsafe fn posix_allocate(fd: c_int, offset: off_t, len: off_t) -> c_int {
    let look = coherence::look();
    // SAFETY: integers only.
    let real = || unsafe { real::posix_fallocate64(fd, offset, len) };
    let (Ok(start), Ok(_)) = (u64::try_from(offset), u64::try_from(len)) else { return real() };
    let Some(target) = coherence::managed_fd(fd) else {
        let changes = |r, _: &Target| (r == 0).then_some(Change::Resized(start..start));
        return coherence::unframed(look, real, |_| coherence::managed_fd(fd), changes);
    };
    // Where the file system has no fallocate, libc reads a byte of each block, and writes it if it is 0.
    let kept = sys::errno();
    let mut error = 0;
    let framed = resizing(
        &target,
        || start..u64::MAX,
        Change::Resized(start..start),
        Flush::First,
        || {
            error = without_cancellation(real);
            0
        },
    );
    if framed < 0 {
        error = sys::errno();
    }
    sys::set_errno(kept);
    error
}

/// Runs a call that may contain cancellation points, without cancellation: the thread must not end inside.
pub fn without_cancellation<R>(call: impl FnOnce() -> R) -> R {
    // A thread that may be cancelled at any time ends where it is allowed to again, and unwinds from there.
    unsafe extern "C-unwind" {
        fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    }
    const PTHREAD_CANCEL_DISABLE: c_int = 1;
    let mut before = 0;
    // SAFETY: changes this thread's state only, and gives the one before.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
    let result = call();
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(before, &mut before) };
    result
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
