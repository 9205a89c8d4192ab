//! Blocks that must never be paged: those of the other library's own threads, and those of the loader.
//!
//! The threads that serve faults cannot wait for a fault. libc and the loader allocate for every thread
//! (its table of thread-local variables, what `opendir` reads into), and all threads read what the loader
//! keeps about libraries whenever a thread-local variable is used after one was loaded. So blocks for these
//! threads and for the loader come from the other library's own heap, which is the kernel's memory. That is
//! so with any allocator: one that the program was linked with calls mmap, so its memory is managed.
//!
//! The questions here are asked with each call of malloc and free, so the other library keeps a few words
//! ([`Own`]) that answer nearly all of them. Its functions are asked about the rest.
//!
//! Synchronization: the pointers are written once, before the program has threads. Signals are blocked while
//! the other heap's lock is held: a handler of the program's may wait for a thread that needs the lock.

use elbowroom_sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use libc::{c_int, c_void};
use std::ptr;

/// The other library's `elbowroom_own`.
#[repr(C)]
struct Own {
    /// The other library's blocks, and the stacks of its threads, lie between these addresses.
    start: AtomicUsize,
    end: AtomicUsize,
    /// How many of its threads have other stacks.
    lent: AtomicUsize,
}

impl Own {
    fn may_have(&self, at: usize) -> bool {
        self.start.load(Ordering::Relaxed) <= at && at < self.end.load(Ordering::Relaxed)
    }
}

static OWN: AtomicPtr<Own> = AtomicPtr::new(ptr::null_mut());

/// The functions of the other library.
static IS_OWN_THREAD: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static ALLOCATE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static FREE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static SIZE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Where the loader is mapped.
static LOADER_START: AtomicUsize = AtomicUsize::new(0);
static LOADER_LEN: AtomicUsize = AtomicUsize::new(0);

/// Finds the other library and the loader. Without the other library, no block is apart.
pub fn set_up() {
    let find = |name: &std::ffi::CStr| {
        // SAFETY: the name is a string.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    };
    let allocate = find(c"elbowroom_own_allocate");
    let (free, size) = (find(c"elbowroom_own_free"), find(c"elbowroom_own_size"));
    let (is_own_thread, own) = (find(c"elbowroom_is_own_thread"), find(c"elbowroom_own"));
    if [allocate, free, size, is_own_thread, own].iter().any(|found| found.is_null()) {
        return;
    }
    if let Some((start, len)) = loader(find(c"_r_debug")) {
        LOADER_START.store(start, Ordering::Relaxed);
        LOADER_LEN.store(len, Ordering::Relaxed);
    }
    FREE.store(free, Ordering::Release);
    SIZE.store(size, Ordering::Release);
    ALLOCATE.store(allocate, Ordering::Release);
    IS_OWN_THREAD.store(is_own_thread, Ordering::Release);
    OWN.store(own.cast(), Ordering::Release);
}

#[inline]
fn own() -> Option<&'static Own> {
    // SAFETY: null, or the other library's variable of this name, which has this type.
    unsafe { OWN.load(Ordering::Acquire).as_ref() }
}

/// Where the loader is mapped, by what it tells debuggers of itself and by its program headers: the start,
/// and the bytes.
fn loader(debug: *mut c_void) -> Option<(usize, usize)> {
    /// The loader's struct r_debug (link.h).
    #[repr(C)]
    struct Debug {
        version: c_int,
        map: usize,
        brk: usize,
        state: c_int,
        base: usize,
    }
    // SAFETY: null, or the loader's variable of this type.
    let base = unsafe { debug.cast::<Debug>().as_ref() }?.base;
    if base == 0 {
        return None;
    }
    // SAFETY: an ELF file is mapped there with its headers, as all are.
    let headers = unsafe {
        let elf = &*(base as *const libc::Elf64_Ehdr);
        std::slice::from_raw_parts(
            (base + elf.e_phoff as usize) as *const libc::Elf64_Phdr,
            elf.e_phnum.into(),
        )
    };
    let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let len = loaded.map(|header| (header.p_vaddr + header.p_memsz) as usize).max()?;
    Some((base, len))
}

/// Whether a block that is allocated by code at `caller` is to be apart.
#[inline]
pub fn is_wanted(caller: usize) -> bool {
    let Some(own) = own() else { return false };
    let from_loader =
        caller.wrapping_sub(LOADER_START.load(Ordering::Relaxed)) < LOADER_LEN.load(Ordering::Relaxed);
    let here = &raw const caller as usize;
    from_loader || (own.may_have(here) || own.lent.load(Ordering::Relaxed) > 0) && is_own_thread()
}

#[cold]
fn is_own_thread() -> bool {
    let function = IS_OWN_THREAD.load(Ordering::Acquire);
    // SAFETY: the other library's function of this name has this type; there is one, since its variable is
    // there.
    unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> bool>(function)() }
}

/// A block of zeros; null: there is no memory.
#[cold]
pub fn allocate(size: usize) -> *mut c_void {
    let function = ALLOCATE.load(Ordering::Acquire);
    if function.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the other library's function of this name has this type.
    let function =
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(usize) -> *mut c_void>(function) };
    function(size)
}

/// Whether a block lies where blocks that are apart do. Other blocks may lie there, too.
#[inline]
pub fn may_have(block: *mut c_void) -> bool {
    own().is_some_and(|own| own.may_have(block as usize))
}

/// The bytes of a block, if it is apart.
#[inline]
pub fn size_of(block: *mut c_void) -> Option<usize> {
    if may_have(block) { ask_size_of(block) } else { None }
}

#[cold]
fn ask_size_of(block: *mut c_void) -> Option<usize> {
    let function = SIZE.load(Ordering::Acquire);
    // SAFETY: the other library's function of this name has this type.
    let function =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> usize>(function) };
    // SAFETY: a block of somebody's.
    let size = unsafe { function(block) };
    (size > 0).then_some(size)
}

/// Frees a block.
///
/// # Safety
/// The block is apart, and is not used any more.
pub unsafe fn free(block: *mut c_void) {
    let function = FREE.load(Ordering::Acquire);
    // SAFETY: the other library's function of this name has this type; there is one, since there is a block.
    let function = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(function) };
    // SAFETY: the caller's promise.
    unsafe { function(block) };
}
