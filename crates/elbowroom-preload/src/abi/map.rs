//! mmap, munmap, mremap and shmat; mmap, munmap and mremap once more, under names for the library before
//! malloc: its mappings are known as the heap's, and its calls do not count as the program's changes of a
//! block.

use crate::agent::{attach, remap, unmap};
use crate::process::start;
use libc::{c_int, c_void, off_t, size_t};

export! {
    mmap(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void
        = start::map;
    mmap64(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void
        = start::map;
    munmap(addr: *mut c_void, len: size_t) -> c_int = unmap::unmap_for_program;
    mremap(old: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, new: *mut c_void) -> *mut c_void
        = remap::remap_for_program;
    shmat(segment: c_int, addr: *const c_void, flags: c_int) -> *mut c_void = attach::attach;
    elbowroom_map(len: size_t, flags: c_int) -> *mut c_void = start::map_heap;
    elbowroom_unmap(addr: *mut c_void, len: size_t) -> c_int = unmap::unmap;
    elbowroom_remap(
        old: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, new: *mut c_void,
    ) -> *mut c_void = remap::remap;
}
