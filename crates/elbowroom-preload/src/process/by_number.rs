//! Calls through syscall(2) for which no interposed function does the same: ends of threads, and children.
//!
//! A program that makes system calls by instructions of its own is not seen here.

use crate::agent::flush::flush;
use crate::base::state;
use crate::process::{children, threads};
use libc::{c_int, c_long};

/// A function that takes a call in place of the kernel. It gets the six words. If it fails, it sets `errno`
/// and gives -1.
pub type Handler = unsafe extern "C-unwind" fn(c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

/// All numbers of calls that are handled are less than this.
pub const NUMBERS: usize = 512;

/// Whether [`before`] has something to do for this number.
pub const fn is_awaited(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_vfork {
        return true;
    }
    matches!(number, libc::SYS_exit | libc::SYS_set_tid_address | libc::SYS_clone)
}

/// Does what must be done before a call with these first two words. Gives the function that takes the call,
/// if the number has none in the list of handlers.
pub fn before(number: c_long, first: c_long, second: c_long) -> Option<Handler> {
    match number {
        libc::SYS_exit => threads::give_held(),
        libc::SYS_set_tid_address => threads::give(first as usize, size_of::<c_int>()),
        libc::SYS_clone => return before_clone(first as c_int, second as usize),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork if state::alive().is_some() => flush(),
        _ => {}
    }
    None
}

/// A child with memory of its own gets a copy of what the kernel has, so all is handed back before. If the
/// call gives a stack, the child returns from it on that stack, where the handler's frame does not exist:
/// then there is no handler.
fn before_clone(flags: c_int, stack: usize) -> Option<Handler> {
    let own_memory = flags & libc::CLONE_VM == 0;
    if own_memory && state::process().is_some() {
        return (stack == 0).then_some(children::clone_by_number);
    }
    if flags & libc::CLONE_THREAD == 0 && state::alive().is_some() {
        flush();
    }
    None
}
