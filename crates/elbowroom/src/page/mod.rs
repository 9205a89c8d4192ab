//! Folios: the units of a file's page cache.
//!
//! A [`Folio`] is 2^order pages of one file, naturally aligned in it, with frames of its own. Whoever has its
//! lock ([`LockedFolio`]) owns its frames. Neighbours: `object` (the cache that finds folios), `reclaim`
//! (their queues), `wait` (who waits for their lock).

mod anon;
mod locked;
mod state;
mod wait;
mod waiting;

pub use anon::{AnonPages, HUGE_ORDER, HUGE_PAGES};
pub use locked::{LockedFolio, Reading, Ready, Woken};
pub use state::{Flag, StateWord};
pub use wait::{Answer, Parked, WaitTable, Waiter};
pub use waiting::{Beat, Delayed, Waiting};

use elbowroom_machine::{Extent, PageSet};
use elbowroom_sync::atomic::{AtomicU32, Ordering};
use std::ops::Range;

/// 2^order pages of a file.
pub struct Folio {
    /// Lock, flags and holds, and what the lock guards.
    pub state: StateWord<Body>,
    /// The page number in the file of its first page.
    pub index: u64,
    /// log2 of its pages.
    pub order: u8,
    /// The serial number of its object or space.
    pub object: u64,
    /// How many spaces have it, if it is anonymous. Changed by who has its lock. Linux: `_mapcount`.
    pub mapcount: AtomicU32,
    /// How often it went from one mapping to another, and in which second: `second << 16 | times`. Changed by
    /// who has its lock.
    moves: AtomicU32,
}

/// What the owner of a folio's lock may change.
pub struct Body {
    /// The frames; `None` while a device has them (then all pages are at home), or while reclaim takes them
    /// home or frees them.
    pub extent: Option<Extent>,
    /// The pages that differ from the file.
    pub dirty: PageSet,
}

impl Folio {
    /// A folio whose frames are to be filled.
    pub fn new(object: u64, index: u64, order: u8) -> Self {
        let body = Body { extent: None, dirty: PageSet::new(order) };
        Self::with(object, index, order, StateWord::new(body))
    }

    /// A folio that has its bytes.
    pub fn filled(object: u64, index: u64, extent: Extent) -> Self {
        let order = extent.order();
        let body = Body { extent: Some(extent), dirty: PageSet::new(order) };
        Self::with(object, index, order, StateWord::uptodate(body))
    }

    fn with(object: u64, index: u64, order: u8, state: StateWord<Body>) -> Self {
        Self { state, index, order, object, mapcount: AtomicU32::new(1), moves: AtomicU32::new(0) }
    }

    /// Notes that it is taken from one mapping to another, by who has its lock; tells how often that was so
    /// in this second.
    pub fn note_moved(&self, second: u32) -> u32 {
        let before = self.moves.load(Ordering::Relaxed);
        let times = if before >> 16 == second & 0xFFFF { (before & 0xFFFF) + 1 } else { 1 };
        self.moves.store(second << 16 | times.min(0xFFFF), Ordering::Relaxed);
        times
    }

    /// How many pages it has.
    pub fn pages(&self) -> u64 {
        1 << self.order
    }

    /// Its page numbers in the file.
    pub fn range(&self) -> Range<u64> {
        self.index..self.index + self.pages()
    }
}

impl Body {
    /// The frames.
    ///
    /// # Panics
    /// If a device has them: the folio's lock is then held by the I/O, so nobody else may be here.
    pub fn extent(&mut self) -> &mut Extent {
        self.extent.as_mut().expect("the owner of a folio's lock has its frames")
    }
}
