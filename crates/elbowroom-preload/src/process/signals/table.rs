//! The program's disposition of each signal, where the kernel has another one (ours).
//!
//! Synchronization: a slot is changed, together with the kernel's disposition, by the thread that holds its
//! lock, with all signals blocked. Handlers read single values without the lock.

use crate::base::sys::{self, Except, SignalsBlocked};
use libc::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

const SIGNALS: usize = 65;
/// How often a lock is tried before it counts as left behind, by a thread of the parent, in a child that
/// was made by a system call that we do not see. A thread that holds a lock only makes a few system calls,
/// and waits for nothing.
const TRIES: u32 = 100_000;
/// The flag by which the kernel tells that there is a restorer. libc sets it, and sigaction(2) reports it.
pub const SA_RESTORER: c_int = 0x0400_0000;

/// A disposition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action {
    /// SIG_DFL, SIG_IGN, or a function's address.
    pub handler: usize,
    /// SA_*.
    pub flags: c_int,
    /// What is blocked while it runs, as the kernel's set.
    pub mask: u64,
}

impl Action {
    /// From libc's type.
    pub fn of(action: &libc::sigaction) -> Self {
        // SAFETY: a `sigset_t` begins with the 64 bits that the kernel knows.
        let mask = unsafe { std::ptr::from_ref(&action.sa_mask).cast::<u64>().read() };
        Self { handler: action.sa_sigaction, flags: action.sa_flags, mask }
    }

    /// As libc's type.
    pub fn to_libc(self) -> libc::sigaction {
        // SAFETY: all zero is a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        self.write_to(&mut action);
        action
    }

    /// Stores the disposition in a value of libc's type, all of it but the restorer.
    pub fn write_to(self, action: &mut libc::sigaction) {
        action.sa_sigaction = self.handler;
        action.sa_flags = self.flags;
        // SAFETY: as in `of`.
        unsafe {
            libc::sigemptyset(&mut action.sa_mask);
            (&raw mut action.sa_mask).cast::<u64>().write(self.mask);
        }
    }

    /// Whether the disposition is a handler of the program's.
    pub fn is_handler(self) -> bool {
        self.handler != libc::SIG_DFL && self.handler != libc::SIG_IGN
    }
}

/// A disposition that other threads may replace, value by value.
struct Entry {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

impl Entry {
    const fn default() -> Self {
        Self { handler: AtomicUsize::new(libc::SIG_DFL), flags: AtomicI32::new(0), mask: AtomicU64::new(0) }
    }

    fn load(&self) -> Action {
        Action {
            handler: self.handler.load(Ordering::Acquire),
            flags: self.flags.load(Ordering::Acquire),
            mask: self.mask.load(Ordering::Acquire),
        }
    }

    fn store(&self, action: Action) {
        self.flags.store(action.flags, Ordering::Release);
        self.mask.store(action.mask, Ordering::Release);
        self.handler.store(action.handler, Ordering::Release);
    }
}

struct Slot {
    lock: AtomicBool,
    /// What the program has set.
    set: Entry,
    /// What the program had set before a handler that a raw call has installed.
    under: Entry,
}

static SLOTS: [Slot; SIGNALS] =
    [const { Slot { lock: AtomicBool::new(false), set: Entry::default(), under: Entry::default() } };
        SIGNALS];

/// A slot that the calling thread alone may change. All signals are blocked until it is dropped.
pub struct Held {
    signal: c_int,
    _blocked: SignalsBlocked,
}

/// Locks a signal's slot; the signal is one of 1..=64.
pub fn lock(signal: c_int) -> Held {
    let blocked = SignalsBlocked::new(Except::Nothing);
    let slot = &SLOTS[signal as usize];
    let mut tries = 0;
    while slot.lock.swap(true, Ordering::Acquire) && tries < TRIES {
        tries += 1;
        sys::sched_yield();
    }
    Held { signal, _blocked: blocked }
}

/// The program's disposition, read value by value.
pub fn load(signal: c_int) -> Action {
    SLOTS[signal as usize].set.load()
}

/// The program's disposition before [`Held::adopt`] last replaced it, read value by value.
pub fn load_under(signal: c_int) -> Action {
    SLOTS[signal as usize].under.load()
}

impl Held {
    /// The signal.
    pub fn signal(&self) -> c_int {
        self.signal
    }

    /// The program's disposition.
    pub fn load(&self) -> Action {
        load(self.signal)
    }

    /// Sets the program's disposition.
    pub fn store(&self, action: Action) {
        SLOTS[self.signal as usize].set.store(action);
    }

    /// Sets the program's disposition to the one found in the kernel, and keeps the one before.
    pub fn adopt(&self, action: Action) {
        let slot = &SLOTS[self.signal as usize];
        if action != slot.set.load() {
            slot.under.store(slot.set.load());
        }
        slot.set.store(action);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The lock goes before the signals are unblocked, which happens when the fields are dropped.
        SLOTS[self.signal as usize].lock.store(false, Ordering::Release);
    }
}

/// In a forked child, which has only one thread: frees all locks, whose holders do not exist here.
pub fn after_fork() {
    for slot in &SLOTS {
        slot.lock.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_goes_through_libcs_type() {
        let action =
            Action { handler: 0x1234, flags: libc::SA_RESTART | libc::SA_NODEFER, mask: 0xdead_beef };
        assert_eq!(Action::of(&action.to_libc()), action);
        assert!(action.is_handler());
        assert!(!Action { handler: libc::SIG_IGN, ..action }.is_handler());
    }

    #[test]
    fn a_slot_keeps_what_is_set() {
        let action = Action { handler: 7, flags: 8, mask: 9 };
        lock(64).store(action);
        assert_eq!(lock(64).load(), action);
    }
}
