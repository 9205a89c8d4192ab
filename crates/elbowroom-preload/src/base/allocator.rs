//! Whether the executable itself defines malloc: an allocator that was linked into it.
//!
//! All objects use such a malloc, the loader included, and no library can stand before it. So a thread of
//! ours that starts, for which the loader allocates, may need the allocator's lock. The thread that holds the
//! lock may wait for ours: for the mapping that it wants to allocate from, or for a page of it. So the kernel
//! keeps all private memory of such a program.

use libc::{c_int, c_ulong, c_void};

/// Of dladdr1: give the symbol, too.
const RTLD_DL_SYMENT: c_int = 1;

unsafe extern "C" {
    fn dladdr1(at: *const c_void, info: *mut libc::Dl_info, extra: *mut *mut c_void, flags: c_int) -> c_int;
}

/// Where the object begins that the address belongs to, and whether a symbol is defined there.
fn object_of(at: *const c_void) -> Option<(*mut c_void, bool)> {
    // SAFETY: all zero is a valid `Dl_info`.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let mut symbol = std::ptr::null_mut();
    // SAFETY: both are written; the address is only compared.
    if unsafe { dladdr1(at, &mut info, &mut symbol, RTLD_DL_SYMENT) } == 0 {
        return None;
    }
    // SAFETY: null, or the loader's own table, which stays.
    let symbol = unsafe { symbol.cast::<libc::Elf64_Sym>().as_ref() };
    // An executable that is not position-independent has entries for functions of libraries, undefined ones.
    Some((info.dli_fbase, symbol.is_some_and(|symbol| symbol.st_shndx != 0)))
}

/// Whether it does. Called by the constructor: the answer stays.
pub fn is_in_the_executable() -> bool {
    // SAFETY: the name is a string.
    let malloc = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
    // SAFETY: an integer.
    let entry: c_ulong = unsafe { libc::getauxval(libc::AT_ENTRY) };
    let executable = object_of(entry as *const c_void);
    !malloc.is_null()
        && object_of(malloc)
            .zip(executable)
            .is_some_and(|((of_malloc, defined), (executable, _))| defined && of_malloc == executable)
}
