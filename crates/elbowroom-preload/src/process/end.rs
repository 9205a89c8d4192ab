//! The end of the process: dirty pages are written back, then the summary is written, once, whichever end
//! comes first.
//!
//! With a manager, a service thread collects the figures and writes the statistics file; the ending thread
//! only writes text to standard error, or has a service thread write it if descriptor 2 was closed. Nothing
//! is allocated on the ending thread, and no buffer is on its stack: it may be in a signal handler, whose
//! alternate stack may have room for little more than what the kernel puts there.
//!
//! Synchronization: the thread that changes [`Process::ended`] from [`NOT_REPORTED`] reports, with its
//! signals blocked; other threads that end the process wait for it, for [`PATIENCE_MS`] at most. The buffers
//! of the report without a manager belong to the thread that sets [`UNMANAGED_TAKEN`], for good.

use crate::agent::flush::flush;
use crate::agent::request::{self, Answer, Op};
use crate::base::config::Options;
use crate::base::report::{Buffer, report_of};
use crate::base::run;
use crate::base::state::{self, Process};
use crate::base::stderr;
use crate::base::sys::{self, Except, SignalsBlocked};
use crate::process::{threads, unmanaged};
use std::cell::UnsafeCell;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// [`Process::ended`]: no thread has reported.
const NOT_REPORTED: u32 = 0;
/// A thread reports.
const REPORTS: u32 = 1;
/// The report was made.
const REPORTED: u32 = 2;
/// How long a thread waits for another one's report, in milliseconds: longer than a write to standard error
/// waits for its reader.
const PATIENCE_MS: u32 = 3_000;

/// To be called when the process ends: writes back, and reports.
pub fn process_ends() {
    threads::give_held();
    flush();
    if state::for_program().is_some_and(Process::is_home) {
        unmanaged::say();
    }
    report(Always::ForMainProcess);
    if state::for_program().is_some_and(Process::is_home) {
        run::ends();
    }
}

/// To be called before an exec: writes back, and reports. If the exec fails, the result goes to
/// [`process_goes_on`], so that the next end reports again.
pub fn process_is_replaced() -> Reported {
    flush();
    report(Always::No)
}

/// To be called when the exec has failed.
pub fn process_goes_on(reported: Reported) {
    if reported == Reported::Now
        && let Some(process) = state::for_program().filter(|process| process.is_home())
    {
        process.ended.store(NOT_REPORTED, Ordering::Release);
    }
}

/// Whether a call has reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reported {
    /// This call has reported.
    Now,
    /// There was nothing to report, or another thread does.
    Not,
}

/// Whether a process without a manager reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Always {
    /// It reports if it is the process that `elbowroom run` became.
    ForMainProcess,
    /// It does not.
    No,
}

fn report(always: Always) -> Reported {
    let Some(process) = state::for_program().filter(|process| process.is_home()) else {
        return Reported::Not;
    };
    let Some(options) = state::options() else { return Reported::Not };
    let is_main = options.main_pid == sys::getpid();
    let manager = process.manager();
    if manager.is_none() && !(is_main && always == Always::ForMainProcess) {
        return Reported::Not;
    }
    // A signal that ends the process is held until after the report, which would be lost with its thread
    // otherwise.
    let _blocked = SignalsBlocked::new(Except::Nothing);
    let (none, takes) = (NOT_REPORTED, REPORTS);
    if let Err(state) = process.ended.compare_exchange(none, takes, Ordering::AcqRel, Ordering::Acquire) {
        if state == REPORTS {
            sys::futex_wait(&process.ended, REPORTS, Some(PATIENCE_MS));
        }
        return Reported::Not;
    }
    match manager {
        Some(_) => {
            if let Ok(Answer::Text(text)) = request::submit(process, Op::Report)
                && !text.is_empty()
            {
                say(process, text);
            }
        }
        None => report_unmanaged(process, options, options.report.quiet || stderr::descriptor().is_none()),
    }
    process.ended.store(REPORTED, Ordering::Release);
    sys::futex_wake(process.ended.as_ptr(), i32::MAX);
    Reported::Now
}

/// Writes the text to the file that standard error was when the program started. If the program has closed
/// it, the service threads may still have their duplicate.
fn say(process: &Process, text: &'static str) {
    match stderr::descriptor() {
        Some(fd) => stderr::write_to(fd, text.as_bytes()),
        None if stderr::is_closed() => drop(request::submit(process, Op::Say(text))),
        None => {}
    }
}

/// Where a report without a manager is put together.
struct Unmanaged {
    text: Buffer<6144>,
    json: Buffer<8192>,
    path: [u8; libc::PATH_MAX as usize],
}

struct Shared(UnsafeCell<Unmanaged>);

// SAFETY: only who has set `UNMANAGED_TAKEN` uses it.
unsafe impl Sync for Shared {}

static UNMANAGED: Shared = Shared(UnsafeCell::new(Unmanaged {
    text: Buffer::new(),
    json: Buffer::new(),
    path: [0; libc::PATH_MAX as usize],
}));
static UNMANAGED_TAKEN: AtomicBool = AtomicBool::new(false);

/// Reports without a manager, and so without service threads: by system calls alone, and only for the main
/// process.
#[inline(never)]
fn report_unmanaged(process: &Process, options: &Options, quiet: bool) {
    if UNMANAGED_TAKEN.swap(true, Ordering::AcqRel) {
        return;
    }
    // SAFETY: it was not taken, and is never given back.
    let buffers = unsafe { &mut *UNMANAGED.0.get() };
    let report = report_of(process, None);
    if !quiet {
        let _ = write!(buffers.text, "{report}");
        stderr::write(buffers.text.as_bytes());
    }
    if options.report.contention && stderr::descriptor().is_some() {
        stderr::write(b"elbowroom: no locks were used: nothing was managed\n");
    }
    if let Some(path) = options.report.stats.as_deref() {
        let made = report.json(&mut buffers.json).is_ok();
        write_unmanaged(
            path,
            &mut buffers.path,
            made.then_some(buffers.json.as_bytes()),
            "statistics",
            quiet,
        );
    }
    if let Some(path) = options.report.trace.as_deref() {
        write_unmanaged(path, &mut buffers.path, Some(EMPTY_TRACE), "trace", quiet);
    }
}

/// A trace without events.
const EMPTY_TRACE: &[u8] = b"{\"otherData\":{\"kept_events\":0,\"lost_events\":0},\"traceEvents\":[]}\n";

fn write_unmanaged(path: &Path, buffer: &mut [u8], text: Option<&[u8]>, what: &str, quiet: bool) {
    let bytes = path.as_os_str().as_bytes();
    let written = bytes.len() < buffer.len()
        && text.is_some_and(|text| {
            buffer[..bytes.len()].copy_from_slice(bytes);
            buffer[bytes.len()] = 0;
            write_raw(buffer, text)
        });
    if !written && !quiet {
        for part in [b"elbowroom: cannot write the ".as_slice(), what.as_bytes(), b" to ", bytes, b"\n"] {
            stderr::write(part);
        }
    }
}

/// Writes a file with nothing but system calls; `path` ends with a 0 byte.
fn write_raw(path: &[u8], bytes: &[u8]) -> bool {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC;
    // SAFETY: `path` is terminated, `bytes` is valid, and the descriptor is closed here.
    unsafe {
        let dir = libc::AT_FDCWD as libc::c_long;
        let fd = sys::system_call(
            libc::SYS_openat,
            dir,
            path.as_ptr(),
            flags as libc::c_long,
            0o666 as libc::c_long,
        );
        if fd < 0 {
            return false;
        }
        let n = stderr::quietly(|| sys::system_call(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()));
        sys::system_call(libc::SYS_close, fd);
        n == bytes.len() as libc::c_long
    }
}
