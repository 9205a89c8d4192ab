//! Opening files.

use crate::agent::open;
use libc::{c_char, c_int, c_void, mode_t};

export! {
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = open::open_path;
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = open::open_path;
    __open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = open::open_path;
    __open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = open::open_path;
    __open_2(path: *const c_char, flags: c_int) -> c_int = open::open_path_checked;
    __open64_2(path: *const c_char, flags: c_int) -> c_int = open::open_path_checked;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = open::open_at;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = open::open_at;
    __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int = open::open_at_checked;
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int = open::open_at_checked;
    creat(path: *const c_char, mode: mode_t) -> c_int = open::create;
    creat64(path: *const c_char, mode: mode_t) -> c_int = open::create;
    open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int = open::open_handle;
}
