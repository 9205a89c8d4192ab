//! Writing back all that was stored through mappings.

use super::request::{self, Op};
use crate::base::report::Buffer;
use crate::base::{state, stderr};
use std::fmt::Write;

/// Writes all dirty pages back, if there are any. Also called in children that share the memory (vfork):
/// the program that such a child executes may read the files.
pub fn flush() {
    let Some((process, manager)) = state::alive() else { return };
    if manager.dirty_pages() == 0 {
        return;
    }
    if let Err(errno) = request::submit(process, Op::FlushAll)
        && stderr::descriptor().is_some()
    {
        say_not_written(errno);
    }
}

/// Not inlined, so that the buffer is on the stack only after a failure.
#[inline(never)]
fn say_not_written(errno: i32) {
    let mut text = Buffer::<128>::new();
    let _ = writeln!(text, "elbowroom: stores to mapped files could not be written back: errno {errno}");
    stderr::write(text.as_bytes());
}
