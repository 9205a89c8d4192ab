//! The host MMU: real pointers, by userfaultfd.
//!
//! # Invariants
//! 1. A page that is present in a window is writable exactly if it was mapped with [`Access::Write`] or
//!    passed to [`HostMmu::make_writable`] (docs/decisions/0003).
//! 2. Each page of an extent is at home or in a window, never both, except inside a call of this module.
//!
//! Synchronization: an extent's owner serializes calls for it (`&mut Extent`). Requests to the kernel take
//! its per-VMA locks, not mmap_lock, but for write-protecting, which takes that for reading;
//! [`HostMmu::deny`] and its like change the kernel's layout and take it for writing.

use crate::arena::Arena;
use crate::batch::Batch;
use crate::layout::Layout;
use crate::pageset::Membership;
use crate::peek::{Peek, is_resident};
use crate::uffd::{FAULT_WP, FAULT_WRITE, Message, Protection, Uffd};
use crate::way::Way;
use crate::{Extent, PAGE_SHIFT, PAGE_SIZE, WindowTable};
use elbowroom_sync::{LockClass, LockStats, Mutex, thread};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::io::Errno;
use rustix::mm::{self, Advice};
use std::ops::Range;

pub use crate::layout::{Denial, RearmError, Replaced};
pub use crate::uffd::Wake;
pub use rustix::mm::Advice as GivenAdvice;

/// How pages get into windows and out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mover {
    /// UFFDIO_MOVE: zero-copy. Linux 6.8 and later.
    Move,
    /// UFFDIO_COPY in, a copy and MADV_DONTNEED out.
    Copy,
}

/// What a host MMU is made with.
#[derive(Debug, Clone, Copy)]
pub struct HostConfig {
    /// Size of the arena, in frames (pages), at least 1.
    pub arena_frames: usize,
    /// Tells whether a thread of the program is about to change its mappings in the kernel, or waits there
    /// to: [`HostMmu::give_way`]. Called often, by any thread; must not block.
    pub changes_wait: Option<fn() -> bool>,
    /// The mover; `None`: the best that the kernel has.
    pub mover: Option<Mover>,
    /// How much is done at a time.
    pub batches: Batches,
}

/// How much the MMU does at a time.
#[derive(Debug, Clone, Copy)]
pub struct Batches {
    /// Runs of at most so many pages are copied, longer ones moved. A copy costs as much as the MOVE of one
    /// page but no TLB shootdown, which in a virtual machine costs several times the copy; what it leaves
    /// behind is emptied many pages at a time, with one shootdown.
    pub copy_max_pages: usize,
    /// Homes that wait to be emptied, at most; at least 1. Those of the default are counted in the reserve of
    /// the budget.
    pub empty_batch: usize,
    /// How many empty homes are filled together when a single frame is wanted and none has memory; at least
    /// 1.
    pub fill_at_once: usize,
}

impl Default for Batches {
    fn default() -> Self {
        Self { copy_max_pages: 2, empty_batch: 32, fill_at_once: 4 }
    }
}

/// Why no host MMU can be had here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The kernel gives no userfaultfd that serves faults of system calls.
    #[error(
        "userfaultfd is not permitted here ({0}): run as root or with CAP_SYS_PTRACE, give access to \
         /dev/userfaultfd, or set vm.unprivileged_userfaultfd=1 (see `elbowroom doctor`)"
    )]
    Userfaultfd(Errno),
    /// [`Mover::Move`] was asked for.
    #[error("this kernel has no UFFDIO_MOVE (it came with Linux 6.8): use --mmu copy")]
    NoMove,
    /// No room for the arena.
    #[error("cannot reserve memory for the budget ({0}): choose a smaller one, or raise `ulimit -v`")]
    Memory(Errno),
}

/// What the program may do with pages that are mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only read; the mapping has no right to write. Runs of several pages may be writable for a moment.
    ReadOnly,
    /// Read; each store must be seen, from the first one on.
    ReadTracked,
    /// Write; the pages are dirty already.
    Write,
}

/// Why pages could not be taken out of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnmapError {
    /// The kernel has pinned one (direct I/O into it is under way): try again later. The rest may be home.
    Busy,
    /// One was no longer there: somebody unmapped it behind our back. All are home now, and the bytes of the
    /// lost ones are zero.
    Lost,
}

/// A fault that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultEvent {
    /// The address, rounded down to its page.
    pub addr: usize,
    /// The faulting thread.
    pub thread: u32,
    /// Whether it stores.
    pub write: bool,
    /// Whether the page is there but write-protected.
    pub present: bool,
}

/// Arena, windows and the way between them.
pub struct HostMmu {
    uffd: Uffd,
    arena: Arena,
    layout: Layout,
    mover: Mover,
    batches: Batches,
    /// Homes of pages that were copied into a window: to be emptied, many at a time.
    to_empty: Mutex<Vec<usize>>,
    batch: Batch,
    /// How bytes are read from windows.
    peek: Peek,
    way: Way,
}

/// How often a request that meets a page in transit is tried again at once. Whoever asked has locks, so
/// longer waits are for when it has let go of them.
const BUSY_TRIES: u32 = 32;

/// How often it is tried to write-protect pages that have been moved in, or else to move them home.
const PROTECT_TRIES: u32 = 64;

/// The most messages taken in one read.
const EVENT_BATCH: usize = 64;

impl HostMmu {
    /// Sets up a userfaultfd and an arena.
    ///
    /// # Errors
    /// What is missing, and what to do.
    pub fn new(config: HostConfig, locks: &LockStats) -> Result<Self, SetupError> {
        let uffd = Uffd::open().map_err(SetupError::Userfaultfd)?;
        let mover = match (config.mover, uffd.has_move) {
            (None | Some(Mover::Move), true) => Mover::Move,
            (Some(Mover::Move), false) => return Err(SetupError::NoMove),
            (None | Some(Mover::Copy), _) => Mover::Copy,
        };
        let arena = Arena::new(config.arena_frames, locks).map_err(SetupError::Memory)?;
        let layout = Layout::new(locks).map_err(SetupError::Memory)?;
        let to_empty = locks.mutex(LockClass::Homes, Vec::with_capacity(config.batches.empty_batch));
        Ok(Self {
            uffd,
            arena,
            layout,
            mover,
            batches: config.batches,
            to_empty,
            batch: Batch::new(),
            peek: Peek::new(),
            way: Way::new(config.changes_wait),
        })
    }

    /// Lets the program's changes of its mappings go first: yields the processor until none waits, for 0.1
    /// ms, and a third of the time, at most; longer only if others have the processor. Nothing if none waits.
    #[inline]
    pub fn give_way(&self) {
        self.way.give();
    }

    /// Which mover is used.
    pub fn mover(&self) -> Mover {
        self.mover
    }

    /// The userfaultfd, for an event loop to watch; nonblocking.
    pub fn event_fd(&self) -> RawFd {
        self.uffd.fd().as_raw_fd()
    }

    /// Which addresses are ours.
    pub fn windows(&self) -> &WindowTable {
        &self.layout.windows
    }

    /// Whether any of `range` is in the arena, or in what the table of windows consists of.
    /// Async-signal-safe.
    pub fn has_memory_of_its_own_in(&self, range: &Range<usize>) -> bool {
        let arena = self.arena.reserved();
        (range.start < arena.end && arena.start < range.end) || self.layout.windows.is_made_of(range)
    }

    /// A run of 2^`order` frames, all at home, with whatever bytes they last had; `None` if none is free of
    /// those that the arena has so far ([`HostMmu::grow`]).
    pub fn alloc(&self, order: u8) -> Option<Extent> {
        let mut found = self.arena.alloc(order);
        // Others may take what was filled.
        while found.is_none() && order == 0 && self.fill_homes(self.batches.fill_at_once) {
            found = self.arena.alloc(order);
        }
        // As many as are emptied together: they are scattered, and seldom make a run.
        if found.is_none() && order > 0 && self.fill_homes(self.batches.empty_batch) {
            found = self.arena.alloc(order);
        }
        found
    }

    /// Gives empty homes memory, so that their frames can be allocated; `false` if there is none, or no
    /// memory.
    fn fill_homes(&self, most: usize) -> bool {
        let mut homes = self.arena.take_unbacked(most);
        let before = homes.len();
        while let Some(&home) = homes.last()
            && self.refill(home)
        {
            self.arena.add_filled(home);
            homes.pop();
        }
        let filled = before - homes.len();
        self.arena.add_unbacked(homes.into_iter());
        filled > 0
    }

    /// Whether somebody who has time should call [`HostMmu::grow`].
    pub fn wants_to_grow(&self) -> bool {
        self.arena.wants_to_grow()
    }

    /// Frames that can be allocated without growing the arena. A guess.
    pub fn frames_at_hand(&self) -> usize {
        self.arena.frames_at_hand()
    }

    /// Whether half of the arena is free. A guess.
    pub fn is_roomy(&self) -> bool {
        self.arena.is_roomy()
    }

    /// Gives the arena 2 MiB more of its size, which takes up to several milliseconds, or waits while another
    /// thread does; `false` if it has all of it.
    ///
    /// # Errors
    /// The kernel's: it has no memory.
    pub fn grow(&self) -> Result<bool, Errno> {
        let register = (self.mover == Mover::Move).then_some(&self.uffd);
        self.arena.grow(register, || self.way.give())
    }

    /// Gives an extent back.
    ///
    /// # Panics
    /// If a page of it is away, or it is of another MMU.
    pub fn free(&self, extent: Extent) {
        self.arena.free(extent);
    }

    /// All frames.
    pub fn frames(&self) -> usize {
        self.arena.frames()
    }

    /// Frames that have had memory so far.
    pub fn populated_frames(&self) -> usize {
        self.arena.populated_frames()
    }

    /// Takes the faults that wait, adding them to `out`. Does not wait for any.
    pub fn take_faults(&self, out: &mut Vec<FaultEvent>) -> Result<(), Errno> {
        let mut buffer = [Message::EMPTY; EVENT_BATCH];
        loop {
            let n = self.uffd.read(&mut buffer)?;
            out.extend(buffer[..n].iter().filter(|m| m.is_pagefault()).map(|m| FaultEvent {
                addr: m.address as usize & !(PAGE_SIZE - 1),
                thread: m.thread,
                write: m.flags & (FAULT_WRITE | FAULT_WP) != 0,
                present: m.flags & FAULT_WP != 0,
            }));
            if n < EVENT_BATCH {
                return Ok(());
            }
        }
    }

    /// Maps those of `pages` that are at home, so that page 0 of the extent is, or would be, at `base`; wakes
    /// whoever waits for them, if told to.
    ///
    /// # Errors
    /// The kernel's. Some of the pages may be mapped then; the extent knows which.
    ///
    /// # Panics
    /// If pages of the extent are away at another base: a page that is moved into a window is nowhere else.
    pub fn map(
        &self,
        extent: &mut Extent,
        base: usize,
        pages: Range<usize>,
        access: Access,
        wake: Wake,
    ) -> Result<(), Errno> {
        assert!(extent.is_home() || extent.place(base).is_some(), "an extent is in two places");
        let mut rest = pages;
        while let Some(run) = extent.first_run(base, rest.clone(), Membership::Out) {
            let window = base + (run.start << PAGE_SHIFT)..base + (run.end << PAGE_SHIFT);
            self.layout.allow_after_all(&self.uffd, window.clone())?;
            let short = run.len() <= self.batches.copy_max_pages;
            if short || self.mover == Mover::Copy || access == Access::ReadTracked {
                self.copy_in(extent, base, run.clone(), access, wake)?;
            } else {
                self.move_in(extent, base, run.clone(), access)?;
                if wake == Wake::Now {
                    self.wake(window);
                }
            }
            rest.start = run.end;
        }
        Ok(())
    }

    /// Moves pages into a window. They arrive writable, and are write-protected then if `access` says so:
    /// those that have arrived before an error, too.
    fn move_in(
        &self,
        extent: &mut Extent,
        base: usize,
        run: Range<usize>,
        access: Access,
    ) -> Result<(), Errno> {
        let start = run.start;
        let (end, mut moved) = self.move_some_in(extent, base, run);
        if access == Access::ReadOnly && start < end {
            self.way.give();
            moved = moved.and(self.protect_or_take_back(extent, base, start..end));
        }
        moved
    }

    /// Write-protects pages that have been moved in, or moves them home again: a store to them that nobody
    /// sees would be lost.
    fn protect_or_take_back(&self, extent: &mut Extent, base: usize, run: Range<usize>) -> Result<(), Errno> {
        let window = base + (run.start << PAGE_SHIFT)..base + (run.end << PAGE_SHIFT);
        let mut result = Ok(());
        for _ in 0..PROTECT_TRIES {
            result = self.retry(|| self.uffd.write_protect(window.clone()));
            // Only what is still in the window: what an earlier turn has taken home must not count as lost.
            if result.is_ok() || self.take_home(extent, base, run.clone()).is_ok() {
                break;
            }
        }
        result
    }

    /// Moves pages into a window as far as that can be done. Returns the page behind the last one, and why
    /// not all.
    fn move_some_in(
        &self,
        extent: &mut Extent,
        base: usize,
        run: Range<usize>,
    ) -> (usize, Result<(), Errno>) {
        let mut at = run.start;
        let mut tries = 0;
        let mut most = run.len();
        while at < run.end {
            let (dst, src) = (base + (at << PAGE_SHIFT), extent.home + (at << PAGE_SHIFT));
            let len = most.min(run.end - at) << PAGE_SHIFT;
            // SAFETY: (1) the pages are at home and the extent is ours (`&mut`); (2) the manager maps the
            // extent's bytes there.
            let (moved, result) = unsafe { self.uffd.move_pages(dst, src, len, Wake::Later) };
            extent.note_mapped(base, at..at + (moved >> PAGE_SHIFT));
            at += moved >> PAGE_SHIFT;
            if moved == 0
                && let Err(e) = result
                && let Err(e) = fewer(e, &mut most, len).or_else(|e| again(e, &mut tries))
            {
                return (at, Err(e));
            }
        }
        (at, Ok(()))
    }

    fn copy_in(
        &self,
        extent: &mut Extent,
        base: usize,
        run: Range<usize>,
        access: Access,
        wake: Wake,
    ) -> Result<(), Errno> {
        let protection =
            if access == Access::Write { Protection::Writable } else { Protection::WriteProtected };
        let mut at = run.start;
        let mut tries = 0;
        let mut most = run.len();
        while at < run.end {
            let (dst, src) = (base + (at << PAGE_SHIFT), extent.home + (at << PAGE_SHIFT));
            let len = most.min(run.end - at) << PAGE_SHIFT;
            // SAFETY: (1) the pages are at home, where only we use them; (2) the manager maps the extent's
            // bytes there.
            let (copied, result) = unsafe { self.uffd.copy(dst, src, len, protection, wake) };
            if copied > 0 {
                extent.note_mapped(base, at..at + (copied >> PAGE_SHIFT));
                match self.spare_home(extent) {
                    Some(empty) => extent.home = empty,
                    None => self.empty_later(src, copied),
                }
                at += copied >> PAGE_SHIFT;
            } else if let Err(e) = result {
                fewer(e, &mut most, len).or_else(|e| again(e, &mut tries))?;
            }
        }
        Ok(())
    }

    /// An empty home for a single page that was just copied into a window, whose own is free then. That
    /// spares emptying the one and filling the other.
    fn spare_home(&self, extent: &Extent) -> Option<usize> {
        if extent.order == 0 { self.arena.exchange(extent.home) } else { None }
    }

    /// Empties the homes of pages that were just copied into a window; a few at once, or together with others
    /// later.
    fn empty_later(&self, home: usize, len: usize) {
        if len > self.batches.copy_max_pages * PAGE_SIZE {
            // SAFETY: the pages' bytes are in the window now; their homes are ours to empty.
            let _ = unsafe { mm::madvise(home as *mut _, len, Advice::LinuxDontNeed) };
            return;
        }
        let mut to_empty = self.to_empty.lock();
        to_empty.extend((home..home + len).step_by(PAGE_SIZE));
        if to_empty.len() >= self.batches.empty_batch {
            self.empty_homes(&mut to_empty);
        }
    }

    fn empty_homes(&self, to_empty: &mut Vec<usize>) {
        // SAFETY: each is the home of a page that is away, which only the MMU touches, and it does so under
        // this lock.
        unsafe { self.batch.drop_pages(to_empty) };
        to_empty.clear();
    }

    /// Empties the homes that wait for it: before a page may come home, its home must be empty.
    fn empty_all_homes(&self) {
        let mut to_empty = self.to_empty.lock();
        if !to_empty.is_empty() {
            self.empty_homes(&mut to_empty);
        }
    }

    /// Takes home what is away of extents of one page each, all clean (so that their bytes do not change
    /// meanwhile), with one TLB shootdown for all. The extents tell afterwards which are home;
    /// [`HostMmu::unmap`] does the others.
    ///
    /// # Panics
    /// If an extent has several pages.
    pub fn unmap_clean(&self, extents: &mut [Extent]) {
        if extents.is_empty() {
            return;
        }
        self.empty_all_homes();
        let mut gone = Vec::with_capacity(extents.len());
        for extent in extents.iter_mut() {
            let Some(base) = base_of(extent) else { continue };
            assert_eq!(extent.order, 0, "unmap_clean is for single pages");
            let window = base..base + PAGE_SIZE;
            if self.layout.allow_after_all(&self.uffd, window).is_ok() && self.copy_home(extent, base) {
                gone.push(base);
                extent.places.clear();
            }
        }
        // SAFETY: the bytes are home; the window's copies are ours to drop.
        unsafe { self.batch.drop_pages(&gone) };
    }

    /// Frees extents of one clean page each that are away: the pages are dropped where they are, with one TLB
    /// shootdown for all. With [`Mover::Move`] their homes stay empty until another page needs an empty one,
    /// or the frames are short.
    ///
    /// # Panics
    /// If an extent has several pages, or one at home, or is of another MMU.
    pub fn discard_clean(&self, extents: Vec<Extent>) {
        assert!(
            extents.iter().all(|e| e.order == 0 && !e.is_home()),
            "discard_clean is for single pages away"
        );
        if extents.is_empty() {
            return;
        }
        // Homes that wait to be emptied are not empty.
        self.empty_all_homes();
        let windows: Vec<_> = extents.iter().filter_map(base_of).collect();
        // SAFETY: the pages are clean, and their owner gives them up.
        unsafe { self.batch.drop_pages(&windows) };
        match self.mover {
            Mover::Move => self.arena.add_unbacked(extents.into_iter().map(|extent| extent.home)),
            // The kernel fills their homes when they are touched.
            Mover::Copy => extents.into_iter().for_each(|mut extent| {
                extent.places.clear();
                self.arena.free(extent);
            }),
        }
    }

    /// Fills the empty home of a single page with its bytes; `false`: it could not be done, and
    /// [`HostMmu::unmap`] finds out why.
    fn copy_home(&self, extent: &Extent, base: usize) -> bool {
        match self.mover {
            Mover::Move => {
                // The program may have dropped the page by a system call that nobody saw. The kernel would
                // serve the copy's own load of it by a fault, for us to serve.
                if !is_resident(base) {
                    return false;
                }
                // SAFETY: (1) the page is present in the window and write-protected, so nobody writes it; (2)
                // only the extent's owner uses its home.
                let (copied, _) = unsafe {
                    self.uffd.copy(extent.home, base, PAGE_SIZE, Protection::Writable, Wake::Later)
                };
                copied == PAGE_SIZE
            }
            Mover::Copy => {
                // SAFETY: as above, and the home is memory that the kernel fills when it is touched.
                unsafe { self.peek.copy(base, extent.home, PAGE_SIZE) }.is_ok()
            }
        }
    }

    /// Takes all pages of the extent home. Whoever touches them in the window from now on faults.
    ///
    /// # Errors
    /// [`UnmapError`]. After `Busy` the extent knows which pages are still away.
    pub fn unmap(&self, extent: &mut Extent) -> Result<(), UnmapError> {
        if let Some(base) = base_of(extent) {
            self.empty_all_homes();
            self.take_home(extent, base, 0..extent.pages())?;
        }
        if std::mem::take(&mut extent.lost) { Err(UnmapError::Lost) } else { Ok(()) }
    }

    /// The same for pages that are mapped so that page 0 is, or would be, at `base`.
    ///
    /// # Errors
    /// As for [`HostMmu::unmap`].
    pub fn unmap_at(&self, extent: &mut Extent, base: usize) -> Result<(), UnmapError> {
        if base_of(extent) == Some(base) { self.unmap(extent) } else { Ok(()) }
    }

    /// Takes those of `within` home that are mapped.
    fn take_home(&self, extent: &mut Extent, base: usize, within: Range<usize>) -> Result<(), UnmapError> {
        while let Some(run) = extent.first_run(base, within.clone(), Membership::In) {
            let window = base + (run.start << PAGE_SHIFT)..base + (run.end << PAGE_SHIFT);
            self.layout.allow_after_all(&self.uffd, window).map_err(|_| UnmapError::Busy)?;
            match self.mover {
                Mover::Move => self.move_out(extent, base, run)?,
                Mover::Copy => self.copy_out(extent, base, run)?,
            }
        }
        Ok(())
    }

    fn move_out(&self, extent: &mut Extent, base: usize, run: Range<usize>) -> Result<(), UnmapError> {
        let mut at = run.start;
        let mut tries = 0;
        let mut most = run.len();
        while at < run.end {
            let (dst, src) = (extent.home + (at << PAGE_SHIFT), base + (at << PAGE_SHIFT));
            let len = most.min(run.end - at) << PAGE_SHIFT;
            // SAFETY: (1) the pages in the window are the extent's, whose owner takes them back; (2) nobody
            // touches their homes while they are away.
            let (moved, result) = unsafe { self.uffd.move_pages(dst, src, len, Wake::Later) };
            extent.note_home(base, at..at + (moved >> PAGE_SHIFT));
            at += moved >> PAGE_SHIFT;
            match result {
                Err(e) if moved == 0 && fewer(e, &mut most, len).is_ok() => {}
                Err(Errno::NOENT | Errno::INVAL) if moved == 0 => {
                    if !self.refill(dst) {
                        return Err(UnmapError::Busy);
                    }
                    extent.note_home(base, at..at + 1);
                    extent.lost = true;
                    at += 1;
                }
                Err(e) if moved == 0 => again(e, &mut tries).map_err(|_| UnmapError::Busy)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Gives an empty home a page of zeros; tells whether it has memory now.
    fn refill(&self, home: usize) -> bool {
        static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
        let from = ZEROS.as_ptr() as usize;
        let filled = self.retry(|| {
            // SAFETY: (1) the source is a constant; (2) the home is empty and the caller's.
            unsafe { self.uffd.copy(home, from, PAGE_SIZE, Protection::Writable, Wake::Later).1 }
        });
        // If it is not empty after all, the kernel refuses and nothing is needed.
        matches!(filled, Ok(()) | Err(Errno::EXIST))
    }

    fn copy_out(&self, extent: &mut Extent, base: usize, run: Range<usize>) -> Result<(), UnmapError> {
        let (home, window) = (extent.home + (run.start << PAGE_SHIFT), base + (run.start << PAGE_SHIFT));
        let len = run.len() << PAGE_SHIFT;
        match self.retry(|| self.uffd.write_protect(window..window + len)) {
            Ok(()) => {
                for at in (0..len).step_by(PAGE_SIZE) {
                    // SAFETY: (1) stores to the page wait, since it is write-protected; (2) the homes are
                    // ours, and apart from it.
                    if unsafe { self.peek.copy(window + at, home + at, PAGE_SIZE) }.is_err() {
                        // The program has dropped it by a system call that nobody saw. Its home has whatever
                        // was there before. SAFETY: the home is ours.
                        unsafe { std::ptr::write_bytes((home + at) as *mut u8, 0, PAGE_SIZE) };
                        extent.lost = true;
                    }
                }
                // SAFETY: the bytes are home; the window's copies are ours to drop.
                let _ = unsafe { mm::madvise(window as *mut _, len, Advice::LinuxDontNeed) };
            }
            Err(Errno::NOENT) => extent.lost = true,
            Err(_) => return Err(UnmapError::Busy),
        }
        extent.note_home(base, run);
        self.wake(window..window + len);
        Ok(())
    }

    /// Lets stores to the present pages of `range` through, and wakes whoever waits there, if told to. The
    /// pages are dirty from now on.
    pub fn make_writable(&self, range: Range<usize>, wake: Wake) -> Result<(), Errno> {
        self.layout.allow_after_all(&self.uffd, range.clone())?;
        self.retry(|| self.uffd.write_unprotect(range.clone(), wake))
    }

    /// Wakes whoever waits for a page of `range`; they fault again if it is not there.
    pub fn wake(&self, range: Range<usize>) {
        // It can only fail for a range outside all windows, where nobody waits.
        let _ = self.uffd.wake(range);
    }

    fn retry(&self, mut request: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
        let mut tries = 0;
        loop {
            match request() {
                Ok(()) => return Ok(()),
                Err(e) => again(e, &mut tries)?,
            }
        }
    }

    /// Reserves and registers a window of at least `min_len` bytes.
    pub fn add_window(&self, min_len: usize) -> Result<Range<usize>, Errno> {
        self.layout.add_window(&self.uffd, min_len)
    }

    /// Makes accesses to the page of `addr` fail as the kernel's own would, and wakes whoever waits there;
    /// unless `wanted`, asked once all who would map the page can see the denial, says no. Tells what it
    /// said.
    ///
    /// # Errors
    /// The kernel's: no memory for another mapping.
    pub fn deny(&self, addr: usize, denial: Denial, wanted: impl Fn() -> bool) -> Result<bool, Errno> {
        let denied = self.layout.deny(addr, denial, wanted)?;
        if denied {
            self.wake(crate::surrounding_pages(addr, 1));
        }
        Ok(denied)
    }

    /// Undoes the denials in `range` that happened before: see [`Mmu::allow`](crate::Mmu::allow).
    pub fn allow(&self, range: Range<usize>) -> Result<(), Errno> {
        self.layout.allow(&self.uffd, range)
    }

    /// Unmaps `range`, so that an access gets SIGSEGV with SEGV_MAPERR, and wakes whoever waits there.
    pub fn punch(&self, range: Range<usize>) -> Result<(), Errno> {
        self.layout.punch(range.clone())?;
        self.wake(range);
        Ok(())
    }

    /// Gives `range`, with no page of ours in it, to whoever maps something over it. Whoever waits there goes
    /// on waiting until [`HostMmu::wake`]. Until then the kernel's mapping there is still the window's:
    /// whoever does not map something over it at once uses [`HostMmu::punch`].
    pub fn give_away(&self, range: &Range<usize>) {
        self.layout.give_away(range);
    }

    /// Makes `range`, which was given to the kernel, a part of its window again, with nothing in it, instead
    /// of whatever is mapped there.
    ///
    /// # Errors
    /// EINVAL: it is not a range of whole pages, all of them inside one window and the kernel's. The
    /// kernel's. The range is the kernel's still, and the error says whether what was mapped there is gone.
    pub fn rearm(&self, range: &Range<usize>) -> Result<(), RearmError> {
        self.layout.rearm(&self.uffd, range)
    }

    /// The same where nothing is mapped.
    ///
    /// # Errors
    /// The same. EEXIST: something is; nothing is changed.
    pub fn rearm_free(&self, range: &Range<usize>) -> Result<(), RearmError> {
        self.layout.rearm_free(&self.uffd, range)
    }

    /// Tells the kernel about its own mapping at `range`, which [`HostMmu::map_file`] has made.
    ///
    /// # Errors
    /// The kernel's.
    pub fn advise_given(&self, range: Range<usize>, advice: GivenAdvice) -> Result<(), Errno> {
        // SAFETY: none of the advice that is given here changes what is mapped; the range is the kernel's.
        unsafe { mm::madvise(range.start as *mut _, range.len(), advice) }
    }

    /// Replaces `range`, with no page of ours in it, by the kernel's own mapping of `file` at `offset`, with
    /// PROT_* bits `prot`.
    pub fn map_file(
        &self,
        range: Range<usize>,
        file: BorrowedFd<'_>,
        offset: u64,
        prot: u32,
        private: bool,
    ) -> Result<(), Errno> {
        self.layout.map_file(range.clone(), file, offset, prot, private)?;
        self.wake(range);
        Ok(())
    }
}

/// Where the extent is mapped, so that page 0 is, or would be, there; `None`: nowhere. It has one place at
/// most.
fn base_of(extent: &Extent) -> Option<usize> {
    extent.places.first().map(|place| place.base)
}

/// Takes fewer pages at a time, if that can help: a request must lie in one VMA of the kernel's, and a window
/// has several where a page of it was once denied. Else passes the error on.
fn fewer(error: Errno, most: &mut usize, len: usize) -> Result<(), Errno> {
    let pages = len >> PAGE_SHIFT;
    if !matches!(error, Errno::NOENT | Errno::INVAL) || pages == 1 {
        return Err(error);
    }
    *most = pages / 2;
    Ok(())
}

/// Passes on an error that trying again does not help, or that was met too often; else lets others have the
/// processor.
fn again(error: Errno, tries: &mut u32) -> Result<(), Errno> {
    if !matches!(error, Errno::AGAIN | Errno::BUSY | Errno::INTR) || *tries == BUSY_TRIES {
        return Err(error);
    }
    *tries += 1;
    thread::yield_now();
    Ok(())
}
