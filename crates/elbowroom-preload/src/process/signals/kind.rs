//! Which signals end a process, and which ones instructions raise.

use libc::c_int;

/// The highest number of a signal; the lowest is 1.
pub const LAST_SIGNAL: c_int = 64;

/// Whether the default action of the signal ends the process, and a handler can be set for it.
pub fn is_fatal(signal: c_int) -> bool {
    match signal {
        libc::SIGKILL | libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => false,
        libc::SIGCHLD | libc::SIGCONT | libc::SIGURG | libc::SIGWINCH => false,
        // 32 and 33 are libc's own.
        1..=31 | 34..=LAST_SIGNAL => true,
        _ => false,
    }
}

/// Whether instructions raise the signal: the kernel ends the process if the signal is blocked or ignored
/// then.
pub fn is_synchronous(signal: c_int) -> bool {
    matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signals_are_those_that_end_a_process() {
        let fatal = [libc::SIGSEGV, libc::SIGTERM, libc::SIGUSR1, libc::SIGPIPE, libc::SIGSYS, 34, 64];
        assert!(fatal.into_iter().all(is_fatal));
        let not = [0, 65, 32, 33, libc::SIGKILL, libc::SIGSTOP, libc::SIGCHLD, libc::SIGWINCH, libc::SIGTSTP];
        assert!(!not.into_iter().any(is_fatal));
    }
}
