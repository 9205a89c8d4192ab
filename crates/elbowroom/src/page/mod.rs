//! Folios: the units in which pages are cached, read, written and mapped.
//!
//! A [`Folio`] is 2^order pages of one [`Owner`], naturally aligned in it, with frames of its own. Whoever
//! has its lock ([`LockedFolio`]) owns its frames. Neighbours: `object` (the cache that finds folios; the two
//! know each other, as Linux's `folio` and `address_space` do), `reclaim` (their lists), `wait` (who waits
//! for their lock).

mod anon;
mod anon_rmap;
mod dirty;
mod kept;
mod locked;
mod state;
mod wait;
mod waiting;

pub use anon::{AnonPages, HUGE_ORDER, HUGE_PAGES};
pub use anon_rmap::AnonRmap;
pub use dirty::{Dirty, checksum};
pub use kept::{Home, Kept, Place, Spot};
pub use locked::{LockedFolio, Reading, Ready, Woken};
pub use state::{Flag, StateWord};
pub use wait::{Answer, Parked, WaitTable, Waiter};
pub use waiting::{Beat, Delayed, Waiting};

use crate::group::{Frames, GroupId};
use crate::object::FileObject;
use elbowroom_sync::atomic::{AtomicU32, Ordering};
use elbowroom_sync::{Arc, Weak};
use std::ops::Range;

/// Whose pages a folio has: where it is found, how it is read again, and who is asked before it goes.
pub enum Owner {
    /// A file or shared memory: it has page [`Folio::index`] and those that follow. Weak: a folio may be
    /// dropped by whoever ends a grace period, perhaps with locks, where no file may be closed.
    File(Weak<FileObject>),
    /// Anonymous memory of one space or, since a fork, of several: [`Body::rmap`] tells where.
    Anon,
}

/// 2^order pages of an owner.
pub struct Folio {
    /// Lock, flags and holds, and what the lock guards.
    pub state: StateWord<Body>,
    /// The number of its first page in its owner: in the file, or, of anonymous memory, in addresses when it
    /// was made.
    pub index: u64,
    /// log2 of its pages.
    pub order: u8,
    /// Whose it is.
    pub owner: Owner,
    /// The group that pays for its frames.
    pub group: GroupId,
    /// The number of the entry that it had last in the lists of reclaim; at first one that none has. The
    /// lock of these lists guards it.
    pub listed: AtomicU32,
    /// Of a file: how often it went from one mapping to another, and in which second: `second << 16 | times`.
    /// Of anonymous memory: when a fault mapped it last, in microseconds. Changed by who has its lock.
    lately: AtomicU32,
}

/// What the owner of a folio's lock may change.
pub struct Body {
    /// The frames. `None` while a device reads the folio for the first time, or while reclaim takes them home
    /// or frees them.
    pub extent: Option<Frames>,
    /// The pages that differ from the file.
    pub dirty: Dirty,
    /// Where the spaces have it, if it is anonymous.
    pub rmap: AnonRmap,
    /// Where the swap file has pages of it, if it is anonymous.
    pub kept: Kept,
}

impl Folio {
    /// A folio whose frames, which are charged to the group, are to be filled.
    pub fn new(owner: Owner, group: GroupId, index: u64, order: u8) -> Self {
        let body = Body::with(None, order, index);
        Self::with((owner, group), index, order, StateWord::new(body))
    }

    /// A folio that has its bytes.
    pub fn filled(owner: Owner, index: u64, extent: Frames) -> Self {
        let (order, group, mapped) = (extent.order(), extent.group(), !extent.is_home());
        let body = Body::with(Some(extent), order, index);
        let folio = Self::with((owner, group), index, order, StateWord::uptodate(body));
        if mapped {
            // Before anybody can find it: who unmaps passes by what is not mapped, without its lock.
            folio.state.set(Flag::Mapped);
        }
        folio
    }

    fn with((owner, group): (Owner, GroupId), index: u64, order: u8, state: StateWord<Body>) -> Self {
        let (listed, lately) = (AtomicU32::new(u32::MAX), AtomicU32::new(0));
        Self { state, index, order, owner, group, listed, lately }
    }

    /// The file or the shared memory that has it; `None`: it is anonymous, or its object is gone, and its
    /// bytes are nobody's.
    pub fn object(&self) -> Option<Arc<FileObject>> {
        match &self.owner {
            Owner::File(object) => object.upgrade(),
            Owner::Anon => None,
        }
    }

    /// Whether it is not anonymous.
    pub fn is_cached(&self) -> bool {
        matches!(self.owner, Owner::File(_))
    }

    /// Notes that it is taken from one mapping to another, by who has its lock; tells how often that was so
    /// in this second.
    pub fn note_moved(&self, second: u32) -> u32 {
        let before = self.lately.load(Ordering::Relaxed);
        let times = if before >> 16 == second & 0xFFFF { (before & 0xFFFF) + 1 } else { 1 };
        self.lately.store(second << 16 | times.min(0xFFFF), Ordering::Relaxed);
        times
    }

    /// Notes that a fault maps it now, `micros` after some beginning, by who has its lock. It is anonymous.
    pub fn note_mapped(&self, micros: u32) {
        self.lately.store(micros, Ordering::Relaxed);
    }

    /// When a fault mapped it last, in microseconds, which begin anew each 71 minutes.
    pub fn mapped_at(&self) -> u32 {
        self.lately.load(Ordering::Relaxed)
    }

    /// How many pages it has.
    pub fn pages(&self) -> u64 {
        1 << self.order
    }

    /// Its page numbers in its owner.
    pub fn range(&self) -> Range<u64> {
        self.index..self.index + self.pages()
    }
}

impl Owner {
    /// An object.
    pub fn file(object: &Arc<FileObject>) -> Self {
        Self::File(Arc::downgrade(object))
    }
}

impl Body {
    fn with(extent: Option<Frames>, order: u8, index: u64) -> Self {
        Self { extent, dirty: Dirty::new(order), rmap: AnonRmap::new(index), kept: Kept::default() }
    }

    /// How many spaces have it, if it is anonymous.
    pub fn spaces(&self) -> usize {
        self.rmap.pages().len()
    }

    /// The frames.
    ///
    /// # Panics
    /// If a device has them: the folio's lock is then held by the I/O, so nobody else may be here.
    pub fn extent(&mut self) -> &mut Frames {
        self.extent.as_mut().expect("the owner of a folio's lock has its frames")
    }
}
