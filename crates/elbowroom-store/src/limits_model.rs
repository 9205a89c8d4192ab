//! [`crate::limits`] under a model checker: nothing is raised, since no test there comes near the process's
//! limits.

use crate::calls::Descriptor;
use elbowroom_machine::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};

/// See `limits.rs`.
pub const LEAST_DESCRIPTORS: u64 = 0;

pub(crate) fn open_kept(open: impl Fn() -> Result<OwnedFd, Errno>) -> Result<Descriptor, Errno> {
    open().map(Descriptor::from)
}

/// See `limits.rs`.
pub fn open_briefly<T, E>(open: impl Fn() -> Result<T, E>) -> Result<T, E> {
    open()
}

pub(crate) fn is_room(_fd: BorrowedFd<'_>) -> bool {
    true
}

pub(crate) fn with_room<T>(_fd: BorrowedFd<'_>, call: impl Fn() -> T) -> Option<T> {
    Some(call())
}

/// See `limits.rs`.
pub fn with_own_limit<T>(call: impl FnOnce() -> T) -> T {
    call()
}

/// See `limits.rs`.
pub fn with_highest_file_limit<T>(call: impl FnOnce(u64) -> T) -> T {
    call(u64::MAX)
}

pub(crate) fn is_beyond_file_limit(_end: u64) -> bool {
    false
}
