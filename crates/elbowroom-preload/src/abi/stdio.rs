//! stdio, and copies of descriptors.

use crate::agent::stdio;
use libc::{FILE, c_char, c_int, c_void};

export! {
    fopen(path: *const c_char, mode: *const c_char) -> *mut FILE = stdio::open;
    fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE = stdio::open;
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = stdio::open_fd;
    freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE = stdio::open_again;
    freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE = stdio::open_again;
    tmpfile() -> *mut FILE = stdio::open_nameless;
    tmpfile64() -> *mut FILE = stdio::open_nameless;
    fclose(file: *mut FILE) -> c_int = stdio::close;
    dup(fd: c_int) -> c_int = stdio::copy_fd;
    dup2(fd: c_int, to: c_int) -> c_int = stdio::copy_fd_to;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int = stdio::copy_fd_with;
}

export_print! {
    dprintf = before_dprintf: c"dprintf";
    vdprintf = before_vdprintf: c"vdprintf";
    __dprintf_chk = before_dprintf_chk: c"__dprintf_chk";
    __vdprintf_chk = before_vdprintf_chk: c"__vdprintf_chk";
}
