//! The arithmetic of a trigger: whether enough stall time fell in a window of time.
//!
//! Plain data. The window slides as Linux's does (`window_update` in kernel/sched/psi.c): the stall time of
//! the previous window counts for the part of that window which is less than a window's length ago, as if
//! it had been spread evenly.

use super::meter::StallExtent;
use elbowroom_sync::time::Duration;

/// The shortest window, and the longest.
const WINDOWS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(10)];

/// How much stall time in a window of which length is an event. Linux: what is written to a file of
/// /proc/pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trigger {
    /// Which stall time counts.
    pub extent: StallExtent,
    /// How much stall time is an event: more than 0, at most the window.
    pub stall: Duration,
    /// The length of the window, from 10 ms to 10 s.
    pub window: Duration,
}

impl Trigger {
    /// Whether the stall and the window are in their ranges.
    pub fn is_valid(&self) -> bool {
        let [shortest, longest] = WINDOWS;
        (shortest..=longest).contains(&self.window) && !self.stall.is_zero() && self.stall <= self.window
    }
}

/// The window of a trigger. Times are in nanoseconds.
pub(super) struct Window {
    stall_ns: u64,
    window_ns: u64,
    /// When this window began, and the total stall time then.
    since_ns: u64,
    total_ns: u64,
    /// The stall time of the previous window.
    before_ns: u64,
    /// When the last event was.
    fired_ns: Option<u64>,
}

impl Window {
    /// A window that begins now, with no stall time in the previous one.
    pub(super) fn new(trigger: &Trigger, now_ns: u64, total_ns: u64) -> Self {
        let [stall_ns, window_ns] = [trigger.stall, trigger.window].map(|time| time.as_nanos() as u64);
        Self { stall_ns, window_ns, since_ns: now_ns, total_ns, before_ns: 0, fired_ns: None }
    }

    /// Looks at the total stall time: `true` if there is an event now. There is at most one in a window's
    /// length.
    pub(super) fn fires(&mut self, now_ns: u64, total_ns: u64) -> bool {
        let passed_ns = now_ns - self.since_ns;
        if passed_ns >= self.window_ns {
            // If more time than a window has passed, only its share of one window counts.
            let grown = u128::from(total_ns - self.total_ns) * u128::from(self.window_ns);
            self.before_ns = (grown / u128::from(passed_ns)) as u64;
            (self.since_ns, self.total_ns) = (now_ns, total_ns);
        }
        let fires = self.lacks_ns(now_ns, total_ns) == 0 && self.may_fire_at_ns() <= now_ns;
        if fires {
            self.fired_ns = Some(now_ns);
        }
        fires
    }

    /// How much stall time is missing for an event, given that of this window and the part of the previous
    /// one that still counts.
    fn lacks_ns(&self, now_ns: u64, total_ns: u64) -> u64 {
        let left_ns = self.window_ns.saturating_sub(now_ns - self.since_ns);
        let before = u128::from(self.before_ns) * u128::from(left_ns) / u128::from(self.window_ns);
        self.stall_ns.saturating_sub(before as u64 + total_ns - self.total_ns)
    }

    fn may_fire_at_ns(&self) -> u64 {
        self.fired_ns.map_or(0, |fired_ns| fired_ns + self.window_ns)
    }

    /// When to look next: at the first moment at which there can be an event, or at the end of the window
    /// if that is sooner, but not within a hundredth of a window from now. `grows_from_ns`: the time from
    /// which on the total grows. `None`: there can be no event before the total grows, and no stall time of
    /// this window or the previous one is left that would count then.
    pub(super) fn look_at_ns(&self, now_ns: u64, total_ns: u64, grows_from_ns: Option<u64>) -> Option<u64> {
        let lacks_ns = self.lacks_ns(now_ns, total_ns);
        let enough_ns =
            if lacks_ns == 0 { Some(now_ns) } else { grows_from_ns.map(|from_ns| from_ns + lacks_ns) };
        let counts = total_ns > self.total_ns || self.before_ns > 0;
        let ends_ns = self.since_ns + self.window_ns;
        let look_ns = match enough_ns {
            Some(enough_ns) => enough_ns.max(self.may_fire_at_ns()).min(ends_ns),
            None if counts => ends_ns,
            None => return None,
        };
        Some(look_ns.max(now_ns + self.window_ns / 100))
    }
}
