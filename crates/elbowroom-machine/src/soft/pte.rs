//! A page-table entry: one word that says everything about one page, and the protocol that changes it.
//!
//! ```text
//! bit 63        32 31         16 15   2     1        0
//!    | frame + 1  | generation  | pins | writable present
//! ```
//! | present | frame + 1 | pins | meaning |
//! |---|---|---|---|
//! | 0 | 0 | 0 | empty |
//! | 1 | > 0 | any | mapped |
//! | 0 | > 0 | > 0, falling | leaving: no new pin is given; the one who clears it waits for those there are |
//!
//! Who changes it: [`Entry::install`], [`Entry::make_writable`] and the clearing under the lock of its table;
//! [`Entry::pin`] and [`Entry::unpin`] from any thread without a lock. So the identity of a mapping (present,
//! generation, frame) changes only under the table's lock.
//!
//! The generation grows by one at every install. It has 16 bits, so the same word can come again after 65536
//! installs of one entry: the install at which the generation comes round moves the [`Epoch`], before it can
//! be seen. Whoever compares a remembered word with the entry compares the epoch that he remembered with it,
//! too, and is then never mistaken, however long he slept in between.
//!
//! Nothing here but the atomics of `elbowroom_sync`, so that a loom test can include this file.

use elbowroom_sync::atomic::{AtomicU64, Ordering};

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const PIN: u64 = 1 << 2;
const PINS: u64 = 0x3fff << 2;
const GENERATION: u64 = 0xffff << 16;
const GENERATION_ONE: u64 = 1 << 16;
const FRAME_SHIFT: u32 = 32;
const FRAME: u64 = u64::MAX << FRAME_SHIFT;

/// What makes two words the same mapping.
const IDENTITY: u64 = PRESENT | GENERATION | FRAME;

/// The most pins that the word can count. Stores hold one for as long as they last.
pub const PINS_IN_WORD: u32 = (PINS / PIN) as u32;

/// What an access does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Loads.
    Read,
    /// Stores, or does both.
    Write,
}

/// A value of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word(u64);

impl Word {
    /// The word of an entry that nobody has ever used.
    pub const EMPTY: Word = Word(0);

    /// Whether the page is mapped.
    pub fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// The frame, if it is mapped or leaving.
    pub fn frame(self) -> Option<u32> {
        (self.0 >> FRAME_SHIFT).checked_sub(1).map(|frame| frame as u32)
    }

    /// How many pins it counts.
    pub fn pins(self) -> u32 {
        ((self.0 & PINS) / PIN) as u32
    }

    /// Whether `later` is the same mapping.
    pub fn is_same(self, later: Word) -> bool {
        (self.0 ^ later.0) & IDENTITY == 0
    }
}

/// How often generations have come round, in any entry of an MMU. It has a cache line of its own, which
/// hardly ever changes.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Epoch(AtomicU64);

impl Epoch {
    /// The epoch now. Acquire.
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The entry is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occupied;

/// Why no pin was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinRefusal {
    /// It is not the mapping any more that the caller saw.
    Changed,
    /// A store, and the page is not writable.
    ReadOnly,
    /// It has as many as allowed.
    TooMany,
}

/// How far clearing has come, which must wait for pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is made.
    Done,
    /// It is made but for the pins, which only become fewer; to be ended when there are none, or undone.
    Pinned,
}

/// A page-table entry.
#[derive(Debug)]
#[repr(transparent)]
pub struct Entry(AtomicU64);

impl Default for Entry {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Entry {
    /// Its value. Acquire: the bytes that were in the frame when it was installed are seen by who sees the
    /// word.
    #[inline]
    pub fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    /// Maps a frame. The caller has the table's lock.
    ///
    /// Release: as [`Entry::load`] says. A plain store is enough, because an empty entry is changed by nobody
    /// else.
    pub fn install(&self, frame: u32, rights: Intent, epoch: &Epoch) -> Result<(), Occupied> {
        let old = self.0.load(Ordering::Relaxed);
        if old & FRAME != 0 {
            return Err(Occupied);
        }
        let generation = old.wrapping_add(GENERATION_ONE) & GENERATION;
        if generation == 0 {
            epoch.0.fetch_add(1, Ordering::Release);
        }
        let writable = if rights == Intent::Write { WRITABLE } else { 0 };
        let frame = (u64::from(frame) + 1) << FRAME_SHIFT;
        self.0.store(frame | generation | writable | PRESENT, Ordering::Release);
        Ok(())
    }

    /// Takes a pin on the mapping that was `seen`, so that it stays until [`Entry::unpin`].
    ///
    /// The check and the count are one compare-exchange, so a pin is never taken on a mapping that is going.
    /// Acquire: what follows stays behind it.
    #[inline]
    pub fn pin(&self, seen: Word, intent: Intent, limit: u32) -> Result<(), PinRefusal> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            if !seen.is_same(Word(now)) {
                return Err(PinRefusal::Changed);
            }
            if intent == Intent::Write && now & WRITABLE == 0 {
                return Err(PinRefusal::ReadOnly);
            }
            if Word(now).pins() >= limit.min(PINS_IN_WORD) {
                return Err(PinRefusal::TooMany);
            }
            match self.0.compare_exchange_weak(now, now + PIN, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => now = other,
            }
        }
    }

    /// Gives a pin back. Release: the stores made under it are seen by who clears the entry.
    #[inline]
    pub fn unpin(&self) {
        let before = self.0.fetch_sub(PIN, Ordering::Release);
        debug_assert!(before & PINS != 0, "an entry is unpinned more often than pinned");
    }

    /// Begins to take the mapping of `frame` away; the caller has the table's lock. From now on no pin is
    /// given and no read is valid.
    ///
    /// Acquire: when it is `Done`, all stores that were made through it are seen. Release: it orders this
    /// before whatever the frame is used for next.
    ///
    /// # Panics
    /// If it does not map `frame`: the table and the extent disagree.
    pub fn begin_clear(&self, frame: u32) -> Progress {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let mapped = now & PRESENT != 0 && Word(now).frame() == Some(frame);
            assert!(mapped, "the page table does not map the frame that its extent says");
            let free = now & PINS == 0;
            let next = if free { now & GENERATION } else { now & !PRESENT };
            match self.0.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if free => return Progress::Done,
                Ok(_) => return Progress::Pinned,
                Err(other) => now = other,
            }
        }
    }

    /// Ends what [`Entry::begin_clear`] began with `Pinned`: empties the entry if no pin is left; else maps
    /// it again, as if nothing had been. The caller has the table's lock.
    pub fn end_clear(&self) -> Progress {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            debug_assert!(now & PRESENT == 0 && now & FRAME != 0, "a page that is not leaving");
            let free = now & PINS == 0;
            let next = if free { now & GENERATION } else { now | PRESENT };
            match self.0.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if free => return Progress::Done,
                Ok(_) => return Progress::Pinned,
                Err(other) => now = other,
            }
        }
    }

    /// Lets stores through, if the page is mapped. The caller has the table's lock.
    pub fn make_writable(&self) {
        if self.0.load(Ordering::Relaxed) & PRESENT != 0 {
            self.0.fetch_or(WRITABLE, Ordering::AcqRel);
        }
    }
}
