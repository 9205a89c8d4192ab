//! The end of the process: dirty pages are written back, then the summary is written, once, whichever end
//! comes first.
//!
//! With a manager, a service thread collects the figures and writes the statistics file; the ending thread
//! only writes text to standard error, which the service threads do not have. Nothing is allocated on the
//! ending thread, and no buffer is on its stack: it may be in a signal handler, whose alternate stack may
//! have room for little more than what the kernel puts there.
//!
//! Synchronization: who sets [`Process::ended`] reports; the buffers of the report without a manager belong
//! to who sets [`UNMANAGED_TAKEN`], for good.

use crate::config::Options;
use crate::contention;
use crate::fork;
use crate::request::{self, Op};
use crate::state::{self, Process};
use crate::summary::{Buffer, Report};
use crate::sys;
use elbowroom::{LockUse, Manager, Stats, TraceAbout};
use elbowroom_store::open_briefly;
use std::cell::UnsafeCell;
use std::fmt::Write;
use std::fs::File;
use std::io::BufWriter;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static STDERR_DEVICE: AtomicU64 = AtomicU64::new(0);
static STDERR_INODE: AtomicU64 = AtomicU64::new(0);

/// Remembers what standard error is. Called by the constructor.
pub fn remember_stderr() {
    if let Some(stat) = sys::fstat(2) {
        STDERR_DEVICE.store(stat.st_dev, Ordering::Relaxed);
        STDERR_INODE.store(stat.st_ino, Ordering::Relaxed);
    }
}

/// Whether descriptor 2 is still what it was: a program may have put a file of its own there.
fn stderr_is_unchanged() -> bool {
    let (device, inode) = (STDERR_DEVICE.load(Ordering::Relaxed), STDERR_INODE.load(Ordering::Relaxed));
    inode != 0 && sys::fstat(2).is_some_and(|stat| (stat.st_dev, stat.st_ino) == (device, inode))
}

/// Writes dirty pages back, as far as there are any. Also for children that share the memory: they may be
/// about to run something that reads the files.
pub fn flush() {
    let Some((process, manager)) = state::alive() else { return };
    if manager.dirty_pages() == 0 {
        return;
    }
    if let Err(errno) = request::submit(process, Op::FlushAll)
        && stderr_is_unchanged()
    {
        say_not_written(errno);
    }
}

/// Not inlined: its buffer is not on the stack of who succeeds.
#[inline(never)]
fn say_not_written(errno: i32) {
    let mut text = Buffer::<128>::new();
    let _ = writeln!(text, "elbowroom: stores to mapped files could not be written back: errno {errno}");
    sys::write_stderr(text.as_bytes());
}

/// The process ends now.
pub fn process_ends() {
    flush();
    report(Always::ForMainProcess);
}

/// The process is about to become another program, which may fail: the next end then reports again, if this
/// is told to [`process_goes_on`].
pub fn process_is_replaced() -> Reported {
    flush();
    report(Always::No)
}

/// The process did not become another program.
pub fn process_goes_on(reported: Reported) {
    if reported == Reported::Now
        && let Some(process) = state::for_program().filter(|process| process.is_home())
    {
        process.ended.store(false, Ordering::Release);
    }
}

/// Whether a call has reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reported {
    /// It has.
    Now,
    /// There was nothing to report, or another thread does.
    Not,
}

/// Whether a process without a manager reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Always {
    /// If it is the one that `elbowroom run` became.
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
    if process.ended.swap(true, Ordering::AcqRel) {
        return Reported::Not;
    }
    match manager {
        Some(_) => {
            if let Ok(text) = request::submit(process, Op::Report) {
                // SAFETY: the service thread leaked it for us, once per report.
                let text = unsafe { &*(text as *const String) };
                if !text.is_empty() && stderr_is_unchanged() {
                    sys::write_stderr(text.as_bytes());
                }
            }
        }
        None => report_unmanaged(process, options, options.quiet || !stderr_is_unchanged()),
    }
    Reported::Now
}

/// On a service thread: writes the statistics file, and gives the text for standard error, which may be
/// empty.
pub fn collect(process: &Process, manager: &Manager) -> String {
    let report = report_of(process, Some((manager.stats(), manager.lock_use())));
    let options = state::options();
    let quiet = options.is_some_and(|options| options.quiet);
    let mut text = if quiet { String::new() } else { report.to_string() };
    if options.is_some_and(|options| options.contention) {
        let Report { program, pid, locks, .. } = &report;
        let _ = write!(text, "{}", contention::Table { program, pid: *pid, locks });
    }
    let is_main = options.is_some_and(|options| options.main_pid == report.pid);
    let mut write = |path: Option<&Path>, what: &str, write: &dyn Fn(&Path) -> std::io::Result<()>| {
        let Some(path) = path else { return };
        let mut path = path.as_os_str().to_owned();
        if !is_main {
            path.push(format!(".{}", report.pid));
        }
        let path = PathBuf::from(path);
        if let Err(error) = write(&path)
            && !quiet
        {
            let _ = writeln!(text, "elbowroom: cannot write the {what} to {}: {error}", path.display());
        }
    };
    let path = options.and_then(|options| options.stats.as_deref());
    write(path, "statistics", &|path| write_stats(path, &report));
    let path = options.and_then(|options| options.trace.as_deref());
    write(path, "trace", &|path| write_trace(path, manager, &report));
    text
}

fn write_stats(path: &Path, report: &Report<'_>) -> std::io::Result<()> {
    let mut out = Vec::new();
    report.json(&mut out)?;
    std::fs::write(path, out)
}

fn write_trace(path: &Path, manager: &Manager, report: &Report<'_>) -> std::io::Result<()> {
    let Some(trace) = manager.trace() else { return Ok(()) };
    let mut out = BufWriter::new(File::create(path)?);
    let comm = |thread: u32| {
        let name = open_briefly(|| std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")));
        Some(name.ok()?.trim_end().to_owned())
    };
    trace
        .write_json(&mut out, &TraceAbout { program: report.program, pid: report.pid, thread_name: &comm })?;
    out.into_inner()?;
    Ok(())
}

fn report_of(process: &Process, figures: Option<(Stats, LockUse)>) -> Report<'_> {
    let managed = figures.is_some();
    let budget_bytes = state::options().map_or(0, |options| options.memory_bytes);
    let (stats, locks) =
        figures.unwrap_or_else(|| (Stats { budget_bytes, ..Stats::default() }, LockUse::default()));
    Report {
        stats,
        locks,
        forked_unmanaged: fork::unmanaged_children(),
        left_to_kernel: &process.left,
        pid: sys::getpid(),
        program: program_name(),
        managed,
    }
}

/// Where a report without a manager is put together.
struct Unmanaged {
    text: Buffer<2048>,
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

/// Without a manager there is no service thread either: by hand, and only ever for the main process.
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
        sys::write_stderr(buffers.text.as_bytes());
    }
    if options.contention && stderr_is_unchanged() {
        sys::write_stderr(b"elbowroom: no locks were used: nothing was managed\n");
    }
    if let Some(path) = options.stats.as_deref() {
        let made = report.json(&mut buffers.json).is_ok();
        write_unmanaged(
            path,
            &mut buffers.path,
            made.then_some(buffers.json.as_bytes()),
            "statistics",
            quiet,
        );
    }
    if let Some(path) = options.trace.as_deref() {
        write_unmanaged(path, &mut buffers.path, Some(EMPTY_TRACE), "trace", quiet);
    }
}

/// What nothing has happened in, as far as a manager would know.
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
            sys::write_stderr(part);
        }
    }
}

/// Writes a file with nothing but system calls; `path` ends with a 0 byte.
fn write_raw(path: &[u8], bytes: &[u8]) -> bool {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC;
    // SAFETY: `path` is terminated, `bytes` is valid, and the descriptor is closed by who opened it.
    unsafe {
        let dir = libc::AT_FDCWD as libc::c_long;
        let fd =
            libc::syscall(libc::SYS_openat, dir, path.as_ptr(), flags as libc::c_long, 0o666 as libc::c_long);
        if fd < 0 {
            return false;
        }
        let n = crate::stderr::quietly(|| libc::syscall(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()));
        libc::syscall(libc::SYS_close, fd);
        n == bytes.len() as libc::c_long
    }
}

fn program_name() -> &'static str {
    unsafe extern "C" {
        static program_invocation_short_name: *const libc::c_char;
    }
    // SAFETY: libc sets it before any of our code can end the process, to a string that is never freed.
    let name = unsafe {
        if program_invocation_short_name.is_null() {
            return "?";
        }
        std::ffi::CStr::from_ptr(program_invocation_short_name)
    };
    name.to_str().unwrap_or("?")
}
