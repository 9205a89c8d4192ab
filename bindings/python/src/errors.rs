//! How errors of the manager become exceptions.

use elbowroom::Errno;
use pyo3::exceptions::PyOSError;
use pyo3::{PyErr, create_exception};
use std::io;

create_exception!(
    elbowroom,
    StartError,
    PyOSError,
    "The manager cannot start on this machine; the text says what is missing, and what to do."
);

/// An `OSError`, or the subclass of it that its errno stands for. `what` could not be done.
pub fn of(errno: Errno, what: &str) -> PyErr {
    raw(errno.raw_os_error(), what)
}

/// [`of`] for an error of the standard library.
pub fn of_io(error: &io::Error, what: &str) -> PyErr {
    raw(error.raw_os_error().unwrap_or(libc::EIO), what)
}

fn raw(errno: i32, what: &str) -> PyErr {
    let reason = io::Error::from_raw_os_error(errno).to_string();
    let reason = reason.split(" (os error").next().unwrap_or_default().to_owned();
    PyOSError::new_err((errno, format!("{what}: {reason}")))
}
