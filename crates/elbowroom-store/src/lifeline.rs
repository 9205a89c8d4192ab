//! What the two processes of a fork hand to each other: open files, and a pipe that tells the parent when no
//! child reads them any more. A child that is killed lets go of it, too.

use crate::calls::Descriptor;
use crate::limits;
use elbowroom_machine::Errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// A descriptor that a child is to have under the same number in the file table of its own threads.
#[derive(Debug)]
pub struct Handed {
    /// Its number.
    pub number: RawFd,
    /// How it is opened again.
    pub flags: OFlags,
    /// The parent's only one, closed with this.
    _own: Option<Descriptor>,
}

impl Handed {
    /// One that the calling thread's table has for good: another process's end of a [`Lifeline`].
    pub fn lifeline(number: RawFd) -> Self {
        Self { number, flags: OFlags::WRONLY, _own: None }
    }

    pub(crate) fn of(fd: &impl AsFd, flags: OFlags) -> Self {
        Self { number: fd.as_fd().as_raw_fd(), flags, _own: None }
    }
}

/// The parent's end.
#[derive(Debug)]
pub struct Lifeline(Descriptor);

impl Lifeline {
    /// The parent's end, and the child's, of which the parent has one itself until it drops it.
    ///
    /// # Errors
    /// What pipe2(2) says.
    pub fn new() -> Result<(Self, Handed), Errno> {
        let made = limits::open_briefly(|| pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK));
        let (ours, theirs) = made?;
        let theirs = Descriptor::from(theirs);
        let handed = Handed { number: theirs.as_fd().as_raw_fd(), flags: OFlags::WRONLY, _own: Some(theirs) };
        Ok((Self(ours.into()), handed))
    }

    /// Whether no child has its end open any more.
    pub fn is_over(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut polled, Some(&now)), Ok(1)) && polled[0].revents().contains(PollFlags::HUP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_over_when_the_last_end_is_closed() {
        let (ours, theirs) = Lifeline::new().unwrap();
        assert!(!ours.is_over());
        let path = format!("/proc/thread-self/fd/{}", theirs.number);
        let other = rustix::fs::open(path, theirs.flags, rustix::fs::Mode::empty()).unwrap();
        drop(theirs);
        assert!(!ours.is_over());
        drop(other);
        assert!(ours.is_over());
    }
}
