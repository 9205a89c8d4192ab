//! The rule that nothing sleeps, nor waits for a device, inside a section of an epoch or with a read lock of
//! a VMA; checked in debug builds.
//!
//! A thread in a section keeps retired values from being dropped, and a thread with a read lock of a VMA
//! keeps writers of the layout waiting, and all threads behind them. So both are only for a short look;
//! anything that takes longer is done after they are released. Each thread counts the sections and read
//! locks that it has, and code that may block checks these counts.

#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
std::thread_local! {
    /// How many sections of epochs this thread is in, and how many read locks of slots it has.
    static INSIDE: [std::cell::Cell<u32>; 2] = const { [const { std::cell::Cell::new(0) }; 2] };
}

/// What a thread must not be in, or have, when it blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inside {
    /// A section of an epoch.
    Section,
    /// A read lock of a value in a slot table.
    Slot,
}

/// Counts that the thread has entered a section, or taken a read lock.
#[inline]
pub(crate) fn entered(what: Inside) {
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    INSIDE.with(|inside| inside[what as usize].set(inside[what as usize].get() + 1));
    let _ = what;
}

/// Counts that the thread has left a section, or released a read lock.
#[inline]
pub(crate) fn left(what: Inside) {
    // A guard may be dropped by another thread than the one that made it: then the counts of both threads
    // are wrong, and saturate at 0.
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    INSIDE.with(|inside| inside[what as usize].set(inside[what as usize].get().saturating_sub(1)));
    let _ = what;
}

/// To be called before the thread sleeps, or makes a request that may wait for a device. Costs nothing
/// except in debug builds.
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

/// [`may_block`] for a thread that is about to wait for a lock that is only ever held for a few
/// instructions. The locks that the thread has itself are not checked here: `lock::order` checks their
/// order.
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
