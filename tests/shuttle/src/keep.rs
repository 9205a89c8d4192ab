//! Values that are not dropped by a panic.

use std::ops::Deref;

/// A value that is leaked if its thread panics. A scenario has failed then, its tasks do not run any more,
/// and a drop that waits for one of them would end the process before it is said what was wrong.
pub struct Keep<T>(Option<T>);

impl<T> Keep<T> {
    /// Keeps `value`.
    pub fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T> Deref for Keep<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is full until it is dropped")
    }
}

impl<T> Drop for Keep<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(self.0.take());
        }
    }
}
