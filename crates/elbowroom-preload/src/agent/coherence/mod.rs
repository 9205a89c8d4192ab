//! Reads and writes through descriptors of managed files: what a write stores is seen by the mappings, and
//! what was stored through a mapping is seen by a read.
//!
//! A write is framed: the manager holds write-back off, the program's own thread writes, the manager takes
//! the new bytes. A read is preceded by the write-back of what it will see. Where a call at a descriptor's
//! position, or at the end of the file, will read or write is known only as long as no other call moves the
//! position or the end: such calls take turns (base/turns.rs).
//!
//! While a thread is inside write(2), the kernel holds the file's lock. If the source were managed memory
//! that is not present, its fault would need reads, and perhaps write-back, that may wait for that very
//! lock. So a transfer between a managed file and managed memory goes through a buffer of its own. Where
//! pages are copied into windows, so does a direct read of any file: a device would write into managed
//! memory.
//!
//! Signals are blocked, and the calls are no cancellation points, from the beginning of a frame or a turn
//! to its end: a handler that jumped away would leave write-back held off. A pending cancellation is taken
//! before. So inside, a thread may wait for disks, but not for the program.

mod buffers;

pub use buffers::{At, Buffers, Given, Way, give_back};

use buffers::appends;

use crate::agent::request::{self, Answer, Change, Flush, Op, Ticket};
use crate::base::state::{self, Process};
use crate::base::sys::{self, Except, SignalsBlocked};
use elbowroom::{FileId, Manager};
use libc::{c_int, ssize_t};
use std::ops::Range;

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

/// As [`managed_path`], but also finds a file that was managed until now, even if no file is managed any
/// more.
pub fn once_managed_path(dir: c_int, path: *const libc::c_char) -> Option<Target> {
    let (process, manager) = state::alive()?;
    managed(process, manager, &sys::stat_at(dir, path, 0)?)
}

/// As [`managed_fd`], but also finds a file that was managed until now, even if no file is managed any
/// more.
pub fn once_managed_fd(fd: c_int) -> Option<Target> {
    let (process, manager) = state::alive()?;
    managed(process, manager, &sys::fstat(fd)?)
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

/// How many files had been opened for mappings before the check whether a file is managed: see
/// [`unframed`].
#[derive(Clone, Copy)]
pub struct Look {
    process: Option<&'static Process>,
    opened: u64,
}

/// To be taken before [`managed_fd`] or [`managed_path`]: a file that is opened for a mapping after both is
/// noticed.
pub fn look() -> Look {
    let process = state::for_program();
    Look { process, opened: process.map_or(0, Process::files_opened) }
}

impl Look {
    /// Whether the caller is a thread of a program that may have managed files.
    pub fn has_process(&self) -> bool {
        self.process.is_some()
    }
}

/// Acts on a pending cancellation, at the beginning of calls that are cancellation points.
pub fn cancellation_point() {
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }
    // SAFETY: its callers hold nothing yet.
    unsafe { pthread_testcancel() };
}

/// Frames a call that writes to the file: `held` is the range that it may write. `call` must be free of
/// cancellation points and touch no managed memory; it gives its result and what it changed. `Err` is an
/// errno: the call was not made.
pub fn framed<R>(
    target: &Target,
    held: Range<u64>,
    flush: Flush,
    call: impl FnOnce() -> (R, Change),
) -> Result<R, c_int> {
    let blocked = SignalsBlocked::new(Except::Nothing);
    let opened = target.process.files_opened();
    let ticket = begin_frame(target, held, flush)?;
    let (result, change) = call();
    end_frame(target, ticket, opened, change);
    drop(blocked);
    Ok(result)
}

/// As [`framed`], for a call whose place follows from the file's size or a position: in a turn. `place`
/// looks the place up; `call` is given the last answer.
pub fn framed_in_turn<R>(
    target: &Target,
    flush: Flush,
    place: impl Fn() -> Range<u64>,
    call: impl FnOnce(Range<u64>) -> (R, Change),
) -> Result<R, c_int> {
    let process = target.process;
    let blocked = SignalsBlocked::new(Except::Nothing);
    let turn = process.turns.take(target.id, &blocked);
    let opened = process.files_opened();
    let (ticket, found) = loop {
        let held = if process.turns.were_moved() { 0..u64::MAX } else { place() };
        let ticket = begin_frame(target, held.clone(), flush)?;
        let now = place();
        if held.start <= now.start && now.end <= held.end {
            break (ticket, now);
        }
        // A call that takes no turns has moved the position. From now on the whole file is announced, so
        // this happens once.
        process.turns.note_moved();
        end_frame(target, ticket, opened, Change::Written(0..0));
    };
    let (result, change) = call(found);
    end_frame(target, ticket, opened, change);
    drop(turn);
    drop(blocked);
    Ok(result)
}

/// Announces a write to the manager. `None`: nothing of the file is mapped.
fn begin_frame(target: &Target, held: Range<u64>, flush: Flush) -> Result<Option<Ticket>, c_int> {
    match request::submit(target.process, Op::WriteBegin(target.id, held, flush))? {
        Answer::Begun(ticket) => Ok(Some(ticket)),
        _ => Ok(None),
    }
}

/// Ends what [`begin_frame`] began. An error here shows at the next msync or fsync: the call itself was
/// made.
fn end_frame(target: &Target, ticket: Option<Ticket>, opened: u64, change: Change) {
    if let Some(ticket) = ticket {
        let _ = request::submit(target.process, Op::WriteEnd { ticket, change });
    } else if target.process.files_opened() != opened {
        // The file had no mapping when the frame began, but may have been mapped by now.
        let _ = request::submit(target.process, Op::Refresh(target.id, change));
    }
}

/// Makes a call, which may be a cancellation point, that changes a file which is not managed. The file may
/// be mapped for the first time while the call is under way, and pages may be read before the call changes
/// them: they are read anew then. From what the call returned, `find` gives the file, if it is managed now,
/// and `change` what was changed; neither is asked if no file was opened for a mapping since the `look`.
/// `errno` is kept.
pub fn unframed<R: Copy>(
    look: Look,
    call: impl FnOnce() -> R,
    find: impl FnOnce(R) -> Option<Target>,
    change: impl FnOnce(R, &Target) -> Option<Change>,
) -> R {
    let result = call();
    if let Some(process) = look.process
        && process.files_opened() != look.opened
    {
        changed_unframed(result, find, change);
    }
    result
}

/// Has what a call changed in a file read anew, if the file is managed. `errno` is kept.
pub fn changed_unframed<R: Copy>(
    result: R,
    find: impl FnOnce(R) -> Option<Target>,
    change: impl FnOnce(R, &Target) -> Option<Change>,
) {
    let kept = sys::errno();
    if let Some(target) = find(result)
        && let Some(change) = change(result, &target)
    {
        // As in `end_frame`: an error here shows later.
        let _ = request::submit(target.process, Op::Refresh(target.id, change));
    }
    sys::set_errno(kept);
}

/// [`unframed`] for a call that writes through a descriptor and gives how many bytes it wrote.
pub fn write_unframed(
    look: Look,
    fd: c_int,
    at: At,
    flags: c_int,
    call: impl FnOnce() -> ssize_t,
) -> ssize_t {
    unframed(
        look,
        call,
        |n| (n > 0).then(|| managed_fd(fd))?,
        |n, target| {
            let n = n as u64;
            // Afterwards, only the end of what went to a position or to the end of the file is known.
            let end = match at {
                _ if appends(fd, flags) => target.size,
                At::Cursor => sys::position(fd)?,
                At::Offset(offset) => offset.saturating_add(n),
            };
            Some(Change::Written(end.saturating_sub(n)..end))
        },
    )
}

/// A write of the program to a managed file, with `flags` of pwritev2.
pub fn write(target: &Target, fd: c_int, from: &Buffers, at: At, flags: c_int) -> ssize_t {
    cancellation_point();
    let total = from.total as u64;
    let transfer = || from.transfer(Way::Write, fd, at, flags);
    let done = match at {
        At::Offset(start) if !appends(fd, flags) => {
            let held = start..start.saturating_add(total);
            framed(target, held.clone(), Flush::Not, || {
                let n = transfer();
                (n, Change::Written(written(n, &held)))
            })
        }
        _ => framed_in_turn(
            target,
            Flush::Not,
            || ahead(fd, flags, total),
            |place| {
                let n = transfer();
                (n, Change::Written(written_ahead(target, fd, n, &place)))
            },
        ),
    };
    done.unwrap_or_else(|errno| sys::fail(errno) as ssize_t)
}

/// The range to which `len` bytes go that are written at the position. If the write appends: all behind the
/// end of the file.
pub fn ahead(fd: c_int, flags: c_int, len: u64) -> Range<u64> {
    if appends(fd, flags) {
        return sys::fstat(fd).map_or(0, |stat| stat.st_size as u64)..u64::MAX;
    }
    let start = sys::position(fd).unwrap_or(0);
    start..start.saturating_add(len)
}

/// The range that a call has written that gave `n` and began where `held` does; empty if the call failed. A
/// range that is too long would make stores through mappings of those bytes get lost.
pub fn written(n: ssize_t, held: &Range<u64>) -> Range<u64> {
    let n = u64::try_from(n).unwrap_or(0);
    if n == 0 { 0..0 } else { held.start..held.start.saturating_add(n) }
}

/// As [`written`], for a call at the position or at the end (`place` as [`ahead`] gave it). `errno` is kept.
pub fn written_ahead(target: &Target, fd: c_int, n: ssize_t, place: &Range<u64>) -> Range<u64> {
    let expected = written(n, place);
    if expected.is_empty() {
        return expected;
    }
    if place.end == u64::MAX {
        // The write may be behind other appends that came before it.
        return place.start
            ..sys::fstat(fd).map_or(expected.end, |stat| (stat.st_size as u64).max(place.start));
    }
    match sys::position(fd) {
        Some(end) if end != expected.end => {
            // A call that takes no turns has moved the position, before it was used or after.
            target.process.turns.note_moved();
            let other = Change::Written(end.saturating_sub(n as u64)..end);
            let _ = request::submit(target.process, Op::Refresh(target.id, other));
            expected
        }
        _ => expected,
    }
}

/// Writes back what was stored to these bytes through mappings. `Err` is an errno: the file's bytes are
/// stale.
pub fn write_back(target: &Target, bytes: Range<u64>) -> Result<(), c_int> {
    if target.manager.dirty_pages() == 0 {
        return Ok(());
    }
    request::submit(target.process, Op::WriteBack(target.id, bytes)).map_or(Err(libc::EIO), |_| Ok(()))
}

/// Writes back what a call will see that reads `len` bytes and may wait for more than disks. Where the
/// position will be when it reads cannot be known: for a read at the position, the whole file is written
/// back.
pub fn before_read(target: &Target, at: At, len: u64) -> Result<(), c_int> {
    write_back(
        target,
        match at {
            At::Offset(start) => start..start.saturating_add(len),
            At::Cursor => 0..u64::MAX,
        },
    )
}

/// A read of the program. `None`: nothing about it concerns the manager, libc's own function does it.
pub fn read(fd: c_int, to: Given, at: At, flags: c_int) -> Option<ssize_t> {
    let (process, manager) = state::alive_with_files()?;
    let stale = manager.dirty_pages() > 0 || at == At::Cursor && process.turns.busy();
    if !stale && to.is_plain(manager) {
        return None;
    }
    let Some(target) = managed_fd(fd) else {
        let pins = process.copies_pages() && pins_its_buffer(fd);
        let to = pins.then(|| to.check(manager))??;
        return to.managed.then(|| to.transfer(Way::Read, fd, at, flags));
    };
    let to = to.check(manager)?;
    if !stale && !to.managed {
        return None;
    }
    match at {
        At::Cursor => Some(read_in_turn(&target, fd, &to, flags)),
        At::Offset(_) => {
            if let Err(errno) = before_read(&target, at, to.total as u64) {
                return Some(sys::fail(errno) as ssize_t);
            }
            to.managed.then(|| {
                cancellation_point();
                to.transfer(Way::Read, fd, at, flags)
            })
        }
    }
}

/// A read at the position of a managed file.
fn read_in_turn(target: &Target, fd: c_int, to: &Buffers, flags: c_int) -> ssize_t {
    cancellation_point();
    let turns = &target.process.turns;
    let blocked = SignalsBlocked::new(Except::Nothing);
    let turn = turns.take(target.id, &blocked);
    let start = sys::position(fd).unwrap_or(0);
    let end = start.saturating_add(to.total as u64);
    let seen = if turns.were_moved() { 0..u64::MAX } else { start..end };
    let n = match write_back(target, seen) {
        Ok(()) => to.transfer(Way::Read, fd, At::Cursor, flags),
        Err(errno) => sys::fail(errno) as ssize_t,
    };
    if n > 0 && sys::position(fd) != Some(start.saturating_add(n as u64)) {
        turns.note_moved();
    }
    drop(turn);
    drop(blocked);
    n
}

/// lseek(2) of a managed file. `data`: it looks for data or holes (SEEK_DATA, SEEK_HOLE), so stores through
/// mappings are written back first.
pub fn seek(target: &Target, data: bool, call: impl FnOnce() -> libc::off_t) -> libc::off_t {
    if data && let Err(errno) = write_back(target, 0..u64::MAX) {
        return sys::fail(errno).into();
    }
    let blocked = SignalsBlocked::new(Except::Nothing);
    let turn = target.process.turns.take(target.id, &blocked);
    let at = call();
    drop(turn);
    drop(blocked);
    at
}

/// Whether the kernel pins the destination of a read and lets a device write into it. Where pages are copied,
/// not moved, the manager cannot see the pin, and could drop the page before the device is done.
fn pins_its_buffer(fd: c_int) -> bool {
    // O_DIRECT means something else for pipes, which must be read in the program's own portions.
    sys::open_flags(fd).is_some_and(|flags| flags & libc::O_DIRECT != 0)
        && sys::fstat(fd)
            .is_some_and(|stat| matches!(stat.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK))
}

#[cfg(test)]
mod tests {
    use super::buffers::{RWF_APPEND, RWF_NOAPPEND};
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_was_written_follows_from_what_was_announced() {
        assert_eq!(written(3, &(5..10)), 5..8);
        assert_eq!(written(0, &(5..10)), 0..0);
        assert!(written(-1, &(5..10)).is_empty());
    }

    #[test]
    fn a_write_goes_to_the_position_or_to_the_end() {
        let mut file = tempfile();
        let fd = file.as_raw_fd();
        std::io::Write::write_all(&mut file, &[1; 70]).unwrap();
        assert_eq!(ahead(fd, 0, 10), 70..80);
        assert_eq!(ahead(fd, RWF_APPEND, 10), 70..u64::MAX);
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(20)).unwrap();
        assert_eq!(ahead(fd, 0, 10), 20..30);
        assert_eq!(ahead(fd, 0, u64::MAX), 20..u64::MAX);
        // SAFETY: integers only.
        unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_APPEND) };
        assert_eq!(ahead(fd, 0, 10), 70..u64::MAX);
        assert_eq!(ahead(fd, RWF_NOAPPEND, 10), 20..30);
    }

    fn tempfile() -> std::fs::File {
        use std::os::fd::FromRawFd;
        // SAFETY: a new descriptor that nobody else owns.
        unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), 0)) }
    }
}
