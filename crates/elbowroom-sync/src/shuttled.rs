//! Atomics and a clock for shuttle.
//!
//! The atomics are as large as std's: the soft MMU sees the arena's bytes and its page tables as atomics,
//! and shuttle's own atomics, which keep more than their value, do not fit there. Each access is a point at
//! which shuttle may run another task; as with shuttle's own, every order is taken for sequentially
//! consistent.
//!
//! The clock advances only by sleeps, each by its length. So a loop around a sleep with a time limit ends
//! after a fixed number of turns on any machine, and an execution depends on its schedule alone.

use std::sync::atomic as plain;
pub use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// Lets shuttle run another task. Not while a panic unwinds: its report comes first.
fn switch() {
    if !std::thread::panicking() {
        // shuttle's sleep does nothing but switch tasks, and no other public function of shuttle does just
        // that.
        shuttle::thread::sleep(Duration::ZERO);
    }
}

/// The methods that all atomics have.
macro_rules! atomic {
    ($name:ident $(<$param:ident>)?, $value:ty) => {
        #[doc = concat!("`", stringify!($name), "`, with a point for shuttle before each access.")]
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name $(<$param>)? (plain::$name $(<$param>)?);

        #[allow(missing_docs, reason = "as std says")]
        impl $(<$param>)? $name $(<$param>)? {
            pub const fn new(value: $value) -> Self {
                Self(plain::$name::new(value))
            }

            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }

            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            pub fn load(&self, order: Ordering) -> $value {
                switch();
                self.0.load(order)
            }

            pub fn store(&self, value: $value, order: Ordering) {
                switch();
                self.0.store(value, order)
            }

            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                switch();
                self.0.swap(value, order)
            }

            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                switch();
                self.0.compare_exchange(current, new, success, failure)
            }

            /// Fails only if the value differs: a schedule must be the same each time it is run.
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }
        }
    };
}

/// Read-modify-write accesses, as `method(argument)`.
macro_rules! changes {
    ($name:ident, $value:ty: $($method:ident)*) => {
        #[allow(missing_docs, reason = "as std says")]
        impl $name {
            $(
                pub fn $method(&self, value: $value, order: Ordering) -> $value {
                    switch();
                    self.0.$method(value, order)
                }
            )*

            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut now = self.load(failure);
                while let Some(new) = change(now) {
                    match self.compare_exchange(now, new, success, failure) {
                        Ok(before) => return Ok(before),
                        Err(other) => now = other,
                    }
                }
                Err(now)
            }
        }
    };
}

macro_rules! integer {
    ($name:ident, $value:ty) => {
        atomic!($name, $value);
        changes!($name, $value: fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);
    };
}

integer!(AtomicU8, u8);
integer!(AtomicU32, u32);
integer!(AtomicU64, u64);
integer!(AtomicI64, i64);
integer!(AtomicUsize, usize);
atomic!(AtomicBool, bool);
changes!(AtomicBool, bool: fetch_and fetch_or fetch_xor);
atomic!(AtomicPtr<T>, *mut T);

shuttle::lazy_static! {
    /// Nanoseconds since the execution began.
    static ref CLOCK: plain::AtomicU64 = plain::AtomicU64::new(0);
}

/// Lets other tasks run, and advances the clock by `duration`.
pub fn sleep(duration: Duration) {
    CLOCK.fetch_add(duration.as_nanos() as u64, plain::Ordering::Relaxed);
    // Yields, so that shuttle does not always choose this task, which may be polling.
    shuttle::thread::yield_now();
}

/// A moment of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

#[allow(missing_docs, reason = "as std says")]
impl Instant {
    pub fn now() -> Self {
        Self(Duration::from_nanos(CLOCK.load(plain::Ordering::Relaxed)))
    }

    pub fn elapsed(&self) -> Duration {
        Self::now().duration_since(*self)
    }

    pub fn duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.duration_since(earlier)
    }

    pub fn checked_add(&self, duration: Duration) -> Option<Instant> {
        self.0.checked_add(duration).map(Instant)
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, duration: Duration) -> Instant {
        Instant(self.0 + duration)
    }
}
