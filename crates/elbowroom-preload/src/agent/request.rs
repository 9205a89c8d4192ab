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

/// What a request asks of the manager. Plain data: nothing in it points to the program's memory, except as
/// addresses to manage.
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
    /// As [`Op::MapMemory`], at wanted addresses that no window has yet: the manager takes them if they are
    /// free.
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
        /// Where the mapping goes.
        how: Remap,
    },
    /// mremap to a shorter length, in place: the rest is unmapped. If a part of the rest is the kernel's by
    /// now, nothing is changed ([`NOT_OURS`]).
    Cut {
        /// The mapping as it is.
        old: Range<usize>,
        /// Its new length in bytes, in whole pages.
        new_len: usize,
    },
    /// How many bytes are mapped, of the mappings that are counted: [`Answer::At`].
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
    /// Hands the file back to the kernel.
    HandBackFile(FileId),
    /// The kernel maps the file: the file goes back if either side can store to it. The flag: the kernel's
    /// mapping can.
    KernelMaps(FileId, bool),
    /// Unmaps the holes in the range for real, if nothing is mapped there.
    MakeRoom(Range<usize>),
    /// The free addresses right below the end of the range become the kernel's.
    MakeRoomBelow(Range<usize>),
    /// Hands back to the kernel the files that a child of fork could store to, or see stored to, watched
    /// files, and all private memory.
    HandBackShared,
    /// Has the manager rest for a fork of the thread with this id: gives [`Answer::Rests`].
    ForkBegins(u32),
    /// A stdio stream of the file is being opened: gives the file to the kernel if such a stream and the
    /// managed mappings exclude each other.
    StreamOpens(FileId, Kind),
    /// A write to the file begins: gives [`Answer::Begun`], or [`Answer::Done`] if the file is not managed.
    WriteBegin(FileId, Range<u64>, Flush),
    /// A write has ended.
    WriteEnd {
        /// What [`Op::WriteBegin`] gave.
        ticket: Ticket,
        /// What the write has changed.
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
    /// Gives managed memory to the kernel so that a core dump has it. Gives [`Answer::Text`]: how much the
    /// dump will lack, or nothing.
    MakeDumpable {
        /// The most bytes of private memory that go to the kernel.
        most_bytes: u64,
        /// The address at which an access has failed: its mapping stays as it is.
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
    /// The call wrote these bytes.
    Written(Range<u64>),
    /// The call may have changed the size; these bytes are to be read anew.
    Resized(Range<u64>),
    /// The call has moved all bytes from the start of the range on: as [`Change::Resized`], and private
    /// mappings lose their copies of these bytes.
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
    /// Without MS_SYNC: msync waits for nothing.
    No,
}

/// Whether the dirty pages are written back before a write begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// They are written back: the call reads or drops more bytes than it writes.
    First,
    /// They are not written back.
    Not,
}

/// How many pages one [`Op::Resident`] can answer for.
pub const RESIDENT_PAGES: usize = 256;

/// What came of a request that succeeded.
#[derive(Clone)]
pub enum Answer {
    /// The request is done, and has no further result.
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

/// Names a write that has begun, for the one [`Op::WriteEnd`] that ends it.
#[derive(Clone, Copy)]
pub struct Ticket(*mut ());

// SAFETY: it names memory of the service threads, which one of them takes back.
unsafe impl Send for Ticket {}

impl Ticket {
    /// The ticket for what a service thread keeps until the write ends.
    pub fn of<T>(begun: Box<T>) -> Self {
        Self(Box::into_raw(begun).cast())
    }

    /// Gives back what the service thread has kept.
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

/// The result of a request: an answer, or an errno.
pub type Reply = Result<Answer, i32>;

/// A request on its way. Its node is the first field, so a pointer to the node is a pointer to the request.
#[repr(C)]
pub struct Request {
    node: Node,
    /// What is asked of the manager.
    pub op: Op,
    /// The result.
    pub reply: Reply,
    /// The answer to [`Op::Resident`]: a byte for each page, as mincore gives them.
    pub resident: [u8; RESIDENT_PAGES],
}

/// Makes a request, waits until it is done, and gives the reply. `errno` is kept.
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
    // Signals stay blocked while a worker owns the request: a handler that leaves by longjmp would give up
    // the stack that it lies on.
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
