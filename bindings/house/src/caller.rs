//! How a thread of the program waits for the manager.

use crate::failure::{Failure, Kind};
use std::sync::mpsc::Receiver;

/// A thread of the program that calls: the languages differ in how a thread waits, and in what an error is.
pub trait Caller: Copy {
    /// An error, as the language has it.
    type Error;

    /// Waits for the answer of a job, which comes in any case.
    ///
    /// # Errors
    /// The language's own, if the wait was broken off: the job is done all the same, and its answer dropped.
    fn wait<R: Send>(self, answer: Receiver<R>) -> Result<R, Self::Error>;

    /// Runs `f`, which may wait for a disk.
    fn run<R: Send>(self, f: impl FnOnce() -> R + Send) -> R;

    /// An error of the manager, or of what runs it.
    fn error(self, failure: Failure) -> Self::Error;
}

/// A thread of a program in C or Rust, which only waits.
#[derive(Debug, Clone, Copy)]
pub struct Thread;

impl Caller for Thread {
    type Error = Failure;

    fn wait<R: Send>(self, answer: Receiver<R>) -> Result<R, Failure> {
        let failed = |_| Failure::new(Kind::System, "a thread of elbowroom has failed".to_owned());
        answer.recv().map_err(failed)
    }

    fn run<R: Send>(self, f: impl FnOnce() -> R + Send) -> R {
        f()
    }

    fn error(self, failure: Failure) -> Failure {
        failure
    }
}

/// The texts of errors have these sentences: they name things as the language does.
#[derive(Debug)]
pub struct Words {
    /// What a program does instead of using managed memory in a forked child.
    pub fork: &'static str,
    /// How a file is managed that other processes may change.
    pub trust: &'static str,
    /// How another directory for the swap file is named.
    pub swap_dir: &'static str,
    /// How processes that share their memory get more swap.
    pub shared_swap: &'static str,
    /// How a budget gets more swap.
    pub swap: &'static str,
    /// How a process that cannot share a budget gets one of its own.
    pub own_budget: &'static str,
}
