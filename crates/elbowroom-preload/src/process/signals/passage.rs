//! Signals that are the library's doing.
//!
//! A page that was made to fail accesses has no rights for a moment when that is undone (the manager's
//! layout.rs). Another thread may access it then, and gets SIGSEGV where the kernel would let it wait, or
//! raise SIGBUS. Such an access is done again, and the program does not notice.
//!
//! Which signals are such cannot be told from the page, whose moment may have ended when we look. So each
//! thread remembers how many passages there had been when it looked last. If there were more since, it may
//! have met one, and tries again, once. A signal that has another reason comes again at once, and is the
//! program's.

use crate::base::state;
use crate::base::sys;
use std::cell::Cell;

/// The page does not permit the access.
pub const SEGV_ACCERR: i32 = 2;

thread_local! {
    /// The number of passages at this thread's last look.
    static SEEN: Cell<u64> = const { Cell::new(0) };
}

/// Whether an access to `address` that raised SIGSEGV may have met a passage, and is to be done again.
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
        // It ends soon: whoever makes it has a few calls of the kernel to do.
        sys::sched_yield();
    }
    true
}
