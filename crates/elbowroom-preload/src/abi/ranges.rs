//! Calls on ranges of mapped memory.

use crate::agent::ranges;
use libc::{c_int, c_uchar, c_uint, c_ulong, c_void, size_t};

export! {
    mprotect(addr: *mut c_void, len: size_t, prot: c_int) -> c_int = ranges::protect;
    pkey_mprotect(addr: *mut c_void, len: size_t, prot: c_int, key: c_int) -> c_int
        = ranges::protect_with_key;
    msync(addr: *mut c_void, len: size_t, flags: c_int) -> c_int = ranges::synchronize;
    madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int = ranges::advise;
    posix_madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int = ranges::posix_advise;
    mseal(addr: *mut c_void, len: size_t, flags: c_ulong) -> c_int = ranges::seal;
    mincore(addr: *mut c_void, len: size_t, out: *mut c_uchar) -> c_int = ranges::resident;
    mlock(addr: *const c_void, len: size_t) -> c_int = ranges::lock;
    mlock2(addr: *const c_void, len: size_t, flags: c_uint) -> c_int = ranges::lock_with;
    munlock(addr: *const c_void, len: size_t) -> c_int = ranges::unlock;
    mlockall(flags: c_int) -> c_int = ranges::lock_all;
    munlockall() -> c_int = ranges::unlock_all;
    remap_file_pages(addr: *mut c_void, size: size_t, prot: c_int, page: size_t, flags: c_int) -> c_int
        = ranges::remap_pages;
}
