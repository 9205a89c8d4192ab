//! mprotect. Linux: `do_mprotect_pkey`, `mprotect_fixup`.

use super::*;

/// The bits that mprotect knows. Linux: `arch_validate_prot`; 8 is `PROT_SEM`.
const KNOWN: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC | 8;

impl Model {
    /// mprotect. The checks, in their order:
    ///
    /// 1. EINVAL: the address is not aligned.
    /// 2. Success, if the length is zero, whatever the protection.
    /// 3. ENOMEM: the end is not after the start: the rounded length is zero or wraps.
    /// 4. EINVAL: an unknown bit of the protection (mmap ignores those).
    /// 5. ENOMEM: the first page is not mapped.
    ///
    /// Then VMA by VMA, and those before a failure stay changed:
    ///
    /// 6. ENOMEM at a hole. A VMA's own checks come only when the walk has reached it.
    /// 7. EACCES: write permission for a shared mapping of a file that is not open for writing.
    ///
    /// A locked private mapping that becomes writable is populated for writing (that takes its copy of a
    /// file's bytes), failures ignored.
    pub(super) fn do_protect(&mut self, addr: u64, len: u64, prot: i32) -> Result<(), Errno> {
        if !is_aligned(addr) {
            return Err(Errno::INVAL);
        }
        if len == 0 {
            return Ok(());
        }
        let end = addr.wrapping_add(align(len));
        if end <= addr {
            return Err(Errno::NOMEM);
        }
        if prot & !KNOWN != 0 {
            return Err(Errno::INVAL);
        }
        let prot = prot & (libc::PROT_READ | libc::PROT_WRITE);
        let (mapped, whole) = self.up_to_hole(addr, end);
        for vma in self.vmas(Self::address(mapped.start), Self::address(mapped.end)) {
            let old = self.page(vma.start).attributes;
            if prot & libc::PROT_WRITE != 0 && !old.may_write() {
                return Err(Errno::ACCESS);
            }
            for index in vma.clone() {
                self.page_mut(index).attributes.prot = prot;
            }
            let becomes_writable = prot & !old.prot & libc::PROT_WRITE != 0;
            if becomes_writable && old.lock != Lock::No && !old.writes_through() {
                self.populate_what_can_be(vma);
            }
        }
        if whole { Ok(()) } else { Err(Errno::NOMEM) }
    }
}
