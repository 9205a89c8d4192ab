//! The functions that the program finds instead of libc's.

use crate::{apart, changes, large, next, small};
use elbowroom_options::{C_VARIABLE, HeapOptions};
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

/// Exports functions whose bodies get the return address, as one more argument.
macro_rules! export_with_caller {
    ($($name:ident = $body:ident, $x86:literal, $arm:literal;)*) => {
        $(
            /// libc's function of this name.
            ///
            /// # Safety
            /// As libc's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[cfg_attr(test, allow(dead_code))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() -> *mut c_void {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!(concat!("mov ", $x86, ", [rsp]"), "jmp {body}", body = sym $body);
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!(concat!("mov ", $arm, ", x30"), "b {body}", body = sym $body);
            }
        )*
    };
}

export_with_caller! {
    malloc = malloc_for, "rsi", "x1";
    calloc = calloc_for, "rdx", "x2";
    realloc = realloc_for, "rdx", "x2";
}

export! {
    reallocarray(block: *mut c_void, count: size_t, size: size_t) -> *mut c_void = resize_array;
    free(block: *mut c_void) -> () = give_up;
    memalign(align: size_t, size: size_t) -> *mut c_void = allocate_aligned;
    aligned_alloc(align: size_t, size: size_t) -> *mut c_void = allocate_aligned_strictly;
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
    apart::set_up();
    // If another allocator than libc's comes next, no block is ours: it may have further functions that
    // take blocks, which are not interposed here. Its own mappings are managed.
    if let Some(options) = read_options()
        && next::is_libc()
    {
        changes::set_up();
        large::set_up(options.smallest_bytes as usize, options.kept_bytes as usize);
        small::set_up(options.arena_bytes as usize);
    }
}

/// What the command asks for. Without options no block is ours.
fn read_options() -> Option<HeapOptions> {
    // SAFETY: the name is a string; no other thread exists.
    let text = unsafe { libc::getenv(C_VARIABLE.as_ptr()) };
    if text.is_null() {
        return None;
    }
    // SAFETY: the environment holds strings.
    HeapOptions::parse(unsafe { std::ffi::CStr::from_ptr(text) }.to_str().ok()?)
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

unsafe extern "C" fn malloc_for(size: size_t, caller: usize) -> *mut c_void {
    let apart = if apart::is_wanted(caller) { apart::allocate(size) } else { ptr::null_mut() };
    // SAFETY: the caller's promise.
    if apart.is_null() { unsafe { allocate(size) } } else { apart }
}

unsafe extern "C" fn calloc_for(count: size_t, size: size_t, caller: usize) -> *mut c_void {
    let apart = match count.checked_mul(size) {
        Some(bytes) if apart::is_wanted(caller) => apart::allocate(bytes),
        _ => ptr::null_mut(),
    };
    // SAFETY: the caller's promise.
    if apart.is_null() { unsafe { allocate_zeros(count, size) } } else { apart }
}

unsafe extern "C" fn realloc_for(block: *mut c_void, size: size_t, caller: usize) -> *mut c_void {
    if block.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { malloc_for(size, caller) };
    }
    if apart::size_of(block).is_none() {
        // SAFETY: the caller's promise.
        return unsafe { resize(block, size) };
    }
    // A block that is apart stays apart: the same threads use it.
    let new = if size == 0 { ptr::null_mut() } else { apart::allocate(size) };
    if !new.is_null() || size == 0 {
        // SAFETY: the caller's promise.
        unsafe { move_to(new, size, block) };
    }
    new
}

#[inline]
unsafe fn allocate(size: size_t) -> *mut c_void {
    match large::allocate(size).or_else(|| small::allocate(size)) {
        Some(block) => block,
        // SAFETY: the caller's promise.
        None => unsafe { next::malloc(size) },
    }
}

unsafe fn allocate_zeros(count: size_t, size: size_t) -> *mut c_void {
    let ours = |bytes| large::allocate_zeros(bytes).or_else(|| small::allocate_zeros(bytes));
    match count.checked_mul(size).and_then(ours) {
        Some(block) => block,
        // SAFETY: the caller's promise. The next allocator refuses too large a size.
        None => unsafe { next::calloc(count, size) },
    }
}

unsafe fn resize(block: *mut c_void, size: size_t) -> *mut c_void {
    if block.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { allocate(size) };
    }
    let (is_small, is_large) = (small::has(block), large::size_of(block).is_some());
    if size == 0 && (is_small || is_large) {
        // As in libc, the block is freed.
        // SAFETY: the caller's promise.
        unsafe { give_up(block) };
        return ptr::null_mut();
    }
    let stays = match large::is_large(size) {
        // SAFETY: the caller's promise.
        true if is_large => unsafe { large::resize(block, size) },
        // SAFETY: the caller's promise.
        false if is_small => unsafe { small::resize(block, size) },
        // SAFETY: the caller's promise; the block is theirs.
        false if !is_large => return unsafe { next::realloc(block, size) },
        _ => None,
    };
    stays.unwrap_or_else(|| {
        // SAFETY: of libc's function there is no condition.
        let new = unsafe { allocate(size) };
        if !new.is_null() {
            // SAFETY: the block is the caller's, who gives it up; the new one has `size` bytes.
            unsafe { move_to(new, size, block) };
        }
        new
    })
}

/// Copies the bytes of a block to a new one of `size` bytes, and frees the old one.
///
/// # Safety
/// Both blocks are the caller's, and the old one is not used any more.
unsafe fn move_to(new: *mut c_void, size: usize, block: *mut c_void) {
    // SAFETY: the caller's promise; they are apart.
    unsafe {
        ptr::copy_nonoverlapping(block.cast::<u8>(), new.cast(), usable_size(block).min(size));
        give_up(block);
    }
}

unsafe fn resize_array(block: *mut c_void, count: size_t, size: size_t) -> *mut c_void {
    match count.checked_mul(size) {
        // By the name realloc, as libc does: a program's own realloc is called for its own blocks.
        // SAFETY: the caller's promise.
        Some(size) => unsafe { libc::realloc(block, size) },
        None => no_memory(),
    }
}

unsafe fn give_up(block: *mut c_void) {
    if small::has(block) || large::may_have(block) || apart::may_have(block) {
        // SAFETY: the caller's promise.
        unsafe { give_up_likely_ours(block) };
    } else {
        // errno is as the next allocator leaves it, as it would be without this library.
        // SAFETY: the caller's promise.
        unsafe { next::free(block) };
    }
}

unsafe fn give_up_likely_ours(block: *mut c_void) {
    // A program may look at errno after it has freed something.
    let before = errno();
    // SAFETY: the caller's promise, for each.
    unsafe {
        if small::has(block) {
            small::free(block);
        } else if !large::free(block) {
            if apart::size_of(block).is_some() { apart::free(block) } else { next::free(block) }
        }
    }
    set_errno(before);
}

unsafe fn allocate_aligned(align: size_t, size: size_t) -> *mut c_void {
    // SAFETY: the caller's promise.
    ours_aligned(align, size).unwrap_or_else(|| unsafe { next::memalign(align, size) })
}

/// Separate from [`allocate_aligned`], since allocators other than libc's refuse, with an errno, arguments
/// that memalign takes, or refuses without one.
unsafe fn allocate_aligned_strictly(align: size_t, size: size_t) -> *mut c_void {
    // SAFETY: the caller's promise.
    ours_aligned(align, size).unwrap_or_else(|| unsafe { next::aligned_alloc(align, size) })
}

fn ours_aligned(align: size_t, size: size_t) -> Option<*mut c_void> {
    // libc rounds an alignment that is no power of two up.
    let rounded = align.checked_next_power_of_two().unwrap_or(usize::MAX);
    large::allocate_aligned(rounded, size).or_else(|| small::allocate_aligned(rounded, size))
}

unsafe fn allocate_aligned_to(to: *mut *mut c_void, align: size_t, size: size_t) -> c_int {
    let valid = align.is_power_of_two() && align.is_multiple_of(size_of::<*mut c_void>());
    let ours = || large::allocate_aligned(align, size).or_else(|| small::allocate_aligned(align, size));
    match valid.then(ours).flatten() {
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
    if small::has(block) {
        // SAFETY: the caller's promise.
        return unsafe { small::size_of(block) };
    }
    let ours = large::size_of(block).or_else(|| apart::size_of(block));
    // SAFETY: the caller's promise.
    ours.unwrap_or_else(|| unsafe { next::usable_size(block) })
}

unsafe fn trim(pad: size_t) -> c_int {
    let given = large::trim();
    small::trim();
    // SAFETY: the caller's promise.
    unsafe { next::trim(pad) | c_int::from(given) }
}
