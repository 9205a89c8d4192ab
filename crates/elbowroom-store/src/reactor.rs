//! The interface of an event loop, and what all kinds share. `engines` makes one.

use crate::bell::Bell;
use crate::file::StoreFile;
use elbowroom_machine::{Errno, Extent};
use elbowroom_sync::Arc;
use elbowroom_sync::time::Duration;

/// What each thread that a reactor starts calls first: a function of the program and what it captures.
pub type OnThreadStart = Arc<dyn Fn() + Send + Sync>;

/// A read of `len` bytes at `offset` of `file` into the start of `buf`.
#[derive(Debug)]
pub struct Read {
    /// The source.
    pub file: Arc<StoreFile>,
    /// Where in the file, in bytes. Page-aligned, or the read goes through the kernel's page cache.
    pub offset: u64,
    /// Bytes: a multiple of the page size, at most the extent's length.
    pub len: usize,
    /// The destination, with all pages at home. Comes back with the completion.
    pub buf: Extent,
    /// A number that the caller chooses to identify the read.
    pub token: u64,
}

/// A finished read.
#[derive(Debug)]
pub struct ReadDone {
    /// The token of the [`Read`].
    pub token: u64,
    /// The destination, given back. Its contents beyond the bytes read are unspecified, and after an error
    /// all of them.
    pub buf: Extent,
    /// Bytes read (fewer than asked only at the end of the file), or the error. [`Errno::INVAL`] if the
    /// read was not inside its extent, a page of the extent was away, or the range ends beyond 2^63 bytes.
    pub result: Result<usize, Errno>,
}

/// Why [`Reactor::wait`] returned, besides completions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Woken {
    /// The watched descriptor is readable, or has an error or hang-up to be read from it.
    pub readable: bool,
    /// A thread has called [`Kicker::kick`].
    pub kicked: bool,
}

/// One handler thread's event loop: its reads, one watched descriptor (the userfaultfd), and kicks from other
/// threads.
///
/// It may be made on one thread and used on another, but from the first [`wait`](Reactor::wait) on it belongs
/// to the thread that waits: io_uring knows its submitter. Drop it there too, best when nothing is in flight:
/// an extent whose read is not given back is dropped with the reactor.
pub trait Reactor: Send {
    /// Queues a read; it is submitted at the latest by the next [`Reactor::wait`]. Never blocks, never
    /// fails: errors are in the completion.
    fn read(&mut self, read: Read);

    /// Submits the queued reads, so that the device works on them while this thread does something else.
    fn submit(&mut self);

    /// Submits the queued reads; waits until a read is done, the descriptor is readable, a thread has
    /// kicked, or `timeout` is over (none means no bound). Completions are appended to `done`. After a
    /// timeout it returns with nothing.
    ///
    /// `readable` is edge-triggered: read the descriptor until EAGAIN before the next wait.
    ///
    /// # Errors
    /// What io_uring_enter(2) or poll(2) says, after retries, when there is nothing else to return; reads
    /// stay in flight. [`Errno::EXIST`]: this is not the thread that waited first.
    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<ReadDone>) -> Result<Woken, Errno>;

    /// A handle that ends a wait from any thread.
    fn kicker(&self) -> Kicker;

    /// How many reads are queued or submitted and not yet given back.
    fn in_flight(&self) -> usize;
}

/// Ends a reactor's wait, now or the next one. Cloneable, for any thread of the same file table.
#[derive(Debug, Clone)]
pub struct Kicker {
    bell: Arc<Bell>,
}

impl Kicker {
    pub(crate) fn new(bell: &Arc<Bell>) -> Self {
        Self { bell: bell.clone() }
    }

    #[cfg(not(shuttle))]
    pub(crate) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// Ends the wait. The thread whose wait returns `kicked` sees everything that this thread wrote before.
    /// Kicks that the reactor has not reported yet count as one, and all but the first of them cost no
    /// system call.
    pub fn kick(&self) {
        self.bell.kick();
    }
}
