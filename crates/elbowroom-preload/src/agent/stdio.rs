//! stdio reads and writes with calls inside libc that cannot be interposed. So a file that a stream may
//! write, or that it reads while mappings of it may be stored to, is the kernel's: it is handed back when
//! such a stream is opened, and not managed while one is open. A stream that only reads and mappings that
//! only read do not disturb each other.
//!
//! Standard input, output and error are never opened by the program: their files are found by their
//! descriptors. A function that writes to a descriptor without a stream (dprintf) is seen when it is
//! called.
//!
//! Not seen: streams that libc opens for itself (setmntent, and those of its data bases), and descriptors
//! below 3 that open(2) or fcntl(2) gives after 0, 1 or 2 was closed.

use crate::agent::coherence;
use crate::agent::request::{self, Change, Op};
use crate::base::real;
use crate::base::state;
use crate::base::stderr;
use crate::base::streams::{Entry, Kind, LASTING, Streams};
use crate::base::sys;
use elbowroom::FileId;
use libc::{FILE, c_char, c_int, c_void};
use std::ffi::CStr;

/// The streams that the program has opened. A forked child has its own copies of them, and so of this.
static STREAMS: Streams = Streams::new();
/// Standard input's descriptor; output's and error's follow.
const STDIN: c_int = libc::STDIN_FILENO;
const STDERR: c_int = libc::STDERR_FILENO;

/// Whether a stream keeps the file from being managed. `writable`: its mappings may be stored to.
pub fn conflict(id: FileId, writable: bool) -> bool {
    let standard = |fd| standard_kind(fd).conflicts(writable) && regular(sys::fstat(fd)) == Some(id);
    STREAMS.conflict(id, writable) || (STDIN..=STDERR).any(standard)
}

fn standard_kind(fd: c_int) -> Kind {
    if fd == STDIN { Kind::Reader } else { Kind::Writer }
}

fn regular(stat: Option<libc::stat>) -> Option<FileId> {
    let stat = stat.filter(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG)?;
    Some(FileId { device: stat.st_dev, inode: stat.st_ino })
}

/// Gives the file to the kernel if it is managed in a way that a stream of this kind excludes. The errno if
/// it cannot be: the stream must not be opened.
fn give_way(id: Option<FileId>, kind: Kind) -> Result<(), c_int> {
    let Some(id) = id else { return Ok(()) };
    let Some((process, _)) = state::alive_with_files() else { return Ok(()) };
    if !process.managed.may_contain(id.device, id.inode) {
        return Ok(());
    }
    request::submit(process, Op::StreamOpens(id, kind)).map(drop)
}

/// Leaves a descriptor's file to the kernel from now on: it is used by calls that cannot be interposed, and
/// whose end is not seen. The errno if the file cannot go to the kernel.
pub fn leave_for_good(fd: c_int, kind: Kind) -> Result<(), c_int> {
    let Some(id) = regular(sys::fstat(fd)) else { return Ok(()) };
    // A stream of the program's may be closed again, so `conflict` is not enough here.
    if !STREAMS.has_lasting(id, kind)
        && let Some(entry) = STREAMS.claim()
    {
        STREAMS.name(entry, Some(id), kind);
        STREAMS.bind(entry, LASTING, -1);
    }
    give_way(Some(id), kind)
}

/// Has the bytes of a file that a stream has written read anew when the file is mapped next.
fn forget(file: Option<(FileId, Kind)>) {
    if let Some((id, Kind::Writer)) = file
        && let Some((process, _)) = state::alive()
        && process.managed.may_contain(id.device, id.inode)
    {
        // An error here shows when the file is mapped.
        let _ = request::submit(process, Op::Refresh(id, Change::Resized(0..u64::MAX)));
    }
}

unsafe fn kind(mode: *const c_char) -> Kind {
    // SAFETY: the caller's promise: a string.
    Kind::of_mode(unsafe { CStr::from_ptr(mode) }.to_bytes())
}

/// Fails as functions do that return a stream.
fn no_stream(errno: c_int) -> *mut FILE {
    sys::set_errno(errno);
    std::ptr::null_mut()
}

/// Opens a stream of the file that is expected to be `id`, and takes it into the table. The file is looked at
/// before, since opening may truncate it, and after, since a path can change.
///
/// # Safety
/// As the function that `call` calls, whose stream nobody else knows yet.
unsafe fn entered(id: Option<FileId>, kind: Kind, call: impl FnOnce() -> *mut FILE) -> *mut FILE {
    let entry = STREAMS.claim();
    if let Some(entry) = entry {
        STREAMS.name(entry, id, kind);
    }
    let release = || {
        if let Some(entry) = entry {
            STREAMS.release(entry);
        }
    };
    if let Err(errno) = give_way(id, kind) {
        release();
        return no_stream(errno);
    }
    let file = call();
    if file.is_null() {
        release();
        return file;
    }
    // SAFETY: an open stream.
    let fd = unsafe { fileno(file) };
    let opened = regular(sys::fstat(fd));
    if opened != id {
        if let Some(entry) = entry {
            STREAMS.name(entry, opened, kind);
        }
        if let Err(errno) = give_way(opened, kind) {
            // SAFETY: nobody else knows it yet, the caller's promise.
            unsafe { real::fclose(file) };
            release();
            return no_stream(errno);
        }
    }
    if let Some(entry) = entry {
        STREAMS.bind(entry, file.addr(), fd);
    }
    file
}

/// The descriptor of an open stream. `errno` is kept.
unsafe fn fileno(file: *mut FILE) -> c_int {
    let kept = sys::errno();
    // SAFETY: the caller's promise.
    let fd = unsafe { libc::fileno(file) };
    sys::set_errno(kept);
    fd
}

pub unsafe fn open(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::fopen64(path, mode) };
    if state::for_program().is_none() {
        return call();
    }
    let id = regular(sys::stat_at(libc::AT_FDCWD, path, 0));
    // SAFETY: the caller's promise.
    unsafe { entered(id, kind(mode), call) }
}

pub unsafe fn open_fd(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::fdopen(fd, mode) };
    if state::for_program().is_none() {
        return call();
    }
    let id = regular(sys::fstat(fd));
    // SAFETY: the caller's promise. The file is the same afterwards, unless another thread closes descriptors
    // of others.
    unsafe { entered(id, kind(mode), call) }
}

pub unsafe fn open_nameless() -> *mut FILE {
    // SAFETY: takes nothing.
    let call = || unsafe { real::tmpfile64() };
    if state::for_program().is_none() {
        return call();
    }
    // SAFETY: as above.
    unsafe { entered(None, Kind::Writer, call) }
}

pub unsafe fn open_again(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::freopen64(path, mode, file) };
    if state::for_program().is_none() {
        return call();
    }
    let id = if path.is_null() {
        // SAFETY: the caller's promise: an open stream, whose mode changes.
        regular(sys::fstat(unsafe { fileno(file) }))
    } else {
        regular(sys::stat_at(libc::AT_FDCWD, path, 0))
    };
    // The old entry still counts while the stream's buffer is written.
    let before = STREAMS.unbind(file.addr());
    // SAFETY: the caller's promise.
    let opened = unsafe { entered(id, kind(mode), call) };
    closed(before);
    opened
}

pub unsafe fn close(file: *mut FILE) -> c_int {
    let entry = match state::for_program() {
        Some(_) => STREAMS.unbind(file.addr()),
        None => None,
    };
    if stderr::is_ending() {
        // SAFETY: the caller's promise.
        stderr::before_close(unsafe { fileno(file) });
    }
    // SAFETY: the caller's promise.
    let r = unsafe { real::fclose(file) };
    closed(entry);
    r
}

/// Frees the entry of a stream that is closed, if it has one. `errno` is kept.
fn closed(entry: Option<Entry>) {
    if let Some(entry) = entry {
        forget(STREAMS.file(entry));
        STREAMS.release(entry);
    }
}

pub unsafe fn copy_fd(fd: c_int) -> c_int {
    // SAFETY: integers only.
    let new = unsafe { real::dup(fd) };
    if (STDIN..=STDERR).contains(&new)
        && let Err(errno) = give_way(coherence::managed_fd(new).map(|target| target.id), standard_kind(new))
    {
        // SAFETY: the copy that nobody knows yet.
        unsafe { real::close(new) };
        return sys::fail(errno);
    }
    if new == STDERR {
        standard_error_changed();
    }
    new
}

pub unsafe fn copy_fd_to(fd: c_int, to: c_int) -> c_int {
    // SAFETY: integers only.
    copy_under(fd, to, || unsafe { real::dup2(fd, to) })
}

pub unsafe fn copy_fd_with(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: integers only.
    copy_under(fd, to, || unsafe { real::dup3(fd, to, flags) })
}

/// Makes `to` a copy of `fd`: a stream that uses `to` gets another file.
fn copy_under(fd: c_int, to: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let entry = match state::for_program() {
        Some(_) if fd != to => STREAMS.with_fd(to),
        Some(_) | None => None,
    };
    let kind = match entry.map(|entry| STREAMS.file(entry)) {
        Some(Some((_, kind))) => kind,
        // Of what was no regular file it is not known what the stream does.
        Some(None) => Kind::Writer,
        None if (STDIN..=STDERR).contains(&to) && fd != to => standard_kind(to),
        None => return call(),
    };
    let target = coherence::managed_fd(fd);
    if let Err(errno) = give_way(target.map(|target| target.id), kind) {
        return sys::fail(errno);
    }
    let r = call();
    if to == STDERR && r == to && fd != to {
        standard_error_changed();
    }
    // A child that shares our memory has descriptors of its own.
    if let Some(entry) = entry
        && r == to
        && state::process().is_none_or(|process| process.is_home())
    {
        STREAMS.name(entry, regular(sys::fstat(to)), kind);
    }
    r
}

/// Tells the service threads that descriptor 2 was replaced: the reader of a pipe that was there must not
/// wait for our duplicate to be closed. `errno` is kept.
fn standard_error_changed() {
    if let Some((process, _)) = state::alive().filter(|(process, _)| process.is_home()) {
        let _ = request::submit(process, Op::StandardErrorChanged);
    }
}

/// Gives the file to the kernel, and returns libc's function, which writes to the descriptor by itself. The
/// call cannot be refused here: that the file could not be handed back shows in the flusher's errors.
pub fn before_print(fd: c_int, name: &CStr) -> *mut c_void {
    if state::alive_with_files().is_some() {
        let _ = give_way(coherence::managed_fd(fd).map(|target| target.id), Kind::Writer);
    }
    real::next(name)
}
