//! Why something could not be done.

use elbowroom::Errno;
use std::io;

/// What kind of failure it is: some languages have a class for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The manager cannot start on this machine.
    Start,
    /// Memory and swap have no room for so much.
    Memory,
    /// What was asked for makes no sense.
    Value,
    /// It makes no sense now.
    State,
    /// A call has failed.
    System,
}

/// Why something could not be done, and what to do about it.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The kind.
    pub kind: Kind,
    /// The number of the error, as Linux has it.
    pub errno: i32,
    /// A sentence, without a stop.
    pub text: String,
}

impl Failure {
    /// A failure of a kind, with the number that such a failure has.
    pub fn new(kind: Kind, text: String) -> Self {
        let errno = match kind {
            Kind::Start => libc::ENOTSUP,
            Kind::Memory => libc::ENOMEM,
            Kind::Value => libc::EINVAL,
            Kind::State => libc::EBUSY,
            Kind::System => libc::EIO,
        };
        Self { kind, errno, text }
    }

    /// An error number; `what` could not be done.
    pub fn of(errno: Errno, what: &str) -> Self {
        Self::of_number(errno.raw_os_error(), what)
    }

    /// [`Failure::of`] for an error of the standard library.
    pub fn of_io(error: &io::Error, what: &str) -> Self {
        Self::of_number(error.raw_os_error().unwrap_or(libc::EIO), what)
    }

    fn of_number(errno: i32, what: &str) -> Self {
        let reason = io::Error::from_raw_os_error(errno).to_string();
        let reason = reason.split(" (os error").next().unwrap_or_default();
        Self { kind: Kind::System, errno, text: format!("{what}: {reason}") }
    }
}

/// As programs in Rust know errors: a failed call has its number, everything else a kind and the text.
impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        let Failure { kind, errno, text } = failure;
        let of_number = io::Error::from_raw_os_error(errno);
        let kind = match kind {
            Kind::System => return of_number,
            Kind::Start => io::ErrorKind::Unsupported,
            Kind::Memory => io::ErrorKind::OutOfMemory,
            Kind::Value => io::ErrorKind::InvalidInput,
            Kind::State => of_number.kind(),
        };
        io::Error::new(kind, text)
    }
}
