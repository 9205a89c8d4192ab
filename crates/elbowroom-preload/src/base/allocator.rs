//! Whether the executable itself defines malloc: an allocator that was linked into it, or a sanitizer.
//!
//! All objects use such a malloc, the loader included, and no library can stand before it. So a thread of
//! ours that starts, for which the loader allocates, may need the allocator's lock. The thread that holds the
//! lock may wait for ours: for the mapping that it wants to allocate from, or for a page of it. So the kernel
//! keeps all private memory of such a program.

use elbowroom_options::sanitizer;
use libc::{c_int, c_ulong, c_void};
use std::ffi::CStr;

/// Flag of dladdr1: give the symbol, too.
const RTLD_DL_SYMENT: c_int = 1;

unsafe extern "C" {
    fn dladdr1(at: *const c_void, info: *mut libc::Dl_info, extra: *mut *mut c_void, flags: c_int) -> c_int;
}

/// The load address of the object that the address is in, and whether the symbol at the address is defined
/// there.
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

/// Whether the executable defines malloc. Called by the constructor: the answer stays.
pub fn is_in_the_executable() -> bool {
    is_executables(c"malloc")
}

/// Whether all objects find the executable's function under this name.
fn is_executables(name: &CStr) -> bool {
    // SAFETY: the name is a string.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: an integer.
    let entry: c_ulong = unsafe { libc::getauxval(libc::AT_ENTRY) };
    let executable = object_of(entry as *const c_void);
    !function.is_null()
        && object_of(function)
            .zip(executable)
            .is_some_and(|((of_function, defined), (executable, _))| defined && of_function == executable)
}

/// The sanitizer, or Valgrind, whose runtime is in this process: linked into the executable, or loaded.
/// Called by the constructor: the answer stays.
///
/// The runtime would handle our threads, too: it would check their stores, and take locks to start them,
/// which may be held by a thread that waits for ours.
pub fn sanitizer() -> Option<&'static str> {
    // SAFETY: the name is a string.
    let has = |name: &CStr| !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.is_null();
    let named = sanitizer::ALL.iter().find(|runtime| has(runtime.symbol)).map(|runtime| runtime.name);
    // Valgrind runs one thread at a time, and knows neither io_uring nor userfaultfd.
    let valgrind = || has(c"_vgnU_freeres").then_some("Valgrind");
    // GCC shows no symbol of a runtime that it links into an executable, but for those of libc's functions
    // that the runtime stands before.
    let linked = || [c"malloc", c"pthread_create", c"sigaction"].into_iter().all(is_executables);
    named.or_else(valgrind).or_else(|| linked().then_some("a sanitizer"))
}
