//! Large blocks: mappings of their own, made by calls of mmap, munmap and mremap, which the other library
//! interposes.

use crate::cache::Cache;
use crate::changes;
use crate::live;
use crate::table::{Block, Table};
use elbowroom_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use libc::c_void;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// The number of places in the table: twice as many as a process may have mappings.
const BLOCKS: usize = 1 << 17;

/// The most freed blocks that are kept.
const KEPT: usize = 32;

struct Words<const N: usize>([AtomicU64; N]);

impl<const N: usize> AsRef<[AtomicU64]> for Words<N> {
    fn as_ref(&self) -> &[AtomicU64] {
        &self.0
    }
}

const fn words<const N: usize>() -> Words<N> {
    Words([const { AtomicU64::new(0) }; N])
}

static TABLE: Table<Words<BLOCKS>> = Table::new(words(), words());
static FREED: Cache<Words<KEPT>> = Cache::new(words());

/// Blocks from this size on are large.
static SMALLEST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// From now on blocks of so many bytes and more are large, and up to `kept` bytes of freed ones are kept.
pub fn set_up(smallest: usize, kept: usize) {
    FREED.set_most(kept);
    SMALLEST.store(std::cmp::max(smallest, PAGE), Ordering::Release);
}

/// Whether a block of so many bytes is to be ours.
#[inline]
pub fn is_large(size: usize) -> bool {
    // Larger sizes are refused by the next allocator.
    size >= SMALLEST.load(Ordering::Relaxed) && size <= isize::MAX as usize - 2 * PAGE
}

fn pages_for(size: usize) -> usize {
    size.next_multiple_of(PAGE)
}

fn map(len: usize) -> Option<usize> {
    changes::map(len, 0)
}

fn unmap(at: usize, len: usize) {
    if len > 0 {
        // SAFETY: a part of a mapping of ours, which nobody uses any more. If the kernel has no memory to
        // split one, it stays.
        unsafe { changes::unmap(at as *mut c_void, len) };
    }
}

/// Enters a block that is mapped; unmaps it if there is no room in the table.
fn enter(block: Block) -> Option<*mut c_void> {
    if TABLE.insert(block, changes::now()) {
        return Some(block.at as *mut c_void);
    }
    unmap(block.at, block.len);
    None
}

/// Allocates a block; `None`: the next allocator is to try.
#[inline]
pub fn allocate(size: usize) -> Option<*mut c_void> {
    if is_large(size) { allocate_large(size) } else { None }
}

fn allocate_large(size: usize) -> Option<*mut c_void> {
    let len = pages_for(size);
    match FREED.take(len) {
        Some(block) => enter(block),
        None => make_room(len),
    }
}

/// As [`allocate`], of zeros. Does not touch the memory.
pub fn allocate_zeros(size: usize) -> Option<*mut c_void> {
    if !is_large(size) {
        return None;
    }
    let len = pages_for(size);
    if let Some(block) = FREED.take(len) {
        // SAFETY: the block is nobody's.
        let dropped = unsafe { libc::madvise(block.at as *mut c_void, block.len, libc::MADV_DONTNEED) };
        if dropped == 0 {
            return enter(block);
        }
        unmap(block.at, block.len);
    }
    make_room(len)
}

/// As [`allocate`], at a multiple of `align`, a power of two.
pub fn allocate_aligned(align: usize, size: usize) -> Option<*mut c_void> {
    if align <= PAGE {
        return allocate(size);
    }
    if !is_large(size) {
        return None;
    }
    let len = pages_for(size);
    // The parts before and behind the block are unmapped again.
    let room = len.checked_add(align - PAGE)?;
    let at = map(room)?;
    let start = at.next_multiple_of(align);
    unmap(at, start - at);
    unmap(start + len, at + room - (start + len));
    enter(Block { at: start, len })
}

/// Whether a block begins at a page, as ours do. Nearly no other block does.
#[inline]
pub fn may_have(block: *mut c_void) -> bool {
    !block.is_null() && (block as usize).is_multiple_of(PAGE)
}

/// The bytes of a block, if it is ours.
#[inline]
pub fn size_of(block: *mut c_void) -> Option<usize> {
    if may_have(block) { TABLE.size_of(block as usize) } else { None }
}

/// Frees a block; `false`: it is not ours. Ends the program if the block is among the freed ones that are
/// kept.
///
/// # Safety
/// The block is not used any more.
pub unsafe fn free(block: *mut c_void) -> bool {
    if !may_have(block) {
        return false;
    }
    // Out of the table first: as soon as the block is unmapped, another thread's block may be at the
    // address.
    let Some((block, since)) = TABLE.remove(block as usize) else {
        if FREED.has(block as usize) {
            live::abort(b"free(): double free\n");
        }
        return false;
    };
    let as_new = !changes::since(since, block.at, block.len);
    if !(as_new && FREED.put(block)) {
        unmap(block.at, block.len);
    }
    true
}

/// Gives a block of ours another size, large as well; it may move. `None`: it is as it was.
///
/// # Safety
/// The caller owns it.
pub unsafe fn resize(block: *mut c_void, size: usize) -> Option<*mut c_void> {
    let at = block as usize;
    let has = TABLE.size_of(at)?;
    let len = pages_for(size);
    // A size that an entry of the table cannot hold is for the next allocator.
    Block { at, len }.word()?;
    // A block that is to be a little smaller stays as it is.
    if len <= has && has - len <= has / 4 {
        return Some(block);
    }
    // The entry cannot be found meanwhile: as soon as the block has moved, another thread's block may be at
    // the old address.
    let held = TABLE.hold(at)?;
    // SAFETY: the caller owns the block, which is a mapping of ours.
    let new = unsafe { changes::remap(block, has, len) };
    if new == libc::MAP_FAILED || new == block {
        held.put_back(if new == block { len } else { has });
        return (new == block).then_some(block);
    }
    // A change of the mapping (rights, guards) moves with the block.
    let since = if changes::since(held.since(), at, has) { changes::CHANGED } else { changes::now() };
    drop(held);
    if !TABLE.insert(Block { at: new as usize, len }, since) {
        // The old entry has made room, which other threads have taken: there are more blocks than a process
        // can have mappings. Without an entry the block could not be freed.
        live::abort(b"elbowroom: too many large blocks\n");
    }
    Some(new)
}

/// Maps a new block, and enters it in the table.
fn make_room(len: usize) -> Option<*mut c_void> {
    enter(Block { at: map(len)?, len })
}

/// Unmaps the freed blocks that are kept; tells whether there were any.
pub fn trim() -> bool {
    FREED.take_all().map(|block| unmap(block.at, block.len)).count() > 0
}
