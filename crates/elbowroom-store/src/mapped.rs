//! Writing to a file through a mapping of the kernel's: where write(2) is not allowed to, stores are.
//!
//! A write beyond the soft RLIMIT_FSIZE gets EFBIG and SIGXFSZ, also inside the file as it is. Stores to a
//! shared mapping are not subject to it, so what the program has stored reaches the file in this way. The
//! copy is a system call: a page that is not there, because the file was cut meanwhile or the disk is full,
//! is an error and not a signal. It cannot make the file longer.

use elbowroom_machine::{Errno, PAGE_SIZE, aside};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::getpid;
use std::ffi::{c_int, c_long, c_ulong};
use std::os::fd::BorrowedFd;

/// How much is mapped at once.
const PIECE_BYTES: usize = 1 << 20;
#[cfg(target_arch = "x86_64")]
const SYS_PROCESS_VM_WRITEV: c_long = 311;
#[cfg(not(target_arch = "x86_64"))]
const SYS_PROCESS_VM_WRITEV: c_long = 271;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

#[repr(C)]
struct IoVec {
    base: usize,
    len: usize,
}

/// Writes `bytes` to `offset` of a file that is at least that long. EFBIG if that cannot be done here: what
/// write(2) would have said.
pub(crate) fn write(fd: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        let at = offset + done as u64;
        let skip = (at % PAGE_SIZE as u64) as usize;
        let len = (bytes.len() - done).min(PIECE_BYTES);
        write_piece(fd, &bytes[done..done + len], at - skip as u64, skip)?;
        done += len;
    }
    Ok(())
}

fn write_piece(fd: BorrowedFd<'_>, bytes: &[u8], page: u64, skip: usize) -> Result<(), Errno> {
    let (len, prot) = (skip + bytes.len(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping, wherever the kernel puts it, of which only the address is used.
    let mapped = unsafe { mmap(aside() as *mut _, len, prot, MapFlags::SHARED, fd, page) };
    let mapped = mapped.map_err(|_| Errno::FBIG)?;
    let from = IoVec { base: bytes.as_ptr() as usize, len: bytes.len() };
    let to = IoVec { base: mapped as usize + skip, len: bytes.len() };
    let (one, flags): (c_ulong, c_ulong) = (1, 0);
    let this: c_int = getpid().as_raw_nonzero().get();
    // SAFETY: (1) the arguments are those of process_vm_writev(2), each list being of one part; (2) what is
    // written is the mapping just made, which nobody else knows, and what is read is a slice.
    let copied = unsafe {
        syscall(SYS_PROCESS_VM_WRITEV, c_long::from(this), &raw const from, one, &raw const to, one, flags)
    };
    // SAFETY: made above, and nothing points to it any more.
    let _ = unsafe { munmap(mapped, len) };
    if copied == bytes.len() as c_long { Ok(()) } else { Err(Errno::FBIG) }
}
