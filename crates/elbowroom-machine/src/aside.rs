//! Where mappings are made that are there for a moment.

use std::ops::Range;

/// Far from what the kernel chooses, which goes down from the top, from code and heaps, which are above this
/// or far below, and from what sanitizers and JVMs choose; the preloaded library's reserve is below this.
const ASIDE: Range<usize> = 0x2c00_0000_0000..0x5000_0000_0000;

/// So much of it for each thread. Of more, the next thread's is used.
const EACH: usize = 4 << 30;

/// The hint for an mmap of this thread whose mapping is moved, or unmapped, in a moment.
///
/// Without a hint the kernel chooses, and may choose a hole between mappings of the program. It is the
/// program's: another thread may expect that accesses to it fail, or may map there meanwhile. If what this
/// returns is taken, or is no address on this machine, the kernel chooses still.
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
