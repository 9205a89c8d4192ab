//! stdio writes with libc's own internal write. Where its buffer goes to a managed file, the write is framed
//! here; whether and what was written shows in the descriptor's position.
//!
//! Not seen: what other functions than these push out of a full buffer; it is seen at the next of these, or
//! when the manager looks at the file's times.

use crate::coherence::{self, BOUNCE_BYTES, Target};
use crate::real;
use crate::request::{Change, Flush};
use crate::reserve::Buffer;
use crate::state;
use crate::sys::{self, PAGE};
use libc::{FILE, c_char, c_int, c_void, size_t};

export! {
    fflush(file: *mut FILE) -> c_int = flush;
    fclose(file: *mut FILE) -> c_int = close;
    fwrite(from: *const c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t = write;
    fwrite_unlocked(from: *const c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t = write_unlocked;
    fputs(text: *const c_char, file: *mut FILE) -> c_int = put;
    fputs_unlocked(text: *const c_char, file: *mut FILE) -> c_int = put_unlocked;
}

unsafe extern "C" {
    fn flockfile(file: *mut FILE);
    fn funlockfile(file: *mut FILE);
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// The managed file that `file` writes to, if there is one.
unsafe fn managed(file: *mut FILE) -> Option<(Target, c_int)> {
    state::alive_with_files()?;
    if file.is_null() {
        return None;
    }
    let kept = sys::errno();
    // SAFETY: the caller's promise: an open stream.
    let fd = unsafe { libc::fileno(file) };
    sys::set_errno(kept);
    Some((coherence::managed_fd(fd)?, fd))
}

/// Frames a stdio call on a managed file. The stream's lock is taken first: a thread that waits for it must
/// not hold write-back off meanwhile.
unsafe fn around<R>(
    target: &Target,
    fd: c_int,
    file: *mut FILE,
    call: impl FnOnce() -> R,
) -> Result<R, c_int> {
    let mut cancel = 0;
    // SAFETY: the stream is open, the caller's promise.
    unsafe {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut cancel);
        flockfile(file);
    }
    let done = coherence::framed(target, 0..u64::MAX, Flush::First, || {
        let appends = sys::open_flags(fd).is_some_and(|flags| flags & libc::O_APPEND != 0);
        let before = if appends { Some(target.size) } else { sys::position(fd) };
        let r = call();
        let kept = sys::errno();
        let written = match (before, sys::position(fd)) {
            (Some(before), Some(after)) if after > before => before..after,
            _ => 0..0,
        };
        sys::set_errno(kept);
        (r, Change::Written(written))
    });
    // SAFETY: taken above.
    unsafe {
        funlockfile(file);
        pthread_setcancelstate(cancel, &mut cancel);
    }
    done
}

unsafe fn flush(file: *mut FILE) -> c_int {
    // SAFETY: the caller's promise.
    let Some((target, fd)) = (unsafe { managed(file) }) else {
        // SAFETY: the caller's promise.
        return unsafe { real::fflush(file) };
    };
    // SAFETY: the caller's promise.
    unsafe { around(&target, fd, file, || real::fflush(file)) }.unwrap_or_else(sys::fail)
}

unsafe fn close(file: *mut FILE) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { managed(file) }.is_some() {
        // SAFETY: as above. What it meets, the close meets again.
        unsafe { flush(file) };
    }
    // SAFETY: the caller's promise.
    unsafe { real::fclose(file) }
}

type Write = unsafe fn(*const c_void, size_t, size_t, *mut FILE) -> size_t;

unsafe fn write(from: *const c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t {
    // SAFETY: the caller's promise.
    unsafe { write_with(real::fwrite, from, size, n, file) }
}

unsafe fn write_unlocked(from: *const c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t {
    // SAFETY: the caller's promise.
    unsafe { write_with(real::fwrite_unlocked, from, size, n, file) }
}

unsafe fn write_with(write: Write, from: *const c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t {
    // SAFETY: the caller's promise.
    let (Some((target, fd)), Some(total)) = (unsafe { managed(file) }, size.checked_mul(n)) else {
        // SAFETY: the caller's promise.
        return unsafe { write(from, size, n, file) };
    };
    if total == 0 {
        return 0;
    }
    if target.manager.windows().intersects(from as usize, total) {
        // SAFETY: the caller's promise.
        return unsafe { write_bounced(&target, fd, write, from, total, file) } / size;
    }
    // SAFETY: the caller's promise.
    unsafe { around(&target, fd, file, || write(from, size, n, file)) }.unwrap_or_else(|errno| {
        sys::set_errno(errno);
        0
    })
}

/// From managed memory to a managed file: through a buffer (see coherence.rs). Gives the bytes taken.
unsafe fn write_bounced(
    target: &Target,
    fd: c_int,
    write: Write,
    from: *const c_void,
    total: usize,
    file: *mut FILE,
) -> usize {
    let Some(mut buffer) = Buffer::new(total.next_multiple_of(PAGE).min(BOUNCE_BYTES)) else {
        sys::set_errno(libc::ENOMEM);
        return 0;
    };
    let mut done = 0;
    while done < total {
        let len = (total - done).min(BOUNCE_BYTES);
        let part = &mut buffer.bytes()[..len];
        // SAFETY: the caller's promise: `total` bytes to read. The buffer is not part of them.
        unsafe { from.cast::<u8>().add(done).copy_to_nonoverlapping(part.as_mut_ptr(), len) };
        let part = part.as_ptr().cast();
        // SAFETY: the caller's promise.
        let taken = unsafe { around(target, fd, file, || write(part, 1, len, file)) }.unwrap_or(0);
        done += taken;
        if taken < len {
            break;
        }
    }
    done
}

unsafe fn put(text: *const c_char, file: *mut FILE) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { put_with(real::fputs, real::fwrite, text, file) }
}

unsafe fn put_unlocked(text: *const c_char, file: *mut FILE) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { put_with(real::fputs_unlocked, real::fwrite_unlocked, text, file) }
}

unsafe fn put_with(
    put: unsafe fn(*const c_char, *mut FILE) -> c_int,
    write: Write,
    text: *const c_char,
    file: *mut FILE,
) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { managed(file) }.is_none() {
        // SAFETY: the caller's promise.
        return unsafe { put(text, file) };
    }
    // SAFETY: the caller's promise: a string.
    let len = unsafe { libc::strlen(text) };
    // SAFETY: the caller's promise.
    let taken = unsafe { write_with(write, text.cast(), 1, len, file) };
    if taken == len { 1 } else { libc::EOF }
}
