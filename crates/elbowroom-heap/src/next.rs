//! The allocator that comes next: libc's, or one that the program was linked with.
//!
//! Its functions are looked up by the first call of any of them, when there is one thread, and all at once:
//! a block must be freed by the allocator that it is from. The look-up itself may allocate: such blocks
//! come from a small array, and their memory is never used again.
//!
//! Synchronization: atomics; the pointers are written before `STATE` says so.

use elbowroom_sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use libc::{c_int, c_void, size_t};
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::ptr;

const UNKNOWN: u32 = 0;
const LOOKING: u32 = 1;
const KNOWN: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);

/// Bytes for what is allocated while the functions are looked up.
const EARLY_BYTES: usize = 16 << 10;
const EARLY_ALIGN: usize = 16;

#[repr(align(16))]
struct Early(UnsafeCell<[u8; EARLY_BYTES]>);

// SAFETY: parts of it are given out once each.
unsafe impl Sync for Early {}

static EARLY: Early = Early(UnsafeCell::new([0; EARLY_BYTES]));
static EARLY_USED: AtomicUsize = AtomicUsize::new(0);

/// A part of the array, of zeros, with its size before it; null if the array is used up.
fn early(size: usize) -> *mut c_void {
    let Some(len) = size.checked_next_multiple_of(EARLY_ALIGN) else { return ptr::null_mut() };
    let len = len.min(EARLY_BYTES) + EARLY_ALIGN;
    let at = EARLY_USED.fetch_add(len, Ordering::Relaxed);
    if at + len > EARLY_BYTES {
        return ptr::null_mut();
    }
    // SAFETY: inside the array, by the check, and aligned; nobody else has this part.
    unsafe {
        let head = EARLY.0.get().cast::<u8>().add(at);
        head.cast::<usize>().write(size);
        head.add(EARLY_ALIGN).cast()
    }
}

/// The bytes of a block of the array, if it is one.
#[inline]
fn early_size(block: *mut c_void) -> Option<usize> {
    let (at, start) = (block as usize, EARLY.0.get() as usize);
    // SAFETY: it was given out by `early`, which wrote its size before it.
    (start < at && at < start + EARLY_BYTES)
        .then(|| unsafe { block.byte_sub(EARLY_ALIGN).cast::<usize>().read() })
}

macro_rules! next {
    ($($name:ident = $symbol:literal($($a:ident: $t:ty),*) -> $r:ty;)*) => {
        #[allow(non_upper_case_globals)]
        mod pointers {
            use super::*;
            $(pub static $name: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());)*
        }

        fn look_up_all() {
            $(
                // SAFETY: the name is a string.
                let found = unsafe { libc::dlsym(libc::RTLD_NEXT, CStr::as_ptr($symbol)) };
                pointers::$name.store(found, Ordering::Release);
            )*
        }

        mod call {
            use super::*;
            $(
                /// The next function of this name.
                ///
                /// # Safety
                /// As that function; it is known.
                pub unsafe fn $name($($a: $t),*) -> $r {
                    type Function = unsafe extern "C" fn($($t),*) -> $r;
                    let pointer = pointers::$name.load(Ordering::Relaxed);
                    // SAFETY: the function of this name has this type, and there is one: libc has all.
                    let function: Function = unsafe { std::mem::transmute(pointer) };
                    // SAFETY: the caller's promise.
                    unsafe { function($($a),*) }
                }
            )*
        }
    };
}

next! {
    malloc = c"malloc"(size: size_t) -> *mut c_void;
    calloc = c"calloc"(count: size_t, size: size_t) -> *mut c_void;
    realloc = c"realloc"(block: *mut c_void, size: size_t) -> *mut c_void;
    free = c"free"(block: *mut c_void) -> ();
    memalign = c"memalign"(align: size_t, size: size_t) -> *mut c_void;
    aligned_alloc = c"aligned_alloc"(align: size_t, size: size_t) -> *mut c_void;
    posix_memalign = c"posix_memalign"(to: *mut *mut c_void, align: size_t, size: size_t) -> c_int;
    usable_size = c"malloc_usable_size"(block: *mut c_void) -> size_t;
    trim = c"malloc_trim"(pad: size_t) -> c_int;
}

/// Whether the functions can be called; looks them up if they were not yet. `false`: this is a call from
/// within the look-up.
#[inline]
fn is_known() -> bool {
    STATE.load(Ordering::Acquire) == KNOWN || become_known()
}

#[cold]
fn become_known() -> bool {
    match STATE.load(Ordering::Acquire) {
        UNKNOWN => {
            STATE.store(LOOKING, Ordering::Relaxed);
            look_up_all();
            STATE.store(KNOWN, Ordering::Release);
            true
        }
        state => state == KNOWN,
    }
}

/// Whether the next allocator is libc's. Another one may have further functions that take its blocks.
pub fn is_libc() -> bool {
    // SAFETY: the name is a string.
    let libc = unsafe { libc::dlsym(libc::RTLD_NEXT, CStr::as_ptr(c"__libc_malloc")) };
    is_known() && !libc.is_null() && pointers::malloc.load(Ordering::Relaxed) == libc
}

/// # Safety
/// As libc's function of this name; so are all that follow.
pub unsafe fn malloc(size: size_t) -> *mut c_void {
    // SAFETY: the caller's promise.
    if is_known() { unsafe { call::malloc(size) } } else { early(size) }
}

/// # Safety
/// As libc's.
pub unsafe fn calloc(count: size_t, size: size_t) -> *mut c_void {
    if is_known() {
        // SAFETY: the caller's promise.
        return unsafe { call::calloc(count, size) };
    }
    count.checked_mul(size).map_or(ptr::null_mut(), early)
}

/// # Safety
/// As libc's.
pub unsafe fn realloc(block: *mut c_void, size: size_t) -> *mut c_void {
    let Some(has) = early_size(block) else {
        // SAFETY: the caller's promise.
        return if is_known() { unsafe { call::realloc(block, size) } } else { early(size) };
    };
    // SAFETY: the caller's promise.
    let new = unsafe { malloc(size) };
    if !new.is_null() {
        // SAFETY: both have so many bytes, and are apart.
        unsafe { ptr::copy_nonoverlapping(block.cast::<u8>(), new.cast(), has.min(size)) };
    }
    new
}

/// # Safety
/// As libc's.
pub unsafe fn free(block: *mut c_void) {
    if !block.is_null() && early_size(block).is_none() && is_known() {
        // SAFETY: the caller's promise.
        unsafe { call::free(block) };
    }
}

/// # Safety
/// As libc's.
pub unsafe fn memalign(align: size_t, size: size_t) -> *mut c_void {
    // SAFETY: the caller's promise.
    if is_known() { unsafe { call::memalign(align, size) } } else { ptr::null_mut() }
}

/// # Safety
/// As libc's.
pub unsafe fn aligned_alloc(align: size_t, size: size_t) -> *mut c_void {
    // SAFETY: the caller's promise.
    if is_known() { unsafe { call::aligned_alloc(align, size) } } else { ptr::null_mut() }
}

/// # Safety
/// As libc's.
pub unsafe fn posix_memalign(to: *mut *mut c_void, align: size_t, size: size_t) -> c_int {
    // SAFETY: the caller's promise.
    if is_known() { unsafe { call::posix_memalign(to, align, size) } } else { libc::ENOMEM }
}

/// # Safety
/// As libc's malloc_usable_size.
pub unsafe fn usable_size(block: *mut c_void) -> size_t {
    match early_size(block) {
        Some(size) => size,
        // SAFETY: the caller's promise.
        None if is_known() => unsafe { call::usable_size(block) },
        None => 0,
    }
}

/// # Safety
/// As libc's malloc_trim.
pub unsafe fn trim(pad: size_t) -> c_int {
    // SAFETY: the caller's promise.
    if is_known() { unsafe { call::trim(pad) } } else { 0 }
}
