//! Reads and writes through descriptors of managed files: what a write stores is seen by the mappings, and
//! what was stored through a mapping is seen by a read.
//!
//! A write is framed: the manager holds write-back off, the program's own thread writes, the manager takes
//! the new bytes. A read is preceded by the write-back of what it will see.
//!
//! While a thread is inside write(2), the kernel holds the file's lock. If the source were managed memory
//! that is not present, its fault would need reads, and perhaps write-back, that may wait for that very lock.
//! So a transfer between a managed file and managed memory goes through a buffer of its own. So does, where
//! pages are copied into windows, a read of any file that would have a device write into managed memory.
//!
//! Signals are blocked, and the calls are no cancellation points, from the beginning of a write to its end: a
//! handler that jumped away would leave write-back held off. A pending cancellation is taken before.

use crate::request::{self, Change, Flush, Op};
use crate::reserve::Buffer;
use crate::state::{self, Process};
use crate::sys::{self, Except, PAGE, SignalsBlocked};
use elbowroom::{FileId, Manager};
use libc::{c_int, c_long, iovec, ssize_t};
use std::ops::Range;

/// Bytes of the buffer between a managed file and managed memory.
pub const BOUNCE_BYTES: usize = 1 << 20;
const RWF_APPEND: c_int = 0x10;

/// A managed file that the program uses through a descriptor or a path.
#[derive(Clone, Copy)]
pub struct Target {
    /// The process.
    pub process: &'static Process,
    /// Its manager.
    pub manager: &'static Manager,
    /// The file.
    pub id: FileId,
    /// Its size before the call, in bytes.
    pub size: u64,
}

/// Where in the file a call reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// At the descriptor's position, which it moves.
    Cursor,
    /// There. Negative offsets never come here: the kernel refuses them.
    Offset(u64),
}

impl At {
    /// For a call with an explicit offset; `None` if the kernel will refuse it.
    pub fn offset(offset: i64) -> Option<Self> {
        u64::try_from(offset).ok().map(Self::Offset)
    }
}

/// The managed file behind a descriptor. `errno` is kept.
pub fn managed_fd(fd: c_int) -> Option<Target> {
    let (process, manager) = state::alive_with_files()?;
    managed(process, manager, &sys::fstat(fd)?)
}

/// The managed file at a path. `errno` is kept.
pub fn managed_path(dir: c_int, path: *const libc::c_char) -> Option<Target> {
    let (process, manager) = state::alive_with_files()?;
    managed(process, manager, &sys::stat_at(dir, path, 0)?)
}

fn managed(process: &'static Process, manager: &'static Manager, stat: &libc::stat) -> Option<Target> {
    let regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    (regular && process.managed.may_contain(stat.st_dev, stat.st_ino)).then_some(Target {
        process,
        manager,
        id: FileId { device: stat.st_dev, inode: stat.st_ino },
        size: stat.st_size as u64,
    })
}

/// Frames a call that writes to the file: `held` is what it may write. `call` must be free of cancellation
/// points and touch no managed memory; it says what it returns and what it changed. `Err` is an errno: the
/// call was not made.
pub fn framed<R>(
    target: &Target,
    held: Range<u64>,
    flush: Flush,
    call: impl FnOnce() -> (R, Change),
) -> Result<R, c_int> {
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }
    // SAFETY: nothing is held yet.
    unsafe { pthread_testcancel() };
    let blocked = SignalsBlocked::new(Except::Nothing);
    let opened = target.process.files_opened();
    let ticket = request::submit(target.process, Op::WriteBegin(target.id, held, flush))?;
    let (result, change) = call();
    if ticket != 0 {
        let op = match change {
            Change::Written(written) => Op::WriteEnd { ticket, written },
            Change::Resized(changed) => Op::Resized { ticket, changed },
        };
        // The call itself is made; what goes wrong after it shows at the next msync or fsync.
        let _ = request::submit(target.process, op);
    } else if target.process.files_opened() != opened {
        // Nobody mapped it any more, but somebody may do so again by now.
        let _ = request::submit(target.process, Op::Refresh(target.id, change));
    }
    drop(blocked);
    Ok(result)
}

/// Makes a call, which may be a cancellation point, that changes a file which is not managed. The file may be
/// mapped for the first time while the call is under way, and pages read that the call has yet to change: then
/// they are read anew. From what the call returned, `find` gives the file, if it is managed now, and `change`
/// what was changed; neither is asked if no file was opened for a mapping meanwhile. `errno` is kept.
pub fn unframed<R: Copy>(
    call: impl FnOnce() -> R,
    find: impl FnOnce(R) -> Option<Target>,
    change: impl FnOnce(R, &Target) -> Option<Change>,
) -> R {
    let process = state::for_program();
    let opened = process.map(|process| process.files_opened());
    let result = call();
    if let Some(process) = process
        && Some(process.files_opened()) != opened
        && let Some(target) = find(result)
    {
        let kept = sys::errno();
        if let Some(change) = change(result, &target) {
            // As in `framed`: what goes wrong here shows later.
            let _ = request::submit(target.process, Op::Refresh(target.id, change));
        }
        sys::set_errno(kept);
    }
    result
}

/// [`unframed`] for a call that writes through a descriptor and gives how many bytes it wrote.
pub fn write_unframed(fd: c_int, at: At, flags: c_int, call: impl FnOnce() -> ssize_t) -> ssize_t {
    unframed(
        call,
        |n| (n > 0).then(|| managed_fd(fd))?,
        |n, target| {
            let n = n as u64;
            // Afterwards, only the end of what went to a position or to the end of the file is known.
            let end = match at {
                At::Cursor => sys::position(fd)?,
                At::Offset(_) if appends(fd, flags) => target.size,
                At::Offset(offset) => offset.saturating_add(n),
            };
            Some(Change::Written(end.saturating_sub(n)..end))
        },
    )
}

/// A write of the program to a managed file, with `flags` of pwritev2.
pub fn write(target: &Target, fd: c_int, from: &[iovec], at: At, flags: c_int) -> ssize_t {
    let total = total_bytes(from);
    let appends = appends(fd, flags);
    let start = match at {
        _ if appends => target.size,
        At::Offset(offset) => offset,
        At::Cursor => sys::position(fd).unwrap_or(0),
    };
    let held = if appends { start..u64::MAX } else { start..start.saturating_add(total as u64) };
    let done = framed(target, held, Flush::Not, || {
        let n = transfer(target.manager, Direction::Write, fd, from, at, flags);
        let kept = sys::errno();
        let written = written(fd, at, appends, start, n);
        sys::set_errno(kept);
        (n, Change::Written(written))
    });
    done.unwrap_or_else(|errno| sys::fail(errno) as ssize_t)
}

/// Whether a write goes to the end of the file, wherever it was asked to go.
fn appends(fd: c_int, flags: c_int) -> bool {
    flags & RWF_APPEND != 0 || sys::open_flags(fd).is_some_and(|f| f & libc::O_APPEND != 0)
}

/// What a write that returned `n` has covered.
fn written(fd: c_int, at: At, appends: bool, start: u64, n: ssize_t) -> Range<u64> {
    let Ok(n) = u64::try_from(n) else { return start..start };
    if n == 0 {
        return start..start;
    }
    if appends {
        return start..sys::fstat(fd).map_or(u64::MAX, |stat| (stat.st_size as u64).max(start));
    }
    let expected = start..start.saturating_add(n);
    match at {
        At::Offset(_) => expected,
        // Another thread may have moved the shared position before ours was used, or after.
        At::Cursor => match sys::position(fd) {
            Some(end) if end != expected.end => end.saturating_sub(n).min(start)..end.max(expected.end),
            _ => expected,
        },
    }
}

/// Before the program reads `len` bytes: stores through mappings that the read will see are written back.
/// `Err` is an errno: reading would give stale bytes.
pub fn before_read(target: &Target, fd: c_int, at: At, len: u64) -> Result<(), c_int> {
    if target.manager.dirty_pages() == 0 {
        return Ok(());
    }
    let start = match at {
        At::Offset(offset) => offset,
        At::Cursor => sys::position(fd).unwrap_or(0),
    };
    let range = start..start.saturating_add(len);
    request::submit(target.process, Op::WriteBack(target.id, range)).map_or(Err(libc::EIO), |_| Ok(()))
}

/// A read of the program. `None`: nothing about it concerns the manager, libc's own function does it.
pub fn read(fd: c_int, to: &[iovec], at: At, flags: c_int) -> Option<ssize_t> {
    let (process, manager) = state::alive_with_files()?;
    let bounces = to.iter().any(|part| in_windows(manager, part));
    if manager.dirty_pages() == 0 && !bounces {
        return None;
    }
    let Some(target) = managed_fd(fd) else {
        let pins = bounces && process.copies_pages() && pins_its_buffer(fd);
        return pins.then(|| transfer(manager, Direction::Read, fd, to, at, flags));
    };
    if let Err(errno) = before_read(&target, fd, at, total_bytes(to) as u64) {
        return Some(sys::fail(errno) as ssize_t);
    }
    bounces.then(|| transfer(manager, Direction::Read, fd, to, at, flags))
}

/// Whether the kernel pins the destination of a read and lets a device write into it. Where pages are copied,
/// not moved, the manager cannot see the pin, and could drop the page before the device is done.
fn pins_its_buffer(fd: c_int) -> bool {
    // O_DIRECT means something else for pipes, which must be read in the program's own portions.
    sys::open_flags(fd).is_some_and(|flags| flags & libc::O_DIRECT != 0)
        && sys::fstat(fd)
            .is_some_and(|stat| matches!(stat.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK))
}

/// The parts of a readv or writev. An impossible number of them gives none.
///
/// # Safety
/// `parts` points to `n` of them, if `n` is possible.
pub unsafe fn parts<'a>(parts: *const iovec, n: c_int) -> &'a [iovec] {
    match usize::try_from(n) {
        // SAFETY: the caller's promise.
        Ok(n @ 1..=1024) if !parts.is_null() => unsafe { std::slice::from_raw_parts(parts, n) },
        _ => &[],
    }
}

fn total_bytes(parts: &[iovec]) -> usize {
    parts.iter().fold(0, |sum, part| sum.saturating_add(part.iov_len))
}

fn in_windows(manager: &Manager, part: &iovec) -> bool {
    part.iov_len > 0 && manager.windows().intersects(part.iov_base as usize, part.iov_len)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// Does it, through a buffer if managed memory takes part.
fn transfer(manager: &Manager, way: Direction, fd: c_int, parts: &[iovec], at: At, flags: c_int) -> ssize_t {
    if parts.iter().any(|part| in_windows(manager, part)) {
        bounce(way, fd, parts, at, flags)
    } else {
        direct(way, fd, parts, at, flags)
    }
}

/// preadv2(2) or pwritev2(2).
fn direct(way: Direction, fd: c_int, parts: &[iovec], at: At, flags: c_int) -> ssize_t {
    let call = if way == Direction::Read { libc::SYS_preadv2 } else { libc::SYS_pwritev2 };
    let offset = match at {
        At::Cursor => -1,
        At::Offset(offset) => offset as c_long,
    };
    // SAFETY: the parts are the program's own; the kernel checks them. The second half of the offset is
    // unused on 64-bit machines, except that both halves are -1 for the position.
    unsafe {
        libc::syscall(
            call,
            fd as c_long,
            parts.as_ptr(),
            parts.len() as c_long,
            offset,
            offset >> 63,
            flags as c_long,
        ) as ssize_t
    }
}

fn bounce(way: Direction, fd: c_int, parts: &[iovec], at: At, flags: c_int) -> ssize_t {
    let total = total_bytes(parts).min(isize::MAX as usize & !(PAGE - 1));
    let Some(buffer) = Buffer::new(total.next_multiple_of(PAGE).clamp(PAGE, BOUNCE_BYTES)) else {
        return sys::fail(libc::ENOMEM) as ssize_t;
    };
    let mut done = 0;
    while done < total {
        let mut len = (total - done).min(buffer.len());
        let at = match at {
            At::Cursor => At::Cursor,
            At::Offset(offset) => At::Offset(offset + done as u64),
        };
        if way == Direction::Write {
            len = scatter(way, parts, done, buffer.at() as usize, len);
            if len == 0 {
                break;
            }
        }
        let part = iovec { iov_base: buffer.at(), iov_len: len };
        let n = direct(way, fd, &[part], at, flags);
        let Ok(mut n) = usize::try_from(n) else {
            return if done > 0 { done as ssize_t } else { -1 };
        };
        let short = n < len;
        if way == Direction::Read {
            let copied = scatter(way, parts, done, buffer.at() as usize, n);
            if copied < n {
                n = copied;
                done += n;
                break;
            }
        }
        done += n;
        if short {
            return done as ssize_t;
        }
    }
    if done == 0 && total > 0 { sys::fail(libc::EFAULT) as ssize_t } else { done as ssize_t }
}

/// Copies `len` bytes between the buffer and the parts from their byte `skip` on; gives how many, fewer at a
/// bad address.
fn scatter(way: Direction, parts: &[iovec], mut skip: usize, buffer: usize, len: usize) -> usize {
    let mut done = 0;
    for part in parts {
        if skip >= part.iov_len {
            skip -= part.iov_len;
            continue;
        }
        let here = part.iov_base as usize + skip;
        let n = (part.iov_len - skip).min(len - done);
        skip = 0;
        let (from, to) = if way == Direction::Write { (here, buffer + done) } else { (buffer + done, here) };
        let copied = copy(from, to, n);
        done += copied;
        if copied < n || done == len {
            break;
        }
    }
    done
}

fn copy(from: usize, to: usize, len: usize) -> usize {
    let copied = sys::copy_checked(from, to, len);
    if let Ok(copied) = usize::try_from(copied) {
        return copied;
    }
    if sys::errno() == libc::EFAULT {
        return 0;
    }
    // Where a sandbox forbids the checked copy, a bad address is a fault of the program instead of EFAULT.
    // SAFETY: the program gave the address to be read or written; the buffer is ours, and they do not
    // overlap.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
    len
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn part(bytes: &mut [u8]) -> iovec {
        iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
    }

    #[test]
    fn a_bounced_transfer_moves_the_same_bytes() {
        let file = std::fs::File::from(memory_file());
        let mut bytes: Vec<u8> = (0..3 << 20).map(|i: usize| (i % 251) as u8).collect();
        let (left, right) = bytes.split_at_mut(1_234_567);
        let parts = [part(left), part(&mut []), part(right)];
        let n = bounce(Direction::Write, file.as_raw_fd(), &parts, At::Offset(7), 0);
        assert_eq!(n, 3 << 20);
        let mut back = vec![0; 4 << 20];
        let (left, right) = back.split_at_mut(2_000_003);
        let n = bounce(Direction::Read, file.as_raw_fd(), &[part(left), part(right)], At::Offset(7), 0);
        assert_eq!(n, 3 << 20);
        assert_eq!(&back[..3 << 20], &bytes);
        assert!(back[3 << 20..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_bad_address_is_efault_or_a_short_count() {
        let file = std::fs::File::from(memory_file());
        let mut good = [1; 100];
        let bad = iovec { iov_base: 8 as *mut libc::c_void, iov_len: 100 };
        let n = bounce(Direction::Write, file.as_raw_fd(), &[part(&mut good), bad], At::Cursor, 0);
        assert_eq!(n, 100);
        let n = bounce(Direction::Write, file.as_raw_fd(), &[bad], At::Cursor, 0);
        assert_eq!((n, sys::errno()), (-1, libc::EFAULT));
        let n = bounce(Direction::Read, file.as_raw_fd(), &[bad], At::Offset(0), 0);
        assert_eq!((n, sys::errno()), (-1, libc::EFAULT));
    }

    fn memory_file() -> std::os::fd::OwnedFd {
        use std::os::fd::FromRawFd;
        // SAFETY: a new descriptor that nobody else owns.
        unsafe { std::os::fd::OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), 0)) }
    }

    #[test]
    fn what_was_written_follows_the_position() {
        let file = std::fs::File::from(memory_file());
        let fd = file.as_raw_fd();
        assert_eq!(written(fd, At::Offset(5), false, 5, 3), 5..8);
        assert_eq!(written(fd, At::Offset(5), false, 5, -1), 5..5);
        assert_eq!(written(fd, At::Cursor, false, 0, 0), 0..0);
        // SAFETY: integers only.
        unsafe { libc::lseek(fd, 50, libc::SEEK_SET) };
        assert_eq!(written(fd, At::Cursor, false, 40, 10), 40..50);
        assert_eq!(written(fd, At::Cursor, false, 20, 10), 20..50);
        assert_eq!(written(fd, At::Cursor, false, 60, 10), 40..70);
        file.set_len(90).unwrap();
        assert_eq!(written(fd, At::Cursor, true, 80, 10), 80..90);
    }
}
