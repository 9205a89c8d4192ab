//! The library that `elbowroom run` preloads into a program.
//!
//! It stands before libc's functions that map, read, write, sync and resize files, that end or replace the
//! process, and that set signal dispositions. Mappings that qualify (rules/map.rs) are made by the manager;
//! everything else goes to the kernel unchanged and is counted by reason. Without the environment variable
//! [`config::VARIABLE`], all mappings go to the kernel.
//!
//! # What is interposed, and why
//! * mmap, munmap, mremap, mprotect, msync, madvise, mincore, mlock and relatives: they act on managed
//!   memory.
//! * the write family, truncate, fallocate, open with O_TRUNC, copy_file_range, sendfile, splice: mappings
//!   must see what they store.
//! * the read family, lseek and ioctl: they must see what was stored through mappings.
//! * fsync and relatives, close: they report the file's write-back error.
//! * fopen, fdopen, freopen, fclose, dup2: stdio reads and writes with internal calls that cannot be
//!   interposed, so files that it writes are left to the kernel (agent/stdio.rs); dprintf.
//! * aio_read, io_submit and relatives: as for stdio (agent/aio.rs).
//! * vmsplice and the send family: a zero-copy send must not take pages that move (agent/lend.rs).
//! * _exit, abort, the exec family, posix_spawn, system, popen, clone, vfork, _Fork; exit, quick_exit and
//!   fork by libc's own hooks: dirty pages are written back first. fork itself, so that it can fail.
//! * sigaction and relatives, the signal mask, longjmp and pthread_create: see [`process::signals`].
//! * getrlimit, setrlimit, prlimit: see [`process::limits`].
//! * pthread_create and __cxa_thread_atexit_impl, for the library's own threads: see [`reserve`]; and with
//!   thrd_create for those of the program: see [`threads`].
//!
//! # What is not covered
//! System calls by instructions of the program's own (Go programs) on managed memory or files; reads and
//! writes of managed files by io_uring. Transfers of other files into and out of managed memory by io_uring
//! and aio are fine, but for zero-copy sends without registered buffers, and, where pages are copied, not
//! moved, for what docs/limits.md names. vfork followed by anything but exec or _exit.
//!
//! # Concurrency
//! A thread of the program that calls in takes no lock and allocates nothing, but for fork, pthread_create
//! and limits; it blocks its signals while a service thread works for it (agent/request.rs). So all of this
//! may be called in signal handlers, except that the first mapping that qualifies starts threads. Service
//! threads (agent/service.rs) have a file table of their own, block all signals but libc's two, never touch
//! the program's memory, and their own calls of interposed functions go straight to the kernel. State that a
//! forked child must not inherit is wiped by the kernel (base/state.rs).

mod base;
mod rules;

mod agent;
mod process;

mod abi;

use base::reason::Reason;
use base::{allocator, config, executable, real, reserve, run, said, state, stderr, sys, tree};
use process::{end, fork, threads};
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;

#[global_allocator]
static HEAP: reserve::Heap = reserve::Heap;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn() = construct;

/// Runs when the library is loaded, before the program's main and before its threads.
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C" fn construct() {
    real::resolve();
    // SAFETY: the name is a string; no other thread exists.
    let text = unsafe { libc::getenv(config::C_VARIABLE.as_ptr()) };
    if text.is_null() {
        return;
    }
    // SAFETY: the environment holds strings.
    let text = unsafe { CStr::from_ptr(text) };
    match config::parse(OsStr::from_bytes(text.to_bytes())) {
        Ok(mut options) => {
            stderr::remember();
            if let Some(name) = allocator::sanitizer() {
                return leave_all(&options, name);
            }
            run::enter(&mut options);
            let swap = options.swap.bytes > 0;
            state::set_up(options);
            if swap {
                leave_private_memory();
            }
            fork::register();
            tree::set_up();
            register_ends();
            threads::set_up();
        }
        Err(error) => {
            stderr::write_first(format!("elbowroom: {error}\n").as_bytes());
            sys::exit_group(sys::CANNOT_RUN_STATUS);
        }
    }
}

/// Leaves the program's private memory to the kernel if the program changes it by calls that this library
/// does not see.
fn leave_private_memory() {
    let reason = if allocator::is_in_the_executable() {
        Reason::OwnAllocator
    } else if executable::is_go() {
        said::say(format_args!(
            "a Go program: its private memory is not managed, since its runtime changes it by system calls \
             of its own"
        ));
        Reason::GoRuntime
    } else {
        return;
    };
    // The constructor runs once.
    let _ = state::PRIVATE_MEMORY_LEFT.set(reason);
}

/// Nothing of this process is managed: as without options, all calls go on to the kernel.
fn leave_all(options: &config::Options, sanitizer: &str) {
    if options.fallback == config::Fallback::None {
        let (name, pid) = (base::report::program_name(), sys::getpid());
        let line = format!(
            "elbowroom: {name} (pid {pid}): it has the runtime of {sanitizer}, beside which no manager can \
             be: nothing of it is managed\n"
        );
        stderr::write(line.as_bytes());
    }
}

/// Asks libc to call us at exit and quick_exit. The handlers belong to no library and are registered before
/// the program registers any. So they run after all exit handlers and destructors, which may still store to
/// mapped files.
fn register_ends() {
    unsafe extern "C" {
        fn __cxa_atexit(
            handler: unsafe extern "C" fn(*mut libc::c_void),
            argument: *mut libc::c_void,
            dso: *mut libc::c_void,
        ) -> libc::c_int;
        fn __cxa_at_quick_exit(
            handler: unsafe extern "C" fn(*mut libc::c_void),
            dso: *mut libc::c_void,
        ) -> libc::c_int;
    }
    unsafe extern "C" fn at_end(_: *mut libc::c_void) {
        end::process_ends();
    }
    // SAFETY: the handler stays valid: this library is never unloaded.
    unsafe {
        __cxa_atexit(at_end, std::ptr::null_mut(), std::ptr::null_mut());
        __cxa_at_quick_exit(at_end, std::ptr::null_mut());
    }
}
