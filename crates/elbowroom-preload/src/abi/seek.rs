//! lseek and ioctl.

use crate::agent::seek;
use libc::{c_int, c_ulong, c_void, off_t};

export! {
    lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t = seek::seek;
    lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t = seek::seek;
    __lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t = seek::seek;
    llseek(fd: c_int, offset: off_t, whence: c_int) -> off_t = seek::seek;
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int = seek::control;
}
