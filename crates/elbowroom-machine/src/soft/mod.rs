//! The soft MMU: page tables and a translation cache of our own.
//!
//! * [`SoftMmu`]: maps and unmaps extents in spaces; the operations of [`crate::HostMmu`] with the same
//!   meaning. It runs wherever memory can be had.
//! * [`SoftCpu`]: a thread's way to mapped memory: reads, writes, compare-exchange, pins. An access to a
//!   page that is not there returns a [`SoftFault`]; the caller has it served and tries again.
//! * [`Subscription`]: tells a reader that keeps data, or translations, which of them have become invalid
//!   (Linux: mmu notifiers).
//!
//! # Addresses
//! The top 16 bits are the number of a space (asid, from 1), the rest an address in it, below 2^47. The
//! addresses between 2^47 and 2^48 are in no space, so an access never runs from one space into the next.
//!
//! # Where the bytes are
//! A frame stays in the arena. A page that is *away* is mapped at `base + i` in the page tables; a page
//! that is *home* is not. While it is away, threads use its bytes by atomic accesses only, and its extent's
//! owner does not touch them. So an [`Extent`] means the same as with the host MMU.
//!
//! # What orders what
//! | | read | store, pin | map | unmap |
//! |---|---|---|---|---|
//! | **read** | nothing | atomic accesses | entry: release, acquire | the entry is compared after the load |
//! | **store, pin** | | atomic accesses | entry: release, acquire | an exchange of the entry takes a pin |
//! | **map** | | | table lock | table lock |
//! | **unmap** | | | | table lock; the extent's owner |
//!
//! * *Reads.* A read loads the bytes, then (after an acquire fence) the entry, and is valid if that is still
//!   the mapping that it took the frame from. Unmapping changes the entry and then executes a full fence,
//!   before the frame can be used for anything else. A read that saw a byte of that later use therefore sees
//!   the changed entry and is thrown away; a read that begins after `unmap` has returned sees it anyway.
//! * *Stores.* The pin is a count in the entry's word. A compare-exchange takes it only if the word is still
//!   this mapping, and writable (acquire); giving it back releases. Unmapping first takes the mapping away,
//!   so that no pin is given any more, and is done when the count is zero (acquire). So each store is either
//!   in the frame when `unmap` returns, or has become a fault. If pins do not go within a short bounded wait,
//!   the mapping is put back as it was, and the answer is [`UnmapError::Busy`](crate::UnmapError::Busy).
//! * *Words that come again.* See pte.rs: generation and epoch make it impossible to mistake one mapping
//!   for another, however long a thread sleeps.
//!
//! Locks: `window` (structure of the trees; spaces), `page-table` (one for each leaf), `queue` (the log of
//! invalidations), none inside the other but `page-table` inside `window`. Accesses take none.

mod access;
mod cpu;
mod fault;
mod frames;
mod map;
mod notify;
mod pin;
mod pte;
mod table;
mod tree;

pub use cpu::SoftCpu;
pub use fault::{Cause, SoftFault};
pub use notify::{Invalidation, Subscription};
pub use pin::{OwnedPin, Pin};
pub use pte::Intent;

use crate::arena::Arena;
use crate::{Allowance, Errno, Extent, PAGE_SIZE, SetupError};
use elbowroom_sync::atomic::{AtomicUsize, Ordering};
use elbowroom_sync::{Arc, LockStats};
use frames::Frames;
use notify::Notifier;
use pte::Epoch;
use std::ops::Range;
use tree::Tree;

/// Bytes in a space: 2^47, as a process has on x86-64.
pub const SPACE_BYTES: usize = 1 << 47;

/// The most pins that one page can have at a time. Stores that are under way have room beyond that.
pub const PINS_PER_PAGE: u32 = 2048;

/// Translations in the cache of a [`SoftCpu`]: for 2 MiB.
const CACHE_ENTRIES: usize = 512;

/// Pins that a [`SoftCpu`] takes from the common bound at a time, so that a pin need not touch a shared
/// counter.
const PIN_BATCH: usize = 16;

/// How often an access looks again at a page whose mapping changed under it, before it reports a fault.
const ACCESS_TRIES: u32 = 64;

/// How often unmapping checks whether the pins of a page are gone: some microseconds in all. It yields the
/// processor after every second check.
const DRAIN_TRIES: u32 = 32;

/// How often the search for a leaf is repeated if the leaf was freed between the walk and its lock.
const LEAF_TRIES: u32 = 64;

/// The most empty tables that stay in their trees.
const IDLE_TABLES: usize = 64;

/// Invalidations that a [`Subscription`] may lag behind before it is told that everything is invalid.
const LOG_ENTRIES: usize = 1024;

/// What a soft MMU is made with. All are bounds; memory is taken as it is needed.
#[derive(Debug, Clone, Copy)]
pub struct SoftConfig {
    /// Size of the arena, in frames (pages), at least 1.
    pub arena_frames: usize,
    /// Spaces that exist at a time, at least 1.
    pub spaces: u16,
    /// Tables of pages, 4160 bytes for 2 MiB of addresses each; at least 1. An empty one is freed after a
    /// while.
    ///
    /// At worst each mapped page needs a table of its own.
    pub tables: usize,
    /// Tables of tables, 4096 bytes for 1 GiB of addresses each; at least 3. They are freed with their space.
    ///
    /// A space needs one for each GiB (and for each 512 GiB) in which a page was ever mapped, and one more.
    pub upper_tables: usize,
    /// Pins that exist at a time.
    pub pins: usize,
}

impl SoftConfig {
    /// For an arena of so many frames: 1024 spaces, tables for the worst case (upper tables also for all
    /// addresses of one space), and pins for half of the frames.
    pub fn new(arena_frames: usize) -> Self {
        let spaces = 1024;
        Self {
            arena_frames,
            spaces,
            tables: arena_frames + IDLE_TABLES,
            upper_tables: arena_frames + usize::from(spaces) * 2 + (SPACE_BYTES >> 30),
            pins: arena_frames / 2,
        }
    }
}

/// The state that an MMU and its processors share.
struct Shared {
    epoch: Epoch,
    frames: Frames,
    tree: Tree,
    notifier: Notifier,
    /// The common bound: pins that are neither given out nor kept as spares by a processor.
    pins_left: AtomicUsize,
    /// Processors that exist.
    cpus: AtomicUsize,
}

/// Arena, page tables, and the way between them. One MMU serves many spaces.
///
/// Synchronization: an extent's owner serializes calls for it (`&mut Extent`); calls for different extents
/// need no order.
pub struct SoftMmu {
    shared: Arc<Shared>,
}

impl SoftMmu {
    /// Reserves address space for the arena and the tables.
    ///
    /// # Errors
    /// [`SetupError::Memory`], the kernel's.
    ///
    /// # Panics
    /// If a bound is below what [`SoftConfig`] says.
    pub fn new(config: SoftConfig, locks: &LockStats) -> Result<Self, SetupError> {
        let enough = config.tables > 0 && config.upper_tables >= 3;
        assert!(config.arena_frames > 0 && config.spaces > 0 && enough, "a bound is too small");
        let arena = Arena::new(config.arena_frames, locks).map_err(SetupError::Memory)?;
        let shared = Shared {
            epoch: Epoch::default(),
            frames: Frames::new(arena),
            tree: Tree::new(&config, locks).map_err(SetupError::Memory)?,
            notifier: Notifier::new(locks),
            pins_left: AtomicUsize::new(config.pins),
            cpus: AtomicUsize::new(0),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A new processor: a thread's access to the memory. Each thread has one; its cache takes some 16 KiB.
    pub fn cpu(&self) -> SoftCpu {
        SoftCpu::new(self.shared.clone())
    }

    /// Allocates a run of 2^`order` frames, none of them mapped, with the bytes that they last had. `None`
    /// if the arena, at its present size ([`SoftMmu::grow`]), has no such run free.
    pub fn alloc(&self, order: u8) -> Option<Extent> {
        self.shared.frames.arena().alloc(order)
    }

    /// Whether the arena has not reached its size. A guess.
    pub fn can_grow(&self) -> bool {
        self.shared.frames.arena().can_grow()
    }

    /// Frames that can be allocated without growing the arena. A guess.
    pub fn frames_at_hand(&self) -> usize {
        self.shared.frames.arena().frames_at_hand()
    }

    /// Whether at least 1/`one_in` of the arena is free, with `room` frames that could be allowed still. A
    /// guess.
    pub fn has_free(&self, one_in: usize, room: usize) -> bool {
        self.shared.frames.arena().has_free(one_in, room)
    }

    /// Populates 2 MiB more of the arena, or waits while another thread does; `false` if all of it is
    /// populated.
    ///
    /// # Errors
    /// The kernel's: it has no memory.
    pub fn grow(&self) -> Result<bool, Errno> {
        self.shared.frames.arena().grow(None, || ())
    }

    /// Gives an extent back.
    ///
    /// # Panics
    /// If a page of it is away, or it is not of this arena.
    pub fn free(&self, extent: Extent) {
        self.shared.frames.arena().frame_of(&extent);
        self.shared.frames.arena().free(extent);
    }

    /// Copies page `page` of an extent, mapped or at home, into the only page of `to`, which is at home.
    /// Stores that run at the same time may be missing in the copy.
    ///
    /// # Panics
    /// If the extent has no such page, or is not of this arena.
    pub fn copy_page(&self, from: &Extent, page: usize, to: &mut Extent) {
        assert!(page < from.pages(), "no such page");
        let frames = &self.shared.frames;
        let frame = frames.arena().frame_of(from) + page as u32;
        frames.load(frames.place(frame), 0, to.bytes_mut());
    }

    /// Calls `f` with the bytes of a page, mapped or at home. Stores that run at the same time may be
    /// missing in them.
    ///
    /// # Panics
    /// If the extent has no such page, or is not of this arena.
    pub fn with_page<T>(&self, extent: &Extent, page: usize, f: impl FnOnce(&[u8]) -> T) -> T {
        if let Some(bytes) = extent.page_at_home(page) {
            return f(bytes);
        }
        let frames = &self.shared.frames;
        let mut bytes = [0; PAGE_SIZE];
        frames.load(frames.place(frames.arena().frame_of(extent) + page as u32), 0, &mut bytes);
        f(&bytes)
    }

    /// How much memory the arena may have.
    pub fn allowance(&self) -> Allowance<'_> {
        Allowance(self.shared.frames.arena())
    }

    /// Frames that the arena has, or may grow to.
    pub fn frames(&self) -> usize {
        self.shared.frames.arena().frames()
    }

    /// Frames that were given memory so far, without those that were given up.
    pub fn populated_frames(&self) -> usize {
        self.shared.frames.arena().populated_frames()
    }

    /// Bytes in page tables (those that wait to be used again too), lists and translation caches: memory
    /// beside the arena's.
    pub fn metadata_bytes(&self) -> usize {
        let caches = self.shared.cpus.load(Ordering::Relaxed) * cpu::CACHE_BYTES;
        self.shared.tree.bytes() + caches + self.shared.notifier.bytes()
    }

    /// Makes a space, and tells its number. A number is used again after [`SoftMmu::destroy_space`].
    ///
    /// # Errors
    /// ENOMEM: there are as many spaces or tables as there may be.
    pub fn create_space(&self) -> Result<u16, Errno> {
        self.shared.tree.create_space()
    }

    /// Ends a space and frees its tables. Accesses fault from now on.
    ///
    /// # Errors
    /// ENOENT: there is no such space. EBUSY: a page is mapped in it.
    pub fn destroy_space(&self, asid: u16) -> Result<(), Errno> {
        self.shared.tree.destroy_space(asid)
    }

    /// The addresses of a space, whether it exists or not.
    pub fn space_range(asid: u16) -> Range<usize> {
        tree::space_range(asid)
    }

    /// Whether all of `addr..addr + len` (not empty) is in one space that exists. Takes no lock.
    pub fn covers(&self, addr: usize, len: usize) -> bool {
        self.shared.tree.covers(&(addr..addr.saturating_add(len)))
    }

    /// Begins to log invalidations, for a caller that keeps data or translations of its own.
    pub fn subscribe(&self) -> Subscription {
        Subscription::new(self.shared.clone())
    }
}
