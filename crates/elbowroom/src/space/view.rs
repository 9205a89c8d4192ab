//! Soft spaces: making them, and reaching their memory through calls.

use super::Space;
use super::Spaces;
use super::change::{AfterChange, Pages};
use crate::fault::FaultError;
use crate::group::GroupId;
use crate::platform::{Platform, Soft};
use crate::stats::Kind;
use elbowroom_machine::soft::{Cause, Intent, Pin, SoftCpu, SoftFault, SoftMmu};
use elbowroom_machine::{Denial, Errno, Mmu};
use elbowroom_sync::Arc;
use elbowroom_sync::time::Instant;

/// How an access failed: what a program with pointers would get as a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// Nothing is mapped there. SIGSEGV with SEGV_MAPERR.
    #[error("nothing is mapped at {0:#x}")]
    NotMapped(usize),
    /// The mapping does not permit it. SIGSEGV with SEGV_ACCERR.
    #[error("the mapping at {0:#x} does not permit the access")]
    Denied(usize),
    /// The page is beyond the end of the object, or its bytes cannot be had. SIGBUS.
    #[error("the page at {0:#x} cannot be had: beyond the end of the file, or not readable")]
    Bus(usize),
    /// A word that is not aligned, a pin across pages, or a copy onto itself.
    #[error("the access at {0:#x} is not one that can be made")]
    Invalid(usize),
    /// The page is mapped at another address, where it has been pinned for too long. A program with
    /// pointers has no signal for this.
    #[error("the page at {0:#x} has been pinned at another address for too long")]
    Pinned(usize),
    /// The manager was dropped.
    #[error("the manager of the memory at {0:#x} was dropped")]
    Stopped(usize),
    /// Too many pins exist.
    #[error("too many pins: the one at {0:#x} is one too many")]
    TooManyPins(usize),
}

impl AccessError {
    fn of(error: FaultError, fault: &SoftFault) -> Self {
        let denial = match error {
            FaultError::Denied(denial) => denial,
            FaultError::Pinned => return AccessError::Pinned(fault.addr),
            FaultError::Stopped => return AccessError::Stopped(fault.addr),
        };
        match denial {
            Denial::NotMapped => AccessError::NotMapped(fault.addr),
            Denial::NoAccess | Denial::NoWrite => AccessError::Denied(fault.addr),
            Denial::BusReadOnly if fault.write => AccessError::Denied(fault.addr),
            Denial::Bus | Denial::BusReadOnly => AccessError::Bus(fault.addr),
        }
    }
}

/// How many bytes [`Cpu::copy`] copies at a time, through a buffer on the stack.
const COPY_BYTES: usize = 1024;

/// A thread's accessor of the memory of soft spaces: of any space of the manager, since an address tells
/// its space. It caches translations, so a thread should keep one for long. It can be sent to another
/// thread, but not be shared.
pub struct Cpu {
    core: Arc<Spaces<Soft>>,
    soft: SoftCpu,
    number: u32,
}

impl Space<Soft> {
    /// Makes an empty space of a group.
    pub(crate) fn create(core: &Arc<Spaces<Soft>>, group: GroupId) -> Result<Space<Soft>, Errno> {
        let base = SoftMmu::space_range(core.mmu.create_space()?).start;
        let mm = core.spaces.add(base, group, &core.locks);
        let space = Space { core: core.clone(), mm, base };
        let addresses = space.addresses();
        space.mm.release(&mut space.mm.write(), &addresses);
        Ok(space)
    }

    /// The lowest address of the space.
    pub fn base(&self) -> usize {
        self.base
    }

    /// A new accessor of the memory of this space, and of its manager's other spaces.
    pub fn cpu(&self) -> Cpu {
        // The number stands for a thread: it only tells streams of accesses apart.
        let number = self.core.next_cpu();
        Cpu { core: self.core.clone(), soft: self.core.mmu.cpu(), number }
    }
}

impl<P: Platform> Drop for Space<P> {
    fn drop(&mut self) {
        if self.base == 0 {
            return;
        }
        let everything = self.everything();
        // If a page stays pinned, nothing is unmapped and the space keeps its number: the pin's owner may
        // still use the page.
        if let Ok(change) = self.begin(everything, |_| Ok(Pages::Drop)) {
            self.finish(change, Vec::new(), AfterChange::Taken);
            self.core.spaces.remove(self.base);
            self.core.mmu.remove_window(self.base);
            self.settle();
        }
    }
}

impl Cpu {
    /// Repeats an access until it succeeds or must fail, serving the faults in between. `go_on` makes the
    /// rest of the access; it gets how many bytes were done so far.
    fn access<R>(
        &self,
        mut go_on: impl FnMut(&SoftCpu, usize) -> Result<R, SoftFault>,
    ) -> Result<R, AccessError> {
        let mut done = 0;
        loop {
            let fault = match go_on(&self.soft, done) {
                Ok(result) => return Ok(result),
                Err(fault) => fault,
            };
            done += fault.done;
            self.serve(&fault)?;
        }
    }

    /// Serves a fault, so that the rest of its access may be tried again.
    fn serve(&self, fault: &SoftFault) -> Result<(), AccessError> {
        match fault.event(self.number) {
            Some(event) => self.core.fault(event).map_err(|error| AccessError::of(error, fault)),
            None if fault.cause == Cause::TooManyPins => Err(AccessError::TooManyPins(fault.addr)),
            None => Err(AccessError::Invalid(fault.addr)),
        }
    }

    /// Loads 8 bytes; whole, if `addr` is a multiple of 8.
    ///
    /// # Errors
    /// How the access failed.
    #[inline]
    pub fn read_u64(&self, addr: usize) -> Result<u64, AccessError> {
        match self.soft.read_u64(addr) {
            Ok(word) => Ok(word),
            Err(_) => {
                // As bytes: if the word lies in two pages, they need not both be mapped at once.
                let mut word = [0; 8];
                self.read(addr, &mut word)?;
                Ok(u64::from_ne_bytes(word))
            }
        }
    }

    /// Stores 8 bytes; whole, if `addr` is a multiple of 8.
    ///
    /// # Errors
    /// How the access failed.
    #[inline]
    pub fn write_u64(&self, addr: usize, value: u64) -> Result<(), AccessError> {
        match self.soft.write_u64(addr, value) {
            Ok(()) => Ok(()),
            Err(_) if addr.is_multiple_of(8) => self.access(|soft, _| soft.write_u64(addr, value)),
            Err(_) => self.write(addr, &value.to_ne_bytes()),
        }
    }

    /// Loads bytes.
    ///
    /// # Errors
    /// How the access failed; what is before the address was loaded.
    pub fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), AccessError> {
        self.access(|soft, done| soft.read(addr + done, &mut out[done..]))
    }

    /// Stores bytes.
    ///
    /// # Errors
    /// How the access failed; what is before the address was stored.
    pub fn write(&self, addr: usize, data: &[u8]) -> Result<(), AccessError> {
        self.access(|soft, done| soft.write(addr + done, &data[done..]))
    }

    /// Stores `byte` `len` times.
    ///
    /// # Errors
    /// How the access failed; what is before the address was stored.
    pub fn fill(&self, addr: usize, len: usize, byte: u8) -> Result<(), AccessError> {
        self.access(|soft, done| soft.fill(addr + done, len - done, byte))
    }

    /// Copies bytes, from space to space if need be.
    ///
    /// # Errors
    /// How the access failed. Invalid: the ranges overlap.
    pub fn copy(&self, from: usize, to: usize, len: usize) -> Result<(), AccessError> {
        if from.abs_diff(to) < len {
            return Err(AccessError::Invalid(to));
        }
        // If both ranges map the same page, it may be mapped in only one of the two places at a time. So
        // each part is loaded whole before it is stored.
        let mut buffer = [0; COPY_BYTES];
        for done in (0..len).step_by(COPY_BYTES) {
            let part = &mut buffer[..COPY_BYTES.min(len - done)];
            self.read(from + done, part)?;
            self.write(to + done, part)?;
        }
        Ok(())
    }

    /// Replaces an aligned word by `new` if it is `current`, in one step for all threads and spaces; the
    /// inner result is the value before, `Ok` if it was replaced.
    ///
    /// # Errors
    /// How the access failed; it counts as a store. Invalid: `addr` is no multiple of 8.
    pub fn compare_exchange_u64(
        &self,
        addr: usize,
        current: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, AccessError> {
        self.access(|soft, _| soft.compare_exchange_u64(addr, current, new))
    }

    /// [`Cpu::compare_exchange_u64`] for a word of 4 bytes.
    ///
    /// # Errors
    /// As for [`Cpu::compare_exchange_u64`]; `addr` must be a multiple of 4.
    pub fn compare_exchange_u32(
        &self,
        addr: usize,
        current: u32,
        new: u32,
    ) -> Result<Result<u32, u32>, AccessError> {
        self.access(|soft, _| soft.compare_exchange_u32(addr, current, new))
    }

    /// Loads the ranges (address and length), one after the other, into `out`.
    ///
    /// # Errors
    /// How the access failed.
    ///
    /// # Panics
    /// If `out` is not as long as the ranges are together.
    pub fn read_vectored(&self, parts: &[(usize, usize)], out: &mut [u8]) -> Result<(), AccessError> {
        assert_eq!(parts.iter().map(|part| part.1).sum::<usize>(), out.len(), "the ranges and the buffer");
        let mut rest = out;
        for &(addr, len) in parts {
            let (part, after) = rest.split_at_mut(len);
            self.read(addr, part)?;
            rest = after;
        }
        Ok(())
    }

    /// Stores `data` into the ranges (address and length), one after the other.
    ///
    /// # Errors
    /// How the access failed.
    ///
    /// # Panics
    /// If `data` is not as long as the ranges are together.
    pub fn write_vectored(&self, parts: &[(usize, usize)], data: &[u8]) -> Result<(), AccessError> {
        assert_eq!(parts.iter().map(|part| part.1).sum::<usize>(), data.len(), "the ranges and the data");
        let mut rest = data;
        for &(addr, len) in parts {
            let (part, after) = rest.split_at(len);
            self.write(addr, part)?;
            rest = after;
        }
        Ok(())
    }

    /// Loads the words at many addresses, into the places of `out` with the same index.
    ///
    /// # Errors
    /// How the first load that failed has failed.
    ///
    /// # Panics
    /// If there are not as many places as addresses.
    pub fn read_batch(&self, addrs: &[usize], out: &mut [u64]) -> Result<(), AccessError> {
        assert_eq!(addrs.len(), out.len(), "the addresses and the places");
        for (&addr, word) in addrs.iter().zip(out) {
            *word = self.read_u64(addr)?;
        }
        Ok(())
    }

    /// Keeps `len` bytes at `addr`, all in one page, in memory; the guard gives access to them. While it
    /// lives, calls that would take the page away wait, at most for some seconds, and then fail with EBUSY.
    /// Linux: `pin_user_pages`.
    ///
    /// # Errors
    /// How the access failed. TooManyPins: they are bounded. Invalid: the bytes do not end in their page.
    pub fn pin(&self, addr: usize, len: usize, intent: Intent) -> Result<Pin<'_>, AccessError> {
        let mut since = None;
        loop {
            // The only call of `pin`, so that it is inlined: a pin of a page that is mapped is as fast as
            // possible.
            match self.soft.pin(addr, len, intent) {
                Ok(pin) => {
                    if let Some(since) = since {
                        self.note_pin(since);
                    }
                    return Ok(pin);
                }
                Err(fault) => {
                    since.get_or_insert_with(Instant::now);
                    self.serve(&fault)?;
                }
            }
        }
    }

    /// Records how long a pin took that had to wait for its page.
    #[cold]
    fn note_pin(&self, since: Instant) {
        self.core.counters.latencies.record(Kind::Pin, since.elapsed().as_nanos() as u64);
    }
}
