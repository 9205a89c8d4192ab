//! The service threads' own duplicate of the program's standard error, for lines that are written after the
//! program has closed descriptor 2.
//!
//! The duplicate is in the service threads' file table, so the program does not meet it. The reader of a
//! pipe waits for all duplicates to be closed: one that the program does not have itself any more is given
//! up when the program puts something else on descriptor 2, and at the latest [`PATIENCE`] looks after the
//! program closed it, one look a second. A process that ends within that time can still write its report.
//!
//! Synchronization: a mutex that only service threads take. A forked child has a new one.

use crate::base::{stderr, sys};
use elbowroom::Origin;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// How many looks in a row must find descriptor 2 closed.
const PATIENCE: u32 = 2;

/// The duplicate of one process.
struct Own {
    file: Mutex<Option<Origin>>,
    /// How many looks in a row have found descriptor 2 closed.
    missed: AtomicU32,
}

static OWN: AtomicPtr<Own> = AtomicPtr::new(std::ptr::null_mut());

fn own() -> Option<&'static Own> {
    // SAFETY: null, or leaked by `take`.
    unsafe { OWN.load(Ordering::Acquire).as_ref() }
}

/// On the first service thread of a process: makes the duplicate, unless the program has something else on
/// descriptor 2 by now.
pub fn take() {
    let taken = Origin::take(sys::getpid(), 2, 0).ok().filter(|there| is_remembered(there.as_fd()));
    let own = Own { file: Mutex::new(taken), missed: AtomicU32::new(0) };
    OWN.store(Box::into_raw(Box::new(own)), Ordering::Release);
}

/// Whether this is the file that standard error was when the program started.
pub fn is_remembered(there: BorrowedFd<'_>) -> bool {
    sys::fstat(there.as_raw_fd()).is_some_and(|stat| stderr::is_remembered(&stat))
}

/// Writes the text to the duplicate, if there is one. Tells whether there is.
pub fn write(text: &[u8]) -> bool {
    let Some(own) = own() else { return false };
    let file = own.file.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(file) = &*file {
        stderr::write_to(file.as_fd().as_raw_fd(), text);
    }
    file.is_some()
}

/// Looks at descriptor 2 of the program, once a second and when the program has put something there: gives
/// the duplicate up if the program does not have its standard error any more.
pub fn look() {
    let Some(own) = own() else { return };
    let path = format!("/proc/{}/fd/2\0", sys::getpid());
    let there = sys::stat_at(libc::AT_FDCWD, path.as_ptr().cast(), 0);
    let missed = match there {
        Some(stat) if stderr::is_remembered(&stat) => 0,
        Some(_) => PATIENCE,
        None => own.missed.load(Ordering::Relaxed) + 1,
    };
    own.missed.store(missed, Ordering::Relaxed);
    if missed >= PATIENCE {
        drop(own.file.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
