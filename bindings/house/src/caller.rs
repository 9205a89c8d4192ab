//! How a thread of the program waits for the manager.

use crate::failure::Failure;
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
}
