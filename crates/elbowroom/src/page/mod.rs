//! Folios: the units in which pages are cached, read, written and mapped.
//!
//! A [`Folio`] is 2^order pages of one [`Owner`], naturally aligned in it, with frames of its own. The
//! thread that holds its lock ([`LockedFolio`]) owns its frames. Neighbours: `object` (the cache that finds
//! folios; the two know each other, as Linux's `folio` and `address_space` do), `reclaim` (their lists),
//! `wait` (the waiters for their locks).

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
pub use kept::{Kept, Spot, SwapCopy};
pub use locked::{LockedFolio, Reading, Ready, Woken};
pub use state::{Flag, StateWord};
pub use wait::{Answer, Parked, WaitTable, Waiter};
pub use waiting::{Beat, Delayed, Waiting};

use crate::group::{Frames, GroupId};
use crate::object::FileObject;
use elbowroom_sync::atomic::{AtomicU32, Ordering};
use elbowroom_sync::{Arc, Weak};
use std::ops::Range;

/// What the pages of a folio belong to: it decides where the folio is found, and from where its bytes are
/// read again.
pub enum Owner {
    /// A file or shared memory: the folio has its page [`Folio::index`] and those that follow. Weak, since
    /// a folio may be dropped by any thread that ends a grace period, perhaps with locks held, where no
    /// file may be closed.
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
    /// What its pages belong to.
    pub owner: Owner,
    /// The group that pays for its frames.
    pub group: GroupId,
    /// The number of the folio's last entry in the lists of reclaim; before the first one, a number that no
    /// entry has. Guarded by the lock of these lists.
    pub listed: AtomicU32,
    /// Of a folio of a file: how often it went from one mapping to another, and in which second: `second <<
    /// 16 | times`. Of an anonymous folio: when a fault mapped it last, in microseconds. Changed only with
    /// the folio's lock.
    lately: AtomicU32,
}

/// What the owner of a folio's lock may change.
pub struct Body {
    /// The frames. `None` while a device reads the folio for the first time, or while reclaim takes them home
    /// or frees them.
    pub extent: Option<Frames>,
    /// The pages that differ from the file.
    pub dirty: Dirty,
    /// At which pages the spaces have the folio, if it is anonymous.
    pub rmap: AnonRmap,
    /// Where swap still has the bytes of its pages, if it is anonymous.
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
            // Before another thread can find it: unmapping skips a folio without this flag, and does not
            // lock it.
            folio.state.set(Flag::Mapped);
        }
        folio
    }

    fn with((owner, group): (Owner, GroupId), index: u64, order: u8, state: StateWord<Body>) -> Self {
        let (listed, lately) = (AtomicU32::new(u32::MAX), AtomicU32::new(0));
        Self { state, index, order, owner, group, listed, lately }
    }

    /// The file or the shared memory that the folio belongs to; `None`: it is anonymous, or its object is
    /// gone, and no mapping can need its bytes any more.
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

    /// Notes that the folio goes from one mapping to another; returns how often it has done so in this
    /// second. The caller holds its lock.
    pub fn note_moved(&self, second: u32) -> u32 {
        let before = self.lately.load(Ordering::Relaxed);
        let times = if before >> 16 == second & 0xFFFF { (before & 0xFFFF) + 1 } else { 1 };
        self.lately.store(second << 16 | times.min(0xFFFF), Ordering::Relaxed);
        times
    }

    /// Notes that a fault maps the folio, which is anonymous, at time `micros`. The caller holds its lock.
    pub fn note_mapped(&self, micros: u32) {
        self.lately.store(micros, Ordering::Relaxed);
    }

    /// When a fault mapped it last, in microseconds; the time wraps every 71 minutes.
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
    /// The owner of the folios of an object.
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
    /// If a device has them: the I/O holds the folio's lock then, so no other caller can be here.
    pub fn extent(&mut self) -> &mut Frames {
        self.extent.as_mut().expect("the owner of a folio's lock has its frames")
    }
}
