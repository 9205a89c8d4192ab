//! Access to the arena's bytes by several threads at once, with atomic accesses only.
//!
//! A reader loads first and then finds out whether the frame was still the page it looked for (cpu.rs).
//! Until then the frame may already belong to another extent, whose owner writes it by plain stores through
//! its [`crate::Extent`]. The reader then discards the value, and the memory stays mapped as long as the
//! MMU lives. This is the known problem of seqlocks: in the language such a race is undefined, while
//! compilers and machines return some value. docs/unsafe.md says so, too.
//!
//! Accesses are made in the largest naturally aligned units of 8, 4 and 1 bytes that fit. So an aligned word
//! of 8 or 4 bytes is never torn.

use crate::arena::Arena;
use crate::{PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Where a frame is: its distance from the arena's beginning, in bytes. Only [`Frames::place`] makes one.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameOffset(usize);

impl FrameOffset {
    /// The place of the first frame, for lines of the cache that have none.
    pub(super) const FIRST: FrameOffset = FrameOffset(0);
}

/// The arena, seen as atomics.
pub(super) struct Frames {
    arena: Arena,
    base: usize,
}

/// Splits an access into a head, whole aligned words, and a tail: the offsets where the words begin and
/// end.
fn split(addr: usize, len: usize) -> (usize, usize) {
    let head = (addr.wrapping_neg() % 8).min(len);
    (head, head + (len - head) / 8 * 8)
}

impl Frames {
    pub(super) fn new(arena: Arena) -> Self {
        let base = arena.base();
        Self { arena, base }
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Where the frame is.
    ///
    /// # Panics
    /// If the arena has no such frame.
    pub(super) fn place(&self, frame: u32) -> FrameOffset {
        assert!((frame as usize) < self.arena.capacity(), "no such frame");
        FrameOffset((frame as usize) << PAGE_SHIFT)
    }

    /// The address in the arena of the byte of `addr`, whose page is at `place`.
    #[inline]
    pub(super) fn address(&self, place: FrameOffset, addr: usize) -> usize {
        self.base + place.0 + addr % PAGE_SIZE
    }

    /// The aligned word that holds the byte of `addr`.
    #[inline]
    pub(super) fn word(&self, place: FrameOffset, addr: usize) -> &AtomicU64 {
        let at = self.address(place, addr) & !7;
        // SAFETY: (1) a place is a frame of the arena, which is mapped as long as `self` lives; (2) the
        // address is aligned and inside the page.
        unsafe { &*(at as *const AtomicU64) }
    }

    /// `count` words from `addr` on, which is a multiple of 8; all are in the page.
    fn words(&self, place: FrameOffset, addr: usize, count: usize) -> &[AtomicU64] {
        assert!(addr.is_multiple_of(8) && addr % PAGE_SIZE + count * 8 <= PAGE_SIZE);
        // SAFETY: as in `word`; all of the slice is inside the page.
        unsafe { std::slice::from_raw_parts(self.address(place, addr) as *const AtomicU64, count) }
    }

    /// The aligned half word that holds the byte of `addr`.
    #[inline]
    pub(super) fn half(&self, place: FrameOffset, addr: usize) -> &AtomicU32 {
        let at = self.address(place, addr) & !3;
        // SAFETY: as in `word`.
        unsafe { &*(at as *const AtomicU32) }
    }

    /// The byte of `addr`.
    #[inline]
    fn byte(&self, place: FrameOffset, addr: usize) -> &AtomicU8 {
        // SAFETY: as in `word`.
        unsafe { &*(self.address(place, addr) as *const AtomicU8) }
    }

    /// The `len` bytes from that of `addr` on.
    ///
    /// # Panics
    /// If the bytes extend beyond the page.
    #[inline]
    pub(super) fn bytes(&self, place: FrameOffset, addr: usize, len: usize) -> &[AtomicU8] {
        assert!(addr % PAGE_SIZE + len <= PAGE_SIZE, "an access beyond its page");
        // SAFETY: as in `word`; all of the slice is inside the page.
        unsafe { std::slice::from_raw_parts(self.address(place, addr) as *const AtomicU8, len) }
    }

    /// Loads bytes of one page. Relaxed.
    pub(super) fn load(&self, place: FrameOffset, addr: usize, out: &mut [u8]) {
        debug_assert!(addr % PAGE_SIZE + out.len() <= PAGE_SIZE);
        let (head, tail) = split(addr, out.len());
        self.load_ends(place, addr, &mut out[..head]);
        if head < tail {
            let words = self.words(place, addr + head, (tail - head) / 8);
            for (part, word) in out[head..tail].as_chunks_mut::<8>().0.iter_mut().zip(words) {
                *part = word.load(Ordering::Relaxed).to_ne_bytes();
            }
        }
        self.load_ends(place, addr + tail, &mut out[tail..]);
    }

    fn load_ends(&self, place: FrameOffset, addr: usize, out: &mut [u8]) {
        let mut at = 0;
        while at < out.len() {
            let from = addr + at;
            match out[at..].first_chunk_mut::<4>() {
                Some(part) if from.is_multiple_of(4) => {
                    *part = self.half(place, from).load(Ordering::Relaxed).to_ne_bytes();
                    at += 4;
                }
                _ => {
                    out[at] = self.byte(place, from).load(Ordering::Relaxed);
                    at += 1;
                }
            }
        }
    }

    /// Stores bytes into one page. Relaxed.
    pub(super) fn store(&self, place: FrameOffset, addr: usize, data: &[u8]) {
        debug_assert!(addr % PAGE_SIZE + data.len() <= PAGE_SIZE);
        let (head, tail) = split(addr, data.len());
        self.store_ends(place, addr, &data[..head]);
        if head < tail {
            let words = self.words(place, addr + head, (tail - head) / 8);
            for (part, word) in data[head..tail].as_chunks::<8>().0.iter().zip(words) {
                word.store(u64::from_ne_bytes(*part), Ordering::Relaxed);
            }
        }
        self.store_ends(place, addr + tail, &data[tail..]);
    }

    fn store_ends(&self, place: FrameOffset, addr: usize, data: &[u8]) {
        let mut at = 0;
        while at < data.len() {
            let to = addr + at;
            match data[at..].first_chunk::<4>() {
                Some(part) if to.is_multiple_of(4) => {
                    self.half(place, to).store(u32::from_ne_bytes(*part), Ordering::Relaxed);
                    at += 4;
                }
                _ => {
                    self.byte(place, to).store(data[at], Ordering::Relaxed);
                    at += 1;
                }
            }
        }
    }

    /// Stores the same byte `len` times. Relaxed.
    pub(super) fn fill(&self, place: FrameOffset, addr: usize, len: usize, byte: u8) {
        debug_assert!(addr % PAGE_SIZE + len <= PAGE_SIZE);
        let (head, tail) = split(addr, len);
        let bytes = [byte; 8];
        self.store_ends(place, addr, &bytes[..head]);
        for at in (head..tail).step_by(8) {
            self.word(place, addr + at).store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        self.store_ends(place, addr + tail, &bytes[..len - tail]);
    }
}
