//! Signals that the library itself causes.
//!
//! When a denial of a page (an access must fail) is undone, the page has no rights for a moment, a passage
//! (the manager's layout.rs). A thread that accesses the page then gets SIGSEGV, where it should wait, or
//! get SIGBUS. Such an access is made again, and the program does not notice.
//!
//! The page does not tell whether a signal has this cause: the passage may have ended when we look. So each
//! thread remembers how many passages there had been when it looked last. If there were more since, the
//! access may have met one, and is made again, once. A signal with another cause comes again at once, and
//! goes to the program.

use crate::base::state;
use crate::base::sys;
use std::cell::Cell;

/// The page does not permit the access.
pub const SEGV_ACCERR: i32 = 2;

thread_local! {
    /// The number of passages at this thread's last look.
    static SEEN: Cell<u64> = const { Cell::new(0) };
}

/// Whether an access to `address` may have raised SIGSEGV only because the kernel's mapping there was being
/// replaced (a passage), and is to be made again.
pub fn met(address: usize) -> bool {
    let Some((_, manager)) = state::alive() else { return false };
    let passages = manager.passages();
    let new = passages != SEEN.get();
    if !new || !manager.windows().windows().any(|window| window.contains(&address)) {
        return false;
    }
    if passages.is_multiple_of(2) {
        SEEN.set(passages);
    } else {
        // The passage ends soon: it takes a few system calls of the thread that makes it.
        sys::sched_yield();
    }
    true
}
