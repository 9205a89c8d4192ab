//! A processor: one thread's access to mapped memory, with its translation cache (Linux: a TLB).
//!
//! The cache is direct-mapped. A line remembers where the page's entry is and the entry's word. It may be
//! out of date: every access compares the word and the epoch with the present ones. So a processor need not
//! be told that a mapping has changed.

use super::fault::Cause;
use super::frames::FrameOffset;
use super::pte::{Entry, Intent, PINS_IN_WORD, PinRefusal, Word};
use super::table::EntryRef;
use super::tree::Walk;
use super::{ACCESS_TRIES, CACHE_ENTRIES, PIN_BATCH, Shared};
use crate::PAGE_SHIFT;
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::{Ordering, fence};
use std::cell::Cell;

/// Bytes in the cache of a processor.
pub(super) const CACHE_BYTES: usize = CACHE_ENTRIES * size_of::<Line>();

/// A line of the cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    /// The page's number, with its space.
    tag: usize,
    entry: EntryRef,
    /// The entry's word when it was read, in the epoch of the cache.
    word: Word,
    pub(super) place: FrameOffset,
}

impl Line {
    /// Where the line's entry is.
    pub(super) fn name(&self) -> EntryRef {
        self.entry
    }
}

/// A line that matches no address.
const NO_LINE: Line =
    Line { tag: usize::MAX, entry: EntryRef::NONE, word: Word::EMPTY, place: FrameOffset::FIRST };

/// Why an access through a line failed.
pub(super) enum Miss {
    /// The line is out of date: walk the page tables again.
    Changed,
    /// The access ends with this fault.
    Cause(Cause),
}

/// A thread's access to the memory of an MMU. It can be given to another thread, but not shared.
///
/// Loads and stores of aligned words of 4 or 8 bytes are atomic. Loads acquire, and stores release (as on
/// x86-64), so one thread can publish data to another.
pub struct SoftCpu {
    pub(super) shared: Arc<Shared>,
    cache: Box<[Cell<Line>; CACHE_ENTRIES]>,
    /// The epoch in which the cache was filled.
    epoch: Cell<u64>,
    /// Pins that this processor has taken from the common bound and not given out.
    spare_pins: Cell<usize>,
}

/// Which line an address uses.
#[inline]
fn line_of(addr: usize) -> usize {
    ((addr >> PAGE_SHIFT) ^ (addr >> 48)) % CACHE_ENTRIES
}

impl SoftCpu {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        shared.cpus.fetch_add(1, Ordering::Relaxed);
        let cache = Box::new([const { Cell::new(NO_LINE) }; CACHE_ENTRIES]);
        let epoch = Cell::new(shared.epoch.now());
        Self { shared, cache, epoch, spare_pins: Cell::new(0) }
    }

    /// The cached line of an address.
    #[inline]
    pub(super) fn cached(&self, addr: usize) -> Option<Line> {
        let line = self.cache[line_of(addr)].get();
        (line.tag == addr >> PAGE_SHIFT).then_some(line)
    }

    /// Whether bytes that were just loaded through the line are valid: its mapping is still the one in the
    /// entry, so it was there all the time.
    ///
    /// The fence keeps the load before the comparison. The epoch is loaded after the entry: if the
    /// generation has wrapped round, a thread that sees the entry of that install, or a later one, also
    /// sees the new epoch.
    #[inline]
    pub(super) fn is_still(&self, line: &Line) -> bool {
        fence(Ordering::Acquire);
        let now = self.shared.tree.leaves.entry(line.entry).load();
        line.word.is_same(now) && self.shared.epoch.now() == self.epoch.get()
    }

    /// Looks an address up in the page tables, and puts the result into the cache.
    #[cold]
    fn walk(&self, addr: usize) -> Result<Line, Miss> {
        let epoch = self.shared.epoch.now();
        if epoch != self.epoch.get() {
            self.cache.iter().for_each(|line| line.set(NO_LINE));
            self.epoch.set(epoch);
        }
        let (entry, word) = match self.shared.tree.walk(addr) {
            Walk::Mapped(entry, word) => (entry, word),
            Walk::Nothing => return Err(Miss::Cause(Cause::NotMapped)),
            Walk::Changed => return Err(Miss::Changed),
        };
        let place = self.shared.frames.place(word.frame().ok_or(Miss::Changed)?);
        let line = Line { tag: addr >> PAGE_SHIFT, entry, word, place };
        self.cache[line_of(addr)].set(line);
        Ok(line)
    }

    /// Makes an access inside one page: by the cached line, else after a walk, and again if the mapping
    /// changed meanwhile.
    #[inline]
    pub(super) fn attempt<T>(
        &self,
        addr: usize,
        mut access: impl FnMut(&Line) -> Result<T, Miss>,
    ) -> Result<T, Cause> {
        let mut cached = self.cached(addr);
        for _ in 0..=ACCESS_TRIES {
            let line = match cached.take() {
                Some(line) => Ok(line),
                None => self.walk(addr),
            };
            match line.and_then(|line| access(&line)) {
                Ok(done) => return Ok(done),
                Err(Miss::Changed) => {}
                Err(Miss::Cause(cause)) => return Err(cause),
            }
        }
        // The mapping changed at each try: reported as not mapped, so that the fault is served.
        Err(Cause::NotMapped)
    }

    /// Takes a pin on the line's mapping.
    #[inline]
    pub(super) fn hold(&self, line: &Line, intent: Intent, limit: u32) -> Result<&Entry, Miss> {
        let entry = self.shared.tree.leaves.entry(line.entry);
        match entry.pin(line.word, intent, limit) {
            // If the epoch has changed, the generation has wrapped round, and this may be another mapping.
            Ok(()) if self.shared.epoch.now() == self.epoch.get() => Ok(entry),
            Ok(()) => {
                entry.unpin();
                Err(Miss::Changed)
            }
            Err(PinRefusal::Changed) => Err(Miss::Changed),
            Err(PinRefusal::ReadOnly) => Err(Miss::Cause(Cause::ReadOnly)),
            Err(PinRefusal::TooMany) => Err(Miss::Cause(Cause::TooManyPins)),
        }
    }

    /// Stores into the page of `addr`, under a pin. `store` must not panic.
    #[inline]
    pub(super) fn store_by<T>(
        &self,
        addr: usize,
        mut store: impl FnMut(FrameOffset) -> T,
    ) -> Result<T, Cause> {
        self.attempt(addr, |line| {
            let entry = self.hold(line, Intent::Write, PINS_IN_WORD)?;
            // A thread that sees the store also sees what this thread did before.
            fence(Ordering::Release);
            let done = store(line.place);
            entry.unpin();
            Ok(done)
        })
    }

    /// Takes one of this processor's spare pins; if there is none, first takes a batch from the common
    /// bound.
    pub(super) fn take_spare_pin(&self) -> Result<(), Cause> {
        if self.spare_pins.get() == 0 {
            let taken = self.shared.pins_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                (left > 0).then(|| left - left.min(PIN_BATCH))
            });
            self.spare_pins.set(taken.map_err(|_| Cause::TooManyPins)?.min(PIN_BATCH));
        }
        self.spare_pins.set(self.spare_pins.get() - 1);
        Ok(())
    }

    /// Returns a spare pin; gives a batch back to the common bound if there are too many.
    pub(super) fn return_spare_pin(&self) {
        self.spare_pins.set(self.spare_pins.get() + 1);
        if self.spare_pins.get() > 2 * PIN_BATCH {
            self.spare_pins.set(self.spare_pins.get() - PIN_BATCH);
            self.shared.pins_left.fetch_add(PIN_BATCH, Ordering::Relaxed);
        }
    }
}

impl Drop for SoftCpu {
    fn drop(&mut self) {
        self.shared.pins_left.fetch_add(self.spare_pins.get(), Ordering::Relaxed);
        self.shared.cpus.fetch_sub(1, Ordering::Relaxed);
    }
}
