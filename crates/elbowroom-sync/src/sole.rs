//! A value for one thread at a time, where a second one is a mistake.

#[cfg(not(any(loom, shuttle)))]
use std::sync as sys;

#[cfg(loom)]
use loom::sync as sys;

#[cfg(shuttle)]
use shuttle::sync as sys;

use std::sync::TryLockError;

/// What a writer needs while it writes, where writers are serialized by a lock elsewhere.
///
/// Costs an exchange to take and one to give back, never waits, and is in no [`LockClass`](crate::LockClass).
pub struct Sole<T>(sys::Mutex<T>);

/// The right to use a [`Sole`] value.
pub type SoleGuard<'a, T> = sys::MutexGuard<'a, T>;

impl<T> Sole<T> {
    /// Puts `value` under it.
    pub fn new(value: T) -> Self {
        Self(sys::Mutex::new(value))
    }

    /// The value, or None while somebody else has it. A panic of whoever had it does not spoil it.
    #[inline]
    pub fn take(&self) -> Option<SoleGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
