//! The kernel's layout of the windows: one large mapping each, except where a wrong access must fail as the
//! kernel's own would.
//!
//! A denial changes the kernel's layout of one page, so that the access that waits for it fails with the
//! kernel's signal (address and code right), or with EFAULT in a system call. It is undone when the page is
//! used again.
//!
//! A passage makes pages part of a window again. Meanwhile they have no rights: the kernel can only
//! register memory that is mapped already, and before that an access would read zeros. An access in that
//! moment raises SIGSEGV where it should wait or raise SIGBUS. [`Layout::passages`] tells such a signal
//! from others, so that the access can be repeated.
//!
//! Synchronization: the record of denials is under the `window` lock; its size is also in an atomic, so that
//! the common case (none) takes no lock. The count of passages changes under the same lock, and is read
//! without.

use crate::arena::{reserve, reserve_at};
use crate::aside::aside;
use crate::limits::{WINDOW_GRAIN, room_by_limits, window_sizes};
use crate::poke::poke;
use crate::uffd::{Protection, Uffd, put_in_place};
use crate::{PAGE_SIZE, Side, WindowTable};
use elbowroom_sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use elbowroom_sync::{LockClass, LockStats, Mutex};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
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
    /// SIGBUS with BUS_ADRERR on a load; SIGSEGV with SEGV_ACCERR on a store.
    BusReadOnly,
}

/// How the layout makes accesses to a denied page fail, or what it shows instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Denied {
    /// Fewer rights than the window has.
    Rights,
    /// A mapping of the empty file.
    Replaced,
    /// A page of zeros, which is a part of the window: [`Layout::show_zeros`].
    Zeros,
}

impl From<Denial> for Denied {
    fn from(denial: Denial) -> Self {
        match denial {
            Denial::NotMapped | Denial::NoAccess | Denial::NoWrite => Self::Rights,
            Denial::Bus | Denial::BusReadOnly => Self::Replaced,
        }
    }
}

/// What happened to the mapping in a range that could not be made a part of its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replaced {
    /// The mapping is unchanged.
    No,
    /// The mapping is gone, and nothing is mapped there.
    Unmapped,
}

/// Why a range could not be made a part of its window again. The range still belongs to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a range cannot be made part of a window again: {errno}")]
pub struct RearmError {
    /// The kernel's error.
    pub errno: Errno,
    /// What happened to the mapping in the range.
    pub replaced: Replaced,
}

/// Writes bytes into the range that is being filled, at an offset in bytes from its start.
pub type PutBytes<'a> = &'a dyn Fn(usize, &[u8]) -> Result<(), Errno>;

/// The most denials at a time. Each may cost a VMA, of which a process can have 65,530.
const MOST_DENIALS: usize = 8192;

/// The most pages that one call of `show_zeros` has show zeros.
const MOST_ZEROS: usize = 64;

pub(crate) struct Layout {
    pub(crate) windows: WindowTable,
    denials: Mutex<BTreeMap<usize, Denied>>,
    denied: AtomicUsize,
    passages: AtomicU64,
    /// An empty file: each page of a mapping of it is beyond its end, so an access raises SIGBUS.
    empty: OwnedFd,
}

impl Layout {
    pub(crate) fn new(locks: &LockStats) -> Result<Self, Errno> {
        Ok(Self {
            windows: WindowTable::default(),
            denials: locks.mutex(LockClass::Window, BTreeMap::new()),
            denied: AtomicUsize::new(0),
            passages: AtomicU64::new(0),
            empty: empty_file()?,
        })
    }

    /// Sets whether a forked child inherits the windows: `how` is MADV_DOFORK or MADV_DONTFORK.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn inherit(&self, how: Advice) -> Result<(), Errno> {
        let _denials = self.denials.lock();
        self.each_part(|range| {
            // SAFETY: the range is a window's; the advice does not change what is in it.
            unsafe { mm::madvise(range.start as *mut _, range.len(), how) }
        })
    }

    /// In the child of a fork that has inherited the windows: registers them with the child's userfaultfd.
    ///
    /// # Errors
    /// The kernel's. Windows that are not registered must not be touched.
    pub(crate) fn renew(&self, uffd: &Uffd) -> Result<(), Errno> {
        let _denials = self.denials.lock();
        // Another thread of the parent may have been in a passage at the fork.
        self.passages.fetch_and(!1, Ordering::SeqCst);
        put_in_place(empty_file()?, self.empty.as_fd())?;
        self.each_part(|range| uffd.register(range, Protection::WriteProtected))
    }

    /// Calls `f` for each part of a window that is ours (not given to the kernel).
    fn each_part(&self, mut f: impl FnMut(Range<usize>) -> Result<(), Errno>) -> Result<(), Errno> {
        for window in self.windows.windows() {
            let parts = self.windows.parts(window).filter(|(side, _)| *side == Side::Managed);
            parts.map(|(_, range)| range).try_for_each(&mut f)?;
        }
        Ok(())
    }

    /// Reserves and registers a window of at least `min_len` bytes: a terabyte, or less where the system
    /// allows no more. Where the process has a limit (RLIMIT_AS, RLIMIT_DATA), the program keeps most of what
    /// is left of it: [`window_sizes`].
    pub(crate) fn add_window(&self, uffd: &Uffd, min_len: usize) -> Result<Range<usize>, Errno> {
        let min_len = min_len.next_multiple_of(WINDOW_GRAIN) + WINDOW_GRAIN;
        let mut last = Errno::NOMEM;
        for len in window_sizes(min_len, room_by_limits()) {
            match self.reserve_apart(len + table_room(len)) {
                Ok(start) => {
                    let window = start..start + len;
                    return self.enter_window(uffd, window.clone(), window.end).map(|()| window);
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// Reserves addresses outside all windows. The kernel may choose a hole that was punched in a window;
    /// such a choice is not used.
    fn reserve_apart(&self, len: usize) -> Result<usize, Errno> {
        let mut in_holes = Vec::new();
        let found = loop {
            match reserve(len) {
                Ok(start) if self.windows.windows().any(|w| w.start < start + len && start < w.end) => {
                    // Stays reserved until another place is found, so that the kernel does not choose it
                    // again.
                    in_holes.push(start);
                }
                found => break found,
            }
        };
        for start in in_holes {
            // SAFETY: reserved above, and nobody knows of it.
            let _ = unsafe { mm::munmap(start as *mut _, len) };
        }
        found
    }

    /// Reserves and registers a window at exactly these addresses, where nothing may be mapped.
    ///
    /// # Errors
    /// EINVAL: it is no range of whole blocks of 2 MiB. EEXIST: something is there. ENOMEM: there are too
    /// many windows, of which half are for [`Layout::add_window`], or a limit of the process leaves less
    /// than twice the window's size.
    pub(crate) fn add_window_at(&self, uffd: &Uffd, window: Range<usize>) -> Result<(), Errno> {
        if window.is_empty() || !(window.start | window.end).is_multiple_of(WINDOW_GRAIN) {
            return Err(Errno::INVAL);
        }
        if self.windows.windows().any(|other| other.start < window.end && window.start < other.end) {
            return Err(Errno::EXIST);
        }
        let enough = room_by_limits().is_none_or(|room| window.len() <= room / 2);
        if !enough || !self.windows.is_half_free() {
            return Err(Errno::NOMEM);
        }
        reserve_at(window.start, window.len())?;
        match reserve(table_room(window.len())) {
            Ok(table) => self.enter_window(uffd, window, table),
            Err(e) => {
                // SAFETY: it was reserved above, and nobody knows of it.
                let _ = unsafe { mm::munmap(window.start as *mut _, window.len()) };
                Err(e)
            }
        }
    }

    /// Enters a window into the table of windows. `table` is memory reserved for the window's marks, after
    /// a guard page. If that fails, unmaps both reservations.
    fn enter_window(&self, uffd: &Uffd, window: Range<usize>, table: usize) -> Result<(), Errno> {
        let result = self.try_to_enter(uffd, window.clone(), table);
        if result.is_err() {
            for (start, len) in [(window.start, window.len()), (table, table_room(window.len()))] {
                // SAFETY: it was reserved for this, and nobody knows of it.
                let _ = unsafe { mm::munmap(start as *mut _, len) };
            }
        }
        result
    }

    fn try_to_enter(&self, uffd: &Uffd, window: Range<usize>, guard: usize) -> Result<(), Errno> {
        let table = (guard + PAGE_SIZE) as *mut std::ffi::c_void;
        let table_len = table_room(window.len()) - PAGE_SIZE;
        // SAFETY: the page before the table, which nobody uses: a guard.
        unsafe { mm::mprotect(guard as *mut _, PAGE_SIZE, MprotectFlags::empty())? };
        // A forked child reads the table, too: it asks which addresses are windows.
        // SAFETY: the advice concerns only the room for the table.
        unsafe { mm::madvise(table, table_len, Advice::LinuxDoFork)? };
        let _denials = self.denials.lock();
        if !self.windows.has_room() {
            return Err(Errno::NOMEM);
        }
        uffd.register(window.clone(), Protection::WriteProtected)?;
        // SAFETY: fresh anonymous memory, as long as the table needs, which nobody else knows of, and which
        // is unmapped only if this fails.
        unsafe { self.windows.add_window(window, table.cast()) }
    }

    /// Makes the next access to the page that `addr` is in fail, unless `wanted`, asked after the denial
    /// was published, says no. Returns its answer. The caller wakes the threads that wait for the page.
    ///
    /// A thread that finds the page accessible after all looks for denials before it maps it
    /// ([`Layout::allow_after_all`]): with both sides sequentially consistent, either this call sees what
    /// that thread knows, or that thread sees the denial.
    pub(crate) fn deny(
        &self,
        uffd: &Uffd,
        addr: usize,
        denial: Denial,
        wanted: impl Fn() -> bool,
    ) -> Result<bool, Errno> {
        let page = addr & !(PAGE_SIZE - 1);
        let mut denials = self.denials.lock();
        if denials.len() >= MOST_DENIALS {
            // Threads whose accesses have not failed yet fault again, and get another denial. Denials that
            // the kernel refuses to undo stay.
            let _ = self.undo(uffd, 0..usize::MAX, &mut denials);
        }
        self.denied.store(denials.len() + 1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let result = if wanted() { self.install(page, denial).map(|()| true) } else { Ok(false) };
        if result == Ok(true) {
            denials.insert(page, denial.into());
        }
        self.denied.store(denials.len(), Ordering::SeqCst);
        result
    }

    fn install(&self, page: usize, denial: Denial) -> Result<(), Errno> {
        let prot = match denial {
            Denial::NotMapped | Denial::NoAccess => {
                // SAFETY: the page is inside a window, which this crate mapped; fewer rights cannot break our
                // own code, which never touches windows without calling `allow` first.
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
        // The file is empty, so any offset is beyond its end. With consecutive offsets the kernel merges
        // neighbours into one VMA, of which a process can have only so many.
        let offset = page as u64;
        // SAFETY: the page is inside a window and nothing of ours is there (the caller unmapped it).
        unsafe { mm::mmap(page as *mut _, PAGE_SIZE, prot, flags, &self.empty, offset).map(|_| ()) }
    }

    /// Shows zeros at the page that `addr` is in, if accesses to it raise SIGBUS now, and at those after it
    /// of which that is true, too. Returns how many these are. They are a part of their window meanwhile, so
    /// [`Layout::allow`] ends that at once: the next access waits for a handler, and no access finds the page
    /// without rights.
    ///
    /// # Errors
    /// The kernel's: the access raises SIGBUS as before.
    pub(crate) fn show_zeros(&self, uffd: &Uffd, addr: usize) -> Result<usize, Errno> {
        let start = addr & !(PAGE_SIZE - 1);
        let mut denials = self.denials.lock();
        let replaced = denials.range(start..).take_while(|(_, denied)| **denied == Denied::Replaced);
        let run = replaced.zip((start..).step_by(PAGE_SIZE)).take_while(|((page, _), next)| **page == *next);
        let run = start..start + run.take(MOST_ZEROS).count() * PAGE_SIZE;
        if run.is_empty() {
            return Ok(0);
        }
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the pages hold our mapping of the empty file. After this they can be read, and nobody else
        // changes the layout while the lock is held.
        unsafe {
            mm::mmap_anonymous(run.start as *mut _, run.len(), rights, flags)?;
            // Now a page of zeros is there, and stays when it is registered.
            for page in run.clone().step_by(PAGE_SIZE) {
                (page as *const u8).read_volatile();
            }
        }
        if let Err(errno) = take_part(uffd, &run) {
            for page in run.step_by(PAGE_SIZE) {
                self.install(page, Denial::Bus)?;
            }
            return Err(errno);
        }
        denials.extend(run.clone().step_by(PAGE_SIZE).map(|page| (page, Denied::Zeros)));
        Ok(run.len() / PAGE_SIZE)
    }

    /// Sequence number of passages: odd while one is under way. If it is even and the same as at an earlier
    /// call, there was no passage in between. Takes no lock.
    pub(crate) fn passages(&self) -> u64 {
        self.passages.load(Ordering::SeqCst)
    }

    /// Whether a page in the range is denied.
    pub(crate) fn denies(&self, range: Range<usize>) -> bool {
        self.denied.load(Ordering::SeqCst) != 0 && self.denials.lock().range(range).next().is_some()
    }

    /// Undoes the denials in the range, for a thread that has found it accessible: if another thread
    /// decided to deny an access meanwhile, this thread's decision is the later one.
    pub(crate) fn allow_after_all(&self, uffd: &Uffd, range: Range<usize>) -> Result<(), Errno> {
        fence(Ordering::SeqCst);
        self.allow(uffd, range)
    }

    /// Undoes the denials in the range that happened before this call. The caller's locks or fences give
    /// the order.
    pub(crate) fn allow(&self, uffd: &Uffd, range: Range<usize>) -> Result<(), Errno> {
        if self.denied.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let mut denials = self.denials.lock();
        self.undo(uffd, range, &mut denials)?;
        self.denied.store(denials.len(), Ordering::Release);
        Ok(())
    }

    fn undo(
        &self,
        uffd: &Uffd,
        range: Range<usize>,
        denials: &mut BTreeMap<usize, Denied>,
    ) -> Result<(), Errno> {
        for (run, denied) in runs(denials.range(range)) {
            match denied {
                Denied::Replaced => {
                    let _passage = Passage::begin(&self.passages);
                    restore(uffd, &run)?;
                }
                // SAFETY: the pages are our own window's.
                Denied::Rights => unsafe { mm::mprotect(run.start as *mut _, run.len(), ALL_RIGHTS)? },
                // Registered already: the next access waits for a handler.
                // SAFETY: the pages are our own window's, and no frame is there.
                Denied::Zeros => unsafe {
                    mm::madvise(run.start as *mut _, run.len(), Advice::LinuxDontNeed)?;
                },
            }
            for page in run.step_by(PAGE_SIZE) {
                denials.remove(&page);
            }
        }
        Ok(())
    }

    /// Gives the range to the kernel as it is; the caller maps something over it.
    pub(crate) fn give_away(&self, range: &Range<usize>) {
        let mut denials = self.denials.lock();
        self.give_away_held(range, &mut denials);
    }

    /// [`Layout::give_away`] with the lock held, which also serializes the writers of the window table.
    fn give_away_held(&self, range: &Range<usize>, denials: &mut BTreeMap<usize, Denied>) {
        self.windows.give_away(range);
        let gone: Vec<_> = denials.range(range.clone()).map(|(&page, _)| page).collect();
        gone.iter().for_each(|page| {
            denials.remove(page);
        });
        self.denied.store(denials.len(), Ordering::SeqCst);
    }

    /// Gives the range to the kernel, with nothing mapped there. One munmap does it, however large the
    /// range is, and no part of it stays registered.
    pub(crate) fn punch(&self, range: Range<usize>) -> Result<(), Errno> {
        let mut denials = self.denials.lock();
        // Marked as the kernel's first: once the range is unmapped, the kernel may choose its addresses for
        // any new mapping.
        self.windows.give_away(&range);
        // SAFETY: the range is inside a window, and the caller has taken every page of ours out of it.
        if let Err(e) = unsafe { mm::munmap(range.start as *mut _, range.len()) } {
            self.windows.take_back(&range);
            return Err(e);
        }
        self.give_away_held(&range, &mut denials);
        Ok(())
    }

    /// Makes a range of a window that was given to the kernel a part of the window again. Replaces whatever
    /// is mapped there.
    ///
    /// # Errors
    /// EINVAL: it is not all inside one window and foreign; nothing is changed. ENOMEM and other errors of
    /// the kernel: the range stays foreign, and is either unchanged or has nothing mapped; [`Replaced`]
    /// says which.
    pub(crate) fn rearm(&self, uffd: &Uffd, range: &Range<usize>) -> Result<(), RearmError> {
        self.rearm_over(uffd, range, MapFlags::FIXED)
    }

    /// [`Layout::rearm`] of a range in which nothing is mapped.
    ///
    /// # Errors
    /// As for [`Layout::rearm`]. EEXIST: something is mapped there; nothing is changed.
    pub(crate) fn rearm_free(&self, uffd: &Uffd, range: &Range<usize>) -> Result<(), RearmError> {
        self.rearm_over(uffd, range, MapFlags::FIXED_NOREPLACE)
    }

    fn rearm_over(&self, uffd: &Uffd, range: &Range<usize>, place: MapFlags) -> Result<(), RearmError> {
        let _denials = self.denials.lock();
        if range.is_empty() || !self.windows.is_foreign(range) || !range.start.is_multiple_of(PAGE_SIZE) {
            return Err(RearmError { errno: Errno::INVAL, replaced: Replaced::No });
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | place;
        let _passage = Passage::begin(&self.passages);
        // SAFETY: what is there is the kernel's, and the caller says that it may go, if there is anything.
        unsafe { mm::mmap_anonymous(range.start as *mut _, range.len(), ProtFlags::empty(), flags) }
            .map_err(|errno| RearmError { errno, replaced: Replaced::No })?;
        if let Err(errno) = arm(uffd, range) {
            // SAFETY: it was mapped above, and nobody relies on what is in it.
            let _ = unsafe { mm::munmap(range.start as *mut _, range.len()) };
            return Err(RearmError { errno, replaced: Replaced::Unmapped });
        }
        self.windows.take_back(range);
        Ok(())
    }

    /// Gives the range to the kernel as its own mapping of a file; if that fails, it stays as it is.
    pub(crate) fn map_file(
        &self,
        range: Range<usize>,
        file: BorrowedFd<'_>,
        offset: u64,
        state: &GivenState<'_>,
        private: bool,
    ) -> Result<(), Errno> {
        let mut sharing = if private { MapFlags::PRIVATE } else { MapFlags::SHARED };
        sharing.set(MapFlags::NORESERVE, state.no_reserve);
        let prot = ProtFlags::from_bits_retain(state.prot);
        let mut denials = self.denials.lock();
        // Mapped before the range is given away: if that fails, nothing has changed.
        // SAFETY: the range is inside a window, and the caller has taken every page of ours out of it.
        unsafe {
            mm::mmap(range.start as *mut _, range.len(), prot, sharing | MapFlags::FIXED, file, offset)?;
            for advice in state.advice {
                // An error is ignored, since the file is mapped by now: the kernel has no memory for
                // another VMA, or does not know the advice.
                let _ = mm::madvise(range.start as *mut _, range.len(), *advice);
            }
        }
        self.give_away_held(&range, &mut denials);
        Ok(())
    }

    /// Gives the range to the kernel as private memory of its own, or as its private mapping of a file,
    /// with the bytes that `fill` puts into it; if that fails, the range stays as it is. Pages that `fill`
    /// does not write to are not populated.
    pub(crate) fn map_private(
        &self,
        range: Range<usize>,
        file: Option<(BorrowedFd<'_>, u64)>,
        state: &GivenState<'_>,
        fill: impl FnOnce(PutBytes<'_>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let all = ProtFlags::READ | ProtFlags::WRITE;
        // Made at other addresses, so that no thread sees it half filled.
        let hint = aside() as *mut _;
        // SAFETY: without MAP_FIXED a new mapping replaces no other.
        let map = |flags| unsafe {
            match file {
                Some((file, offset)) => mm::mmap(hint, range.len(), all, flags, file, offset),
                None => mm::mmap_anonymous(hint, range.len(), all, flags),
            }
        };
        let unreserved = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // ENOMEM: the kernel commits no more memory (overcommit). But the program has this memory already,
        // so it is mapped with MAP_NORESERVE.
        let at = match map(if state.no_reserve { unreserved } else { MapFlags::PRIVATE }) {
            Err(Errno::NOMEM) => map(unreserved)?,
            mapped => mapped?,
        };
        let put = |place: usize, bytes: &[u8]| {
            assert!(
                bytes.len() <= range.len() && place <= range.len() - bytes.len(),
                "it is inside the range"
            );
            // SAFETY: in the mapping that was made above, by the check; nobody else knows of it.
            unsafe { poke(at as usize + place, bytes) }
        };
        let filled = fill(&put);
        let prot = MprotectFlags::from_bits_retain(state.prot);
        let mut denials = self.denials.lock();
        let moved = filled.and_then(|()| {
            // SAFETY: the mapping is ours, and nobody has a reference into it any more. Its target is inside
            // a window, and the caller has taken every page of ours out of that.
            unsafe {
                for advice in state.advice {
                    match mm::madvise(at, range.len(), *advice) {
                        // EINVAL: a kernel without this kind of advice.
                        Ok(()) | Err(Errno::INVAL) => {}
                        refused => refused?,
                    }
                }
                mm::mprotect(at, range.len(), prot)?;
                let to = range.start as *mut _;
                mm::mremap_fixed(at, range.len(), range.len(), mm::MremapFlags::MAYMOVE, to)
            }
        });
        if let Err(errno) = moved {
            // SAFETY: it was not moved, and nobody knows of it.
            let _ = unsafe { mm::munmap(at, range.len()) };
            return Err(errno);
        }
        self.give_away_held(&range, &mut denials);
        Ok(())
    }
}

/// The properties of a mapping that is given to the kernel, besides its bytes.
#[derive(Debug, Clone, Copy)]
pub struct GivenState<'a> {
    /// PROT_* bits.
    pub prot: u32,
    /// MAP_NORESERVE.
    pub no_reserve: bool,
    /// The program's madvise calls for it.
    pub advice: &'a [Advice],
}

/// A passage that is under way until this is dropped. Made only with the lock of the denials held.
struct Passage<'a>(&'a AtomicU64);

impl<'a> Passage<'a> {
    fn begin(passages: &'a AtomicU64) -> Self {
        passages.fetch_add(1, Ordering::SeqCst);
        Self(passages)
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The access rights of a window's pages.
const ALL_RIGHTS: MprotectFlags = MprotectFlags::READ.union(MprotectFlags::WRITE);

/// A file of no bytes.
fn empty_file() -> Result<OwnedFd, Errno> {
    rustix::fs::memfd_create("elbowroom-empty", rustix::fs::MemfdFlags::CLOEXEC)
}

/// Room for the table of a window of `len` bytes, with a page before it that cannot be accessed.
fn table_room(len: usize) -> usize {
    PAGE_SIZE + WindowTable::bytes_for(len)
}

/// Runs of neighbouring pages that are denied in the same way.
fn runs<'a>(denials: impl Iterator<Item = (&'a usize, &'a Denied)>) -> Vec<(Range<usize>, Denied)> {
    let mut runs: Vec<(Range<usize>, Denied)> = Vec::new();
    for (&page, &denied) in denials {
        match runs.last_mut() {
            Some((run, same)) if run.end == page && *same == denied => run.end += PAGE_SIZE,
            _ => runs.push((page..page + PAGE_SIZE, denied)),
        }
    }
    runs
}

/// Makes pages that were mapped over part of their window again. They have no rights until they are
/// registered, so that no thread can read zeros there.
fn restore(uffd: &Uffd, range: &Range<usize>) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the pages hold our mapping of the empty file.
    unsafe { mm::mmap_anonymous(range.start as *mut _, range.len(), ProtFlags::empty(), flags)? };
    arm(uffd, range)
}

/// Makes fresh memory without rights a part of its window: registered, then accessible.
fn arm(uffd: &Uffd, range: &Range<usize>) -> Result<(), Errno> {
    take_part(uffd, range)?;
    // SAFETY: the range is registered: an access to a missing page waits for a handler.
    unsafe { mm::mprotect(range.start as *mut _, range.len(), ALL_RIGHTS) }
}

/// Gives a range the advice and the registration that windows have, so that the kernel merges its VMA with
/// its neighbours.
fn take_part(uffd: &Uffd, range: &Range<usize>) -> Result<(), Errno> {
    for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump, Advice::LinuxNoHugepage] {
        // SAFETY: the advice concerns only this range.
        let result = unsafe { mm::madvise(range.start as *mut _, range.len(), advice) };
        // Only MADV_DONTFORK must work, since a child must not have a copy: a kernel without huge pages
        // refuses the last, and without the second a core dump is only larger.
        if let (Err(e), Advice::LinuxDontFork) = (result, advice) {
            return Err(e);
        }
    }
    uffd.register(range.clone(), Protection::WriteProtected)
}
