//! stdio, and copies of descriptors.

use crate::agent::{stdio, stdio_memory};
use libc::{FILE, c_char, c_int, c_void, size_t};

export! {
    fopen(path: *const c_char, mode: *const c_char) -> *mut FILE = stdio::open;
    fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE = stdio::open;
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = stdio::open_fd;
    freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE = stdio::open_again;
    freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE = stdio::open_again;
    tmpfile() -> *mut FILE = stdio::open_nameless;
    tmpfile64() -> *mut FILE = stdio::open_nameless;
    fread(to: *mut c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t = stdio_memory::read;
    fread_unlocked(to: *mut c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t
        = stdio_memory::read_unlocked;
    __fread_chk(to: *mut c_void, room: size_t, size: size_t, n: size_t, file: *mut FILE) -> size_t
        = stdio_memory::read_checked;
    __fread_unlocked_chk(to: *mut c_void, room: size_t, size: size_t, n: size_t, file: *mut FILE) -> size_t
        = stdio_memory::read_unlocked_checked;
    fwrite(from: *const c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t = stdio_memory::write;
    fwrite_unlocked(from: *const c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t
        = stdio_memory::write_unlocked;
    fputs(text: *const c_char, file: *mut FILE) -> c_int = stdio_memory::write_text;
    fputs_unlocked(text: *const c_char, file: *mut FILE) -> c_int = stdio_memory::write_text_unlocked;
    setbuf(file: *mut FILE, buffer: *mut c_char) -> () = stdio_memory::set_usual_buffer;
    puts(text: *const c_char) -> c_int = stdio_memory::write_line;
    setvbuf(file: *mut FILE, buffer: *mut c_char, mode: c_int, len: size_t) -> c_int
        = stdio_memory::set_buffer;
    setbuffer(file: *mut FILE, buffer: *mut c_char, len: size_t) -> () = stdio_memory::set_buffer_fully;
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
