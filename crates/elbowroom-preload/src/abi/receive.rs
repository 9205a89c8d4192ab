//! Calls that receive from sockets, and random bytes.

use crate::agent::receive;
use libc::{c_int, c_uint, c_void, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};

export! {
    recv(socket: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t = receive::receive_bytes;
    __recv_chk(socket: c_int, to: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t
        = receive::receive_checked;
    recvfrom(socket: c_int, to: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr,
        from_len: *mut socklen_t) -> ssize_t = receive::receive_from;
    __recvfrom_chk(socket: c_int, to: *mut c_void, len: size_t, room: size_t, flags: c_int,
        from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t = receive::receive_from_checked;
    recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = receive::receive_message;
    recvmmsg(socket: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int
        = receive::receive_messages;
    getrandom(to: *mut c_void, len: size_t, flags: c_uint) -> ssize_t = receive::random_bytes;
    getentropy(to: *mut c_void, len: size_t) -> c_int = receive::entropy;
}
