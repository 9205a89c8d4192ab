//! Threads and the small per-thread number that spreads counters.

use crate::atomic::Ordering;

#[cfg(not(loom))]
pub use std::thread::{JoinHandle, sleep, yield_now};

#[cfg(loom)]
pub use loom::thread::yield_now;

/// Starts a named thread.
///
/// # Errors
/// What the system says when it has no room for another thread.
#[cfg(not(loom))]
pub fn spawn<F>(name: &str, f: F) -> std::io::Result<JoinHandle<()>>
where
    F: FnOnce() + Send + 'static,
{
    std::thread::Builder::new().name(name.to_owned()).spawn(f)
}

/// How many threads can run at once here, at least 1.
#[cfg(not(loom))]
pub fn parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A small number that differs between threads that live at the same time, as far as it can.
pub(crate) fn slot() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    std::thread_local! {
        static SLOT: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
    }
    SLOT.with(|slot| {
        if slot.get() == usize::MAX {
            slot.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        slot.get()
    })
}
