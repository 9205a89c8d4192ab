//! Requests of the program's threads to the service threads.
//!
//! A request lives on the caller's stack. The caller blocks its signals, pushes it on a lock-free stack,
//! rings the lane's futex, and waits on the request's own. It takes no lock and allocates nothing, so this
//! works in signal handlers too.
//!
//! Synchronization: a worker owns a request from the moment it takes it off the stack until it stores `done`;
//! after that store it only names the futex's address (waking touches no memory).

use crate::policy::MapArgs;
use crate::state::{self, LaneKind, Process};
use crate::streams::Kind;
use crate::sys::{self, Except, SignalsBlocked};
use elbowroom::{Advice, FileId, Prot, Remap};
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// What the manager is asked. Plain data: nothing in it points to the program's memory, except as addresses
/// to manage.
#[derive(Clone)]
pub enum Op {
    /// mmap: gives the address.
    Map {
        /// The call.
        args: MapArgs,
        /// The file that `args.fd` is.
        id: FileId,
        /// The caller's thread, whose descriptor `args.fd` is.
        tid: u32,
        /// Open the file for writing too.
        writable: bool,
    },
    /// mmap of private memory without a file: gives the address.
    MapMemory(MapArgs),
    /// The same, where addresses are wanted that are nobody's yet.
    MapMemoryThere(MapArgs),
    /// munmap.
    Unmap(Range<usize>),
    /// mprotect: gives 1, or 0 if it must be handed back.
    Protect(Range<usize>, Prot),
    /// mremap: gives the address.
    Remap {
        /// The mapping as it is.
        old: Range<usize>,
        /// Its new length in bytes.
        new_len: usize,
        /// Where.
        how: Remap,
    },
    /// msync.
    Sync(Range<usize>, Durable),
    /// madvise.
    Advise(Range<usize>, Advice),
    /// mincore of at most [`RESIDENT_PAGES`] pages: the bytes are in the reply.
    Resident(Range<usize>),
    /// munlock.
    Unlock(Range<usize>),
    /// Makes the range wholly the kernel's: its files go back, its holes are unmapped for real.
    HandBack(Range<usize>),
    /// The file goes back to the kernel.
    HandBackFile(FileId),
    /// The kernel maps the file: it goes back if either side can store to it. The kernel's mapping can if
    /// this is true.
    KernelMaps(FileId, bool),
    /// Unmaps the holes in the range for real, if nothing is mapped there.
    MakeRoom(Range<usize>),
    /// What a child of fork could store to, or see stored to, goes back to the kernel, and so what others are
    /// kept from.
    HandBackShared,
    /// Has the manager rest for a fork: gives what `inherit` goes on with.
    ForkBegins,
    /// A stdio stream of the file is being opened: gives it to the kernel if they exclude each other.
    StreamOpens(FileId, Kind),
    /// A write to the file begins: gives a ticket, or 0 if the file is not managed.
    WriteBegin(FileId, Range<u64>, Flush),
    /// It ended.
    WriteEnd {
        /// What [`Op::WriteBegin`] gave.
        ticket: usize,
        /// What it has changed.
        change: Change,
    },
    /// The file was changed while it became managed, too early for [`Op::WriteBegin`].
    Refresh(FileId, Change),
    /// Writes a file's dirty pages back.
    WriteBack(FileId, Range<u64>),
    /// Takes the file's write-back error.
    TakeError(FileId),
    /// Writes everything back.
    FlushAll,
    /// Writes the statistics file: gives the address of a leaked `String`, the summary.
    Report,
}

/// What a call changed in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It wrote these bytes.
    Written(Range<u64>),
    /// It may have changed the size; these bytes are to be read anew.
    Resized(Range<u64>),
    /// It has moved all bytes from the first on: as [`Change::Resized`], and private mappings lose their
    /// copies of them.
    Moved(Range<u64>),
}

/// How much msync waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durable {
    /// MS_SYNC.
    Yes,
    /// Without MS_SYNC: for nothing.
    No,
}

/// Whether the dirty pages are written back before a write begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// They are: the call reads or drops more than it writes.
    First,
    /// They are not.
    Not,
}

/// How many pages one [`Op::Resident`] can answer for.
pub const RESIDENT_PAGES: usize = 256;

/// What came of it: a number whose meaning the operation says, or an errno.
pub type Reply = Result<usize, i32>;

/// A request on its way.
pub struct Request {
    next: AtomicPtr<Request>,
    /// A futex: 1 when the reply is there.
    done: AtomicU32,
    /// What is asked.
    pub op: Op,
    /// What came of it.
    pub reply: Reply,
    /// The bytes of [`Op::Resident`].
    pub resident: [u8; RESIDENT_PAGES],
}

impl Request {
    /// Gives the request back to its caller, with the reply in it.
    ///
    /// # Safety
    /// `request` was taken off a lane by this thread, which does not use it any more afterwards.
    pub unsafe fn complete(request: *mut Request) {
        // SAFETY: the caller of `submit` keeps it until `done` is stored.
        let done = unsafe { &raw const (*request).done };
        // SAFETY: as above; this store is the last access.
        unsafe { &*done }.store(1, Ordering::Release);
        sys::futex_wake(done.cast(), 1);
    }
}

/// One stack of requests and the workers that serve it. All zero is empty.
#[repr(C)]
pub struct Lane {
    head: AtomicPtr<Request>,
    /// A futex that changes with every request.
    pub doorbell: AtomicU32,
    /// Workers that wait at the doorbell.
    pub idle: AtomicU32,
    /// Workers that exist.
    pub workers: AtomicU32,
}

impl Lane {
    fn push(&self, request: *mut Request) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the request is the caller's own until it is on the stack.
            unsafe { (*request).next.store(head, Ordering::Relaxed) };
            match self.head.compare_exchange_weak(head, request, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(there) => head = there,
            }
        }
        self.doorbell.fetch_add(1, Ordering::Release);
        sys::futex_wake(self.doorbell.as_ptr(), 1);
    }

    /// Takes all requests, oldest first, and gives each to `each`.
    pub fn drain(&self, mut each: impl FnMut(*mut Request)) {
        let mut newest_first = self.head.swap(std::ptr::null_mut(), Ordering::Acquire);
        let mut oldest_first: *mut Request = std::ptr::null_mut();
        while !newest_first.is_null() {
            // SAFETY: what was on the stack is ours alone until it is completed.
            let next = unsafe { (*newest_first).next.load(Ordering::Relaxed) };
            // SAFETY: as above.
            unsafe { (*newest_first).next.store(oldest_first, Ordering::Relaxed) };
            (oldest_first, newest_first) = (newest_first, next);
        }
        while !oldest_first.is_null() {
            // SAFETY: as above; read before `each` can complete it.
            let next = unsafe { (*oldest_first).next.load(Ordering::Relaxed) };
            each(oldest_first);
            oldest_first = next;
        }
    }
}

/// Asks, waits, and gives the reply. `errno` is kept.
pub fn submit(process: &Process, op: Op) -> Reply {
    submit_with(process, op, |_| {})
}

/// As [`submit`]; `look` sees the finished request.
pub fn submit_with(process: &Process, op: Op, look: impl FnOnce(&Request)) -> Reply {
    debug_assert!(!state::is_service_thread());
    let kept = sys::errno();
    let lane = match op {
        Op::WriteEnd { .. } => LaneKind::Ending,
        _ => LaneKind::Ordinary,
    };
    let mut request = Request {
        next: AtomicPtr::new(std::ptr::null_mut()),
        done: AtomicU32::new(0),
        op,
        reply: Err(libc::EIO),
        resident: [0; RESIDENT_PAGES],
    };
    let request = &raw mut request;
    // Signals stay blocked while a worker owns the request: a handler that jumps away would take its stack.
    let blocked = SignalsBlocked::new(Except::Nothing);
    process.lanes[lane as usize].push(request);
    // SAFETY: `done` is an atomic that both sides may use; nothing else is touched before it is set.
    let done = unsafe { &(*request).done };
    while done.load(Ordering::Acquire) == 0 {
        sys::futex_wait(done, 0, None);
    }
    drop(blocked);
    sys::set_errno(kept);
    // SAFETY: it is done, so the worker has let go of it.
    let request = unsafe { &*request };
    look(request);
    request.reply
}
