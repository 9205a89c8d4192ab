//! Whether the program has changed the mapping of a block (rights, guards, holes, locks, advice for forks),
//! as the other library tells, which interposes the calls that change mappings. Such a block is not kept
//! when it is freed.
//!
//! Changes by raw system calls are not known.
//!
//! Synchronization: the pointers are written once, before the program has threads.

use elbowroom_sync::atomic::{AtomicPtr, Ordering};
use libc::{c_int, c_void};
use std::ptr;

/// The time of a block that was changed, and has moved since: it counts as changed for good.
pub const CHANGED: u64 = u64::MAX;

static NOW: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static CHANGED_SINCE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static MAP: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static UNMAP: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static REMAP: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Finds the other library's functions. Without them the program is taken to change nothing.
pub fn set_up() {
    let found = [
        (&NOW, c"elbowroom_changes"),
        (&CHANGED_SINCE, c"elbowroom_changed_since"),
        (&MAP, c"elbowroom_map"),
        (&UNMAP, c"elbowroom_unmap"),
        (&REMAP, c"elbowroom_remap"),
    ]
    .map(|(place, name)| {
        // SAFETY: the name is a string.
        (place, unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
    });
    if found.iter().all(|(_, function)| !function.is_null()) {
        found.iter().for_each(|(place, function)| place.store(*function, Ordering::Release));
    }
}

/// The time, as the other library counts it.
pub fn now() -> u64 {
    let function = NOW.load(Ordering::Acquire);
    if function.is_null() {
        return 0;
    }
    // SAFETY: the other library's function of this name has this type.
    unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(function)() }
}

/// Whether the program may have changed the mapping of a range since a time.
pub fn since(time: u64, at: usize, len: usize) -> bool {
    let function = CHANGED_SINCE.load(Ordering::Acquire);
    if function.is_null() || time == CHANGED {
        return time == CHANGED;
    }
    type Changed = extern "C" fn(u64, usize, usize) -> bool;
    // SAFETY: the other library's function of this name has this type.
    unsafe { std::mem::transmute::<*mut c_void, Changed>(function)(time, at, len) }
}

/// Maps new memory that can be read and written, which the other library then knows as the heap's. `flags`:
/// beside MAP_PRIVATE and MAP_ANONYMOUS.
pub fn map(len: usize, flags: c_int) -> Option<usize> {
    let function = MAP.load(Ordering::Acquire);
    let at = if function.is_null() {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, wherever it is put.
        unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) }
    } else {
        // SAFETY: the other library's function of this name has this type.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(usize, c_int) -> *mut c_void>(function)(
                len, flags,
            )
        }
    };
    (at != libc::MAP_FAILED).then_some(at as usize)
}

/// munmap, which does not count as a change by the program.
///
/// # Safety
/// As munmap.
pub unsafe fn unmap(at: *mut c_void, len: usize) -> c_int {
    let function = UNMAP.load(Ordering::Acquire);
    if function.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { libc::munmap(at, len) };
    }
    type Unmap = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
    // SAFETY: the other library's function of this name has this type; the caller's promise.
    unsafe { std::mem::transmute::<*mut c_void, Unmap>(function)(at, len) }
}

/// mremap to wherever there is room, which does not count as a change by the program.
///
/// # Safety
/// As mremap.
pub unsafe fn remap(at: *mut c_void, len: usize, new_len: usize) -> *mut c_void {
    let function = REMAP.load(Ordering::Acquire);
    if function.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { libc::mremap(at, len, new_len, libc::MREMAP_MAYMOVE) };
    }
    type Remap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;
    // SAFETY: the other library's function of this name has this type; the caller's promise.
    unsafe {
        std::mem::transmute::<*mut c_void, Remap>(function)(
            at,
            len,
            new_len,
            libc::MREMAP_MAYMOVE,
            ptr::null_mut(),
        )
    }
}
