//! Reads, writes and compare-exchange.
//!
//! An access to several pages is made page by page; a fault tells how far it came. Each piece is exact: a
//! read returns no byte that its page had after it was unmapped, and a store is either made before the page's
//! `unmap` returns, or not at all. Between the pieces, and between the words of one piece, other threads may
//! store.

use super::cpu::{Miss, SoftCpu};
use super::fault::{Cause, SoftFault};
use crate::PAGE_SIZE;
use elbowroom_sync::atomic::Ordering;

/// Bytes that [`SoftCpu::copy`] has in hand at a time.
const COPY_BYTES: usize = 1024;

/// Splits `addr..addr + len` at the ends of pages: calls `piece` with each address and the range of bytes
/// that it stands for, up to the first that fails.
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
    /// Loads a word; whole, if `addr` is a multiple of 8.
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

    /// Stores a word; whole, if `addr` is a multiple of 8.
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

    /// Stores `byte` `len` times.
    ///
    /// # Errors
    /// The fault; `done` bytes are stored.
    pub fn fill(&self, addr: usize, len: usize, byte: u8) -> Result<(), SoftFault> {
        pieces(addr, len, |at, part| {
            self.store_by(at, |place| self.shared.frames.fill(place, at, part.len(), byte))
                .map_err(|cause| SoftFault { addr: at, write: true, done: 0, cause })
        })
    }

    /// Copies `len` bytes, from space to space if need be.
    ///
    /// # Errors
    /// The fault, of the load or the store; `done` bytes are copied. [`Cause::Invalid`] if the ranges
    /// overlap.
    pub fn copy(&self, from: usize, to: usize, len: usize) -> Result<(), SoftFault> {
        if from.abs_diff(to) < len {
            return Err(SoftFault { addr: to, write: true, done: 0, cause: Cause::Invalid });
        }
        let mut buffer = [0; COPY_BYTES];
        let mut done = 0;
        while done < len {
            let part = &mut buffer[..COPY_BYTES.min(len - done)];
            let loaded = self.read(from.wrapping_add(done), part);
            let whole = loaded.map_or_else(|fault| fault.done, |()| part.len());
            self.write(to.wrapping_add(done), &part[..whole]).map_err(|fault| fault.after(done))?;
            loaded.map_err(|fault| fault.after(done))?;
            done += part.len();
        }
        Ok(())
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

    /// Loads the ranges (address and length), one after the other, into `out`.
    ///
    /// # Errors
    /// The first fault; `done` counts over all ranges.
    ///
    /// # Panics
    /// If `out` is not as long as the ranges are together.
    pub fn read_vectored(&self, parts: &[(usize, usize)], out: &mut [u8]) -> Result<(), SoftFault> {
        assert_eq!(parts.iter().map(|part| part.1).sum::<usize>(), out.len(), "the ranges and the buffer");
        let mut done = 0;
        for &(addr, len) in parts {
            self.read(addr, &mut out[done..done + len]).map_err(|fault| fault.after(done))?;
            done += len;
        }
        Ok(())
    }

    /// Stores `data` into the ranges (address and length), one after the other.
    ///
    /// # Errors
    /// The first fault; `done` counts over all ranges.
    ///
    /// # Panics
    /// If `data` is not as long as the ranges are together.
    pub fn write_vectored(&self, parts: &[(usize, usize)], data: &[u8]) -> Result<(), SoftFault> {
        assert_eq!(parts.iter().map(|part| part.1).sum::<usize>(), data.len(), "the ranges and the data");
        let mut done = 0;
        for &(addr, len) in parts {
            self.write(addr, &data[done..done + len]).map_err(|fault| fault.after(done))?;
            done += len;
        }
        Ok(())
    }

    /// Loads the words at many addresses, into the places of `out` with the same index.
    ///
    /// # Errors
    /// The first fault; `done` is 8 for each word before it.
    ///
    /// # Panics
    /// If there are not as many places as addresses.
    pub fn read_batch(&self, addrs: &[usize], out: &mut [u64]) -> Result<(), SoftFault> {
        assert_eq!(addrs.len(), out.len(), "the addresses and the places");
        for (i, (&addr, word)) in addrs.iter().zip(out).enumerate() {
            *word = self.read_u64(addr).map_err(|fault| fault.after(i * 8))?;
        }
        Ok(())
    }
}
