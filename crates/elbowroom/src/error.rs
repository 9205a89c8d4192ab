//! Why a manager cannot start. The errors of its verbs are errno values ([`crate::Errno`]), as Linux's are.

use elbowroom_machine::{Errno, SetupError};
use std::path::PathBuf;

/// Why a manager could not start; says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The budget is below [`crate::Config::MIN_MEMORY`].
    #[error("a budget of {0} bytes is too small: at least 16 MiB (16M) are needed")]
    TooSmall(u64),
    /// No host MMU.
    #[error(transparent)]
    Mmu(#[from] SetupError),
    /// No I/O engine of the kind asked for.
    #[error("no I/O engine ({0}): io_uring is refused here? use --io threads (see `elbowroom doctor`)")]
    Engine(Errno),
    /// Not so much swap with so little memory.
    #[error("{swap} bytes of swap are too much for a budget of {memory} bytes: at most {most} fit beside it")]
    SwapTooLarge {
        /// What was asked for.
        swap: u64,
        /// The budget.
        memory: u64,
        /// The most that is possible.
        most: u64,
    },
    /// No swap file.
    #[error("cannot make a swap file in {0}: {1}; name a directory on a disk that you may write to")]
    SwapFile(PathBuf, Errno),
    /// No key for the swap file.
    #[error("cannot encrypt the swap file: {0}")]
    SwapKey(String),
    /// The fault-injection text.
    #[error("--inject: {0}")]
    Inject(String),
    /// No thread.
    #[error("cannot start a thread ({0}): raise `ulimit -u` or the pids limit of the control group")]
    Thread(std::io::Error),
}

/// Why a file that the program has open cannot be managed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It could not be opened.
    #[error("cannot open it: {0}")]
    Failed(Errno),
    /// Another process uses it, or it cannot be known here whether one does.
    #[error("another process may use it")]
    NotAlone,
}

impl From<Errno> for OpenError {
    fn from(error: Errno) -> Self {
        OpenError::Failed(error)
    }
}
