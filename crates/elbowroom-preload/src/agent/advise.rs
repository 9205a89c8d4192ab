//! process_madvise(2) of a process on itself: on managed memory it is madvise(2), range by range. The kernel
//! alone would drop managed pages with what was stored in them.

use super::bring;
use super::ranges;
use crate::base::changes;
use crate::base::real;
use crate::base::reserve;
use crate::base::state;
use crate::base::sys::{self, PAGE};
use crate::rules::advice as rules;
use elbowroom::Manager;
use libc::{c_int, c_long, c_uint, iovec, size_t, ssize_t};

/// The most parts that the kernel takes in one call.
const MAX_PARTS: usize = 1024;
/// How many parts are read at a time: a signal handler's stack may be small.
const BATCH: usize = 16;
/// The kernel's largest range of all parts, in bytes.
const MAX_BYTES: usize = i32::MAX as usize & !(PAGE - 1);
/// Descriptors that mean the caller's own thread and process (Linux 6.14 and later).
const PIDFD_SELF: [c_int; 2] = [-10000, -10001];
/// Enough of /proc/self/fdinfo of a pidfd: "Pid:" is its sixth line.
const INFO_BYTES: usize = 512;

pub unsafe fn advise(pidfd: c_int, parts: *const iovec, n: size_t, advice: c_int, flags: c_uint) -> ssize_t {
    if let Some((_, manager)) = state::alive()
        && touches_windows(manager, parts, n)
        && is_this_process(pidfd)
    {
        // SAFETY: the caller's promise.
        return unsafe { advise_self(pidfd, parts, n, advice, flags) };
    }
    let mut is_library = false;
    each_part(parts, n.min(MAX_PARTS), |part| {
        is_library |= reserve::refuses(part.iov_base.addr(), part.iov_len);
        true
    });
    if is_library && is_this_process(pidfd) {
        return sys::fail(libc::ENOMEM) as ssize_t;
    }
    if !rules::leaves_mapping(advice) {
        changes::note(0, usize::MAX);
    }
    // SAFETY: the caller's promise.
    unsafe { real::process_madvise(pidfd, parts, n, advice, flags) }
}

/// Reads the parts, calls `each` until it says `false`, and says whether all were read.
fn each_part(parts: *const iovec, n: usize, mut each: impl FnMut(&iovec) -> bool) -> bool {
    let mut batch = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
    for first in (0..n).step_by(BATCH) {
        let batch = &mut batch[..BATCH.min(n - first)];
        let bytes = size_of_val(batch);
        let from = parts.wrapping_add(first).addr();
        if bring::copy_checked(from, batch.as_mut_ptr().addr(), bytes) != bytes {
            return false;
        }
        if !batch.iter().all(&mut each) {
            break;
        }
    }
    true
}

/// Whether any part is managed. `false` for what the kernel will refuse, too.
fn touches_windows(manager: &Manager, parts: *const iovec, n: usize) -> bool {
    let mut found = false;
    let readable = n <= MAX_PARTS
        && each_part(parts, n, |part| {
            found |= part.iov_len > 0 && manager.windows().intersects(part.iov_base.addr(), part.iov_len);
            part.iov_len <= isize::MAX as usize
        });
    readable && found
}

/// Calls madvise for each part. Gives the bytes of the parts before the first that fails, or its error if
/// there are none.
///
/// # Safety
/// As process_madvise.
unsafe fn advise_self(pidfd: c_int, parts: *const iovec, n: usize, advice: c_int, flags: c_uint) -> ssize_t {
    // Asked about no parts, the kernel says what is wrong with the other arguments, and whether a process
    // may give this advice in this way.
    // SAFETY: an empty array.
    let asked =
        unsafe { real::process_madvise(pidfd, std::ptr::NonNull::dangling().as_ptr(), 0, advice, flags) };
    if asked < 0 {
        return asked;
    }
    let (mut done, mut failed) = (0, false);
    each_part(parts, n, |part| {
        let len = part.iov_len.min(MAX_BYTES - done);
        // SAFETY: the caller's promise, for one of its parts.
        failed = len > 0 && unsafe { ranges::advise(part.iov_base, len, advice) } != 0;
        done += if failed { 0 } else { len };
        !failed
    });
    if failed && done == 0 { -1 } else { done as ssize_t }
}

/// Whether a pidfd is of this process, or of one of its threads. Where that cannot be found out: yes, since
/// its addresses are those of managed memory. `errno` is kept.
fn is_this_process(pidfd: c_int) -> bool {
    if PIDFD_SELF.contains(&pidfd) {
        return true;
    }
    let kept = sys::errno();
    let ours = match pid_of(pidfd) {
        Some(pid) if pid as u32 == sys::getpid() => true,
        // SAFETY: signal 0 asks only whether the process has such a thread.
        Some(pid) => unsafe {
            sys::system_call(libc::SYS_tgkill, sys::getpid() as c_long, pid, 0 as c_long) == 0
        },
        None => true,
    };
    sys::set_errno(kept);
    ours
}

/// What "Pid:" says about a pidfd; 0 or less is none of this PID namespace. `None`: it is no pidfd, or there
/// is no /proc.
fn pid_of(pidfd: c_int) -> Option<c_long> {
    const PREFIX: &[u8] = b"/proc/thread-self/fdinfo/";
    let mut path = [0; 64];
    path[..PREFIX.len()].copy_from_slice(PREFIX);
    let mut digits = u32::try_from(pidfd).ok()?;
    let len = digits.checked_ilog10().unwrap_or(0) as usize + 1;
    for place in path[PREFIX.len()..][..len].iter_mut().rev() {
        *place = b'0' + (digits % 10) as u8;
        digits /= 10;
    }
    let mut text = [0; INFO_BYTES];
    let text = sys::read_file(&path, &mut text)?;
    number_after(text, b"\nPid:\t")
}

fn number_after(text: &[u8], key: &[u8]) -> Option<c_long> {
    let at = text.windows(key.len()).position(|window| window == key)?;
    let rest = &text[at + key.len()..];
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    std::str::from_utf8(&rest[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_process_is_found() {
        let info = b"pos:\t0\nflags:\t02000002\nmnt_id:\t16\nino:\t7\nPid:\t4711\nNSpid:\t4711\n";
        assert_eq!(number_after(info, b"\nPid:\t"), Some(4711));
        assert_eq!(number_after(b"pos:\t0\nPid:\t-1\n", b"\nPid:\t"), Some(-1));
        assert_eq!(number_after(b"pos:\t0\nNSpid:\t1\n", b"\nPid:\t"), None);
    }

    #[test]
    fn a_pidfd_of_this_process_is_known() {
        // SAFETY: integers only.
        let own =
            unsafe { sys::system_call(libc::SYS_pidfd_open, libc::c_long::from(sys::getpid() as i32), 0) };
        assert!(own >= 0 && is_this_process(own as c_int));
        // SAFETY: as above.
        let first = unsafe { sys::system_call(libc::SYS_pidfd_open, 1 as c_long, 0) };
        assert!(first < 0 || sys::getpid() == 1 || !is_this_process(first as c_int));
        assert_eq!(pid_of(2), None);
    }
}
