//! The calls that lend pages to the kernel for longer than the call: vmsplice, and sends with MSG_ZEROCOPY.
//! The kernel takes plain references of the pages, which do not keep the manager from moving the pages home
//! and using their frames for other bytes: the receiver would get the other bytes. So managed memory is
//! copied into new pages, which are unmapped when the call returns, and live on by the kernel's references.
//!
//! Descriptions of what to send (msghdr, iovec) are read with copies that the kernel checks: a bad pointer is
//! EFAULT.

use crate::agent::bring::{self, Does, Part};
use crate::agent::coherence::Given;
use crate::base::real;
use crate::base::state;
use crate::base::sys::{self, PAGE};
use elbowroom::Manager;
use libc::{c_int, c_long, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use std::mem::MaybeUninit;

/// The most parts that the kernel takes in one call, and the most messages.
const MAX_PARTS: usize = 1024;
/// The most bytes that are copied for one send; the rest is left for the program's next call, as by a full
/// socket.
const MAX_SEND_BYTES: usize = 64 << 20;
/// The kernel's largest transfer, in bytes.
const MAX_TRANSFER: usize = i32::MAX as usize & !(PAGE - 1);

/// The address hint for such pages: far from where the kernel puts mappings of the program's, so that they
/// do not lie in a hole that the program may fill.
const FRESH_HINT: usize = 0x2b00_0000_0000;

/// New pages. They are not of the reserve, whose pages are used again: the kernel may use these pages after
/// they are unmapped.
struct Fresh {
    at: *mut c_void,
    len: usize,
}

impl Fresh {
    /// `len` bytes, a multiple of the page size.
    fn new(len: usize) -> Option<Self> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping; nothing that is mapped is replaced.
        let at = unsafe { sys::mmap(FRESH_HINT as *mut c_void, len, prot, flags, -1, 0) };
        (at != libc::MAP_FAILED).then_some(Self { at, len })
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `new` made that many, and they are only reached through `self`.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.len) }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let kept = sys::errno();
        // SAFETY: made by `new`, and nothing of this process points to it any more.
        unsafe { sys::munmap(self.at, self.len) };
        sys::set_errno(kept);
    }
}

/// A value of the program's memory, read as the kernel would.
///
/// # Safety
/// Any bytes are a valid `T`.
unsafe fn read<T>(at: *const T) -> Result<T, c_int> {
    let mut value = MaybeUninit::<T>::uninit();
    let len = size_of::<T>();
    if bring::copy_checked(at.addr(), value.as_mut_ptr().addr(), len) != len {
        return Err(libc::EFAULT);
    }
    // SAFETY: all of it was written, and any bytes are valid, the caller's promise.
    Ok(unsafe { value.assume_init() })
}

/// A copy of the program's array of parts, in a mapping of its own: a signal handler's stack may be small.
struct Parts {
    mapping: Fresh,
    n: usize,
}

impl Parts {
    /// `n` is from 1 to [`MAX_PARTS`].
    fn read(at: *const iovec, n: usize) -> Result<Self, c_int> {
        let bytes = n * size_of::<iovec>();
        let mut mapping = Fresh::new(bytes.next_multiple_of(PAGE)).ok_or(libc::ENOMEM)?;
        let to = mapping.bytes().as_mut_ptr().addr();
        if bring::copy_checked(at.addr(), to, bytes) != bytes {
            return Err(libc::EFAULT);
        }
        Ok(Self { mapping, n })
    }

    fn all(&mut self) -> &mut [iovec] {
        let at = self.mapping.bytes().as_mut_ptr().cast();
        // SAFETY: `read` made room for them at the beginning of a page; any bytes are an iovec.
        unsafe { std::slice::from_raw_parts_mut(at, self.n) }
    }
}

/// What came of [`copy_managed`].
enum Copied {
    /// Nothing of the parts is managed: they are as they were.
    Nothing,
    /// Managed memory in the parts was replaced by copies in the mapping. The parts have `bytes` bytes in
    /// all. `faulted`: the bytes that follow are not readable.
    Instead { _mapping: Fresh, bytes: usize, faulted: bool },
}

/// Replaces managed memory in the parts by copies at the same offsets into pages. Cuts the parts to `limit`
/// bytes in all.
fn copy_managed(manager: &Manager, parts: &mut [iovec], limit: usize) -> Result<Copied, c_int> {
    let managed =
        |part: &iovec| part.iov_len > 0 && manager.windows().intersects(part.iov_base.addr(), part.iov_len);
    // The kernel refuses impossible lengths.
    if !parts.iter().any(managed) || parts.iter().any(|part| part.iov_len > isize::MAX as usize) {
        return Ok(Copied::Nothing);
    }
    let offset = |part: &iovec| part.iov_base.addr() % PAGE;
    let (mut bytes, mut room) = (0, 0);
    for part in &mut *parts {
        part.iov_len = part.iov_len.min(limit - bytes);
        bytes += part.iov_len;
        if managed(part) {
            room += (offset(part) + part.iov_len).next_multiple_of(PAGE);
        }
    }
    let mut mapping = Fresh::new(room.max(PAGE)).ok_or(libc::ENOBUFS)?;
    let mut at = mapping.bytes().as_mut_ptr();
    let (mut bytes, mut faulted) = (0, false);
    for part in parts {
        if faulted {
            part.iov_len = 0;
        } else if managed(part) {
            let to = at.wrapping_add(offset(part));
            at = at.wrapping_add((offset(part) + part.iov_len).next_multiple_of(PAGE));
            let copied = bring::copy_checked(part.iov_base.addr(), to.addr(), part.iov_len);
            faulted = copied < part.iov_len;
            *part = iovec { iov_base: to.cast(), iov_len: copied };
        }
        bytes += part.iov_len;
    }
    Ok(Copied::Instead { _mapping: mapping, bytes, faulted })
}

/// Acts on a pending cancellation, before the call holds anything.
fn test_cancel() {
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }
    // SAFETY: nothing is held yet.
    unsafe { pthread_testcancel() };
}

pub unsafe fn give_to_pipe(fd: c_int, from: *const iovec, n: size_t, flags: c_uint) -> ssize_t {
    if let Some((_, manager)) = state::alive()
        && (1..=MAX_PARTS).contains(&n)
        && let Some(limit) = room_of_writable_pipe(fd)
    {
        test_cancel();
        match give_copies(manager, fd, from, n, flags, limit) {
            Ok(Some(given)) => return given,
            Ok(None) => {}
            Err(errno) => return sys::fail(errno) as ssize_t,
        }
    }
    // SAFETY: the caller's promise.
    unsafe { real::vmsplice(fd, from, n, flags) }
}

/// vmsplice with copies; `None`: nothing of it is managed.
fn give_copies(
    manager: &Manager,
    fd: c_int,
    from: *const iovec,
    n: usize,
    flags: c_uint,
    limit: usize,
) -> Result<Option<ssize_t>, c_int> {
    let mut parts = Parts::read(from, n)?;
    let instead = copy_managed(manager, parts.all(), limit)?;
    let Copied::Instead { bytes, faulted, .. } = &instead else { return Ok(None) };
    if *bytes == 0 && *faulted {
        return Err(libc::EFAULT);
    }
    let parts = parts.all();
    // SAFETY: the kernel checks what is the program's; what is ours is mapped until after the call.
    let r = unsafe {
        sys::system_call(libc::SYS_vmsplice, fd as c_long, parts.as_ptr(), parts.len(), flags as c_long)
    };
    Ok(Some(r as ssize_t))
}

/// The capacity of the pipe in bytes, if the descriptor is an end of a pipe and can be written to. From an
/// end that can only be read, vmsplice copies.
fn room_of_writable_pipe(fd: c_int) -> Option<usize> {
    let kept = sys::errno();
    let writable = sys::open_flags(fd).is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY);
    // SAFETY: integers only.
    let room = unsafe { sys::system_call(libc::SYS_fcntl, fd as c_long, libc::F_GETPIPE_SZ as c_long) };
    sys::set_errno(kept);
    usize::try_from(room).ok().filter(|_| writable)
}

/// The manager, if a send with these flags may lend managed pages to the kernel.
fn lends(flags: c_int) -> Option<&'static Manager> {
    state::alive().filter(|_| flags & libc::MSG_ZEROCOPY != 0).map(|(_, manager)| manager)
}

/// Sends a buffer. Where only faults of instructions are served, a managed buffer goes to a stream in
/// portions; to another socket it goes in one call, with its pages brought in before. `call` sends so many
/// bytes from an address.
fn send(
    socket: c_int,
    from: *const c_void,
    len: usize,
    mut call: impl FnMut(*const c_void, usize) -> ssize_t,
) -> ssize_t {
    match bring::manager() {
        Some((_, manager)) if manager.windows().intersects(from.addr(), len) => {
            if bring::is_stream_socket(socket) {
                bring::send_all(from, len, call)
            } else {
                bring::with(&[Part::loaded(from, len)], || call(from, len))
            }
        }
        _ => call(from, len),
    }
}

/// Sends the parts of a message to a stream one after the other, if they are more than can be in memory at a
/// time, and there is nothing else in it. `None`: not done.
fn send_long_message(socket: c_int, at: *const msghdr, flags: c_int) -> Option<ssize_t> {
    let (_, manager) = bring::manager()?;
    // SAFETY: all zero is a message of nothing.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    if !bring::read(at, &mut message) || message.msg_controllen > 0 {
        return None;
    }
    let given = Given::Many(message.msg_iov, c_int::try_from(message.msg_iovlen).ok()?);
    if given.is_plain(manager) || !given.is_long(manager) || !bring::is_stream_socket(socket) {
        return None;
    }
    Some(bring::send_all_parts(message.msg_iov, message.msg_iovlen, |from, len| {
        // SAFETY: a part of the program's buffer, which the kernel checks.
        unsafe { real::send(socket, from, len, flags) }
    }))
}

pub unsafe fn send_bytes(socket: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    if lends(flags).is_some() {
        // SAFETY: the caller's promise; send is sendto without an address.
        return unsafe { send_bytes_to(socket, from, len, flags, std::ptr::null(), 0) };
    }
    // SAFETY: the caller's promise.
    send(socket, from, len, |from, len| unsafe { real::send(socket, from, len, flags) })
}

pub unsafe fn send_bytes_to(
    socket: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    if let Some(manager) = lends(flags) {
        test_cancel();
        // The kernel takes no more of one send.
        let mut part = [iovec { iov_base: from.cast_mut(), iov_len: len.min(MAX_TRANSFER) }];
        // SAFETY: all zero is a message of nothing.
        let mut message: msghdr = unsafe { std::mem::zeroed() };
        (message.msg_name, message.msg_namelen) = (to.cast_mut().cast(), to_len);
        match send_copies(manager, socket, message, &mut part, flags) {
            Ok(Some(sent)) => return sent,
            Ok(None) => {}
            Err(errno) => return sys::fail(errno) as ssize_t,
        }
    }
    let address = [Part::loaded(to.cast(), to_len as usize)];
    send(socket, from, len, |from, len| {
        bring::with(&address, || {
            // SAFETY: the caller's promise.
            unsafe { real::sendto(socket, from, len, flags, to.cast(), to_len) }
        })
    })
}

/// Sends the message with copies of what is managed in its parts; `None`: nothing is.
fn send_copies(
    manager: &Manager,
    socket: c_int,
    mut message: msghdr,
    parts: &mut [iovec],
    flags: c_int,
) -> Result<Option<ssize_t>, c_int> {
    let instead = copy_managed(manager, parts, MAX_SEND_BYTES)?;
    let Copied::Instead { bytes, faulted, .. } = &instead else { return Ok(None) };
    // A stream takes what comes before the bad address, a datagram is whole or not sent.
    if *faulted && (*bytes == 0 || !bring::is_stream_socket(socket)) {
        return Err(libc::EFAULT);
    }
    (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len() as _);
    // SAFETY: the kernel checks what is the program's; what is ours is mapped until after the call.
    let r =
        unsafe { sys::system_call(libc::SYS_sendmsg, socket as c_long, &raw const message, flags as c_long) };
    Ok(Some(r as ssize_t))
}

/// [`send_copies`] of a message in the program's memory.
fn send_copies_of(
    manager: &Manager,
    socket: c_int,
    at: *const msghdr,
    flags: c_int,
) -> Result<Option<ssize_t>, c_int> {
    // SAFETY: integers and pointers, which may be anything.
    let message = unsafe { read(at) }?;
    if !(1..=MAX_PARTS).contains(&message.msg_iovlen) {
        return Ok(None);
    }
    let mut parts = Parts::read(message.msg_iov, message.msg_iovlen)?;
    send_copies(manager, socket, message, parts.all(), flags)
}

pub unsafe fn send_message(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if let Some(manager) = lends(flags) {
        test_cancel();
        match send_copies_of(manager, socket, message, flags) {
            Ok(Some(sent)) => return sent,
            Ok(None) => {}
            Err(errno) => return sys::fail(errno) as ssize_t,
        }
    }
    if let Some(sent) = send_long_message(socket, message, flags) {
        return sent;
    }
    bring::with_message(message, Does::Load, || {
        // SAFETY: the caller's promise.
        unsafe { real::sendmsg(socket, message.cast(), flags) }
    })
}

pub unsafe fn send_messages(socket: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int {
    let Some(manager) = lends(flags) else {
        return bring::with_messages(messages, n as usize, Does::Load, || {
            // SAFETY: the caller's promise.
            unsafe { real::sendmmsg(socket, messages.cast(), n, flags) as ssize_t }
        }) as c_int;
    };
    test_cancel();
    let n = (n as usize).min(MAX_PARTS);
    let mut sent = 0;
    while sent < n {
        match send_one(manager, socket, messages.wrapping_add(sent), flags) {
            Ok(true) => sent += 1,
            // The next message must not be sent before the rest of one that was sent in part.
            Ok(false) => return sent as c_int + 1,
            // As the kernel does: the error is that of the first message, or is met again.
            Err(errno) if sent == 0 => return sys::fail(errno),
            Err(_) => break,
        }
    }
    sent as c_int
}

/// Sends one of several messages, and stores in the program's memory how many bytes were sent. Gives
/// whether that is all of the message.
fn send_one(manager: &Manager, socket: c_int, at: *mut mmsghdr, flags: c_int) -> Result<bool, c_int> {
    let message: *const msghdr = at.cast_const().cast();
    let sent = match send_copies_of(manager, socket, message, flags)? {
        Some(sent) => sent,
        // SAFETY: the kernel checks all of it.
        None => unsafe {
            sys::system_call(libc::SYS_sendmsg, socket as c_long, message, flags as c_long) as ssize_t
        },
    };
    let len = c_uint::try_from(sent).map_err(|_| sys::errno())?;
    let to = at.addr() + std::mem::offset_of!(mmsghdr, msg_len);
    let written = bring::copy_checked((&raw const len).addr(), to, size_of::<c_uint>());
    if written == size_of::<c_uint>() { Ok(sent as usize >= total_bytes(message)) } else { Err(libc::EFAULT) }
}

/// The bytes of a message; 0 if it cannot be read.
fn total_bytes(at: *const msghdr) -> usize {
    // SAFETY: integers and pointers, which may be anything.
    let Ok(message) = (unsafe { read(at) }) else { return 0 };
    if !(1..=MAX_PARTS).contains(&message.msg_iovlen) {
        return 0;
    }
    let Ok(mut parts) = Parts::read(message.msg_iov, message.msg_iovlen) else { return 0 };
    parts.all().iter().fold(0, |sum, part| sum.saturating_add(part.iov_len))
}
