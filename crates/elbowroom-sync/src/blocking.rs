//! The rule that nothing sleeps, nor waits for a device, inside a section of an epoch or with a read lock of
//! a VMA; checked in debug builds.
//!
//! Whoever is in a section keeps what was retired from being dropped, and whoever has a VMA keeps all who
//! change the layout waiting, and those who wait behind them. So both are for a look, and what the look finds
//! missing is had with nothing held. A thread counts what it has; who blocks asks.

#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
std::thread_local! {
    /// Sections of epochs, and read locks of slots, that this thread has.
    static INSIDE: [std::cell::Cell<u32>; 2] = const { [const { std::cell::Cell::new(0) }; 2] };
}

/// What nobody may block with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inside {
    /// A section of an epoch.
    Section,
    /// A read lock of a value in a slot table.
    Slot,
}

/// The thread has one more.
#[inline]
pub(crate) fn entered(what: Inside) {
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    INSIDE.with(|inside| inside[what as usize].set(inside[what as usize].get() + 1));
    let _ = what;
}

/// The thread has one less.
#[inline]
pub(crate) fn left(what: Inside) {
    // A guard may be dropped by another thread than its maker: then the counts of both are wrong, and
    // saturate.
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    INSIDE.with(|inside| inside[what as usize].set(inside[what as usize].get().saturating_sub(1)));
    let _ = what;
}

/// Says that the thread is about to sleep, or to make a request that may wait for a device. Costs nothing but
/// in debug builds.
///
/// # Panics
/// In debug builds, if the thread is inside a section of an epoch, has a read lock of a slot, or holds a lock
/// that is only ever held for a few instructions.
#[inline]
#[track_caller]
pub fn may_block() {
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    if !std::thread::panicking() {
        may_wait();
        crate::lock::order::may_block();
    }
}

/// The same for who is about to wait for a lock that is held for a few instructions, whatever locks it has
/// itself: their order is checked elsewhere.
///
/// # Panics
/// In debug builds, if the thread is inside a section of an epoch or has a read lock of a slot.
#[inline]
#[track_caller]
pub(crate) fn may_wait() {
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    if !std::thread::panicking() {
        INSIDE.with(|[sections, slots]| {
            assert!(sections.get() == 0, "a thread may block inside a section of an epoch");
            assert!(slots.get() == 0, "a thread may block with a VMA locked");
        });
    }
}

#[cfg(all(test, debug_assertions, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{LockClass, LockStats, epoch::pin, thread};
    use std::time::Duration;

    #[test]
    #[should_panic(expected = "a thread may block inside a section of an epoch")]
    fn nobody_sleeps_in_a_section() {
        let _guard = pin();
        thread::sleep(Duration::ZERO);
    }

    #[test]
    #[should_panic(expected = "a thread may block with a VMA locked")]
    fn nobody_sleeps_with_a_vma() {
        let layout = LockStats::new().layout_lock(());
        let slots = crate::Slots::new(&layout, 1);
        let key = slots.insert(&mut layout.write(), 1).unwrap();
        let _vma = slots.try_read(key, &layout).ok();
        may_block();
    }

    #[test]
    #[should_panic(expected = "a thread may block with cache held")]
    fn nobody_blocks_with_a_short_lock() {
        let lock = LockStats::new().mutex(LockClass::Cache, ());
        let _held = lock.lock();
        may_block();
    }

    #[test]
    fn what_was_left_is_forgotten() {
        drop(pin());
        let lock = LockStats::new().mutex(LockClass::Resize, ());
        // This one is held while a file is asked for its size.
        let _held = lock.lock();
        may_block();
    }
}
