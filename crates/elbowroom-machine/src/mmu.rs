//! What a manager needs of an MMU.

use crate::soft::SoftMmu;
use crate::{Access, Denial, Errno, Extent, HostMmu, PAGE_SHIFT, PAGE_SIZE, UnmapError, Wake};
use std::ops::Range;

/// Arena, page tables of some kind, and the way between them. [`HostMmu`] has real pointers,
/// [`crate::soft::SoftMmu`] tables of its own.
///
/// A page of an extent is at home or mapped ("away") in one place or several ([`Mmu::PLACES`]), never both.
/// The owner of an extent serializes the calls for it. No call waits for anything but short locks and, at
/// most for some milliseconds, for pins to go, or for another thread that grows the arena.
pub trait Mmu: Send + Sync + 'static {
    /// In how many places an extent may be mapped at a time, at least 1. Whoever wants it in one more takes
    /// it out of another first.
    const PLACES: usize;

    /// How many pages to map for a load from one, at most; a power of two. The more a request costs, beside
    /// what each page of it costs, the more.
    const AROUND: usize;

    /// Whether the thread of a fault may have gone on before its event is served.
    const LATE_EVENTS: bool;

    /// A run of 2^`order` frames, all at home, with whatever bytes they last had; `None` if none is free in
    /// what the arena has so far.
    fn alloc(&self, order: u8) -> Option<Extent>;

    /// Whether somebody who has time should call [`Mmu::grow`].
    fn wants_to_grow(&self) -> bool;

    /// Whether the arena has not reached its size. A guess.
    fn can_grow(&self) -> bool;

    /// Gives the arena 2 MiB more of its size, which may take milliseconds, or waits while another thread
    /// does; `false` if it has all of it. Somebody else may have taken the frames when it returns.
    ///
    /// # Errors
    /// The kernel has no memory.
    fn grow(&self) -> Result<bool, Errno>;

    /// Gives an extent back.
    ///
    /// # Panics
    /// If a page of it is away, or it is of another MMU.
    fn free(&self, extent: Extent);

    /// Gives up at most so many free frames for good, for memory that something else needs: those without
    /// memory first. Tells how many it gave up.
    fn withhold(&self, most: usize) -> usize;

    /// Frames that were given up.
    fn withheld(&self) -> usize;

    /// The size of the arena, in frames: it is smaller by each that is given up.
    fn frames(&self) -> usize;

    /// Frames that have had memory so far, but for those that were given up.
    fn populated_frames(&self) -> usize;

    /// Frames that can be allocated without growing the arena. A guess.
    fn frames_at_hand(&self) -> usize;

    /// Whether one part in `one_in` of the arena is free. A guess.
    fn has_free(&self, one_in: usize) -> bool;

    /// Lets others go first whom the next requests would keep waiting. Called where nothing is locked.
    fn give_way(&self);

    /// Bytes of memory in tables of its own now, beside the arena.
    fn metadata_bytes(&self) -> usize;

    /// Maps those of `pages` that are not mapped there yet, so that page 0 of the extent is, or would be, at
    /// `base`; wakes whoever waits for them, if told to.
    ///
    /// # Panics
    /// If that would be a place more than [`Mmu::PLACES`].
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

    /// Takes all pages of the extent home, from wherever they are mapped: when it returns, nobody else reads
    /// or writes them.
    ///
    /// # Errors
    /// Busy: a page is pinned; the rest may be home. Lost: see [`UnmapError`].
    fn unmap(&self, extent: &mut Extent) -> Result<(), UnmapError>;

    /// Takes the pages of the extent out of the place with page 0 at `base`, if it has that place.
    ///
    /// # Errors
    /// As for [`Mmu::unmap`].
    fn unmap_at(&self, extent: &mut Extent, base: usize) -> Result<(), UnmapError>;

    /// Copies a page that is mapped, or at home, into the only page of `to`, if the MMU can; stores that are
    /// made meanwhile are in the copy or not. `false`: the page must come home first.
    fn copy_page(&self, from: &Extent, page: usize, to: &mut Extent) -> bool;

    /// Shows the bytes of a page to `f`, wherever it is; `None`: they cannot be had. Nobody may store to the
    /// page meanwhile: it is clean, so that stores to it wait for the extent's owner.
    ///
    /// # Panics
    /// If there is no such page.
    fn with_page<T>(&self, extent: &Extent, page: usize, f: impl FnOnce(&[u8]) -> T) -> Option<T>;

    /// [`Mmu::unmap`] of many clean extents of a page each, as cheaply as that can be done; the extents tell
    /// which are home then.
    fn unmap_clean(&self, extents: &mut [Extent]);

    /// Takes clean extents of a page each, all of them away, out of their windows, without their bytes if
    /// that is cheaper, and frees them. Gives all of them back if one is pinned; some may be home then.
    fn discard_clean(&self, extents: Vec<Extent>) -> Vec<Extent>;

    /// Lets stores to the present pages of `range` through.
    ///
    /// # Errors
    /// The kernel's.
    fn make_writable(&self, range: Range<usize>, wake: Wake) -> Result<(), Errno>;

    /// Whether there is a page at an address, as far as the MMU can be asked. A page that an extent has there
    /// may be missing: a system call that nobody saw has dropped it.
    fn is_there(&self, addr: usize) -> bool;

    /// Wakes whoever waits for a page of `range`; they fault again if it is not there.
    fn wake(&self, range: Range<usize>);

    /// Addresses for at least `min_len` bytes of mappings.
    ///
    /// # Errors
    /// ENOMEM: there is no room.
    fn add_window(&self, min_len: usize) -> Result<Range<usize>, Errno>;

    /// The same, exactly there.
    ///
    /// # Errors
    /// EINVAL: it is no range of whole blocks of 2 MiB. EEXIST: something is there. ENOMEM: there is no room.
    fn add_window_at(&self, window: Range<usize>) -> Result<(), Errno>;

    /// Gives up addresses that [`Mmu::add_window`], or the making of a space, gave, with nothing mapped in
    /// them.
    fn remove_window(&self, start: usize);

    /// Whether all of `addr..addr + len` (not empty) is ours.
    fn covers(&self, addr: usize, len: usize) -> bool;

    /// Makes accesses to the page of `addr` fail as `denial` says, and wakes whoever waits there; unless
    /// `wanted`, asked once all who would map the page can see the denial, says no. Tells what it said.
    ///
    /// # Errors
    /// The kernel's: no memory for it.
    fn deny(&self, addr: usize, denial: Denial, wanted: impl Fn() -> bool) -> Result<bool, Errno>;

    /// Undoes the denials in `range` that happened before. Whoever denies accesses for a reason that may
    /// change looks at it after a sequentially consistent fence, so who has changed it without a lock puts
    /// one before this call.
    ///
    /// # Errors
    /// The kernel's.
    fn allow(&self, range: Range<usize>) -> Result<(), Errno>;

    /// Leaves `range`, where nothing is mapped, to whatever an access to unmapped memory gets, and wakes
    /// whoever waits there. Tells whether the addresses are lost to us by that.
    ///
    /// # Errors
    /// The kernel's.
    fn punch(&self, range: Range<usize>) -> Result<bool, Errno>;
}

/// What both have as a method of the same name.
macro_rules! same_in_both {
    () => {
        fn alloc(&self, order: u8) -> Option<Extent> {
            self.alloc(order)
        }

        fn wants_to_grow(&self) -> bool {
            self.wants_to_grow()
        }

        fn can_grow(&self) -> bool {
            self.can_grow()
        }

        fn grow(&self) -> Result<bool, Errno> {
            self.grow()
        }

        fn free(&self, extent: Extent) {
            self.free(extent);
        }

        fn withhold(&self, most: usize) -> usize {
            self.withhold(most)
        }

        fn withheld(&self) -> usize {
            self.withheld()
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

        fn has_free(&self, one_in: usize) -> bool {
            self.has_free(one_in)
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
    /// A page that is moved into a window is nowhere else.
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
            // The program may have mapped something else over it: a load by us could be a fault.
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
        self.deny(addr, denial, wanted)
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
        // Nothing here has a lock that the program wants.
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
        // Taking a page home only changes its entry.
        self.unmap_clean(&mut extents);
        if extents.iter().all(Extent::is_home) {
            extents.drain(..).for_each(|extent| self.free(extent));
        }
        extents
    }

    fn wake(&self, _range: Range<usize>) {
        // Nobody waits in the MMU.
    }

    fn add_window(&self, _min_len: usize) -> Result<Range<usize>, Errno> {
        // A space has all its addresses from the beginning.
        Err(Errno::NOMEM)
    }

    fn add_window_at(&self, _window: Range<usize>) -> Result<(), Errno> {
        Err(Errno::EXIST)
    }

    fn remove_window(&self, start: usize) {
        // Fails only for a space that does not exist, or has something mapped: the caller's mistake, and
        // harmless.
        let gone = self.destroy_space((start >> 48) as u16);
        debug_assert_eq!(gone, Ok(()), "a space is removed");
    }

    fn covers(&self, addr: usize, len: usize) -> bool {
        self.covers(addr, len)
    }

    fn deny(&self, _addr: usize, _denial: Denial, wanted: impl Fn() -> bool) -> Result<bool, Errno> {
        // The thread whose access it is waits for an answer, not in the MMU: the denial is the answer, and
        // nothing is recorded.
        Ok(wanted())
    }

    fn allow(&self, _range: Range<usize>) -> Result<(), Errno> {
        Ok(())
    }

    fn punch(&self, _range: Range<usize>) -> Result<bool, Errno> {
        Ok(false)
    }
}
