//! mmap and munmap. Linux: `ksys_mmap_pgoff`, `do_mmap`, `__get_unmapped_area`, `do_vmi_munmap`.

use super::*;

/// The flags that `MAP_SHARED_VALIDATE` accepts. Linux: `LEGACY_MAP_MASK`, of what the tests use.
const VALIDATED: i32 = libc::MAP_TYPE
    | libc::MAP_FIXED
    | libc::MAP_ANONYMOUS
    | libc::MAP_LOCKED
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_STACK;

/// The largest size of a file in bytes. Linux: `MAX_LFS_FILESIZE`.
const MAX_FILE_SIZE: u64 = i64::MAX as u64;

impl Model {
    /// mmap. The checks, in their order:
    ///
    /// 1. EINVAL: the offset is not aligned (for anonymous memory too).
    /// 2. EBADF: no file and not `MAP_ANONYMOUS`, so it comes before a length of zero.
    /// 3. EINVAL: the length is zero.
    /// 4. ENOMEM: the length, rounded up to pages, wraps to zero.
    /// 5. The place ([`Model::place`]): ENOMEM, then EINVAL. A hint that is not aligned is rounded down.
    /// 6. EEXIST: `MAP_FIXED_NOREPLACE` and anything is mapped there. `MAP_FIXED` beside it changes nothing.
    /// 7. With a file:
    ///    1. EOVERFLOW: its last page would be beyond the largest offset of any file. Being beyond the file's
    ///       end is no error.
    ///    2. EOPNOTSUPP: `MAP_SHARED_VALIDATE` with a flag that is not among the old ones;
    ///       `MAP_FIXED_NOREPLACE` is not. `MAP_SHARED` and `MAP_PRIVATE` ignore unknown flags.
    ///    3. EACCES: shared and writable, but the file is not open for writing.
    ///    4. EACCES: the file is not open for reading, even for a mapping that is only written or has no
    ///       access.
    ///    5. EINVAL: no type of sharing.
    ///
    ///    Without: EINVAL for any type but `MAP_SHARED` and `MAP_PRIVATE`.
    ///
    /// Unknown bits of the protection are ignored. Only then is what was there unmapped. `MAP_POPULATE` and
    /// `MAP_LOCKED` populate; their failures (no access, beyond the file's end) are ignored.
    pub(super) fn do_map(
        &mut self,
        addr: u64,
        len: u64,
        prot: i32,
        flags: i32,
        file: Descriptor,
        offset: u64,
    ) -> Result<u64, Errno> {
        if !is_aligned(offset) {
            return Err(Errno::INVAL);
        }
        let anonymous = flags & libc::MAP_ANONYMOUS != 0;
        if !anonymous && file == Descriptor::None {
            return Err(Errno::BADF);
        }
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let len = align(len);
        if len == 0 {
            return Err(Errno::NOMEM);
        }
        let no_replace = flags & libc::MAP_FIXED_NOREPLACE != 0;
        let addr = if no_replace || flags & libc::MAP_FIXED != 0 {
            Self::fixed_place(addr, len)?
        } else {
            self.place(addr & !(PAGE - 1), len)?
        };
        if no_replace && !self.is_free(addr, addr + len) {
            return Err(Errno::EXIST);
        }
        let kind = flags & libc::MAP_TYPE;
        let shared = if anonymous {
            match kind {
                libc::MAP_SHARED => true,
                libc::MAP_PRIVATE => false,
                _ => return Err(Errno::INVAL),
            }
        } else {
            Self::check_file(len, prot, flags, file, offset)?
        };
        let attributes = Attributes {
            prot: prot & (libc::PROT_READ | libc::PROT_WRITE),
            shared,
            file: if anonymous { Descriptor::None } else { file },
            lock: if flags & libc::MAP_LOCKED != 0 { Lock::Yes } else { Lock::No },
            reading: libc::MADV_NORMAL,
            not_on_fork: false,
            wipe_on_fork: false,
            no_reserve: flags & libc::MAP_NORESERVE != 0,
        };
        let backing = match (anonymous, shared) {
            (false, _) => Backing::File { offset: offset / PAGE },
            (true, false) => Backing::Anonymous,
            (true, true) => {
                self.objects.push(vec![None; (len / PAGE) as usize]);
                Backing::SharedAnonymous { object: self.objects.len() as u64 - 1, offset: 0 }
            }
        };
        let range = self.within(addr, addr + len);
        for (number, index) in range.clone().enumerate() {
            let backing = backing.after(number as u64);
            self.pages[index] = Some(Page { attributes, backing, copy: None });
        }
        if flags & (libc::MAP_POPULATE | libc::MAP_LOCKED) != 0 {
            self.populate_what_can_be(range);
        }
        Ok(addr)
    }

    /// The checks for a mapping of a file, and whether it is shared.
    fn check_file(len: u64, prot: i32, flags: i32, file: Descriptor, offset: u64) -> Result<bool, Errno> {
        if len > MAX_FILE_SIZE || offset > MAX_FILE_SIZE - len {
            return Err(Errno::OVERFLOW);
        }
        let kind = flags & libc::MAP_TYPE;
        if kind == libc::MAP_SHARED_VALIDATE && flags & !VALIDATED != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let shared = match kind {
            libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE => true,
            libc::MAP_PRIVATE => false,
            _ => return Err(Errno::INVAL),
        };
        if shared && prot & libc::PROT_WRITE != 0 && file == Descriptor::ReadOnly {
            return Err(Errno::ACCESS);
        }
        if file == Descriptor::WriteOnly {
            return Err(Errno::ACCESS);
        }
        Ok(shared)
    }

    /// A place that the caller insists on: ENOMEM if it does not fit below the end of addresses, then EINVAL
    /// if it is not aligned.
    pub(super) fn fixed_place(addr: u64, len: u64) -> Result<u64, Errno> {
        if len > TASK_SIZE || addr > TASK_SIZE - len {
            return Err(Errno::NOMEM);
        }
        if !is_aligned(addr) {
            return Err(Errno::INVAL);
        }
        Ok(addr)
    }

    /// A free place: at the hint if that is free as a whole and fits below the end of addresses, else
    /// anywhere. A hint is never an error. ENOMEM if there is no such place.
    pub(super) fn place(&self, hint: u64, len: u64) -> Result<u64, Errno> {
        if len > TASK_SIZE {
            return Err(Errno::NOMEM);
        }
        let fits = Self::fixed_place(hint, len).is_ok();
        if hint != 0 && fits && self.is_free(hint, hint + len) {
            return Ok(hint);
        }
        let anywhere = (2 * self.range as usize..self.pages.len()).map(Self::address);
        let last = Self::address(self.pages.len());
        let free = |addr: &u64| addr.saturating_add(len) <= last && self.is_free(*addr, addr + len);
        anywhere.into_iter().find(free).ok_or(Errno::NOMEM)
    }

    /// munmap. EINVAL if the address is not aligned, the range reaches beyond the end of addresses, or the
    /// length is zero; a length that wraps when rounded reaches beyond. Holes are no error, and neither is a
    /// range where nothing is mapped.
    pub(super) fn do_unmap(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        if !is_aligned(addr) || addr > TASK_SIZE || len > TASK_SIZE - addr || align(len) == 0 {
            return Err(Errno::INVAL);
        }
        for index in self.within(addr, addr + align(len)) {
            self.pages[index] = None;
        }
        Ok(())
    }
}
