//! msync, mincore, mlock and munlock. Linux: mm/msync.c, mm/mincore.c, mm/mlock.c.

use super::*;

impl Model {
    /// msync. The checks, in their order:
    ///
    /// 1. EINVAL: an unknown flag; the address is not aligned; both `MS_ASYNC` and `MS_SYNC`. No flag at all
    ///    is allowed.
    /// 2. ENOMEM: the end, with the length rounded up, wraps.
    /// 3. Success, if the rounded length is zero, which a length that wraps when rounded is too.
    ///
    /// Then VMA by VMA:
    ///
    /// 4. A hole: ENOMEM at once if the flags are exactly `MS_ASYNC`, else at the end.
    /// 5. EBUSY: `MS_INVALIDATE` and the VMA is locked. It wins over a hole before it.
    pub(super) fn do_sync(&mut self, addr: u64, len: u64, flags: i32) -> Result<(), Errno> {
        let both = libc::MS_ASYNC | libc::MS_SYNC;
        if flags & !(both | libc::MS_INVALIDATE) != 0 || !is_aligned(addr) || flags & both == both {
            return Err(Errno::INVAL);
        }
        let end = addr.wrapping_add(align(len));
        if end < addr {
            return Err(Errno::NOMEM);
        }
        let mut at = addr;
        for vma in self.vmas(addr, end) {
            if flags == libc::MS_ASYNC && Self::address(vma.start) != at {
                return Err(Errno::NOMEM);
            }
            if flags & libc::MS_INVALIDATE != 0 && self.page(vma.start).attributes.lock != Lock::No {
                return Err(Errno::BUSY);
            }
            at = Self::address(vma.end);
        }
        if self.is_covered(addr, end) { Ok(()) } else { Err(Errno::NOMEM) }
    }

    /// mincore. EINVAL if the address is not aligned; ENOMEM if the range reaches beyond the end of addresses
    /// or has a hole. A length of zero is a success wherever it is below that end.
    pub(super) fn do_resident(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        if !is_aligned(addr) {
            return Err(Errno::INVAL);
        }
        let inside = addr.checked_add(len).is_some_and(|end| end <= TASK_SIZE);
        if inside && self.is_covered(addr, addr + align(len)) { Ok(()) } else { Err(Errno::NOMEM) }
    }

    /// mlock2. EINVAL for a flag other than `MLOCK_ONFAULT`. The address is rounded down to a page and the
    /// end up, so none is unaligned; EINVAL if the end wraps, success if nothing is left (a length that wraps
    /// when rounded).
    ///
    /// VMA by VMA, and those before a hole stay locked: ENOMEM at a hole. Only if there was none is the range
    /// populated (not where it is locked on fault): ENOMEM if a page cannot be (no access, beyond the end of
    /// the file), with all of it locked nevertheless and the pages before that one populated.
    pub(super) fn do_lock(&mut self, addr: u64, len: u64, flags: i32) -> Result<(), Errno> {
        if flags & !1 != 0 {
            return Err(Errno::INVAL);
        }
        let lock = if flags == 1 { Lock::OnFault } else { Lock::Yes };
        let range = self.set_lock(addr, len, lock)?;
        self.populate(range).map_err(|_| Errno::NOMEM)
    }

    /// munlock. As mlock: the pages before a hole stay unlocked. That they are not locked is no error.
    pub(super) fn do_unlock(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        self.set_lock(addr, len, Lock::No).map(|_| ())
    }

    /// Linux: `apply_vma_lock_flags`.
    fn set_lock(&mut self, addr: u64, len: u64, lock: Lock) -> Result<Range<usize>, Errno> {
        let start = addr & !(PAGE - 1);
        let len = align(len.wrapping_add(addr % PAGE));
        let end = start.wrapping_add(len);
        if end < start {
            return Err(Errno::INVAL);
        }
        let (mapped, whole) = self.up_to_hole(start, end);
        for index in mapped.clone() {
            self.page_mut(index).attributes.lock = lock;
        }
        if whole { Ok(mapped) } else { Err(Errno::NOMEM) }
    }
}
