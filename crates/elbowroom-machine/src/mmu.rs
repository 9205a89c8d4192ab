//! What a manager needs of an MMU.

use crate::soft::SoftMmu;
use crate::{Access, Allowance, Denial, Errno, Extent, HostMmu, PAGE_SHIFT, PAGE_SIZE, UnmapError, Wake};
use std::ops::Range;

/// Arena, page tables of some kind, and the way between them. [`HostMmu`] has real pointers,
/// [`crate::soft::SoftMmu`] tables of its own.
///
/// A page of an extent is at home or mapped ("away") in one place or several ([`Mmu::PLACES`]), never both.
/// The owner of an extent serializes the calls for it. A call waits only for short locks and, for some
/// milliseconds at most, for pins to be released or for another thread that grows the arena.
pub trait Mmu: Send + Sync + 'static {
    /// In how many places an extent may be mapped at a time, at least 1. Before it is mapped in one more,
    /// the caller unmaps it from another.
    const PLACES: usize;

    /// The most pages to map around a page that a load faults on (Linux: fault-around); a power of two. It
    /// is larger where a request has a high fixed cost compared with its cost per page.
    const AROUND: usize;

    /// Whether a fault's event can be late: the faulting thread may have gone on before the event is
    /// served.
    const LATE_EVENTS: bool;

    /// A run of 2^`order` frames, all at home, with whatever bytes they last had; `None` if none is free in
    /// what the arena has so far.
    fn alloc(&self, order: u8) -> Option<Extent>;

    /// Whether the arena has not reached its size, nor as much as it may have. A guess.
    fn can_grow(&self) -> bool;

    /// How much memory the arena may have.
    fn allowance(&self) -> Allowance<'_>;

    /// Populates 2 MiB more of the arena, which may take milliseconds, or waits while another thread does;
    /// `false` if all of it is populated. Other threads may have taken the new frames when it returns.
    ///
    /// # Errors
    /// The kernel has no memory.
    fn grow(&self) -> Result<bool, Errno>;

    /// Gives an extent back.
    ///
    /// # Panics
    /// If a page of it is away, or it is of another MMU.
    fn free(&self, extent: Extent);

    /// The size of the arena, in frames, without those that were given up.
    fn frames(&self) -> usize;

    /// Frames that have memory, without those that were given up or away.
    fn populated_frames(&self) -> usize;

    /// Frames that can be allocated without growing the arena. A guess.
    fn frames_at_hand(&self) -> usize;

    /// Whether at least 1/`one_in` of the arena is free, with `room` frames that could be allowed still. A
    /// guess.
    fn has_free(&self, one_in: usize, room: usize) -> bool;

    /// Lets threads go first that the next requests would keep waiting (on the kernel's mmap_lock). Called
    /// with no lock held.
    fn give_way(&self);

    /// Bytes of memory that the MMU's own tables take now, beside the arena.
    fn metadata_bytes(&self) -> usize;

    /// Maps those of `pages` that are not mapped there yet, so that page 0 of the extent is, or would be,
    /// at `base`; wakes the threads that wait for them, if told to.
    ///
    /// # Panics
    /// If the extent would then have more than [`Mmu::PLACES`] places.
    ///
    /// # Errors
    /// EEXIST, ENOENT or EINVAL: something else is in the way. ENOMEM: no memory for the tables. Some of the
    /// pages may be mapped then; the extent knows which.
    fn map(
        &self,
        extent: &mut Extent,
        base: usize,
        pages: Range<usize>,
        access: Access,
        wake: Wake,
    ) -> Result<(), Errno>;

    /// Takes all pages of the extent home, out of all places: when it returns, only the owner can read or
    /// write them.
    ///
    /// # Errors
    /// Busy: a page is pinned; the rest may be home. Lost: see [`UnmapError`].
    fn unmap(&self, extent: &mut Extent) -> Result<(), UnmapError>;

    /// Takes the pages of the extent out of the place with page 0 at `base`, if it has that place.
    ///
    /// # Errors
    /// As for [`Mmu::unmap`].
    fn unmap_at(&self, extent: &mut Extent, base: usize) -> Result<(), UnmapError>;

    /// Copies a page that is mapped, or at home, into the only page of `to`, if the MMU can. Stores that
    /// run at the same time may be missing in the copy. `false`: the page must come home first.
    fn copy_page(&self, from: &Extent, page: usize, to: &mut Extent) -> bool;

    /// Calls `f` with the bytes of a page, mapped or at home; `None`: they cannot be read. No thread may
    /// store to the page meanwhile: it must be clean, so that stores to it fault and wait for the extent's
    /// owner.
    ///
    /// # Panics
    /// If there is no such page.
    fn with_page<T>(&self, extent: &Extent, page: usize, f: impl FnOnce(&[u8]) -> T) -> Option<T>;

    /// [`Mmu::unmap`] for many clean extents of a page each, in a batch that costs less; afterwards the
    /// extents tell which are home.
    fn unmap_clean(&self, extents: &mut [Extent]);

    /// Unmaps clean extents of a page each, all of them away, and frees them; their bytes are dropped if
    /// that is cheaper. If a page is pinned, frees none and returns all extents; some may be home then.
    fn discard_clean(&self, extents: Vec<Extent>) -> Vec<Extent>;

    /// Makes the present pages of `range` writable.
    ///
    /// # Errors
    /// The kernel's.
    fn make_writable(&self, range: Range<usize>, wake: Wake) -> Result<(), Errno>;

    /// Whether a page is present at an address, as far as the MMU can tell. A page that an extent has
    /// mapped there may be missing: the program may have dropped it by a system call that the manager did
    /// not see.
    fn is_there(&self, addr: usize) -> bool;

    /// Wakes the threads that wait for a page of `range`; they fault again if it is not there.
    fn wake(&self, range: Range<usize>);

    /// Addresses for at least `min_len` bytes of mappings.
    ///
    /// # Errors
    /// ENOMEM: there is no room.
    fn add_window(&self, min_len: usize) -> Result<Range<usize>, Errno>;

    /// [`Mmu::add_window`] at exactly these addresses.
    ///
    /// # Errors
    /// EINVAL: it is no range of whole blocks of 2 MiB. EEXIST: something is there. ENOMEM: there is no room.
    fn add_window_at(&self, window: Range<usize>) -> Result<(), Errno>;

    /// Gives up a window that [`Mmu::add_window`] made, or a space, with nothing mapped in it.
    fn remove_window(&self, start: usize);

    /// Whether all of `addr..addr + len` (not empty) is ours.
    fn covers(&self, addr: usize, len: usize) -> bool;

    /// Makes accesses to the page of `addr` fail as `denial` says, and wakes the threads that wait for it.
    /// First publishes the denial, so that a thread that would map the page sees it, then asks `wanted`,
    /// and does nothing if the answer is no. Returns that answer.
    ///
    /// # Errors
    /// The kernel's: no memory for it.
    fn deny(&self, addr: usize, denial: Denial, wanted: impl Fn() -> bool) -> Result<bool, Errno>;

    /// Whether accesses to a page in `range` are made to fail now, as far as this is known.
    fn denies(&self, range: Range<usize>) -> bool;

    /// Undoes the denials in `range` that happened before. A thread that denies an access checks its reason
    /// again after a sequentially consistent fence; so a caller that has changed that reason without a lock
    /// executes such a fence before this call.
    ///
    /// # Errors
    /// The kernel's.
    fn allow(&self, range: Range<usize>) -> Result<(), Errno>;

    /// Makes accesses to `range`, where nothing is mapped, fail as accesses to unmapped memory do, and
    /// wakes the threads that wait there. Returns whether the addresses are the kernel's from now on.
    ///
    /// # Errors
    /// The kernel's.
    fn punch(&self, range: Range<usize>) -> Result<bool, Errno>;
}

/// The methods that both MMUs have under the same name.
macro_rules! same_in_both {
    () => {
        fn alloc(&self, order: u8) -> Option<Extent> {
            self.alloc(order)
        }

        fn can_grow(&self) -> bool {
            self.can_grow()
        }

        fn allowance(&self) -> Allowance<'_> {
            self.allowance()
        }

        fn grow(&self) -> Result<bool, Errno> {
            self.grow()
        }

        fn free(&self, extent: Extent) {
            self.free(extent);
        }

        fn frames(&self) -> usize {
            self.frames()
        }

        fn populated_frames(&self) -> usize {
            self.populated_frames()
        }

        fn frames_at_hand(&self) -> usize {
            self.frames_at_hand()
        }

        fn has_free(&self, one_in: usize, room: usize) -> bool {
            self.has_free(one_in, room)
        }

        fn map(
            &self,
            extent: &mut Extent,
            base: usize,
            pages: Range<usize>,
            access: Access,
            wake: Wake,
        ) -> Result<(), Errno> {
            self.map(extent, base, pages, access, wake)
        }

        fn unmap(&self, extent: &mut Extent) -> Result<(), UnmapError> {
            self.unmap(extent)
        }

        fn unmap_at(&self, extent: &mut Extent, base: usize) -> Result<(), UnmapError> {
            self.unmap_at(extent, base)
        }

        fn unmap_clean(&self, extents: &mut [Extent]) {
            self.unmap_clean(extents);
        }

        fn make_writable(&self, range: Range<usize>, wake: Wake) -> Result<(), Errno> {
            self.make_writable(range, wake)
        }
    };
}

impl Mmu for HostMmu {
    /// 1: a page that is moved into a window is nowhere else.
    const PLACES: usize = 1;

    /// A request to the kernel costs some 10 us, and moving 512 pages not twice that.
    const AROUND: usize = 512;

    const LATE_EVENTS: bool = true;

    same_in_both!();

    fn is_there(&self, addr: usize) -> bool {
        self.is_there(addr)
    }

    fn give_way(&self) {
        self.give_way();
    }

    fn metadata_bytes(&self) -> usize {
        // The kernel has the page tables.
        0
    }

    fn copy_page(&self, from: &Extent, page: usize, to: &mut Extent) -> bool {
        if !from.is_home() {
            // The program may have dropped the page, or mapped something else over it: a load by a handler
            // could fault.
            return false;
        }
        to.bytes_mut().copy_from_slice(&from.bytes()[page << PAGE_SHIFT..][..PAGE_SIZE]);
        true
    }

    fn with_page<T>(&self, extent: &Extent, page: usize, f: impl FnOnce(&[u8]) -> T) -> Option<T> {
        self.with_page(extent, page, f)
    }

    fn discard_clean(&self, extents: Vec<Extent>) -> Vec<Extent> {
        self.discard_clean(extents);
        Vec::new()
    }

    fn wake(&self, range: Range<usize>) {
        self.wake(range);
    }

    fn add_window(&self, min_len: usize) -> Result<Range<usize>, Errno> {
        self.add_window(min_len)
    }

    fn add_window_at(&self, window: Range<usize>) -> Result<(), Errno> {
        self.add_window_at(window)
    }

    fn remove_window(&self, _start: usize) {
        // Windows last as long as the process.
    }

    fn covers(&self, addr: usize, len: usize) -> bool {
        self.windows().covers(addr, len)
    }

    fn deny(&self, addr: usize, denial: Denial, wanted: impl Fn() -> bool) -> Result<bool, Errno> {
        let denied = self.layout.deny(&self.uffd, addr, denial, wanted)?;
        if denied {
            self.wake(crate::surrounding_pages(addr, 1));
        }
        Ok(denied)
    }

    fn denies(&self, range: Range<usize>) -> bool {
        self.layout.denies(range)
    }

    fn allow(&self, range: Range<usize>) -> Result<(), Errno> {
        self.allow(range)
    }

    fn punch(&self, range: Range<usize>) -> Result<bool, Errno> {
        self.punch(range).map(|()| true)
    }
}

impl Mmu for SoftMmu {
    const PLACES: usize = usize::MAX;

    /// A fault costs as much as 100 entries of a table, which must be taken out one by one later.
    const AROUND: usize = 32;

    /// The thread serves its fault itself.
    const LATE_EVENTS: bool = false;

    same_in_both!();

    fn is_there(&self, _addr: usize) -> bool {
        true
    }

    fn give_way(&self) {
        // The soft MMU takes no lock that the program's calls wait for.
    }

    fn metadata_bytes(&self) -> usize {
        self.metadata_bytes()
    }

    fn copy_page(&self, from: &Extent, page: usize, to: &mut Extent) -> bool {
        self.copy_page(from, page, to);
        true
    }

    fn with_page<T>(&self, extent: &Extent, page: usize, f: impl FnOnce(&[u8]) -> T) -> Option<T> {
        Some(self.with_page(extent, page, f))
    }

    fn discard_clean(&self, mut extents: Vec<Extent>) -> Vec<Extent> {
        // In this MMU unmapping a page only changes its page-table entry.
        self.unmap_clean(&mut extents);
        if extents.iter().all(Extent::is_home) {
            extents.drain(..).for_each(|extent| self.free(extent));
        }
        extents
    }

    fn wake(&self, _range: Range<usize>) {
        // No thread waits in the soft MMU.
    }

    fn add_window(&self, _min_len: usize) -> Result<Range<usize>, Errno> {
        // A space has all its addresses from the beginning.
        Err(Errno::NOMEM)
    }

    fn add_window_at(&self, _window: Range<usize>) -> Result<(), Errno> {
        Err(Errno::EXIST)
    }

    fn remove_window(&self, start: usize) {
        // Fails only if there is no such space, or a page is mapped in it: a mistake of the caller, and
        // harmless.
        let gone = self.destroy_space((start >> 48) as u16);
        debug_assert_eq!(gone, Ok(()), "a space is removed");
    }

    fn covers(&self, addr: usize, len: usize) -> bool {
        self.covers(addr, len)
    }

    fn denies(&self, _range: Range<usize>) -> bool {
        false
    }

    fn deny(&self, _addr: usize, _denial: Denial, wanted: impl Fn() -> bool) -> Result<bool, Errno> {
        // The faulting thread waits in its own call, not in the MMU, and gets the denial as that call's
        // result, so nothing is recorded here.
        Ok(wanted())
    }

    fn allow(&self, _range: Range<usize>) -> Result<(), Errno> {
        Ok(())
    }

    fn punch(&self, _range: Range<usize>) -> Result<bool, Errno> {
        Ok(false)
    }
}
