//! The faults that wait at a handler, where other threads find them.

use crate::page::Parked;
use elbowroom_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use elbowroom_sync::time::Instant;
use std::collections::VecDeque;

/// What becomes of a fault after its delay.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Delayed {
    /// It is served again.
    ServeAgain,
    /// Its thread is woken.
    WakeOnly,
}

/// The faults that a handler tries again by itself. Other threads take them only when they are overdue, or
/// the handler is stuck.
#[derive(Default)]
pub struct Waiting {
    /// Faults that found no memory, oldest first.
    pub starved: VecDeque<Parked>,
    /// Faults that are due after a delay. All have the same delay, so they are in the order in which they
    /// are due.
    delayed: VecDeque<(Instant, Parked, Delayed)>,
}

impl Waiting {
    /// Whether no fault waits here.
    pub fn is_empty(&self) -> bool {
        self.starved.is_empty() && self.delayed.is_empty()
    }

    /// Queues a fault that is due at `due`, which is not before those that are queued.
    pub fn delay(&mut self, due: Instant, fault: Parked, what: Delayed) {
        self.delayed.push_back((due, fault, what));
    }

    /// Takes the next fault whose delay is over.
    pub fn take_due(&mut self, now: Instant) -> Option<(Parked, Delayed)> {
        self.delayed.front().filter(|(due, ..)| *due <= now)?;
        self.delayed.pop_front().map(|(_, fault, what)| (fault, what))
    }

    /// Takes all faults. One whose thread was only to be woken is served again, with the same result.
    pub fn take_all(&mut self) -> Vec<Parked> {
        self.starved.drain(..).chain(self.delayed.drain(..).map(|(_, fault, _)| fault)).collect()
    }

    /// Takes the faults that `wanted` accepts.
    pub fn take_if(&mut self, wanted: impl Fn(&Parked) -> bool) -> Vec<Parked> {
        let mut taken = Vec::new();
        for fault in std::mem::take(&mut self.starved) {
            if wanted(&fault) { taken.push(fault) } else { self.starved.push_back(fault) }
        }
        for entry in std::mem::take(&mut self.delayed) {
            if wanted(&entry.1) { taken.push(entry.1) } else { self.delayed.push_back(entry) }
        }
        taken
    }
}

/// A sign of life of a handler, for the watchdog. Odd: it works; even: it waits for something to do.
#[derive(Default)]
pub struct Beat {
    count: AtomicU64,
    /// The address of the fault that the handler serves; 0: it does something else.
    addr: AtomicUsize,
}

impl Beat {
    /// The handler goes to wait.
    pub fn waits(&self) {
        self.count.store((self.count.load(Ordering::Relaxed) | 1) + 1, Ordering::Relaxed);
    }

    /// The handler begins something: to serve the fault at `addr`, if that is not 0.
    pub fn works(&self, addr: usize) {
        self.addr.store(addr, Ordering::Relaxed);
        self.count.store((self.count.load(Ordering::Relaxed) + 1) | 1, Ordering::Relaxed);
    }

    /// A number that grows each time that the handler begins something or goes to wait.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The address of the fault that it serves, if it serves one.
    pub fn serves(&self) -> Option<usize> {
        Some(self.addr.load(Ordering::Relaxed)).filter(|addr| *addr != 0)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn every_beat_is_another_one_and_its_parity_tells_what() {
        let (beat, mut before) = (Beat::default(), 0);
        for turn in 0..10 {
            if turn % 3 == 0 {
                beat.waits()
            } else {
                beat.works(turn)
            }
            assert!(beat.count() > before);
            assert_eq!(beat.count() % 2 == 0, turn % 3 == 0);
            before = beat.count();
        }
    }
}
