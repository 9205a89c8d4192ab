//! The buffers of a read or write: what of the program's memory takes part, and the transfer itself.
//!
//! All that is read through the program's pointers is copied by the kernel, which checks them: a bad
//! pointer is the call's EFAULT, not a signal.

use crate::agent::bring;
use crate::agent::cleanup::with_cleanup;
use crate::base::reserve::{BOUNCE_BYTES, Buffer};
use crate::base::sys::{self, PAGE};
use elbowroom::Manager;
use libc::{c_int, c_long, c_void, iovec, ssize_t};
use std::mem::ManuallyDrop;

/// The kernel transfers no more in one call (Linux: `MAX_RW_COUNT`).
const MOST_BYTES: usize = i32::MAX as usize & !(PAGE - 1);
/// The kernel takes no more parts (Linux: `UIO_MAXIOV`).
const MOST_PARTS: usize = 1024;
/// The most bytes that are appended to a file at once.
const APPEND_BYTES: usize = 64 << 20;
/// An address at which no program has memory.
const BAD_ADDRESS: *mut c_void = std::ptr::without_provenance_mut(8);
/// How many parts are read at a time: few, since the stack of a signal handler may be small.
const PARTS_AT_ONCE: usize = 16;

/// Where in the file a call reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// At the descriptor's position, which it moves.
    Cursor,
    /// At this offset, which is not negative: the kernel refuses such calls.
    Offset(u64),
}

impl At {
    /// For a call with an explicit offset; `None` if the kernel will refuse it.
    pub fn offset(offset: i64) -> Option<Self> {
        u64::try_from(offset).ok().map(Self::Offset)
    }
}

/// Which way the bytes go, as seen by the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To its memory.
    Read,
    /// From its memory.
    Write,
}

pub(super) const RWF_APPEND: c_int = 0x10;
pub(super) const RWF_NOAPPEND: c_int = 0x20;

/// Whether a write goes to the end of the file, wherever it was asked to go.
pub(super) fn appends(fd: c_int, flags: c_int) -> bool {
    let asked = || sys::open_flags(fd).is_some_and(|f| f & libc::O_APPEND != 0);
    flags & RWF_APPEND != 0 || flags & RWF_NOAPPEND == 0 && asked()
}

/// The buffers of a call, as the program has given them.
#[derive(Clone, Copy)]
pub enum Given {
    /// One buffer.
    One(iovec),
    /// An array of so many parts, of readv and relatives.
    Many(*const iovec, c_int),
}

impl Given {
    /// One buffer.
    pub fn one(base: *mut c_void, len: usize) -> Self {
        Self::One(iovec { iov_base: base, iov_len: len })
    }

    /// Whether it is one buffer that has no managed memory.
    pub fn is_plain(&self, manager: &Manager) -> bool {
        matches!(self, Self::One(part) if !in_windows(manager, part))
    }

    /// Whether the buffers have more bytes than 64 KiB. Shorter writes are made in one call; of longer ones
    /// other processes see no whole in any case (PIPE_BUF is 4 KiB).
    pub fn is_long(self, manager: &Manager) -> bool {
        const SHORT_BYTES: usize = 64 << 10;
        self.check(manager).is_some_and(|buffers| buffers.total > SHORT_BYTES)
    }

    /// Reads and checks all parts; `None`: the kernel will refuse the call, or has nothing to do.
    pub fn check(self, manager: &Manager) -> Option<Buffers> {
        self.check_by(&|part| in_windows(manager, part))
    }

    fn check_by(self, in_windows: &dyn Fn(&iovec) -> bool) -> Option<Buffers> {
        let possible = |part: &iovec| {
            let end = (part.iov_base as usize).checked_add(part.iov_len)?;
            (end <= isize::MAX as usize).then_some(part.iov_len)
        };
        let (total, managed) = match self {
            Self::One(part) => (possible(&part)?, in_windows(&part)),
            Self::Many(parts, n) => {
                let n = usize::try_from(n).ok().filter(|n| (1..=MOST_PARTS).contains(n))?;
                let array = iovec { iov_base: parts.cast_mut().cast(), iov_len: n * size_of::<iovec>() };
                let (mut total, mut managed) = (0usize, in_windows(&array));
                let mut here = [NO_PART; PARTS_AT_ONCE];
                for first in (0..n).step_by(PARTS_AT_ONCE) {
                    for part in look(parts, first..n, &mut here)? {
                        total = total.saturating_add(possible(part)?);
                        managed |= in_windows(part);
                    }
                }
                (total, managed)
            }
        };
        Some(Buffers { given: self, total: total.min(MOST_BYTES), managed })
    }
}

/// Buffers that were checked.
pub struct Buffers {
    given: Given,
    /// Their bytes in all, at most what one call transfers.
    pub total: usize,
    /// Whether managed memory is among them.
    pub managed: bool,
}

const NO_PART: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// The parts from number `range.start` on, as many as fit; `None` if they are not readable.
fn look(
    parts: *const iovec,
    range: std::ops::Range<usize>,
    to: &mut [iovec; PARTS_AT_ONCE],
) -> Option<&[iovec]> {
    let to = &mut to[..range.len().min(PARTS_AT_ONCE)];
    let from = (parts as usize).wrapping_add(range.start * size_of::<iovec>());
    let copied = bring::copy_checked(from, to.as_mut_ptr() as usize, size_of_val(to));
    (copied == size_of_val(to)).then_some(to)
}

fn in_windows(manager: &Manager, part: &iovec) -> bool {
    part.iov_len > 0 && manager.windows().intersects(part.iov_base as usize, part.iov_len)
}

/// Gives back the buffer of a thread that ends.
///
/// # Safety
/// `buffer` is a `ManuallyDrop<Buffer>` that nobody drops besides.
pub unsafe extern "C" fn give_back(buffer: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { ManuallyDrop::drop(&mut *buffer.cast::<ManuallyDrop<Buffer>>()) };
}

impl Buffers {
    /// Makes the transfer, through a buffer of our own if managed memory takes part.
    pub fn transfer(&self, way: Way, fd: c_int, at: At, flags: c_int) -> ssize_t {
        if self.managed { self.bounce(way, fd, at, flags) } else { direct(way, fd, self.given, at, flags) }
    }

    /// Makes one call that reads at most `most` bytes, into a buffer of our own: a call that waits would lose
    /// what it takes, if a page of the program's went away meanwhile. `call` is libc's own function, and may
    /// end the thread.
    pub fn read_once(&self, most: usize, call: impl FnOnce(*mut c_void, usize) -> ssize_t) -> ssize_t {
        let len = self.total.min(most);
        let Some(buffer) = Buffer::at_most(len) else { return sys::fail(libc::ENOMEM) as ssize_t };
        let len = len.min(buffer.len());
        // A thread that ends in the call must not meet a value to drop.
        let mut buffer = ManuallyDrop::new(buffer);
        let given = (&raw mut buffer).cast();
        // SAFETY: the buffer is given back once, here or by the end of the thread.
        let result = unsafe { with_cleanup(give_back, given, || call(buffer.at(), len)) };
        let errno = sys::errno();
        let came = usize::try_from(result).unwrap_or(0).min(len);
        let copied = if came > 0 { self.scatter(Way::Read, 0, buffer.at() as usize, came) } else { 0 };
        drop(ManuallyDrop::into_inner(buffer));
        match copied {
            _ if copied == came => {
                sys::set_errno(errno);
                result
            }
            0 => sys::fail(libc::EFAULT) as ssize_t,
            _ => copied as ssize_t,
        }
    }

    fn bounce(&self, way: Way, fd: c_int, at: At, flags: c_int) -> ssize_t {
        // Where no call is made without a buffer, what is appended must not be torn by another process.
        let most = match way {
            Way::Write if bring::manager().is_some() && appends(fd, flags) => APPEND_BYTES,
            _ => BOUNCE_BYTES,
        };
        let Some(buffer) = Buffer::at_most(self.total.min(most)) else {
            return sys::fail(libc::ENOMEM) as ssize_t;
        };
        let mut done = 0;
        while done < self.total {
            let mut len = (self.total - done).min(buffer.len());
            let at = match at {
                At::Cursor => At::Cursor,
                At::Offset(offset) => At::Offset(offset + done as u64),
            };
            if way == Way::Write {
                len = self.scatter(way, done, buffer.at() as usize, len);
                if len == 0 && done == 0 {
                    // The kernel says what else is wrong first, and what a write without a readable byte
                    // changes.
                    return direct(way, fd, Given::one(BAD_ADDRESS, self.total), at, flags);
                }
                if len == 0 {
                    break;
                }
            }
            let n = direct(way, fd, Given::one(buffer.at(), len), at, flags);
            let Ok(mut n) = usize::try_from(n) else {
                return if done > 0 { done as ssize_t } else { -1 };
            };
            let short = n < len;
            if way == Way::Read {
                let copied = self.scatter(way, done, buffer.at() as usize, n);
                if copied < n {
                    if matches!(at, At::Cursor) {
                        // Bytes that could not be stored to the program's memory count as not read.
                        sys::move_back(fd, n - copied);
                    }
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
        if done == 0 && self.total > 0 { sys::fail(libc::EFAULT) as ssize_t } else { done as ssize_t }
    }

    /// Copies `len` bytes between the buffer and the parts from their byte `skip` on; gives how many, fewer
    /// at a bad address.
    fn scatter(&self, way: Way, mut skip: usize, buffer: usize, len: usize) -> usize {
        let (parts, n) = match &self.given {
            Given::One(part) => (std::ptr::from_ref(part), 1),
            Given::Many(parts, n) => (*parts, *n as usize),
        };
        let mut done = 0;
        let mut here = [NO_PART; PARTS_AT_ONCE];
        for first in (0..n).step_by(PARTS_AT_ONCE) {
            let Some(some) = look(parts, first..n, &mut here) else { return done };
            for part in some {
                if skip >= part.iov_len {
                    skip -= part.iov_len;
                    continue;
                }
                let there = part.iov_base as usize + skip;
                let n = (part.iov_len - skip).min(len - done);
                skip = 0;
                let copied = match way {
                    Way::Write => bring::copy_checked(there, buffer + done, n),
                    Way::Read => bring::copy_checked(buffer + done, there, n),
                };
                done += copied;
                if copied < n || done == len {
                    return done;
                }
            }
        }
        done
    }
}

/// Makes the system call.
fn direct(way: Way, fd: c_int, given: Given, at: At, flags: c_int) -> ssize_t {
    let fd = fd as c_long;
    let (parts, n) = match &given {
        Given::One(part) if flags == 0 => {
            let (base, len) = (part.iov_base, part.iov_len);
            // SAFETY: the buffer is the program's own, or ours; the kernel checks it.
            return unsafe {
                match (way, at) {
                    (Way::Read, At::Cursor) => sys::system_call(libc::SYS_read, fd, base, len),
                    (Way::Write, At::Cursor) => sys::system_call(libc::SYS_write, fd, base, len),
                    (Way::Read, At::Offset(at)) => sys::system_call(libc::SYS_pread64, fd, base, len, at),
                    (Way::Write, At::Offset(at)) => sys::system_call(libc::SYS_pwrite64, fd, base, len, at),
                }
            } as ssize_t;
        }
        Given::One(part) => (std::ptr::from_ref(part), 1),
        Given::Many(parts, n) => (*parts, *n),
    };
    let call = if way == Way::Read { libc::SYS_preadv2 } else { libc::SYS_pwritev2 };
    let offset = match at {
        At::Cursor => -1,
        At::Offset(offset) => offset as c_long,
    };
    // SAFETY: the parts are the program's own; the kernel checks them. The second half of the offset is
    // unused on 64-bit machines, except that both halves are -1 for the position.
    unsafe {
        sys::system_call(call, fd, parts, n as c_long, offset, offset >> 63, flags as c_long) as ssize_t
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn part(bytes: &mut [u8]) -> iovec {
        iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
    }

    fn bounced(way: Way, file: &std::fs::File, parts: &[iovec], at: At) -> ssize_t {
        let given = Given::Many(parts.as_ptr(), parts.len() as c_int);
        given.check_by(&|_| true).unwrap().transfer(way, file.as_raw_fd(), at, 0)
    }

    #[test]
    fn a_bounced_transfer_moves_the_same_bytes() {
        let file = std::fs::File::from(memory_file());
        let mut bytes: Vec<u8> = (0..3 << 20).map(|i: usize| (i % 251) as u8).collect();
        let (left, right) = bytes.split_at_mut(1_234_567);
        let mut parts = vec![part(&mut []); 20];
        parts.extend([part(left), part(&mut []), part(right)]);
        assert_eq!(bounced(Way::Write, &file, &parts, At::Offset(7)), 3 << 20);
        let mut back = vec![0; 4 << 20];
        let (left, right) = back.split_at_mut(2_000_003);
        assert_eq!(bounced(Way::Read, &file, &[part(left), part(right)], At::Offset(7)), 3 << 20);
        assert_eq!(&back[..3 << 20], &bytes);
        assert!(back[3 << 20..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_bad_address_is_efault_or_a_short_count() {
        let file = std::fs::File::from(memory_file());
        let mut good = [1; 100];
        let bad = iovec { iov_base: 8 as *mut c_void, iov_len: 100 };
        assert_eq!(bounced(Way::Write, &file, &[part(&mut good), bad], At::Cursor), 100);
        assert_eq!((bounced(Way::Write, &file, &[bad], At::Cursor), sys::errno()), (-1, libc::EFAULT));
        assert_eq!((bounced(Way::Read, &file, &[bad], At::Offset(0)), sys::errno()), (-1, libc::EFAULT));
    }

    #[test]
    fn what_the_kernel_will_refuse_is_left_to_it() {
        let never = |_: &iovec| false;
        let check = |given: Given| given.check_by(&never).map(|buffers| buffers.total);
        let base = 4096 as *mut c_void;
        assert_eq!(check(Given::one(base, usize::MAX)), None);
        assert_eq!(check(Given::one(base, isize::MAX as usize + 1)), None);
        assert_eq!(check(Given::one(base, 1 << 40)), Some(MOST_BYTES));
        assert_eq!(check(Given::Many(64 as *const iovec, 3)), None);
        let parts = [iovec { iov_base: base, iov_len: 10 }; 40];
        assert_eq!(check(Given::Many(parts.as_ptr(), 40)), Some(400));
        assert_eq!(check(Given::Many(parts.as_ptr(), 0)), None);
        assert_eq!(check(Given::Many(parts.as_ptr(), -1)), None);
        assert_eq!(check(Given::Many(parts.as_ptr(), 1025)), None);
    }

    fn memory_file() -> std::os::fd::OwnedFd {
        use std::os::fd::FromRawFd;
        // SAFETY: a new descriptor that nobody else owns.
        unsafe { std::os::fd::OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), 0)) }
    }
}
