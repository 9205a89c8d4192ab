//! The calls that receive from sockets, and random bytes, which are the kernel's but where only faults of
//! instructions are served.

use crate::agent::bring::{self, Does, Part};
use crate::agent::cleanup::with_cleanup;
use crate::agent::coherence::{Given, give_back};
use crate::base::real;
use crate::base::reserve::{BOUNCE_BYTES, Buffer};
use crate::base::sys::PAGE;
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

/// The most bytes that are received at once, if all must come (MSG_WAITALL).
const WHOLE_BYTES: usize = 64 << 20;
/// The most bytes of an address, and of what comes beside the bytes, that are copied.
const ADDRESS_BYTES: usize = 128;
const CONTROL_BYTES: usize = 64 << 10;
/// The most messages that the kernel receives in one call.
const MOST_MESSAGES: usize = 1024;

fn most(flags: c_int) -> usize {
    if flags & libc::MSG_WAITALL != 0 { WHOLE_BYTES } else { BOUNCE_BYTES }
}

/// Receives into managed memory, by a buffer of our own; into other memory by `call` itself.
fn receive(
    to: *mut c_void,
    len: usize,
    flags: c_int,
    call: impl FnOnce(*mut c_void, usize) -> ssize_t,
) -> ssize_t {
    let given = Given::one(to, len);
    let managed = bring::manager().filter(|(_, manager)| !given.is_plain(manager));
    match managed.and_then(|(_, manager)| given.check(manager)) {
        Some(buffers) => buffers.read_once(most(flags), call),
        None => call(to, len),
    }
}

pub unsafe fn receive_bytes(socket: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise, or a buffer of so many bytes.
    receive(to, len, flags, |to, len| unsafe { real::recv(socket, to, len, flags) })
}

pub unsafe fn receive_checked(
    socket: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if len > room {
        // SAFETY: libc ends the program.
        return unsafe { real::__recv_chk(socket, to, len, room, flags) };
    }
    // SAFETY: the caller's promise.
    unsafe { receive_bytes(socket, to, len, flags) }
}

pub unsafe fn receive_from(
    socket: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    let call = |to, len, from: *mut sockaddr, from_len| {
        // SAFETY: the caller's promise, or buffers of so many bytes.
        unsafe { real::recvfrom(socket, to, len, flags, from.cast(), from_len) }
    };
    let mut given: socklen_t = 0;
    if from.is_null() || bring::manager().is_none() || !bring::read(from_len, &mut given) {
        return receive(to, len, flags, |to, len| call(to, len, from, from_len));
    }
    // The kernel takes the message before it stores the address: that must not fail.
    // SAFETY: all zero is an address of nothing.
    let mut address: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut came = given.min(size_of_val(&address) as socklen_t);
    let received = receive(to, len, flags, |to, len| call(to, len, (&raw mut address).cast(), &mut came));
    if received >= 0 {
        let known = came.min(given) as usize;
        bring::copy_checked((&raw const address).addr(), from.addr(), known);
        bring::copy_checked((&raw const came).addr(), from_len.addr(), size_of::<socklen_t>());
    }
    received
}

pub unsafe fn receive_from_checked(
    socket: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    if len > room {
        // SAFETY: libc ends the program.
        return unsafe { real::__recvfrom_chk(socket, to, len, room, flags, from.cast(), from_len) };
    }
    // SAFETY: the caller's promise.
    unsafe { receive_from(socket, to, len, flags, from, from_len) }
}

pub unsafe fn receive_message(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if let Some(received) = receive_by_copies(socket, message, flags) {
        return received;
    }
    bring::with_message(message, Does::Store, || {
        // SAFETY: the caller's promise.
        unsafe { real::recvmsg(socket, message.cast(), flags) }
    })
}

/// Receives a message with buffers of our own. `None`: none of its memory is managed.
fn receive_by_copies(socket: c_int, at: *mut msghdr, flags: c_int) -> Option<ssize_t> {
    let (_, manager) = bring::manager()?;
    // SAFETY: all zero is a message of nothing.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    if !bring::read(at, &mut message) {
        return None;
    }
    let is_managed = |at: usize, len: usize| len > 0 && manager.windows().intersects(at, len);
    let buffers = Given::Many(message.msg_iov, c_int::try_from(message.msg_iovlen).ok()?).check(manager)?;
    if !buffers.managed
        && !is_managed(message.msg_control.addr(), message.msg_controllen)
        && !is_managed(message.msg_name.addr(), message.msg_namelen as usize)
        && !is_managed(at.addr(), size_of::<msghdr>())
    {
        return None;
    }
    let beside = Buffer::new((ADDRESS_BYTES + CONTROL_BYTES).next_multiple_of(PAGE))?;
    // A thread that ends in the call must not meet a value to drop.
    let mut beside = ManuallyDrop::new(beside);
    let given = (&raw mut beside).cast();
    let (name, control) = (beside.at(), beside.at().wrapping_byte_add(ADDRESS_BYTES));
    let mut inner = message;
    inner.msg_namelen = message.msg_namelen.min(ADDRESS_BYTES as socklen_t);
    inner.msg_controllen = message.msg_controllen.min(CONTROL_BYTES);
    if !message.msg_name.is_null() {
        inner.msg_name = name;
    }
    if !message.msg_control.is_null() {
        inner.msg_control = control;
    }
    let receive = |to, len| {
        let mut part = iovec { iov_base: to, iov_len: len };
        (inner.msg_iov, inner.msg_iovlen) = (&raw mut part, 1);
        // SAFETY: a message of our own, whose buffers have the lengths in it.
        unsafe { real::recvmsg(socket, (&raw mut inner).cast(), flags) }
    };
    // SAFETY: the buffer is given back once, here or by the end of the thread.
    let received = unsafe { with_cleanup(give_back, given, || buffers.read_once(most(flags), receive)) };
    if received >= 0 {
        let out = |from: *mut c_void, to: *mut c_void, len: usize| {
            bring::copy_checked(from.addr(), to.addr(), len);
        };
        if !message.msg_name.is_null() {
            out(name, message.msg_name, inner.msg_namelen.min(message.msg_namelen) as usize);
        }
        if !message.msg_control.is_null() {
            out(control, message.msg_control, inner.msg_controllen.min(message.msg_controllen));
        }
        message.msg_namelen = inner.msg_namelen;
        message.msg_controllen = inner.msg_controllen;
        message.msg_flags = inner.msg_flags;
        out((&raw mut message).cast(), at.cast(), size_of::<msghdr>());
    }
    drop(ManuallyDrop::into_inner(beside));
    Some(received)
}

pub unsafe fn receive_messages(
    socket: c_int,
    messages: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let all = (0..(n as usize).min(MOST_MESSAGES)).map(|index| messages.wrapping_add(index));
    if bring::manager().is_none() || !all.clone().any(|message| bring::has_managed(message.cast())) {
        // SAFETY: the caller's promise.
        return unsafe { real::recvmmsg(socket, messages.cast(), n, flags, timeout.cast()) };
    }
    // One after the other, as the kernel does, which looks at the time after each.
    let (begin, mut limit) = (Instant::now(), timespec { tv_sec: 0, tv_nsec: 0 });
    let has_limit = !timeout.is_null() && bring::read(timeout, &mut limit);
    let limit = Duration::new(limit.tv_sec.max(0) as u64, limit.tv_nsec.clamp(0, 999_999_999) as u32);
    let waits_for_one = flags & libc::MSG_WAITFORONE != 0;
    let (mut count, mut flags) = (0, flags & !libc::MSG_WAITFORONE);
    for message in all {
        // SAFETY: the caller's promise.
        let received = unsafe { receive_message(socket, message.cast(), flags) };
        let Ok(len) = c_uint::try_from(received) else { break };
        let at = message.wrapping_byte_add(std::mem::offset_of!(mmsghdr, msg_len));
        bring::copy_checked((&raw const len).addr(), at.addr(), size_of::<c_uint>());
        count += 1;
        if waits_for_one {
            flags |= libc::MSG_DONTWAIT;
        }
        if has_limit && begin.elapsed() >= limit {
            break;
        }
    }
    // As the kernel does: the error is that of the first message, or is met again.
    if count == 0 { -1 } else { count }
}

pub unsafe fn random_bytes(to: *mut c_void, len: size_t, flags: c_uint) -> ssize_t {
    // SAFETY: the caller's promise.
    bring::with(&[Part::stored(to, len)], || unsafe { real::getrandom(to, len, flags) })
}

pub unsafe fn entropy(to: *mut c_void, len: size_t) -> c_int {
    // SAFETY: the caller's promise.
    bring::with(&[Part::stored(to, len)], || unsafe { real::getentropy(to, len) as ssize_t }) as c_int
}
