//! The kernel's side: fanotify, leases and their signal, by system call.

use crate::calls::Descriptor;
use crate::file::FileId;
use crate::limits;
use elbowroom_machine::Errno;
use elbowroom_sync::Arc;
use rustix::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The signal by which the kernel tells one thread of ours that a process waits for a lease. A thread that
/// reads signals from a descriptor also gets those that were sent to the process, so it must be a signal
/// that programs do not use: the C library reserves this one for the cancellation of threads.
const SIGNAL: libc::c_int = 32;
/// The kernel's signal set of [`SIGNAL`].
static SIGNAL_SET: u64 = 1 << (SIGNAL - 1);
/// [`SIGNAL`], and SIGIO, which the kernel sends instead if it cannot queue the signal, and which would end
/// the process. A lease whose signal was lost is found by checking all leases now and then.
static BLOCKED_SET: u64 = SIGNAL_SET | 1 << (libc::SIGIO - 1);
/// Room for one event: events are read one at a time, since each takes a descriptor, of which few may be
/// left.
const EVENT_BYTES: usize = size_of::<libc::fanotify_event_metadata>();

fn check(r: libc::c_long) -> Result<libc::c_long, Errno> {
    if r >= 0 {
        return Ok(r);
    }
    let error = std::io::Error::last_os_error().raw_os_error();
    Err(Errno::from_raw_os_error(error.unwrap_or(libc::EIO)))
}

/// Takes ownership of a new descriptor that a system call returned.
///
/// # Safety
/// `fd` is a descriptor that nothing else owns.
unsafe fn own(fd: libc::c_long) -> Descriptor {
    // SAFETY: the caller's promise.
    Descriptor::from(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A fanotify group that the kernel asks for permission before a process opens a marked file.
pub(super) struct Fanotify {
    group: Arc<Descriptor>,
    own_pid: i32,
}

impl AsFd for Fanotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }
}

/// The permission to open a file, for which a process waits; given when this is dropped.
pub(super) struct Answer {
    // Declared first, so that it is closed before `group` is released: from the group's count the listener
    // sees that a descriptor number is free again.
    event: Descriptor,
    group: Arc<Descriptor>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        let response =
            libc::fanotify_response { fd: self.event.as_fd().as_raw_fd(), response: libc::FAN_ALLOW };
        // SAFETY: the pointer is valid for the length, and both descriptors are open. The write fails only
        // if no process waits any more.
        unsafe {
            let group = self.group.as_fd().as_raw_fd() as libc::c_long;
            libc::syscall(libc::SYS_write, group, &raw const response, size_of_val(&response));
        }
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Makes a fanotify group of this class.
fn new_group(class: libc::c_uint) -> Result<Descriptor, Errno> {
    let flags = class
        | libc::FAN_CLOEXEC
        | libc::FAN_NONBLOCK
        | libc::FAN_UNLIMITED_MARKS
        | libc::FAN_UNLIMITED_QUEUE;
    let event_flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_LARGEFILE;
    // SAFETY: integers only; the descriptor that comes back is new.
    unsafe {
        let r = libc::syscall(libc::SYS_fanotify_init, flags as libc::c_long, event_flags as libc::c_long);
        Ok(own(check(r)?))
    }
}

/// Adds or removes marks of a group, as `how` says. To remove all marks, `fd` may be any descriptor.
fn change_mark(group: &Descriptor, how: libc::c_uint, mask: u64, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let group = group.as_fd().as_raw_fd() as libc::c_long;
    let (how, fd) = (how as libc::c_long, fd.as_raw_fd() as libc::c_long);
    let no_path: *const libc::c_char = std::ptr::null();
    // SAFETY: integers and a null pointer, which means the file behind the descriptor.
    check(unsafe { libc::syscall(libc::SYS_fanotify_mark, group, how, mask, fd, no_path) }).map(|_| ())
}

/// Reads one event. `Err`: there is none, or the read failed.
fn read_event(group: &Descriptor) -> Result<libc::fanotify_event_metadata, Errno> {
    let group = group.as_fd().as_raw_fd() as libc::c_long;
    let mut event = MaybeUninit::<libc::fanotify_event_metadata>::uninit();
    // SAFETY: the buffer is ours and as long as said.
    let n = check(unsafe { libc::syscall(libc::SYS_read, group, event.as_mut_ptr(), EVENT_BYTES) })?;
    if n < EVENT_BYTES as libc::c_long {
        return Err(Errno::AGAIN);
    }
    // SAFETY: the kernel has put an event there, of just this size: no group asks for anything more.
    Ok(unsafe { event.assume_init() })
}

impl Fanotify {
    /// # Errors
    /// EPERM: it needs CAP_SYS_ADMIN.
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self { group: Arc::new(new_group(libc::FAN_CLASS_CONTENT)?), own_pid: own_pid() })
    }

    /// Marks the file behind `fd`: from now on opens of it wait for permission.
    pub(super) fn mark(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        change_mark(&self.group, libc::FAN_MARK_ADD, libc::FAN_OPEN_PERM, fd)
    }

    /// Removes the mark of the file behind `fd`.
    pub(super) fn unmark(&self, fd: BorrowedFd<'_>) {
        // This fails only if there is no mark.
        let _ = change_mark(&self.group, libc::FAN_MARK_REMOVE, libc::FAN_OPEN_PERM, fd);
    }

    /// Reads the pending events: opens by this process are allowed at once, the others are given to `each`.
    /// `false`: more events may be pending, but no descriptor is free for them until one of the processes
    /// that wait gets its answer.
    pub(super) fn take_events(&self, mut each: impl FnMut(FileId, Answer)) -> bool {
        loop {
            let read = || read_event(&self.group);
            // The kernel denies an open if it finds no free descriptor for its event.
            let event = match limits::with_room(self.group.as_fd(), read) {
                Some(event) => event,
                None if Arc::strong_count(&self.group) > 1 => return false,
                // No event of ours is open, so none will free a descriptor: a denial is better than waiting
                // for ever.
                None => read(),
            };
            let Ok(event) = event else { return true };
            self.take_event(&event, &mut each);
        }
    }

    fn take_event(&self, event: &libc::fanotify_event_metadata, each: &mut impl FnMut(FileId, Answer)) {
        if event.fd < 0 {
            return;
        }
        // SAFETY: the event's descriptor is new and ours.
        let fd = unsafe { own(event.fd.into()) };
        let answer = Answer { event: fd, group: self.group.clone() };
        if event.mask & libc::FAN_OPEN_PERM == 0 || event.pid == self.own_pid {
            return;
        }
        if let Ok(stat) = fs::fstat(&answer.event) {
            each(FileId { device: stat.st_dev, inode: stat.st_ino }, answer);
        }
    }
}

/// A fanotify group that the kernel notifies of opens of marked files, without making them wait: for files
/// that the manager does not map now.
pub(super) struct Opens {
    group: Descriptor,
    own_pid: i32,
}

impl AsFd for Opens {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }
}

impl Opens {
    /// # Errors
    /// EPERM: it needs CAP_SYS_ADMIN.
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self { group: new_group(libc::FAN_CLASS_NOTIF)?, own_pid: own_pid() })
    }

    /// Marks the file behind `fd`: from now on its opens are reported. A mark keeps no file and no file
    /// system open.
    pub(super) fn mark(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        change_mark(&self.group, libc::FAN_MARK_ADD, libc::FAN_OPEN, fd)
    }

    /// Removes all marks.
    pub(super) fn unmark_all(&self) {
        // The kernel ignores the descriptor here.
        let _ = change_mark(&self.group, libc::FAN_MARK_FLUSH, 0, self.group.as_fd());
    }

    /// Reads the pending events, and calls `each` with the files that other processes have opened. After an
    /// error it is unknown which files were opened.
    pub(super) fn take_events(&self, mut each: impl FnMut(FileId)) -> Result<(), Errno> {
        loop {
            let event = match read_event(&self.group) {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            };
            if event.fd < 0 {
                return Err(Errno::OVERFLOW);
            }
            // SAFETY: the event's descriptor is new and ours.
            let fd = unsafe { own(event.fd.into()) };
            if event.pid != self.own_pid {
                let stat = fs::fstat(&fd)?;
                each(FileId { device: stat.st_dev, inode: stat.st_ino });
            }
        }
    }
}

/// Takes a read lease whose signal goes to thread `tid`.
pub(super) fn take_lease(fd: BorrowedFd<'_>, tid: i32) -> Result<(), Errno> {
    #[repr(C)]
    struct Owner {
        kind: libc::c_int,
        pid: libc::pid_t,
    }
    const F_SETSIG: libc::c_long = 10;
    const F_SETOWN_EX: libc::c_long = 15;
    const F_OWNER_TID: libc::c_int = 0;
    let number = fd.as_raw_fd() as libc::c_long;
    let owner = Owner { kind: F_OWNER_TID, pid: tid };
    let (set_lease, read) = (libc::F_SETLEASE as libc::c_long, libc::F_RDLCK as libc::c_long);
    // SAFETY: the owner is valid for the call; the rest are integers.
    unsafe {
        check(libc::syscall(libc::SYS_fcntl, number, F_SETOWN_EX, &raw const owner))?;
        check(libc::syscall(libc::SYS_fcntl, number, F_SETSIG, SIGNAL as libc::c_long))?;
        check(libc::syscall(libc::SYS_fcntl, number, set_lease, read)).map(drop)
    }
}

/// Whether a process waits for the lease.
pub(super) fn lease_is_wanted(fd: i32) -> bool {
    // SAFETY: integers only.
    let lease =
        unsafe { libc::syscall(libc::SYS_fcntl, fd as libc::c_long, libc::F_GETLEASE as libc::c_long) };
    lease != libc::F_RDLCK as libc::c_long
}

/// A signalfd for the signal of leases: readable for the thread to which the signal was sent.
pub(super) fn signal_descriptor() -> Result<Descriptor, Errno> {
    let flags = (libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as libc::c_long;
    // SAFETY: the set is valid and 8 bytes long; the descriptor that comes back is new.
    unsafe {
        let r = libc::syscall(
            libc::SYS_signalfd4,
            -1 as libc::c_long,
            &raw const SIGNAL_SET,
            8 as libc::c_long,
            flags,
        );
        Ok(own(check(r)?))
    }
}

/// Blocks the signals of leases for the calling thread.
pub(super) fn block_signal() {
    let none: *mut u64 = std::ptr::null_mut();
    // SAFETY: the set is valid and 8 bytes long; where the old one goes is null.
    unsafe {
        let how = libc::SIG_BLOCK as libc::c_long;
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const BLOCKED_SET, none, 8 as libc::c_long);
    }
}

/// Reads the pending signals; returns whether there were any.
pub(super) fn take_signals(fd: &Descriptor) -> bool {
    let mut any = false;
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    while rustix::io::read(fd, &mut info).is_ok_and(|n| n > 0) {
        any = true;
    }
    any
}
