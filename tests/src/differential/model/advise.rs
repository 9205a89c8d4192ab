//! madvise. Linux: `do_madvise`, `madvise_walk_vmas`, `madvise_vma_behavior`.

use super::access::Access;
use super::*;

/// The advice that the model knows. The kernel knows more; the tests use no other valid one.
const KNOWN: [i32; 16] = [
    libc::MADV_NORMAL,
    libc::MADV_RANDOM,
    libc::MADV_SEQUENTIAL,
    libc::MADV_WILLNEED,
    libc::MADV_DONTNEED,
    libc::MADV_DONTNEED_LOCKED,
    libc::MADV_FREE,
    libc::MADV_COLD,
    libc::MADV_PAGEOUT,
    libc::MADV_REMOVE,
    libc::MADV_POPULATE_READ,
    libc::MADV_POPULATE_WRITE,
    libc::MADV_DONTFORK,
    libc::MADV_DOFORK,
    libc::MADV_WIPEONFORK,
    libc::MADV_KEEPONFORK,
];

impl Model {
    /// madvise. The checks, in their order:
    ///
    /// 1. EINVAL: unknown advice; the address is not aligned; the length, rounded up, wraps to zero; the end
    ///    wraps.
    /// 2. Success, if the length is zero.
    ///
    /// Then VMA by VMA. A hole is passed over, and makes the result ENOMEM at the end if nothing else failed.
    /// An error of a VMA ([`Model::advise_vma`]) ends the walk at once; what was done before stays.
    /// Populating has rules of its own ([`Model::populate_range`]).
    pub(super) fn do_advise(&mut self, addr: u64, len: u64, advice: i32) -> Result<(), Errno> {
        if !KNOWN.contains(&advice) || !is_aligned(addr) {
            return Err(Errno::INVAL);
        }
        let rounded = align(len);
        let end = addr.wrapping_add(rounded);
        if (len != 0 && rounded == 0) || end < addr {
            return Err(Errno::INVAL);
        }
        match advice {
            libc::MADV_POPULATE_READ => return self.populate_range(addr, end, Access::Load),
            libc::MADV_POPULATE_WRITE => return self.populate_range(addr, end, Access::Store),
            _ => {}
        }
        for vma in self.vmas(addr, end) {
            self.advise_vma(vma, advice)?;
        }
        if self.is_covered(addr, end) { Ok(()) } else { Err(Errno::NOMEM) }
    }

    /// One VMA's part.
    ///
    /// * NORMAL, RANDOM, SEQUENTIAL, WILLNEED, DONTFORK, DOFORK, KEEPONFORK: always succeed. (WILLNEED of
    ///   anonymous memory is EBADF on a kernel without swap support.)
    /// * DONTNEED: EINVAL if locked (DONTNEED_LOCKED: not). Private copies are dropped, whatever the
    ///   protection; shared pages keep their bytes.
    /// * FREE: EINVAL if locked, and if not private anonymous memory. The bytes stay or become zeros at any
    ///   time until they are written to; here they stay.
    /// * COLD, PAGEOUT: EINVAL if locked; else no effect that a program sees.
    /// * REMOVE: EINVAL if locked, then EINVAL for private anonymous memory, then EACCES if it is not a
    ///   shared mapping of a file that is open for writing; the protection does not matter. The object's
    ///   pages become zeros; nothing happens beyond its end. Private copies elsewhere stay.
    /// * WIPEONFORK: EINVAL if not private anonymous memory.
    fn advise_vma(&mut self, vma: Range<usize>, advice: i32) -> Result<(), Errno> {
        let first = self.page(vma.start);
        let attributes = first.attributes;
        let locked = attributes.lock != Lock::No;
        let anonymous = first.is_anonymous();
        let refused = match advice {
            libc::MADV_DONTNEED | libc::MADV_COLD | libc::MADV_PAGEOUT => locked,
            libc::MADV_FREE => locked || !anonymous,
            libc::MADV_REMOVE => locked || anonymous,
            libc::MADV_WIPEONFORK => !anonymous,
            _ => false,
        };
        if refused {
            return Err(Errno::INVAL);
        }
        if advice == libc::MADV_REMOVE && !attributes.writes_through() {
            return Err(Errno::ACCESS);
        }
        for index in vma {
            self.advise_page(index, advice);
        }
        Ok(())
    }

    fn advise_page(&mut self, index: usize, advice: i32) {
        let page = self.page_mut(index);
        match advice {
            libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED => page.copy = None,
            libc::MADV_REMOVE => {
                let backing = page.backing;
                self.punch(backing);
            }
            libc::MADV_NORMAL | libc::MADV_RANDOM | libc::MADV_SEQUENTIAL => page.attributes.reading = advice,
            libc::MADV_DONTFORK => page.attributes.not_on_fork = true,
            libc::MADV_DOFORK => page.attributes.not_on_fork = false,
            libc::MADV_WIPEONFORK => page.attributes.wipe_on_fork = true,
            libc::MADV_KEEPONFORK => page.attributes.wipe_on_fork = false,
            _ => {}
        }
    }

    /// `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE`: page by page, and those before a failure stay
    /// populated. ENOMEM at a hole; EINVAL where the protection lacks `PROT_READ` or `PROT_WRITE` (also where
    /// a load would work because the page can be written); EFAULT beyond the end of the object. Populating a
    /// private mapping for writing takes its copies of a file's bytes.
    fn populate_range(&mut self, start: u64, end: u64, access: Access) -> Result<(), Errno> {
        let needed = if access == Access::Load { libc::PROT_READ } else { libc::PROT_WRITE };
        let (mapped, whole) = self.up_to_hole(start, end);
        for index in mapped {
            if self.page(index).attributes.prot & needed == 0 {
                return Err(Errno::INVAL);
            }
            self.fault(index, access).map_err(|_| Errno::FAULT)?;
        }
        if whole { Ok(()) } else { Err(Errno::NOMEM) }
    }
}
