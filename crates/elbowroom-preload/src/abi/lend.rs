//! Calls that lend pages to the kernel for longer than the call.

use crate::agent::lend;
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t};

export! {
    vmsplice(fd: c_int, from: *const iovec, n: size_t, flags: c_uint) -> ssize_t = lend::give_to_pipe;
    send(socket: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t = lend::send_bytes;
    sendto(socket: c_int, from: *const c_void, len: size_t, flags: c_int, to: *const sockaddr,
        to_len: socklen_t) -> ssize_t = lend::send_bytes_to;
    sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t = lend::send_message;
    sendmmsg(socket: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int = lend::send_messages;
}
