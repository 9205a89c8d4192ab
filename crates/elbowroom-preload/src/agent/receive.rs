//! The calls that receive from sockets, and random bytes, which are the kernel's but where only faults of
//! instructions are served.

use crate::agent::bring::{self, Does, Part};
use crate::agent::lend::is_stream;
use crate::base::real;
use libc::{c_int, c_uint, c_void, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};

pub unsafe fn receive_bytes(socket: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let parts = [Part::stored(to, len)];
    // SAFETY: the caller's promise.
    let call = || unsafe { real::recv(socket, to, len, flags) };
    if bring::manager().is_some() && is_stream(socket) {
        return bring::with_after(&parts, call);
    }
    bring::with(&parts, call)
}

pub unsafe fn receive_checked(
    socket: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's promise; libc ends the program if the buffer is too small.
    bring::with(&[Part::stored(to, len)], || unsafe { real::__recv_chk(socket, to, len, room, flags) })
}

pub unsafe fn receive_from(
    socket: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    let parts = [Part::stored(to, len), Part::out(from), Part::out(from_len)];
    bring::with(&parts, || {
        // SAFETY: the caller's promise.
        unsafe { real::recvfrom(socket, to, len, flags, from.cast(), from_len) }
    })
}

pub unsafe fn receive_message(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    bring::with_message(message, Does::Store, || {
        // SAFETY: the caller's promise.
        unsafe { real::recvmsg(socket, message.cast(), flags) }
    })
}

pub unsafe fn receive_messages(
    socket: c_int,
    messages: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    bring::with_messages(messages, n as usize, Does::Store, || {
        // SAFETY: the caller's promise.
        unsafe { real::recvmmsg(socket, messages.cast(), n, flags, timeout.cast()) as ssize_t }
    }) as c_int
}

pub unsafe fn random_bytes(to: *mut c_void, len: size_t, flags: c_uint) -> ssize_t {
    // SAFETY: the caller's promise.
    bring::with(&[Part::stored(to, len)], || unsafe { real::getrandom(to, len, flags) })
}

pub unsafe fn entropy(to: *mut c_void, len: size_t) -> c_int {
    // SAFETY: the caller's promise.
    bring::with(&[Part::stored(to, len)], || unsafe { real::getentropy(to, len) as ssize_t }) as c_int
}
