//! Threads and the small per-thread number that spreads counters.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

// std's, also in a model: all its threads run on one OS thread, so a panic of one of them is seen.
pub use std::thread::panicking;
#[cfg(not(any(loom, shuttle)))]
pub use std::thread::{JoinHandle, scope, yield_now};

#[cfg(shuttle)]
pub use crate::shuttled::sleep;
#[cfg(shuttle)]
pub use shuttle::thread::{JoinHandle, scope, yield_now};

#[cfg(loom)]
pub use loom::thread::yield_now;

/// Sleeps.
///
/// # Panics
/// In debug builds, if the thread must not block here: see [`may_block`](crate::may_block).
#[cfg(not(any(loom, shuttle)))]
pub fn sleep(duration: std::time::Duration) {
    crate::may_block();
    // Not std's sleep, which panics on any error but EINTR: a sandbox may deny the call.
    let begin = std::time::Instant::now();
    while let Some(left) = duration.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

/// Starts a named thread.
///
/// # Errors
/// The system's, if it has no room for another thread.
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

/// Spins for a moment: calls `done` up to `looks` times, and then up to `yields` times with a yield after
/// each; returns whether it was true. For waits that are usually over before a sleep would be. In a model
/// it returns at once.
pub fn look_around(looks: u32, yields: u32, mut done: impl FnMut() -> bool) -> bool {
    let (looks, yields) = if cfg!(any(loom, shuttle)) { (0, 0) } else { (looks, yields) };
    for look in 0..looks + yields {
        if done() {
            return true;
        }
        if look < looks { std::hint::spin_loop() } else { yield_now() }
    }
    false
}

/// How many slots there are that belong to one thread each.
pub(crate) const OWN_SLOTS: usize = u64::BITS as usize;

/// Rows of statistics for threads that have no slot of their own.
pub(crate) const SHARED_ROWS: usize = 8;

/// Bitmap of the slots that are taken. std's atomic, not the facade's: only statistics use it.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// How many slots, from the lowest on, have ever been taken; shared ones count as all.
static REACHED: AtomicUsize = AtomicUsize::new(0);

std::thread_local! {
    /// The thread's slot; `usize::MAX`: it has none yet. This has no destructor, so it can be used until
    /// the thread has ended.
    static SLOT: Cell<usize> = const { Cell::new(usize::MAX) };
    static OWNER: Owner = const { Owner };
    /// The kernel's id of the thread; 0: not asked yet. A forked child still has the id of its parent's
    /// thread, so only code that does not run on in a child may rely on it.
    static ID: Cell<u32> = const { Cell::new(0) };
}

/// The kernel's id of the calling thread (gettid).
pub fn id() -> u32 {
    match ID.get() {
        0 => {
            let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            ID.set(id);
            id
        }
        id => id,
    }
}

/// Gives the thread's slot back when the thread ends.
struct Owner;

impl Drop for Owner {
    fn drop(&mut self) {
        let slot = SLOT.replace(shared_slot());
        if slot < OWN_SLOTS {
            // Release: the next thread with this slot sees what this one has stored.
            TAKEN.fetch_and(!(1 << slot), Ordering::Release);
        }
    }
}

/// The calling thread's slot, a small number. If it is below [`OWN_SLOTS`], no other living thread has it;
/// greater ones are shared.
#[inline]
pub(crate) fn slot() -> usize {
    match SLOT.get() {
        usize::MAX => take_slot(),
        slot => slot,
    }
}

#[cold]
fn take_slot() -> usize {
    // Used while the next line runs, which may allocate, and so call this again.
    SLOT.set(shared_slot());
    // A thread whose destructors have run would never give a slot back.
    if OWNER.try_with(|_| ()).is_ok() {
        let free = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
        if let Ok(taken) = TAKEN.fetch_update(Ordering::Acquire, Ordering::Relaxed, free) {
            SLOT.set(taken.trailing_ones() as usize);
        }
    }
    let slot = SLOT.get();
    REACHED.fetch_max(if slot < OWN_SLOTS { slot + 1 } else { OWN_SLOTS }, Ordering::Relaxed);
    slot
}

/// The rows that threads with slots of their own have ever used, and then the shared ones: of a table with
/// [`OWN_SLOTS`] and [`SHARED_ROWS`] rows. A row that a thread takes meanwhile may be left out.
pub(crate) fn rows_reached() -> impl Iterator<Item = usize> {
    (0..REACHED.load(Ordering::Relaxed)).chain(OWN_SLOTS..OWN_SLOTS + SHARED_ROWS)
}

fn shared_slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    OWN_SLOTS + NEXT.fetch_add(1, Ordering::Relaxed) % OWN_SLOTS
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn no_two_threads_have_one_slot_and_it_is_given_back() {
        let mut owned = 0;
        // Other tests' threads may have all slots for a while.
        for _ in 0..100 {
            let barrier = std::sync::Barrier::new(2 * OWN_SLOTS);
            let seen = std::sync::Mutex::new(Vec::new());
            std::thread::scope(|scope| {
                for _ in 0..2 * OWN_SLOTS {
                    scope.spawn(|| {
                        let mine = slot();
                        barrier.wait();
                        assert_eq!(slot(), mine);
                        seen.lock().unwrap().push(mine);
                    });
                }
            });
            let mut own: Vec<_> = seen.into_inner().unwrap();
            own.retain(|&slot| slot < OWN_SLOTS);
            let count = own.len();
            own.sort_unstable();
            own.dedup();
            assert_eq!(own.len(), count, "{own:?}");
            owned += count;
            if owned > 2 * OWN_SLOTS {
                // More than there are: some were given back.
                return;
            }
        }
        panic!("only {owned} threads had a slot of their own");
    }
}
