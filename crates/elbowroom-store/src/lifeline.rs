//! Descriptors that the parent of a fork hands to the child: open files, and a pipe that tells the parent
//! when no child reads these files any more. The kernel closes the child's end also if the child is killed.

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
    /// The descriptor's number.
    pub number: RawFd,
    /// The flags with which the child opens the file again.
    pub flags: OFlags,
    /// The parent's own descriptor, closed when this is dropped.
    _own: Option<Descriptor>,
}

impl Handed {
    /// A descriptor that stays open in the calling thread's table: another process's end of a [`Lifeline`].
    pub fn lifeline(number: RawFd) -> Self {
        Self { number, flags: OFlags::WRONLY, _own: None }
    }

    pub(crate) fn of(fd: &impl AsFd, flags: OFlags) -> Self {
        Self { number: fd.as_fd().as_raw_fd(), flags, _own: None }
    }
}

/// The parent's end of the pipe.
#[derive(Debug)]
pub struct Lifeline(Descriptor);

impl Lifeline {
    /// Makes the pipe: the parent's end, and the child's end, which the parent also has open until it drops
    /// the [`Handed`].
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
