//! The library's heap: dlmalloc over regions of the reserve.
//!
//! Its threads must not allocate from the program's heap, whose lock a faulting thread may hold.
//!
//! Synchronization: one lock around everything, a futex. A fork does not take the lock: an atfork handler
//! of the program's that runs before the fork, and after ours, may need the manager, which allocates. A
//! child that finds the lock held, by a thread that it does not have, leaves the heap behind with all its
//! blocks, and begins another one.

use crate::base::regions::{self, commit, drop_memory, reserve};
use crate::base::sys::PAGE;
use crate::base::word_lock::WordLock;
use dlmalloc::{Allocator, Dlmalloc};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The heap of a program that has no manager (yet).
pub const INITIAL_HEAP_BYTES: usize = 1 << 20;
/// The first region of a manager's heap has so many bytes, and a part of the budget. More is reserved when
/// it is needed.
pub const HEAP_BYTES: usize = 64 << 20;
/// How many bytes get rights at a time.
const COMMIT_BYTES: usize = 1 << 20;

static LOCK: WordLock = WordLock::new();

/// The library's allocator.
pub struct Heap;

/// How many of the reserve's regions belong to heaps that were left behind (see above); most often none.
static LEFT_REGIONS: AtomicUsize = AtomicUsize::new(0);

/// Whether a block is of a heap that was left behind: such a block is not freed or resized any more.
fn is_left(block: *mut u8) -> bool {
    let left = LEFT_REGIONS.load(Ordering::Relaxed);
    left > 0 && regions::touches_first(left, &(block as usize..block as usize + 1))
}

struct Shared(UnsafeCell<Dlmalloc<Source>>);

// SAFETY: used under the lock only.
unsafe impl Sync for Shared {}

static STATE: Shared = Shared(UnsafeCell::new(Dlmalloc::new_with_allocator(Source)));

impl Shared {
    /// Runs `call` on the heap, under the lock.
    fn with<R>(&self, call: impl FnOnce(&mut Dlmalloc<Source>) -> R) -> R {
        LOCK.lock();
        // SAFETY: the lock makes this the only reference; `call` does not come back here.
        let result = call(unsafe { &mut *self.0.get() });
        LOCK.unlock();
        result
    }
}

// SAFETY: dlmalloc is an allocator; it is called under a lock, with what its own functions gave.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        STATE.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if is_left(at) {
            return;
        }
        // SAFETY: the caller's promise.
        STATE.with(|heap| unsafe { heap.free(at, layout.size(), layout.align()) });
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        STATE.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if is_left(at) {
            // SAFETY: the caller's promise for the size; the old block stays as it is.
            unsafe {
                let new = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
                if !new.is_null() {
                    std::ptr::copy_nonoverlapping(at, new, layout.size().min(new_size));
                }
                return new;
            }
        }
        // SAFETY: the caller's promise.
        STATE.with(|heap| unsafe { heap.realloc(at, layout.size(), layout.align(), new_size) })
    }
}

/// The region that the heap grows in. Used under the lock.
struct Growing {
    /// The end of the part that was handed out.
    used: Cell<usize>,
    /// The end of the part that has rights.
    committed: Cell<usize>,
    end: Cell<usize>,
    /// The length of the region after this one.
    next_len: Cell<usize>,
}

// SAFETY: used under the lock only.
unsafe impl Sync for Growing {}

static GROWING: Growing = Growing {
    used: Cell::new(0),
    committed: Cell::new(0),
    end: Cell::new(0),
    next_len: Cell::new(INITIAL_HEAP_BYTES),
};

impl Growing {
    fn enter(&self, region: &Range<usize>) {
        self.used.set(region.start);
        self.committed.set(region.start);
        self.end.set(region.end);
        self.next_len.set((region.len() * 2).max(HEAP_BYTES));
    }

    /// Reserves a new region with room for `size` bytes: of `next_len` bytes, or less if there is no room
    /// for that.
    fn extend(&self, size: usize) -> bool {
        let mut len = self.next_len.get().max(size).next_multiple_of(PAGE);
        loop {
            if let Some(region) = reserve(len) {
                self.enter(&region);
                return true;
            }
            if len == size {
                return false;
            }
            len = (len / 8).max(size).next_multiple_of(PAGE);
        }
    }

    fn take(&self, size: usize) -> Option<usize> {
        if self.end.get() - self.used.get() < size && !self.extend(size) {
            return None;
        }
        let start = self.used.get();
        let end = start + size;
        if end > self.committed.get() {
            let to = end.next_multiple_of(COMMIT_BYTES).min(self.end.get());
            if !commit(&(self.committed.get()..to)) {
                return None;
            }
            self.committed.set(to);
        }
        self.used.set(end);
        Some(start)
    }
}

/// Gives memory to dlmalloc, always from behind what the region has handed out. So dlmalloc joins it into
/// one segment, of which only the end is ever given back.
struct Source;

// SAFETY: what `alloc` gives is memory of a region that nobody else uses; it is called under the lock.
unsafe impl Allocator for Source {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        match GROWING.take(size) {
            Some(start) => (start as *mut u8, size, 0),
            None => (std::ptr::null_mut(), 0, 0),
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        std::ptr::null_mut()
    }

    fn free_part(&self, at: *mut u8, old_size: usize, new_size: usize) -> bool {
        let at = at as usize;
        if at + old_size != GROWING.used.get() {
            return false;
        }
        drop_memory(&(at + new_size..at + old_size));
        GROWING.used.set(at + new_size);
        true
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        // Memory before the end of the region stays the heap's.
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE
    }
}

/// Reserves a region of `len` bytes for a manager's heap, unless half as much is left in the present one.
pub(super) fn prepare(len: usize) {
    LOCK.lock();
    if GROWING.end.get() - GROWING.used.get() < len / 2
        && let Some(region) = reserve(len)
    {
        GROWING.enter(&region);
    }
    LOCK.unlock();
}

/// In a forked child, before it does anything else: frees the lock, and begins another heap if it was held.
pub(super) fn in_child() {
    if !LOCK.reset() {
        return;
    }
    // A thread that the child does not have was in the middle of a change of the heap.
    LEFT_REGIONS.store(regions::region_count(), Ordering::Release);
    GROWING.used.set(0);
    GROWING.committed.set(0);
    GROWING.end.set(0);
    GROWING.next_len.set(INITIAL_HEAP_BYTES);
    // SAFETY: the child's only thread, which is not in the heap; what is overwritten has nothing to drop.
    unsafe { STATE.0.get().write(Dlmalloc::new_with_allocator(Source)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_apart_and_in_the_reserve() {
        // SAFETY: blocks of this layout are allocated, used within it, and freed once.
        unsafe {
            let layout = Layout::from_size_align(100_000, 64).unwrap();
            let blocks: Vec<_> = (0..100_u8)
                .map(|i| {
                    let at = Heap.alloc_zeroed(layout);
                    assert!(regions::touches(&(at as usize..at as usize + 1)));
                    assert!(std::slice::from_raw_parts(at, 100_000).iter().all(|byte| *byte == 0));
                    at.write_bytes(i, 100_000);
                    at
                })
                .collect();
            for (i, at) in blocks.iter().enumerate() {
                assert!(std::slice::from_raw_parts(*at, 100_000).iter().all(|byte| *byte == i as u8));
                Heap.dealloc(*at, layout);
            }
            let large = Layout::from_size_align(200 << 20, 4096).unwrap();
            let at = Heap.alloc_zeroed(large);
            assert_eq!((at.read(), at.add((200 << 20) - 1).read()), (0, 0));
            Heap.dealloc(at, large);
        }
    }

    #[test]
    fn threads_and_forks_share_it() {
        let workers: Vec<_> = (0..4)
            .map(|n| {
                std::thread::spawn(move || (0..20_000).map(|i| vec![n as u8; i % 700].len()).sum::<usize>())
            })
            .collect();
        for _ in 0..20 {
            in_a_child(|| format!("{}", 3).len() == 1);
        }
        let sums: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        assert!(sums.iter().all(|sum| *sum == sums[0]));
    }

    #[test]
    fn a_child_that_finds_it_torn_begins_another() {
        let kept = vec![7_u8; 100_000];
        let dropped = vec![8_u8; 100];
        LOCK.lock();
        let check = move || {
            let other = vec![9_u8; 100_000];
            drop(dropped);
            let mut kept = kept;
            kept.reserve_exact(200_000);
            kept.resize(200_000, 6);
            let apart = LEFT_REGIONS.load(Ordering::Relaxed) > 0;
            let whole = |vec: &[u8], value| vec.iter().all(|byte| *byte == value);
            apart && whole(&kept[..100_000], 7) && whole(&kept[100_000..], 6) && whole(&other, 9)
        };
        // Dropped after the lock.
        let mut check = Some(check);
        in_a_child(|| check.take().is_some_and(|check| check()));
        LOCK.unlock();
    }

    /// Runs it in a forked child, which must say yes.
    fn in_a_child(call: impl FnOnce() -> bool) {
        // SAFETY: the child allocates, which this is about, and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                in_child();
                libc::_exit(libc::c_int::from(call()));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert!(libc::WIFEXITED(status), "{status}");
            assert_eq!(libc::WEXITSTATUS(status), 1);
        }
    }
}
