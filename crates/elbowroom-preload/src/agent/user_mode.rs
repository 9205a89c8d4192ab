//! Reads and writes, and memory that the kernel uses later, where only faults of instructions are served
//! (bring.rs). A read or write of a regular file goes through a buffer, since its count must be whole.
//! Memory that the kernel uses after the call (asynchronous transfers), or that libc itself gives to system
//! calls (the buffer of a stream), goes to the kernel first.

use super::bring::{self, Does, Part, manager, send_all, send_all_parts, with, with_parts};
use super::coherence::{self, At, Given, Way};
use super::ranges::hand_back;
use crate::base::real;
use crate::base::reason::Reason;
use crate::base::reserve::BOUNCE_BYTES;
use crate::base::sys::{self, PAGE};
use libc::{c_int, c_void, ssize_t};

/// Hands memory back to the kernel that the kernel uses after the call returns, or that libc passes to system
/// calls of its own. `errno` is kept.
pub fn leave_to_kernel(at: *const c_void, len: usize) {
    let Some((process, manager)) = manager() else { return };
    let (at, len) = (at.addr(), len.min(isize::MAX as usize));
    if len == 0 || !manager.windows().intersects(at, len) {
        return;
    }
    let kept = sys::errno();
    let pages = at & !(PAGE - 1)..(at + len).next_multiple_of(PAGE);
    process.count_bytes(Reason::KernelCall, pages.len());
    // What cannot go stays managed: the transfer may fail with EFAULT.
    let _ = hand_back(process, pages);
    sys::set_errno(kept);
}

/// Whether a descriptor's reads give less than they are asked for only at the end of a file: those of regular
/// files and block devices. `errno` is kept.
fn reads_are_whole(fd: c_int) -> bool {
    let kind = |stat: libc::stat| stat.st_mode & libc::S_IFMT;
    sys::fstat(fd).is_some_and(|stat| matches!(kind(stat), libc::S_IFREG | libc::S_IFBLK))
}

/// Whether a descriptor takes bytes without bounds of messages, and can wait in the middle: a pipe, or a
/// socket for streams. `errno` is kept.
fn is_stream(fd: c_int) -> bool {
    sys::fstat(fd).is_some_and(|stat| match stat.st_mode & libc::S_IFMT {
        libc::S_IFIFO => true,
        libc::S_IFSOCK => bring::is_stream_socket(fd),
        _ => false,
    })
}

/// A read or write of something that is not managed. `real` is libc's own function.
pub fn transfer(
    way: Way,
    fd: c_int,
    given: Given,
    at: Option<At>,
    flags: c_int,
    real: impl FnMut() -> ssize_t,
) -> ssize_t {
    let mut real = real;
    let Some((_, manager)) = manager().filter(|(_, manager)| !given.is_plain(manager)) else { return real() };
    if let Some(at) = at
        && reads_are_whole(fd)
        && let Some(buffers) = given.check(manager).filter(|buffers| buffers.managed)
    {
        coherence::cancellation_point();
        return buffers.transfer(way, fd, at, flags);
    }
    if way == Way::Read
        && at == Some(At::Cursor)
        && flags == 0
        && let Some(buffers) = given.check(manager).filter(|buffers| buffers.managed)
    {
        // SAFETY: a buffer of so many bytes.
        return buffers.read_once(BOUNCE_BYTES, |to, len| unsafe { real::read(fd, to, len) });
    }
    let splits = way == Way::Write && at == Some(At::Cursor) && flags == 0 && is_stream(fd);
    // SAFETY: a part of the program's buffer, which the kernel checks.
    let write = |from: *const c_void, len: usize| unsafe { real::write(fd, from, len) };
    match (given, way) {
        (Given::One(part), Way::Write) if splits => send_all(part.iov_base, part.iov_len, write),
        (Given::One(part), Way::Write) => with(&[Part::loaded(part.iov_base, part.iov_len)], real),
        (Given::One(part), Way::Read) => with(&[Part::stored(part.iov_base, part.iov_len)], real),
        (Given::Many(parts, n), Way::Write) if splits && given.is_long(manager) => {
            send_all_parts(parts, usize::try_from(n).unwrap_or(0), write)
        }
        (Given::Many(parts, n), _) => {
            let does = if way == Way::Read { Does::Store } else { Does::Load };
            with_parts(parts, usize::try_from(n).unwrap_or(0), does, real)
        }
    }
}
