//! How busy a handler thread is.

use crate::config::LOAD_WINDOW;
use elbowroom_sync::time::Instant;

/// Time that a handler has spent working and waiting. Both are halved from time to time, so that the past
/// counts less and less.
pub(super) struct Load {
    since: Instant,
    busy_ns: u64,
    idle_ns: u64,
}

impl Load {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), busy_ns: 0, idle_ns: 0 }
    }

    fn lap(&mut self) -> u64 {
        let now = Instant::now();
        let ns = now.duration_since(self.since).as_nanos() as u64;
        self.since = now;
        ns
    }

    /// Ends a time of waiting.
    pub(super) fn work_begins(&mut self) {
        self.idle_ns += self.lap();
        self.age();
    }

    /// Ends a time of working.
    pub(super) fn work_ends(&mut self) {
        self.busy_ns += self.lap();
        self.age();
    }

    /// When the handler last began to work or to wait.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Does not count the time since the last change: the arena grew in it, which giving faults to another
    /// handler would not have made faster.
    pub(super) fn forgive(&mut self) {
        self.since = Instant::now();
    }

    fn age(&mut self) {
        if self.busy_ns + self.idle_ns > LOAD_WINDOW.as_nanos() as u64 {
            self.busy_ns /= 2;
            self.idle_ns /= 2;
        }
    }

    /// Whether the handler works for more than this share of its time.
    pub(super) fn is_over(&self, percent: u64) -> bool {
        self.busy_ns * 100 > (self.busy_ns + self.idle_ns) * percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_sync::{thread, time::Duration};

    #[test]
    fn follows_what_happens() {
        let mut load = Load::new();
        let busy = |load: &mut Load| {
            load.work_begins();
            thread::sleep(Duration::from_millis(3));
            load.work_ends();
        };
        let idle = |load: &mut Load| {
            load.work_ends();
            thread::sleep(Duration::from_millis(3));
            load.work_begins();
        };
        // If this thread gets no processor for a moment, that counts as whatever it was doing; some more
        // rounds make up for it.
        (0..8).for_each(|_| busy(&mut load));
        assert!((0..200).any(|_| {
            busy(&mut load);
            load.is_over(75)
        }));
        (0..8).for_each(|_| idle(&mut load));
        assert!((0..200).any(|_| {
            idle(&mut load);
            !load.is_over(75)
        }));
    }
}
