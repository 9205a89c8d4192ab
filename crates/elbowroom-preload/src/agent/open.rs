//! Opening with O_TRUNC: the cached pages of a file are dropped with its bytes. Opening for writing with
//! O_NONBLOCK: the open must not fail because of a lease of ours.
//!
//! Opening may wait for others (the end of a lease), and a frame must not: so a managed file is opened
//! without O_TRUNC, and then cut, in a frame.

use crate::agent::coherence::{self, Look, Target};
use crate::agent::request::{self, Op};
use crate::agent::resize;
use crate::base::real;
use crate::base::reason::Reason;
use crate::base::state;
use crate::base::sys;
use libc::{c_char, c_int, c_long, c_void, mode_t};
use std::sync::atomic::AtomicU32;

/// Opens with O_TRUNC. `seen` is the managed file that is to be opened, as far as known; `open` opens it
/// with the flags that it is given.
fn truncating(look: Look, seen: Option<Target>, flags: c_int, open: impl Fn(c_int) -> c_int) -> c_int {
    let Some(seen) = seen else {
        let fd = open(flags);
        // The name may lead to a managed file by now, so it is asked anew in any case.
        if look.has_process() {
            coherence::changed_unframed(fd, coherence::managed_fd, |fd, _| resize::cut(fd.into(), 0));
        }
        return fd;
    };
    if flags & libc::O_ACCMODE == libc::O_RDONLY {
        // It cannot be cut through this descriptor.
        coherence::cancellation_point();
        return resize::cut_framed(&seen, 0, || resize::without_cancellation(|| open(flags)).into());
    }
    let fd = open(flags & !libc::O_TRUNC);
    if fd < 0 {
        return fd;
    }
    let cut = || {
        // SAFETY: integers only.
        unsafe { sys::system_call(libc::SYS_ftruncate, fd as c_long, 0 as c_long) }
    };
    let r = match coherence::managed_fd(fd) {
        Some(target) => resize::cut_framed(&target, 0, cut),
        // Another file has got the name.
        None if is_regular(fd) => coherence::unframed(
            look,
            || cut() as c_int,
            |_| coherence::managed_fd(fd),
            |r, _| resize::cut(r.into(), 0),
        ),
        None => 0,
    };
    if r < 0 {
        let kept = sys::errno();
        // SAFETY: opened above, and given to nobody.
        unsafe { sys::system_call(libc::SYS_close, fd as c_long) };
        sys::set_errno(kept);
        return r;
    }
    fd
}

fn is_regular(fd: c_int) -> bool {
    sys::fstat(fd).is_some_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG)
}

/// Whether these flags cut a file.
fn cuts(flags: c_int) -> bool {
    flags & libc::O_TRUNC != 0 && flags & libc::O_PATH == 0
}

/// How often a file whose lease is being given up is opened anew.
const LEASE_ROUNDS: usize = 100;
/// The wait between two tries, in milliseconds.
const LEASE_DELAY_MS: u32 = 1;

/// Opens with `open`. If the open is refused because of a lease (O_NONBLOCK asks for a refusal instead of a
/// wait), and the lease is ours, the file that is `seen` goes to the kernel, and is opened again.
fn past_own_lease(flags: c_int, seen: impl Fn() -> Option<Target>, open: impl Fn(c_int) -> c_int) -> c_int {
    // All opens come here, and direct I/O needs a file that was opened with O_DIRECT before.
    if flags & libc::O_DIRECT != 0 {
        state::note_transfers();
    }
    let mut fd = open(flags);
    let may_meet_one = flags & libc::O_NONBLOCK != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY;
    if fd >= 0 || !may_meet_one || sys::errno() != libc::EAGAIN {
        return fd;
    }
    // The file may have gone already: the kernel has told the lease's owner of the first try.
    let Some(Target { process, id, .. }) = seen() else { return fd };
    if request::submit(process, Op::HandBackFile(id)).is_err() {
        process.count(Reason::NotGiven);
        sys::set_errno(libc::EAGAIN);
        return fd;
    }
    // The thread that was told of the first try may have begun to give the file up before us, and not be
    // done yet.
    for _ in 0..LEASE_ROUNDS {
        fd = open(flags);
        if fd >= 0 || sys::errno() != libc::EAGAIN {
            break;
        }
        sys::futex_wait(&AtomicU32::new(0), 0, Some(LEASE_DELAY_MS));
        sys::set_errno(libc::EAGAIN);
    }
    fd
}

/// Opens the file at a path; `open` opens it with the flags that it is given.
fn open_with(dir: c_int, path: *const c_char, flags: c_int, open: impl Fn(c_int) -> c_int) -> c_int {
    let open = |flags| past_own_lease(flags, || coherence::once_managed_path(dir, path), &open);
    if !cuts(flags) {
        return open(flags);
    }
    let look = coherence::look();
    truncating(look, coherence::managed_path(dir, path), flags, open)
}

pub unsafe fn open_path(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    open_with(libc::AT_FDCWD, path, flags, |flags| unsafe { real::open64(path, flags, mode) })
}

/// The function that fortified programs call. It has no mode: libc ends the program if the flags need one.
pub unsafe fn open_path_checked(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    open_with(libc::AT_FDCWD, path, flags, |flags| unsafe { real::__open64_2(path, flags) })
}

pub unsafe fn open_at(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    open_with(dir, path, flags, |flags| unsafe { real::openat64(dir, path, flags, mode) })
}

pub unsafe fn open_at_checked(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    open_with(dir, path, flags, |flags| unsafe { real::__openat64_2(dir, path, flags) })
}

pub unsafe fn create(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open_path(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
}

pub unsafe fn open_handle(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let open = |flags| unsafe { real::open_by_handle_at(mount, handle, flags) };
    let seen = || {
        let place = open(libc::O_PATH | libc::O_CLOEXEC);
        let target = coherence::once_managed_fd(place);
        if place >= 0 {
            // SAFETY: opened above, and given to nobody.
            unsafe { sys::system_call(libc::SYS_close, place as c_long) };
        }
        target
    };
    let open = |flags| past_own_lease(flags, seen, open);
    let look = coherence::look();
    if !cuts(flags) || state::alive_with_files().is_none() {
        return open(flags);
    }
    // Which file it is is not known before it is open.
    let fd = open(flags & !libc::O_TRUNC);
    let seen = coherence::managed_fd(fd);
    if fd >= 0 {
        // SAFETY: opened above, and given to nobody.
        unsafe { sys::system_call(libc::SYS_close, fd as c_long) };
    }
    truncating(look, seen, flags, open)
}
