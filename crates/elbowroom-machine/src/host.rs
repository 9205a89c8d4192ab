//! The host MMU: real pointers, by userfaultfd.
//!
//! # Invariants
//! 1. A page that is present in a window is writable exactly if it was mapped with [`Access::Write`] or
//!    passed to [`HostMmu::make_writable`] (docs/decisions/0003).
//! 2. Each page of an extent is at home or in a window, never both, except inside a call of this module.
//!
//! Synchronization: an extent's owner serializes calls for it (`&mut Extent`). Requests to the kernel take
//! its per-VMA locks, not mmap_lock, except write-protecting, which takes mmap_lock for reading;
//! [`Mmu::deny`](crate::Mmu::deny) and its like change the kernel's layout and take it for writing.

mod moves;

use crate::arena::Arena;
use crate::batch::Batch;
use crate::layout::Layout;
use crate::peek::{Peek, is_there};
use crate::pins::Pins;
use crate::uffd::{FAULT_WP, FAULT_WRITE, Message, Uffd};
use crate::way::Way;
use crate::{Allowance, Extent, PAGE_SIZE, WindowTable};
use elbowroom_sync::atomic::{AtomicBool, Ordering};
use elbowroom_sync::{Arc, LockClass, LockStats, Mutex};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::io::Errno;
use rustix::mm::{self, Advice};
use std::ops::Range;

pub use crate::layout::{Denial, GivenState, PutBytes, RearmError, Replaced};
pub use crate::uffd::{Served, Wake};
pub use rustix::mm::Advice as GivenAdvice;

/// How pages get into windows and out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mover {
    /// UFFDIO_MOVE: zero-copy. Linux 6.8 and later.
    Move,
    /// UFFDIO_COPY in, a copy and MADV_DONTNEED out.
    Copy,
}

/// A question of the MMU to the program: a function and what it captures.
pub type Ask = Arc<dyn Fn() -> bool + Send + Sync>;

/// What a host MMU is made with.
#[derive(Clone)]
pub struct HostConfig {
    /// Size of the arena, in frames (pages), at least 1.
    pub arena_frames: usize,
    /// Tells whether a thread of the program is in a call that changes its mappings in the kernel, or about
    /// to make one: [`HostMmu::give_way`]. Called often, by any thread; must not block.
    pub changes_wait: Option<Ask>,
    /// Tells whether the program has done anything by which a device may read or write its memory after a
    /// call has returned. Called often, by any thread; must not block. For [`Mover::Copy`].
    pub transfers: Option<Ask>,
    /// The mover; `None`: the best that the kernel has.
    pub mover: Option<Mover>,
    /// Which faults are served; `None`: as many as are permitted.
    pub served: Option<Served>,
    /// How much is done at a time.
    pub batches: Batches,
}

/// How much the MMU does at a time.
#[derive(Debug, Clone, Copy)]
pub struct Batches {
    /// Runs of at most so many pages are copied, longer ones moved. A copy costs as much as the MOVE of one
    /// page but no TLB shootdown, which in a virtual machine costs several times the copy; the homes that
    /// copies leave behind are emptied many at a time, with one shootdown.
    pub copy_max_pages: usize,
    /// How many homes may wait to be emptied; at least 1. The budget's reserve has room for the default
    /// number.
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
    /// The kernel gives no userfaultfd that serves the wanted faults.
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
    /// Read only: the mapping has no right to write. A run of several pages may be writable for a moment,
    /// until it is write-protected.
    ReadOnly,
    /// Read: every store must fault, from the first one on.
    ReadTracked,
    /// Write; the pages are dirty already.
    Write,
}

/// Why pages could not be taken out of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnmapError {
    /// The kernel has pinned a page (direct I/O into it is under way): try again later. The other pages may
    /// be home.
    Busy,
    /// A page was no longer there: the program dropped it behind our back. All pages are home now, and the
    /// bytes of the lost ones are zero.
    Lost,
}

/// A fault that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultEvent {
    /// The address, rounded down to its page.
    pub addr: usize,
    /// The faulting thread.
    pub thread: u32,
    /// Whether the access is a store.
    pub write: bool,
    /// Whether the page is present but write-protected.
    pub present: bool,
}

/// Arena, windows and the way between them.
pub struct HostMmu {
    pub(crate) uffd: Uffd,
    arena: Arena,
    pub(crate) layout: Layout,
    mover: Mover,
    batches: Batches,
    /// Homes of pages that were copied into a window: to be emptied, many at a time.
    to_empty: Mutex<Vec<usize>>,
    batch: Batch,
    /// How bytes are read from windows.
    peek: Peek,
    /// For [`Mover::Copy`], where pages are given other frames.
    pins: Option<Pins>,
    way: Way,
    /// Pages may be shared with a child or a parent: [`HostMmu::fork_begins`].
    has_forked: AtomicBool,
}

/// The most messages taken in one read.
const EVENT_BATCH: usize = 64;

impl HostMmu {
    /// Opens a userfaultfd and reserves an arena.
    ///
    /// # Errors
    /// What is missing, and what the user can do about it.
    pub fn new(config: HostConfig, locks: &LockStats) -> Result<Self, SetupError> {
        let uffd = Uffd::open(config.served).map_err(SetupError::Userfaultfd)?;
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
            pins: if mover == Mover::Copy { Pins::new(config.transfers) } else { None },
            way: Way::new(config.changes_wait),
            has_forked: AtomicBool::new(false),
        })
    }

    /// Lets the program's changes of its mappings go first: yields the processor until none waits, but for
    /// at most 0.1 ms, and a third of all time (more only if other threads have the processor). Does
    /// nothing if none waits.
    #[inline]
    pub fn give_way(&self) {
        self.way.give();
    }

    /// Before a fork: has the child inherit the arena and the windows as they are now.
    /// [`HostMmu::fork_ends`] follows; no thread may use the MMU in between.
    ///
    /// # Errors
    /// The kernel's; then the child inherits nothing.
    pub fn fork_begins(&self) -> Result<(), Errno> {
        self.has_forked.store(true, Ordering::Relaxed);
        let inherited =
            self.arena.inherit(Advice::LinuxDoFork).and_then(|()| self.layout.inherit(Advice::LinuxDoFork));
        if inherited.is_err() {
            self.fork_ends();
        }
        inherited
    }

    /// After the fork, whether it worked or not: later children inherit nothing again.
    pub fn fork_ends(&self) {
        // The kernel refuses this advice only if it has to split a VMA, which is not so here.
        let _ = self.layout.inherit(Advice::LinuxDontFork);
        let _ = self.arena.inherit(Advice::LinuxDontFork);
    }

    /// In the child of such a fork, by its only thread: opens the descriptors anew that still refer to the
    /// parent, under the same numbers, which are free in the child's file table, and registers the windows.
    /// Before it has succeeded no thread may touch a window: missing pages would read as zeros.
    ///
    /// Pages that were write-protected are so no more: see [`HostMmu::protect_again`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn renew(&self) -> Result<(), Errno> {
        self.uffd.renew()?;
        self.peek.renew()?;
        if let Some(pins) = &self.pins {
            pins.renew()?;
        }
        self.batch.renew();
        self.layout.renew(&self.uffd)?;
        if self.mover == Mover::Move {
            self.arena.renew(&self.uffd)?;
        }
        self.fork_ends();
        Ok(())
    }

    /// Write-protects the present pages of a range of a window whose mapping has no right to store.
    ///
    /// # Errors
    /// The kernel's.
    pub fn protect_again(&self, range: Range<usize>) -> Result<(), Errno> {
        self.uffd.write_protect(range)
    }

    /// Which mover is used, and which faults are served.
    pub fn ways(&self) -> (Mover, Served) {
        (self.mover, self.uffd.served)
    }

    /// The userfaultfd, for an event loop to watch; nonblocking.
    pub fn event_fd(&self) -> RawFd {
        self.uffd.fd().as_raw_fd()
    }

    /// The table of windows: which addresses are ours.
    pub fn windows(&self) -> &WindowTable {
        &self.layout.windows
    }

    /// Whether any of `range` is in the arena, or in the memory of the table of windows. Async-signal-safe.
    pub fn has_memory_of_its_own_in(&self, range: &Range<usize>) -> bool {
        let arena = self.arena.reserved();
        (range.start < arena.end && arena.start < range.end) || self.layout.windows.is_made_of(range)
    }

    /// A run of 2^`order` frames, all at home, with whatever bytes they last had; `None` if the arena has
    /// no such run free, as large as it is so far ([`HostMmu::grow`]).
    pub fn alloc(&self, order: u8) -> Option<Extent> {
        let mut found = self.arena.alloc(order);
        // Other threads may take the frames that were filled.
        while found.is_none() && order == 0 && self.fill_homes(self.batches.fill_at_once) {
            found = self.arena.alloc(order);
        }
        // Fills as many as are emptied together: the homes are scattered, so a few of them seldom make a
        // run.
        if found.is_none() && order > 0 && self.fill_homes(self.batches.empty_batch) {
            found = self.arena.alloc(order);
        }
        found
    }

    /// Gives at most so many empty homes memory, so that their frames can be allocated; `false` if there is
    /// no empty home, or no memory.
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

    /// Whether the arena has not reached its size. A guess.
    pub fn can_grow(&self) -> bool {
        self.arena.can_grow()
    }

    /// Frames that can be allocated without growing the arena. A guess.
    pub fn frames_at_hand(&self) -> usize {
        self.arena.frames_at_hand()
    }

    /// Whether at least 1/`one_in` of the arena is free, with `room` frames that could be allowed still. A
    /// guess.
    pub fn has_free(&self, one_in: usize, room: usize) -> bool {
        self.arena.has_free(one_in, room)
    }

    /// Populates 2 MiB more of the arena, which takes up to several milliseconds, or waits while another
    /// thread does; `false` if all of it is populated.
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

    /// How much memory the arena may have.
    pub fn allowance(&self) -> Allowance<'_> {
        Allowance(&self.arena)
    }

    /// Frames that the arena has, or may grow to.
    pub fn frames(&self) -> usize {
        self.arena.frames()
    }

    /// Frames that were given memory so far, without those that were given up.
    pub fn populated_frames(&self) -> usize {
        self.arena.populated_frames()
    }

    /// Reads the pending fault events and adds them to `out`. Does not wait for any.
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

    /// The page for which the thread waits, while no handler takes faults. The caller must wake that page.
    /// Threads that wait for other pages are woken here, and fault again, so no fault is lost.
    pub fn awaited_by(&self, thread: u32) -> Option<usize> {
        let mut buffer = [Message::EMPTY; EVENT_BATCH];
        let n = self.uffd.read(&mut buffer).unwrap_or(0);
        let mut awaited = None;
        for fault in buffer[..n].iter().filter(|m| m.is_pagefault()) {
            let page = fault.address as usize & !(PAGE_SIZE - 1);
            if fault.thread == thread {
                awaited = Some(page);
            } else {
                self.wake(page..page + PAGE_SIZE);
            }
        }
        awaited
    }

    /// Reserves and registers a window of at least `min_len` bytes.
    pub fn add_window(&self, min_len: usize) -> Result<Range<usize>, Errno> {
        self.layout.add_window(&self.uffd, min_len)
    }

    /// Reserves and registers a window at exactly these addresses.
    ///
    /// # Errors
    /// EINVAL: it is no range of whole blocks of 2 MiB. EEXIST: something is mapped there. ENOMEM: there
    /// are too many windows, or a limit of the process leaves less than twice the window's size.
    pub fn add_window_at(&self, window: Range<usize>) -> Result<(), Errno> {
        self.layout.add_window_at(&self.uffd, window)
    }

    /// Shows zeros at the page of `addr`, if accesses to it raise SIGBUS now, and at those right after it of
    /// which that is true, too, until [`HostMmu::allow`] or until they are used again. Returns how many these
    /// are. For a handler of that signal, whose access is then repeated.
    ///
    /// # Errors
    /// The kernel's: no memory for another mapping.
    pub fn show_zeros(&self, addr: usize) -> Result<usize, Errno> {
        self.layout.show_zeros(&self.uffd, addr)
    }

    /// Sequence number of passages, in which pages become part of a window again: odd while some pages have
    /// no rights for that reason. An access to a window that raised SIGSEGV with SEGV_ACCERR during a
    /// passage must be repeated. Takes no lock.
    pub fn passages(&self) -> u64 {
        self.layout.passages()
    }

    /// Undoes the denials in `range` that happened before: see [`Mmu::allow_frames`](crate::Mmu::allow).
    pub fn allow(&self, range: Range<usize>) -> Result<(), Errno> {
        self.layout.allow(&self.uffd, range)
    }

    /// Unmaps `range`, so that an access gets SIGSEGV with SEGV_MAPERR, and wakes the threads that wait
    /// there.
    pub fn punch(&self, range: Range<usize>) -> Result<(), Errno> {
        self.layout.punch(range.clone())?;
        self.wake(range);
        Ok(())
    }

    /// Gives `range`, which has no page of ours in it, to the kernel; the caller then maps something over
    /// it. Threads that wait for its pages go on waiting until [`HostMmu::wake`]. Until the caller has
    /// mapped something, the VMA there is still the window's: a caller that does not do so at once uses
    /// [`HostMmu::punch`] instead.
    pub fn give_away(&self, range: &Range<usize>) {
        self.layout.give_away(range);
    }

    /// Makes `range`, which was given to the kernel, a part of its window again, with no pages in it.
    /// Replaces whatever is mapped there.
    ///
    /// # Errors
    /// EINVAL: it is not a range of whole pages that are all in one window and were all given to the
    /// kernel. Others are those of the system calls. After any error the range still belongs to the kernel,
    /// and the error says whether the mapping that was there is gone.
    pub fn rearm(&self, range: &Range<usize>) -> Result<(), RearmError> {
        self.layout.rearm(&self.uffd, range)
    }

    /// [`HostMmu::rearm`] of a range in which nothing is mapped.
    ///
    /// # Errors
    /// As for [`HostMmu::rearm`]. EEXIST: something is mapped there; nothing is changed.
    pub fn rearm_free(&self, range: &Range<usize>) -> Result<(), RearmError> {
        self.layout.rearm_free(&self.uffd, range)
    }

    /// Whether there is a page at an address, as the kernel says just now.
    pub fn is_there(&self, addr: usize) -> bool {
        is_there(addr & !(PAGE_SIZE - 1))
    }

    /// Includes the present pages of a range of a window in core dumps.
    ///
    /// # Errors
    /// The kernel's.
    pub fn show_in_dumps(&self, range: Range<usize>) -> Result<(), Errno> {
        // SAFETY: the range is a window's; the advice does not change what is in it.
        unsafe { mm::madvise(range.start as *mut _, range.len(), Advice::LinuxDoDump) }
    }

    /// Replaces `range`, which has no page of ours in it, by the kernel's own mapping of `file` at
    /// `offset`, with the rights and advice of `state`.
    pub fn map_file(
        &self,
        range: Range<usize>,
        file: BorrowedFd<'_>,
        offset: u64,
        state: &GivenState<'_>,
        private: bool,
    ) -> Result<(), Errno> {
        self.layout.map_file(range.clone(), file, offset, state, private)?;
        self.wake(range);
        Ok(())
    }

    /// Replaces `range`, which has no page of ours in it, by the kernel's own private memory, or its
    /// private mapping of a file at an offset, with the rights and advice of `state` and the bytes that
    /// `fill` puts into it.
    ///
    /// # Errors
    /// The kernel's, or that of `fill`; the range stays as it is then.
    pub fn map_private(
        &self,
        range: Range<usize>,
        file: Option<(BorrowedFd<'_>, u64)>,
        state: &GivenState<'_>,
        fill: impl FnOnce(PutBytes<'_>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.layout.map_private(range.clone(), file, state, fill)?;
        self.wake(range);
        Ok(())
    }
}
