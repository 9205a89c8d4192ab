//! The pages that went out to swap, and the clock with which their slots are stamped.

use crate::outside::Outside;

/// Ticks of the clock in which as many pages go out as the arena has. A stamp wraps after 256 times as many
/// pages; a page that was out for longer seems to have been out for less.
const CLOCK_TURNS: u64 = 256;

/// Counts of the pages that went out, but for those of one word, which are in no one's way.
pub struct Outs {
    outside: Outside,
    /// How many pages go out in a tick of the clock.
    tick: u64,
}

impl Outs {
    /// None went out, of an arena with so many frames.
    pub fn new(frames: u64) -> Self {
        Self { outside: Outside::new(frames as usize), tick: (frames / CLOCK_TURNS).max(1) }
    }

    /// How many pages went out so far.
    pub fn count(&self) -> u64 {
        self.outside.clock()
    }

    /// How many pages are out, of those that are known.
    #[cfg(test)]
    pub fn count_out(&self) -> i64 {
        self.outside.count_all()
    }

    /// The stamp of a slot whose page goes out now.
    pub fn now(&self) -> u16 {
        (self.count() / self.tick) as u16
    }

    /// How many pages went out since that with this stamp, exact to a tick.
    pub fn since(&self, stamp: u16) -> u64 {
        u64::from(self.now().wrapping_sub(stamp)) * self.tick
    }

    /// How many pages are out that went later than a page after which as many as `distance` went; `None`:
    /// that is too long ago.
    pub fn later(&self, distance: u64) -> Option<u64> {
        self.outside.later(self.count().saturating_sub(distance))
    }

    /// Notes that a page goes out.
    pub fn note_out(&self) {
        self.outside.note_out(1);
    }

    /// Notes that the page with this stamp is no longer out.
    pub fn note_back(&self, stamp: u16) {
        self.outside.note_back(self.count().saturating_sub(self.since(stamp)), 1);
    }
}
