//! System calls without which our threads cannot work, tried before there are any: a filter (seccomp) may
//! deny one, and what then fails in libc, in std or in a thread that serves faults has no way back.
//!
//! Only calls are here whose failure nobody handles later. Each is made with arguments that the kernel
//! refuses, by a known error: any other answer is the filter's.

use super::sys;
use libc::{c_int, c_long};

/// A descriptor that is none.
const NONE: c_long = -1;
/// More descriptors than a process can have.
const TOO_MANY: c_long = u32::MAX as c_long;
/// An address that no word of four bytes has.
const ODD: c_long = 1;

/// Name, number, first arguments, and the error that the kernel has for these.
const CALLS: [(&str, c_long, [c_long; 2], c_int); 7] = [
    ("read", libc::SYS_read, [NONE, 0], libc::EBADF),
    ("write", libc::SYS_write, [NONE, 0], libc::EBADF),
    ("pread64", libc::SYS_pread64, [NONE, 0], libc::EBADF),
    ("pwrite64", libc::SYS_pwrite64, [NONE, 0], libc::EBADF),
    ("close", libc::SYS_close, [NONE, 0], libc::EBADF),
    ("ppoll", libc::SYS_ppoll, [0, TOO_MANY], libc::EINVAL),
    ("futex", libc::SYS_futex, [ODD, libc::FUTEX_WAKE as c_long], libc::EINVAL),
];

/// The first of these calls that is denied to this thread, and so to those that it starts, and the error.
pub fn find() -> Option<(&'static str, c_int)> {
    let kept = sys::errno();
    let denied = |call: c_long, [first, second]: [c_long; 2], expected: c_int| {
        let none = 0 as c_long;
        // SAFETY: integers and null pointers, which the kernel refuses.
        let r = unsafe { sys::system_call(call, first, second, none, none, none, none) };
        let error = if r < 0 { sys::errno() } else { 0 };
        (error != expected).then_some(error)
    };
    let called = |(name, call, words, expected)| denied(call, words, expected).map(|error| (name, error));
    // A thread of libc's ends the process if it cannot do here what the main thread could.
    let rseq = || denied(libc::SYS_rseq, [0, 0], libc::EINVAL).map(|error| ("rseq", error));
    let found = CALLS.into_iter().find_map(called).or_else(|| rseq().filter(|_| threads_need_rseq()));
    sys::set_errno(kept);
    found
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
        assert_eq!(super::find(), None);
    }
}
