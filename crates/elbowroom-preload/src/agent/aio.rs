//! Asynchronous reads and writes: those of libc, which threads inside libc make, and those of libaio, which
//! the kernel makes after the call has returned. Neither can be framed, so a file that they use is left to
//! the kernel from then on (stdio.rs).

use super::bring;
use super::stdio::leave_for_good;
use super::user_mode;
use crate::base::real;
use crate::base::state;
use crate::base::streams::Kind;
use crate::base::sys;
use libc::{aiocb, c_int, c_long, c_void, sigevent};

/// Where the descriptor is in libaio's (and the kernel's) iocb.
const IOCB_FD: usize = 20;
/// Where there is what it does, and its buffer's address and length (or those of an array of parts).
const IOCB_OPCODE: usize = 16;
/// How many bytes it has, to one of which the kernel stores.
const IOCB_BYTES: usize = 64;
const IOCB_BUFFER: usize = 24;
const IOCB_LEN: usize = 32;
/// IOCB_CMD_PREADV and IOCB_CMD_PWRITEV.
const IOCB_READ_PARTS: u16 = 7;
const IOCB_WRITE_PARTS: u16 = 8;
/// The most parts that the kernel takes.
const MOST_PARTS: usize = 1024;

/// The 32-bit number at an address of the program's, if it can be read.
fn number_at(at: usize) -> Option<c_int> {
    let mut number: c_int = 0;
    let len = size_of::<c_int>();
    let copied = bring::copy_checked(at, (&raw mut number).addr(), len);
    (copied == len).then_some(number)
}

fn pointer_at(at: usize) -> Option<usize> {
    let mut pointer = 0usize;
    let len = size_of::<usize>();
    let copied = bring::copy_checked(at, (&raw mut pointer).addr(), len);
    (copied == len).then_some(pointer)
}

/// Leaves the file of a request to the kernel. A request that cannot be read is refused by the call itself.
fn before(block: usize, fd_offset: usize, kind: Kind) -> Result<(), c_int> {
    if state::for_program().is_none() || block == 0 {
        return Ok(());
    }
    let kept = sys::errno();
    let fd = number_at(block + fd_offset);
    sys::set_errno(kept);
    fd.map_or(Ok(()), |fd| leave_for_good(fd, kind))
}

/// Where only faults of instructions are served: calls `leave` with each of `n` requests of a list, up to the
/// first that cannot be read.
fn leave_all(blocks: usize, n: i64, leave: impl Fn(usize)) {
    if bring::manager().is_none() {
        return;
    }
    for index in 0..usize::try_from(n).unwrap_or(0) {
        let Some(block) = pointer_at(blocks + index * size_of::<usize>()) else { return };
        leave(block);
    }
}

/// Has the buffer of a request go to the kernel, where only faults of instructions are served.
fn leave_aio_buffer(block: *mut aiocb) {
    if bring::manager().is_none() || block.is_null() {
        return;
    }
    let word = |offset: usize| pointer_at(block.addr() + offset);
    if let (Some(at), Some(len)) =
        (word(std::mem::offset_of!(aiocb, aio_buf)), word(std::mem::offset_of!(aiocb, aio_nbytes)))
    {
        user_mode::leave_to_kernel(at as *const c_void, len);
    }
    user_mode::leave_to_kernel(block.cast(), size_of::<aiocb>());
}

/// As [`leave_aio_buffer`], for libaio's (and the kernel's) iocb: the buffer, or the array of buffers and
/// these.
fn leave_iocb_buffer(block: usize) {
    if block == 0 {
        return;
    }
    user_mode::leave_to_kernel(block as *const c_void, IOCB_BYTES);
    let (Some(opcode), Some(at), Some(len)) =
        (number_at(block + IOCB_OPCODE), pointer_at(block + IOCB_BUFFER), pointer_at(block + IOCB_LEN))
    else {
        return;
    };
    if !matches!(opcode as u16, IOCB_READ_PARTS | IOCB_WRITE_PARTS) {
        return user_mode::leave_to_kernel(at as *const c_void, len);
    }
    user_mode::leave_to_kernel(at as *const c_void, len.min(MOST_PARTS) * size_of::<libc::iovec>());
    for index in 0..len.min(MOST_PARTS) {
        let part = at + index * size_of::<libc::iovec>();
        if let (Some(at), Some(len)) = (pointer_at(part), pointer_at(part + size_of::<usize>())) {
            user_mode::leave_to_kernel(at as *const c_void, len);
        }
    }
}

/// Calls [`before`] for each of `n` requests of a list.
fn before_all(blocks: usize, n: i64, fd_offset: usize) -> Result<(), c_int> {
    for index in 0..usize::try_from(n).unwrap_or(0) {
        match pointer_at(blocks + index * size_of::<usize>()) {
            // What the request does is not looked at: that it writes is the stricter assumption.
            Some(block) => before(block, fd_offset, Kind::Writer)?,
            None => break,
        }
    }
    Ok(())
}

pub unsafe fn read(block: *mut aiocb) -> c_int {
    match before(block.addr(), std::mem::offset_of!(aiocb, aio_fildes), Kind::Reader) {
        Ok(()) => {
            leave_aio_buffer(block);
            // SAFETY: the caller's promise.
            unsafe { real::aio_read64(block.cast()) }
        }
        Err(errno) => sys::fail(errno),
    }
}

pub unsafe fn write(block: *mut aiocb) -> c_int {
    match before(block.addr(), std::mem::offset_of!(aiocb, aio_fildes), Kind::Writer) {
        Ok(()) => {
            leave_aio_buffer(block);
            // SAFETY: the caller's promise.
            unsafe { real::aio_write64(block.cast()) }
        }
        Err(errno) => sys::fail(errno),
    }
}

pub unsafe fn sync(operation: c_int, block: *mut aiocb) -> c_int {
    // What mappings have stored is part of what is synced: it is written when the file goes to the kernel.
    match before(block.addr(), std::mem::offset_of!(aiocb, aio_fildes), Kind::Reader) {
        // SAFETY: the caller's promise.
        Ok(()) => unsafe { real::aio_fsync64(operation, block.cast()) },
        Err(errno) => sys::fail(errno),
    }
}

pub unsafe fn list(mode: c_int, blocks: *const *mut aiocb, n: c_int, event: *mut sigevent) -> c_int {
    let kept = sys::errno();
    let ready = before_all(blocks.addr(), n.into(), std::mem::offset_of!(aiocb, aio_fildes));
    sys::set_errno(kept);
    match ready {
        Ok(()) => {
            leave_all(blocks.addr(), n.into(), |block| leave_aio_buffer(block as *mut aiocb));
            // SAFETY: the caller's promise.
            unsafe { real::lio_listio64(mode, blocks.cast(), n, event.cast()) }
        }
        Err(errno) => sys::fail(errno),
    }
}

/// io_submit of libaio, which gives the negative errno and leaves `errno` alone.
pub unsafe fn submit(context: *mut c_void, n: c_long, blocks: *const *mut c_void) -> c_int {
    state::note_transfers();
    let kept = sys::errno();
    let done = before_all(blocks.addr(), n, IOCB_FD).and_then(|()| {
        leave_all(blocks.addr(), n, leave_iocb_buffer);
        // SAFETY: the kernel checks all of it.
        let r = unsafe { sys::system_call(libc::SYS_io_submit, context, n, blocks) };
        if r < 0 { Err(sys::errno()) } else { Ok(r as c_int) }
    });
    sys::set_errno(kept);
    done.unwrap_or_else(|errno| -errno)
}

/// io_submit(2), which fails with -1 and `errno`.
///
/// # Safety
/// As io_submit(2).
pub unsafe fn submit_by_number(context: *mut c_void, n: c_long, blocks: *const *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let r = unsafe { submit(context, n, blocks) };
    if r < 0 { sys::fail(-r) } else { r }
}
