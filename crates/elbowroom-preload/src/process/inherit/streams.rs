//! libc's list of streams around a fork.
//!
//! In the child libc goes through the list and resets each stream's lock (`fresetlockfiles`), before any
//! hook can register the windows: a page that is not there would read as zeros. So while the manager rests,
//! all pages of streams must be in memory. The list's lock is taken before the manager rests, since a
//! thread that holds it may wait for a fault. libc takes it once more for the fork, and makes it anew in
//! the child.

use crate::base::real;
use crate::base::sys::{self, PAGE};
use elbowroom::WindowTable;
use libc::{c_long, c_void};

/// More than libc allocates for a stream with its lock, in bytes.
const STREAM_BYTES: usize = 1 << 10;
/// The offset in a stream of the address of its lock (struct _IO_FILE, on all systems of 64 bits).
const LOCK_AT: usize = 136;
/// Bytes of a lock.
const LOCK_BYTES: usize = 16;

pub(super) fn lock() {
    // SAFETY: any thread may; it is given back by this thread.
    unsafe { real::_IO_list_lock() };
}

/// In the parent only.
pub(super) fn unlock() {
    // SAFETY: this thread has it.
    unsafe { real::_IO_list_unlock() };
}

/// Whether all pages of streams, and of their locks, that are in a window are in memory. Pages that are not
/// there are not read. The caller has the lock of the list.
pub(super) fn are_in_memory(windows: &WindowTable) -> bool {
    all_streams(|at| {
        pages_of(windows, at, STREAM_BYTES).all(is_resident)
            && pages_of(windows, lock_of(at), LOCK_BYTES).all(is_resident)
    })
}

/// Has all streams and their locks come in. The caller has the lock of the list, and the manager does not
/// rest.
pub(super) fn bring(windows: &WindowTable) {
    all_streams(|at| {
        pages_of(windows, at, STREAM_BYTES).for_each(read_one);
        pages_of(windows, lock_of(at), LOCK_BYTES).for_each(read_one);
        true
    });
}

/// Whether `holds` is true for the addresses of all streams. The first for which it is not ends the walk, and
/// is not read further.
fn all_streams(mut holds: impl FnMut(usize) -> bool) -> bool {
    // SAFETY: these only read libc's own pointer to the first.
    let (mut stream, end) = unsafe { (real::_IO_iter_begin(), real::_IO_iter_end()) };
    while stream != end {
        if !holds(stream as usize) {
            return false;
        }
        // SAFETY: the stream is on the list, whose lock the caller has; in memory, or the manager works.
        stream = unsafe { real::_IO_iter_next(stream) };
    }
    true
}

/// The address of the lock of the stream at `stream`, which is in memory, or the manager works.
fn lock_of(stream: usize) -> usize {
    // SAFETY: the stream is on libc's list, and has the address of its lock.
    unsafe { ((stream + LOCK_AT) as *const usize).read() }
}

/// The pages of `len` bytes at `at` that are in a window.
fn pages_of(windows: &WindowTable, at: usize, len: usize) -> impl Iterator<Item = usize> {
    (at & !(PAGE - 1)..at + len).step_by(PAGE).filter(|page| windows.intersects(*page, 1))
}

fn is_resident(page: usize) -> bool {
    let mut resident = 0_u8;
    // SAFETY: the kernel writes one byte, for one page.
    let result =
        unsafe { sys::system_call(libc::SYS_mincore, page as c_long, PAGE as c_long, &raw mut resident) };
    result == 0 && resident & 1 != 0
}

/// Has one page come in. The kernel reads: the memory behind a stream may not be mapped.
fn read_one(page: usize) {
    let mut byte = 0_u8;
    let (local, remote) = (
        libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 },
        libc::iovec { iov_base: page as *mut c_void, iov_len: 1 },
    );
    let process = crate::base::sys::getpid() as c_long;
    let (one, none) = (1 as c_long, 0 as c_long);
    // SAFETY: one vector each; the kernel writes one byte to ours.
    unsafe {
        let (local, remote) = (&raw const local, &raw const remote);
        sys::system_call(libc::SYS_process_vm_readv, process, local, one, remote, one, none);
    }
}
