//! The dispositions that the kernel has.

use super::table::Action;
use crate::base::{real, state, sys};
use libc::c_int;

/// Whether the caller's process has a table of dispositions of its own (a vfork child has not).
pub fn has_own_table() -> bool {
    state::process().is_some_and(|process| process.is_home())
}

/// libc's sigaction(2); gives the disposition before. `errno` is kept.
pub fn exchange(signal: c_int, new: Option<Action>) -> Option<libc::sigaction> {
    let mut old = Action { handler: libc::SIG_DFL, flags: 0, mask: 0 }.to_libc();
    let new = new.map(Action::to_libc);
    let new = new.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let kept = sys::errno();
    // SAFETY: both are null or valid; our handler may run at any time.
    let r = unsafe { real::sigaction(signal, new, &mut old) };
    sys::set_errno(kept);
    (r == 0).then_some(old)
}

/// The kernel's own SIG_DFL, with nothing of ours in front.
pub fn set_default(signal: c_int) {
    exchange(signal, Some(Action { handler: libc::SIG_DFL, flags: 0, mask: 0 }));
}
