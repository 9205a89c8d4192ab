//! What a handler has waiting, where others find it.

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

/// The faults that a handler tries again by itself. Its own business, unless it is stuck.
#[derive(Default)]
pub struct Waiting {
    /// Those that found no memory, oldest first.
    pub starved: VecDeque<Parked>,
    /// All with the same delay, so in the order in which they are due.
    delayed: VecDeque<(Instant, Parked, Delayed)>,
}

impl Waiting {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.starved.is_empty() && self.delayed.is_empty()
    }

    /// Queues one that is due then, not before those that are queued.
    pub fn delay(&mut self, due: Instant, fault: Parked, what: Delayed) {
        self.delayed.push_back((due, fault, what));
    }

    /// The next one whose delay is over.
    pub fn take_due(&mut self, now: Instant) -> Option<(Parked, Delayed)> {
        self.delayed.front().filter(|(due, ..)| *due <= now)?;
        self.delayed.pop_front().map(|(_, fault, what)| (fault, what))
    }

    /// All of them. One that was only to be woken will find again what it found.
    pub fn take_all(&mut self) -> Vec<Parked> {
        self.starved.drain(..).chain(self.delayed.drain(..).map(|(_, fault, _)| fault)).collect()
    }

    /// Takes those of which `wanted` says so.
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
    /// What it serves; 0: something else.
    addr: AtomicUsize,
}

impl Beat {
    /// The handler goes to wait.
    pub fn waits(&self) {
        self.count.store((self.count.load(Ordering::Relaxed) | 1) + 1, Ordering::Relaxed);
    }

    /// It begins something: the fault at `addr`, if it is not 0.
    pub fn works(&self, addr: usize) {
        self.addr.store(addr, Ordering::Relaxed);
        self.count.store((self.count.load(Ordering::Relaxed) + 1) | 1, Ordering::Relaxed);
    }

    /// How often it has begun or ended something.
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
