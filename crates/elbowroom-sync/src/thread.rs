//! Threads and the small per-thread number that spreads counters.

use crate::atomic::Ordering;

#[cfg(not(any(loom, shuttle)))]
pub use std::thread::{JoinHandle, sleep, yield_now};

#[cfg(shuttle)]
pub use crate::shuttled::sleep;
#[cfg(shuttle)]
pub use shuttle::thread::{JoinHandle, yield_now};

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
    #[cfg(not(shuttle))]
    use std::thread::Builder;

    #[cfg(shuttle)]
    use shuttle::thread::Builder;

    Builder::new().name(name.to_owned()).spawn(f)
}

/// How many threads can run at once here, at least 1.
#[cfg(not(loom))]
pub fn parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Looks `looks` times at once and then `yields` times between other threads whether `done`; tells whether it was. For what is worth a
/// moment of the processor before sleeping. In a model that moment is over at once.
pub(crate) fn look_around(looks: u32, yields: u32, done: impl Fn() -> bool) -> bool {
    let (looks, yields) = if cfg!(any(loom, shuttle)) { (0, 0) } else { (looks, yields) };
    for look in 0..looks + yields {
        if done() {
            return true;
        }
        if look < looks { std::hint::spin_loop() } else { yield_now() }
    }
    false
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
