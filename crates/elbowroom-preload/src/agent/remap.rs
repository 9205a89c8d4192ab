//! mremap.

use super::map::give_to_fork;
use super::ranges::hand_back;
use super::request::{self, NOT_OURS, Op};
use crate::base::changes;
use crate::base::reason::Reason;
use crate::base::reserve;
use crate::base::state::{self, Process};
use crate::base::sys::{self, PAGE};
use crate::rules::remap::{Facts, Plan, Ranges, RemapArgs};
use elbowroom::Manager;
use libc::{c_int, c_long, c_void, size_t};
use std::ops::Range;

/// mremap(2) of the program.
///
/// # Safety
/// As mremap(2).
pub unsafe fn remap_for_program(
    old: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    changes::note(old as usize, old_len);
    if flags & libc::MREMAP_FIXED != 0 {
        changes::note(new as usize, new_len);
    }
    // SAFETY: the caller's promise.
    unsafe { remap(old, old_len, new_len, flags, new) }
}

/// mremap(2).
///
/// # Safety
/// As mremap(2).
pub unsafe fn remap(
    old: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let target_len = if flags & libc::MREMAP_FIXED != 0 { new_len } else { 0 };
    if reserve::refuses(old as usize, old_len) || reserve::refuses(new as usize, target_len) {
        return sys::map_failed(libc::EINVAL);
    }
    let args = RemapArgs { old: old as usize, old_len, new_len, flags, new: new as usize };
    let ours = state::alive().and_then(|(process, manager)| remap_managed(process, manager, &args));
    match ours {
        Some(Ok(at)) => at as *mut c_void,
        Some(Err(errno)) => sys::map_failed(errno),
        None => {
            let flags = flags as c_long;
            // SAFETY: the caller's promise.
            let call = || unsafe { sys::system_call(libc::SYS_mremap, old, old_len, new_len, flags, new) };
            state::change_mappings(call) as *mut c_void
        }
    }
}

/// Does the call if managed memory takes part. `None`: the kernel is to do it, and nothing that it concerns
/// is managed any more.
fn remap_managed(process: &Process, manager: &Manager, args: &RemapArgs) -> Option<Result<usize, c_int>> {
    let ranges = Ranges::of(args)?;
    let (old, new_len) = (ranges.named(), ranges.new_len);
    let op = match ranges.plan(facts(manager, &ranges)) {
        Plan::Kernel => return None,
        Plan::Refused(errno) => return Some(Err(errno)),
        Plan::HandBack => None,
        Plan::Cut => Some(Op::Cut { old, new_len }),
        Plan::Ask(how) => Some(Op::Remap { old, new_len, how }),
    };
    if let Some(op) = op {
        let done = request::submit_for_address(process, op);
        if let Ok(at) = done {
            give_to_fork(process, at, ranges.new_len);
        }
        let still_ours = facts(manager, &ranges).all_ours;
        if done.is_ok() || still_ours && done != Err(NOT_OURS) {
            return Some(done);
        }
        // The mapping went to the kernel meanwhile, with its file: the manager found nothing there, or cut
        // nothing.
    }
    if !is_mapped(process, manager, args.old) {
        // A call that the kernel refuses must change nothing, but a range that was handed back for it would
        // be split from its mapping.
        return Some(Err(libc::EFAULT));
    }
    process.count_bytes(Reason::Remapped, args.old_len);
    hand_back_for(process, manager, &ranges).err().map(Err)
}

fn concerns(manager: &Manager, range: &Range<usize>) -> bool {
    !range.is_empty() && manager.windows().intersects(range.start, range.len())
}

fn facts(manager: &Manager, ranges: &Ranges) -> Facts {
    let covers = |range: &Range<usize>| manager.windows().covers(range.start, range.len());
    Facts {
        concerns_us: concerns(manager, &ranges.grown) || concerns(manager, &ranges.target),
        all_ours: covers(&ranges.needed) && (!ranges.replaces() || covers(&ranges.target)),
    }
}

/// Whether anything is mapped at a page.
fn is_mapped(process: &Process, manager: &Manager, at: usize) -> bool {
    let covered = || manager.windows().covers(at, PAGE);
    if covered() {
        return request::submit(process, Op::IsMapped(at)).is_ok() || !covered();
    }
    let mut resident = 0_u8;
    // SAFETY: room for one page's answer.
    let answer = unsafe { sys::system_call(libc::SYS_mincore, at, PAGE, &raw mut resident) };
    answer == 0 || sys::errno() != libc::ENOMEM
}

/// Makes all that an mremap concerns the kernel's: the mapping with its bytes, the free addresses behind it
/// that it may grow into, and the target.
fn hand_back_for(process: &Process, manager: &Manager, ranges: &Ranges) -> Result<(), c_int> {
    if concerns(manager, &ranges.mapping) {
        hand_back(process, ranges.mapping.clone())?;
    }
    if ranges.replaces() && concerns(manager, &ranges.target) {
        hand_back(process, ranges.target.clone())?;
    }
    let growth = ranges.mapping.end..ranges.grown.end;
    let wish = if ranges.is_wish() { ranges.target.clone() } else { 0..0 };
    for range in [growth, wish].into_iter().filter(|range| concerns(manager, range)) {
        // If something is mapped there, the kernel finds no room, as it should.
        let _ = request::submit(process, Op::MakeRoom(range));
    }
    Ok(())
}
