//! A page-table entry: one word with the whole state of one page, and the protocol that changes it.
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
//! The word is changed by [`Entry::install`], [`Entry::make_writable`] and the clearing, under the lock of
//! its table; [`Entry::pin`] and [`Entry::unpin`] from any thread without a lock. So the identity of a
//! mapping (present, generation, frame) changes only under the table's lock.
//!
//! The generation grows by one at every install. It has 16 bits, so the same word can come again after
//! 65536 installs of one entry: the install at which the generation wraps round increments the [`Epoch`],
//! before the new word can be seen. A thread that compares a remembered word with the entry also compares
//! the epoch that it remembered with the word. So it never takes one mapping for another, however long it
//! slept in between.
//!
//! This file uses only the atomics of `elbowroom_sync`, so that a loom test can include it.

use elbowroom_sync::atomic::{AtomicU64, Ordering};

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const PIN: u64 = 1 << 2;
const PINS: u64 = 0x3fff << 2;
const GENERATION: u64 = 0xffff << 16;
const GENERATION_ONE: u64 = 1 << 16;
const FRAME_SHIFT: u32 = 32;
const FRAME: u64 = u64::MAX << FRAME_SHIFT;

/// The bits in which two words of the same mapping agree.
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
    /// The word of an entry that was never used.
    pub const EMPTY: Word = Word(0);

    /// Whether the page is mapped.
    pub fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// The frame, if the page is mapped or leaving.
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

/// How often the generation of any entry of an MMU has wrapped round. It has a cache line of its own, which
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
    /// The entry no longer has the mapping that the caller saw.
    Changed,
    /// A store, and the page is not writable.
    ReadOnly,
    /// The page has as many pins as allowed.
    TooMany,
}

/// How far the clearing of an entry has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The entry is empty.
    Done,
    /// The page is leaving: it still has pins, and gets no new ones. [`Entry::end_clear`] ends the clearing
    /// when there are none, or undoes it.
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
    /// The entry's word. Acquire: a thread that sees the word sees the bytes that were in the frame when it
    /// was installed.
    #[inline]
    pub fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    /// Maps a frame. The caller has the table's lock.
    ///
    /// Release: as [`Entry::load`] says. A plain store is enough, because no other thread changes an empty
    /// entry.
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
    /// The check and the count are one compare-exchange, so a pin is never taken on a mapping that is
    /// leaving. Acquire: the accesses under the pin come after it.
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

    /// Gives a pin back. Release: the thread that clears the entry sees the stores made under the pin.
    #[inline]
    pub fn unpin(&self) {
        let before = self.0.fetch_sub(PIN, Ordering::Release);
        debug_assert!(before & PINS != 0, "an entry is unpinned more often than pinned");
    }

    /// Begins to take the mapping of `frame` away; the caller has the table's lock. From now on no pin is
    /// given and no read is valid.
    ///
    /// Acquire: after `Done`, the caller sees all stores that were made through the entry. Release: the
    /// clearing comes before the next use of the frame.
    ///
    /// # Panics
    /// If the entry does not map `frame`: the table and the extent disagree.
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
    /// the page again, as before. The caller has the table's lock.
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

    /// Makes the page writable, if it is mapped. The caller has the table's lock.
    pub fn make_writable(&self) {
        if self.0.load(Ordering::Relaxed) & PRESENT != 0 {
            self.0.fetch_or(WRITABLE, Ordering::AcqRel);
        }
    }
}
