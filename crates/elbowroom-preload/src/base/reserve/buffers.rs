//! Buffers for transfers: a few in the reserve, and mappings of their own when all are taken.
//!
//! Synchronization: a word with one bit for each buffer that is taken. A buffer stays taken if its thread
//! ends, or leaves by longjmp, while it is in use.

use crate::base::regions::{commit, drop_memory, reserve};
use crate::base::sys;
use elbowroom_machine::aside;
use libc::c_void;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

const BUFFERS: usize = 8;
/// The size of each buffer of the reserve; a larger buffer is a mapping of its own.
pub const BOUNCE_BYTES: usize = 1 << 20;
/// The most memory that a buffer of the reserve keeps when it is given back.
const KEPT_BYTES: usize = 64 << 10;

static TAKEN: AtomicU32 = AtomicU32::new(0);
/// The address of the first buffer; 0: there are none.
static AREA: AtomicUsize = AtomicUsize::new(0);

pub(super) fn prepare() {
    if AREA.load(Ordering::Acquire) == 0
        && let Some(area) = reserve(BUFFERS * BOUNCE_BYTES)
        && commit(&area)
    {
        AREA.store(area.start, Ordering::Release);
    }
}

pub(super) fn in_child() {
    TAKEN.store(0, Ordering::Release);
}

/// A buffer that is not managed memory.
pub struct Buffer {
    at: *mut c_void,
    len: usize,
    /// The index of the buffer in the reserve; `None`: it is a mapping of its own.
    index: Option<usize>,
}

impl Buffer {
    /// A buffer of `len` bytes, a multiple of the page size.
    pub fn new(len: usize) -> Option<Self> {
        let area = AREA.load(Ordering::Acquire);
        if area != 0
            && len <= BOUNCE_BYTES
            && let Some(index) = take()
        {
            return Some(Self { at: (area + index * BOUNCE_BYTES) as *mut c_void, len, index: Some(index) });
        }
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, wherever the kernel puts it.
        let at = unsafe { sys::mmap(aside() as *mut c_void, len, prot, flags, -1, 0) };
        (at != libc::MAP_FAILED).then_some(Self { at, len, index: None })
    }

    /// A buffer for `len` bytes or, if there is no memory for so many, for [`BOUNCE_BYTES`].
    pub fn at_most(len: usize) -> Option<Self> {
        let len = len.next_multiple_of(sys::PAGE).max(sys::PAGE);
        Self::new(len).or_else(|| Self::new(len.min(BOUNCE_BYTES)))
    }

    /// The buffer's address.
    pub fn at(&self) -> *mut c_void {
        self.at
    }

    /// The buffer's length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Its bytes.
    #[cfg(test)]
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: it has that many, and they are only reached through `self`.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.len) }
    }
}

fn take() -> Option<usize> {
    let mut taken = TAKEN.load(Ordering::Relaxed);
    loop {
        let index = (!taken).trailing_zeros();
        if index as usize >= BUFFERS {
            return None;
        }
        match TAKEN.compare_exchange_weak(taken, taken | 1 << index, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Some(index as usize),
            Err(now) => taken = now,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let kept = sys::errno();
        match self.index {
            Some(index) => {
                let start = self.at as usize;
                if self.len > KEPT_BYTES {
                    drop_memory(&(start + KEPT_BYTES..start + self.len));
                }
                TAKEN.fetch_and(!(1 << index), Ordering::Release);
            }
            None => {
                // SAFETY: made by `new`, and nothing points to it any more.
                unsafe { sys::munmap(self.at, self.len) };
            }
        }
        sys::set_errno(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_apart_and_come_back() {
        prepare();
        for _ in 0..3 {
            let mut all: Vec<_> = (0..BUFFERS + 2).map(|_| Buffer::new(BOUNCE_BYTES).unwrap()).collect();
            for (i, buffer) in all.iter_mut().enumerate() {
                buffer.bytes().fill(i as u8);
            }
            for (i, buffer) in all.iter_mut().enumerate() {
                assert!(buffer.bytes().iter().all(|byte| *byte == i as u8));
            }
        }
        assert!(Buffer::new(2 * BOUNCE_BYTES).unwrap().index.is_none());
    }
}
