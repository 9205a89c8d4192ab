//! Unsynchronized memory that loom watches: it panics when two accesses to a cell are not ordered.
//!
//! The form for std has only loom's two methods, so that all accesses are seen in a model.

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// A cell whose owner promises that accesses through it are ordered.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Runs `f` on a pointer for reading. Reading through the pointer is sound only while no thread writes.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Runs `f` on a pointer for writing. Using the pointer is sound only while no other thread reads or
    /// writes.
    #[inline]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
