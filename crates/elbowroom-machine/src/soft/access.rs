//! Reads, writes and compare-exchange. Operations that consist of several of these (vectored accesses,
//! copies) are in layers above, which can have a fault served in between.
//!
//! An access to several pages is made in pieces, page by page; a fault tells how many bytes were done. For
//! each piece this holds: a read returns no byte that its page had after it was unmapped, and a store is
//! either made before the page's `unmap` returns, or not at all. Between the pieces, and between the words
//! of one piece, other threads may store.

use super::cpu::{Miss, SoftCpu};
use super::fault::{Cause, SoftFault};
use crate::PAGE_SIZE;
use elbowroom_sync::atomic::Ordering;

/// Splits `addr..addr + len` at page boundaries: calls `piece` with each part's address and its range of
/// bytes in the access, up to the first part that fails.
fn pieces(
    addr: usize,
    len: usize,
    mut piece: impl FnMut(usize, std::ops::Range<usize>) -> Result<(), SoftFault>,
) -> Result<(), SoftFault> {
    let mut done = 0;
    while done < len {
        let at = addr.wrapping_add(done);
        let end = (done + PAGE_SIZE - at % PAGE_SIZE).min(len);
        piece(at, done..end).map_err(|fault| fault.after(done))?;
        done = end;
    }
    Ok(())
}

impl SoftCpu {
    /// Loads a word; atomically, if `addr` is a multiple of 8.
    ///
    /// # Errors
    /// The fault.
    #[inline]
    pub fn read_u64(&self, addr: usize) -> Result<u64, SoftFault> {
        if addr.is_multiple_of(8)
            && let Some(line) = self.cached(addr)
        {
            let word = self.shared.frames.word(line.place, addr).load(Ordering::Relaxed);
            if self.is_still(&line) {
                return Ok(word);
            }
        }
        self.read_u64_slowly(addr)
    }

    #[cold]
    fn read_u64_slowly(&self, addr: usize) -> Result<u64, SoftFault> {
        let mut word = [0; 8];
        self.read(addr, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Loads bytes.
    ///
    /// # Errors
    /// The fault; `done` bytes of `out` are loaded.
    pub fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), SoftFault> {
        pieces(addr, out.len(), |at, part| {
            let out = &mut out[part];
            let loaded = self.attempt(at, |line| {
                self.shared.frames.load(line.place, at, out);
                if self.is_still(line) { Ok(()) } else { Err(Miss::Changed) }
            });
            loaded.map_err(|cause| SoftFault { addr: at, write: false, done: 0, cause })
        })
    }

    /// Stores a word; atomically, if `addr` is a multiple of 8.
    ///
    /// # Errors
    /// The fault.
    #[inline]
    pub fn write_u64(&self, addr: usize, value: u64) -> Result<(), SoftFault> {
        if !addr.is_multiple_of(8) {
            return self.write(addr, &value.to_ne_bytes());
        }
        self.store_by(addr, |place| self.shared.frames.word(place, addr).store(value, Ordering::Relaxed))
            .map_err(|cause| SoftFault { addr, write: true, done: 0, cause })
    }

    /// Stores bytes.
    ///
    /// # Errors
    /// The fault; `done` bytes of `data` are stored.
    pub fn write(&self, addr: usize, data: &[u8]) -> Result<(), SoftFault> {
        pieces(addr, data.len(), |at, part| {
            self.store_by(at, |place| self.shared.frames.store(place, at, &data[part.clone()]))
                .map_err(|cause| SoftFault { addr: at, write: true, done: 0, cause })
        })
    }

    /// Stores `byte` into all of `addr..addr + len`.
    ///
    /// # Errors
    /// The fault; `done` bytes are stored.
    pub fn fill(&self, addr: usize, len: usize, byte: u8) -> Result<(), SoftFault> {
        pieces(addr, len, |at, part| {
            self.store_by(at, |place| self.shared.frames.fill(place, at, part.len(), byte))
                .map_err(|cause| SoftFault { addr: at, write: true, done: 0, cause })
        })
    }

    /// Replaces an aligned word by `new` if it is `current`, in one step for all threads and spaces. The
    /// inner result is the value before, `Ok` if it was replaced.
    ///
    /// # Errors
    /// The fault; it counts as a store, whether it replaces or not. [`Cause::Invalid`] if `addr` is no
    /// multiple of 8.
    pub fn compare_exchange_u64(
        &self,
        addr: usize,
        current: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, SoftFault> {
        let fault = |cause| SoftFault { addr, write: true, done: 0, cause };
        if !addr.is_multiple_of(8) {
            return Err(fault(Cause::Invalid));
        }
        let exchange = |place| {
            let word = self.shared.frames.word(place, addr);
            word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
        };
        self.store_by(addr, exchange).map_err(fault)
    }

    /// [`SoftCpu::compare_exchange_u64`] for 4 bytes.
    ///
    /// # Errors
    /// As there; `addr` must be a multiple of 4.
    pub fn compare_exchange_u32(
        &self,
        addr: usize,
        current: u32,
        new: u32,
    ) -> Result<Result<u32, u32>, SoftFault> {
        let fault = |cause| SoftFault { addr, write: true, done: 0, cause };
        if !addr.is_multiple_of(4) {
            return Err(fault(Cause::Invalid));
        }
        let exchange = |place| {
            let half = self.shared.frames.half(place, addr);
            half.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
        };
        self.store_by(addr, exchange).map_err(fault)
    }
}
