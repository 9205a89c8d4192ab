//! lseek, and the ioctls of file systems: calls that look at how a file lies on its disk, or change it
//! there. What was stored through mappings is written back first, since the kernel finds data and holes by
//! its own page cache and the disk.

use crate::agent::bring;
use crate::agent::coherence;
use crate::agent::flush::flush;
use crate::agent::ranges::{hand_back, managed_range};
use crate::agent::request::{self, Change, Flush, Op};
use crate::agent::resize;
use crate::base::state;
use crate::base::sys;
use libc::{c_int, c_long, c_ulong, c_void, off_t};
use std::ops::Range;

pub unsafe fn seek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    // SAFETY: integers only.
    let call = || unsafe { sys::system_call(libc::SYS_lseek, fd as c_long, offset, whence as c_long) };
    let Some((process, manager)) = state::alive_with_files() else { return call() };
    if manager.dirty_pages() == 0 && !process.turns.busy() {
        return call();
    }
    match coherence::managed_fd(fd) {
        Some(target) => coherence::seek(&target, matches!(whence, libc::SEEK_DATA | libc::SEEK_HOLE), call),
        None => call(),
    }
}

/// What an ioctl does.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// Nothing about a file's bytes.
    Other,
    /// It looks at a file's bytes, or at where they are on the disk.
    Looks,
    /// It compares files and has equal parts share their blocks.
    Compares,
    /// Bytes of another file become this one's.
    Clones,
    /// It may change a file's bytes in any way.
    Anything,
}

/// What an ioctl does, by the parts of its number (Linux: `_IOC`).
fn kind(request: u32) -> Kind {
    const FIBMAP: u32 = 1;
    const FIEMAP: u32 = 0xc020_660b;
    const FIDEDUPERANGE: u32 = 0xc018_9436;
    const TO_KERNEL: u32 = 1 << 30;
    // The types of the requests of ext4 and of all file systems, of btrfs (and cloning in general), XFS and
    // F2FS.
    let of_a_file_system = matches!((request >> 8) as u8, b'f' | 0x94 | b'X' | 0xf5);
    match request {
        FIBMAP | FIEMAP => Kind::Looks,
        FIDEDUPERANGE => Kind::Compares,
        FICLONE | FICLONERANGE => Kind::Clones,
        _ if !of_a_file_system => Kind::Other,
        // Some requests that change files have no parameter.
        _ if request & TO_KERNEL != 0 || request >> 30 == 0 => Kind::Anything,
        _ => Kind::Looks,
    }
}

/// UFFDIO_REGISTER.
const REGISTER: u32 = 0xc020_aa00;

const FICLONE: u32 = 0x4004_9409;
const FICLONERANGE: u32 = 0x4020_940d;

pub unsafe fn control(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let call = || {
        // SAFETY: the program's own call.
        unsafe { sys::system_call(libc::SYS_ioctl, fd as c_long, request, argument) as c_int }
    };
    if request as u32 == REGISTER
        && let Err(errno) = give_up_registered(argument as usize)
    {
        return sys::fail(errno);
    }
    let kind = kind(request as u32);
    if kind == Kind::Other || state::alive_with_files().is_none() {
        return call();
    }
    if kind == Kind::Compares {
        // The call concerns many files.
        flush();
        return call();
    }
    if kind == Kind::Clones {
        return clone(fd, request as u32, argument as usize, call);
    }
    let Some(target) = coherence::managed_fd(fd) else { return call() };
    if let Err(errno) = coherence::write_back(&target, 0..u64::MAX) {
        return sys::fail(errno);
    }
    let r = call();
    if kind == Kind::Anything && r >= 0 {
        let kept = sys::errno();
        // The file's times say whether its bytes were changed.
        let _ = request::submit(target.process, Op::Refresh(target.id, Change::Written(0..0)));
        sys::set_errno(kept);
    }
    r
}

/// Hands a range back to the kernel that the program registers with a userfaultfd of its own.
fn give_up_registered(argument: usize) -> Result<(), c_int> {
    // struct uffdio_register begins with start and length.
    let mut words = [0_u64; 2];
    let len = size_of_val(&words);
    if bring::copy_checked(argument, words.as_mut_ptr() as usize, len) != len {
        return Ok(());
    }
    let [start, len] = words.map(|word| word as usize);
    match managed_range(start, len) {
        Some((process, _, range)) => hand_back(process, range),
        None => Ok(()),
    }
}

/// FICLONE and FICLONERANGE.
fn clone(fd: c_int, request: u32, argument: usize, call: impl FnOnce() -> c_int) -> c_int {
    let look = coherence::look();
    let Some((source, place)) = cloned(request, argument) else { return call() };
    if let Some(source) = coherence::managed_fd(source)
        && let Err(errno) = coherence::write_back(&source, 0..u64::MAX)
    {
        return sys::fail(errno);
    }
    match coherence::managed_fd(fd) {
        Some(target) => {
            let held = place.clone();
            resize::resizing(&target, || held.clone(), Change::Resized(place), Flush::First, || call().into())
        }
        None => coherence::unframed(
            look,
            call,
            |_| coherence::managed_fd(fd),
            |r, _| (r >= 0).then_some(Change::Resized(place)),
        ),
    }
}

/// The source of a clone, and where in the target its bytes go; `None`: the kernel will refuse it.
fn cloned(request: u32, argument: usize) -> Option<(c_int, Range<u64>)> {
    let size = |fd| sys::fstat(fd).map(|stat| stat.st_size as u64);
    if request == FICLONE {
        let source = argument as c_int;
        return Some((source, 0..size(source)?));
    }
    // struct file_clone_range: source, its offset, length (0: to its end), offset in the target.
    let mut words = [0u64; 4];
    let copied = bring::copy_checked(argument, words.as_mut_ptr() as usize, size_of_val(&words));
    let [source, from, len, to] = words;
    let source = c_int::try_from(source).ok().filter(|_| copied == size_of_val(&words))?;
    let len = if len == 0 { size(source)?.saturating_sub(from) } else { len };
    Some((source, to..to.saturating_add(len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        assert_eq!(kind(0x5401), Kind::Other); // TCGETS
        assert_eq!(kind(0x541b), Kind::Other); // FIONREAD
        assert_eq!(kind(0x8008_6601), Kind::Looks); // FS_IOC_GETFLAGS
        assert_eq!(kind(0x4008_6602), Kind::Anything); // FS_IOC_SETFLAGS
        assert_eq!(kind(0xc020_660b), Kind::Looks);
        assert_eq!(kind(FICLONE), Kind::Clones);
        assert_eq!(kind(FICLONERANGE), Kind::Clones);
        assert_eq!(kind(0xc028_660f), Kind::Anything); // EXT4_IOC_MOVE_EXT
        assert_eq!(kind(0x6611), Kind::Anything); // EXT4_IOC_SWAP_BOOT
    }

    #[test]
    fn the_place_of_a_clone_is_taken_from_its_parameters() {
        let words = [1u64, 10, 20, 30];
        assert_eq!(cloned(FICLONERANGE, words.as_ptr() as usize), Some((1, 30..50)));
        assert_eq!(cloned(FICLONERANGE, 8), None);
        assert_eq!(cloned(FICLONE, -1i32 as usize), None);
    }
}
