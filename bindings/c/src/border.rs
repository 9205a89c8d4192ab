//! What passes between C and Rust: errors are numbers with a text, panics are errors, structs have a size.

use elbowroom_house::caller::Words;
use elbowroom_house::failure::{Failure, Kind};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

/// What errors call things.
pub const WORDS: Words = Words {
    shared_swap: "",
    own_budget: "",
    fork: "execute a program in the child, or make the memory there",
    trust: "open it with ER_TRUST to have it managed all the same, or map it with ER_OR_KERNEL",
    swap_dir: "name another directory in er_config.swap_dir",
    swap: "give the group a larger max or swap_max",
};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Sets `errno` of the calling thread.
pub fn set_errno(errno: c_int) {
    // SAFETY: libc gives the thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Runs a call. Returns 0, or the number of its error, whose text is kept for the thread.
pub fn call(f: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Failure::new(Kind::System, format!("internal error: {text}"))
        }
    };
    keep(&failure.text);
    failure.errno
}

/// Keeps the text of an error for the calling thread.
fn keep(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // A thread that ends has no place for it any more.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// The text of the last error, which lives until the next one of the thread.
pub fn last() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// EINVAL, with a text.
pub fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(Kind::Value, text.into())
}

/// The path at a pointer.
///
/// # Safety
/// The pointer is NULL, or that of a text that ends.
pub unsafe fn path(at: *const c_char, what: &str) -> Result<PathBuf, Failure> {
    use std::os::unix::ffi::OsStringExt;
    if at.is_null() {
        return Err(invalid(format!("{what} is NULL")));
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(at) }.to_bytes().to_vec();
    Ok(std::ffi::OsString::from_vec(bytes).into())
}

/// Stores a result where the program wants it.
///
/// # Safety
/// The pointer is NULL, or has room for a `T`.
pub unsafe fn put<T>(to: *mut T, value: T, what: &str) -> Result<(), Failure> {
    if to.is_null() {
        return Err(invalid(format!("{what} is NULL")));
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// A struct of the program's that may be larger or smaller than ours. What it does not have is as in `value`,
/// and what we do not know must be zero.
///
/// # Safety
/// `at` is NULL, or begins with a `size_t` that says how many bytes can be read there. `T` is a C struct that
/// begins with the same, and any bytes are a value of it.
pub unsafe fn sized<T>(at: *const T, mut value: T, least: usize, what: &str) -> Result<T, Failure> {
    if at.is_null() {
        return Ok(value);
    }
    // SAFETY: the caller's promise.
    let size = unsafe { at.cast::<usize>().read_unaligned() };
    if size < least || size > 4096 {
        return Err(invalid(format!("{what}.size is {size}: initialize it with {what}_init")));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: `size` bytes can be read, and `known` of them fit.
    unsafe {
        let bytes = at.cast::<u8>();
        if (known..size).any(|nth| *bytes.add(nth) != 0) {
            let text = format!("{what} has a field that this version of the library does not know");
            return Err(Failure { errno: libc::E2BIG, ..invalid(text) });
        }
        bytes.copy_to_nonoverlapping((&raw mut value).cast(), known);
    }
    Ok(value)
}

/// Fills a struct of the program's, of `size` bytes, as far as it is known; the rest becomes zero.
///
/// # Safety
/// `to` is NULL, or has room for `size` bytes. `T` is a C struct without gaps.
pub unsafe fn fill<T>(to: *mut T, size: usize, value: &T, what: &str) -> Result<(), Failure> {
    if to.is_null() || size < size_of::<u64>() {
        return Err(invalid(format!("{what} is NULL, or its size too small")));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::from_ref(value).cast::<u8>().copy_to_nonoverlapping(to.cast(), known);
        to.cast::<u8>().add(known).write_bytes(0, size - known);
    }
    Ok(())
}
