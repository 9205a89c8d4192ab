//! Pages that a device may still read or write, with [`Mover::Copy`](crate::Mover::Copy).
//!
//! A page that is copied out and in again has another frame: bytes that a transfer (DMA, direct I/O) stores
//! into the old frame are lost. MOVE refuses a page to which there is a reference. Kernels before Linux 6.8
//! show references in one way only: MADV_PAGEOUT drops a page that MADV_FREE has made disposable if there
//! is no reference to it, and if nothing was stored to it since, neither by a processor nor by a transfer
//! that has ended.
//!
//! That takes twice as long as MADV_DONTNEED, so it is done only once the process may have such transfers
//! ([`Pins::may_be`]). No transfer stores to a page that is write-protected, since a page stays writable
//! for as long as it is pinned. docs/reclaim.md has the steps.

use crate::host::Ask;
use crate::uffd::put_in_place;
use crate::{PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, pread, retry_on_intr};
use rustix::mm::{self, Advice};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::ffi::{c_int, c_long};
use std::ops::Range;

/// How long the process is taken to have no pinned memory after a look at /proc/self/status has found none,
/// in microseconds.
const LOOK_EVERY_US: u64 = 2000;
/// The shortest time between two visits to all processors, in microseconds.
const VISIT_EVERY_US: u64 = 5000;

const MADV_PAGEOUT: c_int = 21;
const MADV_FREE: c_int = 8;

const FUTEX_WAKE_OP: c_int = 5;
const FUTEX_PRIVATE: c_int = 128;
/// Adds 0 to the second word; the second queue is woken if the word is less than -2048.
const ADD_NOTHING: u32 = 1 << 28 | 2 << 24 | 0x800;

#[cfg(target_arch = "x86_64")]
const SYS_FUTEX: c_long = 202;
#[cfg(not(target_arch = "x86_64"))]
const SYS_FUTEX: c_long = 98;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn madvise(addr: *mut u8, len: usize, advice: c_int) -> c_int;
}

/// What /proc/self/pagemap says of a page.
#[derive(Clone, Copy)]
pub(crate) struct Entry(u64);

impl Entry {
    /// Stands for an entry that could not be read: in memory, exclusive to this process, and writable.
    pub(crate) const UNKNOWN: Self = Self(1 << 63 | 1 << 56);

    /// In memory, or in the kernel's swap.
    pub(crate) fn is_there(self) -> bool {
        self.0 >> 62 != 0
    }

    /// Write-protected by a userfaultfd. Linux shows that since 5.14.
    pub(crate) fn is_protected(self) -> bool {
        self.0 >> 57 & 1 != 0
    }

    /// In memory, and also mapped by another process, as after a fork. No transfer stores to such a page,
    /// since the kernel makes it the process's own first.
    fn is_shared(self) -> bool {
        self.0 >> 63 != 0 && self.0 >> 56 & 1 == 0
    }
}

/// What is known of transfers, and the files of /proc that tell.
pub(crate) struct Pins {
    /// Tells whether the program has done anything that lets a transfer go on after its call.
    transfers: Option<Ask>,
    status: Option<OwnedFd>,
    pagemap: OwnedFd,
    born: Instant,
    /// Whether transfers may be under way. Never reset.
    seen: AtomicBool,
    /// When the status was last read, and (`visited_us`) when all processors were last visited, in
    /// microseconds since `born`.
    looked_us: AtomicU64,
    visited_us: AtomicU64,
}

fn open_own(name: &str) -> Result<OwnedFd, Errno> {
    open(name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

impl Pins {
    /// `None` without /proc: pages are then dropped without looking for references.
    pub(crate) fn new(transfers: Option<Ask>) -> Option<Self> {
        Some(Self {
            transfers,
            status: open_own("/proc/self/status").ok(),
            pagemap: open_own("/proc/self/pagemap").ok()?,
            born: Instant::now(),
            seen: AtomicBool::new(false),
            looked_us: AtomicU64::new(0),
            visited_us: AtomicU64::new(0),
        })
    }

    /// In the child of a fork: opens its own files, under the same numbers.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn renew(&self) -> Result<(), Errno> {
        if let Some(status) = &self.status {
            put_in_place(open_own("/proc/self/status")?, status.as_fd())?;
        }
        put_in_place(open_own("/proc/self/pagemap")?, self.pagemap.as_fd())
    }

    /// Whether a transfer may be under way. Asked after pages were write-protected: a thread that pins one
    /// for a transfer that stores has either done so before, and reported the transfer before that, or it
    /// faults and waits for a handler.
    ///
    /// Buffers that are registered with io_uring are found up to two milliseconds late.
    pub(crate) fn may_be(&self) -> bool {
        if self.seen.load(Ordering::Relaxed) {
            return true;
        }
        let told = self.transfers.as_ref().is_some_and(|tell| tell());
        let found = told || (self.is_time(&self.looked_us, LOOK_EVERY_US) && self.has_pinned());
        if found {
            self.seen.store(true, Ordering::Relaxed);
        }
        found
    }

    /// This thread has just copied pages in. If transfers may be under way, the pages are put on the
    /// kernel's LRU lists now, so that they can be dropped soon.
    pub(crate) fn note_fresh(&self) {
        if self.seen.load(Ordering::Relaxed) {
            list_pages_here();
        }
    }

    /// Whether `every_us` has passed since this last returned true.
    fn is_time(&self, last: &AtomicU64, every_us: u64) -> bool {
        let now = Duration::as_micros(&self.born.elapsed()) as u64;
        let before = last.load(Ordering::Relaxed);
        let due = before == 0 || now.saturating_sub(before) >= every_us;
        due && last.compare_exchange(before, now.max(1), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether the process has memory pinned for long, as registered buffers are: VmPin.
    fn has_pinned(&self) -> bool {
        let mut text = [0_u8; 4096];
        let Some(status) = &self.status else { return false };
        let len = retry_on_intr(|| pread(status, &mut text, 0)).unwrap_or(0);
        has_pinned(&text[..len])
    }

    /// The pagemap entry of each page of a range.
    pub(crate) fn entries(&self, range: Range<usize>) -> Vec<Entry> {
        let mut bytes = vec![0_u8; (range.len() >> PAGE_SHIFT) * size_of::<u64>()];
        let at = (range.start >> PAGE_SHIFT) * size_of::<u64>();
        let len = retry_on_intr(|| pread(&self.pagemap, &mut bytes, at as u64)).unwrap_or(0);
        let words = bytes[..len].chunks_exact(size_of::<u64>());
        let mut entries: Vec<_> =
            words.map(|word| Entry(u64::from_ne_bytes(word.try_into().unwrap_or_default()))).collect();
        entries.resize(range.len() >> PAGE_SHIFT, Entry::UNKNOWN);
        entries
    }

    /// Drops the write-protected pages of a window to which there is no reference. `copy` copies a page
    /// home again, if it is there: a transfer may have ended since the caller copied it. Returns the
    /// addresses of the pages that stay. The kernel may still drop these when memory is short, until
    /// [`hold`] is called for them.
    ///
    /// # Safety
    /// The caller has the bytes of all pages of the range, and may drop them.
    pub(crate) unsafe fn drop_unpinned(&self, range: Range<usize>, copy: impl Fn(usize)) -> Vec<usize> {
        loop {
            // SAFETY: the caller's promise; a page that is not dropped keeps its bytes.
            unsafe { madvise(range.start as *mut u8, range.len(), MADV_FREE) };
            // From here on a store makes a page dirty again. So either no byte changes after this copy, or
            // the page stays.
            range.clone().step_by(PAGE_SIZE).for_each(&copy);
            // SAFETY: as above.
            unsafe { madvise(range.start as *mut u8, range.len(), MADV_PAGEOUT) };
            let mut left = Vec::new();
            for (page, entry) in range.clone().step_by(PAGE_SIZE).zip(self.entries(range.clone())) {
                if entry.is_shared() {
                    // SAFETY: as above.
                    let _ = unsafe { mm::madvise(page as *mut _, PAGE_SIZE, Advice::LinuxDontNeed) };
                } else if entry.is_there() {
                    left.push(page);
                }
            }
            if left.is_empty() || !self.is_time(&self.visited_us, VISIT_EVERY_US) {
                return left;
            }
            visit_all_processors();
        }
    }
}

fn has_pinned(status: &[u8]) -> bool {
    let amount = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"VmPin:"));
    amount.is_some_and(|amount| amount.iter().any(|byte| matches!(byte, b'1'..=b'9')))
}

/// Has each processor put the pages that it has brought in lately on the kernel's LRU lists (Linux:
/// lru_add_drain). Until then its batch holds a reference to them, so that they cannot be dropped.
fn visit_all_processors() {
    let Ok(own) = sched_getaffinity(None) else { return };
    for processor in (0..CpuSet::MAX_CPU).filter(|processor| own.is_set(*processor)) {
        let mut one = CpuSet::new();
        one.set(processor);
        if sched_setaffinity(None, &one).is_ok() {
            list_pages_here();
        }
    }
    let _ = sched_setaffinity(None, &own);
}

/// Does the work of [`visit_all_processors`] for the processor that runs this thread: each MADV_COLD drains
/// its batch first. It may then hold a reference to the page that it is called for, so that page is one of
/// the stack.
fn list_pages_here() {
    let here = 0_u8;
    let page = (&raw const here).addr() & !(PAGE_SIZE - 1);
    // SAFETY: the advice changes nothing but the page's place in the kernel's lists.
    let _ = unsafe { mm::madvise(page as *mut _, PAGE_SIZE, Advice::LinuxCold) };
}

/// Has the kernel keep a page after MADV_FREE, by a store to it that changes nothing; the page must be
/// writable again. `false`: it has been dropped.
///
/// The store is a futex operation: the kernel makes it in one step with others, and does not wait for a
/// userfaultfd where the page is missing.
pub(crate) fn hold(page: usize) -> bool {
    let word = 0_u32;
    let (operation, none) = (c_long::from(FUTEX_WAKE_OP | FUTEX_PRIVATE), 0 as c_long);
    // SAFETY: the arguments are those of futex(2): the first word is ours, and no thread waits at it; the
    // kernel adds 0 to the second one, if it is there.
    let done = unsafe {
        syscall(SYS_FUTEX, &raw const word, operation, none, none, page, c_long::from(ADD_NOTHING))
    };
    done >= 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_memory_is_found_in_the_status() {
        assert!(!has_pinned(b"VmLck:\t      64 kB\nVmPin:\t       0 kB\nVmHWM:\t    1792 kB\n"));
        assert!(has_pinned(b"VmLck:\t       0 kB\nVmPin:\t    8192 kB\nVmHWM:\t    1792 kB\n"));
        assert!(!has_pinned(b"Name:\tcat\n"));
    }

    #[test]
    fn a_store_that_changes_nothing_finds_what_is_missing() {
        let word = 7_u64;
        assert!(hold((&raw const word).addr()));
        assert_eq!(word, 7);
        assert!(!hold(PAGE_SIZE));
    }
}
