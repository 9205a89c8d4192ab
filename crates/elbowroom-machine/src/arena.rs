//! The arena: the physical memory of a manager.
//!
//! One private anonymous reservation, populated block by block ahead of need ([`Arena::grow`]) and never
//! beyond its size, in a few [`lanes`] at the same time. With [`crate::Mover::Move`] a populated block is
//! registered with the userfaultfd, because the way home of a page is a MOVE whose destination must be
//! registered; so no thread may touch the home of a page that is away: that would be a fault.

mod allowance;
mod lanes;

pub use self::allowance::Allowance;
use self::lanes::{Claim, Lanes};
use crate::buddy::Buddy;
use crate::uffd::{Protection, Uffd};
use crate::{Extent, PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::atomic::{AtomicUsize, Ordering};
use elbowroom_sync::{Condvar, LockClass, LockStats, Mutex, thread, time::Duration};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::ops::Range;

/// Pages populated at a time: 2 MiB.
const BLOCK_PAGES: usize = 512;

const BLOCK_BYTES: usize = BLOCK_PAGES << PAGE_SHIFT;

/// How long a thread that waits for a block sleeps at most before it looks again: a bound, not a poll.
const GROWTH_BOUND: Duration = Duration::from_millis(50);

pub(crate) struct Arena {
    /// The reserved addresses, the room to align the base included.
    reserved: Range<usize>,
    base: usize,
    /// How many frames there are addresses for.
    capacity: usize,
    state: Mutex<State>,
    /// Signaled when a thread has populated a block, or failed to.
    grown: Condvar,
    populated: AtomicUsize,
    /// Copies of two numbers in `state`, to be read without its lock: frames that are free, and (`ungrown`)
    /// frames that can be populated still.
    free: AtomicUsize,
    ungrown: AtomicUsize,
    /// Frames that were given up for good.
    withheld: AtomicUsize,
}

struct State {
    buddy: Buddy,
    /// How many frames may have memory at a time ([`Arena::allow_frames`]).
    allowed: usize,
    /// How many have memory, or get some now.
    held: usize,
    /// Which frames are populated, and by how many threads at a time.
    lanes: Lanes,
    /// How often a thread has ended populating a block.
    turn: u64,
    /// Bitmap of the frames that were in use at some time. The others are all zeros, as the kernel gave
    /// them.
    used: Vec<u64>,
    /// Homes that are free but empty: the page that they belonged to was dropped in its window.
    unbacked: Vec<usize>,
    /// Homes whose memory was given away ([`Arena::give_frames`]), which may have some again.
    absent: Vec<usize>,
}

impl State {
    /// How many frames may get memory now.
    fn ungrown(&self) -> usize {
        (self.lanes.ungrown() + self.absent.len()).min(self.allowed.saturating_sub(self.held))
    }

    /// Whether none of the 2^`order` frames from `first` on was ever in use.
    fn is_unused(&self, first: u32, order: u8) -> bool {
        let first = first as usize;
        match 1_usize << order {
            n @ ..64 => self.used[first / 64] & (u64::MAX >> (64 - n) << (first % 64)) == 0,
            n => self.used[first / 64..(first + n) / 64].iter().all(|word| *word == 0),
        }
    }

    fn note_used(&mut self, first: u32, order: u8) {
        let first = first as usize;
        match 1_usize << order {
            n @ ..64 => self.used[first / 64] |= u64::MAX >> (64 - n) << (first % 64),
            n => self.used[first / 64..(first + n) / 64].fill(u64::MAX),
        }
    }
}

impl Arena {
    /// Reserves address space for `frames` frames; no memory yet.
    ///
    /// # Errors
    /// ENOMEM: there is no room for it, or there would be more than 2^32 frames (16 TiB): a frame's number
    /// has 32 bits.
    pub(crate) fn new(frames: usize, locks: &LockStats) -> Result<Self, Errno> {
        if u32::try_from(frames).is_err() {
            return Err(Errno::NOMEM);
        }
        // Aligned as blocks are, so that each can be one huge page; the rest of the reservation is never
        // used.
        let len = (frames << PAGE_SHIFT) + BLOCK_BYTES;
        let start = reserve(len)?;
        // A store to a page that is never used: the first fault in a mapping allocates its anon_vma, which
        // the VMAs that the mapping is split into inherit. Without it, a later fault would have to allocate
        // it under mmap_lock, and might keep that lock while it clears 2 MiB. SAFETY: the last page of the
        // reservation, which is larger than the aligned frames by at least one.
        unsafe { ((start + len - PAGE_SIZE) as *mut u8).write_volatile(0) };
        let used = vec![0; frames.div_ceil(64)];
        let state = State {
            buddy: Buddy::default(),
            allowed: usize::MAX,
            held: 0,
            lanes: Lanes::new(frames, BLOCK_PAGES, thread::parallelism()),
            turn: 0,
            used,
            unbacked: Vec::new(),
            absent: Vec::new(),
        };
        Ok(Self {
            reserved: start..start + len,
            base: start.next_multiple_of(BLOCK_BYTES),
            capacity: frames,
            state: locks.mutex(LockClass::Frames, state),
            grown: Condvar::new(),
            populated: AtomicUsize::new(0),
            free: AtomicUsize::new(0),
            ungrown: AtomicUsize::new(frames),
            withheld: AtomicUsize::new(0),
        })
    }

    /// A run of 2^`order` frames, or `None` if no such run is free in what has grown so far.
    pub(crate) fn alloc(&self, order: u8) -> Option<Extent> {
        let mut state = self.state.lock();
        let first = state.buddy.take(order)?;
        let zeroed = state.is_unused(first, order);
        self.publish(&state);
        drop(state);
        Some(Extent::new(self.base + ((first as usize) << PAGE_SHIFT), order, zeroed))
    }

    fn publish(&self, state: &State) {
        self.free.store(state.buddy.free_frames() + state.unbacked.len(), Ordering::Relaxed);
        self.ungrown.store(state.ungrown(), Ordering::Relaxed);
    }

    /// Whether the arena has not reached its size, nor as much as it may have. A guess: nothing is locked.
    pub(crate) fn can_grow(&self) -> bool {
        self.ungrown.load(Ordering::Relaxed) > 0
    }

    /// Frames that are free without growing, unbacked ones included. A guess: nothing is locked.
    pub(crate) fn frames_at_hand(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }

    /// Whether at least 1/`one_in` of the arena is free, with so many frames that could be allowed still. A
    /// guess: nothing is locked.
    pub(crate) fn has_free(&self, one_in: usize, room: usize) -> bool {
        let rest = self.ungrown.load(Ordering::Relaxed);
        (self.free.load(Ordering::Relaxed) + rest + room) * one_in >= self.frames()
    }

    /// Populates one more block, or waits while others do; `false` if the arena has reached its size, or has
    /// as much as it may have. Takes as long as it takes the kernel to clear 2 MiB: less than a millisecond
    /// where the memory is at hand, several where a hypervisor must find it first. Calls `between` after each
    /// request for which the kernel took mmap_lock.
    ///
    /// One thread populates in each lane at a time. Two that populate neighbours would only wait for each
    /// other: the madvise for one block changes a neighbour of the VMA in which the other block is being
    /// cleared, so it waits for that VMA's lock while it has mmap_lock, and every mmap of the program
    /// waits, too.
    ///
    /// # Errors
    /// The kernel's: no memory, or none that can be registered.
    pub(crate) fn grow(&self, register: Option<&Uffd>, between: impl Fn()) -> Result<bool, Errno> {
        let block = {
            let mut state = self.state.lock();
            if self.take_back(&mut state, register.is_some()) {
                return Ok(true);
            }
            let most = state.allowed.saturating_sub(state.held);
            match state.lanes.claim(most) {
                Claim::Block(block) => {
                    state.held += block.len();
                    block
                }
                Claim::Busy => {
                    let turn = state.turn;
                    while state.turn == turn {
                        self.grown.wait_timeout(&mut state, GROWTH_BOUND);
                    }
                    return Ok(true);
                }
                Claim::Nothing => return Ok(false),
            }
        };
        // Ends the turn whatever happens, a panic too: others wait for it.
        let mut turn = Turn { arena: self, block, done: false };
        let populated = self.populate(&turn.block, register, &between);
        turn.done = populated.is_ok();
        drop(turn);
        between();
        populated.map(|()| true)
    }

    /// Gives an extent's frames back.
    ///
    /// # Panics
    /// If a page of it is away, or it is of another arena.
    pub(crate) fn free(&self, extent: Extent) {
        assert!(extent.is_home(), "an extent is freed with pages in a window");
        let first = self.frame_of(&extent);
        let mut state = self.state.lock();
        state.note_used(first, extent.order);
        state.buddy.release(first, extent.order);
        self.publish(&state);
    }

    /// Takes over the empty homes of single pages that were freed.
    pub(crate) fn add_unbacked(&self, homes: impl Iterator<Item = usize>) {
        let mut state = self.state.lock();
        for home in homes {
            state.note_used(self.frame_at(home), 0);
            state.unbacked.push(home);
        }
        self.publish(&state);
    }

    /// Takes at most `most` empty homes, for [`Arena::add_filled`] or [`Arena::add_unbacked`] to give back.
    pub(crate) fn take_unbacked(&self, most: usize) -> Vec<usize> {
        let mut state = self.state.lock();
        let rest = state.unbacked.len().saturating_sub(most);
        let taken = state.unbacked.split_off(rest);
        self.publish(&state);
        taken
    }

    /// Frees the frame of a home that was empty and has memory now.
    pub(crate) fn add_filled(&self, home: usize) {
        let mut state = self.state.lock();
        state.buddy.release(self.frame_at(home), 0);
        self.publish(&state);
    }

    /// Gives a page that is away an empty home in exchange for its own, which still has memory: frees that
    /// frame, and returns the empty home. `None` if there is no empty home.
    pub(crate) fn exchange(&self, home: usize) -> Option<usize> {
        let mut state = self.state.lock();
        let empty = state.unbacked.pop()?;
        let frame = self.frame_at(home);
        state.note_used(frame, 0);
        state.buddy.release(frame, 0);
        self.publish(&state);
        Some(empty)
    }

    /// Sets whether a forked child inherits the arena: `how` is MADV_DOFORK or MADV_DONTFORK.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn inherit(&self, how: Advice) -> Result<(), Errno> {
        // SAFETY: the reservation is the arena's; the advice does not change what is in it.
        unsafe { mm::madvise(self.reserved.start as *mut _, self.reserved.len(), how) }
    }

    /// In the child of a fork that has inherited the arena: registers the populated blocks with the child's
    /// userfaultfd.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn renew(&self, uffd: &Uffd) -> Result<(), Errno> {
        let populated: Vec<_> = self.state.lock().lanes.ranges().collect();
        let addresses = |frames: Range<usize>| {
            self.base + (frames.start << PAGE_SHIFT)..self.base + (frames.end << PAGE_SHIFT)
        };
        populated.into_iter().try_for_each(|frames| uffd.register(addresses(frames), Protection::Writable))
    }

    /// Frames that can be allocated now or after growing.
    pub(crate) fn free_frames(&self) -> usize {
        let state = self.state.lock();
        state.buddy.free_frames() + state.unbacked.len() + state.absent.len() + state.lanes.ungrown()
    }

    /// Frames that were given up.
    pub(crate) fn withheld(&self) -> usize {
        self.withheld.load(Ordering::Relaxed)
    }

    /// Frames that the arena has, or may grow to, without those that were given up.
    pub(crate) fn frames(&self) -> usize {
        self.capacity - self.withheld()
    }

    /// How many frames there are numbers for: those that were given up are included.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The addresses that are the arena's.
    pub(crate) fn reserved(&self) -> &Range<usize> {
        &self.reserved
    }

    /// The address of the first frame.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// The number of an extent's first frame.
    ///
    /// # Panics
    /// If the extent is not of this arena.
    pub(crate) fn frame_of(&self, extent: &Extent) -> u32 {
        self.frame_at(extent.home)
    }

    /// The number of the frame at an address. Arenas never overlap, and the addresses of an arena with a
    /// live extent are never reused, so the address tells whether the frame is this arena's.
    fn frame_at(&self, home: usize) -> u32 {
        let frame = home.wrapping_sub(self.base) >> PAGE_SHIFT;
        assert!(frame < self.capacity, "an extent of another arena");
        frame_number(frame)
    }

    /// Frames that were given memory, without those that were given up. All still have it, except the
    /// unbacked ones, and those whose page is in a window.
    pub(crate) fn populated_frames(&self) -> usize {
        self.populated.load(Ordering::Relaxed)
    }

    /// Gives the block memory, then registers it (in this order: populating a registered range would be a
    /// fault for us to serve).
    ///
    /// The block is populated as one huge page where the kernel has one, and then split: its frames are
    /// small, but neighbours in physical memory, so that a read into a run of them is one segment for the
    /// device instead of one for each page (2.5 times the throughput on a virtual disk). Split at once, and
    /// not by the first MOVE of a part of it, because a MOVE cannot split while a device has pinned any other
    /// page of it.
    fn populate(
        &self,
        block: &Range<usize>,
        register: Option<&Uffd>,
        between: impl Fn(),
    ) -> Result<(), Errno> {
        let start = self.base + (block.start << PAGE_SHIFT);
        let len = block.len() << PAGE_SHIFT;
        // SAFETY: the advice concerns only our own, unused block. A kernel without huge pages refuses it.
        let _ = unsafe { mm::madvise(start as *mut _, len, Advice::LinuxHugepage) };
        // Here and below: the end of the madvise has woken the threads that waited for mmap_lock, often on
        // this processor. Without a yield they would wait for a whole time slice while the kernel clears
        // memory.
        between();
        for page in (start..start + len).step_by(PAGE_SIZE) {
            // Touched, not populated by advice: a fault takes only the lock of its VMA, while the advice
            // would keep mmap_lock for as long as it takes to clear the block, and every mmap of the program
            // would wait for that. Not zero: splitting a huge page replaces pages of zeros by the kernel's
            // shared zero page, which is no memory of ours. SAFETY: the byte is ours and unused.
            unsafe { (page as *mut u8).write_volatile(1) };
        }
        between();
        // The kernel follows this advice for a part of a huge page by splitting it.
        // SAFETY: as above.
        let _ = unsafe { mm::madvise(start as *mut _, PAGE_SIZE, Advice::LinuxCold) };
        // SAFETY: as above.
        let _ = unsafe { mm::madvise(start as *mut _, len, Advice::LinuxNoHugepage) };
        between();
        for page in (start..start + len).step_by(PAGE_SIZE) {
            // All zeros from here on.
            // SAFETY: as above.
            unsafe { (page as *mut u8).write_volatile(0) };
        }
        if let Some(uffd) = register {
            uffd.register(start..start + len, Protection::Writable)?;
        }
        self.populated.fetch_add(block.len(), Ordering::Relaxed);
        Ok(())
    }
}

/// The number as the buddy allocator has it.
fn frame_number(frame: usize) -> u32 {
    u32::try_from(frame).expect("an arena has fewer than 2^32 frames: `new` sees to it")
}

/// The right to populate a block that was claimed for it.
struct Turn<'a> {
    arena: &'a Arena,
    block: Range<usize>,
    /// Whether the block has its memory.
    done: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.arena.state.lock();
        if self.done {
            state.buddy.add(frame_number(self.block.start), frame_number(self.block.end));
        }
        // If it has no memory, the next one to grow the arena tries this block again.
        if !self.done {
            state.held -= self.block.len();
        }
        state.lanes.end(&self.block, self.done);
        state.turn += 1;
        self.arena.publish(&state);
        drop(state);
        self.arena.grown.notify_all();
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // An extent that outlives the arena keeps the memory it points to: leaking is safe, unmapping would
        // not be.
        if self.free_frames() == self.frames() {
            // SAFETY: no extent is out, so nobody can reach this memory.
            let _ = unsafe { mm::munmap(self.reserved.start as *mut _, self.reserved.len()) };
        }
    }
}

/// Reserves `len` bytes of private anonymous address space that is inherited by no child and in no core dump,
/// and whose pages stay 4 KiB pages (a part of a huge page cannot be moved without splitting it).
pub(crate) fn reserve(len: usize) -> Result<usize, Errno> {
    reserve_by(len, 0, MapFlags::empty())
}

/// The same, exactly at `start`, where nothing may be mapped.
pub(crate) fn reserve_at(start: usize, len: usize) -> Result<(), Errno> {
    reserve_by(len, start, MapFlags::FIXED_NOREPLACE).map(drop)
}

fn reserve_by(len: usize, start: usize, place: MapFlags) -> Result<usize, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | place;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping that replaces none disturbs nobody.
    let base = unsafe { mm::mmap_anonymous(start as *mut _, len, prot, flags)? };
    for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump, Advice::LinuxNoHugepage] {
        // SAFETY: the advice concerns only the mapping made above. A kernel without huge pages refuses the
        // last.
        let result = unsafe { mm::madvise(base, len, advice) };
        if let (Err(e), Advice::LinuxDontFork) = (result, advice) {
            return Err(e);
        }
    }
    Ok(base as usize)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use elbowroom_sync::time::Instant;

    /// Threads clear memory side by side, and each frame is there once. On one processor a thread is alone.
    #[test]
    fn threads_populate_different_blocks_at_the_same_time() {
        const FRAMES: usize = 40 * BLOCK_PAGES;
        const BOUND: Duration = Duration::from_secs(60);
        let threads = thread::parallelism().min(2);
        let arena = Arena::new(FRAMES, &LockStats::new()).unwrap();
        let (met, began) = (AtomicUsize::new(0), Instant::now());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    // All of them are in a block. If one of them had to wait for another one's end, neither
                    // would come here again.
                    let first = std::cell::Cell::new(true);
                    let between = || {
                        if first.take() {
                            met.fetch_add(1, Ordering::Relaxed);
                        }
                        while met.load(Ordering::Relaxed) < threads && began.elapsed() < BOUND {
                            thread::yield_now();
                        }
                    };
                    while arena.grow(None, between).unwrap() {}
                });
            }
        });
        assert!(began.elapsed() < BOUND, "a thread waited for the end of another");
        assert_eq!((arena.populated_frames(), arena.can_grow()), (FRAMES, false));
        let all: Vec<_> = std::iter::from_fn(|| arena.alloc(0)).collect();
        let mut homes: Vec<_> = all.iter().map(|extent| extent.home).collect();
        homes.sort_unstable();
        homes.dedup();
        assert_eq!(homes.len(), FRAMES);
        assert!(all.iter().all(|extent| extent.bytes().iter().all(|byte| *byte == 0)));
        all.into_iter().for_each(|extent| arena.free(extent));
    }
}
