//! How failures become exceptions.

use elbowroom_house::failure::{Failure, Kind};
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::{PyErr, create_exception};

create_exception!(
    elbowroom,
    StartError,
    PyOSError,
    "The manager cannot start on this machine; the text says what is missing, and what to do."
);

/// The exception of a failure: an `OSError`, or the subclass of it that its number stands for, if a call has
/// failed.
pub fn of(failure: Failure) -> PyErr {
    let Failure { kind, errno, text } = failure;
    match kind {
        Kind::Start => StartError::new_err(text),
        Kind::Memory => PyMemoryError::new_err(text),
        Kind::Value => PyValueError::new_err(text),
        Kind::State => PyRuntimeError::new_err(text),
        Kind::System => PyOSError::new_err((errno, text)),
    }
}
