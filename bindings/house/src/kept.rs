//! What a thread keeps over a fork.

use std::cell::RefCell;
use std::mem::ManuallyDrop;

/// A value of a thread, for a `thread_local!`. It has no destructor: `exit` runs those of the thread before
/// it calls the functions of `atexit`, which may fork.
#[derive(Debug)]
pub struct Kept<T>(RefCell<ManuallyDrop<Option<T>>>);

impl<T> Kept<T> {
    /// Without a value.
    pub const fn new() -> Self {
        Self(RefCell::new(ManuallyDrop::new(None)))
    }

    /// Keeps a value.
    pub fn set(&self, value: T) {
        drop(self.exchange(Some(value)));
    }

    /// Gives the value back.
    pub fn take(&self) -> Option<T> {
        self.exchange(None)
    }

    fn exchange(&self, value: Option<T>) -> Option<T> {
        ManuallyDrop::into_inner(self.0.replace(ManuallyDrop::new(value)))
    }
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self::new()
    }
}
