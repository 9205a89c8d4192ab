//! System calls without which a manager cannot work, tried before there is one: a filter (seccomp) may deny
//! one, and there is no way to recover when it then fails in libc, in std or in a thread that serves
//! faults.
//!
//! Only calls are listed here whose failure is not handled later. Each is made with arguments that the
//! kernel refuses with a known error: any other result comes from the filter.

use libc::{c_long, syscall};
use rustix::io::Errno;

/// An invalid descriptor.
const NONE: c_long = -1;
/// More descriptors than a process can have; bits that no flags have.
const TOO_MANY: c_long = u32::MAX as c_long;
/// An address that is not aligned, neither for a word of four bytes nor for a page.
const ODD: c_long = 1;

/// Name, number, first arguments, and the error with which the kernel refuses these arguments.
const CALLS: [(&str, c_long, [c_long; 2], Errno); 11] = [
    ("read", libc::SYS_read, [NONE, 0], Errno::BADF),
    ("write", libc::SYS_write, [NONE, 0], Errno::BADF),
    ("pread64", libc::SYS_pread64, [NONE, 0], Errno::BADF),
    ("pwrite64", libc::SYS_pwrite64, [NONE, 0], Errno::BADF),
    ("close", libc::SYS_close, [NONE, 0], Errno::BADF),
    ("close_range", libc::SYS_close_range, [1, 0], Errno::INVAL),
    ("eventfd2", libc::SYS_eventfd2, [0, TOO_MANY], Errno::INVAL),
    ("futex", libc::SYS_futex, [ODD, libc::FUTEX_WAKE as c_long], Errno::INVAL),
    ("madvise", libc::SYS_madvise, [ODD, 0], Errno::INVAL),
    ("memfd_create", libc::SYS_memfd_create, [0, 0], Errno::FAULT),
    ("ppoll", libc::SYS_ppoll, [0, TOO_MANY], Errno::INVAL),
];

/// The first of these calls that is denied to this thread, and so to those that it starts, and the error
/// (0: the call said that it had worked). Takes some microseconds.
pub fn denied_call() -> Option<(&'static str, Errno)> {
    let denied = |call: c_long, [first, second]: [c_long; 2], expected: Errno| {
        let none: c_long = 0;
        // SAFETY: integers and null pointers, which the kernel refuses.
        let r = unsafe { syscall(call, first, second, none, none, none, none) };
        let error = if r < 0 { last_error() } else { Errno::from_raw_os_error(0) };
        (error != expected).then_some(error)
    };
    let called = |(name, call, words, expected)| denied(call, words, expected).map(|error| (name, error));
    // libc ends the process if a new thread cannot register its restartable sequences though the main
    // thread could.
    let rseq = || denied(libc::SYS_rseq, [0, 0], Errno::INVAL).map(|error| ("rseq", error));
    // libc starts threads by clone3, and by clone where there is none: CLONE_THREAD alone is invalid.
    let clone3 = denied(libc::SYS_clone3, [0, 0], Errno::INVAL).map(|error| ("clone3", error));
    let clone = || denied(libc::SYS_clone, [CLONE_THREAD, 0], Errno::INVAL).map(|error| ("clone", error));
    let cloned = match clone3 {
        Some((_, Errno::NOSYS)) => clone(),
        other => other,
    };
    CALLS.into_iter().find_map(called).or(cloned).or_else(|| rseq().filter(|_| threads_need_rseq()))
}

const CLONE_THREAD: c_long = libc::CLONE_THREAD as c_long;

fn last_error() -> Errno {
    // SAFETY: libc's errno of this thread, which is there as long as the thread.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// Whether libc has registered the main thread's restartable sequences, as it will each thread's.
fn threads_need_rseq() -> bool {
    // SAFETY: the name is a string.
    let size = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()) };
    // SAFETY: libc's own number, which stays.
    unsafe { size.cast::<libc::c_uint>().as_ref() }.is_some_and(|size| *size > 0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_is_denied_without_a_filter() {
        assert_eq!(super::denied_call(), None);
    }
}
