//! The userfaultfd and its requests, declared by hand: no crate knows MOVE.
//!
//! Source of the numbers: Linux `include/uapi/linux/userfaultfd.h`; semantics: userfaultfd(2),
//! UFFDIO_MOVE(2const).

use crate::peek::moved_without_report;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{DupFlags, Errno};
use rustix::ioctl::{self, Updater};
use rustix::mm::UserfaultfdFlags;
use std::mem::ManuallyDrop;
use std::ops::Range;

pub(crate) const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
pub(crate) const FEATURE_THREAD_ID: u64 = 1 << 8;
pub(crate) const FEATURE_MOVE: u64 = 1 << 16;

/// `UFFD_USER_MODE_ONLY`, which rustix does not name.
pub(crate) const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);

pub(crate) const FAULT_WRITE: u64 = 1 << 0;
pub(crate) const FAULT_WP: u64 = 1 << 1;

const REGISTER_MISSING: u64 = 1 << 0;
const REGISTER_WP: u64 = 1 << 1;
/// The same bit in the modes of COPY and MOVE.
const DONTWAKE: u64 = 1 << 0;
const COPY_WP: u64 = 1 << 1;
const WRITEPROTECT_ON: u64 = 1 << 0;
const WRITEPROTECT_DONTWAKE: u64 = 1 << 1;
const EVENT_PAGEFAULT: u8 = 0x12;

const API: u32 = 0xc018_aa3f;
const REGISTER: u32 = 0xc020_aa00;
const WAKE: u32 = 0x8010_aa02;
const COPY: u32 = 0xc028_aa03;
const MOVE: u32 = 0xc028_aa05;
const WRITEPROTECT: u32 = 0xc018_aa06;
const DEV_NEW: u32 = 0x0000_aa00;

/// Whether the request wakes the threads that wait for its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The request wakes them.
    Now,
    /// The caller wakes them later.
    Later,
}

/// Which faults the kernel lets a process serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// Those of instructions, and those of system calls on the process's memory.
    All,
    /// Those of instructions (`UFFD_USER_MODE_ONLY`, Linux 5.11, which takes no right): a system call on a
    /// page that is not in memory fails with EFAULT.
    UserMode,
}

/// Whether pages arrive write-protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protection {
    WriteProtected,
    Writable,
}

/// One fault as the kernel reports it: `struct uffd_msg` for a page fault.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Message {
    event: u8,
    reserved: [u8; 7],
    pub(crate) flags: u64,
    pub(crate) address: u64,
    pub(crate) thread: u32,
    padding: u32,
}

impl Message {
    pub(crate) const EMPTY: Message =
        Message { event: 0, reserved: [0; 7], flags: 0, address: 0, thread: 0, padding: 0 };

    pub(crate) fn is_pagefault(&self) -> bool {
        self.event == EVENT_PAGEFAULT
    }
}

/// An open userfaultfd with its features agreed on.
pub(crate) struct Uffd {
    fd: OwnedFd,
    pub(crate) has_move: bool,
    pub(crate) served: Served,
}

impl Uffd {
    /// Opens it through /dev/userfaultfd or the system call, nonblocking. `served`: for these faults; `None`:
    /// for as many as are permitted.
    ///
    /// # Errors
    /// EPERM where no way is permitted; EINVAL where the kernel lacks write protection or thread ids.
    pub(crate) fn open(served: Option<Served>) -> Result<Self, Errno> {
        let wanted = FEATURE_PAGEFAULT_FLAG_WP | FEATURE_THREAD_ID;
        let (fd, served) = open_for(served)?;
        match handshake(fd.as_fd(), wanted | FEATURE_MOVE) {
            Ok(()) => Ok(Self { fd, has_move: true, served }),
            Err(Errno::INVAL) => {
                // A failed handshake leaves the descriptor unusable for another one on some kernels.
                let (fd, served) = open_for(Some(served))?;
                handshake(fd.as_fd(), wanted)?;
                Ok(Self { fd, has_move: false, served })
            }
            Err(e) => Err(e),
        }
    }

    /// In the child of a fork: opens a userfaultfd of the child's own, under the same number.
    ///
    /// # Errors
    /// As for [`Uffd::open`]. EINVAL: the new userfaultfd has other features.
    pub(crate) fn renew(&self) -> Result<(), Errno> {
        let new = Self::open(Some(self.served))?;
        if new.has_move != self.has_move {
            return Err(Errno::INVAL);
        }
        put_in_place(new.fd, self.fd.as_fd())
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn request<const OP: u32, T>(&self, value: &mut T) -> Result<(), Errno> {
        // SAFETY: each caller in this file passes the struct that the kernel defines for OP.
        unsafe { ioctl::ioctl(&self.fd, Updater::<OP, T>::new(value)) }
    }

    /// Registers the range for missing faults and, with [`Protection::WriteProtected`], for
    /// write-protection faults.
    pub(crate) fn register(&self, range: Range<usize>, protection: Protection) -> Result<(), Errno> {
        let wp = if protection == Protection::WriteProtected { REGISTER_WP } else { 0 };
        let mut arg = [range.start as u64, range.len() as u64, REGISTER_MISSING | wp, 0];
        self.request::<REGISTER, _>(&mut arg)
    }

    /// Wakes the threads that wait for a page of the range; they fault again if nothing has changed.
    pub(crate) fn wake(&self, range: Range<usize>) -> Result<(), Errno> {
        self.request::<WAKE, _>(&mut [range.start as u64, range.len() as u64])
    }

    /// Moves present pages from `src` to `dst`. Returns how many bytes were moved before the error, if any.
    ///
    /// Linux 6.18 may move pages and then return EEXIST. If its first attempt at a page gave EAGAIN (an
    /// access changed the page table entry, or another thread had the folio's lock), its `move_pages` keeps
    /// that error when the second attempt succeeds: it does not count the moved pages, goes on with the
    /// same pages, and finds them at `dst`. So after EEXIST pagemap is read to find out where the pages
    /// are.
    ///
    /// # Safety
    /// 1. The caller owns the pages at `src`: no other thread relies on finding them there.
    /// 2. The threads that access `dst` expect these pages there.
    pub(crate) unsafe fn move_pages(
        &self,
        dst: usize,
        src: usize,
        len: usize,
        wake: Wake,
    ) -> (usize, Result<(), Errno>) {
        let mut arg = [dst as u64, src as u64, len as u64, dontwake(wake), 0];
        let result = self.request::<MOVE, _>(&mut arg);
        let moved = (arg[4] as i64).max(0) as usize;
        if moved == 0 && result == Err(Errno::EXIST) {
            return (moved_without_report(dst, src, len), result);
        }
        (moved, result)
    }

    /// Fills missing pages at `dst` with copies. Returns how many bytes were copied before the error, if any.
    ///
    /// # Safety
    /// 1. `src..src + len` is readable memory that no thread writes meanwhile.
    /// 2. The threads that access `dst` expect these bytes there.
    pub(crate) unsafe fn copy(
        &self,
        dst: usize,
        src: usize,
        len: usize,
        protection: Protection,
        wake: Wake,
    ) -> (usize, Result<(), Errno>) {
        let wp = if protection == Protection::WriteProtected { COPY_WP } else { 0 };
        let mut arg = [dst as u64, src as u64, len as u64, dontwake(wake) | wp, 0];
        let result = self.request::<COPY, _>(&mut arg);
        ((arg[4] as i64).max(0) as usize, result)
    }

    /// Puts write protection on the present pages of the range.
    pub(crate) fn write_protect(&self, range: Range<usize>) -> Result<(), Errno> {
        self.request::<WRITEPROTECT, _>(&mut [range.start as u64, range.len() as u64, WRITEPROTECT_ON])
    }

    /// Takes write protection off the range.
    pub(crate) fn write_unprotect(&self, range: Range<usize>, wake: Wake) -> Result<(), Errno> {
        let mode = if wake == Wake::Later { WRITEPROTECT_DONTWAKE } else { 0 };
        self.request::<WRITEPROTECT, _>(&mut [range.start as u64, range.len() as u64, mode])
    }

    /// Reads as many waiting messages as there are, at most `buffer.len()`; 0 if there is none.
    pub(crate) fn read(&self, buffer: &mut [Message]) -> Result<usize, Errno> {
        let len = std::mem::size_of_val(buffer);
        // SAFETY: `Message` is plain data without padding of the compiler's, valid for any bytes, so its
        // memory may be written as bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<u8>(), len) };
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.fd, &mut *bytes)) {
            Ok(n) => Ok(n / size_of::<Message>()),
            Err(Errno::AGAIN) => Ok(0),
            Err(e) => Err(e),
        }
    }
}

/// In the child of a fork: moves a new descriptor to the number of the parent's, which is free in the
/// child's file table.
pub fn put_in_place(new: OwnedFd, place: BorrowedFd<'_>) -> Result<(), Errno> {
    use rustix::fd::{AsRawFd, FromRawFd, IntoRawFd};
    if new.as_raw_fd() == place.as_raw_fd() {
        // The kernel has chosen that very number. The owner of `place` owns it from now on.
        let _ = new.into_raw_fd();
        return Ok(());
    }
    // SAFETY: never dropped, so the number still belongs to the owner of `place`; dup3 closes what had it
    // before in this table.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(place.as_raw_fd()) });
    rustix::io::dup3(&new, &mut place, DupFlags::CLOEXEC)
}

fn dontwake(wake: Wake) -> u64 {
    if wake == Wake::Later { DONTWAKE } else { 0 }
}

fn open_for(served: Option<Served>) -> Result<(OwnedFd, Served), Errno> {
    let all = || open_device().or_else(|_| open_by_call(UserfaultfdFlags::empty()));
    let user_mode = || open_by_call(USER_MODE_ONLY);
    match served {
        Some(Served::All) => all().map(|fd| (fd, Served::All)),
        Some(Served::UserMode) => user_mode().map(|fd| (fd, Served::UserMode)),
        None => open_for(Some(Served::All))
            // The error of the better way says what to permit.
            .or_else(|refused| open_for(Some(Served::UserMode)).map_err(|_| refused)),
    }
}

fn open_by_call(extra: UserfaultfdFlags) -> Result<OwnedFd, Errno> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | extra;
    // SAFETY: the descriptor is made here and only used for ranges that this crate maps itself.
    unsafe { rustix::mm::userfaultfd(flags) }
}

fn open_device() -> Result<OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags};
    let device = rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let flags = (OFlags::CLOEXEC | OFlags::NONBLOCK).bits() as usize;
    // SAFETY: USERFAULTFD_IOC_NEW takes the flags by value and returns a new descriptor.
    unsafe { ioctl::ioctl(device, NewDescriptor(flags)) }
}

/// USERFAULTFD_IOC_NEW.
struct NewDescriptor(usize);

// SAFETY: the opcode takes an integer and its result is a descriptor that nobody else owns.
unsafe impl ioctl::Ioctl for NewDescriptor {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> ioctl::Opcode {
        DEV_NEW
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        self.0 as *mut std::ffi::c_void
    }

    unsafe fn output_from_ptr(
        out: ioctl::IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<Self::Output> {
        use rustix::fd::FromRawFd;
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}

fn handshake(fd: BorrowedFd<'_>, features: u64) -> Result<(), Errno> {
    let mut arg = [0xAA_u64, features, 0];
    // SAFETY: UFFDIO_API takes `struct uffdio_api`: three 64-bit words.
    unsafe { ioctl::ioctl(fd, Updater::<API, _>::new(&mut arg)) }
}
