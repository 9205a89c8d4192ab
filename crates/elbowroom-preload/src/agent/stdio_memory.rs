//! The functions of stdio that are given memory, which libc passes on to system calls of its own where only
//! faults of instructions are served (user_mode.rs).
//!
//! A large block goes in portions. If a page of one is not in memory, the stream has an error and the
//! position where it stopped: the page is brought, the error is cleared, and the rest tried again. Most
//! blocks are small, and go through the stream's buffer by instructions, so nothing is brought before.

use crate::agent::bring::{self, MOST_BYTES, MOST_CALLS, Part};
use crate::agent::cleanup::with_cleanup;
use crate::agent::user_mode;
use crate::base::real;
use crate::base::sys;
use libc::{FILE, c_char, c_int, c_void, size_t};

unsafe extern "C" {
    fn flockfile(file: *mut FILE);
    fn funlockfile(file: *mut FILE);
    fn clearerr_unlocked(file: *mut FILE);
    fn ferror_unlocked(file: *mut FILE) -> c_int;
    static mut stdout: *mut FILE;
}

/// Whether any of these bytes are managed, and need care.
fn needs_care(at: *const c_void, len: usize) -> bool {
    bring::manager().is_some_and(|(_, manager)| manager.windows().intersects(at.addr(), len))
}

/// Transfers `len` bytes in portions; gives how many. `transfer` is given an offset and a length.
///
/// # Safety
/// The stream is open, and the caller has its lock.
unsafe fn in_portions(
    file: *mut FILE,
    len: usize,
    part: impl Fn(usize, usize) -> Part,
    transfer: impl Fn(usize, usize) -> usize,
) -> usize {
    let (mut done, mut tries) = (0, 0);
    while done < len && tries < MOST_CALLS {
        let n = (len - done).min(MOST_BYTES);
        let moved = transfer(done, n);
        done += moved;
        if moved == n {
            tries = 0;
            continue;
        }
        // SAFETY: the caller's promise.
        let failed = unsafe { ferror_unlocked(file) } != 0;
        if !failed || sys::errno() != libc::EFAULT || !bring::bring_part(&part(done, len - done)) {
            break;
        }
        // SAFETY: the caller's promise.
        unsafe { clearerr_unlocked(file) };
        tries = if moved == 0 { tries + 1 } else { 0 };
    }
    done
}

/// # Safety
/// As fread, with the stream's lock.
unsafe fn read_portions(to: *mut c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t {
    let len = size.saturating_mul(n);
    let at = |offset: usize| to.wrapping_byte_add(offset);
    // SAFETY: the caller's promise: a part of its buffer.
    let transfer = |offset, len| unsafe { real::fread_unlocked(at(offset), 1, len, file) };
    // SAFETY: the caller's promise.
    let done = unsafe { in_portions(file, len, |offset, len| Part::stored(at(offset), len), transfer) };
    if done == len { n } else { done / size }
}

/// # Safety
/// As fwrite, with the stream's lock.
unsafe fn write_portions(from: *const c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t {
    let len = size.saturating_mul(n);
    let at = |offset: usize| from.wrapping_byte_add(offset);
    // SAFETY: the caller's promise: a part of its buffer.
    let transfer = |offset, len| unsafe { real::fwrite_unlocked(at(offset), 1, len, file) };
    // SAFETY: the caller's promise.
    let done = unsafe { in_portions(file, len, |offset, len| Part::loaded(at(offset), len), transfer) };
    if done == len { n } else { done / size }
}

/// # Safety
/// The stream is locked by this thread.
unsafe extern "C" fn unlock(file: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { funlockfile(file.cast()) };
}

/// Runs `call` with the lock of a stream.
///
/// # Safety
/// The stream is open.
unsafe fn locked<R>(file: *mut FILE, call: impl FnOnce() -> R) -> R {
    // SAFETY: the caller's promise. A thread that ends in the call leaves the stream unlocked.
    unsafe {
        flockfile(file);
        let result = with_cleanup(unlock, file.cast(), call);
        funlockfile(file);
        result
    }
}

pub unsafe fn read(to: *mut c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t {
    if !needs_care(to, size.saturating_mul(n)) {
        // SAFETY: the caller's promise.
        return unsafe { real::fread(to, size, n, file) };
    }
    // SAFETY: the caller's promise.
    unsafe { locked(file, || read_portions(to, size, n, file)) }
}

pub unsafe fn read_unlocked(to: *mut c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t {
    if !needs_care(to, size.saturating_mul(n)) {
        // SAFETY: the caller's promise.
        return unsafe { real::fread_unlocked(to, size, n, file) };
    }
    // SAFETY: the caller's promise: the lock is the caller's, or not needed.
    unsafe { read_portions(to, size, n, file) }
}

pub unsafe fn read_checked(
    to: *mut c_void,
    room: size_t,
    size: size_t,
    n: size_t,
    file: *mut FILE,
) -> size_t {
    let len = size.saturating_mul(n);
    if len > room || !needs_care(to, len) {
        // SAFETY: the caller's promise; libc ends the program if the buffer is too small.
        return unsafe { real::__fread_chk(to, room, size, n, file) };
    }
    // SAFETY: the caller's promise.
    unsafe { locked(file, || read_portions(to, size, n, file)) }
}

pub unsafe fn read_unlocked_checked(
    to: *mut c_void,
    room: size_t,
    size: size_t,
    n: size_t,
    file: *mut FILE,
) -> size_t {
    let len = size.saturating_mul(n);
    if len > room || !needs_care(to, len) {
        // SAFETY: as in `read_checked`.
        return unsafe { real::__fread_unlocked_chk(to, room, size, n, file) };
    }
    // SAFETY: as in `read_unlocked`.
    unsafe { read_portions(to, size, n, file) }
}

pub unsafe fn write(from: *const c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t {
    if !needs_care(from, size.saturating_mul(n)) {
        // SAFETY: the caller's promise.
        return unsafe { real::fwrite(from, size, n, file) };
    }
    // SAFETY: the caller's promise.
    unsafe { locked(file, || write_portions(from, size, n, file)) }
}

pub unsafe fn write_unlocked(from: *const c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t {
    if !needs_care(from, size.saturating_mul(n)) {
        // SAFETY: the caller's promise.
        return unsafe { real::fwrite_unlocked(from, size, n, file) };
    }
    // SAFETY: as in `read_unlocked`.
    unsafe { write_portions(from, size, n, file) }
}

pub unsafe fn write_text(text: *const c_char, file: *mut FILE) -> c_int {
    if !needs_care(text.cast(), 1) {
        // SAFETY: the caller's promise.
        return unsafe { real::fputs(text, file) };
    }
    // SAFETY: the caller's promise: a string, and an open stream.
    unsafe {
        let len = libc::strlen(text);
        if locked(file, || write_portions(text.cast(), 1, len, file)) == len { 1 } else { libc::EOF }
    }
}

pub unsafe fn write_text_unlocked(text: *const c_char, file: *mut FILE) -> c_int {
    if !needs_care(text.cast(), 1) {
        // SAFETY: the caller's promise.
        return unsafe { real::fputs_unlocked(text, file) };
    }
    // SAFETY: the caller's promise: a string, and an open stream, whose lock is the caller's, or not needed.
    unsafe {
        let len = libc::strlen(text);
        if write_portions(text.cast(), 1, len, file) == len { 1 } else { libc::EOF }
    }
}

pub unsafe fn write_line(text: *const c_char) -> c_int {
    if !needs_care(text.cast(), 1) {
        // SAFETY: the caller's promise.
        return unsafe { real::puts(text) };
    }
    // SAFETY: the caller's promise: a string; standard output is libc's.
    unsafe {
        let (file, len) = (stdout, libc::strlen(text));
        let write = || {
            write_portions(text.cast(), 1, len, file) == len
                && real::fwrite_unlocked(c"\n".as_ptr().cast(), 1, 1, file) == 1
        };
        if locked(file, write) { 1 } else { libc::EOF }
    }
}

pub unsafe fn set_buffer(file: *mut FILE, buffer: *mut c_char, mode: c_int, len: size_t) -> c_int {
    leave_buffer(buffer, len);
    // SAFETY: the caller's promise.
    unsafe { real::setvbuf(file, buffer, mode, len) }
}

pub unsafe fn set_usual_buffer(file: *mut FILE, buffer: *mut c_char) {
    leave_buffer(buffer, libc::BUFSIZ as usize);
    // SAFETY: the caller's promise.
    unsafe { real::setbuf(file, buffer) }
}

pub unsafe fn set_buffer_fully(file: *mut FILE, buffer: *mut c_char, len: size_t) {
    leave_buffer(buffer, len);
    // SAFETY: the caller's promise.
    unsafe { real::setbuffer(file, buffer, len) }
}

fn leave_buffer(buffer: *mut c_char, len: size_t) {
    if !buffer.is_null() {
        user_mode::leave_to_kernel(buffer.cast(), len);
    }
}
