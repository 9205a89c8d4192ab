//! How threads of the interpreter wait: without its lock, and with an eye on signals where they can raise.

use crate::errors;
use elbowroom_house::caller::{Caller, Words};
use elbowroom_house::failure::{Failure, Kind};
use pyo3::exceptions::PyRuntimeError;
use pyo3::{PyErr, Python};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// How often a thread that waits for a job looks whether a signal has come, for example that of Ctrl-C.
const SIGNAL_LOOK: Duration = Duration::from_millis(50);

/// What errors call things.
pub const WORDS: Words = Words {
    fork: "use the start method 'spawn'",
    trust: "with sharing='trust' it is managed all the same",
    swap_dir: "name another directory with elbowroom.configure(swap_dir=...) before the first array is made",
    shared_swap: "give more with elbowroom.configure(swap=..., shared=True)",
    swap: "give more with swap=...",
    own_budget: "for a budget of its own, call elbowroom.configure(memory=...) before the first array is \
                 made",
};

/// A thread that holds the interpreter's lock.
#[derive(Clone, Copy)]
pub struct Interpreter<'py>(pub Python<'py>);

impl Caller for Interpreter<'_> {
    type Error = PyErr;

    /// Waits without the interpreter's lock.
    ///
    /// # Errors
    /// What the handler of a signal raises while the answer is waited for: KeyboardInterrupt for Ctrl-C.
    fn wait<R: Send>(self, answer: Receiver<R>) -> Result<R, PyErr> {
        let mut answer = answer;
        loop {
            let answer = &mut answer;
            match self.0.detach(move || answer.recv_timeout(SIGNAL_LOOK)) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) => self.0.check_signals()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(PyRuntimeError::new_err("a thread of elbowroom has failed"));
                }
            }
        }
    }

    fn run<R: Send>(self, f: impl FnOnce() -> R + Send) -> R {
        self.0.detach(f)
    }

    fn error(self, failure: Failure) -> PyErr {
        errors::of(failure)
    }
}

/// A thread that does not hold the interpreter's lock, or cannot raise what a handler of a signal raises.
#[derive(Clone, Copy)]
pub struct Detached;

impl Caller for Detached {
    type Error = Failure;

    fn wait<R: Send>(self, answer: Receiver<R>) -> Result<R, Failure> {
        answer.recv().map_err(|_| Failure::new(Kind::System, "a thread of elbowroom has failed".to_owned()))
    }

    fn run<R: Send>(self, f: impl FnOnce() -> R + Send) -> R {
        f()
    }

    fn error(self, failure: Failure) -> Failure {
        failure
    }
}
