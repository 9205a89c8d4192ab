//! mmap, as the program calls it: the first mapping that is managed starts the manager, and puts our
//! handlers and limits in place.

use crate::agent::map::{self, Mapped};
use crate::agent::service;
use crate::base::changes;
use crate::base::reason::Reason;
use crate::base::reserve;
use crate::base::state::{self, Process};
use crate::base::sys;
use crate::process::address_use::{self, Kernels};
use crate::process::{limits, signals};
use crate::rules::map::{Caller, MapArgs};
use libc::{c_int, c_void, off_t, size_t};
use std::sync::atomic::Ordering;

/// mmap(2).
///
/// # Safety
/// As mmap(2).
pub unsafe fn map(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let args = MapArgs { addr: addr as usize, len, prot, flags, fd, offset, caller: Caller::Program };
    // SAFETY: the caller's promise.
    unsafe { map_args(&args) }
}

/// As mmap(2) of new memory, wherever there is room, for the library before malloc.
///
/// # Safety
/// The flags do not have MAP_FIXED.
pub unsafe fn map_heap(len: size_t, flags: c_int) -> *mut c_void {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let args = MapArgs { addr: 0, len, prot, flags, fd: -1, offset: 0, caller: Caller::Heap };
    // SAFETY: a new mapping, which replaces none, as the caller promises.
    unsafe { map_args(&args) }
}

/// # Safety
/// As mmap(2).
unsafe fn map_args(args: &MapArgs) -> *mut c_void {
    let MapArgs { addr, len, prot, flags, fd, offset, .. } = *args;
    if flags & libc::MAP_FIXED != 0 && reserve::refuses(addr, len) {
        return sys::map_failed(libc::ENOMEM);
    }
    if flags & libc::MAP_FIXED != 0 {
        changes::note(addr, len);
    }
    match state::for_program() {
        Some(process) => map_for_program(process, args),
        None if addr == 0 && state::is_service_thread() => map::map_for_ours(args),
        // SAFETY: the caller's promise.
        None => unsafe { sys::mmap(addr as *mut c_void, len, prot, flags, fd, offset) },
    }
}

fn map_for_program(process: &'static Process, args: &MapArgs) -> *mut c_void {
    if limits::refuse(args) {
        return sys::map_failed(libc::ENOMEM);
    }
    let mapped = match map::map(process, args) {
        Mapped::NeedsManager => {
            let before = Kernels::now();
            match start(process) {
                // Decided anew, since more is known by now: there may be no place for swap.
                Ok(()) => {
                    let mapped = map::map(process, args);
                    address_use::manager_started(before);
                    mapped
                }
                Err(reason) => Mapped::Answered(map::by_kernel(process, args, reason)),
            }
        }
        mapped => mapped,
    };
    match mapped {
        Mapped::Managed(at) => {
            signals::arm();
            limits::settle();
            at as *mut c_void
        }
        Mapped::Answered(at) => at,
        Mapped::NeedsManager => unreachable!("the manager was started"),
    }
}

/// Starts the manager. `Err`: the kernel is to make the mapping, counted under the reason.
fn start(process: &'static Process) -> Result<(), Option<Reason>> {
    if !process.is_home() {
        return Err(Some(Reason::ChildProcess));
    }
    if state::LOCKS_FUTURE_MEMORY.load(Ordering::Acquire) {
        return Err(Some(Reason::LockedMemory));
    }
    if !limits::make_room() {
        return Err(Some(Reason::AddressSpaceLimit));
    }
    let started = service::manager(process).map(drop).ok_or(None);
    if started.is_err() {
        limits::give_back();
    }
    started
}
