//! The file table of the service threads, which is not the program's (docs/decisions/0002).

use crate::base::sys;
use libc::c_long;
use std::os::fd::RawFd;

/// Gives this thread, and the threads that it starts, an empty file table. The numbers of the standard
/// descriptors are taken by O_PATH descriptors, which cannot be read or written, so that no file of ours
/// gets them.
///
/// # Errors
/// The kernel's: Linux 5.9 or later has it.
pub fn make_empty() -> std::io::Result<()> {
    const CLOSE_RANGE_UNSHARE: libc::c_long = 1 << 1;
    // SAFETY: integers only; the table that is emptied is this thread's own copy.
    let r = unsafe {
        sys::system_call(
            libc::SYS_close_range,
            0 as libc::c_long,
            u32::MAX as libc::c_long,
            CLOSE_RANGE_UNSHARE,
        )
    };
    if r != 0 {
        return Err(std::io::Error::last_os_error());
    }
    for _ in 0..3 {
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        // SAFETY: the path is a valid string.
        let fd = unsafe {
            sys::system_call(
                libc::SYS_openat,
                libc::AT_FDCWD as libc::c_long,
                c"/".as_ptr(),
                flags as libc::c_long,
            )
        };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Gives the calling thread, and those that it starts, a file table with the descriptors `opened`: pairs of
/// the present number and the one in the new table. All other numbers up to `top` are taken by O_PATH
/// descriptors: the copied heap has owners of such numbers, and when the child drops one, it closes only
/// that.
///
/// # Errors
/// The kernel's.
pub fn inherit(opened: &[(RawFd, RawFd)], top: RawFd) -> std::io::Result<()> {
    let call = |number: c_long, arguments: [c_long; 3]| -> std::io::Result<RawFd> {
        let [a, b, c] = arguments;
        // SAFETY: integers, but for the path of openat; the table is this thread's own, or becomes so first.
        match unsafe { sys::system_call(number, a, b, c) } {
            result if result < 0 => Err(std::io::Error::last_os_error()),
            result => Ok(result as RawFd),
        }
    };
    call(libc::SYS_unshare, [libc::CLONE_FILES as c_long, 0, 0])?;
    let mut kept = Vec::new();
    for (fd, number) in opened {
        let above = [*fd as c_long, libc::F_DUPFD_CLOEXEC as c_long, top as c_long + 1];
        kept.push((call(libc::SYS_fcntl, above)?, *number));
    }
    let mut from = 0;
    for (fd, _) in &kept {
        if *fd as c_long > from {
            call(libc::SYS_close_range, [from, *fd as c_long - 1, 0])?;
        }
        from = *fd as c_long + 1;
    }
    call(libc::SYS_close_range, [from, u32::MAX as c_long, 0])?;
    let flags = (libc::O_PATH | libc::O_CLOEXEC) as c_long;
    let nothing = call(libc::SYS_openat, [libc::AT_FDCWD as c_long, c"/".as_ptr() as c_long, flags])?;
    for number in (0..=top).filter(|number| *number != nothing) {
        call(libc::SYS_dup3, [nothing as c_long, number as c_long, libc::O_CLOEXEC as c_long])?;
    }
    for (fd, number) in kept {
        call(libc::SYS_dup3, [fd as c_long, number as c_long, libc::O_CLOEXEC as c_long])?;
        call(libc::SYS_close, [fd as c_long, 0, 0])?;
    }
    Ok(())
}
