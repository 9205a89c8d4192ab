//! Blocks of the library's heap for C: the library that stands before malloc asks for them, by the functions'
//! names, on behalf of the library's own threads and of the loader (crates/elbowroom-heap/src/apart.rs).
//!
//! Signals are blocked meanwhile, by system calls that touch no thread-local variable of this library: a
//! thread that ends frees its thread-local variables here, and an access to one would make it allocate them
//! again, in the middle of that.
//!
//! Synchronization: the heap's lock.

use super::heap::Heap;
use crate::base::regions::touches;
use crate::base::state;
use crate::base::sys::{Except, SignalsBlocked};
use libc::c_void;
use std::alloc::{GlobalAlloc, Layout};

/// Bytes before a block, which hold its size. Also the alignment of blocks.
const HEAD: usize = 16;

fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(HEAD)?, HEAD).ok()
}

/// A block of zeros of `size` bytes, or null.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn elbowroom_own_allocate(size: usize) -> *mut c_void {
    // A size of 0 would mean that the block is not ours.
    let size = size.max(1);
    let Some(layout) = layout(size) else { return std::ptr::null_mut() };
    // SAFETY: the layout is not empty; if there is a block, its head is a part of it.
    unsafe {
        let head = {
            let _blocked = SignalsBlocked::new(Except::Nothing);
            Heap.alloc_zeroed(layout)
        };
        if head.is_null() {
            return std::ptr::null_mut();
        }
        head.cast::<usize>().write(size);
        head.add(HEAD).cast()
    }
}

/// The size of a block in bytes; 0: the block is not of this heap.
///
/// # Safety
/// `block` is a block of any allocator.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn elbowroom_own_size(block: *mut c_void) -> usize {
    let at = block as usize;
    if at < HEAD || !touches(&(at..at + 1)) {
        return 0;
    }
    // SAFETY: only this file gives out blocks of the reserve, each with its size before it.
    unsafe { block.byte_sub(HEAD).cast::<usize>().read() }
}

/// Frees a block.
///
/// # Safety
/// The block is of this heap, and is not used any more.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn elbowroom_own_free(block: *mut c_void) {
    // SAFETY: the caller's promise.
    let size = unsafe { elbowroom_own_size(block) };
    if let Some(layout) = layout(size).filter(|_| size > 0) {
        let _blocked = SignalsBlocked::new(Except::Nothing);
        // SAFETY: the caller's promise, and it was allocated with this layout.
        unsafe { Heap.dealloc(block.byte_sub(HEAD).cast(), layout) };
    }
}

/// Whether the calling thread is one of the library's, or works for it at the moment.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
pub extern "C" fn elbowroom_is_own_thread() -> bool {
    state::is_service_thread()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_know_their_size_and_others_are_none() {
        for size in [0, 1, 15, 16, 17, 4096, 100_000] {
            let block = elbowroom_own_allocate(size);
            assert!((block as usize).is_multiple_of(HEAD));
            // SAFETY: the block has `size` bytes, and is freed once.
            unsafe {
                assert_eq!(elbowroom_own_size(block), size.max(1));
                assert!((0..size).all(|i| block.cast::<u8>().add(i).read() == 0));
                block.cast::<u8>().write_bytes(0xff, size);
                elbowroom_own_free(block);
            }
        }
        // SAFETY: blocks of libc's, which is given back.
        unsafe {
            let other = libc::malloc(100);
            assert_eq!(elbowroom_own_size(other), 0);
            libc::free(other);
        }
        assert!(elbowroom_own_allocate(usize::MAX).is_null());
    }
}
