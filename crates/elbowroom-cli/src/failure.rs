//! Errors that end the command, each with its exit code.
//!
//! The codes of `run` are those that `env`, `nice` and `timeout` use when they, and not the program, have
//! failed.

use std::fmt;
use std::process::ExitCode;

/// `top` or `ctl` could not do what they were asked for.
pub const NOT_DONE: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// Elbowroom itself cannot work here.
pub const CANNOT_WORK: u8 = 125;
/// The program was found, but cannot be run, or not with its memory managed.
pub const CANNOT_RUN: u8 = 126;
/// The program was not found.
pub const NOT_FOUND: u8 = 127;

/// Why the command has not done what it was to do.
#[derive(Debug)]
pub struct Failure {
    /// What `elbowroom` exits with.
    pub code: u8,
    /// What happened and what to do, without the prefix `elbowroom:`. May have several lines.
    pub message: String,
}

impl Failure {
    /// A failure that exits with `code`.
    pub fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }

    /// Writes the message to standard error, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        say(&self.message);
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Writes a message to standard error, with the prefix.
pub fn say(message: &str) {
    use std::io::Write;
    // A program's start must not depend on whether anybody reads its errors.
    let _ = writeln!(std::io::stderr(), "elbowroom: {message}");
}
