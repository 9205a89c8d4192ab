//! The functions that the program finds instead of libc's.

use crate::{large, next};
use libc::{c_int, c_void, size_t};
use std::ptr;

/// Exports functions under libc's names. Not in unit tests, which must not stand before their own libc.
macro_rules! export {
    ($($name:ident($($a:ident: $t:ty),*) -> $r:ty = $body:expr;)*) => {
        $(
            /// libc's function of this name.
            ///
            /// # Safety
            /// As libc's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[cfg_attr(test, allow(dead_code))]
            pub unsafe extern "C" fn $name($($a: $t),*) -> $r {
                // SAFETY: the caller's promise.
                unsafe { $body($($a),*) }
            }
        )*
    };
}

export! {
    malloc(size: size_t) -> *mut c_void = allocate;
    calloc(count: size_t, size: size_t) -> *mut c_void = allocate_zeros;
    realloc(block: *mut c_void, size: size_t) -> *mut c_void = resize;
    reallocarray(block: *mut c_void, count: size_t, size: size_t) -> *mut c_void = resize_array;
    free(block: *mut c_void) -> () = give_up;
    memalign(align: size_t, size: size_t) -> *mut c_void = allocate_aligned;
    aligned_alloc(align: size_t, size: size_t) -> *mut c_void = allocate_aligned;
    posix_memalign(to: *mut *mut c_void, align: size_t, size: size_t) -> c_int = allocate_aligned_to;
    valloc(size: size_t) -> *mut c_void = allocate_page;
    pvalloc(size: size_t) -> *mut c_void = allocate_pages;
    malloc_usable_size(block: *mut c_void) -> size_t = usable_size;
    malloc_trim(pad: size_t) -> c_int = trim;
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn() = construct;

/// Runs when the library is loaded, before the program's main and before its threads. Until then all blocks
/// are the next allocator's.
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C" fn construct() {
    large::set_up();
}

fn no_memory() -> *mut c_void {
    set_errno(libc::ENOMEM);
    ptr::null_mut()
}

fn errno() -> c_int {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = value }
}

unsafe fn allocate(size: size_t) -> *mut c_void {
    match large::allocate(size) {
        Some(block) => block,
        // SAFETY: the caller's promise.
        None => unsafe { next::malloc(size) },
    }
}

unsafe fn allocate_zeros(count: size_t, size: size_t) -> *mut c_void {
    match count.checked_mul(size).and_then(large::allocate_zeros) {
        Some(block) => block,
        // SAFETY: the caller's promise. It refuses what is too much.
        None => unsafe { next::calloc(count, size) },
    }
}

unsafe fn resize(block: *mut c_void, size: size_t) -> *mut c_void {
    if block.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { allocate(size) };
    }
    if let Some(has) = large::size_of(block) {
        // SAFETY: the caller's promise; the block is ours.
        return unsafe { resize_large(block, has, size) };
    }
    let Some(new) = large::allocate(size) else {
        // SAFETY: the caller's promise; the block is theirs.
        return unsafe { next::realloc(block, size) };
    };
    // SAFETY: the block is the caller's, who gives it up, and theirs; the new one has `size` bytes and is
    // apart.
    unsafe {
        ptr::copy_nonoverlapping(block.cast::<u8>(), new.cast(), next::usable_size(block).min(size));
        next::free(block);
    }
    new
}

/// A block of ours of `has` bytes gets another size.
unsafe fn resize_large(block: *mut c_void, has: size_t, size: size_t) -> *mut c_void {
    if size == 0 {
        // As libc: it is freed.
        // SAFETY: the caller's promise.
        unsafe { give_up(block) };
        return ptr::null_mut();
    }
    if large::is_large(size) {
        // SAFETY: the caller's promise.
        let resized = unsafe { large::resize(block, size) };
        if let Some(new) = resized {
            return new;
        }
    }
    // SAFETY: of libc's function there is no condition.
    let new = unsafe { allocate(size) };
    if !new.is_null() {
        // SAFETY: the block is the caller's, who gives it up; the new one has `size` bytes and is apart.
        unsafe {
            ptr::copy_nonoverlapping(block.cast::<u8>(), new.cast(), has.min(size));
            give_up(block);
        }
    }
    new
}

unsafe fn resize_array(block: *mut c_void, count: size_t, size: size_t) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's promise.
        Some(size) => unsafe { resize(block, size) },
        None => no_memory(),
    }
}

unsafe fn give_up(block: *mut c_void) {
    // A program may look at errno after it has freed something.
    let before = errno();
    // SAFETY: the caller's promise.
    let ours = unsafe { large::free(block) };
    if !ours {
        // SAFETY: the caller's promise.
        unsafe { next::free(block) };
    }
    set_errno(before);
}

unsafe fn allocate_aligned(align: size_t, size: size_t) -> *mut c_void {
    // libc rounds what is no power of two up.
    let rounded = align.checked_next_power_of_two().unwrap_or(usize::MAX);
    match large::allocate_aligned(rounded, size) {
        Some(block) => block,
        // SAFETY: the caller's promise.
        None => unsafe { next::memalign(align, size) },
    }
}

unsafe fn allocate_aligned_to(to: *mut *mut c_void, align: size_t, size: size_t) -> c_int {
    let valid = align.is_power_of_two() && align.is_multiple_of(size_of::<*mut c_void>());
    match if valid { large::allocate_aligned(align, size) } else { None } {
        Some(block) => {
            // SAFETY: the caller's promise.
            unsafe { *to = block };
            0
        }
        // SAFETY: the caller's promise.
        None => unsafe { next::posix_memalign(to, align, size) },
    }
}

unsafe fn allocate_page(size: size_t) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { allocate_aligned(large::PAGE, size) }
}

unsafe fn allocate_pages(size: size_t) -> *mut c_void {
    match size.checked_next_multiple_of(large::PAGE) {
        // SAFETY: the caller's promise.
        Some(size) => unsafe { allocate_aligned(large::PAGE, size) },
        None => no_memory(),
    }
}

unsafe fn usable_size(block: *mut c_void) -> size_t {
    // SAFETY: the caller's promise.
    large::size_of(block).unwrap_or_else(|| unsafe { next::usable_size(block) })
}

unsafe fn trim(pad: size_t) -> c_int {
    let given = large::trim();
    // SAFETY: the caller's promise.
    unsafe { next::trim(pad) | c_int::from(given) }
}
