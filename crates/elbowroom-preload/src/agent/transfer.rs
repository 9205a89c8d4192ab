//! Transfers inside the kernel: copy_file_range, sendfile, splice.

use crate::agent::bring;
use crate::agent::coherence::{self, At, Look, Target};
use crate::agent::request::{Change, Flush};
use crate::base::real;
use crate::base::sys;
use libc::{c_int, c_long, c_uint, c_void, off_t, size_t, ssize_t};

/// One side of a transfer: a descriptor, and where it begins. The offset that the program's pointer points to
/// is copied, and copied back: the kernel is given the copy, so that it has no reason to fail in the middle.
struct Side {
    fd: c_int,
    pointer: *mut off_t,
    offset: off_t,
    at: At,
}

impl Side {
    /// `None`: the kernel will refuse the call.
    fn new(fd: c_int, pointer: *mut off_t) -> Option<Self> {
        let mut offset: off_t = 0;
        if pointer.is_null() {
            return Some(Self { fd, pointer, offset, at: At::Cursor });
        }
        let size = size_of::<off_t>();
        let copied = bring::copy_checked(pointer as usize, &raw mut offset as usize, size);
        let at = (copied == size).then(|| At::offset(offset))??;
        Some(Self { fd, pointer, offset, at })
    }

    /// What the kernel is given.
    fn copy(&mut self) -> *mut off_t {
        if self.pointer.is_null() { self.pointer } else { &raw mut self.offset }
    }

    /// Gives the program the offset behind the transfer. `false`: its memory is not writable.
    fn give_back(&self) -> bool {
        let size = size_of::<off_t>();
        self.pointer.is_null()
            || bring::copy_checked(&raw const self.offset as usize, self.pointer as usize, size) == size
    }
}

/// Both sides of a transfer, and how it is made.
struct Transfer<C> {
    from: Side,
    to: Side,
    len: size_t,
    call: C,
}

impl<C: FnMut(*mut off_t, *mut off_t) -> c_long> Transfer<C> {
    /// Makes the transfer, into a managed file.
    fn make_framed(&mut self, target: &Target) -> ssize_t {
        let (fd, len) = (self.to.fd, self.len as u64);
        let done = match self.to.at {
            At::Offset(start) => {
                let held = start..start.saturating_add(len);
                coherence::framed(target, held.clone(), Flush::Not, || {
                    let n = self.make();
                    (n, Change::Written(coherence::written(n, &held)))
                })
            }
            At::Cursor => coherence::framed_in_turn(
                target,
                Flush::Not,
                || coherence::ahead(fd, 0, len),
                |place| {
                    let n = self.make();
                    (n, Change::Written(coherence::written_ahead(target, fd, n, &place)))
                },
            ),
        };
        match done {
            Ok(n) if n >= 0 && !(self.from.give_back() && self.to.give_back()) => {
                sys::fail(libc::EFAULT) as ssize_t
            }
            Ok(n) => n,
            Err(errno) => sys::fail(errno) as ssize_t,
        }
    }

    fn make(&mut self) -> ssize_t {
        (self.call)(self.from.copy(), self.to.copy()) as ssize_t
    }
}

/// A transfer from file to file inside the kernel. After a failure, `wait` says whether the transfer is to
/// be made once more. `None`: `real` does it, since the other side is not managed, or the kernel will
/// refuse it.
fn between(
    from: (c_int, *mut off_t),
    to: (c_int, *mut off_t),
    len: size_t,
    call: impl FnMut(*mut off_t, *mut off_t) -> c_long,
    mut wait: impl FnMut() -> bool,
) -> Option<ssize_t> {
    let (source, target) = (coherence::managed_fd(from.0), coherence::managed_fd(to.0));
    if source.is_none() && target.is_none() || isize::try_from(len).is_err() {
        return None;
    }
    let (from, to) = (Side::new(from.0, from.1)?, Side::new(to.0, to.1)?);
    if let Some(source) = source
        && let Err(errno) = coherence::before_read(&source, from.at, len as u64)
    {
        return Some(sys::fail(errno) as ssize_t);
    }
    let target = target?;
    let mut transfer = Transfer { from, to, len, call };
    loop {
        let n = transfer.make_framed(&target);
        if n >= 0 || !wait() {
            return Some(n);
        }
    }
}

/// Makes a transfer by `real` into a file that is not managed. Where it wrote is known afterwards, by the
/// offset that it has moved.
fn unmanaged(look: Look, to: c_int, at: *mut off_t, real: impl FnOnce() -> ssize_t) -> ssize_t {
    coherence::unframed(
        look,
        real,
        |n| (n > 0).then(|| coherence::managed_fd(to))?,
        |n, _| {
            let end = match Side::new(to, at)?.at {
                At::Offset(end) => end,
                At::Cursor => sys::position(to)?,
            };
            Some(Change::Written(end.saturating_sub(n as u64)..end))
        },
    )
}

pub unsafe fn copy_range(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let look = coherence::look();
    coherence::cancellation_point();
    // SAFETY: the kernel checks the pointers.
    let raw = |from_at: *mut off_t, to_at: *mut off_t| unsafe {
        let (from, to, flags) = (from as c_long, to as c_long, flags as c_long);
        sys::system_call(libc::SYS_copy_file_range, from, from_at, to, to_at, len, flags)
    };
    between((from, from_at), (to, to_at), len, raw, || false).unwrap_or_else(|| {
        // SAFETY: the caller's promise.
        unmanaged(look, to, to_at, || unsafe { real::copy_file_range(from, from_at, to, to_at, len, flags) })
    })
}

pub unsafe fn send(to: c_int, from: c_int, from_at: *mut off_t, len: size_t) -> ssize_t {
    let look = coherence::look();
    let none = std::ptr::null_mut();
    // SAFETY: the kernel checks the pointer.
    let raw = |from_at: *mut off_t, _| unsafe {
        sys::system_call(libc::SYS_sendfile, to as c_long, from as c_long, from_at, len)
    };
    between((from, from_at), (to, none), len, raw, || false).unwrap_or_else(|| {
        // SAFETY: the caller's promise.
        unmanaged(look, to, none, || unsafe { real::sendfile64(to, from, from_at, len) })
    })
}

/// An address that can be read and not written.
static READ_ONLY: u8 = 0;

/// Waits until a pipe has something to read, or has no writers any more, by a read that fails before it
/// takes anything. So the wait is as in the program's own call: a signal ends it or not as its handler
/// says, and it is a cancellation point. `false`: the wait was ended; `errno` says how.
fn wait_for_pipe(pipe: c_int) -> bool {
    let nowhere = (&raw const READ_ONLY).cast_mut().cast::<c_void>();
    // SAFETY: the kernel checks the address, and finds that it cannot write there.
    unsafe { real::read(pipe, nowhere, 1) >= 0 || sys::errno() == libc::EFAULT }
}

pub unsafe fn join(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let look = coherence::look();
    coherence::cancellation_point();
    // Into a managed file the transfer does not wait inside the frame: the pipe's writers may need this
    // process to go on, so the wait for them is outside.
    // SAFETY: the kernel checks the pointers.
    let raw = |from_at: *mut off_t, to_at: *mut off_t| unsafe {
        let flags = (flags | libc::SPLICE_F_NONBLOCK) as c_long;
        sys::system_call(libc::SYS_splice, from as c_long, from_at, to as c_long, to_at, len, flags)
    };
    let wait = || {
        let waits = flags & libc::SPLICE_F_NONBLOCK == 0 && sys::errno() == libc::EAGAIN;
        waits && wait_for_pipe(from)
    };
    between((from, from_at), (to, to_at), len, raw, wait).unwrap_or_else(|| {
        // SAFETY: the caller's promise.
        unmanaged(look, to, to_at, || unsafe { real::splice(from, from_at, to, to_at, len, flags) })
    })
}
