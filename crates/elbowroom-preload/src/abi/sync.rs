//! fsync and relatives, and close.

use crate::agent::sync;
use libc::{c_int, c_uint, off_t};

export! {
    fsync(fd: c_int) -> c_int = sync::sync_all;
    fdatasync(fd: c_int) -> c_int = sync::sync_data;
    sync_file_range(fd: c_int, offset: off_t, len: off_t, flags: c_uint) -> c_int = sync::sync_range;
    syncfs(fd: c_int) -> c_int = sync::sync_filesystem;
    sync() -> () = sync::sync_everything;
    close(fd: c_int) -> c_int = sync::close_fd;
    __close(fd: c_int) -> c_int = sync::close_fd;
}
