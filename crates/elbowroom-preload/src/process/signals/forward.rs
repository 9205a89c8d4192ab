//! Handlers that call the handler that they have replaced.
//!
//! A handler that was installed by a raw call found ours there, and may pass signals on to it. Once ours
//! stands in front of that handler, a signal goes from ours to it, and from it to ours again. The second
//! time ours does what the program had set before that handler, and if the signal comes a third time,
//! SIG_DFL.
//!
//! Synchronization: values of one thread. If a handler is left by a jump, its values stay: [`depth`]
//! recognizes them.

use super::table::{self, Action};
use libc::{c_int, c_void};
use std::cell::Cell;

/// A call of our handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    signal: c_int,
    /// The address of the context that the kernel has given the handler.
    context: usize,
    /// The address of the frame of our handler.
    frame: usize,
    /// How many calls for the same signal this one lies within.
    depth: u32,
}

thread_local! {
    /// The innermost call from which a handler of the program's was called.
    static INNERMOST: Cell<Call> = const { Cell::new(Call { signal: 0, context: 0, frame: 0, depth: 0 }) };
}

impl Call {
    /// The call with this frame.
    pub fn new(signal: c_int, context: *mut c_void, frame: usize) -> Self {
        let context = context as usize;
        Self { signal, context, frame, depth: depth(INNERMOST.get(), signal, context, frame) }
    }

    /// The disposition that this call carries out.
    pub fn action(self) -> Action {
        match self.depth {
            0 => table::load(self.signal),
            1 => table::load_under(self.signal),
            _ => Action { handler: libc::SIG_DFL, flags: 0, mask: 0 },
        }
    }

    /// Calls the program's handler.
    pub fn during(self, handler: impl FnOnce()) {
        let before = INNERMOST.replace(self);
        handler();
        INNERMOST.set(before);
    }
}

/// The depth of a call. A call from within another one has the same context, and its frame lies below. A
/// call by the kernel may have the same context address, after the last handler was left by a jump, but
/// then its frame is not below.
fn depth(innermost: Call, signal: c_int, context: usize, frame: usize) -> u32 {
    let same = (innermost.signal, innermost.context) == (signal, context);
    if same && frame < innermost.frame { innermost.depth + 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_for_the_same_signal_from_below_lies_within() {
        let outer = Call { signal: libc::SIGSEGV, context: 0x2000, frame: 0x1f00, depth: 0 };
        assert_eq!(depth(outer, libc::SIGSEGV, 0x2000, 0x1800), 1);
        assert_eq!(depth(Call { depth: 1, ..outer }, libc::SIGSEGV, 0x2000, 0x1800), 2);
        // The handler was left, and the next signal came at the same place.
        assert_eq!(depth(outer, libc::SIGSEGV, 0x2000, 0x1f00), 0);
        assert_eq!(depth(outer, libc::SIGSEGV, 0x1700, 0x1600), 0);
        assert_eq!(depth(outer, libc::SIGBUS, 0x2000, 0x1800), 0);
    }
}
