//! When idle processors are kept from sleeping deeply: while faults come often.
//!
//! Each fault wakes two processors (the handler's, and the faulting thread's again); waking them is most of
//! the time of a fault that needs no disk (docs/decisions/0026-shallow-idle.md). While faults are rare that
//! time does not matter, and saving power counts more.

use crate::config::{SHALLOW_IDLE_BEGINS, SHALLOW_IDLE_ENDS, SHALLOW_IDLE_WINDOW};
use elbowroom_machine::ShallowIdle;
use elbowroom_sync::time::{Duration, Instant};

/// Counts events in a window of time, and tells whether they come often.
struct Pace {
    since: Instant,
    events: u32,
    often: bool,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self { since: now, events: 0, often: false }
    }

    /// Adds `events` events. At the end of a window: whether events come often now, if that has changed;
    /// else `None`.
    fn note(&mut self, events: u32, now: Instant) -> Option<bool> {
        self.events += events;
        let window = now.duration_since(self.since);
        if window < SHALLOW_IDLE_WINDOW {
            return None;
        }
        let in_second = f64::from(self.events) / window.as_secs_f64();
        let before = self.often;
        self.often = in_second >= f64::from(if before { SHALLOW_IDLE_ENDS } else { SHALLOW_IDLE_BEGINS });
        (self.since, self.events) = (now, 0);
        (self.often != before).then_some(self.often)
    }
}

/// Keeps idle processors from sleeping deeply while one handler is woken often.
pub(super) struct Idle {
    /// `None`: shallow idle is not wanted, or the device is not permitted.
    device: Option<ShallowIdle>,
    pace: Pace,
}

impl Idle {
    pub(super) fn new(wanted: bool) -> Self {
        let device = if wanted { ShallowIdle::new() } else { None };
        Self { device, pace: Pace::new(Instant::now()) }
    }

    /// The handler has been woken at `now`, by `events` events. Tells whether idle processors are kept from
    /// sleeping deeply from now on, and were not before.
    pub(super) fn goes_on(&mut self, events: u32, now: Instant) -> bool {
        let Some(device) = &mut self.device else { return false };
        match self.pace.note(events, now) {
            Some(true) => {
                let held = device.hold().is_ok();
                if !held {
                    // It will not be permitted the next time either.
                    self.device = None;
                }
                held
            }
            Some(false) => {
                device.release();
                false
            }
            None => false,
        }
    }

    /// How long the handler may sleep at most while the device is held: it must wake, even without events,
    /// to release the device when faults have become rare.
    pub(super) fn longest_wait(&self) -> Option<Duration> {
        (self.device.is_some() && self.pace.often).then_some(SHALLOW_IDLE_WINDOW)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn often_begins_and_ends() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        let ms = |ms| begin + Duration::from_millis(ms);
        // Rare, then one thousand and more in a second.
        assert_eq!((1..=100).find_map(|turn| pace.note(1, ms(turn * 2))), None);
        let begins = (201..250).find(|turn| pace.note(2, ms(*turn)) == Some(true)).expect("it is often");
        // Less, but not rare; then nothing, and the handler goes on by itself.
        assert_eq!((1..=200).find_map(|turn| pace.note(1, ms(begins + turn * 2))), None);
        let ends = (1..=4).find(|turn| pace.note(0, ms(begins + 400 + turn * 20)) == Some(false));
        assert!(ends.is_some_and(|turn| turn <= 2), "{ends:?}");
        // A long sleep does not count as pace.
        assert_eq!(pace.note(40, ms(60_000)), None);
        assert_eq!(pace.note(40, ms(60_020)), Some(true));
    }

    #[test]
    fn without_the_device_nothing_is_held() {
        let mut idle = Idle::new(false);
        let begin = Instant::now();
        assert!((0..100).all(|turn| !idle.goes_on(100, begin + Duration::from_millis(turn * 5))));
        assert_eq!(idle.longest_wait(), None);
    }
}
