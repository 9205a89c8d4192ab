//! All other blocks, for `--heap all`: mimalloc's, in one mapping of ours.
//!
//! The first blocks of a program are libc's as ever, so that a program with little memory pays for nothing.
//! As soon as it has allocated [`LIBC_BYTES`], a range of addresses is mapped by a call of mmap, so that it
//! is managed, and given to mimalloc, which gets no memory from elsewhere. Blocks in the range are
//! mimalloc's. If the range is full, libc is asked again.
//!
//! A block that is freed twice, or from its inside, ends the program ([`crate::live`]).
//!
//! Synchronization: the range is written before `STATE` says so. mimalloc takes no locks where it allocates
//! and frees (of its two kept versions that is the second), so a forked child can go on with what was copied.

use crate::changes;
use crate::live::{self, ALIGN};
use elbowroom_sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use libc::c_void;
use libmimalloc_sys as mi;
use std::ptr;

/// How many bytes libc allocates in all, before small blocks are mimalloc's.
const LIBC_BYTES: usize = 2 << 20;

/// Larger alignments are left to libc.
const MAX_ALIGN: usize = 64 << 10;

/// mimalloc's option of this number (mimalloc.h): the milliseconds after which freed memory is given back.
const PURGE_DELAY: mi::mi_option_t = 15;
const PURGE_DELAY_MS: libc::c_long = 1000;

/// All blocks are libc's.
const OFF: u32 = 0;
/// Blocks are libc's as long as there are few.
const FEW: u32 = 1;
/// A thread maps the range; until it has, blocks are libc's.
const MAPPING: u32 = 2;
const ON: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(OFF);
/// Bytes that libc allocated so far.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);

/// From now on small blocks are ours, in a range of so many bytes, unless that is 0.
pub fn set_up(bytes: usize) {
    if bytes == 0 {
        return;
    }
    LEN.store(bytes, Ordering::Relaxed);
    STATE.store(FEW, Ordering::Release);
}

/// Whether a block of so many bytes is to be ours.
#[inline]
fn is_ours(size: usize) -> bool {
    match STATE.load(Ordering::Acquire) {
        ON => true,
        FEW => are_many(size),
        _ => false,
    }
}

/// Counts a block of so many bytes. Tells whether it is ours: libc has allocated [`LIBC_BYTES`] before it.
#[cold]
fn are_many(size: usize) -> bool {
    let before = ALLOCATED.fetch_add(size, Ordering::Relaxed);
    before >= LIBC_BYTES && start()
}

/// Maps the range. `false`: another thread maps it, or it cannot be mapped.
fn start() -> bool {
    if STATE.compare_exchange(FEW, MAPPING, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return STATE.load(Ordering::Acquire) == ON;
    }
    let len = LEN.load(Ordering::Relaxed);
    let given = changes::map(len, libc::MAP_NORESERVE).filter(|at| {
        // SAFETY: options of mimalloc, and memory that was just mapped and is nobody else's.
        unsafe {
            mi::mi_option_set(mi::mi_option_limit_os_alloc, 1);
            mi::mi_option_set(PURGE_DELAY, PURGE_DELAY_MS);
            let start = *at as *mut c_void;
            mi::mi_manage_os_memory_ex(start, len, true, false, true, -1, false, ptr::null_mut())
        }
    });
    if let Some(at) = given {
        live::set_up(at, len);
        START.store(at, Ordering::Release);
    }
    STATE.store(if given.is_some() { ON } else { OFF }, Ordering::Release);
    given.is_some()
}

/// Whether the block is in the range.
#[inline]
pub fn has(block: *mut c_void) -> bool {
    let start = START.load(Ordering::Acquire);
    start != 0 && (block as usize).wrapping_sub(start) < LEN.load(Ordering::Relaxed)
}

/// Notes that a block is handed out. `None` if mimalloc gave none.
#[inline]
fn handed_out(block: *mut c_void) -> Option<*mut c_void> {
    if block.is_null() {
        return None;
    }
    live::begin(block as usize);
    Some(block)
}

/// Allocates a block; `None`: the next allocator is to try.
#[inline]
pub fn allocate(size: usize) -> Option<*mut c_void> {
    // SAFETY: of these functions there is no condition.
    handed_out(is_ours(size).then(|| unsafe { mi::mi_malloc(size.max(ALIGN)) })?)
}

/// As [`allocate`], of zeros. Does not touch memory that is new, and so zero.
pub fn allocate_zeros(size: usize) -> Option<*mut c_void> {
    // SAFETY: as above.
    handed_out(is_ours(size).then(|| unsafe { mi::mi_zalloc(size.max(ALIGN)) })?)
}

/// As [`allocate`], at a multiple of `align`, a power of two.
pub fn allocate_aligned(align: usize, size: usize) -> Option<*mut c_void> {
    let ours = align <= MAX_ALIGN && is_ours(size);
    // SAFETY: as above.
    handed_out(ours.then(|| unsafe { mi::mi_malloc_aligned(size.max(ALIGN), align) })?)
}

/// The bytes of a block.
///
/// # Safety
/// The block is in the range.
pub unsafe fn size_of(block: *mut c_void) -> usize {
    // SAFETY: the caller's promise.
    unsafe { mi::mi_usable_size(block) }
}

/// Gives a block another size; it may move. `None`: it is as it was. Ends the program if this is no block,
/// or a freed one.
///
/// # Safety
/// It is in the range, and the caller's if it is a block.
pub unsafe fn resize(block: *mut c_void, size: usize) -> Option<*mut c_void> {
    // Before mimalloc may give the block to another thread.
    if !live::end(block as usize) {
        live::abort(b"realloc(): invalid pointer\n");
    }
    // SAFETY: the caller's promise.
    let new = unsafe { mi::mi_realloc(block, size.max(ALIGN)) };
    if new.is_null() {
        live::begin(block as usize);
    }
    handed_out(new)
}

/// Frees a block. Ends the program if this is no block, or a freed one.
///
/// # Safety
/// It is in the range, and is not used any more.
pub unsafe fn free(block: *mut c_void) {
    if !live::end(block as usize) {
        live::abort(b"free(): double free or invalid pointer\n");
    }
    // SAFETY: the caller's promise.
    unsafe { mi::mi_free(block) };
}

/// Gives free memory back.
pub fn trim() {
    if STATE.load(Ordering::Acquire) == ON {
        // SAFETY: of this function there is no condition.
        unsafe { mi::mi_collect(true) };
    }
}
