//! Text for the program's standard error, written on a thread of the program.
//!
//! The write must not change what the program does or how it ends. If standard error is a pipe without a
//! reader, or a file at its size limit, the write would raise a signal: SIGPIPE and SIGXFSZ are blocked
//! meanwhile, and a signal that was not pending before is consumed. If it is a full pipe, its reader may be
//! waiting for the end of the process: the rest of the text is dropped after [`PATIENCE_MS`].
//!
//! GNU programs close descriptor 2 in an exit handler, before the summary. A close while the process ends
//! makes a duplicate first ([`before_close`]). A duplicate that was made earlier would keep the reader of a
//! pipe waiting for a program that lives on after its close.

use crate::base::sys;
use libc::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// How long all the writes of one text wait for room, in milliseconds.
const PATIENCE_MS: i64 = 2_000;
/// A pipe that is ready for writing takes this much without waiting (PIPE_BUF).
const CHUNK: usize = 4_096;
/// The signals that a write can raise: SIGPIPE and SIGXFSZ, as the kernel's set of signals.
const RAISED: u64 = 1 << (libc::SIGPIPE - 1) | 1 << (libc::SIGXFSZ - 1);

/// The file on descriptor 2 when the program started.
static STDERR_DEVICE: AtomicU64 = AtomicU64::new(0);
static STDERR_INODE: AtomicU64 = AtomicU64::new(0);

/// Set when the main thread runs exit handlers: the process ends soon.
static ENDING: AtomicBool = AtomicBool::new(false);
/// The duplicate that [`before_close`] made; -1: none.
static DUPLICATE: AtomicI32 = AtomicI32::new(-1);
/// The lowest number of the duplicate, if the limit on descriptors allows it: beyond those that programs use.
const DUPLICATE_FROM: c_int = 512;

/// Remembers what standard error is. Called by the constructor, on the main thread.
pub fn remember() {
    unsafe extern "C" {
        fn __cxa_thread_atexit_impl(
            destructor: unsafe extern "C" fn(*mut c_void),
            object: *mut c_void,
            dso: *mut c_void,
        ) -> c_int;
    }
    unsafe extern "C" fn ends(_: *mut c_void) {
        ENDING.store(true, Ordering::Release);
    }
    if let Some(stat) = sys::fstat(2) {
        STDERR_DEVICE.store(stat.st_dev, Ordering::Relaxed);
        STDERR_INODE.store(stat.st_ino, Ordering::Relaxed);
    }
    // exit(3) runs the destructors of the calling thread before all exit handlers.
    // An address in this library, by which libc finds the library. (A null pointer is not looked up.)
    let dso = ends as *mut c_void;
    // SAFETY: the function stays valid, since this library is never unloaded, and takes any pointer.
    unsafe { __cxa_thread_atexit_impl(ends, std::ptr::null_mut(), dso) };
}

/// Whether the file of this stat is what standard error was when the program started.
pub fn is_remembered(stat: &libc::stat) -> bool {
    let (device, inode) = (STDERR_DEVICE.load(Ordering::Relaxed), STDERR_INODE.load(Ordering::Relaxed));
    inode != 0 && (stat.st_dev, stat.st_ino) == (device, inode)
}

fn is_remembered_at(fd: c_int) -> bool {
    sys::fstat(fd).is_some_and(|stat| is_remembered(&stat))
}

/// Whether the calling thread is the main thread and runs exit handlers.
pub fn is_ending() -> bool {
    ENDING.load(Ordering::Acquire) && sys::gettid() == sys::getpid()
}

/// Descriptor `fd` is about to be closed. A duplicate of standard error is made if the process ends. `errno`
/// is kept.
pub fn before_close(fd: c_int) {
    if fd != 2 || !is_ending() || DUPLICATE.load(Ordering::Acquire) >= 0 || !is_remembered_at(2) {
        return;
    }
    let kept = sys::errno();
    // The limit may be lower than the first number.
    let made = [DUPLICATE_FROM, 3].into_iter().map(|from| {
        let (fd, command, from) = (2 as c_long, libc::F_DUPFD_CLOEXEC as c_long, from as c_long);
        // SAFETY: integers only.
        unsafe { sys::system_call(libc::SYS_fcntl, fd, command, from) as c_int }
    });
    let made = made.into_iter().find(|fd| *fd >= 0).unwrap_or(-1);
    DUPLICATE.store(made, Ordering::Release);
    sys::set_errno(kept);
}

/// The descriptor of what standard error was when the program started, if the program has that still:
/// descriptor 2, or the duplicate if the program has closed descriptor 2. A program may have put a file of
/// its own there, which is not for our text.
pub fn descriptor() -> Option<c_int> {
    if is_remembered_at(2) {
        return Some(2);
    }
    Some(DUPLICATE.load(Ordering::Acquire)).filter(|fd| *fd >= 0 && is_closed() && is_remembered_at(*fd))
}

/// Whether descriptor 2 is closed.
pub fn is_closed() -> bool {
    sys::open_flags(2).is_none()
}

/// Writes as much of `text` to standard error as can be written, if the program has it still. Errors are
/// ignored, since there is no other place to report them. `errno` is kept.
pub fn write(text: &[u8]) {
    if let Some(fd) = descriptor() {
        write_to(fd, text);
    }
}

/// As [`write()`], before the program runs: standard error is not remembered yet.
pub fn write_first(text: &[u8]) {
    write_to(2, text);
}

/// As [`write()`], for another descriptor.
pub fn write_to(fd: c_int, text: &[u8]) {
    quietly(|| write_bounded(fd, text));
}

/// Runs `call`, whose writes may raise SIGPIPE or SIGXFSZ, and consumes these signals. `errno` is kept.
pub fn quietly<R>(call: impl FnOnce() -> R) -> R {
    let kept = sys::errno();
    let blocked = sys::block(RAISED);
    let before = pending();
    let result = call();
    take(RAISED & pending() & !before);
    sys::set_mask(blocked);
    sys::set_errno(kept);
    result
}

fn write_bounded(fd: c_int, mut text: &[u8]) {
    let until = now_ms() + PATIENCE_MS;
    let regular = sys::fstat(fd).is_some_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG);
    let mut no_wait = !regular;
    while !text.is_empty() {
        let chunk = &text[..text.len().min(CHUNK)];
        if !regular && !is_ready(fd, until - now_ms()) {
            return;
        }
        match write_once(fd, chunk, no_wait) {
            Ok(0) => return,
            Ok(n) => text = &text[n..],
            // Terminals, for example, cannot be told not to wait; poll said that there is room.
            Err(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS) if no_wait => no_wait = false,
            Err(libc::EINTR) => {}
            // Another writer took the room that there was, or the program made the descriptor non-blocking.
            Err(libc::EAGAIN) if now_ms() < until => {}
            Err(_) => return,
        }
    }
}

/// Waits until the descriptor has room, or an error to report. `false`: the time is over.
fn is_ready(fd: c_int, timeout_ms: i64) -> bool {
    let mut asked = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    let timeout =
        libc::timespec { tv_sec: timeout_ms.max(0) / 1_000, tv_nsec: timeout_ms.max(0) % 1_000 * 1_000_000 };
    // SAFETY: both are valid; no mask is given.
    let n = unsafe {
        sys::system_call(
            libc::SYS_ppoll,
            &raw mut asked,
            1 as c_long,
            &raw const timeout,
            std::ptr::null::<u64>(),
            8 as c_long,
        )
    };
    // Interrupted: the caller's loop looks at the time.
    n > 0 || (n < 0 && sys::errno() == libc::EINTR && timeout_ms > 0)
}

fn write_once(fd: c_int, text: &[u8], no_wait: bool) -> Result<usize, c_int> {
    // SAFETY: the buffer is valid for its length.
    let n = unsafe {
        if no_wait {
            let part = libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() };
            let (current, high, flags) = (-1 as c_long, 0 as c_long, libc::RWF_NOWAIT as c_long);
            sys::system_call(
                libc::SYS_pwritev2,
                fd as c_long,
                &raw const part,
                1 as c_long,
                current,
                high,
                flags,
            )
        } else {
            sys::system_call(libc::SYS_write, fd as c_long, text.as_ptr(), text.len())
        }
    };
    if n < 0 { Err(sys::errno()) } else { Ok(n as usize) }
}

/// The signals that are pending for this thread or its process.
fn pending() -> u64 {
    let mut set = 0u64;
    // SAFETY: the kernel writes 8 bytes.
    unsafe { sys::system_call(libc::SYS_rt_sigpending, &raw mut set, 8 as c_long) };
    set
}

/// Consumes pending signals.
fn take(mut set: u64) {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    while set != 0 {
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the pointers are null or valid.
        let signal = unsafe {
            sys::system_call(libc::SYS_rt_sigtimedwait, &raw const set, none, &raw const now, 8 as c_long)
        };
        if signal <= 0 {
            return;
        }
        set &= !(1 << (signal - 1));
    }
}

fn now_ms() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid.
    unsafe { sys::system_call(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC as c_long, &raw mut now) };
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}
