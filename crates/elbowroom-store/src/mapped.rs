//! Writing to a file through a shared mapping, where RLIMIT_FSIZE forbids write(2).
//!
//! A write beyond the soft RLIMIT_FSIZE gets EFBIG and SIGXFSZ, even if the file is longer than that. The
//! limit does not apply to stores to a shared mapping, so the program's stores can reach the file in this
//! way. The bytes are copied by a system call: a page that cannot be had, because the file was truncated
//! meanwhile or the disk is full, gives an error and not a signal. This cannot make the file longer.

use elbowroom_machine::{Errno, PAGE_SIZE, aside};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::getpid;
use std::ffi::{c_int, c_long, c_ulong};
use std::os::fd::BorrowedFd;

/// How many bytes are mapped at once.
const PIECE_BYTES: usize = 1 << 20;
/// How many parts are copied at once: IOV_MAX.
const PARTS_MAX: usize = 1024;
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

/// Writes `parts` one after another, from `offset` on, to a file that is long enough. Returns EFBIG if that
/// fails, as write(2) would have.
pub(crate) fn write(fd: BorrowedFd<'_>, parts: &[&[u8]], offset: u64) -> Result<(), Errno> {
    let mut at = offset;
    let mut piece: Vec<IoVec> = Vec::new();
    let mut piece_bytes = 0;
    for bytes in parts.iter().flat_map(|part| part.chunks(PIECE_BYTES)) {
        if piece_bytes + bytes.len() > PIECE_BYTES || piece.len() == PARTS_MAX {
            write_piece(fd, &piece, piece_bytes, at)?;
            at += piece_bytes as u64;
            piece.clear();
            piece_bytes = 0;
        }
        piece.push(IoVec { base: bytes.as_ptr() as usize, len: bytes.len() });
        piece_bytes += bytes.len();
    }
    if piece_bytes == 0 { Ok(()) } else { write_piece(fd, &piece, piece_bytes, at) }
}

/// Writes one piece. `parts` points to slices that the caller has borrowed.
fn write_piece(fd: BorrowedFd<'_>, parts: &[IoVec], bytes: usize, at: u64) -> Result<(), Errno> {
    let skip = (at % PAGE_SIZE as u64) as usize;
    let page = at - skip as u64;
    let (len, prot) = (skip + bytes, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping, wherever the kernel puts it, of which only the address is used.
    let mapped = unsafe { mmap(aside() as *mut _, len, prot, MapFlags::SHARED, fd, page) };
    let mapped = mapped.map_err(|_| Errno::FBIG)?;
    let (from, count) = (parts.as_ptr(), parts.len() as c_ulong);
    let to = IoVec { base: mapped as usize + skip, len: bytes };
    let (one, flags): (c_ulong, c_ulong) = (1, 0);
    let this: c_int = getpid().as_raw_nonzero().get();
    // SAFETY: (1) the arguments are those of process_vm_writev(2), the second list of one part; (2) what
    // is written is the mapping just made, which nobody else knows, and what is read are slices.
    let copied =
        unsafe { syscall(SYS_PROCESS_VM_WRITEV, c_long::from(this), from, count, &raw const to, one, flags) };
    // SAFETY: made above, and nothing points to it any more.
    let _ = unsafe { munmap(mapped, len) };
    if copied == bytes as c_long { Ok(()) } else { Err(Errno::FBIG) }
}
