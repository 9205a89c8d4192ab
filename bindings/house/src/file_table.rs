//! The file table of the manager's threads, which is not the program's (docs/decisions/0002).
//!
//! A program that closes all descriptors (daemons do) would close the userfaultfd in its own table, and
//! managed memory would read as zeros from then on.

use libc::{c_int, c_long};
use std::io;
use std::os::fd::RawFd;

/// Gives the calling thread, and the threads that it starts, an empty file table. The numbers of the standard
/// descriptors are taken by descriptors that cannot be read or written.
///
/// # Errors
/// The kernel's: Linux 5.9 or later has the call.
pub fn make_empty() -> io::Result<()> {
    let unshare = libc::CLOSE_RANGE_UNSHARE as c_long;
    call(libc::SYS_close_range, [0, c_long::from(u32::MAX), unshare])?;
    (0..3).try_for_each(|_| open_nothing().map(drop))
}

/// Gives the calling thread, and the threads that it starts, a file table with the descriptors `opened`:
/// pairs of the present number and the number in the new table. All other numbers up to `top` are taken by
/// descriptors of nothing: a forked child has copies of values that own such numbers, and when it drops one
/// of them, it must close nothing else.
///
/// # Errors
/// The kernel's.
pub fn inherit(opened: &[(RawFd, RawFd)], top: RawFd) -> io::Result<()> {
    call(libc::SYS_unshare, [c_long::from(libc::CLONE_FILES), 0, 0])?;
    let mut kept = Vec::new();
    for (fd, number) in opened {
        let above = [c_long::from(*fd), c_long::from(libc::F_DUPFD_CLOEXEC), c_long::from(top) + 1];
        kept.push((call(libc::SYS_fcntl, above)?, *number));
    }
    kept.sort_unstable();
    let mut from: c_long = 0;
    for (fd, _) in &kept {
        if c_long::from(*fd) > from {
            call(libc::SYS_close_range, [from, c_long::from(*fd) - 1, 0])?;
        }
        from = c_long::from(*fd) + 1;
    }
    call(libc::SYS_close_range, [from, c_long::from(u32::MAX), 0])?;
    let nothing = open_nothing()?;
    let duplicate = |fd: RawFd, number: RawFd| {
        call(libc::SYS_dup3, [c_long::from(fd), c_long::from(number), c_long::from(libc::O_CLOEXEC)])
    };
    for number in (0..=top).filter(|number| *number != nothing) {
        duplicate(nothing, number)?;
    }
    for (fd, number) in kept {
        duplicate(fd, number)?;
        call(libc::SYS_close, [c_long::from(fd), 0, 0])?;
    }
    Ok(())
}

/// The highest number in the calling thread's table.
pub fn highest_number() -> RawFd {
    let numbers = std::fs::read_dir("/proc/thread-self/fd").into_iter().flatten().flatten();
    numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).max().unwrap_or(0)
}

fn open_nothing() -> io::Result<RawFd> {
    let flags = c_long::from(libc::O_PATH | libc::O_CLOEXEC);
    call(libc::SYS_openat, [c_long::from(libc::AT_FDCWD), c"/".as_ptr() as c_long, flags])
}

fn call(number: c_long, arguments: [c_long; 3]) -> io::Result<c_int> {
    let [a, b, c] = arguments;
    // SAFETY: integers, but for the path of openat, which is static; the table is the calling thread's own,
    // or the call makes it so.
    match unsafe { libc::syscall(number, a, b, c) } {
        result if result < 0 => Err(io::Error::last_os_error()),
        result => Ok(result as c_int),
    }
}
