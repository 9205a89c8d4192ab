//! Requests of the program's threads to the service threads.
//!
//! A request is one whole call. It lives on the caller's stack. The caller blocks its signals, puts it on a
//! lane, and waits until it is done. It takes no lock and allocates nothing, so this works in signal handlers
//! too.
//!
//! Synchronization: base/lane.rs.

use super::rest::Rest;
use crate::base::lane::{LaneKind, Node};
use crate::base::state::{self, Process};
use crate::base::streams::Kind;
use crate::base::sys::{self, Except, SignalsBlocked};
use crate::rules::map::MapArgs;
use elbowroom::{Advice, FileId, Prot, Remap};
use std::ops::Range;
use std::sync::Arc;

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
    /// mprotect: [`Answer::Done`], or [`Answer::ByKernel`] if the range must be handed back.
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
    /// mremap to a shorter length, in place: the rest is unmapped. If a part of that is the kernel's by now,
    /// nothing is changed ([`NOT_OURS`]).
    Cut {
        /// The mapping as it is.
        old: Range<usize>,
        /// Its new length in bytes, in whole pages.
        new_len: usize,
    },
    /// How many bytes are mapped, all, or private ones that may be stored to alone: [`Answer::At`].
    Mapped(Counted),
    /// Whether anything is mapped at a page: [`Answer::Done`], or EFAULT.
    IsMapped(usize),
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
    /// The free addresses right below the end of the range become the kernel's.
    MakeRoomBelow(Range<usize>),
    /// What a child of fork could store to, or see stored to, goes back to the kernel, and so what others are
    /// kept from.
    HandBackShared,
    /// Has the manager rest for a fork of the thread with this id: gives [`Answer::Rests`].
    ForkBegins(u32),
    /// A stdio stream of the file is being opened: gives it to the kernel if they exclude each other.
    StreamOpens(FileId, Kind),
    /// A write to the file begins: gives [`Answer::Begun`], or [`Answer::Done`] if the file is not managed.
    WriteBegin(FileId, Range<u64>, Flush),
    /// It ended.
    WriteEnd {
        /// What [`Op::WriteBegin`] gave.
        ticket: Ticket,
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
    /// Writes the statistics file: gives the summary, [`Answer::Text`].
    Report,
    /// Has a core dump of at most so many bytes find what is managed. Gives [`Answer::Text`]: what it will
    /// not have, or nothing.
    MakeDumpable {
        /// The most that goes to the kernel for it.
        most_bytes: u64,
        /// Where an access has failed.
        address: Option<usize>,
    },
    /// Writes a text to the service threads' own duplicate of standard error, if there is one.
    Say(&'static str),
    /// The program has put something on descriptor 2.
    StandardErrorChanged,
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

/// Which mappings a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// All (RLIMIT_AS).
    All,
    /// Private ones that may be stored to (RLIMIT_DATA).
    Data,
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

/// What came of a request that succeeded.
#[derive(Clone)]
pub enum Answer {
    /// Nothing is to be said.
    Done,
    /// Nothing was done: the kernel is to do it.
    ByKernel,
    /// The address of a mapping.
    At(usize),
    /// A write has begun.
    Begun(Ticket),
    /// The manager rests for a fork.
    Rests(Arc<Rest>),
    /// A text, leaked for the caller.
    Text(&'static str),
}

/// A write that has begun, for the one [`Op::WriteEnd`] that ends it.
#[derive(Clone, Copy)]
pub struct Ticket(*mut ());

// SAFETY: it names memory of the service threads, which one of them takes back.
unsafe impl Send for Ticket {}

impl Ticket {
    /// Of what a service thread keeps until the write ends.
    pub fn of<T>(begun: Box<T>) -> Self {
        Self(Box::into_raw(begun).cast())
    }

    /// What was kept.
    ///
    /// # Safety
    /// `of` made the ticket from a `Box<T>`, and this is the only call for it.
    pub unsafe fn take<T>(self) -> Box<T> {
        // SAFETY: the caller's promise.
        unsafe { Box::from_raw(self.0.cast()) }
    }
}

/// [`Op::Map`]: the manager could not open the file; not an errno.
pub const OPEN_FAILED: i32 = -1;
/// [`Op::Map`]: the kernel still maps the file, and one of the two could store to it; not an errno.
pub const MAPPED_BY_KERNEL: i32 = -2;
/// [`Op::Map`]: another process uses the file, or that cannot be known; not an errno.
pub const NOT_ALONE: i32 = -3;
/// [`Op::MapMemoryThere`]: the manager cannot have the addresses; not an errno.
pub const NO_ADDRESSES: i32 = -4;
/// [`Op::Unmap`], [`Op::Cut`]: a part of the range is the kernel's by now; nothing was changed.
pub const NOT_OURS: i32 = libc::EXDEV;

/// What came of it: an answer, or an errno.
pub type Reply = Result<Answer, i32>;

/// A request on its way. It begins with its node, so that one is found by the other.
#[repr(C)]
pub struct Request {
    node: Node,
    /// What is asked.
    pub op: Op,
    /// What came of it.
    pub reply: Reply,
    /// The bytes of [`Op::Resident`].
    pub resident: [u8; RESIDENT_PAGES],
}

/// Asks, waits, and gives the reply. `errno` is kept.
pub fn submit(process: &Process, op: Op) -> Reply {
    submit_with(process, op, |_| {})
}

/// As [`submit`], for a call that gives an address.
pub fn submit_for_address(process: &Process, op: Op) -> Result<usize, i32> {
    submit(process, op).map(|answer| if let Answer::At(at) = answer { at } else { 0 })
}

/// As [`submit`]; `look` sees the finished request.
pub fn submit_with(process: &Process, op: Op, look: impl FnOnce(&Request)) -> Reply {
    debug_assert!(!state::is_service_thread());
    let kept = sys::errno();
    let lane = match op {
        Op::WriteEnd { .. } => LaneKind::Ending,
        _ => LaneKind::Ordinary,
    };
    let mut request = Request { node: Node::new(), op, reply: Err(libc::EIO), resident: [0; RESIDENT_PAGES] };
    let request = &raw mut request;
    // Signals stay blocked while a worker owns the request: a handler that jumps away would take its stack.
    let blocked = SignalsBlocked::new(Except::Nothing);
    process.lanes[lane as usize].push(request.cast());
    // SAFETY: all of a node is atomics; nothing else is touched before it is done.
    unsafe { &(*request).node }.wait();
    drop(blocked);
    sys::set_errno(kept);
    // SAFETY: it is done, so the worker has let go of it.
    let request = unsafe { &*request };
    look(request);
    request.reply.clone()
}
