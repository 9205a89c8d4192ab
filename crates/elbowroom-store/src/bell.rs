//! The eventfd by which other threads end a reactor's wait.

use crate::calls::{Descriptor, retry};
use elbowroom_machine::{Errno, put_in_place};
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::{AtomicBool, Ordering};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd};

/// An eventfd that ends a reactor's wait.
#[derive(Debug)]
pub(crate) struct Bell {
    fd: Descriptor,
    /// Whether a thread has kicked and the reactor has not reported it yet.
    kicked: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> Result<Arc<Self>, Errno> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Self { fd: fd.into(), kicked: AtomicBool::new(false) }))
    }

    /// In the child of a fork: opens an eventfd of its own, under the same number.
    pub(crate) fn renew(&self) -> Result<(), Errno> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        self.kicked.store(false, Ordering::Release);
        put_in_place(fd, self.fd.as_fd())
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Ends the wait without setting `kicked`. A write can only fail if the eventfd's counter is at its
    /// maximum, and then the bell is ringing already.
    pub(crate) fn ring(&self) {
        let _ = retry(|| rustix::io::write(&self.fd, &1_u64.to_ne_bytes()));
    }

    pub(crate) fn kick(&self) {
        if !self.kicked.swap(true, Ordering::AcqRel) {
            self.ring();
        }
    }

    /// Whether a thread has kicked since the last call. The flag is cleared before the caller looks for the
    /// work that it was kicked for, so later work causes another kick.
    pub(crate) fn take_kick(&self) -> bool {
        self.kicked.load(Ordering::Acquire) && self.kicked.swap(false, Ordering::AcqRel)
    }

    /// Reads the eventfd, so that the next poll does not find it readable again.
    pub(crate) fn drain(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
    }
}
