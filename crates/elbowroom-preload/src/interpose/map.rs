//! mmap, munmap and mremap.

use crate::policy::{self, FileFacts, First, Last, MapArgs, Surroundings};
use crate::reason::Reason;
use crate::request::{self, Op};
use crate::serve;
use crate::service;
use crate::signals;
use crate::split::Side;
use crate::state::{self, Process};
use crate::sys::{self, PAGE};
use elbowroom::{FileId, Manager, Remap};
use libc::{c_int, c_long, c_void, off_t, size_t};
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::ranges::{each_part, hand_back, managed_range};
use super::stdio;

export! {
    mmap(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void
        = map;
    mmap64(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void
        = map;
    munmap(addr: *mut c_void, len: size_t) -> c_int = unmap;
    mremap(old: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, new: *mut c_void) -> *mut c_void
        = remap;
}

unsafe fn map(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let args = MapArgs { addr: addr as usize, len, prot, flags, fd, offset };
    match state::for_program() {
        Some(process) => map_for_program(process, &args),
        // SAFETY: the caller's promise.
        None => unsafe { sys::mmap(addr, len, prot, flags, fd, offset) },
    }
}

fn map_for_program(process: &'static Process, args: &MapArgs) -> *mut c_void {
    let Some(options) = state::options() else { return map_by_kernel(process, args, None) };
    let manager = process.manager();
    let around = Surroundings {
        min_size_bytes: options.min_size_bytes,
        any_managed: manager.is_some_and(|manager| manager.managed_files() > 0),
        inside_windows: args.fixed()
            && manager.is_some_and(|manager| manager.windows().covers(args.addr, args.rounded())),
    };
    if let First::Kernel(reason) = policy::first(args, &around) {
        return map_by_kernel(process, args, reason);
    }
    let (Some(stat), Some(open_flags), Some(filesystem)) =
        (sys::fstat(args.fd), sys::open_flags(args.fd), sys::filesystem(args.fd))
    else {
        return map_by_kernel(process, args, None);
    };
    let id = FileId { device: stat.st_dev, inode: stat.st_ino };
    let file = FileFacts {
        mode: stat.st_mode,
        filesystem,
        open_flags,
        may_be_managed: around.any_managed && process.managed.may_contain(id.device, id.inode),
    };
    match policy::last(args, &around, &file) {
        Last::Kernel(reason) => map_by_kernel(process, args, reason),
        Last::Manage { writable } if stdio::conflict(id, writable) => {
            map_by_kernel(process, args, Some(Reason::Stdio))
        }
        Last::Manage { writable } => map_by_manager(process, args, id, writable),
    }
}

fn map_by_manager(process: &'static Process, args: &MapArgs, id: FileId, writable: bool) -> *mut c_void {
    if process.manager().is_none() {
        if !process.is_home() {
            return map_by_kernel(process, args, Some(Reason::ChildProcess));
        }
        if state::LOCKS_FUTURE_MEMORY.load(Ordering::Acquire) {
            return map_by_kernel(process, args, Some(Reason::LockedMemory));
        }
        if service::manager(process).is_none() {
            return map_by_kernel(process, args, None);
        }
    }
    let kernel_mapped =
        state::KERNEL_MAPPED.may_contain(id.device, id.inode) || state::HANDED_BACK.load(Ordering::Acquire);
    let op = Op::Map { args: *args, id, tid: sys::gettid(), writable, kernel_mapped };
    match request::submit(process, op) {
        Ok(at) => {
            signals::arm();
            if stdio::conflict(id, writable) {
                // A stream was opened meanwhile, too early to see this mapping. What cannot be given now goes
                // on as it is.
                state::HANDED_BACK.store(true, Ordering::Release);
                let _ = request::submit(process, Op::HandBackFile(id));
            }
            at as *mut c_void
        }
        Err(libc::EEXIST) if args.flags & libc::MAP_FIXED_NOREPLACE != 0 => {
            sys::set_errno(libc::EEXIST);
            libc::MAP_FAILED
        }
        Err(serve::OPEN_FAILED) => map_by_kernel(process, args, Some(Reason::OpenFailed)),
        Err(serve::MAPPED_BY_KERNEL) => map_by_kernel(process, args, Some(Reason::MappedByKernel)),
        Err(_) => map_by_kernel(process, args, Some(Reason::ManagerRefused)),
    }
}

/// The kernel's mapping, counted under `reason` if it was made.
fn map_by_kernel(process: &Process, args: &MapArgs, reason: Option<Reason>) -> *mut c_void {
    let of_file = args.flags & libc::MAP_ANONYMOUS == 0 && args.fd >= 0;
    if let Some(manager) = process.manager()
        && let Err(errno) = make_way(process, manager, args, of_file)
    {
        sys::set_errno(errno);
        return libc::MAP_FAILED;
    }
    let addr = args.addr as *mut c_void;
    // SAFETY: the program's own call, as it made it.
    let call = || unsafe { sys::mmap(addr, args.len, args.prot, args.flags, args.fd, args.offset) };
    let takes_long = args.flags & (libc::MAP_POPULATE | libc::MAP_LOCKED) != 0;
    let at = if takes_long { call() } else { state::change_mappings(call) };
    if at == libc::MAP_FAILED {
        return at;
    }
    if let Some(reason) = reason {
        process.count(reason);
    }
    if of_file
        && args.shared() == Some(true)
        && let Some(stat) = sys::fstat(args.fd)
    {
        state::KERNEL_MAPPED.add(stat.st_dev, stat.st_ino);
    }
    at
}

/// Before the kernel maps something: it may take addresses of windows, and a managed file must show what was
/// stored in it.
fn make_way(process: &Process, manager: &Manager, args: &MapArgs, of_file: bool) -> Result<(), c_int> {
    let replaces = args.flags & libc::MAP_FIXED != 0 && args.addr.is_multiple_of(PAGE) && args.len > 0;
    if replaces && manager.windows().intersects(args.addr, args.rounded()) {
        let range = args.addr..args.addr.saturating_add(args.rounded());
        each_part(manager, range, &mut |side, part| match side {
            Side::Managed => request::submit(process, Op::Surrender(part)).map(drop),
            Side::Kernel => Ok(()),
        })?;
    }
    if of_file
        && manager.dirty_pages() > 0
        && let Some(stat) = sys::fstat(args.fd)
        && process.managed.may_contain(stat.st_dev, stat.st_ino)
    {
        let id = FileId { device: stat.st_dev, inode: stat.st_ino };
        request::submit(process, Op::WriteBack(id, 0..u64::MAX)).map_err(|_| libc::EIO)?;
    }
    Ok(())
}

unsafe fn unmap(addr: *mut c_void, len: size_t) -> c_int {
    let Some((process, manager, range)) = managed_range(addr as usize, len) else {
        // SAFETY: the caller's promise.
        return state::change_mappings(|| unsafe { sys::munmap(addr, len) });
    };
    let done = each_part(manager, range, &mut |side, part| match side {
        Side::Managed => request::submit(process, Op::Unmap(part)).map(drop),
        Side::Kernel => {
            let at = part.start as *mut c_void;
            // SAFETY: the caller's promise, for a part of its range.
            match state::change_mappings(|| unsafe { sys::munmap(at, part.len()) }) {
                0 => Ok(()),
                _ => Err(sys::errno()),
            }
        }
    });
    done.map_or_else(sys::fail, |()| 0)
}

unsafe fn remap(
    old: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    if let Some((process, manager)) = state::alive() {
        match remap_managed(process, manager, old as usize, old_len, new_len, flags, new as usize) {
            Some(Ok(at)) => return at as *mut c_void,
            Some(Err(errno)) => {
                sys::set_errno(errno);
                return libc::MAP_FAILED;
            }
            None => {}
        }
    }
    let flags = flags as c_long;
    // SAFETY: the caller's promise.
    state::change_mappings(|| unsafe { libc::syscall(libc::SYS_mremap, old, old_len, new_len, flags, new) })
        as *mut c_void
}

/// `None`: the kernel does it, and nothing of it is managed any more.
fn remap_managed(
    process: &Process,
    manager: &Manager,
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: usize,
) -> Option<Result<usize, c_int>> {
    let windows = manager.windows();
    let page_up = |len: usize| len.checked_add(PAGE - 1).map(|len| len & !(PAGE - 1));
    let (Some(from_len), Some(to_len)) = (page_up(old_len), page_up(new_len)) else { return None };
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    if !old.is_multiple_of(PAGE) || to_len == 0 || flags & !known != 0 {
        return None;
    }
    let fixed = flags & libc::MREMAP_FIXED != 0;
    // A length of 0 asks for a second mapping of the same pages.
    let source = old..old.checked_add(from_len.max(PAGE))?;
    let target = if fixed { new..new.checked_add(to_len)? } else { 0..0 };
    let source_managed = windows.intersects(source.start, source.len());
    let target_managed = fixed && windows.intersects(target.start, target.len());
    if !source_managed && !target_managed {
        return None;
    }
    let refused = fixed
        && (flags & libc::MREMAP_MAYMOVE == 0
            || !new.is_multiple_of(PAGE)
            || (source.start < target.end && target.start < source.end));
    if refused {
        return Some(Err(libc::EINVAL));
    }
    let all_managed =
        windows.covers(source.start, source.len()) && (!fixed || windows.covers(target.start, target.len()));
    if all_managed && from_len > 0 && flags & libc::MREMAP_DONTUNMAP == 0 {
        let how = match flags {
            _ if fixed => Remap::Fixed(new),
            _ if flags & libc::MREMAP_MAYMOVE != 0 => Remap::MayMove,
            _ => Remap::InPlace,
        };
        return Some(request::submit(process, Op::Remap { old: source, new_len: to_len, how }));
    }
    process.count(Reason::Remapped);
    give_up(process, manager, source, target).err().map(Err)
}

/// Gives the source with its bytes, and the target without, to the kernel.
fn give_up(
    process: &Process,
    manager: &Manager,
    source: Range<usize>,
    target: Range<usize>,
) -> Result<(), c_int> {
    each_part(manager, source, &mut |side, part| match side {
        Side::Managed => hand_back(process, part, None),
        Side::Kernel => Ok(()),
    })?;
    each_part(manager, target, &mut |side, part| match side {
        Side::Managed => request::submit(process, Op::Surrender(part)).map(drop),
        Side::Kernel => Ok(()),
    })
}
