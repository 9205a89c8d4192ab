//! Which small blocks are allocated: a bit for each place at which a block may begin. A block that was
//! freed already, and an address inside of a block, have no bit: if one is freed, the program ends with a
//! line that says so, as with libc. mimalloc's own checks find a double free only on the thread that has
//! allocated the block, need pages without access between the blocks (each a mapping), and do not find
//! addresses inside of a block.
//!
//! The bits are in a mapping of the kernel's: a 128th of the memory of the blocks.
//!
//! Synchronization: atomics. A bit is changed by the owner of the block. If a block goes from one thread to
//! another, the synchronization by which it goes orders the changes of its bit. The mapping is made before
//! the first block.

use elbowroom_sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use libc::c_long;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::ptr;

/// Blocks begin at multiples of this many bytes.
pub const ALIGN: usize = 16;

const BITS: usize = u64::BITS as usize;

static WORDS: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
static START: AtomicUsize = AtomicUsize::new(0);

/// Makes the bits for a range without blocks. If there is no memory for them, nothing is checked.
pub fn set_up(start: usize, len: usize) {
    let bytes = (len / ALIGN).div_ceil(BITS) * size_of::<u64>();
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // By a direct system call: the other library interposes libc's mmap, and would have the bits paged.
    // SAFETY: a new mapping, wherever it is put.
    if let Ok(words) = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, flags) } {
        START.store(start, Ordering::Relaxed);
        WORDS.store(words.cast(), Ordering::Release);
    }
}

/// The word with the bit of a block, and the bit. The block is in the range.
#[inline]
fn place(block: usize) -> Option<(&'static AtomicU64, u64)> {
    let words = WORDS.load(Ordering::Acquire);
    if words.is_null() {
        return None;
    }
    let number = (block - START.load(Ordering::Relaxed)) / ALIGN;
    // SAFETY: the mapping has a bit for each place in the range, and is never unmapped.
    let word = unsafe { &*words.add(number / BITS) };
    Some((word, 1 << (number % BITS)))
}

/// Notes that a block is allocated.
#[inline]
pub fn begin(block: usize) {
    if let Some((word, bit)) = place(block) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Notes that a block is freed. `false`: it is not allocated, or no block.
#[inline]
#[must_use]
pub fn end(block: usize) -> bool {
    place(block).is_none_or(|(word, bit)| {
        let before = word.fetch_and(!bit, Ordering::Relaxed);
        block.is_multiple_of(ALIGN) && before & bit != 0
    })
}

/// Ends the program, as libc does.
#[cold]
pub fn abort(why: &[u8]) -> ! {
    // SAFETY: the bytes are there.
    unsafe { libc::syscall(libc::SYS_write, 2 as c_long, why.as_ptr(), why.len()) };
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_that_are_somebodys_end() {
        const AT: usize = 0x7000_0000_0000;
        set_up(AT, 1 << 30);
        let blocks = [0, 16, 1008, 1024, (1 << 30) - 16].map(|offset| AT + offset);
        blocks.into_iter().for_each(begin);
        for block in blocks {
            assert!(!end(block + 8), "inside");
            begin(block);
            assert!(end(block) && !end(block), "twice");
        }
        assert!(!end(AT + 512));
    }
}
