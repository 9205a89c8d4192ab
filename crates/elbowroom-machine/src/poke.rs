//! Storing to a private mapping of a file without a signal: another process may shorten the file meanwhile,
//! and a store beyond its end by a pointer raises SIGBUS. So the kernel stores the bytes, and returns
//! EFAULT there.

use rustix::io::Errno;
use std::ffi::{c_long, c_void};

#[cfg(target_arch = "x86_64")]
const SYS_PROCESS_VM_WRITEV: c_long = 311;
#[cfg(not(target_arch = "x86_64"))]
const SYS_PROCESS_VM_WRITEV: c_long = 271;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

#[repr(C)]
struct Iovec {
    base: *mut c_void,
    len: usize,
}

/// Copies bytes to `to`.
///
/// # Errors
/// EFAULT: the file has no such page any more, or process_vm_writev(2) failed. Some bytes may be copied
/// then.
///
/// # Safety
/// The bytes at `to` are the caller's alone, in a mapping that stays.
pub(crate) unsafe fn poke(to: usize, bytes: &[u8]) -> Result<(), Errno> {
    let from = Iovec { base: bytes.as_ptr().cast_mut().cast(), len: bytes.len() };
    let to = Iovec { base: to as *mut c_void, len: bytes.len() };
    let (one, none): (c_long, c_long) = (1, 0);
    let own = c_long::from(rustix::process::getpid().as_raw_nonzero().get());
    // SAFETY: two lists of one part each, which live until the call returns; what is stored to is the
    // caller's alone, and what is read is borrowed.
    let copied =
        unsafe { syscall(SYS_PROCESS_VM_WRITEV, own, &raw const from, one, &raw const to, one, none) };
    if copied == bytes.len() as c_long { Ok(()) } else { Err(Errno::FAULT) }
}
