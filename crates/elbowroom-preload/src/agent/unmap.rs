//! munmap.

use super::ranges::{each_part, managed_range};
use super::request::{self, NOT_OURS, Op};
use crate::base::changes;
use crate::base::reserve;
use crate::base::state::{self, Process};
use crate::base::sys::{self, ADDRESS_END};
use elbowroom::{Manager, Side};
use libc::{c_int, c_void, size_t};
use std::ops::Range;

/// munmap(2) of the program.
///
/// # Safety
/// As munmap(2).
pub unsafe fn unmap_for_program(addr: *mut c_void, len: size_t) -> c_int {
    changes::note(addr as usize, len);
    // SAFETY: the caller's promise.
    unsafe { unmap(addr, len) }
}

/// munmap(2).
///
/// # Safety
/// As munmap(2).
pub unsafe fn unmap(addr: *mut c_void, len: size_t) -> c_int {
    if reserve::refuses(addr as usize, len) {
        return sys::fail(libc::EINVAL);
    }
    let possible = managed_range(addr as usize, len).filter(|(_, _, range)| range.end <= ADDRESS_END);
    let Some((process, manager, range)) = possible else {
        // SAFETY: the caller's promise.
        return state::change_mappings(|| unsafe { sys::munmap(addr, len) });
    };
    loop {
        match unmap_parts(process, manager, &range) {
            Ok(()) => return 0,
            // A part of the range went to the kernel since the parts were found. Such a part does not come
            // back, so this loop ends.
            Err(NOT_OURS) => {}
            Err(errno) => return sys::fail(errno),
        }
    }
}

/// Unmaps a range that the program gives up: the manager does its parts, the kernel the others.
fn unmap_parts(process: &Process, manager: &Manager, range: &Range<usize>) -> Result<(), c_int> {
    each_part(manager, range.clone(), &mut |side, part| match side {
        Side::Managed => request::submit(process, Op::Unmap(part)).map(drop),
        Side::Kernel => {
            let at = part.start as *mut c_void;
            // SAFETY: the program gives up this range.
            match state::change_mappings(|| unsafe { sys::munmap(at, part.len()) }) {
                0 => Ok(()),
                _ => Err(sys::errno()),
            }
        }
    })
}
