//! Addresses for mappings that exist only for a moment.

use std::ops::Range;

/// Far from the addresses that the kernel chooses (from the top downwards), from code and heaps (above this
/// range, or far below), and from those that sanitizers and JVMs choose. The preloaded library's reserve is
/// below this range.
const ASIDE: Range<usize> = 0x2c00_0000_0000..0x5000_0000_0000;

/// Bytes for each thread. A larger mapping extends into the next thread's part.
const EACH: usize = 4 << 30;

/// The hint for an mmap of this thread whose mapping is moved, or unmapped, in a moment.
///
/// Without a hint the kernel may choose a hole between mappings of the program. Another thread of the
/// program may expect that accesses to the hole fail, or may map something there meanwhile. If the hint is
/// taken, or is no address on this machine, the kernel chooses all the same.
pub fn aside() -> usize {
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as usize;
    ASIDE.start + thread * EACH % ASIDE.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    #[test]
    fn a_mapping_is_made_there() {
        let (hint, len) = (aside(), 3 << 20);
        assert!(ASIDE.contains(&hint) && hint.is_multiple_of(EACH));
        let other = std::thread::spawn(aside).join().unwrap();
        assert!(hint.abs_diff(other) >= EACH, "{hint:x} and {other:x}");
        // SAFETY: without MAP_FIXED a new mapping replaces no other.
        let at =
            unsafe { mmap_anonymous(hint as *mut _, len, ProtFlags::empty(), MapFlags::PRIVATE) }.unwrap();
        assert_eq!(at as usize, hint);
        // SAFETY: it was just mapped, and nobody knows it.
        unsafe { munmap(at, len) }.unwrap();
    }
}
