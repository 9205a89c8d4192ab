//! Pins: bytes that stay where they are (Linux: GUP).

use super::cpu::SoftCpu;
use super::fault::{Cause, SoftFault};
use super::frames::FrameOffset;
use super::pte::{Entry, Intent};
use super::table::EntryRef;
use super::{PINS_PER_PAGE, Shared};
use crate::PAGE_SIZE;
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::{AtomicU8, Ordering};
use std::ops::Deref;

/// Bytes of one page that stay mapped, and in their frame, until this is dropped: meanwhile
/// [`super::SoftMmu::unmap`] of the page returns `Busy`.
///
/// Other threads may use the bytes at the same time, so they are atomics. A pin that was made with
/// [`Intent::Read`] must not be used to store: the page is not marked dirty, so stores through the pin may
/// be lost.
pub struct Pin<'a> {
    cpu: &'a SoftCpu,
    entry: &'a Entry,
    name: EntryRef,
    place: FrameOffset,
    addr: usize,
    len: usize,
}

/// A [`Pin`] that borrows nothing, and can go to other threads.
pub struct OwnedPin {
    shared: Arc<Shared>,
    name: EntryRef,
    place: FrameOffset,
    addr: usize,
    len: usize,
}

impl SoftCpu {
    /// Pins `len` bytes at `addr`, all in one page. With [`Intent::Write`] the page counts as stored to.
    ///
    /// # Errors
    /// The fault. [`Cause::TooManyPins`]: the page has [`PINS_PER_PAGE`] pins, or the MMU has
    /// [`super::SoftConfig::pins`] (up to 32 that each processor keeps as spares are counted).
    /// [`Cause::Invalid`]: the bytes do not end in their page.
    pub fn pin(&self, addr: usize, len: usize, intent: Intent) -> Result<Pin<'_>, SoftFault> {
        let fault = |cause| SoftFault { addr, write: intent == Intent::Write, done: 0, cause };
        if len > PAGE_SIZE - addr % PAGE_SIZE {
            return Err(fault(Cause::Invalid));
        }
        self.take_spare_pin().map_err(fault)?;
        let pinned = self.attempt(addr, |line| {
            let entry = self.hold(line, intent, PINS_PER_PAGE)?;
            Ok(Pin { cpu: self, entry, name: line.name(), place: line.place, addr, len })
        });
        pinned.map_err(|cause| {
            self.return_spare_pin();
            fault(cause)
        })
    }
}

impl Pin<'_> {
    /// The same pin, without its processor.
    pub fn into_owned(self) -> OwnedPin {
        let shared = self.cpu.shared.clone();
        let owned = OwnedPin { shared, name: self.name, place: self.place, addr: self.addr, len: self.len };
        // The pin, and its share of the bound, now belong to `owned`, so `self` must not be dropped.
        std::mem::forget(self);
        owned
    }
}

impl Deref for Pin<'_> {
    type Target = [AtomicU8];

    #[inline]
    fn deref(&self) -> &[AtomicU8] {
        self.cpu.shared.frames.bytes(self.place, self.addr, self.len)
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        self.entry.unpin();
        self.cpu.return_spare_pin();
    }
}

impl Deref for OwnedPin {
    type Target = [AtomicU8];

    fn deref(&self) -> &[AtomicU8] {
        self.shared.frames.bytes(self.place, self.addr, self.len)
    }
}

impl Drop for OwnedPin {
    fn drop(&mut self) {
        self.shared.tree.leaves.entry(self.name).unpin();
        self.shared.pins_left.fetch_add(1, Ordering::Relaxed);
    }
}
