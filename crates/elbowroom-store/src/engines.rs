//! Which engines there are, and how a reactor is made of one. The only module that knows all of them.

use crate::bell::Bell;
use crate::inject::Inject;
#[cfg(shuttle)]
use crate::inline::Inline;
#[cfg(not(shuttle))]
use crate::reactor::Kicker;
use crate::reactor::OnThreadStart;
use crate::reactor::Reactor;
#[cfg(not(shuttle))]
use crate::threads::Threads;
#[cfg(not(shuttle))]
use crate::uring::{RingMode, Uring};
use elbowroom_machine::Errno;
use elbowroom_sync::Arc;
use std::os::fd::RawFd;

/// How reads are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineKind {
    /// io_uring, and threads where it is refused.
    Auto,
    /// io_uring or an error.
    Uring,
    /// Blocking threads.
    Threads,
}

/// Makes a reactor that watches `watch`, if any (not owned; must stay open until the reactor is dropped;
/// nonblocking).
///
/// `inject` applies to all reads through this reactor, instead of the faults of the file that is read.
/// Threads that the reactor starts call `on_thread_start` first.
///
/// # Errors
/// [`Errno::BADF`] if `watch` is negative; with [`EngineKind::Uring`] what io_uring_setup(2) says:
/// [`Errno::PERM`] or [`Errno::NOSYS`] where io_uring is not allowed; else what eventfd(2) says.
pub fn reactor(
    kind: EngineKind,
    watch: Option<RawFd>,
    inject: Option<Arc<Inject>>,
    on_thread_start: Option<OnThreadStart>,
) -> Result<Box<dyn Reactor>, Errno> {
    if watch.is_some_and(|fd| fd < 0) {
        return Err(Errno::BADF);
    }
    engine(kind, watch, Bell::new()?, inject, on_thread_start)
}

/// [`reactor()`] in the child of a fork, in the place of the parent's reactor: `kicker` is the parent's, and
/// its kicks end the waits of the new reactor. The threads of the child have a file table of their own, in
/// which the numbers of the parent's descriptors are free.
///
/// # Errors
/// As for [`reactor()`].
#[cfg(not(shuttle))]
pub fn reactor_of_child(
    kind: EngineKind,
    watch: Option<RawFd>,
    kicker: &Kicker,
    inject: Option<Arc<Inject>>,
    on_thread_start: Option<OnThreadStart>,
) -> Result<Box<dyn Reactor>, Errno> {
    kicker.bell().renew()?;
    engine(kind, watch, kicker.bell().clone(), inject, on_thread_start)
}

/// Under shuttle there is one engine, and descriptors cannot be watched.
#[cfg(shuttle)]
fn engine(
    _kind: EngineKind,
    _watch: Option<RawFd>,
    bell: Arc<Bell>,
    inject: Option<Arc<Inject>>,
    _on_thread_start: Option<OnThreadStart>,
) -> Result<Box<dyn Reactor>, Errno> {
    Ok(Box::new(Inline::new(bell, inject)))
}

#[cfg(not(shuttle))]
fn engine(
    kind: EngineKind,
    watch: Option<RawFd>,
    bell: Arc<Bell>,
    inject: Option<Arc<Inject>>,
    on_thread_start: Option<OnThreadStart>,
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
