//! The calls on ranges of mapped memory: mprotect, msync, madvise, mincore, mlock and relatives. A range may
//! lie partly inside windows: the parts are done in address order, the manager's by it, the rest by the
//! kernel.

use crate::reason::Reason;
use crate::request::{self, Durable, Op, RESIDENT_PAGES};
use crate::serve;
use crate::split::{self, Side};
use crate::state::{self, Process};
use crate::sys::{self, PAGE};
use elbowroom::{Advice, Manager};
use libc::{c_int, c_long, c_uchar, c_uint, c_void, size_t};
use std::ops::Range;
use std::sync::atomic::Ordering;

export! {
    mprotect(addr: *mut c_void, len: size_t, prot: c_int) -> c_int = protect;
    pkey_mprotect(addr: *mut c_void, len: size_t, prot: c_int, key: c_int) -> c_int = protect_with_key;
    msync(addr: *mut c_void, len: size_t, flags: c_int) -> c_int = synchronize;
    madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int = advise;
    posix_madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int = posix_advise;
    mincore(addr: *mut c_void, len: size_t, out: *mut c_uchar) -> c_int = resident;
    mlock(addr: *const c_void, len: size_t) -> c_int = lock;
    mlock2(addr: *const c_void, len: size_t, flags: c_uint) -> c_int = lock_with;
    munlock(addr: *const c_void, len: size_t) -> c_int = unlock;
    mlockall(flags: c_int) -> c_int = lock_all;
    munlockall() -> c_int = unlock_all;
}

/// The range in whole pages, if it is a possible one and any of it is inside windows.
pub fn managed_range(addr: usize, len: usize) -> Option<(&'static Process, &'static Manager, Range<usize>)> {
    let (process, manager) = state::alive()?;
    if !addr.is_multiple_of(PAGE) || len == 0 {
        return None;
    }
    let end = addr.checked_add(len.checked_add(PAGE - 1)? & !(PAGE - 1))?;
    manager.windows().intersects(addr, end - addr).then_some((process, manager, addr..end))
}

/// [`split::parts`] by the manager's windows.
pub fn each_part(
    manager: &Manager,
    range: Range<usize>,
    each: &mut dyn FnMut(Side, Range<usize>) -> Result<(), c_int>,
) -> Result<(), c_int> {
    let windows = manager.windows();
    split::parts(
        range,
        PAGE,
        &|range| windows.intersects(range.start, range.len()),
        &|range| windows.covers(range.start, range.len()),
        each,
    )
}

/// Gives a managed range to the kernel, with its bytes.
pub fn hand_back(process: &Process, range: Range<usize>, prot: Option<u32>) -> Result<(), c_int> {
    state::HANDED_BACK.store(true, Ordering::Release);
    request::submit(process, Op::HandBack(range, prot)).map(drop)
}

/// Does the parts of the range with `managed` and `kernel` (a system call: -1 is an error), or all of it with
/// `kernel` if nothing of it is managed.
fn by_parts(
    addr: usize,
    len: usize,
    managed: &mut dyn FnMut(&'static Process, Range<usize>) -> Result<(), c_int>,
    kernel: &mut dyn FnMut(usize, usize) -> c_long,
) -> c_int {
    let Some((process, manager, range)) = managed_range(addr, len) else {
        return kernel(addr, len) as c_int;
    };
    let done = each_part(manager, range, &mut |side, part| match side {
        Side::Managed => managed(process, part),
        Side::Kernel if kernel(part.start, part.len()) < 0 => Err(sys::errno()),
        Side::Kernel => Ok(()),
    });
    done.map_or_else(sys::fail, |()| 0)
}

unsafe fn protect(addr: *mut c_void, len: size_t, prot: c_int) -> c_int {
    // SAFETY: the caller's promise.
    by_parts(
        addr as usize,
        len,
        &mut |process, range| protect_managed(process, range, prot),
        &mut |addr, len| {
            let prot = prot as c_long;
            // SAFETY: the caller's promise.
            state::change_mappings(|| unsafe { libc::syscall(libc::SYS_mprotect, addr, len, prot) })
        },
    )
}

fn protect_managed(process: &Process, range: Range<usize>, prot: c_int) -> Result<(), c_int> {
    if prot & !(libc::PROT_READ | libc::PROT_WRITE) != 0 {
        process.count(Reason::Executable);
        return hand_back(process, range, Some(prot as u32));
    }
    if request::submit(process, Op::Protect(range.clone(), serve::prot(prot)))? == 0 {
        process.count(Reason::PrivateWritable);
        return hand_back(process, range, Some(prot as u32));
    }
    Ok(())
}

unsafe fn protect_with_key(addr: *mut c_void, len: size_t, prot: c_int, key: c_int) -> c_int {
    let by_kernel = |addr: usize, len: usize| {
        let (prot, key) = (prot as c_long, key as c_long);
        // SAFETY: the caller's promise.
        state::change_mappings(|| unsafe { libc::syscall(libc::SYS_pkey_mprotect, addr, len, prot, key) })
    };
    let managed = &mut |process: &'static Process, range: Range<usize>| {
        if key == -1 {
            return protect_managed(process, range, prot);
        }
        process.count(Reason::UnsupportedFlags);
        let (at, len) = (range.start, range.len());
        hand_back(process, range, None)?;
        if by_kernel(at, len) < 0 { Err(sys::errno()) } else { Ok(()) }
    };
    by_parts(addr as usize, len, managed, &mut { by_kernel })
}

unsafe fn synchronize(addr: *mut c_void, len: size_t, flags: c_int) -> c_int {
    let mut by_kernel = |addr: usize, len: usize| {
        // SAFETY: changes no memory.
        unsafe { libc::syscall(libc::SYS_msync, addr, len, flags as c_long) }
    };
    let known = libc::MS_ASYNC | libc::MS_SYNC | libc::MS_INVALIDATE;
    let both = libc::MS_ASYNC | libc::MS_SYNC;
    if flags & !known != 0 || flags & both == both {
        return by_kernel(addr as usize, len) as c_int;
    }
    // MS_ASYNC asks for no more than what the flusher does anyway, but other processes can then see the bytes
    // in the file, as they can in the kernel's cache.
    let durable = if flags & libc::MS_SYNC != 0 { Durable::Yes } else { Durable::No };
    let mut managed =
        |process: &'static Process, range| request::submit(process, Op::Sync(range, durable)).map(drop);
    by_parts(addr as usize, len, &mut managed, &mut by_kernel)
}

/// What an advice means for managed memory.
enum Meaning {
    /// The manager follows it.
    Follow(Advice),
    /// It changes nothing.
    Nothing,
    /// The kernel refuses it for file mappings, or the manager cannot follow.
    Refuse,
}

fn meaning(advice: c_int) -> Meaning {
    match advice {
        libc::MADV_NORMAL => Meaning::Follow(Advice::Normal),
        libc::MADV_RANDOM => Meaning::Follow(Advice::Random),
        libc::MADV_SEQUENTIAL => Meaning::Follow(Advice::Sequential),
        libc::MADV_WILLNEED => Meaning::Follow(Advice::WillNeed),
        libc::MADV_DONTNEED => Meaning::Follow(Advice::DontNeed),
        libc::MADV_COLD => Meaning::Follow(Advice::Cold),
        libc::MADV_PAGEOUT => Meaning::Follow(Advice::PageOut),
        libc::MADV_POPULATE_READ => Meaning::Follow(Advice::PopulateRead),
        libc::MADV_POPULATE_WRITE => Meaning::Follow(Advice::PopulateWrite),
        libc::MADV_REMOVE => Meaning::Follow(Advice::Remove),
        libc::MADV_DONTFORK | libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE | libc::MADV_DONTDUMP => {
            Meaning::Nothing
        }
        libc::MADV_DODUMP | libc::MADV_MERGEABLE | libc::MADV_UNMERGEABLE | libc::MADV_KEEPONFORK => {
            Meaning::Nothing
        }
        // DOFORK among them: a child cannot have managed memory, and must not believe that it can.
        _ => Meaning::Refuse,
    }
}

unsafe fn advise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    let managed = &mut |process: &'static Process, range| match meaning(advice) {
        Meaning::Follow(advice) => request::submit(process, Op::Advise(range, advice)).map(drop),
        Meaning::Nothing => Ok(()),
        Meaning::Refuse => Err(libc::EINVAL),
    };
    // SAFETY: the caller's promise.
    by_parts(addr as usize, len, managed, &mut |addr, len| unsafe {
        libc::syscall(libc::SYS_madvise, addr, len, advice as c_long)
    })
}

unsafe fn posix_advise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    // POSIX' DONTNEED must not lose anything, Linux' may: libc makes nothing of it.
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

unsafe fn resident(addr: *mut c_void, len: size_t, out: *mut c_uchar) -> c_int {
    let start = addr as usize;
    let managed = &mut |process: &'static Process, range: Range<usize>| {
        for at in range.clone().step_by(RESIDENT_PAGES * PAGE) {
            let chunk = at..range.end.min(at + RESIDENT_PAGES * PAGE);
            let pages = chunk.len() / PAGE;
            let to = (out as usize).wrapping_add((at - start) / PAGE);
            let mut copied = pages;
            request::submit_with(process, Op::Resident(chunk), |done| {
                if done.reply.is_ok() {
                    copied = sys::copy_checked(done.resident.as_ptr() as usize, to, pages);
                }
            })?;
            if copied < pages {
                return Err(libc::EFAULT);
            }
        }
        Ok(())
    };
    // SAFETY: the caller's promise; a part's bytes start at its first page's.
    by_parts(start, len, managed, &mut |addr, len| unsafe {
        libc::syscall(libc::SYS_mincore, addr, len, out.wrapping_add((addr - start) / PAGE))
    })
}

unsafe fn lock(addr: *const c_void, len: size_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { lock_with(addr, len, 0) }
}

unsafe fn lock_with(addr: *const c_void, len: size_t, flags: c_uint) -> c_int {
    // mlock takes any address and rounds it down.
    let (start, end) = (addr as usize & !(PAGE - 1), (addr as usize).saturating_add(len));
    by_parts(
        start,
        end - start,
        &mut |process, _| {
            process.count(Reason::MlockRefused);
            Err(libc::ENOMEM)
        },
        // SAFETY: changes no memory.
        &mut |addr, len| unsafe {
            if flags == 0 {
                libc::syscall(libc::SYS_mlock, addr, len)
            } else {
                libc::syscall(libc::SYS_mlock2, addr, len, flags as c_long)
            }
        },
    )
}

unsafe fn unlock(addr: *const c_void, len: size_t) -> c_int {
    let (start, end) = (addr as usize & !(PAGE - 1), (addr as usize).saturating_add(len));
    // SAFETY: changes no memory.
    by_parts(start, end - start, &mut |_, _| Ok(()), &mut |addr, len| unsafe {
        libc::syscall(libc::SYS_munlock, addr, len)
    })
}

/// Windows and the arena must not be locked: their pages move.
unsafe fn lock_all(flags: c_int) -> c_int {
    if let Some((process, _)) = state::alive() {
        process.count(Reason::MlockRefused);
        return sys::fail(libc::ENOMEM);
    }
    // SAFETY: changes no memory.
    let r = unsafe { libc::syscall(libc::SYS_mlockall, flags as c_long) as c_int };
    if r == 0 && flags & libc::MCL_FUTURE != 0 {
        state::LOCKS_FUTURE_MEMORY.store(true, Ordering::Release);
    }
    r
}

unsafe fn unlock_all() -> c_int {
    state::LOCKS_FUTURE_MEMORY.store(false, Ordering::Release);
    // SAFETY: changes no memory.
    unsafe { libc::syscall(libc::SYS_munlockall) as c_int }
}
