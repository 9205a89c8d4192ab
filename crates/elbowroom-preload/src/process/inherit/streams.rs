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

/// Pages that are not in memory: at most two, since a stream, or a lock, lies in no more.
#[derive(Default)]
pub(super) struct Away {
    pages: [usize; 2],
    count: usize,
}

impl Away {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// The pages of the first stream, or of its lock, that are in a window and not in memory. They are not
/// read. The caller has the lock of the list.
pub(super) fn away(windows: &WindowTable) -> Away {
    // SAFETY: these only read libc's own pointer to the first.
    let (mut stream, end) = unsafe { (real::_IO_iter_begin(), real::_IO_iter_end()) };
    while stream != end {
        let at = stream as usize;
        let mut away = away_in(windows, at, STREAM_BYTES);
        if away.is_empty() {
            // SAFETY: the address of its lock is in the stream, which is in memory.
            let lock = unsafe { ((at + LOCK_AT) as *const usize).read() };
            away = away_in(windows, lock, LOCK_BYTES);
        }
        if !away.is_empty() {
            return away;
        }
        // SAFETY: the stream is on the list, whose lock the caller has, and in memory.
        stream = unsafe { real::_IO_iter_next(stream) };
    }
    Away::default()
}

/// `len`: at most a page.
fn away_in(windows: &WindowTable, at: usize, len: usize) -> Away {
    let mut away = Away::default();
    let pages = (at & !(PAGE - 1)..at + len).step_by(PAGE);
    for page in pages.filter(|page| windows.intersects(*page, 1) && !is_resident(*page)) {
        away.pages[away.count] = page;
        away.count += 1;
    }
    away
}

fn is_resident(page: usize) -> bool {
    let mut resident = 0_u8;
    // SAFETY: the kernel writes one byte, for one page.
    let result =
        unsafe { sys::system_call(libc::SYS_mincore, page as c_long, PAGE as c_long, &raw mut resident) };
    result == 0 && resident & 1 != 0
}

/// Has these pages come in.
pub(super) fn touch(away: &Away) {
    for page in &away.pages[..away.count] {
        // The kernel reads: the memory behind a stream may not be mapped.
        read_one(*page as *mut c_void);
    }
}

fn read_one(at: *mut c_void) {
    let mut byte = 0_u8;
    let (local, remote) = (
        libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 },
        libc::iovec { iov_base: at, iov_len: 1 },
    );
    let process = crate::base::sys::getpid() as c_long;
    let (one, none) = (1 as c_long, 0 as c_long);
    // SAFETY: one vector each; the kernel writes one byte to ours.
    unsafe {
        let (local, remote) = (&raw const local, &raw const remote);
        sys::system_call(libc::SYS_process_vm_readv, process, local, one, remote, one, none);
    }
}
