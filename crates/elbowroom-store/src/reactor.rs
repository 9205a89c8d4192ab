//! The interface of an event loop, and what both kinds share.

#[cfg(not(shuttle))]
use crate::bell::Bell;
use crate::file::StoreFile;
use crate::inject::Inject;
#[cfg(shuttle)]
use crate::inline::{Bell, Inline};
#[cfg(not(shuttle))]
use crate::threads::Threads;
#[cfg(not(shuttle))]
use crate::uring::{RingMode, Uring};
use elbowroom_machine::{Errno, Extent};
use elbowroom_sync::Arc;
use elbowroom_sync::time::Duration;
use std::os::fd::RawFd;

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
    /// The caller's own name for the read.
    pub token: u64,
}

/// A finished read.
#[derive(Debug)]
pub struct ReadDone {
    /// The caller's name for it.
    pub token: u64,
    /// The destination, given back. What is in it beyond the bytes read is unspecified, and so is all of it
    /// after an error.
    pub buf: Extent,
    /// Bytes read (fewer than asked only at the end of the file), or why not. [`Errno::INVAL`] if the read
    /// was not inside its extent, a page of the extent was away, or the range ends beyond 2^63 bytes.
    pub result: Result<usize, Errno>,
}

/// Why [`Reactor::wait`] returned, besides completions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Woken {
    /// The watched descriptor is readable, or has an error or hang-up to be read from it.
    pub readable: bool,
    /// Somebody called [`Kicker::kick`].
    pub kicked: bool,
}

/// How reads are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// io_uring, and threads where it is refused.
    Auto,
    /// io_uring or an error.
    Uring,
    /// Blocking threads.
    Threads,
}

/// One handler thread's event loop: its reads, one watched descriptor (the userfaultfd), and kicks from other
/// threads.
///
/// It may be made on one thread and used on another, but from the first [`wait`](Reactor::wait) on it belongs
/// to the thread that waits: io_uring knows its submitter. Drop it there too, best when nothing is in flight:
/// an extent whose read is not given back is dropped with the reactor.
pub trait Reactor: Send {
    /// Queues a read; it is submitted at the latest by the next [`Reactor::wait`]. Never blocks, never fails:
    /// what is wrong is said by the completion.
    fn read(&mut self, read: Read);

    /// Submits what is queued, so that the device works while its owner does.
    fn submit(&mut self);

    /// Submits what is queued; waits until a read is done, the descriptor is readable, somebody kicked, or
    /// `timeout` (none means no bound). Completions are appended to `done`. After a timeout it returns with
    /// nothing.
    ///
    /// `readable` is said once for what has become readable: read the descriptor until EAGAIN before the next
    /// wait.
    ///
    /// # Errors
    /// What io_uring_enter(2) or poll(2) says, after retries, when there is nothing else to return; reads
    /// stay in flight. [`Errno::EXIST`]: this is not the thread that waited first.
    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<ReadDone>) -> Result<Woken, Errno>;

    /// A handle that ends a wait from any thread.
    fn kicker(&self) -> Kicker;

    /// Reads that are queued or submitted and not yet given back.
    fn in_flight(&self) -> usize;
}

/// Makes a reactor that watches `watch`, if any (not owned; must stay open until the reactor is dropped;
/// nonblocking).
///
/// `inject` holds for all reads through this reactor, instead of the faults of the file that is read. Threads
/// that it starts call `on_thread_start` first.
///
/// # Errors
/// [`Errno::BADF`] if `watch` is negative; with [`EngineKind::Uring`] what io_uring_setup(2) says:
/// [`Errno::PERM`] or [`Errno::NOSYS`] where io_uring is not allowed; else what eventfd(2) says.
pub fn reactor(
    kind: EngineKind,
    watch: Option<RawFd>,
    inject: Option<Arc<Inject>>,
    on_thread_start: Option<fn()>,
) -> Result<Box<dyn Reactor>, Errno> {
    if watch.is_some_and(|fd| fd < 0) {
        return Err(Errno::BADF);
    }
    engine(kind, watch, Bell::new()?, inject, on_thread_start)
}

/// The same in the child of a fork, whose threads have a file table of their own in which nothing has the
/// numbers that the parent's descriptors have: the kicks of `kicker`, that of the parent's reactor, end the
/// waits of this one.
///
/// # Errors
/// The same.
#[cfg(not(shuttle))]
pub fn reactor_of_child(
    kind: EngineKind,
    watch: Option<RawFd>,
    kicker: &Kicker,
    inject: Option<Arc<Inject>>,
    on_thread_start: Option<fn()>,
) -> Result<Box<dyn Reactor>, Errno> {
    kicker.bell.renew()?;
    engine(kind, watch, kicker.bell.clone(), inject, on_thread_start)
}

/// Under shuttle there is one engine, and descriptors cannot be watched.
#[cfg(shuttle)]
fn engine(
    _kind: EngineKind,
    _watch: Option<RawFd>,
    bell: Arc<Bell>,
    inject: Option<Arc<Inject>>,
    _on_thread_start: Option<fn()>,
) -> Result<Box<dyn Reactor>, Errno> {
    Ok(Box::new(Inline::new(bell, inject)))
}

#[cfg(not(shuttle))]
fn engine(
    kind: EngineKind,
    watch: Option<RawFd>,
    bell: Arc<Bell>,
    inject: Option<Arc<Inject>>,
    on_thread_start: Option<fn()>,
) -> Result<Box<dyn Reactor>, Errno> {
    let uring = || -> Result<Box<dyn Reactor>, Errno> {
        Ok(match Uring::new(RingMode::Deferred, watch, bell.clone(), inject.clone()) {
            Err(Errno::INVAL) => Box::new(Uring::new(RingMode::Plain, watch, bell.clone(), inject.clone())?),
            ring => Box::new(ring?),
        })
    };
    let threads = || Box::new(Threads::new(watch, bell.clone(), inject.clone(), on_thread_start));
    Ok(match kind {
        EngineKind::Uring => uring()?,
        EngineKind::Threads => threads(),
        EngineKind::Auto => match uring() {
            Ok(ring) => ring,
            Err(_) => threads(),
        },
    })
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

    /// Does it. What this thread wrote before is visible to the thread whose wait says `kicked`. Kicks that
    /// nobody has seen yet count as one, and all but the first of them cost no system call.
    pub fn kick(&self) {
        self.bell.kick();
    }
}
