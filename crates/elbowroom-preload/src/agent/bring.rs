//! Calls on managed memory where only faults of instructions are served (`Served::UserMode`). The kernel then
//! says EFAULT as soon as a system call meets a page that is not in memory, or that it may not store to yet.
//!
//! So the pages are brought in before the call, and the call is made again while it says EFAULT: reclaim may
//! have evicted one in between.
//!
//! Not seen: calls that libc makes inside of other functions, and system calls by instructions of the
//! program.

use super::request::{self, Op};
use crate::base::reason::Reason;
use crate::base::state::{self, Process};
use crate::base::sys::{self, PAGE};
use elbowroom::{Advice, Manager, Side};
use libc::{c_int, c_long, c_void, iovec, msghdr, socklen_t, ssize_t};
use std::cell::Cell;
use std::ops::Range;

/// The most bytes whose pages are brought in for one call: so few that reclaim, even with the smallest
/// budget, does not evict them before the call has used them.
pub const MOST_BYTES: usize = 256 << 10;
/// How often a call is made that says EFAULT although its pages were brought in: with a budget that is used
/// up by other threads, reclaim evicts them again and again.
pub const MOST_CALLS: usize = 100;
/// The most parts of a call whose pages are brought.
const MOST_PARTS: usize = 1024;

/// How a call accesses a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Does {
    /// The kernel loads from the buffer.
    Load,
    /// The kernel stores to the buffer.
    Store,
}

/// A buffer of a call.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    at: usize,
    len: usize,
    does: Does,
}

impl Part {
    /// So many bytes that the call loads.
    pub fn loaded(at: *const c_void, len: usize) -> Self {
        Self { at: at.addr(), len, does: Does::Load }
    }

    /// So many bytes to which the call stores.
    pub fn stored(at: *mut c_void, len: usize) -> Self {
        Self { at: at.addr(), len, does: Does::Store }
    }

    /// One value to which the call stores.
    pub fn out<T>(at: *mut T) -> Self {
        Self { at: at.addr(), len: size_of::<T>(), does: Does::Store }
    }
}

/// The process and its manager, if that serves only faults of instructions, and the caller is a thread of the
/// program.
pub fn manager() -> Option<(&'static Process, &'static Manager)> {
    state::serves_user_mode_only().then(state::alive)?
}

/// The pages of a part's first [`MOST_BYTES`] bytes; `None` if none of these pages is managed.
fn managed_pages(manager: &Manager, part: &Part) -> Option<Range<usize>> {
    let len = part.len.min(MOST_BYTES);
    let end = part.at.checked_add(len)?.checked_next_multiple_of(PAGE)?;
    (len > 0 && manager.windows().intersects(part.at, len)).then_some(part.at & !(PAGE - 1)..end)
}

/// Brings in the pages of a part. `false` if no page of the part is managed, or a page cannot be brought in;
/// the caller makes the call all the same, whose error tells the program why.
fn bring(process: &Process, manager: &Manager, part: &Part) -> bool {
    let Some(pages) = managed_pages(manager, part) else { return false };
    let advice = match part.does {
        Does::Load => Advice::PopulateRead,
        Does::Store => Advice::PopulateWrite,
    };
    let mut brought = true;
    for (_, inside) in manager.windows().parts(pages).filter(|(side, _)| *side == Side::Managed) {
        brought &= request::submit(process, Op::Advise(inside, advice)).is_ok();
    }
    brought
}

/// Calls its parameter with each part of a call. This is a function and not a list, since a signal handler
/// may make the call, and must not allocate.
type EachPart<'a> = &'a dyn Fn(&mut dyn FnMut(Part));

/// Makes a call with the managed pages of these parts in memory. `call` is libc's own function, and may end
/// the thread. `errno` is the call's.
pub fn with(parts: &[Part], call: impl FnMut() -> ssize_t) -> ssize_t {
    with_each(&|part| parts.iter().copied().for_each(part), call)
}

/// Brings the pages of a part; `false` if one cannot be had. `errno` is kept.
pub fn bring_part(part: &Part) -> bool {
    let Some((process, manager)) = manager() else { return false };
    let kept = sys::errno();
    let brought = bring(process, manager, part);
    sys::set_errno(kept);
    brought
}

/// As [`with`], for a call that has done nothing if it says EFAULT: it is made first, since most pages are in
/// memory, and bringing them takes a request.
pub fn with_after(parts: &[Part], mut call: impl FnMut() -> ssize_t) -> ssize_t {
    let result = call();
    if result != -1 || manager().is_none() || sys::errno() != libc::EFAULT {
        return result;
    }
    with(parts, call)
}

fn with_each(each: EachPart<'_>, mut call: impl FnMut() -> ssize_t) -> ssize_t {
    let Some((process, manager)) = manager() else { return call() };
    let kept = sys::errno();
    for _ in 0..MOST_CALLS {
        let (mut brought, mut room) = (false, MOST_BYTES);
        each(&mut |part| {
            // What is brought first must not go away for what is brought last.
            let len = part.len.min(room);
            room -= len;
            brought |= bring(process, manager, &Part { len, ..part });
        });
        sys::set_errno(kept);
        let result = call();
        if result != -1 || sys::errno() != libc::EFAULT || !brought {
            return result;
        }
    }
    process.count(Reason::RefusedCall);
    sys::fail(libc::EFAULT) as ssize_t
}

/// As [`with`], for a call with an array of parts.
pub fn with_parts(parts: *const iovec, n: usize, does: Does, call: impl FnMut() -> ssize_t) -> ssize_t {
    with_each(&|each| each_of_array(parts, n, does, each), call)
}

fn each_of_array(parts: *const iovec, n: usize, does: Does, each: &mut dyn FnMut(Part)) {
    let n = n.min(MOST_PARTS);
    each(Part::loaded(parts.cast(), n * size_of::<iovec>()));
    for index in 0..n {
        let mut part = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        if !read(parts.wrapping_add(index), &mut part) {
            return;
        }
        each(Part { at: part.iov_base.addr(), len: part.iov_len, does });
    }
}

/// As [`with`], for a call with a message.
pub fn with_message(message: *const msghdr, does: Does, call: impl FnMut() -> ssize_t) -> ssize_t {
    with_each(&|each| each_of_message(message, does, each), call)
}

/// Whether any memory of a message is managed.
pub fn has_managed(message: *const msghdr) -> bool {
    let Some((_, manager)) = manager() else { return false };
    let found = Cell::new(false);
    let look = &mut |part: Part| found.set(found.get() || managed_pages(manager, &part).is_some());
    each_of_message(message, Does::Store, look);
    found.get()
}

/// As [`with`], for a call with an array of messages.
pub fn with_messages(
    messages: *const libc::mmsghdr,
    n: usize,
    does: Does,
    call: impl FnMut() -> ssize_t,
) -> ssize_t {
    let each = |each: &mut dyn FnMut(Part)| {
        for index in 0..n.min(MOST_PARTS) {
            let message = messages.wrapping_add(index);
            // The kernel stores how many bytes the message has, for sends, too.
            each(Part::out(message.cast_mut()));
            each_of_message(message.cast(), does, each);
        }
    };
    with_each(&each, call)
}

fn each_of_message(at: *const msghdr, does: Does, each: &mut dyn FnMut(Part)) {
    // SAFETY: all zero is a message of nothing.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    if !read(at, &mut message) {
        return;
    }
    let of = |at: *mut c_void, len: usize| Part { at: at.addr(), len, does };
    // The kernel stores the lengths of what it has received, and the flags.
    each(of(at.cast_mut().cast(), size_of::<msghdr>()));
    each(of(message.msg_name, message.msg_namelen as usize));
    each(of(message.msg_control, message.msg_controllen));
    each_of_array(message.msg_iov, message.msg_iovlen, does, each);
}

/// Writes or sends a buffer to a pipe or a stream, in portions that can be in memory at a time. `call` is
/// given the address and the length of one.
pub fn send_all(
    from: *const c_void,
    len: usize,
    mut call: impl FnMut(*const c_void, usize) -> ssize_t,
) -> ssize_t {
    let mut done = 0;
    loop {
        let (rest, portion) = (from.wrapping_byte_add(done), (len - done).min(MOST_BYTES));
        let n = with_after(&[Part::loaded(rest, portion)], || call(rest, portion));
        let Some(n) = usize::try_from(n).ok().filter(|n| *n > 0) else {
            return if done > 0 { done as ssize_t } else { n };
        };
        done += n;
        // A short count is the kernel's own, of a signal for example, if no page lacks where it stopped.
        if done >= len || n < portion && !is_missing(from.addr() + done, len - done) {
            return done as ssize_t;
        }
    }
}

/// [`send_all`] for an array of parts.
pub fn send_all_parts(
    parts: *const iovec,
    n: usize,
    mut call: impl FnMut(*const c_void, usize) -> ssize_t,
) -> ssize_t {
    let mut done: ssize_t = 0;
    for index in 0..n {
        let mut part = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let result = match read(parts.wrapping_add(index), &mut part) {
            true if part.iov_len == 0 => continue,
            true => send_all(part.iov_base, part.iov_len, &mut call),
            false => sys::fail(libc::EFAULT) as ssize_t,
        };
        match usize::try_from(result) {
            Ok(sent) if sent == part.iov_len => done += result,
            Ok(_) => return done + result,
            Err(_) if done > 0 => break,
            Err(_) => return result,
        }
    }
    done
}

/// Whether a page of the first bytes cannot be read by the kernel: as many bytes as a socket takes at a time.
fn is_missing(at: usize, len: usize) -> bool {
    const TAKEN_BYTES: usize = 64 << 10;
    let end = at + len.min(TAKEN_BYTES);
    let pages = std::iter::once(at).chain((at.next_multiple_of(PAGE)..end).step_by(PAGE));
    let mut byte = 0_u8;
    pages.into_iter().any(|page| sys::copy_checked(page, (&raw mut byte).addr(), 1) == 0)
}

/// A value of the program's; `false` if it cannot be read.
pub fn read<T>(at: *const T, to: &mut T) -> bool {
    copy_checked(at.addr(), std::ptr::from_mut(to).addr(), size_of::<T>()) == size_of::<T>()
}

/// [`sys::copy_checked`], of managed memory, too: what is not in memory is brought. `errno` is kept.
pub fn copy_checked(from: usize, to: usize, len: usize) -> usize {
    let mut done = sys::copy_checked(from, to, len);
    if done == len {
        return done;
    }
    let Some((process, manager)) = manager() else { return done };
    let kept = sys::errno();
    let mut calls = 0;
    while done < len && calls < MOST_CALLS {
        let rest = (len - done).min(MOST_BYTES);
        let sides = [
            Part { at: from + done, len: rest, does: Does::Load },
            Part { at: to + done, len: rest, does: Does::Store },
        ];
        let mut brought = false;
        for part in &sides {
            brought |= bring(process, manager, part);
        }
        let copied = sys::copy_checked(from + done, to + done, rest);
        done += copied;
        if copied == 0 && !brought {
            break;
        }
        calls = if copied == 0 { calls + 1 } else { 0 };
    }
    sys::set_errno(kept);
    done
}

/// Whether [`by_number`] can make the call: not if it does not return, or returns on another stack.
pub fn can_be_repeated(number: c_long) -> bool {
    !matches!(
        number,
        libc::SYS_exit | libc::SYS_exit_group | libc::SYS_rt_sigreturn | libc::SYS_clone | libc::SYS_clone3
    ) && !is_vfork(number)
}

fn is_vfork(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    return number == libc::SYS_vfork;
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Whether a call takes something before it stores its result: a child, a connection, a signal, a message.
/// If it said EFAULT, a second call would take, or wait for, another one.
fn takes(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_wait4
            | libc::SYS_waitid
            | libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_rt_sigtimedwait
            | libc::SYS_msgrcv
            | libc::SYS_mq_timedreceive
            | libc::SYS_io_getevents
    )
}

/// A system call by number that the library has no function for, made again with its pages in memory if it
/// says EFAULT: each of the six words that is an address in managed memory is taken for the address of a
/// structure of at most 4,096 bytes, whose pages are brought in.
///
/// # Safety
/// As the call.
pub unsafe extern "C-unwind" fn by_number(
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
    number: c_long,
) -> c_long {
    let words = [a, b, c, d, e, f].map(|word| word as usize);
    // SAFETY: the caller's promise.
    let call = || unsafe { sys::system_call(number, a, b, c, d, e, f) };
    let says_fault = |result| result == -1 && sys::errno() == libc::EFAULT;
    let Some((process, manager)) = manager() else { return call() };
    let kept = sys::errno();
    let bring_all =
        || words.iter().fold(false, |brought, at| brought | bring_structure(process, manager, *at));
    if takes(number) {
        bring_all();
        sys::set_errno(kept);
        return call();
    }
    let mut result = call();
    for _ in 0..MOST_CALLS {
        if !says_fault(result) {
            return result;
        }
        if !bring_all() {
            sys::set_errno(libc::EFAULT);
            return result;
        }
        sys::set_errno(kept);
        result = call();
    }
    if says_fault(result) {
        process.count(Reason::RefusedCall);
    }
    result
}

/// Brings in the pages of a structure at an address. One of the two may be no memory, or of another mapping.
fn bring_structure(process: &Process, manager: &Manager, at: usize) -> bool {
    let Some(second) = (at | (PAGE - 1)).checked_add(1) else { return false };
    [(at, second - at), (second, PAGE - (second - at))].into_iter().fold(false, |brought, (at, len)| {
        let does = |does| bring(process, manager, &Part { at, len, does });
        // Memory that may not be stored to is brought in for loads.
        brought | (does(Does::Store) || does(Does::Load))
    })
}

/// Whether a socket gives bytes without bounds of messages.
pub fn is_stream_socket(socket: c_int) -> bool {
    let (mut kind, mut len) = (0 as c_int, size_of::<c_int>() as socklen_t);
    let (level, name) = (libc::SOL_SOCKET as c_long, libc::SO_TYPE as c_long);
    // SAFETY: both point to what the kernel writes.
    let r = unsafe {
        sys::system_call(libc::SYS_getsockopt, socket as c_long, level, name, &raw mut kind, &raw mut len)
    };
    r == 0 && kind == libc::SOCK_STREAM
}
