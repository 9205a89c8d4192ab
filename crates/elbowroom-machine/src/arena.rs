//! The arena: the physical memory of a manager.
//!
//! One private anonymous reservation, populated block by block as frames are first needed and never beyond its size. With
//! [`crate::Mover::Move`] a populated block is registered with the userfaultfd, because the way home of a page is a MOVE whose
//! destination must be registered; so nobody may touch the home of a page that is away.

use crate::buddy::Buddy;
use crate::uffd::{Protection, Uffd};
use crate::{Extent, PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::atomic::{AtomicUsize, Ordering};
use elbowroom_sync::{LockClass, LockStats, Mutex};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::ops::Range;

/// Pages populated at a time: 2 MiB.
const BLOCK_PAGES: usize = 512;

const BLOCK_BYTES: usize = BLOCK_PAGES << PAGE_SHIFT;

pub(crate) struct Arena {
    base: usize,
    frames: usize,
    state: Mutex<State>,
    populated: AtomicUsize,
}

struct State {
    buddy: Buddy,
    /// Frames below this one are populated or being populated.
    claimed: usize,
}

impl Arena {
    /// Reserves address space for `frames` frames; no memory yet.
    pub(crate) fn new(frames: usize, locks: &LockStats) -> Result<Self, Errno> {
        // Aligned as blocks are, so that each can be one huge page; the rest of the reservation is never used.
        let start = reserve((frames << PAGE_SHIFT) + BLOCK_BYTES)?;
        let base = start.next_multiple_of(BLOCK_BYTES);
        let state = State { buddy: Buddy::default(), claimed: 0 };
        let state = locks.mutex(LockClass::Frames, state);
        Ok(Self { base, frames, state, populated: AtomicUsize::new(0) })
    }

    /// A run of 2^`order` frames, or `None` if no such run is free and the arena has reached its size.
    pub(crate) fn alloc(&self, order: u8, register: Option<&Uffd>) -> Option<Extent> {
        loop {
            let block = {
                let mut state = self.state.lock();
                if let Some(first) = state.buddy.take(order) {
                    return Some(Extent::new(self.base + ((first as usize) << PAGE_SHIFT), order));
                }
                let start = state.claimed;
                state.claimed = (start + BLOCK_PAGES).min(self.frames);
                start..state.claimed
            };
            if block.is_empty() {
                return None;
            }
            if self.populate(&block, register).is_err() {
                let mut state = self.state.lock();
                // Nobody has claimed beyond: the next allocation tries this block again.
                if state.claimed == block.end {
                    state.claimed = block.start;
                }
                return None;
            }
            self.state.lock().buddy.add(block.start as u32, block.end as u32);
        }
    }

    /// Gives an extent's frames back.
    ///
    /// # Panics
    /// If a page of it is away.
    pub(crate) fn free(&self, extent: Extent) {
        assert!(extent.is_home(), "an extent is freed with pages in a window");
        let first = (extent.home - self.base) >> PAGE_SHIFT;
        self.state.lock().buddy.release(first as u32, extent.order);
    }

    /// Frames that can be allocated now or after populating.
    pub(crate) fn free_frames(&self) -> usize {
        let state = self.state.lock();
        state.buddy.free_frames() + (self.frames - state.claimed)
    }

    pub(crate) fn frames(&self) -> usize {
        self.frames
    }

    /// Frames that have memory: they are never given back to the kernel.
    pub(crate) fn populated_frames(&self) -> usize {
        self.populated.load(Ordering::Relaxed)
    }

    /// Gives the block memory, then registers it (in this order: populating a registered range would be a fault for us to
    /// serve).
    ///
    /// The block is populated as one huge page where the kernel has one, and then split: its frames are small, but neighbours
    /// in physical memory, so that a read into a run of them is one segment for the device instead of one for each page
    /// (2.5 times the throughput on a virtual disk). Split at once, and not by the first MOVE of a part of it, because a MOVE cannot
    /// split while a device has pinned any other page of it.
    fn populate(&self, block: &Range<usize>, register: Option<&Uffd>) -> Result<(), Errno> {
        let start = self.base + (block.start << PAGE_SHIFT);
        let len = block.len() << PAGE_SHIFT;
        // SAFETY: the advice concerns only our own, unused block. A kernel without huge pages refuses it.
        let _ = unsafe { mm::madvise(start as *mut _, len, Advice::LinuxHugepage) };
        for page in (start..start + len).step_by(PAGE_SIZE) {
            // Touched, not populated by advice: a fault takes only the lock of its VMA, while the advice would keep mmap_lock for as long
            // as it takes to clear the block, and every mmap of the program would wait for that. Not zero: splitting a
            // huge page replaces pages of zeros by the kernel's shared zero page, which is no memory of ours.
            // SAFETY: the byte is ours and unused.
            unsafe { (page as *mut u8).write_volatile(1) };
        }
        // Of a part of a huge page, this advice is followed by splitting it.
        // SAFETY: as above.
        let _ = unsafe { mm::madvise(start as *mut _, PAGE_SIZE, Advice::LinuxCold) };
        // SAFETY: as above.
        let _ = unsafe { mm::madvise(start as *mut _, len, Advice::LinuxNoHugepage) };
        if let Some(uffd) = register {
            uffd.register(start..start + len, Protection::Writable)?;
        }
        self.populated.fetch_add(block.len(), Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // An extent that outlives the arena keeps the memory it points to: leaking is safe, unmapping would not be.
        if self.free_frames() == self.frames {
            // SAFETY: no extent is out, so nobody can reach this memory.
            let _ = unsafe { mm::munmap(self.base as *mut _, self.frames << PAGE_SHIFT) };
        }
    }
}

/// Reserves `len` bytes of private anonymous address space that is inherited by no child and in no core dump, and whose pages
/// stay 4 KiB pages (a part of a huge page cannot be moved without splitting it).
pub(crate) fn reserve(len: usize) -> Result<usize, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nobody.
    let base =
        unsafe { mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
    for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump, Advice::LinuxNoHugepage] {
        // SAFETY: the advice concerns only the mapping made above. A kernel without huge pages refuses the last.
        let result = unsafe { mm::madvise(base, len, advice) };
        if let (Err(e), Advice::LinuxDontFork) = (result, advice) {
            return Err(e);
        }
    }
    Ok(base as usize)
}
