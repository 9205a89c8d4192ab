//! Where the library's own memory lies: its heap, the stacks of its threads, and buffers.
//!
//! What the kernel places for us, it may place into a hole that the program made in a window, and the program
//! may map something of its own over that hole at any time. So the library reserves addresses of its own, far
//! from where the kernel places mappings, and takes all that it needs while the program runs from there:
//! * the heap ([`heap`]): what describes frames, files and mappings grows with the budget, and with how much
//!   of the files was seen;
//! * stacks ([`stacks`]) of all threads that the library and the manager start;
//! * a few buffers for transfers ([`buffers`]), used by the program's own threads.
//!
//! What is reserved has no memory and no rights until it is used, but it counts against RLIMIT_AS:
//! [`INITIAL_HEAP_BYTES`] in every program, the rest once the manager starts. Without room for it, the
//! library asks the kernel for each thing, as any program does.
//!
//! A forked child has a copy of the heap, which it goes on using if it is complete; it has none of the
//! threads, so their stacks are free there.
//!
//! Synchronization: the table of regions is append-only and read without a lock. Calls of the program that
//! name addresses in it are refused ([`refuses`]) before they do harm.

mod buffers;
mod heap;
mod lent;
mod stacks;

pub use buffers::Buffer;
pub use heap::Heap;
pub use stacks::{at_thread_exit, create_thread};

use crate::reason::Reason;
use crate::state;
use crate::sys::{self, PAGE};
use libc::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The heap of a program that has no manager (yet).
const INITIAL_HEAP_BYTES: usize = 1 << 20;
/// The heap of a manager: this, and a part of the budget. What it needs beyond that is reserved later.
const HEAP_BYTES: usize = 64 << 20;
/// The same where the program's addresses are limited; the rest is reserved when it is needed.
const LIMITED_HEAP_BYTES: usize = 8 << 20;
/// The part: 1/16, about four times what describes the frames of files that are no larger than the budget.
const HEAP_PART_OF_BUDGET: usize = 16;
/// The most regions. Each further region of the heap is twice as large as the one before.
const MAX_REGIONS: usize = 24;
/// Left free behind each region: nothing that overruns one gets into another.
const GAP: usize = 2 << 20;
/// Where the first one is wanted: above executables and their heaps as they are placed without ASLR, below
/// those with it and everything that the kernel places from the top, and in no range that a sanitizer or a
/// JVM wants. A wish: the kernel may place it elsewhere.
const WANTED: usize = 0x2a00_0000_0000;
/// How many different places there are.
const PLACES: usize = 1 << 24;

struct Region {
    start: AtomicUsize,
    end: AtomicUsize,
}

static REGIONS: [Region; MAX_REGIONS] =
    [const { Region { start: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; MAX_REGIONS];
/// Places in the table that were given out.
static REGION_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Where the next region is wanted; 0 before the first.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// What the library before malloc reads with each call (crates/elbowroom-heap/src/apart.rs).
#[repr(C)]
pub struct Own {
    /// Where the first region begins, and the last one ends; between them there may be others' memory.
    start: AtomicUsize,
    end: AtomicUsize,
    /// Threads that are ours, for a while or for good, but have no stack of the reserve.
    lent: AtomicUsize,
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_upper_case_globals)]
pub static elbowroom_own: Own =
    Own { start: AtomicUsize::new(usize::MAX), end: AtomicUsize::new(0), lent: AtomicUsize::new(0) };

/// The calling thread becomes ours, or the program's again. Threads that have a stack of the reserve are not
/// counted: their stack tells.
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

/// Reserves `len` bytes, a multiple of the page size, without rights.
fn reserve(len: usize) -> Option<Range<usize>> {
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
        // Its place in the table stays empty if somebody has taken the next one.
        let _ = REGION_COUNT.compare_exchange(index + 1, index, Ordering::AcqRel, Ordering::Relaxed);
        return None;
    }
    // Its parts come into use page by page; whole huge pages would be memory that nobody asked for.
    // SAFETY: the mapping was just made. A kernel without huge pages refuses it.
    unsafe { libc::syscall(libc::SYS_madvise, at, len, libc::MADV_NOHUGEPAGE as libc::c_long) };
    let start = at as usize;
    region.start.store(start, Ordering::Release);
    region.end.store(start + len, Ordering::Release);
    elbowroom_own.start.fetch_min(start, Ordering::AcqRel);
    elbowroom_own.end.fetch_max(start + len, Ordering::AcqRel);
    Some(start..start + len)
}

/// Where something of `len` bytes is wanted: behind all that was placed before.
fn next_place(len: usize) -> usize {
    let _ = NEXT.compare_exchange(0, first_place(), Ordering::AcqRel, Ordering::Acquire);
    NEXT.fetch_add(len + GAP, Ordering::AcqRel)
}

/// The hint for a mapping of `len` bytes that is not of the reserve, but belongs where the reserve is: what
/// the kernel places may get into a hole of the program's. 0, none, for what has no room there.
pub fn place_beside(len: usize) -> usize {
    let len = len.checked_next_multiple_of(PAGE).filter(|len| *len <= PLACES * PAGE);
    len.map_or(0, next_place)
}

/// Different in each process, as the kernel's own placement is.
fn first_place() -> usize {
    // SAFETY: an integer; the kernel gives the address of 16 random bytes, or libc 0.
    let random = unsafe { libc::getauxval(libc::AT_RANDOM) } as *const u64;
    // SAFETY: the second half of these bytes; libc has its stack guard from the first. They may lie at any
    // address.
    let random = if random.is_null() { 0 } else { unsafe { random.add(1).read_unaligned() } };
    WANTED + (random as usize % PLACES) * PAGE
}

/// Gives a range of the reserve rights to read and write; `false` if the kernel has no memory for that.
fn commit(range: &Range<usize>) -> bool {
    let rights = libc::c_long::from(libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the callers pass what they took from a region, which nobody else uses.
    unsafe { libc::syscall(libc::SYS_mprotect, range.start, range.len(), rights) == 0 }
}

/// Gives the memory of a range back; it reads as zeros.
fn drop_memory(range: &Range<usize>) {
    // SAFETY: as in `commit`; what was there is not needed any more.
    unsafe {
        libc::syscall(libc::SYS_madvise, range.start, range.len(), libc::c_long::from(libc::MADV_DONTNEED))
    };
}

/// Reserves what a manager with such a budget needs. Called before it starts; what there is already stays.
pub fn prepare(budget_bytes: u64) {
    stacks::prepare();
    buffers::prepare();
    let part = usize::try_from(budget_bytes).unwrap_or(usize::MAX) / HEAP_PART_OF_BUDGET;
    let heap = if addresses_are_limited() { LIMITED_HEAP_BYTES } else { HEAP_BYTES + part.min(1 << 40) };
    heap::prepare(heap.next_multiple_of(PAGE));
}

/// Whether there is an RLIMIT_AS.
fn addresses_are_limited() -> bool {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the kernel writes one `rlimit`.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
    limit.rlim_cur != libc::RLIM_INFINITY
}

/// In a forked child, before it does anything else: it has none of the parent's threads.
pub fn in_child() {
    elbowroom_own.lent.store(state::is_service_thread().into(), Ordering::Release);
    heap::in_child();
    stacks::in_child();
    buffers::in_child();
}

/// Whether any of the range is in the reserve.
pub fn touches(range: &Range<usize>) -> bool {
    touches_first(region_count(), range)
}

fn region_count() -> usize {
    REGION_COUNT.load(Ordering::Acquire).min(MAX_REGIONS)
}

/// Whether any of the range is in one of the first regions.
fn touches_first(count: usize, range: &Range<usize>) -> bool {
    REGIONS[..count].iter().any(|region| {
        let end = region.end.load(Ordering::Acquire);
        range.start < end && region.start.load(Ordering::Acquire) < range.end
    })
}

/// Whether a call of the program on these addresses is refused, since memory of the library is among them; it
/// is counted then.
pub fn refuses(addr: usize, len: usize) -> bool {
    // What wraps is no range, and what is not aligned is none either: the kernel refuses it for that.
    if !addr.is_multiple_of(PAGE) {
        return false;
    }
    let Some(range) = addr.checked_add(len).map(|end| addr..end).filter(|range| !range.is_empty()) else {
        return false;
    };
    let Some(process) = state::for_program() else { return false };
    let ours =
        touches(&range) || process.manager().is_some_and(|manager| manager.has_memory_of_its_own_in(&range));
    if ours {
        process.count(Reason::LibraryMemory);
    }
    ours
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
