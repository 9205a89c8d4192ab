//! Forks that fail, instead of being made without a copy of the manager (`--fork fail`), or since the child
//! would lack memory.
//!
//! An obstacle that is known before the fork makes it fail without a child. Other obstacles are found in
//! libc's atfork hook, when libc makes the child in any case. That child has no managed memory, and is
//! ended before any code of the program runs in it; fork's caller waits for its end, and gets an error. The
//! thread's signals are blocked from the hook on: no handler of the program's must run in the child, or see
//! the child from the parent.
//!
//! Synchronization: an atomic, so that the reason is written once; all else belongs to the forking thread.

use crate::base::config::Fork;
use crate::base::report::Buffer;
use crate::base::said;
use crate::base::state;
use crate::base::stderr;
use crate::base::sys;
use libc::{c_int, c_long};
use std::cell::Cell;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a fork cannot be made with a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// EAGAIN: the fork may succeed later, and programs that then try again (shells do) are right. ENOMEM:
    /// it will not.
    errno: c_int,
    why: &'static str,
}

impl Refusal {
    /// A refusal for a reason that may go away: EAGAIN.
    pub const fn for_now(why: &'static str) -> Self {
        Self { errno: libc::EAGAIN, why }
    }

    /// The reason, in words.
    pub const fn why(self) -> &'static str {
        self.why
    }

    /// A refusal for a reason that stays: ENOMEM.
    pub const fn for_good(why: &'static str) -> Self {
        Self { errno: libc::ENOMEM, why }
    }
}

/// Some memory cannot go back to the kernel: it is in use, or cannot be written back.
pub const STAYS_MANAGED: Refusal = Refusal::for_now("something of it does not go back to the kernel");

/// The call in which this thread forks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    /// None that can return an error: libc forks by itself (daemon, forkpty).
    None,
    /// fork.
    Fork,
    /// fork, which is to fail.
    Refused {
        errno: c_int,
        /// The signals that were blocked before.
        mask: u64,
    },
}

thread_local! {
    static CALL: Cell<Call> = const { Cell::new(Call::None) };
}

/// Whether forks may fail for lack of a copy (`--fork fail`).
pub fn is_wanted() -> bool {
    state::options().is_some_and(|options| options.fork == Fork::Fail)
        && state::manages_private()
        && state::alive().is_some()
}

/// Says why a fork fails, once, also with `--quiet`: the user could not find out otherwise. Gives the
/// errno.
pub fn say(refusal: Refusal) -> c_int {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::AcqRel) {
        let Refusal { why, .. } = refusal;
        let text = "elbowroom: fork fails, since its child cannot have a copy of managed memory";
        let mut line = Buffer::<512>::new();
        let _ = writeln!(line, "{text}: {why}");
        stderr::write(line.as_bytes());
    }
    refusal.errno
}

/// Says, once, why the memory of a process goes to the kernel when it forks.
pub fn say_by_kernel(refusal: Refusal) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::AcqRel) {
        let Refusal { why, .. } = refusal;
        let what = "a forked child cannot have a copy of managed memory, which goes to the kernel";
        said::say(format_args!("{what}: {why}"));
    }
}

/// Whether this thread is in fork, which can return an error.
pub fn is_in_fork() -> bool {
    CALL.get() == Call::Fork
}

/// The errno of a fork that does not run libc's hooks, and so cannot have a copy. `None`: the fork may be
/// made.
pub fn without_hooks() -> Option<c_int> {
    let refusal = Refusal::for_good("_Fork, or clone without CLONE_VM, was called instead of fork");
    is_wanted().then(|| say(refusal))
}

/// In the hook before a fork, last of all: has the fork fail. `false`: the fork has no caller that can be
/// told.
pub fn in_hook(refusal: Refusal) -> bool {
    if CALL.get() != Call::Fork {
        return false;
    }
    say(refusal);
    CALL.set(Call::Refused { errno: refusal.errno, mask: sys::block(u64::MAX) });
    true
}

/// In the hooks after a fork: whether [`in_hook`] has it fail.
pub fn is_refused() -> bool {
    matches!(CALL.get(), Call::Refused { .. })
}

/// fork(2), which fails if there is an obstacle to a copy `now`, or if the hook has found one.
pub fn fork(now: Option<Refusal>, real: impl FnOnce() -> c_int) -> c_int {
    if let Some(refusal) = now {
        return sys::fail(say(refusal));
    }
    // A signal handler may fork in the middle of a fork.
    let before = CALL.replace(Call::Fork);
    let pid = real();
    let Call::Refused { errno, mask } = CALL.replace(before) else { return pid };
    // If there is no child, the kernel has refused the fork for reasons of its own.
    let errno = if pid > 0 { errno } else { sys::errno() };
    if pid > 0 {
        reap(pid);
    }
    sys::set_mask(mask);
    sys::fail(errno)
}

/// Waits until the child has gone: it has ended, or another thread has waited for it.
pub fn reap(pid: c_int) {
    let none = std::ptr::null_mut::<c_int>();
    let wait = || {
        // SAFETY: null pointers, which the call takes, and integers.
        unsafe { sys::system_call(libc::SYS_wait4, pid as c_long, none, 0 as c_long, none) }
    };
    while wait() < 0 && sys::errno() == libc::EINTR {}
}
