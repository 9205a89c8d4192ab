//! mremap. Linux 6.18: `check_mremap_params`, `remap_move`, `check_prep_vma`, `mremap_to`, `mremap_at`,
//! `move_vma`.

use super::*;

/// One mremap, with its lengths rounded up to pages.
#[derive(Debug, Clone, Copy)]
struct Remap {
    addr: u64,
    old: u64,
    new: u64,
    flags: i32,
    to: u64,
}

impl Remap {
    fn has(&self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    /// Whether the caller names the new address, if only as a hint. Linux: `vrm_implies_new_addr`.
    fn names_address(&self) -> bool {
        self.has(libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP)
    }

    fn overlaps(&self) -> bool {
        self.addr.wrapping_add(self.old) > self.to && self.to.wrapping_add(self.new) > self.addr
    }

    /// All of these are EINVAL: an unknown flag; an address that is not aligned; a new length that is zero,
    /// wraps to zero or is larger than the space. An old length that wraps counts as zero.
    ///
    /// With `MREMAP_FIXED` or `MREMAP_DONTUNMAP` also: a new address that is not aligned or whose end is
    /// beyond the end of addresses; no `MREMAP_MAYMOVE`; `MREMAP_DONTUNMAP` with two lengths; a new range
    /// that overlaps the old one.
    fn check(&self) -> Result<(), Errno> {
        let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let wrong =
            self.flags & !known != 0 || !is_aligned(self.addr) || self.new == 0 || self.new > TASK_SIZE;
        if wrong {
            return Err(Errno::INVAL);
        }
        if !self.names_address() {
            return Ok(());
        }
        let wrong = self.to > TASK_SIZE - self.new
            || !is_aligned(self.to)
            || !self.has(libc::MREMAP_MAYMOVE)
            || (self.has(libc::MREMAP_DONTUNMAP) && self.old != self.new)
            || self.overlaps();
        if wrong { Err(Errno::INVAL) } else { Ok(()) }
    }
}

impl Model {
    /// mremap. After the checks of the arguments ([`Remap::check`]) there are three ways:
    ///
    /// * `MREMAP_FIXED` with equal lengths moves all VMAs of the range ([`Model::move_range`]).
    /// * With another `MREMAP_FIXED`, or `MREMAP_DONTUNMAP`: one VMA to a named address
    ///   ([`Model::remap_to`]).
    /// * Else one VMA in place, or anywhere ([`Model::remap_in_place`]).
    ///
    /// The last two begin with [`Model::check_vma`].
    pub(super) fn do_remap(
        &mut self,
        addr: u64,
        old: u64,
        new: u64,
        flags: i32,
        to: u64,
    ) -> Result<u64, Errno> {
        let remap = Remap { addr, old: align(old), new: align(new), flags, to };
        remap.check()?;
        if remap.has(libc::MREMAP_FIXED) && remap.old == remap.new {
            return self.move_range(remap);
        }
        self.check_vma(remap)?;
        if remap.names_address() { self.remap_to(remap) } else { self.remap_in_place(remap) }
    }

    /// Linux 6.17 and later: the VMAs of the range are moved one by one, with the holes between them; what is
    /// mapped at the destination of a hole stays. EFAULT if the first page is not mapped; holes elsewhere are
    /// no error.
    fn move_range(&mut self, remap: Remap) -> Result<u64, Errno> {
        if self.at(remap.addr).is_none() {
            return Err(Errno::FAULT);
        }
        for vma in self.vmas(remap.addr, remap.addr.saturating_add(remap.old)) {
            let (addr, len) = (Self::address(vma.start), vma.len() as u64 * PAGE);
            let to = remap.to + (addr - remap.addr);
            let part = Remap { addr, old: len, new: len, to, ..remap };
            self.check_vma(part)?;
            self.remap_to(part)?;
        }
        Ok(remap.to)
    }

    /// EFAULT: nothing is mapped at the address. Further, only if the mapping grows or its new address is
    /// named:
    ///
    /// 1. EINVAL: the old length is zero and the mapping is private. (Shared, it is a second mapping of the
    ///    same pages.)
    /// 2. EFAULT: the old range, or what is left of it after shrinking, reaches beyond the end of its VMA.
    ///    This is where it matters which VMAs are merged.
    ///
    /// A mapping that shrinks in place may reach over other VMAs and holes, and one whose length stays is not
    /// looked at beyond its first page. Growth beyond what an offset can say is EINVAL; the tests do not
    /// reach it.
    fn check_vma(&self, remap: Remap) -> Result<(), Errno> {
        let page = self.at(remap.addr).ok_or(Errno::FAULT)?;
        if remap.new <= remap.old && !remap.names_address() {
            return Ok(());
        }
        if remap.old == 0 && !page.attributes.shared {
            return Err(Errno::INVAL);
        }
        if remap.old.min(remap.new) > self.rest_of_vma(remap.addr) {
            return Err(Errno::FAULT);
        }
        Ok(())
    }

    /// Bytes from a mapped address to the end of its VMA.
    fn rest_of_vma(&self, addr: u64) -> u64 {
        let index = Self::index(addr).expect("it is mapped");
        Self::address(self.vma(index).end) - addr
    }

    /// To a named address. `MREMAP_FIXED` unmaps what is there first, then the old mapping's tail if it
    /// shrinks (EINVAL if that reaches beyond the end of addresses, with what was at the destination gone). A
    /// second mapping of shared pages (old length zero) to its own address has unmapped its source by then:
    /// EFAULT, and nothing is mapped there. `MREMAP_DONTUNMAP` alone takes the address as a hint.
    fn remap_to(&mut self, mut remap: Remap) -> Result<u64, Errno> {
        if remap.has(libc::MREMAP_FIXED) {
            self.do_unmap(remap.to, remap.new)?;
            if self.at(remap.addr).is_none() {
                return Err(Errno::FAULT);
            }
        }
        if remap.new < remap.old {
            self.do_unmap(remap.addr + remap.new, remap.old - remap.new)?;
            remap.old = remap.new;
        }
        if !remap.has(libc::MREMAP_FIXED) {
            remap.to = self.place(remap.to, remap.new)?;
        }
        Ok(self.move_vma(remap))
    }

    /// With the same length nothing happens. Shrinking unmaps the rest of the old range, whatever is there.
    /// Growing happens in place if the old range ends where its VMA ends and the pages behind are free; else
    /// it needs `MREMAP_MAYMOVE` (ENOMEM) and moves to any place; the new address is not looked at.
    ///
    /// The pages that a locked mapping gains are populated, failures ignored.
    fn remap_in_place(&mut self, mut remap: Remap) -> Result<u64, Errno> {
        if remap.new == remap.old {
            return Ok(remap.addr);
        }
        if remap.new < remap.old {
            self.do_unmap(remap.addr + remap.new, remap.old - remap.new)?;
            return Ok(remap.addr);
        }
        // If its VMA went on behind the old range, these pages would not be free.
        if self.is_free(remap.addr + remap.old, remap.addr + remap.new) {
            remap.to = remap.addr;
            self.grow(remap);
            return Ok(remap.addr);
        }
        if !remap.has(libc::MREMAP_MAYMOVE) {
            return Err(Errno::NOMEM);
        }
        remap.to = self.place(0, remap.new)?;
        Ok(self.move_vma(remap))
    }

    /// Moves the old range's pages with their copies and makes the new ones; returns the new address. Linux:
    /// `move_vma`.
    ///
    /// With `MREMAP_DONTUNMAP` the old range stays mapped without its private copies, and the whole VMA that
    /// it is in is unlocked, not just the range.
    fn move_vma(&mut self, remap: Remap) -> u64 {
        let first = self.at(remap.addr).expect("it was checked").clone();
        let source = self.within(remap.addr, remap.addr + remap.old);
        let target = self.within(remap.to, remap.to + remap.old);
        let unlocked = self.vma(source.start);
        for (from, to) in source.clone().zip(target) {
            let page = self.pages[from].take();
            if remap.has(libc::MREMAP_DONTUNMAP) {
                self.pages[from] = page.clone().map(|page| Page { copy: None, ..page });
            }
            self.pages[to] = page;
        }
        if remap.has(libc::MREMAP_DONTUNMAP) {
            for index in unlocked {
                self.page_mut(index).attributes.lock = Lock::No;
            }
        }
        self.extend(remap, &first);
        remap.to
    }

    fn grow(&mut self, remap: Remap) {
        let first = self.at(remap.addr).expect("it was checked").clone();
        self.extend(remap, &first);
    }

    /// Maps what the new range has more than the old one.
    fn extend(&mut self, remap: Remap, first: &Page) {
        let added = self.within(remap.to + remap.old, remap.to + remap.new);
        for (number, index) in added.clone().enumerate() {
            let backing = first.backing.after(remap.old / PAGE + number as u64);
            self.pages[index] = Some(Page { attributes: first.attributes, backing, copy: None });
        }
        if first.attributes.lock != Lock::No {
            self.populate_what_can_be(added);
        }
    }
}
