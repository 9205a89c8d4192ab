//! The kernel's layout of the windows: one large mapping each, except where a wrong access must fail as the kernel's own would.
//!
//! A denial changes the kernel's layout of one page, so that the access that waits for it fails with the kernel's signal
//! (address and code right), or with EFAULT in a system call. It is undone when the page is used again.
//!
//! Synchronization: the record of denials is under the `window` lock; its size is also in an atomic, so that the common case (none) takes no lock.

use crate::arena::reserve;
use crate::uffd::{Protection, Uffd};
use crate::{PAGE_SIZE, WindowTable};
use elbowroom_sync::atomic::{AtomicUsize, Ordering, fence};
use elbowroom_sync::{LockClass, LockStats, Mutex};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};
use std::collections::BTreeMap;
use std::ops::Range;

/// How an access to a page must fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    /// SIGSEGV with SEGV_MAPERR: nothing is mapped there.
    NotMapped,
    /// SIGSEGV with SEGV_ACCERR: no access at all.
    NoAccess,
    /// SIGSEGV with SEGV_ACCERR on a store; loads work.
    NoWrite,
    /// SIGBUS with BUS_ADRERR: beyond the end of the file, or its bytes cannot be read.
    Bus,
    /// The same for a load; SIGSEGV with SEGV_ACCERR on a store.
    BusReadOnly,
}

pub(crate) struct Layout {
    pub(crate) windows: WindowTable,
    denials: Mutex<BTreeMap<usize, Denial>>,
    denied: AtomicUsize,
    /// A file of no bytes: a page of a mapping of it is beyond its end.
    empty: OwnedFd,
}

impl Layout {
    pub(crate) fn new(locks: &LockStats) -> Result<Self, Errno> {
        Ok(Self {
            windows: WindowTable::default(),
            denials: locks.mutex(LockClass::Window, BTreeMap::new()),
            denied: AtomicUsize::new(0),
            empty: rustix::fs::memfd_create("elbowroom-empty", rustix::fs::MemfdFlags::CLOEXEC)?,
        })
    }

    /// Reserves and registers a window of at least `min_len` bytes: a terabyte, or less where the system allows no more.
    pub(crate) fn add_window(&self, uffd: &Uffd, min_len: usize) -> Result<Range<usize>, Errno> {
        const SIZES: [usize; 3] = [1 << 40, 64 << 30, 4 << 30];
        let min_len = min_len.next_multiple_of(2 << 20) + (2 << 20);
        let sizes = SIZES.into_iter().filter(|&s| s > min_len).chain([min_len]);
        let mut last = Errno::NOMEM;
        for len in sizes {
            match reserve(len) {
                Ok(start) => {
                    uffd.register(start..start + len, Protection::WriteProtected)?;
                    let _denials = self.denials.lock();
                    self.windows.add_window(start..start + len)?;
                    return Ok(start..start + len);
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// Makes the next access to the page that `addr` is in fail, if it is still `wanted` after the denial can be seen; tells whether it was.
    /// The caller wakes whoever waits there.
    ///
    /// A thread that finds the page accessible after all looks for denials before it maps it ([`Layout::allow_after_all`]): with both sides
    /// sequentially consistent, either this call sees what that thread knows, or that thread sees the denial.
    pub(crate) fn deny(&self, addr: usize, denial: Denial, wanted: impl Fn() -> bool) -> Result<bool, Errno> {
        let page = addr & !(PAGE_SIZE - 1);
        let mut denials = self.denials.lock();
        self.denied.store(denials.len() + 1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let result = if wanted() { self.install(page, denial).map(|()| true) } else { Ok(false) };
        if result == Ok(true) {
            denials.insert(page, denial);
        }
        self.denied.store(denials.len(), Ordering::SeqCst);
        result
    }

    fn install(&self, page: usize, denial: Denial) -> Result<(), Errno> {
        let prot = match denial {
            Denial::NotMapped | Denial::NoAccess => {
                // SAFETY: the page is inside a window, which this crate mapped; fewer rights cannot break our own code, which
                // never touches windows without calling `allow` first.
                return unsafe { mm::mprotect(page as *mut _, PAGE_SIZE, MprotectFlags::empty()) };
            }
            Denial::NoWrite => {
                // SAFETY: as above.
                return unsafe { mm::mprotect(page as *mut _, PAGE_SIZE, MprotectFlags::READ) };
            }
            Denial::Bus => ProtFlags::READ | ProtFlags::WRITE,
            Denial::BusReadOnly => ProtFlags::READ,
        };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the page is inside a window and nothing of ours is there (the caller unmapped it).
        unsafe { mm::mmap(page as *mut _, PAGE_SIZE, prot, flags, &self.empty, 0).map(|_| ()) }
    }

    /// Undoes the denials in the range, for a thread that has found it accessible: of two that disagree, this one is later.
    pub(crate) fn allow_after_all(&self, uffd: &Uffd, range: Range<usize>) -> Result<(), Errno> {
        fence(Ordering::SeqCst);
        self.allow(uffd, range)
    }

    /// Undoes the denials in the range that happened before, as locks or fences of the caller say.
    pub(crate) fn allow(&self, uffd: &Uffd, range: Range<usize>) -> Result<(), Errno> {
        if self.denied.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let mut denials = self.denials.lock();
        let pages: Vec<_> = denials.range(range).map(|(&page, &denial)| (page, denial)).collect();
        for (page, denial) in pages {
            if matches!(denial, Denial::Bus | Denial::BusReadOnly) {
                restore_page(uffd, page)?;
            }
            // SAFETY: the page is our own window's again.
            unsafe { mm::mprotect(page as *mut _, PAGE_SIZE, MprotectFlags::READ | MprotectFlags::WRITE)? };
            denials.remove(&page);
        }
        self.denied.store(denials.len(), Ordering::Release);
        Ok(())
    }

    /// Gives the range to the kernel as it is, for somebody to map over it.
    pub(crate) fn give_away(&self, range: Range<usize>) -> Result<(), Errno> {
        let mut denials = self.denials.lock();
        self.give_away_held(range, &mut denials)
    }

    /// The lock also serializes the writers of the window table.
    fn give_away_held(
        &self,
        range: Range<usize>,
        denials: &mut BTreeMap<usize, Denial>,
    ) -> Result<(), Errno> {
        self.windows.give_away(range.clone())?;
        denials.retain(|page, _| !range.contains(page));
        self.denied.store(denials.len(), Ordering::SeqCst);
        Ok(())
    }

    /// Gives the range to the kernel, with nothing mapped there.
    pub(crate) fn punch(&self, range: Range<usize>) -> Result<(), Errno> {
        self.give_away(range.clone())?;
        // SAFETY: the range is inside a window, and the caller has taken every page of ours out of it.
        unsafe { mm::munmap(range.start as *mut _, range.len()) }
    }

    /// Gives the range to the kernel as its own mapping of a file; if that fails, it stays as it is.
    pub(crate) fn map_file(
        &self,
        range: Range<usize>,
        file: BorrowedFd<'_>,
        offset: u64,
        prot: u32,
        private: bool,
    ) -> Result<(), Errno> {
        let sharing = if private { MapFlags::PRIVATE } else { MapFlags::SHARED };
        let prot = ProtFlags::from_bits_retain(prot);
        let mut denials = self.denials.lock();
        // What is given away cannot be taken back, so it is mapped first; and no more than can be given.
        if self.windows.room() == 0 {
            return Err(Errno::NOMEM);
        }
        // SAFETY: the range is inside a window, and the caller has taken every page of ours out of it.
        unsafe {
            mm::mmap(range.start as *mut _, range.len(), prot, sharing | MapFlags::FIXED, file, offset)?;
        }
        self.give_away_held(range, &mut denials)
    }
}

/// Makes a page that was mapped over part of its window again: registered, and without rights until that is done, so that
/// nobody can read zeros there meanwhile.
fn restore_page(uffd: &Uffd, page: usize) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the page holds our mapping of the empty file.
    unsafe { mm::mmap_anonymous(page as *mut _, PAGE_SIZE, ProtFlags::empty(), flags)? };
    for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump, Advice::LinuxNoHugepage] {
        // SAFETY: the advice concerns only this page.
        let _ = unsafe { mm::madvise(page as *mut _, PAGE_SIZE, advice) };
    }
    uffd.register(page..page + PAGE_SIZE, Protection::WriteProtected)
}
