//! A lock of one word, which lies in memory that is zero at the start, and may be held from one call of the
//! program's to the next.

use crate::base::sys;
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and threads may sleep in `futex_wait`.
const WAITED_FOR: u32 = 2;

/// How often a thread tries before it sleeps.
const LOOKS: u32 = 100;

/// The lock. All zero is free. A thread that has it must not take it again.
#[repr(transparent)]
pub struct WordLock(AtomicU32);

impl WordLock {
    /// A free lock.
    pub const fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    /// Waits until the lock is free, and takes it.
    pub fn lock(&self) {
        for _ in 0..LOOKS {
            if self.0.compare_exchange_weak(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            std::hint::spin_loop();
        }
        while self.0.swap(WAITED_FOR, Ordering::Acquire) != FREE {
            sys::futex_wait(&self.0, WAITED_FOR, None);
        }
    }

    /// Frees the lock, which the calling thread holds, and wakes one waiter.
    pub fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == WAITED_FOR {
            sys::futex_wake(self.0.as_ptr(), 1);
        }
    }

    /// In a forked child, which has none of the parent's other threads: frees the lock, and tells whether
    /// it was held.
    pub fn reset(&self) -> bool {
        self.0.swap(FREE, Ordering::AcqRel) != FREE
    }
}
