//! Lines on standard error, independent of the summary, about memory that is not managed although the user
//! expects it to be.
//!
//! Each line is said once, also with `--quiet`, and not with `--fallback kernel`.

use crate::base::config::Fallback;
use crate::base::report::{Buffer, program_name};
use crate::base::{state, stderr, sys};
use std::fmt::{Arguments, Write};

/// Whether the user wants such lines: not with `--fallback kernel`.
pub fn is_wanted() -> bool {
    state::options().is_some_and(|options| options.fallback == Fallback::None)
}

/// Writes a line with the name and number of the process to standard error, if [`is_wanted`] and if the
/// program has its standard error still. Tells whether it was written. For a thread of the program.
// Not inlined, so that the buffer is on the stack only when a line is written.
#[inline(never)]
pub fn say(line: Arguments<'_>) -> bool {
    let Some(fd) = stderr::descriptor().filter(|_| is_wanted()) else { return false };
    let mut text = Buffer::<512>::new();
    let _ = writeln!(text, "elbowroom: {} (pid {}): {line}", program_name(), sys::getpid());
    stderr::write_to(fd, text.as_bytes());
    true
}
