//! The calls on ranges of mapped memory: mprotect, msync, madvise, mincore, mlock and relatives.
//!
//! A call on a range that is partly inside windows is done part by part, in the order of addresses, as the
//! kernel does it mapping by mapping: inside by the manager, outside by the kernel. For mlock, mseal and
//! remap_file_pages the whole range is made the kernel's: locked and sealed memory is the kernel's, and a
//! range that is rearranged must be one mapping.

use crate::agent::bring;
use crate::agent::coherence;
use crate::agent::request::{self, Answer, Durable, Op, RESIDENT_PAGES};
use crate::base::changes;
use crate::base::real;
use crate::base::reason::Reason;
use crate::base::reserve;
use crate::base::state::{self, Process};
use crate::base::sys::{self, ADDRESS_END, PAGE};
use crate::rules::advice;
use crate::rules::map::prot as prot_of;
use elbowroom::{Manager, Side};
use libc::{c_int, c_long, c_uchar, c_uint, c_ulong, c_void, size_t};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The kernel's own address: no program has anything mapped there.
const NOWHERE: usize = usize::MAX - (2 * PAGE - 1);

/// The range in whole pages, if it is a possible one and any of it is inside windows.
pub fn managed_range(addr: usize, len: usize) -> Option<(&'static Process, &'static Manager, Range<usize>)> {
    let (process, manager) = state::alive()?;
    if !addr.is_multiple_of(PAGE) || len == 0 {
        return None;
    }
    let end = addr.checked_add(len.checked_add(PAGE - 1)? & !(PAGE - 1))?;
    manager.windows().intersects(addr, end - addr).then_some((process, manager, addr..end))
}

/// Calls `each` for the parts of the range inside windows and outside, in order, until one fails.
pub fn each_part(
    manager: &Manager,
    range: Range<usize>,
    each: &mut dyn FnMut(Side, Range<usize>) -> Result<(), c_int>,
) -> Result<(), c_int> {
    manager.windows().parts(range).try_for_each(|(side, part)| each(side, part))
}

/// Makes the range the kernel's: the files that are managed there go back with all their mappings, and free
/// addresses are unmapped for real.
pub fn hand_back(process: &Process, range: Range<usize>) -> Result<(), c_int> {
    request::submit(process, Op::HandBack(range)).map(drop)
}

/// `Err`: the kernel refuses the call's arguments (EINVAL), whatever is mapped in the range. `asked` is the
/// result of the same call for an empty range, or where nothing is mapped. This comes before the range goes
/// back to the kernel: going back splits a mapping, and a call that the kernel refuses must change nothing.
fn refused(asked: c_long) -> Result<(), c_int> {
    match asked {
        -1 if sys::errno() == libc::EINVAL => Err(libc::EINVAL),
        _ => Ok(()),
    }
}

/// Whether a call is done, after the manager was asked.
enum Done {
    /// The manager has done it.
    Here,
    /// The kernel is to do it: the range goes back first, counted under the reason.
    ByKernel(Reason),
}

/// What a call does at addresses where nothing is mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holes {
    /// The call goes on behind them, and fails with ENOMEM at the end.
    Skipped,
    /// The call ends there, with ENOMEM.
    End,
}

/// Does a call part by part, with `managed` inside windows and with `kernel` (a system call: -1 is an error)
/// outside. `errno` is kept if it succeeds.
fn by_parts(
    addr: usize,
    len: usize,
    holes: Holes,
    managed: &mut dyn FnMut(&'static Process, Range<usize>) -> Result<Done, c_int>,
    kernel: &dyn Fn(usize, usize) -> c_long,
) -> c_int {
    let Some((process, manager, range)) = managed_range(addr, len) else { return kernel(addr, len) as c_int };
    let by_kernel = |part: &Range<usize>| match kernel(part.start, part.len()) {
        -1 => Err(sys::errno()),
        _ => Ok(()),
    };
    let kernel_instead = |part: &Range<usize>, reason| {
        process.count_bytes(reason, part.len());
        hand_back(process, part.clone()).and_then(|()| by_kernel(part))
    };
    let kept = sys::errno();
    let mut hole = false;
    let done = each_part(manager, range, &mut |side, part| {
        let done = match side {
            Side::Kernel => by_kernel(&part),
            Side::Managed => match managed(process, part.clone()) {
                Ok(Done::Here) => Ok(()),
                Ok(Done::ByKernel(reason)) => kernel_instead(&part, reason),
                // A part of the range went to the kernel meanwhile, with its file: the manager found
                // nothing there. The call is made again for all of it, which does not change the result.
                Err(_) if !manager.windows().covers(part.start, part.len()) => {
                    kernel_instead(&part, Reason::MixedRange)
                }
                Err(errno) => Err(errno),
            },
        };
        // What is at such addresses can only be the library's own.
        let beyond = side == Side::Kernel && part.end > ADDRESS_END && done == Err(libc::EINVAL);
        let done = if beyond { Err(libc::ENOMEM) } else { done };
        hole |= done == Err(libc::ENOMEM);
        if done == Err(libc::ENOMEM) && holes == Holes::Skipped { Ok(()) } else { done }
    });
    match done {
        Ok(()) if hole => sys::fail(libc::ENOMEM),
        Ok(()) => {
            sys::set_errno(kept);
            0
        }
        Err(errno) => sys::fail(errno),
    }
}

/// Does a call with `managed` if all of its range is inside windows, else with `kernel` (a system call: -1 is
/// an error).
fn by_side(
    addr: usize,
    len: usize,
    managed: impl FnOnce(&'static Process, Range<usize>) -> Result<Done, c_int>,
    kernel: impl FnOnce() -> c_long,
) -> c_int {
    let Some((process, manager, range)) = managed_range(addr, len) else { return kernel() as c_int };
    if range.end > ADDRESS_END {
        // The kernel refuses such a range, but some calls act on the part before its limit first.
        return kernel_instead(process, Reason::MixedRange, range.start..ADDRESS_END, kernel);
    }
    let covered = || manager.windows().covers(range.start, range.len());
    let done =
        if covered() { managed(process, range.clone()) } else { Ok(Done::ByKernel(Reason::MixedRange)) };
    match done {
        Ok(Done::Here) => 0,
        // A part of the range went to the kernel meanwhile, with its file: the manager found nothing there.
        // The call is made again for all of it, which does not change the result.
        Err(_) if !covered() => kernel_instead(process, Reason::MixedRange, range, kernel),
        Ok(Done::ByKernel(reason)) => kernel_instead(process, reason, range, kernel),
        Err(errno) => sys::fail(errno),
    }
}

/// Hands the range back, counted under the reason, and lets the kernel do the call.
fn kernel_instead(
    process: &Process,
    reason: Reason,
    range: Range<usize>,
    kernel: impl FnOnce() -> c_long,
) -> c_int {
    process.count_bytes(reason, range.len());
    match hand_back(process, range) {
        Ok(()) => kernel() as c_int,
        Err(errno) => sys::fail(errno),
    }
}

/// A request whose answer is only whether it succeeded.
fn submit(process: &Process, op: Op) -> Result<Done, c_int> {
    request::submit(process, op).map(|_| Done::Here)
}

pub unsafe fn protect(addr: *mut c_void, len: size_t, prot: c_int) -> c_int {
    if reserve::refuses(addr as usize, len) {
        return sys::fail(libc::ENOMEM);
    }
    changes::note(addr as usize, len);
    let mut managed = |process: &'static Process, range| protect_managed(process, range, prot);
    by_parts(addr as usize, len, Holes::End, &mut managed, &|addr, len| {
        let prot = prot as c_long;
        // SAFETY: the caller's promise.
        state::change_mappings(|| unsafe { sys::system_call(libc::SYS_mprotect, addr, len, prot) })
    })
}

fn protect_managed(process: &Process, range: Range<usize>, prot: c_int) -> Result<Done, c_int> {
    if prot & !(libc::PROT_READ | libc::PROT_WRITE) != 0 {
        // SAFETY: nothing can be mapped there.
        refused(unsafe { sys::system_call(libc::SYS_mprotect, NOWHERE, PAGE, prot as c_long) })?;
        return Ok(Done::ByKernel(Reason::Executable));
    }
    if prot == libc::PROT_WRITE {
        // Such memory can be loaded from all the same. Only the kernel's check of the mapping's rights
        // makes a difference (process_vm_readv, for example).
        return Ok(Done::ByKernel(Reason::KernelCall));
    }
    match request::submit(process, Op::Protect(range, prot_of(prot)))? {
        Answer::ByKernel => Ok(Done::ByKernel(Reason::PrivateWritable)),
        _ => Ok(Done::Here),
    }
}

pub unsafe fn protect_with_key(addr: *mut c_void, len: size_t, prot: c_int, key: c_int) -> c_int {
    if reserve::refuses(addr as usize, len) {
        return sys::fail(libc::ENOMEM);
    }
    changes::note(addr as usize, len);
    let mut managed = |process: &'static Process, range| match key {
        -1 => protect_managed(process, range, prot),
        _ => {
            let (prot, key) = (prot as c_long, key as c_long);
            // SAFETY: nothing can be mapped there.
            refused(unsafe { sys::system_call(libc::SYS_pkey_mprotect, NOWHERE, PAGE, prot, key) })?;
            Ok(Done::ByKernel(Reason::KernelCall))
        }
    };
    by_parts(addr as usize, len, Holes::End, &mut managed, &|addr, len| {
        let (prot, key) = (prot as c_long, key as c_long);
        // SAFETY: the caller's promise.
        state::change_mappings(|| unsafe { sys::system_call(libc::SYS_pkey_mprotect, addr, len, prot, key) })
    })
}

pub unsafe fn synchronize(addr: *mut c_void, len: size_t, flags: c_int) -> c_int {
    // A cancellation point, so libc's own.
    let kernel = || {
        // SAFETY: changes no memory.
        c_long::from(unsafe { real::msync(addr, len, flags) })
    };
    let known = libc::MS_ASYNC | libc::MS_SYNC | libc::MS_INVALIDATE;
    let both = libc::MS_ASYNC | libc::MS_SYNC;
    if flags & !known != 0 || flags & both == both {
        return kernel() as c_int;
    }
    if managed_range(addr as usize, len).is_none() {
        return kernel() as c_int;
    }
    coherence::cancellation_point();
    let durable = if flags & libc::MS_SYNC != 0 { Durable::Yes } else { Durable::No };
    let mut managed = |process: &'static Process, range| submit(process, Op::Sync(range, durable));
    // SAFETY: changes no memory.
    by_parts(addr as usize, len, Holes::Skipped, &mut managed, &|addr, len| unsafe {
        sys::system_call(libc::SYS_msync, addr, len, flags as c_long)
    })
}

/// madvise(2), for process_madvise on this process too.
///
/// # Safety
/// As madvise(2).
pub unsafe fn advise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    if reserve::refuses(addr as usize, len) {
        return sys::fail(libc::ENOMEM);
    }
    if !advice::leaves_mapping(advice) {
        changes::note(addr as usize, len);
    }
    let mut managed = |process: &'static Process, range: Range<usize>| {
        if !advice::all_kernels_know(advice) {
            // SAFETY: advice for no bytes.
            refused(unsafe { sys::system_call(libc::SYS_madvise, range.start, 0, advice as c_long) })?;
        }
        match advice::meaning(advice) {
            Some(advice) => submit(process, Op::Advise(range, advice)),
            None => Ok(Done::ByKernel(Reason::KernelCall)),
        }
    };
    let populates = [libc::MADV_POPULATE_READ, libc::MADV_POPULATE_WRITE].contains(&advice);
    let holes = if populates { Holes::End } else { Holes::Skipped };
    // SAFETY: the caller's promise.
    by_parts(addr as usize, len, holes, &mut managed, &|addr, len| unsafe {
        sys::system_call(libc::SYS_madvise, addr, len, advice as c_long)
    })
}

pub unsafe fn posix_advise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    // POSIX_MADV_DONTNEED must not lose bytes, as Linux' MADV_DONTNEED does: libc ignores it.
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    let kept = sys::errno();
    // SAFETY: the caller's promise.
    let r = unsafe { advise(addr, len, advice) };
    let error = if r == 0 { 0 } else { sys::errno() };
    sys::set_errno(kept);
    error
}

pub unsafe fn resident(addr: *mut c_void, len: size_t, out: *mut c_uchar) -> c_int {
    let place = |at: usize| out.wrapping_add((at - addr as usize) / PAGE);
    let mut managed = |process: &'static Process, range: Range<usize>| {
        for at in range.clone().step_by(RESIDENT_PAGES * PAGE) {
            let chunk = at..range.end.min(at + RESIDENT_PAGES * PAGE);
            let (pages, to) = (chunk.len() / PAGE, place(at));
            let mut bytes = [0; RESIDENT_PAGES];
            request::submit_with(process, Op::Resident(chunk), |done| bytes = done.resident)?;
            // The program's pointer may be bad: the kernel looks.
            if bring::copy_checked(bytes.as_ptr() as usize, to as usize, pages) != pages {
                return Err(libc::EFAULT);
            }
        }
        Ok(Done::Here)
    };
    // SAFETY: the caller's promise.
    by_parts(addr as usize, len, Holes::End, &mut managed, &|at, len| unsafe {
        sys::system_call(libc::SYS_mincore, at, len, place(at))
    })
}

/// mseal(2), which libc before 2.41 does not have: what is sealed is the kernel's from then on.
pub unsafe fn seal(addr: *mut c_void, len: size_t, flags: c_ulong) -> c_int {
    if reserve::refuses(addr as usize, len) {
        return sys::fail(libc::ENOMEM);
    }
    changes::note(addr as usize, len);
    by_side(
        addr as usize,
        len,
        |_, range| {
            // SAFETY: seals no bytes.
            refused(unsafe { sys::system_call(libc::SYS_mseal, range.start, 0, flags) })?;
            Ok(Done::ByKernel(Reason::KernelCall))
        },
        // SAFETY: changes no memory.
        || unsafe { sys::system_call(libc::SYS_mseal, addr, len, flags) },
    )
}

pub unsafe fn lock(addr: *const c_void, len: size_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { lock_with(addr, len, 0) }
}

/// The range that mlock and munlock mean: they take any address and round it down. A range that wraps stays
/// as it is, for the kernel to refuse or not.
fn locked_range(addr: *const c_void, len: size_t) -> (usize, usize) {
    let start = addr as usize & !(PAGE - 1);
    (addr as usize).checked_add(len).map_or((addr as usize, len), |end| (start, end - start))
}

pub unsafe fn lock_with(addr: *const c_void, len: size_t, flags: c_uint) -> c_int {
    let (start, whole) = locked_range(addr, len);
    changes::note(start, whole);
    by_side(
        start,
        whole,
        |_, range| {
            if flags != 0 {
                // SAFETY: locks no bytes.
                refused(unsafe { sys::system_call(libc::SYS_mlock2, range.start, 0, flags as c_long) })?;
            }
            Ok(Done::ByKernel(Reason::Mlocked))
        },
        // SAFETY: changes no memory.
        || unsafe {
            if flags == 0 {
                sys::system_call(libc::SYS_mlock, addr, len)
            } else {
                sys::system_call(libc::SYS_mlock2, addr, len, flags as c_long)
            }
        },
    )
}

pub unsafe fn unlock(addr: *const c_void, len: size_t) -> c_int {
    let (start, whole) = locked_range(addr, len);
    let mut managed = |process: &'static Process, range| submit(process, Op::Unlock(range));
    // SAFETY: changes no memory.
    by_parts(start, whole, Holes::End, &mut managed, &|start, whole| unsafe {
        sys::system_call(libc::SYS_munlock, start, whole)
    })
}

/// Linux emulates the call by mapping a part of the mapping's file once more, so the range must be one
/// mapping of the kernel's.
pub unsafe fn remap_pages(addr: *mut c_void, size: size_t, prot: c_int, page: size_t, flags: c_int) -> c_int {
    let (start, whole) = (addr as usize & !(PAGE - 1), size & !(PAGE - 1));
    changes::note(start, whole);
    let (prot, flags) = (prot as c_long, flags as c_long);
    by_side(
        start,
        whole,
        // The kernel refuses any rights.
        |_, _| if prot == 0 { Ok(Done::ByKernel(Reason::KernelCall)) } else { Err(libc::EINVAL) },
        // SAFETY: the caller's promise.
        || unsafe { sys::system_call(libc::SYS_remap_file_pages, addr, size, prot, page, flags) },
    )
}

/// Windows and the arena must not be locked: their pages move.
pub unsafe fn lock_all(flags: c_int) -> c_int {
    changes::note(0, usize::MAX);
    if let Some((process, _)) = state::alive() {
        process.count(Reason::MlockRefused);
        return sys::fail(libc::ENOMEM);
    }
    // SAFETY: changes no memory.
    let r = unsafe { sys::system_call(libc::SYS_mlockall, flags as c_long) as c_int };
    if r == 0 {
        state::LOCKS_FUTURE_MEMORY.store(flags & libc::MCL_FUTURE != 0, Ordering::Release);
    }
    r
}

pub unsafe fn unlock_all() -> c_int {
    state::LOCKS_FUTURE_MEMORY.store(false, Ordering::Release);
    // SAFETY: changes no memory.
    unsafe { sys::system_call(libc::SYS_munlockall) as c_int }
}

/// Before a fork: files that the child could store to, or see stored to, go back to the kernel. The child
/// has the descriptors of its parent, and inherits the kernel's mappings, not ours. `false`: some of this,
/// or of private memory, could not go back, and a child would lack it.
pub fn hand_back_shared() -> bool {
    let Some((process, manager)) = state::alive() else { return true };
    let private = state::options().is_some_and(|options| options.swap.bytes > 0);
    if manager.managed_files() > 0 || private {
        // What cannot go back is written back all the same.
        if request::submit(process, Op::HandBackShared).is_err() {
            process.count(Reason::NotGiven);
            return false;
        }
    }
    true
}
