//! Regions of addresses that the library reserves for itself, and threads that use them.
//!
//! What is reserved has no memory and no rights until it is used, but it counts against RLIMIT_AS.
//!
//! Synchronization: the table of regions is append-only and read without a lock.

use super::sys::{self, PAGE};
use libc::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most regions. Each further region of the heap is twice as large as the one before.
const MAX_REGIONS: usize = 24;
/// Bytes left free behind each region, so that an overrun of one region does not reach the next.
const GAP: usize = 2 << 20;
/// The preferred address of the first region: above executables and their heaps as they are placed without
/// ASLR, below those with it and everything that the kernel places from the top, and in no range that a
/// sanitizer or a JVM wants. The kernel may place it elsewhere.
const WANTED: usize = 0x2a00_0000_0000;
/// The first region is at one of so many pages from [`WANTED`] on.
const PLACES: usize = 1 << 24;

struct Region {
    start: AtomicUsize,
    end: AtomicUsize,
}

static REGIONS: [Region; MAX_REGIONS] =
    [const { Region { start: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; MAX_REGIONS];
/// How many entries of the table are in use.
static REGION_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Where the next region is wanted; 0 before the first.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// How the library before malloc recognizes our memory and threads; it reads this in each call
/// (crates/elbowroom-heap/src/apart.rs).
#[repr(C)]
pub struct Own {
    /// Where the lowest region begins, and the highest one ends. Memory of others may lie between them.
    start: AtomicUsize,
    end: AtomicUsize,
    /// How many threads are ours, for a while or for good, without a stack of the reserve.
    pub(super) lent: AtomicUsize,
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_upper_case_globals)]
pub static elbowroom_own: Own =
    Own { start: AtomicUsize::new(usize::MAX), end: AtomicUsize::new(0), lent: AtomicUsize::new(0) };

/// Counts the calling thread as ours, or as the program's again. Threads with a stack of the reserve are
/// not counted: they are recognized by its address.
pub fn note_own_thread(is_ours: bool) {
    let here = &raw const is_ours as usize;
    if touches(&(here..here + 1)) {
        return;
    }
    if is_ours {
        elbowroom_own.lent.fetch_add(1, Ordering::AcqRel);
    } else {
        elbowroom_own.lent.fetch_sub(1, Ordering::AcqRel);
    }
}

/// In a forked child: sets the count for its only thread, which is ours or the program's.
pub fn only_thread_is_ours(is_ours: bool) {
    elbowroom_own.lent.store(is_ours.into(), Ordering::Release);
}

/// Reserves `len` bytes, a multiple of the page size, without rights.
pub fn reserve(len: usize) -> Option<Range<usize>> {
    let index = REGION_COUNT.fetch_add(1, Ordering::AcqRel);
    let Some(region) = REGIONS.get(index) else {
        REGION_COUNT.fetch_sub(1, Ordering::AcqRel);
        return None;
    };
    let wanted = next_place(len);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping; the address is a wish.
    let at = unsafe { sys::mmap(wanted as *mut c_void, len, libc::PROT_NONE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        // The entry in the table stays empty if another thread has taken the next one.
        let _ = REGION_COUNT.compare_exchange(index + 1, index, Ordering::AcqRel, Ordering::Relaxed);
        return None;
    }
    // The region comes into use page by page; huge pages would take memory for parts that are not in use.
    // SAFETY: the mapping was just made. A kernel without huge pages refuses it.
    unsafe { sys::system_call(libc::SYS_madvise, at, len, libc::MADV_NOHUGEPAGE as libc::c_long) };
    let start = at as usize;
    region.start.store(start, Ordering::Release);
    region.end.store(start + len, Ordering::Release);
    elbowroom_own.start.fetch_min(start, Ordering::AcqRel);
    elbowroom_own.end.fetch_max(start + len, Ordering::AcqRel);
    Some(start..start + len)
}

/// The preferred address of a mapping of `len` bytes: behind those of all earlier ones.
fn next_place(len: usize) -> usize {
    let _ = NEXT.compare_exchange(0, first_place(), Ordering::AcqRel, Ordering::Acquire);
    NEXT.fetch_add(len + GAP, Ordering::AcqRel)
}

/// The address hint for a mapping of `len` bytes that is not of the reserve, but is to lie beside it: at an
/// address of the kernel's choice it could lie in a hole of the program's. 0, no hint, if there is no room.
pub fn place_beside(len: usize) -> usize {
    let len = len.checked_next_multiple_of(PAGE).filter(|len| *len <= PLACES * PAGE);
    len.map_or(0, next_place)
}

/// The preferred address of the first region: random in each process, as the kernel's own placement is
/// (ASLR).
fn first_place() -> usize {
    // SAFETY: an integer; the kernel gives the address of 16 random bytes, or libc 0.
    let random = unsafe { libc::getauxval(libc::AT_RANDOM) } as *const u64;
    // SAFETY: the second half of these bytes; libc has its stack guard from the first. They may lie at any
    // address.
    let random = if random.is_null() { 0 } else { unsafe { random.add(1).read_unaligned() } };
    WANTED + (random as usize % PLACES) * PAGE
}

/// Bytes that got rights by [`commit`].
static COMMITTED: AtomicUsize = AtomicUsize::new(0);

/// How much of the reserve has rights, in bytes.
pub fn committed_bytes() -> u64 {
    COMMITTED.load(Ordering::Acquire) as u64
}

/// Gives a range of the reserve rights to read and write; `false` if the kernel has no memory for that.
pub fn commit(range: &Range<usize>) -> bool {
    let committed = commit_again(range);
    if committed {
        COMMITTED.fetch_add(range.len(), Ordering::AcqRel);
    }
    committed
}

/// As [`commit`], for a range that was committed before, and so is counted already.
pub fn commit_again(range: &Range<usize>) -> bool {
    let rights = libc::c_long::from(libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the callers pass what they took from a region, which nobody else uses.
    unsafe { sys::system_call(libc::SYS_mprotect, range.start, range.len(), rights) == 0 }
}

/// Gives the memory of a range back to the kernel; the range reads as zeros afterwards.
pub fn drop_memory(range: &Range<usize>) {
    // SAFETY: as in `commit`; what was there is not needed any more.
    unsafe {
        sys::system_call(libc::SYS_madvise, range.start, range.len(), libc::c_long::from(libc::MADV_DONTNEED))
    };
}

/// Whether any of the range is in the reserve.
pub fn touches(range: &Range<usize>) -> bool {
    touches_first(region_count(), range)
}

pub fn region_count() -> usize {
    REGION_COUNT.load(Ordering::Acquire).min(MAX_REGIONS)
}

/// Whether any of the range is in one of the first regions.
pub fn touches_first(count: usize, range: &Range<usize>) -> bool {
    REGIONS[..count].iter().any(|region| {
        let end = region.end.load(Ordering::Acquire);
        range.start < end && region.start.load(Ordering::Acquire) < range.end
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reserved_is_known() {
        let range = reserve(4 * PAGE).unwrap();
        assert!(touches(&range) && touches(&(range.start - 1..range.start + 1)));
        assert!(touches(&(range.end - 1..range.end)) && !touches(&(range.end..range.end + PAGE)));
        assert!(!touches(&(0..PAGE)) && touches(&(0..usize::MAX)));
        assert!(commit(&(range.start..range.start + PAGE)));
        // SAFETY: the page has rights and is nobody else's.
        unsafe { (range.start as *mut u8).write_volatile(3) };
        drop_memory(&(range.start..range.start + PAGE));
        // SAFETY: as above.
        assert_eq!(unsafe { (range.start as *const u8).read_volatile() }, 0);
    }
}
